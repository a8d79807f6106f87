//! The pipeline: turns inputs into decisions, identically in the daemon, the demo and the
//! simulator.
//!
//! [`Pipeline::tick`] reads as the algorithm. It observes every variant, analyzes each model, and
//! decides for each variant. It then blocks scale-downs on incomplete data, enforces windows, steps
//! and bounds, and checks the whole set. The pipeline owns all state that outlives a tick and reads
//! no clock. The same state, instant and inputs always give the same decisions.

mod absence;
mod follow;
mod group;
pub mod limits;
pub mod pools;
mod proposal;
mod restrain;
mod saturate;
pub mod saved;
mod silence;
pub mod sizing;
mod startup;
mod workloads;
pub mod zero;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::{Thresholds, TransitionRule};
use crate::decide::check::{self, Violation};
use crate::decide::enforce::{self, Behavior, PublishedReplicas, ScalingHistory};
use crate::decide::limit::LimitReport;
use crate::decide::pools::pooled::PoolReport;
use crate::decide::workload::WorkloadReport;
use crate::decide::{
    Basis, Decision, ModelReport, NoData, NoDecision, Reason, Stage, Step, VariantReport,
};
use crate::fleet::per_variant::PerVariant;
use crate::fleet::{Fleet, ModelKey, Role, VariantKey};
use crate::observe::record::{FleetRecorder, Horizon, RecordDetail};
use crate::observe::{Inputs, MeasuredSince, Observation, ScrapeRoute};
use crate::pipeline::absence::Absences;
pub use crate::pipeline::follow::DesiredReplicas;
use crate::pipeline::group::{Member, VariantGroup, groups};
use crate::pipeline::limits::LimitPolicy;
use crate::pipeline::pools::{AdapterPool, Pools};
use crate::pipeline::proposal::Proposal;
use crate::pipeline::saturate::Reports;
use crate::pipeline::saved::Recall;
use crate::pipeline::sizing::{LearnedState, Sizing};
use crate::pipeline::startup::Startups;
use crate::pipeline::zero::{Zero, Zeros};
use crate::units::{Replicas, Seconds};

/// Age from which a list of replicas is too old to allow a scale-down. Discovery refreshes within
/// seconds, and a broken watch reconnects within one. A minute means that something is wrong.
const LISTING_STALE: f64 = 60.0;

/// Seconds between two ticks from which the process must have paused or the clock jumped. Ticks
/// come at least once per minute.
const PAUSE_MAX: f64 = 120.0;

/// The configuration that the pipeline's decisions depend on, in addition to its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Length of the window over which peaks, means and rates are taken.
    pub window: Seconds,
    /// Age from which a replica's data is too old to act on.
    pub stale_after: Seconds,
    /// The same age for replicas that another server scrapes.
    pub stale_after_relayed: Seconds,
    /// Thresholds of models without an override.
    pub thresholds: Thresholds,
    /// Thresholds of single models.
    pub overrides: BTreeMap<ModelKey, Thresholds>,
    /// What blocks new decisions while an earlier one is being carried out.
    pub transition: TransitionRule,
    /// The time for which an earlier decision keeps blocking if it is never actuated.
    pub transition_patience: Seconds,
    /// Limits on the speed of published changes.
    pub behavior: Behavior,
    /// The analyzers that size the models. Without them, saturation changes the replicas by one at
    /// a time.
    pub sizing: Option<Sizing>,
    /// The models that may scale to zero, and the conditions for it.
    pub zero: Zero,
    /// The variants whose replicas serve several adapters each.
    pub pools: BTreeMap<VariantKey, AdapterPool>,
    /// The resources that all variants together may use.
    pub limits: LimitPolicy,
}

/// The observations, reports and decisions of one tick.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// One decision per variant, ordered by key. A variant that cannot be decided has none.
    pub decisions: Vec<Decision>,
    /// The reason why a variant has no decision.
    pub undecided: BTreeMap<VariantKey, NoDecision>,
    /// The observation of each variant.
    pub observations: BTreeMap<VariantKey, Observation>,
    /// The analysis of each model and role with fresh data.
    pub models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// The analysis of each variant with fresh data.
    pub variants: BTreeMap<VariantKey, VariantReport>,
    /// The report of each pool with fresh data.
    pub pools: BTreeMap<VariantKey, PoolReport>,
    /// The limits and their usage; empty if nothing is limited.
    pub limits: Vec<LimitReport>,
    /// The known facts about each variant's workload.
    pub workloads: BTreeMap<VariantKey, WorkloadReport>,
    /// The invariant that the decisions broke. If set, `decisions` repeats those that were in
    /// effect before.
    pub violation: Option<Violation>,
}

/// The state that outlives a tick.
#[derive(Clone, Debug)]
pub struct Pipeline {
    policy: Policy,
    recorder: FleetRecorder,
    in_force: PerVariant<DecisionInForce>,
    unsettled: BTreeMap<VariantKey, Wait>,
    ticked: Option<Timestamp>,
    /// Replicas that the last plan removes. They stay until their replacements serve load.
    leaving: BTreeMap<VariantKey, Replicas>,
    learned: LearnedState,
    zeros: Zeros,
    startups: Startups,
    absences: Absences,
    pools: Pools,
}

/// The time since which a variant has differed from its target state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The replicas that its scale target requests, if known.
    pub wanted: Option<Replicas>,
    /// The start of the wait.
    #[serde(with = "crate::units::instants")]
    pub since: Timestamp,
}

/// The desired replicas that were last published for a variant.
#[derive(Clone, Debug)]
struct DecisionInForce {
    desired: Replicas,
    inputs_at: Timestamp,
    basis: Basis,
    restored: Option<Recall>,
    /// True if the decision was made while the variant had no replicas, so that no load supports
    /// it.
    at_zero: bool,
    history: ScalingHistory,
}

/// The parts of a tick that a stage needs.
struct StageInputs<'a> {
    inputs_at: Timestamp,
    rests_on: RecommendationBasis,
    /// The scale-down guards: reasons that block a scale-down entirely or in part.
    guards: [Option<&'a Reason>; 2],
}

/// The data behind a recommendation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecommendationBasis {
    /// The highest load of the same replicas at one time.
    Peaks,
    /// The forecast demand, derived from the counters of any replicas.
    Need,
}

// === impl Policy ===

impl Policy {
    /// The durations that apply to scrapes that arrive this way.
    fn horizon(&self, way: ScrapeRoute) -> Horizon {
        let stale_after = match way {
            ScrapeRoute::Scraped => self.stale_after,
            ScrapeRoute::Relayed => self.stale_after_relayed,
        };

        let detail = match self.sizing {
            Some(_) => RecordDetail::Work,
            None => RecordDetail::Load,
        };
        Horizon { window: self.window, stale_after, detail }
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Creates a pipeline without observations.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            recorder: FleetRecorder::new(),
            in_force: PerVariant::default(),
            unsettled: BTreeMap::new(),
            ticked: None,
            leaving: BTreeMap::new(),
            learned: LearnedState::default(),
            zeros: Zeros::default(),
            startups: Startups::default(),
            absences: Absences::default(),
            pools: Pools::default(),
        }
    }

    /// Replaces the policy and keeps the state.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Decides the desired replicas of each variant.
    pub fn tick(&mut self, now: Timestamp, inputs: &Inputs) -> Decisions {
        let found = self.consider(now, inputs);
        self.remember(now, &found.decisions);
        found
    }

    /// Runs every stage of a tick, without recording the decisions as in effect.
    fn consider(&mut self, now: Timestamp, inputs: &Inputs) -> Decisions {
        let fleet: &Fleet = &inputs.fleet;
        self.notice_gap(now);
        let observations = self.observe(now, inputs);
        self.absences.take(now, fleet, &observations);
        self.watch_pools(inputs);
        self.learned.fronts.note(&inputs.demand);
        self.forget(fleet);
        let decisions = Vec::with_capacity(observations.len());
        let mut found = Decisions { decisions, ..Decisions::default() };
        let groups = groups(fleet, &observations);
        for group in &groups {
            self.wait_for(now, group);
        }

        let mut room = self.room(now, inputs);
        let (sized, exchanges) = self.size(now, &groups, &mut room, inputs, &observations);
        let is_foreseen = self.policy.sizing.as_ref().is_some_and(Sizing::is_foreseen);
        let mut reports = Reports::default();
        for group in &groups {
            let targets = self.saturate(now, group, &mut reports);
            let guard = guard(now, group).or_else(|| self.unheard(now, inputs, group));
            let settling_peaks = self.settling(now, group, RecommendationBasis::Peaks);
            let settling_needs = self.settling(now, group, RecommendationBasis::Need);
            let inputs_at = group.inputs_at(now);
            for member in &group.members {
                let key = &member.spec.key;
                let (rests_on, settling) = match sized.get(key).filter(|_| is_foreseen) {
                    Some(_) => (RecommendationBasis::Need, &settling_needs),
                    None => (RecommendationBasis::Peaks, &settling_peaks),
                };
                let guards = [guard.as_ref(), settling.as_ref()];
                let moment = StageInputs { inputs_at, rests_on, guards };
                let required = Proposal::of(key, sized.get(key), &targets);
                let asked = required.map(|it| self.pool(now, member, it, &mut found));
                let in_force = self.in_force.get_at(member.place, key);
                match decide(&moment, member, in_force, &group.model, asked) {
                    Ok(decision) => {
                        found.decisions.push(self.restrain(now, inputs, decision, in_force));
                    }
                    Err(why) => {
                        found.undecided.insert(member.spec.key.clone(), NoDecision(why));
                    }
                }
            }
        }

        (found.models, found.variants) = reports.by_key();
        found.decisions.sort_by(|a, b| a.variant.cmp(&b.variant));
        self.move_to_zero_and_back(now, inputs, &groups, &mut found.decisions);
        let bounded: Vec<Decision> =
            std::mem::take(&mut found.decisions).into_iter().map(enforce::bound).collect();
        found.decisions = bounded;
        self.cap(&room, fleet, &observations, &mut found);
        let capped = std::mem::take(&mut found.decisions);
        for decision in &capped {
            self.place(decision, &mut found);
        }

        found.decisions = capped;
        self.note_exchanges(&exchanges, &found.decisions);
        self.check(fleet, &mut found);
        let startups = self.startups_of(now, &groups);
        found.workloads = self.workloads_of(&room, fleet, &observations);
        found.observations = startup::told(observations, startups);
        found
    }

    /// Resets every window after a pause of the process or a jump of the clock. Unobserved time
    /// must not let a window elapse.
    fn notice_gap(&mut self, now: Timestamp) {
        let Some(before) = self.ticked.replace(now) else { return };
        let passed = now.duration_since(before).as_secs_f64();
        if (0.0..=PAUSE_MAX).contains(&passed) {
            return;
        }

        self.recorder.unsettle();
        self.zeros.begin_anew();
        self.pools.unsettle();
        self.leaving.clear();
        for in_force in self.in_force.values_mut() {
            in_force.history.begin_anew(now, in_force.desired);
        }
    }

    fn observe(&mut self, now: Timestamp, inputs: &Inputs) -> BTreeMap<VariantKey, Observation> {
        self.take_workloads(inputs);
        let policy = &self.policy;
        self.recorder.observe(now, inputs, |way| policy.horizon(way))
    }

    fn forget(&mut self, fleet: &Fleet) {
        if !self.in_force.keys().eq(fleet.variants().map(|spec| &spec.key)) {
            self.in_force.retain(|key| fleet.get(key).is_some());
        }
        self.unsettled.retain(|key, _| fleet.get(key).is_some());
        self.leaving.retain(|key, _| fleet.get(key).is_some());
    }

    /// Records since when each variant of the group has differed from its target state.
    fn wait_for(&mut self, now: Timestamp, group: &VariantGroup<'_>) {
        for &Member { place, spec, observation, measured } in &group.members {
            let wish = self.in_force.get_at(place, &spec.key).map(|in_force| in_force.desired);
            let settled = observation.pending == Replicas::ZERO
                && observation.wanted == Some(measured)
                && wish.is_none_or(|wish| Some(wish) == observation.wanted);
            if settled {
                self.unsettled.remove(&spec.key);
                continue;
            }

            let wanted = observation.wanted;
            let before = self.unsettled.get(&spec.key).copied();
            // A changed request starts a new wait. The patience spent on the old request must not
            // count against replicas that have only just begun to start.
            let known = before.filter(|it| wanted.is_none() || it.wanted == wanted);
            let wait = Wait {
                wanted: wanted.or(known.and_then(|it| it.wanted)),
                since: known.map_or(now, |it| it.since.min(now)),
            };
            self.unsettled.insert(spec.key.clone(), wait);
        }
    }

    fn thresholds(&self, model: &ModelKey) -> &Thresholds {
        self.policy.overrides.get(model).unwrap_or(&self.policy.thresholds)
    }

    /// The reason why the group has not been measured for long enough to scale down; `None` if it
    /// has.
    ///
    /// Peaks must come from the same replicas. Forecast demand is known even if replicas come and
    /// go all the time, as they do on spot nodes.
    pub(crate) fn settling(
        &self,
        now: Timestamp,
        group: &VariantGroup<'_>,
        rests_on: RecommendationBasis,
    ) -> Option<Reason> {
        group
            .with_replicas()
            .filter_map(|member| member.observation.measured_since)
            .filter_map(|it| enforce::remaining(now, rests_on.since(it), self.policy.window))
            .reduce(Seconds::max)
            .map(|remaining| Reason::Settling { remaining })
    }

    /// The desired replicas of a variant that are in effect.
    fn desired(&self, variant: &VariantKey) -> Option<Replicas> {
        self.in_force.get(variant).map(|in_force| in_force.desired)
    }

    /// Replaces a set of decisions that breaks an invariant with the desired replicas in effect.
    fn check(&self, fleet: &Fleet, found: &mut Decisions) {
        let Err(violation) = check::check(&found.decisions, fleet, |key| self.desired(key)) else {
            return;
        };

        let undecided = &mut found.undecided;
        found.decisions.retain_mut(|decision| {
            let Some(in_force) = self.in_force.get(&decision.variant) else {
                undecided.insert(decision.variant.clone(), NoDecision(NoData::Refused));
                return false;
            };
            let before = in_force.desired;
            let after = in_force.desired;
            let reason = Reason::Refused(violation.clone());
            decision.steps = vec![Step { stage: Stage::Check, before, after, reason }];
            decision.inputs_at = in_force.inputs_at;
            decision.basis = Basis::Held;
            true
        });

        found.violation = Some(violation);
    }

    fn remember(&mut self, now: Timestamp, decisions: &[Decision]) {
        for (place, decision) in decisions.iter().enumerate() {
            let desired = decision.desired();
            let inputs_at = decision.inputs_at;
            self.remember_one(now, place, decision, DesiredReplicas { desired, inputs_at });
        }
    }

    /// Records the decision about a variant and the desired replicas in effect after it. `place` is
    /// the position of the decision among all decisions.
    fn remember_one(
        &mut self,
        now: Timestamp,
        place: usize,
        decision: &Decision,
        number: DesiredReplicas,
    ) {
        let DesiredReplicas { desired: after, inputs_at } = number;
        let known = self.in_force.get_or_insert_at(place, &decision.variant, || {
            let present = decision.steps.first().map_or(after, |step| step.before);
            DecisionInForce {
                desired: present,
                inputs_at: decision.inputs_at,
                basis: decision.basis,
                restored: None,
                at_zero: false,
                history: ScalingHistory::starting(now, present),
            }
        });

        let before = known.desired;
        match decision.basis {
            Basis::Held => {}
            Basis::Fresh => {
                let recommended = known.recommended_by(now, decision);
                if known.basis == Basis::Held && known.restored != Some(Recall::History) {
                    // Recommendations from before the gap are not evidence for the time after it.
                    known.history.begin_anew(now, before);
                }

                let published = PublishedReplicas { before, after };
                known.history.record(now, recommended, published, &self.policy.behavior);
                known.restored = known.restored.filter(|_| decision.is_settling());
                known.at_zero =
                    decision.steps.first().is_some_and(|step| step.before == Replicas::ZERO);
            }
        }

        known.desired = after;
        known.inputs_at = inputs_at;
        known.basis = decision.basis;
        self.note_packing(now, decision, after < before);
    }
}

// === deciding ===

/// The reason why the group must not scale down, if there is one.
pub(crate) fn guard(now: Timestamp, group: &VariantGroup<'_>) -> Option<Reason> {
    if let Some(member) = group.members.iter().find(|member| member.is_unlisted()) {
        return Some(Reason::Unlisted { variant: member.spec.key.variant.clone() });
    }

    let age = group
        .with_replicas()
        .filter_map(|member| member.observation.listed_at)
        .filter_map(|at| Seconds::from_span(now.duration_since(at)))
        .fold(Seconds::ZERO, Seconds::max);
    if age.seconds() > LISTING_STALE {
        return Some(Reason::Outdated { age });
    }

    let missing: Replicas = group.with_replicas().map(Member::missing).sum();
    (missing > Replicas::ZERO).then_some(Reason::Incomplete { missing })
}

impl RecommendationBasis {
    /// The time since which the data has been measured.
    const fn since(self, measured: MeasuredSince) -> Timestamp {
        match self {
            Self::Peaks => measured.same,
            Self::Need => measured.any,
        }
    }
}

impl StageInputs<'_> {
    /// The replicas that a guard keeps; `None` if it keeps all in effect. If the decision rests on
    /// forecast demand, replicas that are not reporting are kept in addition to it. All others may
    /// go.
    fn kept(&self, reason: &Reason, asked: &Proposal, silent: Replicas) -> Option<Replicas> {
        let is_need = self.rests_on == RecommendationBasis::Need;
        let is_incomplete = matches!(reason, Reason::Incomplete { .. });
        (is_need && is_incomplete).then(|| asked.number() + silent)
    }
}

/// Decides on the replicas that the load requires. Without usable data, holds the desired replicas
/// in effect.
fn decide(
    moment: &StageInputs<'_>,
    member: &Member<'_>,
    in_force: Option<&DecisionInForce>,
    model: &ModelKey,
    asked: Option<Proposal>,
) -> Result<Decision, NoData> {
    let Member { spec, observation, .. } = member;
    let usable = match member.blind() {
        Some(NoData::NoFreshReplica) if member.missing() == Replicas::ZERO => {
            let least = in_force.map(|in_force| in_force.desired);
            asked.filter(|it| it.holds(least)).ok_or(NoData::NoFreshReplica)
        }
        Some(why) => Err(why),
        None if in_force.is_none() && !observation.all_tried() => Err(NoData::NotTried),
        None => asked.ok_or(NoData::NoFreshReplica),
    };

    let (steps, inputs_at, basis) = match (usable, in_force) {
        (Ok(mut asked), in_force) => {
            let desired = in_force.map_or(asked.before, |in_force| in_force.desired);
            for reason in moment.guards.into_iter().flatten() {
                let kept = moment.kept(reason, &asked, member.missing());
                let least = kept.map_or(desired, |kept| kept.min(desired));
                if asked.number() < least {
                    asked.push(Stage::Guard, least, reason.clone());
                }
            }

            (asked.steps, moment.inputs_at, Basis::Fresh)
        }
        (Err(why), Some(in_force)) => {
            let before = in_force.desired;
            // When another actor brings a variant back from zero, the scale target's count applies.
            // The published 0 must not remove these replicas while they start.
            let asked = observation.wanted.filter(|_| in_force.at_zero).unwrap_or_default();
            let after = before.max(asked);
            let reason = Reason::NoData(match (in_force.restored, after > before) {
                (Some(_), _) => NoData::Restored,
                (None, true) => NoData::BroughtBack,
                (None, false) => why,
            });
            let held = Step { stage: Stage::Hold, before, after, reason };
            (vec![held], in_force.inputs_at, Basis::Held)
        }
        (Err(why), None) => return Err(why),
    };

    Ok(Decision {
        variant: spec.key.clone(),
        model: model.clone(),
        current: observation.current,
        bounds: member.bounds(in_force.map(|in_force| in_force.desired)),
        steps,
        inputs_at,
        basis,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::VariantSpec;
    use crate::units::{Fraction, Requests};

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn wild(variant: &str) -> Decision {
        let spec = VariantSpec::example(variant);
        let reason = Reason::BelowMin(n(99));
        Decision {
            variant: spec.key.clone(),
            model: spec.model_key(),
            current: None,
            bounds: spec.bounds,
            steps: vec![Step { stage: Stage::Bounds, before: n(3), after: n(99), reason }],
            inputs_at: Timestamp::UNIX_EPOCH,
            basis: Basis::Fresh,
        }
    }

    #[test]
    fn a_set_that_breaks_an_invariant_is_replaced_by_the_numbers_in_force_and_says_so() {
        let spare = Seconds::new(60.0).unwrap();
        let mut pipeline = Pipeline::new(Policy {
            window: spare,
            stale_after: spare,
            stale_after_relayed: spare,
            thresholds: Thresholds {
                kv_cache: Fraction::ONE,
                queue_length: Requests::ZERO,
                kv_spare: Fraction::ZERO,
                queue_spare: Requests::ZERO,
            },
            overrides: BTreeMap::new(),
            transition: TransitionRule::PendingOnly,
            transition_patience: spare,
            behavior: Behavior { flap_budget: u32::MAX, ..Behavior::default() },
            sizing: None,
            zero: Zero::default(),
            pools: BTreeMap::new(),
            limits: LimitPolicy::default(),
        });

        let now = Timestamp::UNIX_EPOCH;
        let fleet = Fleet::new([VariantSpec::example("a"), VariantSpec::example("b")]);
        pipeline.restore(now, VariantSpec::example("a").key, n(3), now);
        let decisions = vec![wild("a"), wild("b")];
        let mut found = Decisions { decisions, ..Decisions::default() };
        pipeline.check(&fleet, &mut found);
        let [kept] = found.decisions.as_slice() else { panic!("one number was in force") };
        assert_eq!((kept.desired(), kept.basis), (n(3), Basis::Held));
        assert!(
            kept.steps[0].to_string().starts_with("check: 3, not published: shop/a would get 99")
        );
        assert_eq!(found.undecided[&VariantSpec::example("b").key].0, NoData::Refused);
        assert!(found.violation.is_some());
    }
}
