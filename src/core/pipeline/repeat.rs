//! A tick that can be decided again with a changed input.
//!
//! [`TickScene`] is the start of a tick: the state before it, the instant, and the inputs.
//! [`RepeatableTick`] is the same tick after it was decided once. Everything that the tick learns
//! from its scrapes is learned then, and the desired replicas in effect are still those from before
//! it. So deciding again changes nothing but what a [`Change`] changes, and without a change it
//! gives the same decisions.
//!
//! If no limit is shared with other models, only the variants of one model are decided again.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::decide::Decision;
use crate::decide::enforce::{Behavior, Deference, Dwell, FLAP_BUDGET_MAX, Rules, Select};
use crate::fleet::{Bounds, Fleet, ModelKey, VariantKey};
use crate::observe::record::FleetRecorder;
use crate::observe::{GaugeSummary, Inputs, Observation, ReplicaObservation};
use crate::pipeline::limits::raised::RaisedLimit;
use crate::pipeline::{Decisions, DesiredReplicas, Pipeline, Policy};
use crate::units::{Fraction, Requests, Seconds};

/// The state, the instant and the inputs of one tick.
#[derive(Clone, Debug)]
pub struct TickScene {
    /// The state before the tick.
    pub pipeline: Pipeline,
    /// The instant of the tick.
    pub now: Timestamp,
    /// The inputs of the tick.
    pub inputs: Inputs,
    /// The desired replicas in effect, if several Plimsoll replicas share them.
    pub follows: Option<BTreeMap<VariantKey, DesiredReplicas>>,
}

/// A tick of which one model can be decided again.
#[derive(Clone, Debug)]
pub struct RepeatableTick {
    pipeline: Pipeline,
    now: Timestamp,
    inputs: Inputs,
    observations: BTreeMap<VariantKey, Observation>,
    model: ModelKey,
}

/// A changed input.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Nothing makes desired replicas wait: no windows, dwell, budgets, step limits or held needs.
    NoWaits,
    /// Past arrivals, and the needs that are held because of them, are multiplied.
    Arrivals(Fraction),
    /// KV cache usage and queues of all replicas are multiplied.
    Saturation(Fraction),
    /// The target for the time to first token.
    Ttft(Seconds),
    /// The target for the mean time between tokens.
    Itl(Seconds),
    /// A limit allows more.
    Limit(RaisedLimit),
    /// The variant has these bounds.
    Bounds(VariantKey, Bounds),
    /// The variant has no pin and no pause.
    NoOverride(VariantKey),
}

// === impl TickScene ===

impl TickScene {
    /// Decides the tick as it was decided, and keeps everything to decide one model again.
    pub fn decided(self, model: &ModelKey) -> (RepeatableTick, Decisions) {
        let Self { mut pipeline, now, inputs, follows } = self;
        if let Some(numbers) = &follows {
            pipeline.continue_from(now, numbers);
        }

        let found = pipeline.consider(now, &inputs);
        pipeline.recorder = FleetRecorder::new();
        let inputs = without_others(Inputs { scrapes: Vec::new(), ..inputs }, model, &pipeline);
        let observations = found
            .observations
            .iter()
            .filter(|(key, _)| inputs.fleet.get(key).is_some())
            .map(|(key, seen)| (key.clone(), without_strides(seen)))
            .collect();
        pipeline.in_force.forget(&inputs.fleet);

        let model = model.clone();
        (RepeatableTick { pipeline, now, inputs, observations, model }, found)
    }
}

/// The inputs with the variants of one model only, unless limits let other models matter.
fn without_others(inputs: Inputs, model: &ModelKey, pipeline: &Pipeline) -> Inputs {
    if pipeline.policy.limits.is_limited() {
        return inputs;
    }

    let own = inputs.fleet.variants().filter(|spec| spec.model_key() == *model).cloned();
    let wishes = inputs.fleet.wishes(model).to_vec();
    let fleet = Fleet::new(own).wishing(wishes.into_iter().map(|wish| (model.clone(), wish)));
    Inputs { fleet: Arc::new(fleet), ..inputs }
}

/// The inputs without the overrides that changes take away; `None` if they take none.
fn without_override(inputs: &Inputs, changes: &[Change]) -> Option<Inputs> {
    let freed = changes.iter().find_map(|change| match change {
        Change::NoOverride(variant) => Some(variant),
        _ => None,
    })?;
    let mut inputs = inputs.clone();
    inputs.overrides.remove(freed);
    Some(inputs)
}

/// An observation whose counters have been learned from already.
fn without_strides(seen: &Observation) -> Observation {
    let mut known = seen.clone();
    for replica in &mut known.replicas {
        replica.strides.clear();
    }

    known
}

// === impl RepeatableTick ===

impl RepeatableTick {
    /// The policy by which the tick was decided.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.pipeline.policy
    }

    /// The largest mean KV cache usage among the replicas of a variant, if any reports it.
    #[must_use]
    pub fn fullest(&self, variant: &VariantKey) -> Option<Fraction> {
        let replicas = &self.observations.get(variant)?.replicas;
        let usages = replicas.iter().filter_map(|replica| replica.kv_usage);
        usages.map(|usage| usage.mean).reduce(Fraction::max)
    }

    /// Decides the tick again with these changes, and returns the decision on a variant. `None` if
    /// it has no decision.
    #[must_use]
    pub fn decide(&self, variant: &VariantKey, changes: &[Change]) -> Option<Decision> {
        let mut pipeline = self.pipeline.clone();
        let mut observations = self.observations.clone();
        let mut raised = None;
        for change in changes {
            match change {
                Change::NoWaits => without_waits(&mut pipeline.policy),
                Change::Arrivals(factor) => {
                    pipeline.sizer.scale_load(&self.model, factor.fraction());
                }
                Change::Saturation(factor) => {
                    self.scale_saturation(&mut observations, *factor);
                }
                Change::Ttft(target) => {
                    if let Some(sizing) = &mut pipeline.policy.sizing {
                        sizing.foresight.ttft = *target;
                    }
                }
                Change::Itl(target) => {
                    if let Some(sizing) = &mut pipeline.policy.sizing {
                        sizing.foresight.itl = Some(*target);
                    }
                }
                Change::Limit(limit) => raised = Some(limit),
                Change::NoOverride(_) => {}
                Change::Bounds(of, bounds) => {
                    if let Some(seen) = observations.get_mut(of) {
                        seen.bounds = *bounds;
                    }
                }
            }
        }

        let free = without_override(&self.inputs, changes);
        let inputs = free.as_ref().unwrap_or(&self.inputs);
        let found = pipeline.decide(self.now, inputs, observations, raised);
        let mut decisions = found.decisions.into_iter();
        decisions.find(|decision| decision.variant == *variant)
    }

    fn scale_saturation(
        &self,
        observations: &mut BTreeMap<VariantKey, Observation>,
        factor: Fraction,
    ) {
        for (key, seen) in observations {
            let spec = self.inputs.fleet.get(key);
            if spec.is_some_and(|spec| spec.model_key() == self.model) {
                seen.replicas.iter_mut().for_each(|replica| scale_gauges(replica, factor));
            }
        }
    }
}

fn scale_gauges(replica: &mut ReplicaObservation, factor: Fraction) {
    for gauge in [&mut replica.kv_usage, &mut replica.kv_hottest].into_iter().flatten() {
        *gauge = scaled(gauge, |usage| {
            let more = Fraction::new(usage.fraction() * factor.fraction());
            more.unwrap_or_default().min(Fraction::ONE)
        });
    }

    for gauge in [&mut replica.waiting, &mut replica.waiting_hottest].into_iter().flatten() {
        *gauge = scaled(gauge, |queue| {
            Requests::new(queue.requests() * factor.fraction()).unwrap_or_default()
        });
    }
}

fn scaled<Q: Copy>(gauge: &GaugeSummary<Q>, scale: impl Fn(Q) -> Q) -> GaugeSummary<Q> {
    let GaugeSummary { last, mean, peak, age } = *gauge;
    GaugeSummary { last: scale(last), mean: scale(mean), peak: scale(peak), age }
}

/// Removes everything from a policy that delays a change of desired replicas.
fn without_waits(policy: &mut Policy) {
    policy.window = Seconds::ZERO;
    policy.behavior = Behavior {
        scale_up: unlimited(&policy.behavior.scale_up),
        scale_down: unlimited(&policy.behavior.scale_down),
        dwell: Dwell::default(),
        flap_budget: FLAP_BUDGET_MAX,
        panic: None,
        deference: Deference::None,
    };
    if let Some(sizing) = &mut policy.sizing {
        sizing.foresight.hold = None;
    }
}

/// The rules of a direction without a window and step limits. A direction that is disabled stays
/// disabled, because no time ends that.
fn unlimited(rules: &Rules) -> Rules {
    let select = match rules.select {
        Select::Disabled => Select::Disabled,
        Select::Max | Select::Min => Select::Max,
    };
    Rules { stabilization_window: Seconds::ZERO, select, policies: Vec::new() }
}
