//! Variants: engines, starts, failures, and who scales them.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};

use crate::simulate::Micros;
use crate::simulate::replica::adapters::AdapterSettings;
use crate::simulate::replica::settings::{
    Admission, BLOCK_SIZE, Experts, SEATS, Settings, StepTime,
};
use crate::simulate::scaler::{self, Limit, MilliValue, Policy, Rules, Select};
use crate::simulate::scenario::{
    Actuator, COOLDOWN, Delay, GRACE, Hpa, Keda, Lifecycle, Model, POLLING, Portion, Prefix,
    Rollout, SYNC, Signal, Startup, Variant,
};
use crate::simulate::workload::load::{Load, Replay};
use crate::study::file;
use crate::study::resolve::adapters;
use plimsoll_core::fleet::{Bounds, Role, VariantSpec};
use plimsoll_core::units::{Fraction, Replicas};
use plimsoll_daemon::config::START_TIMES;
use plimsoll_daemon::config::check::{Checks, Durations};
use plimsoll_daemon::config::names;
use plimsoll_daemon::config::written::WrittenDuration;

const COST: f64 = 1.0;
const COSTS: RangeInclusive<f64> = 0.0..=1e9;
/// As in the configuration.
const MISMATCHES: RangeInclusive<f64> = 1.0..=1000.0;
/// More than any cluster has.
const REPLICAS_MAX: u32 = 10_000;
/// The default of vLLM's V1 engine for an online server on accelerators of less than 70 GB.
const BATCH_TOKENS: u32 = 2_048;
const STEPS: Durations = Duration::ZERO..=Duration::from_mins(1);
const SPANS: Durations = Duration::ZERO..=Duration::from_hours(24 * 366);
/// What the large clouds give before a spot instance ends.
const NOTICE: Duration = Duration::from_mins(2);
/// `maxSurge` and `maxUnavailable` of a Deployment that does not say them.
const PORTION: f64 = 0.25;
/// What the period of a controller may be.
const SYNCS: Durations = Duration::from_millis(100)..=Duration::from_hours(1);

/// One variant as written, and where.
struct One<'a, 'b, 'c> {
    path: &'a str,
    checks: &'b mut Checks<'c>,
}

/// The models of a scenario, in the order in which they are written.
#[derive(Default)]
pub(crate) struct Models {
    /// The name of each, where it has one.
    pub(crate) names: Vec<Option<String>>,
    /// What each is, where nothing is wrong with it.
    pub(crate) resolved: Vec<Option<Model>>,
}

impl Models {
    /// The model that a variant with these words serves.
    pub(crate) fn of(&self, written: Option<&str>) -> Option<usize> {
        match written {
            Some(written) => self.names.iter().position(|name| name.as_deref() == Some(written)),
            None => (self.names.len() == 1).then_some(0),
        }
    }

    fn get(&self, model: usize) -> Option<&Model> {
        self.resolved.get(model)?.as_ref()
    }
}

/// The role of a variant with this word.
pub(crate) const fn role(written: Option<file::Role>) -> Role {
    match written {
        Some(file::Role::Both) | None => Role::Both,
        Some(file::Role::Prefill) => Role::Prefill,
        Some(file::Role::Decode) => Role::Decode,
    }
}

/// A variant without what the daemon's own code makes of its words.
pub(crate) struct Drafted {
    /// What the daemon is told of it.
    pub(crate) words: Value,
    model: usize,
    initial: Replicas,
    engine: Settings,
    prefix: Prefix,
    adapters: Option<AdapterSettings>,
    startup: Startup,
    lifecycle: Lifecycle,
    rollout: Option<Rollout>,
    actuator: Actuator,
}

impl Drafted {
    /// The variant, as the daemon knows it.
    pub(crate) fn with(self, spec: VariantSpec) -> Variant {
        let Self { words: _, model, initial, engine, prefix, adapters, .. } = self;
        let Self { startup, lifecycle, rollout, actuator, .. } = self;
        Variant {
            spec,
            model,
            initial,
            engine,
            prefix,
            adapters,
            startup,
            lifecycle,
            rollout,
            actuator,
        }
    }
}

/// Resolves a variant; all that is wrong with it is a problem.
pub(crate) fn resolve(
    path: &str,
    written: &file::Variant,
    models: &Models,
    checks: &mut Checks<'_>,
) -> Option<Drafted> {
    let mut one = One { path, checks };
    let model = one.model(written.model.as_deref(), models);
    let name = one.name(written.name.as_deref());
    let cost = one.checks.number(&one.at("cost"), written.cost, &COSTS).unwrap_or(COST);
    let list_price = one.checks.number(&one.at("list_price"), written.list_price, &COSTS);
    let mismatch = one.checks.number(&one.at("mismatch"), written.mismatch, &MISMATCHES);
    let path = one.at("start_time");
    let start_time = one.checks.duration(&path, written.start_time, &START_TIMES);
    let counts = written.replicas.clone().unwrap_or_default();
    let (bounds, initial) = one.counts(&counts);
    let engine = one.engine(&written.engine.clone().unwrap_or_default());
    let prefix = one.prefix(&written.engine.clone().unwrap_or_default(), model, models);
    let adapters = written.engine.as_ref().and_then(|engine| engine.adapters.as_ref());
    let served = model.and_then(|model| models.get(model));
    let adapters = adapters::slots(&one.at("engine.adapters"), adapters, served, one.checks);
    let startup = one.startup(&written.startup.clone().unwrap_or_default());
    let lifecycle = one.lifecycle(&written.lifecycle.clone().unwrap_or_default());
    let rollout = one.rollout(written.rollout.as_ref());
    let actuator = one.autoscaler(&written.autoscaler.clone().unwrap_or_default(), bounds, initial);
    let (model, bounds) = (model?, bounds?);
    let key = &models.get(model)?.key;
    let mut words = json!({
        "name": name?,
        "namespace": key.namespace.as_str(),
        "model": key.model.as_str(),
        "role": role(written.role).label(),
        "cost": cost,
        "replicas": {"min": bounds.min().count(), "max": bounds.max().map(Replicas::count)},
    });
    if let Some(accelerator) = &written.accelerator {
        words["accelerator"] = json!(accelerator);
    }
    if let Some(list_price) = list_price {
        words["list_price"] = json!(list_price);
    }
    if let Some(mismatch) = mismatch {
        words["mismatch"] = json!(mismatch);
    }
    if let Some(start_time) = start_time {
        words["start_time"] = json!(WrittenDuration(start_time));
    }
    Some(Drafted {
        words,
        model,
        initial,
        engine: engine?,
        prefix: prefix?,
        adapters,
        startup,
        lifecycle,
        rollout,
        actuator,
    })
}

impl One<'_, '_, '_> {
    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn name<'t>(&mut self, written: Option<&'t str>) -> Option<&'t str> {
        let path = self.at("name");
        if written.is_none() {
            self.checks.problems.missing(&path, "is required");
        }
        self.checks.text(&path, written, names::is_variant_name, names::VARIANT_NAME)
    }

    fn model(&mut self, written: Option<&str>, models: &Models) -> Option<usize> {
        let path = self.at("model");
        let known = models.of(written);
        match written {
            None if models.names.len() > 1 => {
                self.checks.problems.missing(path, "is required, because there are several models");
            }
            // One whose name is not known may be the one that is meant.
            Some(written) if known.is_none() && models.names.iter().all(Option::is_some) => {
                let rule = "must be the name of a model";
                self.checks.problems.error(path, rule, format!("{written:?}"));
            }
            Some(_) | None => {}
        }
        known
    }

    fn counts(&mut self, written: &file::ReplicaCounts) -> (Option<Bounds>, Replicas) {
        let allowed = 0..=REPLICAS_MAX;
        let min = self.checks.number(&self.at("replicas.min"), written.min, &allowed).unwrap_or(1);
        let path = self.at("replicas.max");
        let max = self.checks.number(&path, written.max, &(1..=REPLICAS_MAX));
        if max.is_none() {
            self.checks.problems.missing(&path, "is required");
        }
        if let Some(max) = max.filter(|max| min > *max) {
            let rule = format!("must not be below replicas.min, which is {min}");
            self.checks.problems.error(path, rule, max);
        }
        let allowed = 0..=max.unwrap_or(REPLICAS_MAX);
        let initial = self.checks.number(&self.at("replicas.initial"), written.initial, &allowed);
        let initial = Replicas::saturating(initial.unwrap_or(min));
        let max = max.map(Replicas::saturating);
        let bounds = max.and_then(|max| Bounds::new(Replicas::saturating(min), Some(max)));
        (bounds, initial)
    }

    fn engine(&mut self, written: &file::Engine) -> Option<Settings> {
        let mut step = |key: &str, written: Option<WrittenDuration>, required: bool| {
            let path = self.at(&format!("engine.{key}"));
            if written.is_none() && required {
                self.checks.problems.missing(&path, "is required");
            }
            let span = self.checks.duration(&path, written, &STEPS);
            span.map(|span| span.as_secs_f64() * 1e6).or((!required).then_some(0.0))
        };
        let alpha = step("alpha", written.alpha, true);
        let beta = step("beta", written.beta, true);
        let delta = step("delta", written.delta, true);
        let gamma = step("gamma", written.gamma, false);
        let experts = match &written.experts {
            Some(written) => {
                let per_token = step("experts.per_token", written.per_token, true);
                let path = self.at("engine.experts.tokens");
                if written.tokens.is_none() {
                    self.checks.problems.missing(&path, "is required");
                }
                let tokens = self.checks.number(&path, written.tokens, &(1..=1_000_000));
                tokens.zip(per_token).map(|(tokens, per_token)| Experts { tokens, per_token })
            }
            None => Some(Experts::NONE),
        };
        let mut count = |key: &str, written: Option<u32>, default: Option<u32>| {
            let path = self.at(&format!("engine.{key}"));
            if written.is_none() && default.is_none() {
                self.checks.problems.missing(&path, "is required");
            }
            self.checks.number(&path, written, &(1..=1_000_000_000)).or(default)
        };
        let tokens = count("kv_tokens", written.kv_tokens, None);
        let seats = count("seats", written.seats, Some(SEATS))?;
        let batch = count("batch_tokens", written.batch_tokens, Some(BATCH_TOKENS.max(seats)))?;
        let block = count("block_size", written.block_size, Some(BLOCK_SIZE))?;
        let path = self.at("engine.batch_tokens");
        if batch < seats && !self.checks.problems.refused(&self.at("engine.seats")) {
            let rule = format!("must not be below engine.seats, which is {seats}");
            self.checks.problems.error(path, rule, batch);
        }
        let blocks = tokens.map(|tokens| tokens / block);
        if let Some(tokens) = tokens.filter(|_| blocks == Some(0)) {
            let rule = format!("must be at least one block of {block} tokens");
            self.checks.problems.error(self.at("engine.kv_tokens"), rule, tokens);
        }
        Some(Settings {
            step: StepTime {
                alpha: alpha?,
                beta: beta?,
                delta: delta?,
                gamma: gamma?,
                experts: experts?,
            },
            max_num_seqs: seats,
            max_num_batched_tokens: batch,
            block_size: block,
            kv_blocks: blocks?,
            admission: Admission::WholePrompt,
        })
    }

    fn prefix(
        &mut self,
        written: &file::Engine,
        model: Option<usize>,
        models: &Models,
    ) -> Option<Prefix> {
        let path = self.at("engine.prefix_hits");
        let share = self.checks.number(&path, written.prefix_hits, &(0.0..=1.0)).unwrap_or(0.0);
        if written.prefix_caching != Some(true) {
            return Fraction::new(share).map(Prefix::Share);
        }
        let path = self.at("engine.prefix_caching");
        if written.prefix_hits.is_some() {
            let rule = "must not be true beside engine.prefix_hits, which says what is found";
            self.checks.problems.error_at(path, rule);
            return None;
        }
        let block = written.block_size.unwrap_or(BLOCK_SIZE);
        let Load::Replay(Replay { prompts: Some(prompts), .. }) = &models.get(model?)?.load else {
            let rule = "finds the blocks of preempted requests alone, because no prompt is known: \
                        that takes a trace with hash_ids";
            self.checks.problems.warning(path, rule);
            return Some(Prefix::Blocks);
        };
        let page = prompts.page_tokens();
        if block > 0 && !page.is_multiple_of(block) {
            let rule = format!("must divide the {page} tokens of one of the trace's hash_ids");
            self.checks.problems.error(self.at("engine.block_size"), rule, block);
            return None;
        }
        Some(Prefix::Blocks)
    }

    fn span(&mut self, key: &str, written: Option<WrittenDuration>) -> Option<Micros> {
        let path = self.at(key);
        self.checks.duration(&path, written, &SPANS).map(Micros::from_duration)
    }

    fn startup(&mut self, written: &file::Startup) -> Startup {
        let path = self.at("startup.sigma");
        let sigma = self.checks.number(&path, written.sigma, &(0.0..=3.0)).unwrap_or(0.0);
        let mut phase = |key: &str, written| {
            let median = self.span(&format!("startup.{key}"), written).unwrap_or_default();
            Delay { median, sigma }
        };
        Startup {
            node: phase("node", written.node),
            image: phase("image", written.image),
            load: phase("load", written.load),
            warmup: phase("warmup", written.warmup),
            warm_nodes: written.warm_nodes,
        }
    }

    fn lifecycle(&mut self, written: &file::Lifecycle) -> Lifecycle {
        let grace = self.span("lifecycle.grace", written.grace);
        let notice = self.span("lifecycle.notice", written.notice);
        let positive = |span: &Micros| *span > Micros::ZERO;
        Lifecycle {
            grace: grace.unwrap_or(GRACE),
            crash_every: self.span("lifecycle.crash_every", written.crash_every).filter(positive),
            interrupt_every: self
                .span("lifecycle.interrupt_every", written.interrupt_every)
                .filter(positive),
            notice: notice.unwrap_or(Micros::from_duration(NOTICE)),
        }
    }

    fn rollout(&mut self, written: Option<&file::Rollout>) -> Option<Rollout> {
        let file::Rollout { at, max_surge, max_unavailable } = written?;
        if at.is_none() {
            self.checks.problems.missing(self.at("rollout.at"), "is required");
        }
        let at = self.span("rollout.at", *at);
        let max_surge = self.portion("rollout.max_surge", *max_surge);
        let max_unavailable = self.portion("rollout.max_unavailable", *max_unavailable);
        if max_surge == Some(Portion::NONE) && max_unavailable == Some(Portion::NONE) {
            let rule =
                "must not be 0 where rollout.max_unavailable is, as nothing could be replaced";
            self.checks.problems.error(self.at("rollout.max_surge"), rule, 0);
        }
        Some(Rollout { at: at?, max_surge: max_surge?, max_unavailable: max_unavailable? })
    }

    /// A share below 1, or a whole number.
    fn portion(&mut self, key: &str, written: Option<f64>) -> Option<Portion> {
        let Some(written) = written else { return Fraction::new(PORTION).map(Portion::Share) };
        let path = self.at(key);
        let allowed = 0.0..=f64::from(REPLICAS_MAX);
        let number = self.checks.number(&path, Some(written), &allowed)?;
        if number < 1.0 && number > 0.0 {
            return Fraction::new(number).map(Portion::Share);
        }
        let whole = (0..=REPLICAS_MAX).find(|whole| f64::from(*whole).total_cmp(&number).is_eq());
        if whole.is_none() {
            let rule = "must be a share below 1, or a whole number of replicas";
            self.checks.problems.error(path, rule, number);
        }
        whole.map(Portion::Replicas)
    }

    fn autoscaler(
        &mut self,
        written: &file::Autoscaler,
        bounds: Option<Bounds>,
        initial: Replicas,
    ) -> Actuator {
        let kind = written.kind.unwrap_or(file::AutoscalerKind::Hpa);
        let mut hpa = self.hpa(written, bounds);
        let polling = self.checks.duration(&self.at("autoscaler.polling"), written.polling, &SYNCS);
        let cooldown = self.span("autoscaler.cooldown", written.cooldown);
        let path = self.at("autoscaler.activation");
        let activation = self.checks.number(&path, written.activation, &(0.0..=1e9)).unwrap_or(0.0);
        if kind != file::AutoscalerKind::None
            && hpa.signal.needs_replicas()
            && [bounds.map(Bounds::min), Some(initial)].contains(&Some(Replicas::ZERO))
        {
            let rule = "cannot bring the variant back from zero replicas, because only replicas \
                        say it; rate counts what comes to the gateway";
            self.checks.problems.warning(self.at("autoscaler.follows"), rule);
        }
        match kind {
            file::AutoscalerKind::None => Actuator::Fixed,
            file::AutoscalerKind::Hpa => Actuator::Hpa(hpa),
            file::AutoscalerKind::Keda => {
                let to_zero = hpa.settings.min == Replicas::ZERO;
                hpa.settings.min = hpa.settings.min.max(Replicas::ONE);
                Actuator::Keda(Keda {
                    hpa,
                    to_zero,
                    polling: polling.map_or(POLLING, Micros::from_duration),
                    cooldown: cooldown.unwrap_or(COOLDOWN),
                    activation: milli(activation),
                })
            }
        }
    }

    fn hpa(&mut self, written: &file::Autoscaler, bounds: Option<Bounds>) -> Hpa {
        let signal = match written.follows {
            Some(file::Signal::Desired) | None => Signal::Desired,
            Some(file::Signal::Waiting) => Signal::Waiting,
            Some(file::Signal::InFlight) => Signal::InFlight,
            Some(file::Signal::KvUsage) => Signal::KvUsage,
            Some(file::Signal::Rate) => Signal::Rate,
            Some(file::Signal::Sent) => Signal::Sent,
        };
        let path = self.at("autoscaler.target");
        let target = self.checks.positive(&path, written.target, 1e9);
        // Without bounds the variant is refused, and all else of it is checked all the same.
        let bounds = bounds.and_then(|bounds| Some((bounds.min(), bounds.max()?)));
        let (min, max) = bounds.unwrap_or((Replicas::ONE, Replicas::ONE));
        let mut settings = if signal == Signal::Desired {
            scaler::Settings::following(min, max)
        } else {
            if target.is_none() {
                self.checks.problems.missing(path, "is required, unless follows is desired");
            }
            let behavior = written.scale_up.is_some() || written.scale_down.is_some();
            let settings =
                if behavior { scaler::Settings::with_behavior } else { scaler::Settings::new };
            settings(min, max, MilliValue(1000))
        };
        if let Some(target) = target {
            settings.target = milli(target);
        }
        self.rules("scale_up", written.scale_up.as_ref(), &mut settings.up);
        self.rules("scale_down", written.scale_down.as_ref(), &mut settings.down);
        let sync = self.checks.duration(&self.at("autoscaler.sync"), written.sync, &SYNCS);
        let delay = self.span("autoscaler.delay", written.delay).unwrap_or_default();
        Hpa { signal, settings, sync: sync.map_or(SYNC, Micros::from_duration), delay }
    }

    fn rules(&mut self, key: &str, written: Option<&file::Direction>, rules: &mut Rules) {
        let Some(written) = written else { return };
        let path = format!("autoscaler.{key}");
        let tolerance = self.at(&format!("{path}.tolerance"));
        if let Some(share) = self.checks.number(&tolerance, written.tolerance, &(0.0..=1.0)) {
            rules.tolerance = share;
        }
        let window = format!("{path}.stabilization_window");
        if let Some(window) = self.span(&window, written.stabilization_window) {
            rules.window = window;
        }
        rules.select = match written.select_policy {
            Some(file::SelectPolicy::Max) => Select::Max,
            Some(file::SelectPolicy::Min) => Select::Min,
            Some(file::SelectPolicy::Disabled) => Select::Disabled,
            None => rules.select,
        };
        let Some(policies) = &written.policies else { return };
        rules.policies.clear();
        for (at, policy) in policies.iter().enumerate() {
            let path = format!("{path}.policies[{at}]");
            let Some(file::StepPolicy { r#type, value, period }) = policy else { continue };
            let (Some(r#type), Some(value)) = (r#type, value) else {
                self.checks.problems.missing(self.at(&path), "must have type and value");
                continue;
            };
            let limit = match r#type {
                file::StepType::Pods => Limit::Pods(*value),
                file::StepType::Percent => Limit::Percent(*value),
            };
            let period = self.span(&format!("{path}.period"), *period);
            let period = period.unwrap_or(SYNC);
            rules.policies.push(Policy { limit, period });
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the numbers are bounded")]
fn milli(value: f64) -> MilliValue {
    MilliValue((value * 1000.0).round() as i64)
}
