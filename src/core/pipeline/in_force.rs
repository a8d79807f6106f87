//! The desired replicas in effect: those that were last published, or taken over from before a
//! restart or from another Plimsoll replica.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{Behavior, PublishedReplicas, SavedHistory, ScalingHistory};
use crate::decide::{Basis, Decision};
use crate::fleet::per_variant::PerVariant;
use crate::fleet::{Fleet, VariantKey};
use crate::observe::PAUSE_MAX;
use crate::units::Replicas;

/// The desired replicas in effect of every variant.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionsInForce {
    decisions: PerVariant<DecisionInForce>,
}

/// The desired replicas that were last published for a variant.
#[derive(Clone, Debug)]
pub(crate) struct DecisionInForce {
    pub(crate) desired: Replicas,
    pub(crate) inputs_at: Timestamp,
    pub(crate) restored: Option<Recall>,
    /// True if the decision was made while the variant had no replicas, so that no load supports
    /// it.
    pub(crate) at_zero: bool,
    pub(crate) history: ScalingHistory,
}

/// Desired replicas in effect, and the data behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredReplicas {
    /// The desired replicas.
    pub desired: Replicas,
    /// The time of the data behind the decision.
    pub inputs_at: Timestamp,
    /// The last time when the variant was packed, if it is a pool and another replica of Plimsoll
    /// has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<Timestamp>,
}

/// The origin of desired replicas from before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recall {
    /// Only the desired replicas are known.
    Number,
    /// The recommendations before it are also known, up to a moment ago, so its windows continue.
    History,
}

// === impl DecisionsInForce ===

impl DecisionsInForce {
    pub(crate) fn get(&self, variant: &VariantKey) -> Option<&DecisionInForce> {
        self.decisions.get(variant)
    }

    /// The decision in effect of a variant, with `place` as the first position to try.
    pub(crate) fn get_at(&self, place: usize, variant: &VariantKey) -> Option<&DecisionInForce> {
        self.decisions.get_at(place, variant)
    }

    /// Forgets variants that are no longer part of the fleet.
    pub(crate) fn forget(&mut self, fleet: &Fleet) {
        self.decisions.keep(fleet);
    }

    /// Restarts every window after an unobserved time.
    pub(crate) fn begin_anew(&mut self, now: Timestamp) {
        for in_force in self.decisions.values_mut() {
            in_force.history.begin_anew(now, in_force.desired);
        }
    }

    /// Takes over desired replicas from before a restart.
    pub(crate) fn restore(
        &mut self,
        now: Timestamp,
        variant: VariantKey,
        DesiredReplicas { desired, inputs_at, packed: _ }: DesiredReplicas,
    ) {
        let in_force = DecisionInForce {
            desired,
            inputs_at,
            restored: Some(Recall::Number),
            at_zero: false,
            history: ScalingHistory::starting(now, desired),
        };
        self.decisions.insert(variant, in_force);
    }

    /// Restores the windows of a variant whose desired replicas have been restored.
    pub(crate) fn recall(&mut self, now: Timestamp, variant: &VariantKey, saved: &SavedHistory) {
        if let Some(in_force) = self.decisions.get_mut(variant)
            && in_force.restored == Some(Recall::Number)
            && let Some(history) = ScalingHistory::restore(saved)
        {
            in_force.recall(now, history);
        }
    }

    /// Continues from desired replicas that another Plimsoll replica has put in effect, and forgets
    /// those of other variants.
    pub(crate) fn follow(
        &mut self,
        now: Timestamp,
        numbers: &BTreeMap<VariantKey, DesiredReplicas>,
        behavior: &Behavior,
    ) {
        self.decisions.retain(|key| numbers.contains_key(key));
        self.take_over(now, numbers, behavior);
    }

    /// Continues from desired replicas that another Plimsoll replica has put in effect.
    pub(crate) fn take_over(
        &mut self,
        now: Timestamp,
        numbers: &BTreeMap<VariantKey, DesiredReplicas>,
        behavior: &Behavior,
    ) {
        for (key, number) in numbers {
            match self.decisions.get_mut(key) {
                None => self.restore(now, key.clone(), *number),
                Some(known) if known.desired != number.desired => {
                    let change = PublishedReplicas { before: known.desired, after: number.desired };
                    known.history.record(now, number.desired, change, behavior);
                    known.desired = number.desired;
                    known.inputs_at = number.inputs_at;
                }
                Some(_) => {}
            }
        }
    }

    /// Records a decision and the desired replicas in effect after it. `place` is the position of
    /// the decision among all decisions. Returns the desired replicas before it.
    pub(crate) fn record(
        &mut self,
        now: Timestamp,
        place: usize,
        decision: &Decision,
        number: DesiredReplicas,
        behavior: &Behavior,
    ) -> Replicas {
        let known = self.decisions.get_or_insert_at(place, &decision.variant, || {
            let present = decision.steps.first().map_or(number.desired, |step| step.before);
            DecisionInForce {
                desired: present,
                inputs_at: decision.inputs_at,
                restored: None,
                at_zero: false,
                history: ScalingHistory::starting(now, present),
            }
        });

        let before = known.desired;
        if decision.basis == Basis::Fresh {
            let published = PublishedReplicas { before, after: number.desired };
            known.record(now, decision, published, behavior);
        } else {
            known.hold(now, number.desired);
        }

        known.desired = number.desired;
        known.inputs_at = number.inputs_at;
        before
    }
}

// === impl DecisionInForce ===

impl DecisionInForce {
    /// Adopts the windows from before a restart.
    fn recall(&mut self, now: Timestamp, mut history: ScalingHistory) {
        let latest = history.latest();
        let passed = latest.map(|latest| now.duration_since(latest).as_secs_f64());
        // Unobserved time must not let a window elapse.
        if passed.is_some_and(|passed| (0.0..=PAUSE_MAX).contains(&passed)) {
            self.restored = Some(Recall::History);
        } else {
            history.begin_anew(now, self.desired);
        }

        self.history = history;
    }

    /// Restarts the windows while desired replicas are held. Recommendations from before the gap
    /// are not evidence for the time after it. Windows from before a restart continue for a moment.
    fn hold(&mut self, now: Timestamp, desired: Replicas) {
        self.doubt_recall(now);
        if self.restored != Some(Recall::History) {
            self.history.begin_anew(now, desired);
        }
    }

    /// Stops relying on the windows from before a restart if the time since was not observed.
    fn doubt_recall(&mut self, now: Timestamp) {
        let passed = self.history.latest().map(|latest| now.duration_since(latest).as_secs_f64());
        if passed.is_none_or(|passed| passed > PAUSE_MAX) {
            self.restored = self.restored.map(|_| Recall::Number);
        }
    }

    /// Records a decision that rests on fresh data.
    fn record(
        &mut self,
        now: Timestamp,
        decision: &Decision,
        published: PublishedReplicas,
        behavior: &Behavior,
    ) {
        let recommended = self.recommended_by(now, decision);
        self.history.record(now, recommended, published, behavior);
        self.restored = self.restored.filter(|_| decision.is_settling());
        self.at_zero = decision.steps.first().is_some_and(|step| step.before == Replicas::ZERO);
    }

    /// The recommendation to record in the windows for a decision.
    ///
    /// After a restart, no variant scales down before the same replicas have been measured for a
    /// window. That hold is not a recommendation to stay; otherwise each restart would reset the
    /// windows. If earlier recommendations are remembered, the last one is repeated, unless the
    /// load requires more. If the desired replicas have changed just before, the wait would have
    /// happened without a restart too.
    fn recommended_by(&mut self, now: Timestamp, decision: &Decision) -> Replicas {
        self.doubt_recall(now);
        let moved_ago = self.history.moved().map(|it| now.duration_since(it.at).as_secs_f64());
        let moved = moved_ago.is_some_and(|ago| ago <= PAUSE_MAX);
        let by_restart = self.restored == Some(Recall::History) && decision.is_settling() && !moved;
        match self.history.last_recommended() {
            Some(last) if by_restart => decision.unconstrained().max(last),
            Some(_) | None => decision.recommended(),
        }
    }
}
