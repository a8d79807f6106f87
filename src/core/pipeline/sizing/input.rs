//! One variant as the analyzers and the optimizer see it.

use crate::decide::optimize::{Candidate, Placement, PlanReason};
use crate::decide::sized::Shortfall;
use crate::fleet::{Bounds, VariantSpec};
use crate::observe::stride::IntervalDelta;
use crate::observe::{Observation, ReplicaObservation};
use crate::pipeline::group::Member;
use crate::pipeline::overrides;
use crate::pipeline::startup::Stalls;
use crate::pipeline::supply::VariantSupply;
use crate::pipeline::tick::Tick;
use crate::units::{Gpus, Replicas, Seconds};

/// One variant as the analyzers see it.
#[derive(Clone, Debug)]
pub(crate) struct VariantInput<'a> {
    /// Its [place](Member::place) in the tick.
    pub(crate) place: usize,
    pub(crate) spec: &'a VariantSpec,
    pub(crate) observation: &'a Observation,
    /// Accelerators per replica, if they are known.
    pub(crate) gpus: Option<Gpus>,
    /// The replicas that its scale target requests, without the surplus. Of listed targets, those
    /// that may exist: not those that have not answered for longer than a start may take.
    pub(crate) wanted: Replicas,
    /// The wanted replicas that are not there yet, and those that may be about to wake.
    pub(crate) pending: Replicas,
    /// The pending replicas that take too long to start.
    pub(crate) stuck: Replicas,
    /// The stuck replicas for which no node has room.
    pub(crate) unplaced: Replicas,
    /// The listed targets that count as no replica, because they have not answered for longer than
    /// a start may take.
    pub(crate) absent: Replicas,
    /// The requested replicas among the stuck or absent ones. Others may take their place.
    pub(crate) given_up: Replicas,
    /// The pending replicas that a lower number keeps.
    pub(crate) kept: Replicas,
    /// The replicas that they may keep at most: listed targets that have never answered raise
    /// nothing.
    pub(crate) kept_up_to: Replicas,
    /// The wanted replicas that sleep on (`pipeline/dormant.rs`). They have no capacity and no load.
    pub(crate) dormant: Replicas,
    /// The replicas, not counting stuck and dormant ones, that an earlier plan removes.
    pub(crate) leaving: Replicas,
    /// The measured time from start to serving, if known.
    pub(crate) startup: Option<Seconds>,
    /// The longest start in progress, or measured while `startup` has too few samples.
    pub(crate) slowest_start: Option<Seconds>,
    /// Losses per replica and hour.
    pub(crate) losses: f64,
    /// The bounds between which the load may scale it.
    pub(crate) bounds: Bounds,
}

// === impl VariantInput ===

impl<'a> VariantInput<'a> {
    /// A variant as the analyzers see it; `None` when its replicas cannot be counted. `leaving` are
    /// the replicas that an earlier plan removes.
    pub(crate) fn of(
        tick: &Tick<'_>,
        member: &Member<'a>,
        supply: &VariantSupply,
        leaving: Replicas,
    ) -> Option<Self> {
        let Member { place, spec, observation, .. } = *member;
        let requested = observation.wanted?;
        let VariantSupply { stalls, given_up, surplus, waking, kept, dormant, .. } = *supply;

        let is_listed = tick.is_counted_by_answers(member);
        let absent = if is_listed { stalls.all } else { Replicas::ZERO };
        let wanted = requested.beyond(absent + surplus);
        let Stalls { all: stuck, unplaced } = if is_listed { Stalls::default() } else { stalls };
        let kept_up_to = if is_listed { tick.desired(member).unwrap_or_default() } else { wanted };

        Some(Self {
            place,
            spec,
            observation,
            gpus: tick.inputs.inventory.gpus(spec),
            wanted,
            pending: member.coming().beyond(absent + surplus) + waking,
            stuck,
            unplaced,
            absent,
            given_up,
            kept,
            kept_up_to,
            dormant,
            leaving: leaving.min(wanted.beyond(stuck + dormant)),
            startup: supply.serves_after,
            slowest_start: supply.slowest_start,
            losses: supply.losses,
            bounds: overrides::bounds(tick, member),
        })
    }

    /// The replicas whose load is known.
    pub(crate) fn measured(&self) -> impl Iterator<Item = &'a ReplicaObservation> {
        self.observation.replicas.iter().filter(|replica| replica.load().is_some())
    }

    /// The planned replicas, plus those that do not start, and those that sleep. The shortfall is
    /// requested at most twice: if the replacements do not start either, more of them do not help.
    /// At its maximum, the plan shows only a part of the shortfall, so all are replaced. Replicas
    /// that no node has room for are not replaced, because the replacements would have no node
    /// either. A lower number keeps all of them, because a replica that serves might be removed in
    /// their place. Absent targets may be no replicas. So they never raise the desired replicas in
    /// effect, and are kept only while the plan needs all replicas that count.
    pub(crate) fn with_stuck(&self, planned: Replicas, short: Shortfall) -> Replicas {
        let awake = self.wanted.beyond(self.dormant);
        let serving = self.counted().beyond(self.coming());

        let is_full = self.bounds.max().is_some_and(|max| planned >= self.countable(max));
        let missing = match short {
            Shortfall::Some if is_full => self.given_up,
            Shortfall::Some | Shortfall::None => planned.beyond(serving),
        };
        let replaced = planned + self.given_up.min(missing);

        let all = (planned + self.stuck).min(replaced.max(awake)).max(replaced);
        let grown = planned.beyond(self.counted());
        let placed = all.beyond(self.unplaced.min(grown)).max(all.min(awake));
        let absent = if planned < self.counted() { Replicas::ZERO } else { self.absent };
        let kept = (planned + self.kept + self.uncounted() + absent).min(self.kept_up_to);
        (placed + self.dormant).max(kept)
    }

    /// Replicas that have served and are not reporting their load. Sleeping ones have none.
    pub(crate) fn silent(&self) -> Replicas {
        let Observation { ready, unheard, replicas, .. } = self.observation;
        let known = self.observation.measured() + self.observation.asleep();
        let unmeasured = ready.unwrap_or_default().beyond(*unheard).beyond(known);
        let lost = replicas.iter().filter(|replica| replica.is_lost()).count();

        unmeasured.max(Replicas::capped(lost))
    }

    /// Counters of replicas that are not ready but may still receive requests.
    pub(crate) fn unready(&self) -> impl Iterator<Item = &'a [IntervalDelta]> {
        let replicas = self.observation.replicas.iter();
        replicas.filter(|it| it.unready && it.freshness.is_fresh()).map(|it| it.strides.as_slice())
    }

    pub(crate) fn candidate(&self) -> Candidate {
        let max = self.bounds.max().map(|it| self.countable(it));
        let least = self.bounds.min().beyond(self.uncounted());
        let min = max.map_or(least, |max| least.min(max));

        Candidate {
            key: self.spec.key.clone(),
            role: self.spec.role,
            accelerator: self.spec.accelerator.clone(),
            gpus: self.gpus.unwrap_or(Gpus::ONE),
            cost: self.spec.cost,
            list_price: self.spec.list_price.unwrap_or(self.spec.cost),
            mismatch: self.spec.mismatch,
            bounds: Bounds::new(min, max).unwrap_or(self.bounds),
            current: self.counted(),
            pending: self.coming(),
            leaving: self.leaving,
            untried: self.wanted == Replicas::ZERO,
        }
    }

    /// The replicas that count: those that are present, and those that are starting.
    pub(crate) fn counted(&self) -> Replicas {
        self.wanted.beyond(self.uncounted())
    }

    /// The wanted replicas that do not count, and stay on top of the planned ones.
    pub(crate) fn uncounted(&self) -> Replicas {
        self.stuck + self.dormant
    }

    /// The replicas that may count if this many are requested. Sleeping ones and those that are
    /// given up are among the requested ones.
    pub(crate) fn countable(&self, requested: Replicas) -> Replicas {
        requested.beyond(self.given_up + self.dormant)
    }

    /// The counted replicas that no earlier plan removes.
    pub(crate) fn staying(&self) -> Replicas {
        self.counted().beyond(self.leaving)
    }

    pub(crate) fn coming(&self) -> Replicas {
        self.pending.beyond(self.stuck).min(self.counted())
    }

    /// The reason for the variant's replicas.
    pub(crate) fn because(&self, placement: &Placement) -> PlanReason {
        match placement.because {
            PlanReason::Removed if self.leaving > Replicas::ZERO => PlanReason::Replaced,
            because => because,
        }
    }

    /// Replicas that the variant may add. Zero while some of its replicas do not start, because
    /// more of them would not be reliable.
    pub(crate) fn room(&self) -> Replicas {
        if self.given_up > Replicas::ZERO {
            return Replicas::ZERO;
        }
        let most = self.bounds.max().unwrap_or(Replicas::LIMIT);
        most.beyond(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use crate::analyze::foresight::ForesightPolicy;
    use crate::analyze::foresight::capacity::CapacityBound;
    use crate::analyze::foresight::estimate::{CapacityEstimate, Teacher};
    use crate::units::{Fraction, RequestRate};

    use super::*;

    /// Six targets that serve and two that hang, all of them requested.
    fn with_two_hung<'a>(spec: &'a VariantSpec, observation: &'a Observation) -> VariantInput<'a> {
        VariantInput {
            place: 0,
            spec,
            observation,
            gpus: None,
            wanted: Replicas::saturating(6),
            pending: Replicas::ZERO,
            stuck: Replicas::ZERO,
            unplaced: Replicas::ZERO,
            absent: Replicas::saturating(2),
            given_up: Replicas::saturating(2),
            kept: Replicas::ZERO,
            kept_up_to: Replicas::saturating(8),
            dormant: Replicas::ZERO,
            leaving: Replicas::ZERO,
            startup: None,
            slowest_start: None,
            losses: 0.0,
            bounds: observation.bounds,
        }
    }

    fn bounds(min: u32, max: u32) -> Bounds {
        Bounds::new(Replicas::saturating(min), Replicas::new(max)).unwrap()
    }

    #[test]
    fn hung_targets_count_toward_the_maximum_and_serve_nothing() {
        let spec = VariantSpec::example("a");
        for (written, planned) in [
            (bounds(0, 8), bounds(0, 6)),
            (bounds(8, 8), bounds(6, 6)),
            (bounds(7, 10), bounds(7, 8)),
        ] {
            let seen = Observation::of_nothing(written);
            assert_eq!(with_two_hung(&spec, &seen).candidate().bounds, planned, "{written:?}");
        }

        let estimate = CapacityEstimate {
            rate: RequestRate::new(10.0).unwrap(),
            usable: Fraction::ONE,
            interval: None,
            bound: CapacityBound::Itl,
            said_by: Teacher::Replicas,
        };
        let seen = Observation::of_nothing(bounds(0, 8));
        let member = with_two_hung(&spec, &seen);
        let outlook = member.outlook(&ForesightPolicy::default(), Some(&estimate));
        assert_eq!(outlook.capacity.unwrap().at_maximum, RequestRate::new(60.0));
    }

    #[test]
    fn all_hung_targets_are_replaced_if_the_model_is_short_at_its_maximum() {
        let spec = VariantSpec::example("a");
        let seen = Observation::of_nothing(bounds(0, 9));
        let member = with_two_hung(&spec, &seen);
        for (planned, short, desired) in [
            (6, Shortfall::None, 8),
            (7, Shortfall::None, 8),
            (7, Shortfall::Some, 9),
            (6, Shortfall::Some, 8),
            // A plan that removes replicas replaces none.
            (5, Shortfall::Some, 5),
            (8, Shortfall::None, 10),
        ] {
            let found = member.with_stuck(Replicas::saturating(planned), short);
            assert_eq!(found, Replicas::saturating(desired), "{planned} {short:?}");
        }
    }
}
