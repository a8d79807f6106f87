//! Workloads: what their pod templates say of variants, replicas or none.
//!
//! A template is read once and again when it has changed. What was read stays while a template is
//! out of sight: to forget how an engine is started could raise what it is taken to carry, and so
//! lower a number for want of data.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::analyze::engine_args::{self, EngineArguments, Unread};
use crate::decide::workload::{Contradiction, EngineReport, SaidBy, WorkloadReport};
use crate::fleet::{Fleet, VariantKey, VariantSpec};
use crate::observe::inventory::UnitSource;
use crate::observe::template::{Template, Templates};
use crate::observe::{Inputs, Observation};
use crate::pipeline::Pipeline;
use crate::pipeline::limits::Room;
use crate::units::Tokens;

/// By how much a page's KV cache may differ from what is prescribed. Blocks are whole, so a few
/// tokens are nothing; another engine differs by far more.
const SIZE_TOLERANCE: f64 = 0.05;

/// How engines are started, by variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workloads {
    read: BTreeMap<VariantKey, Read>,
}

#[derive(Clone, Debug)]
struct Read {
    template: Arc<Template>,
    arguments: Result<Arc<EngineArguments>, Unread>,
}

// === impl Workloads ===

impl Workloads {
    /// Takes in the templates that there are now.
    fn take(&mut self, fleet: &Fleet, templates: &Templates) {
        self.read.retain(|key, _| fleet.get(key).is_some());
        for (key, template) in templates {
            let known = self.read.get(key).map(|read| &read.template);
            if known.is_some_and(|known| Arc::ptr_eq(known, template) || known == template) {
                continue;
            }
            let (template, arguments) =
                (Arc::clone(template), engine_args::read(&template.containers).map(Arc::new));
            self.read.insert(key.clone(), Read { template, arguments });
        }
    }

    /// How a variant's engines are started, if that could be read.
    pub(crate) fn arguments(&self, key: &VariantKey) -> Option<&Arc<EngineArguments>> {
        self.read.get(key)?.arguments.as_ref().ok()
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Takes in what is not load: how replicas start, and how their engines are started.
    pub(crate) fn take_workloads(&mut self, inputs: &Inputs) {
        self.startups.take(inputs);
        self.learned.workloads.take(&inputs.fleet, &inputs.templates);
    }

    /// What is known of the variants' workloads.
    pub(crate) fn workloads_of(
        &self,
        room: &Room,
        fleet: &Fleet,
        observations: &BTreeMap<VariantKey, Observation>,
    ) -> BTreeMap<VariantKey, WorkloadReport> {
        let report = |spec: &VariantSpec| {
            let (_, gpus) = self.takes(room, spec);
            let engine = self.engine(&spec.key, observations.get(&spec.key));
            let report = WorkloadReport { gpus, said_by: said_by(room, spec), engine };
            (spec.key.clone(), report)
        };
        fleet.variants().map(report).collect()
    }

    fn engine(&self, key: &VariantKey, seen: Option<&Observation>) -> Option<EngineReport> {
        let arguments = match &self.learned.workloads.read.get(key)?.arguments {
            Ok(arguments) => arguments,
            Err(why) => return Some(EngineReport::Unread(why.clone())),
        };
        let contradiction = seen.and_then(|seen| contradiction(arguments, seen));
        Some(match contradiction {
            Some(contradiction) => EngineReport::Contradicted(contradiction),
            None => EngineReport::Read(Arc::clone(arguments)),
        })
    }
}

/// Who says what a replica takes.
fn said_by(room: &Room, spec: &VariantSpec) -> SaidBy {
    match (spec.gpus, room.unit(&spec.key).map(|unit| unit.source)) {
        (Some(_), _) => SaidBy::Declared,
        (None, Some(UnitSource::Template)) => SaidBy::Template,
        (None, Some(UnitSource::Pods)) => SaidBy::Pods,
        (None, None) => SaidBy::Nobody,
    }
}

/// A replica whose KV cache is not of the size that its engine is told to make it.
fn contradiction(arguments: &EngineArguments, seen: &Observation) -> Option<Contradiction> {
    let ranks = f64::from(arguments.parallel.data.get());
    let prescribed = Tokens::new(arguments.kv_capacity()?.tokens() * ranks)?;
    let reported = seen.replicas.iter().filter(|replica| replica.freshness.is_fresh());
    let reported = reported.filter_map(|replica| replica.work?.kv_capacity).find(|reported| {
        let apart = (reported.tokens() - prescribed.tokens()).abs();
        apart > SIZE_TOLERANCE * prescribed.tokens()
    })?;
    Some(Contradiction { prescribed, reported })
}
