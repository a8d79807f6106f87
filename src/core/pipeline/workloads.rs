//! Workloads: the facts that pod templates show about variants, with or without replicas.
//!
//! A template is read once, and again when it has changed. The result stays while the template is
//! not visible. Forgetting the engine's arguments could increase the assumed capacity per replica,
//! and so scale down because data is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::analyze::engine_args::{self, EngineArguments, UnknownArguments};
use crate::decide::workload::{Contradiction, EngineReport, GpusSource, WorkloadReport};
use crate::fleet::per_variant::PerVariant;
use crate::fleet::{VariantKey, VariantSpec};
use crate::observe::inventory::UnitSource;
use crate::observe::template::PodTemplate;
use crate::observe::{Inputs, Observation};
use crate::pipeline::group::Member;
use crate::pipeline::limits::TickLimits;
use crate::pipeline::tick::Tick;
use crate::units::Tokens;

/// The share by which the reported KV cache may differ from the prescribed one. Blocks are whole,
/// so a few tokens do not matter; another engine differs by far more.
const SIZE_TOLERANCE: f64 = 0.05;

/// The start arguments of engines, by variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workloads {
    read: PerVariant<ParsedTemplate>,
}

#[derive(Clone, Debug)]
struct ParsedTemplate {
    template: Arc<PodTemplate>,
    arguments: Result<Arc<EngineArguments>, UnknownArguments>,
}

// === impl Workloads ===

impl Workloads {
    /// Reads the current templates.
    pub(crate) fn run(&mut self, inputs: &Inputs) {
        self.read.keep(&inputs.fleet);
        for (place, (key, template)) in inputs.templates.iter().enumerate() {
            let known = self.read.get_at(place, key).map(|read| &read.template);
            if known.is_some_and(|known| Arc::ptr_eq(known, template) || known == template) {
                continue;
            }

            let arguments = engine_args::read(&template.containers).map(Arc::new);
            self.read
                .insert(key.clone(), ParsedTemplate { template: Arc::clone(template), arguments });
        }
    }

    /// The start arguments of a variant's engines, if they could be read.
    pub(crate) fn arguments(&self, key: &VariantKey) -> Option<&Arc<EngineArguments>> {
        self.read.get(key)?.arguments.as_ref().ok()
    }

    /// The known facts about the variants' workloads.
    pub(crate) fn reports(
        &self,
        tick: &Tick<'_>,
        limits: &TickLimits<'_>,
    ) -> BTreeMap<VariantKey, WorkloadReport> {
        tick.members
            .iter()
            .map(|member| {
                let spec = member.spec;
                let (_, gpus) = limits.takes(spec);
                let engine = self.engine(member);
                let report = WorkloadReport { gpus, said_by: said_by(limits, spec), engine };
                (spec.key.clone(), report)
            })
            .collect()
    }

    fn engine(&self, member: &Member<'_>) -> Option<EngineReport> {
        let read = self.read.get_at(member.place, &member.spec.key)?;
        let arguments = match &read.arguments {
            Ok(read) => read,
            Err(why) => return Some(EngineReport::Unread(why.clone())),
        };

        Some(match contradiction(arguments, member.observation) {
            Some(contradiction) => EngineReport::Contradicted(contradiction),
            None => EngineReport::Read(Arc::clone(arguments)),
        })
    }
}

/// The source of a replica's resources.
fn said_by(room: &TickLimits<'_>, spec: &VariantSpec) -> GpusSource {
    match (spec.gpus, room.unit(&spec.key).map(|unit| unit.source)) {
        (Some(_), _) => GpusSource::Declared,
        (None, Some(UnitSource::Template)) => GpusSource::Template,
        (None, Some(UnitSource::Pods)) => GpusSource::Pods,
        (None, None) => GpusSource::Assumed,
    }
}

/// A replica whose reported KV cache differs from the size that its engine's arguments prescribe.
fn contradiction(arguments: &EngineArguments, seen: &Observation) -> Option<Contradiction> {
    let ranks = f64::from(arguments.parallel.data.get());
    let prescribed = Tokens::new(arguments.kv_capacity()?.tokens() * ranks)?;

    let fresh = seen.replicas.iter().filter(|replica| replica.freshness.is_fresh());
    let mut capacities = fresh.filter_map(|replica| replica.work?.kv_capacity);
    let reported = capacities.find(|capacity| {
        let apart = (capacity.tokens() - prescribed.tokens()).abs();
        apart > SIZE_TOLERANCE * prescribed.tokens()
    })?;

    Some(Contradiction { prescribed, reported })
}
