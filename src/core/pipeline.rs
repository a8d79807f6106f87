//! The pipeline: from inputs to decisions, the same in the daemon, the demo and the simulator.
//!
//! [`Pipeline::tick`] reads as the algorithm: observe every variant, analyse each model, decide for
//! each variant, keep what must not be lowered on incomplete data, enforce windows, steps and
//! bounds, and check the whole. It owns all state that outlives a tick, reads no clock, and gives
//! the same decisions for the same state, instant and inputs.

mod absence;
mod follow;
mod group;
pub mod limits;
pub mod pools;
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

use crate::analyze::saturation::{Target, Thresholds, TransitionRule};
use crate::decide::check::{self, Violation};
use crate::decide::enforce::{self, Behavior, History, Published};
use crate::decide::limit::LimitReport;
use crate::decide::pools::pooled::PoolReport;
use crate::decide::workload::WorkloadReport;
use crate::decide::{
    Basis, Decision, ModelReport, NoData, Reason, Stage, Step, Undecided, VariantReport,
};
use crate::fleet::per_variant::PerVariant;
use crate::fleet::{Fleet, ModelKey, Role, VariantKey};
use crate::observe::record::{Detail, Horizon, Recorder};
use crate::observe::{Inputs, MeasuredSince, Observation, Way};
use crate::pipeline::absence::Absences;
pub use crate::pipeline::follow::Number;
use crate::pipeline::group::{Group, Member, groups};
use crate::pipeline::limits::{Limits, Shared};
use crate::pipeline::pools::{Pool, Pools};
use crate::pipeline::saturate::Reports;
use crate::pipeline::saved::Recall;
use crate::pipeline::sizing::bridged::Bridged;
use crate::pipeline::sizing::{Learned, Sizing};
use crate::pipeline::startup::Startups;
use crate::pipeline::zero::{Zero, Zeros};
use crate::units::{Replicas, Seconds};

/// Age from which a list of replicas is too old to shrink on. Discovery refreshes within seconds,
/// and a watch that breaks is back within one; a minute means that something is wrong.
const LISTING_STALE: f64 = 60.0;

/// Seconds between two ticks from which something has stood still or jumped. Ticks come at least
/// once a minute.
const PAUSE_MAX: f64 = 120.0;

/// Everything that the pipeline's decisions depend on beside its inputs.
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
    /// How long an earlier decision that nobody carries out keeps blocking.
    pub transition_patience: Seconds,
    /// How fast published numbers may move.
    pub behavior: Behavior,
    /// Which analyzers size the models; without them, the saturation of replicas moves numbers by
    /// one.
    pub sizing: Option<Sizing>,
    /// Which models may have no replicas, and when.
    pub zero: Zero,
    /// The variants whose replicas serve several adapters each.
    pub pools: BTreeMap<VariantKey, Pool>,
    /// What all variants together may use.
    pub limits: Limits,
}

/// What one tick found and decided.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// One decision a variant, in the order of their keys; a variant for which nothing can be said
    /// has none.
    pub decisions: Vec<Decision>,
    /// Why a variant has no decision.
    pub undecided: BTreeMap<VariantKey, Undecided>,
    /// What was seen of each variant.
    pub observations: BTreeMap<VariantKey, Observation>,
    /// What the analysis found of each model and role with fresh data.
    pub models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// What the analysis found of each variant with fresh data.
    pub variants: BTreeMap<VariantKey, VariantReport>,
    /// What was found of each pool with fresh data.
    pub pools: BTreeMap<VariantKey, PoolReport>,
    /// What may be used, and how much of it is; empty where nothing limits.
    pub limits: Vec<LimitReport>,
    /// What is known of each variant's workload.
    pub workloads: BTreeMap<VariantKey, WorkloadReport>,
    /// The invariant that the set broke, in which case the decisions are those in force before.
    pub violation: Option<Violation>,
}

/// The state that outlives a tick.
#[derive(Clone, Debug)]
pub struct Pipeline {
    policy: Policy,
    recorder: Recorder,
    in_force: PerVariant<InForce>,
    unsettled: BTreeMap<VariantKey, Wait>,
    ticked: Option<Timestamp>,
    /// Replicas that the last plan does without, and that stay until others carry load.
    leaving: BTreeMap<VariantKey, Replicas>,
    learned: Learned,
    zeros: Zeros,
    startups: Startups,
    absences: Absences,
    pools: Pools,
}

/// Since when a variant is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What its scale target asks for, if that is known.
    pub wanted: Option<Replicas>,
    /// Since when.
    #[serde(with = "crate::units::instants")]
    pub since: Timestamp,
}

/// The number that was last published for a variant.
#[derive(Clone, Debug)]
struct InForce {
    desired: Replicas,
    inputs_at: Timestamp,
    basis: Basis,
    restored: Option<Recall>,
    /// Whether it was decided while there were no replicas, so that no load speaks for it.
    at_zero: bool,
    history: History,
}

/// What the load asks for.
struct Asked {
    /// What the scale target asks for.
    before: Replicas,
    /// What the analysis says, and what limits, standby and a pool make of it.
    steps: Vec<Step>,
}

/// What a stage needs to know of the tick that it belongs to.
struct Moment<'a> {
    inputs_at: Timestamp,
    rests_on: RestsOn,
    /// Why no number is lowered, or none by all that is asked.
    guards: [Option<&'a Reason>; 2],
}

/// What a number rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestsOn {
    /// The most that the same replicas had at once.
    Peaks,
    /// What foresight says is needed, of what any replicas have counted.
    Need,
}

// === impl Policy ===

impl Policy {
    /// The lengths of time that hold for pages that come this way.
    fn horizon(&self, way: Way) -> Horizon {
        let Self { window, stale_after, stale_after_relayed, .. } = *self;
        let stale_after = match way {
            Way::Scraped => stale_after,
            Way::Relayed => stale_after_relayed,
        };
        let detail = match self.sizing {
            Some(_) => Detail::Work,
            None => Detail::Load,
        };
        Horizon { window, stale_after, detail }
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// A pipeline that has seen nothing.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            recorder: Recorder::new(),
            in_force: PerVariant::default(),
            unsettled: BTreeMap::new(),
            ticked: None,
            leaving: BTreeMap::new(),
            learned: Learned::default(),
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

    /// Decides how many replicas each variant should have.
    pub fn tick(&mut self, now: Timestamp, inputs: &Inputs) -> Decisions {
        let found = self.consider(now, inputs);
        self.remember(now, &found.decisions);
        found
    }

    /// Everything up to what is in force afterwards.
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
        let (sized, exchanges) = self.size(now, &groups, &mut room, (inputs, &observations));
        let is_foreseen = self.policy.sizing.as_ref().is_some_and(Sizing::is_foreseen);
        let mut reports = Reports::default();
        for group in &groups {
            let targets = self.saturate(now, group, &mut reports);
            let guard = guard(now, group).or_else(|| self.unheard(now, inputs, group));
            let settling_peaks = self.settling(now, group, RestsOn::Peaks);
            let settling_needs = self.settling(now, group, RestsOn::Need);
            let inputs_at = group.inputs_at(now);
            for member in &group.members {
                let key = &member.spec.key;
                let (rests_on, settling) = match sized.get(key).filter(|_| is_foreseen) {
                    Some(_) => (RestsOn::Need, &settling_needs),
                    None => (RestsOn::Peaks, &settling_peaks),
                };
                let guards = [guard.as_ref(), settling.as_ref()];
                let moment = Moment { inputs_at, rests_on, guards };
                // While no analyzer has anything to say, saturation has.
                let target = || targets.iter().find(|target| target.variant == *key);
                let asked = sized.get(key).map(Asked::from);
                let asked = asked.or_else(|| target().map(Asked::from));
                let asked = asked.map(|asked| self.pool(now, member, asked, &mut found));
                let in_force = self.in_force.get_at(member.place, key);
                match decide(&moment, (member, in_force), &group.model, asked) {
                    Ok(decision) => {
                        found.decisions.push(self.restrain(now, inputs, decision, in_force));
                    }
                    Err(why) => {
                        found.undecided.insert(member.spec.key.clone(), Undecided(why));
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

    /// After a pause of the process or a jump of the clock, begins every window anew: time that
    /// nobody saw must not let a window pass.
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

    /// Notes since when each variant of the group has not been what it should be.
    fn wait_for(&mut self, now: Timestamp, group: &Group<'_>) {
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
            let known = self.unsettled.get(&spec.key).copied();
            // Another number that is asked for is another wait: what was given up on before must
            // not take the patience from replicas that have only just begun to start.
            let known = known.filter(|it| wanted.is_none() || it.wanted == wanted);
            let since = known.map_or(now, |it| it.since.min(now));
            let wanted = wanted.or(known.and_then(|it| it.wanted));
            self.unsettled.insert(spec.key.clone(), Wait { wanted, since });
        }
    }

    fn thresholds(&self, model: &ModelKey) -> &Thresholds {
        self.policy.overrides.get(model).unwrap_or(&self.policy.thresholds)
    }

    /// Why the group has not been measured for long enough for a number to be lowered, if it has not.
    ///
    /// Peaks must be of the same replicas. A need is known where replicas come and go all the time, as
    /// those on spot nodes do.
    pub(crate) fn settling(
        &self,
        now: Timestamp,
        group: &Group<'_>,
        rests_on: RestsOn,
    ) -> Option<Reason> {
        let has_replicas = |member: &&Member<'_>| member.observation.wanted != Some(Replicas::ZERO);
        let since = |MeasuredSince { any, same }: MeasuredSince| match rests_on {
            RestsOn::Peaks => same,
            RestsOn::Need => any,
        };

        let members = group.members.iter().filter(has_replicas);
        members
            .filter_map(|member| member.observation.measured_since.map(since))
            .filter_map(|since| enforce::remaining(now, since, self.policy.window))
            .reduce(Seconds::max)
            .map(|remaining| Reason::Settling { remaining })
    }

    /// Replaces a set that breaks an invariant by the numbers in force.
    fn check(&self, fleet: &Fleet, found: &mut Decisions) {
        let in_force = |key: &VariantKey| self.in_force.get(key).map(|in_force| in_force.desired);
        let Err(violation) = check::check(&found.decisions, fleet, in_force) else { return };
        let undecided = &mut found.undecided;
        found.decisions.retain_mut(|decision| {
            let Some(in_force) = self.in_force.get(&decision.variant) else {
                undecided.insert(decision.variant.clone(), Undecided(NoData::Refused));
                return false;
            };
            let (before, after) = (in_force.desired, in_force.desired);
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
            let (desired, inputs_at) = (decision.desired(), decision.inputs_at);
            self.remember_one(now, (place, decision), Number { desired, inputs_at });
        }
    }

    /// Remembers what was decided about a variant, and the number that is in force after it. The place
    /// is that among all decisions.
    fn remember_one(
        &mut self,
        now: Timestamp,
        (place, decision): (usize, &Decision),
        number: Number,
    ) {
        let Number { desired: after, inputs_at } = number;
        let known = self.in_force.get_or_insert_at(place, &decision.variant, || {
            let present = decision.steps.first().map_or(after, |step| step.before);
            InForce {
                desired: present,
                inputs_at: decision.inputs_at,
                basis: decision.basis,
                restored: None,
                at_zero: false,
                history: History::starting(now, present),
            }
        });
        let before = known.desired;
        match decision.basis {
            Basis::Held => {}
            Basis::Fresh => {
                let recommended = known.recommended_by(now, decision);
                if known.basis == Basis::Held && known.restored != Some(Recall::History) {
                    // What was recommended before the gap says nothing about the time after.
                    known.history.begin_anew(now, before);
                }
                let published = Published { before, after };
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

// === impl Asked ===

impl From<&Target> for Asked {
    fn from(target: &Target) -> Self {
        Self::new((target.before, target.asked), Reason::from(target.outcome.clone()))
    }
}

impl From<&sizing::Asked> for Asked {
    fn from(asked: &sizing::Asked) -> Self {
        let sizing::Asked { before, after, why, shared, bridged } = asked;
        let mut all = Self::new((*before, *after), Reason::Sized(why.clone()));
        if let Some(Shared { after, why }) = shared {
            all.push(Stage::Share, *after, Reason::Limited(why.clone()));
        }
        if let Some(Bridged { after, why }) = bridged.filter(|it| it.after > all.number()) {
            all.push(Stage::Bridge, after, Reason::Bridged(why));
        }
        all
    }
}

impl Asked {
    /// What the analysis says.
    fn new((before, after): (Replicas, Replicas), reason: Reason) -> Self {
        Self { before, steps: vec![Step { stage: Stage::Analyze, before, after, reason }] }
    }

    /// Whether analyzers ask for as many replicas as there were to be, while all of them start.
    fn holds(&self, in_force: Option<Replicas>) -> bool {
        let is_sized = self.steps.first().is_some_and(|it| matches!(it.reason, Reason::Sized(_)));
        is_sized && self.number() >= in_force.unwrap_or(self.before)
    }

    /// The number that is asked for.
    fn number(&self) -> Replicas {
        self.steps.last().map_or(self.before, |step| step.after)
    }

    fn push(&mut self, stage: Stage, after: Replicas, reason: Reason) {
        let before = self.number();
        self.steps.push(Step { stage, before, after, reason });
    }
}

// === deciding ===

/// Why no number of the group may be lowered, if there is a reason.
pub(crate) fn guard(now: Timestamp, group: &Group<'_>) -> Option<Reason> {
    let with_replicas =
        || group.members.iter().filter(|member| member.observation.wanted != Some(Replicas::ZERO));
    if let Some(member) = group.members.iter().find(|member| member.is_unlisted()) {
        return Some(Reason::Unlisted { variant: member.spec.key.variant.clone() });
    }
    let age = with_replicas()
        .filter_map(|member| member.observation.listed_at)
        .filter_map(|at| Seconds::from_span(now.duration_since(at)))
        .fold(Seconds::ZERO, Seconds::max);
    if age.seconds() > LISTING_STALE {
        return Some(Reason::Outdated { age });
    }
    let missing: Replicas = with_replicas().map(Member::missing).sum();
    (missing > Replicas::ZERO).then_some(Reason::Incomplete { missing })
}

impl Moment<'_> {
    /// How many replicas are kept for a reason that is against lowering; `None` for all. Those that
    /// are silent are kept in addition to a need, and others may go.
    fn kept(&self, reason: &Reason, asked: &Asked, silent: Replicas) -> Option<Replicas> {
        let is_need = self.rests_on == RestsOn::Need;
        let is_incomplete = matches!(reason, Reason::Incomplete { .. });
        (is_need && is_incomplete).then(|| asked.number() + silent)
    }
}

/// The number that the load asks for, or the one in force where nothing can be said.
fn decide(
    moment: &Moment<'_>,
    (member, in_force): (&Member<'_>, Option<&InForce>),
    model: &ModelKey,
    asked: Option<Asked>,
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
    let decision = |steps, inputs_at, basis| Decision {
        variant: spec.key.clone(),
        model: model.clone(),
        current: observation.current,
        bounds: member.bounds(in_force.map(|in_force| in_force.desired)),
        steps,
        inputs_at,
        basis,
    };
    match (usable, in_force) {
        (Ok(mut asked), in_force) => {
            let in_force = in_force.map_or(asked.before, |in_force| in_force.desired);
            for reason in moment.guards.into_iter().flatten() {
                let least = moment.kept(reason, &asked, member.missing());
                let least = least.map_or(in_force, |least| least.min(in_force));
                if asked.number() < least {
                    asked.push(Stage::Guard, least, reason.clone());
                }
            }
            Ok(decision(asked.steps, moment.inputs_at, Basis::Fresh))
        }
        (Err(why), Some(in_force)) => {
            let before = in_force.desired;
            // Whoever brings a variant back from zero says how many there shall be, and what
            // was published for none must not take them away while they start.
            let asked = observation.wanted.filter(|_| in_force.at_zero).unwrap_or_default();
            let after = before.max(asked);
            let why = match (in_force.restored, after > before) {
                (Some(_), _) => NoData::Restored,
                (None, true) => NoData::BroughtBack,
                (None, false) => why,
            };
            let held = Step { stage: Stage::Hold, before, after, reason: Reason::NoData(why) };
            Ok(decision(vec![held], in_force.inputs_at, Basis::Held))
        }
        (Err(why), None) => Err(why),
    }
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
            limits: Limits::default(),
        });
        let (now, fleet) = (
            Timestamp::UNIX_EPOCH,
            Fleet::new([VariantSpec::example("a"), VariantSpec::example("b")]),
        );
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
