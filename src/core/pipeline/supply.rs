//! The supply of each variant: which of its requested replicas start, are late, sleep, or get lost.

use jiff::Timestamp;

use crate::fleet::VariantKey;
use crate::observe::Startup;
use crate::pipeline::absence::{Absences, Losses};
use crate::pipeline::dormant::Dormancy;
use crate::pipeline::group::Member;
use crate::pipeline::hung::HungTargets;
use crate::pipeline::startup::{
    Stalls, StartDurations, Startups, VariantStarts, patience_unmeasured,
};
use crate::pipeline::tick::Tick;
use crate::pipeline::waits::{Wait, Waits};
use crate::units::{Replicas, Seconds};

/// The observed starts, losses and waits of all variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct SupplyWatch {
    startups: Startups,
    absences: Absences,
    waits: Waits,
    dormancy: Dormancy,
    hung: HungTargets,
}

/// The supply of one variant in one tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariantSupply {
    /// True if its scale target has differed from its target state for longer than a start may
    /// take.
    pub(crate) is_overdue: bool,
    /// The replicas that do not count, because they take too long to start.
    pub(crate) stalls: Stalls,
    /// The requested replicas among them, which are given up: others may take their place. Only of
    /// listed targets, not all are requested (`pipeline/hung.rs`).
    pub(crate) given_up: Replicas,
    /// The replicas that are [starting](Tick::starting).
    pub(crate) starting: Replicas,
    /// The starting replicas that are requested beyond the desired ones in effect. They do not count
    /// as requested, or desired replicas would rise to keep them. An HPA requests the pods that a
    /// rollout adds for a while, if they are within its tolerance, and then the rollout adds more.
    pub(crate) surplus: Replicas,
    /// The requested replicas that sleep and may be about to wake.
    pub(crate) waking: Replicas,
    /// The pending replicas that a lower number keeps, because a replica that serves might be
    /// removed in their place. They may be about to wake, or have never answered without an
    /// orchestrator.
    pub(crate) kept: Replicas,
    /// The requested replicas that sleep and do not count.
    pub(crate) dormant: Replicas,
    /// The measured time from start to serving, if known.
    pub(crate) serves_after: Option<Seconds>,
    /// The longest start in progress, or measured while `serves_after` has too few samples.
    pub(crate) slowest_start: Option<Seconds>,
    /// Losses per replica and hour.
    pub(crate) losses: f64,
    /// The report on its starts.
    pub(crate) startup: Startup,
}

// === impl SupplyWatch ===

impl SupplyWatch {
    /// Lets no unobserved time count toward the time after which targets hang.
    pub(crate) fn unsettle(&mut self) {
        self.hung = HungTargets::default();
    }

    /// The supply of each variant, by place.
    pub(crate) fn run(&mut self, tick: &Tick<'_>) -> Vec<VariantSupply> {
        self.startups.run(tick.now, tick.inputs);
        self.absences.run(tick);
        self.waits.run(tick);
        self.dormancy.run(tick);

        let open = self.startups.open();
        self.hung.run(tick, &self.startups, &open);
        tick.members
            .iter()
            .map(|member| {
                let starts = self.startups.of(member.place, &member.spec.key, &open);
                self.supply(tick, member, &starts)
            })
            .collect()
    }

    /// The wait of a variant; `None` while it is in its target state.
    pub(crate) fn wait(&self, variant: &VariantKey) -> Option<Wait> {
        self.waits.get(variant).copied()
    }

    /// The latest starts of a variant, to save.
    pub(crate) fn starts(&self, variant: &VariantKey) -> Vec<StartDurations> {
        self.startups.save(variant)
    }

    /// The lost replicas of a variant, to save; `None` if there are none.
    pub(crate) fn losses(&self, variant: &VariantKey) -> Option<Losses> {
        self.absences.save(variant)
    }

    /// Restores the saved state of a variant. Existing state stays unless it is shorter experience.
    pub(crate) fn recall(
        &mut self,
        now: Timestamp,
        variant: &VariantKey,
        wait: Option<Wait>,
        starts: &[StartDurations],
        losses: Option<Losses>,
    ) {
        if let Some(wait) = wait {
            self.waits.recall(now, variant, wait);
        }
        if let Some(losses) = losses {
            self.absences.recall(variant, losses);
        }

        self.startups.recall(variant, starts);
    }

    fn supply(
        &self,
        tick: &Tick<'_>,
        member: &Member<'_>,
        starts: &VariantStarts<'_>,
    ) -> VariantSupply {
        let key = &member.spec.key;
        let usual = tick.policy.transition_patience;
        let waited =
            self.waits.get(key).map(|wait| tick.now.duration_since(wait.since).as_secs_f64());

        let patience = starts.stuck_after(member.spec, usual);
        let overdue = starts.patience().unwrap_or_else(|| patience_unmeasured(member.spec, usual));
        let late = starts.stalls(tick.now, member.coming(), waited, patience);
        let hung = self.hung.of(member);
        let stalls = Stalls { all: late.all.max(hung), ..late };
        let is_listed = tick.is_counted_by_answers(member);

        let dormant = self.dormancy.of(key);
        let waking = member.asleep().beyond(dormant);
        let coming = member.coming().beyond(stalls.all);
        let starting = tick.starting(member, coming);

        VariantSupply {
            is_overdue: waited.is_some_and(|waited| waited >= overdue.seconds()),
            stalls,
            given_up: if is_listed { hung } else { stalls.all },
            starting,
            surplus: surplus(member.observation.wanted, starting, tick.desired(member)),
            waking,
            kept: waking + coming.beyond(starting),
            dormant,
            serves_after: starts.serves_after(),
            slowest_start: starts.slowest(tick.now, patience),
            losses: self.absences.per_hour(member.place, key),
            startup: report(member, starts, stalls.all),
        }
    }
}

fn surplus(requested: Option<Replicas>, starting: Replicas, desired: Option<Replicas>) -> Replicas {
    let in_effect = desired.filter(|desired| *desired > Replicas::ZERO);
    let beyond = requested.zip(in_effect).map(|(requested, desired)| requested.beyond(desired));
    beyond.unwrap_or_default().min(starting)
}

/// The report on a variant's starts. Replicas beyond the pending ones have no part in them.
fn report(member: &Member<'_>, starts: &VariantStarts<'_>, stuck: Replicas) -> Startup {
    let startup = starts.report(stuck);
    Startup { unschedulable: startup.unschedulable.min(member.observation.pending), ..startup }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_start_beyond_the_desired_ones_are_a_surplus() {
        let n = Replicas::saturating;
        assert_eq!(surplus(Some(n(58)), n(9), Some(n(54))), n(4));
        assert_eq!(surplus(Some(n(58)), n(3), Some(n(54))), n(3), "one of the four serves");
        assert_eq!(surplus(Some(n(54)), n(9), Some(n(58))), n(0));
        assert_eq!(surplus(Some(n(1)), n(1), Some(n(0))), n(0), "KEDA wakes a variant");
        assert_eq!(surplus(Some(n(58)), n(9), None), n(0));
        assert_eq!(surplus(None, n(9), Some(n(1))), n(0));
    }
}
