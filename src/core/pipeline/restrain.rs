//! Limits on the speed and the direction changes of scaling: the rules of `decide/enforce.rs`, in
//! the order in which they apply.

use jiff::Timestamp;

use crate::decide::enforce::{self, ScalingHistory, StabilizationWindows};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::observe::Inputs;
use crate::pipeline::sizing::Sizing;
use crate::pipeline::{DecisionInForce, Pipeline};
use crate::units::{Replicas, Seconds};

impl Pipeline {
    /// Applies stabilization windows, dwell, the flap budget, panic and step limits, in this order.
    /// A burst overrides waits, and nothing overrides a rate. The bounds apply last, after this.
    pub(super) fn restrain(
        &self,
        now: Timestamp,
        inputs: &Inputs,
        decision: Decision,
        in_force: Option<&DecisionInForce>,
    ) -> Decision {
        let noted = self.note_floor(decision);

        match (noted.basis, in_force) {
            (Basis::Fresh, Some(DecisionInForce { desired, history, .. })) => {
                self.slow_down(now, inputs, noted, *desired, history)
            }
            (Basis::Fresh, None) => {
                let present = noted.steps.first().map_or(Replicas::ZERO, |step| step.before);
                let history = ScalingHistory::starting(now, present);
                self.slow_down(now, inputs, noted, present, &history)
            }
            (Basis::Held, _) => noted,
        }
    }

    /// Adds a step if the variant's idle replicas already miss a latency target.
    fn note_floor(&self, mut decision: Decision) -> Decision {
        let floors = self.learned.floors.get(&decision.variant);
        if let Some(floors) = floors.filter(|_| decision.basis == Basis::Fresh)
            && let Some(number) = decision.steps.first().map(|step| step.after)
        {
            for why in floors.values().rev() {
                let reason = Reason::SloUnmeetable(*why);
                let stage = Stage::Analyze;
                let before = number;
                let after = number;
                decision.steps.insert(1, Step { stage, before, after, reason });
            }
        }

        decision
    }

    fn slow_down(
        &self,
        now: Timestamp,
        inputs: &Inputs,
        decision: Decision,
        in_force: Replicas,
        history: &ScalingHistory,
    ) -> Decision {
        let behavior = &self.policy.behavior;
        let autoscaler = inputs.autoscalers.get(&decision.variant);
        let (windows, jitter) = self.windows(&decision);

        let stable = enforce::stabilize_before(
            decision,
            now,
            in_force,
            history,
            windows,
            behavior.deference,
            autoscaler,
        );
        let settled = enforce::settle(stable, now, in_force, history, jitter);
        let stayed = enforce::dwell(settled, now, in_force, history, behavior.dwell);
        let turned = enforce::spend_turns(stayed, now, in_force, history, behavior.flap_budget);
        let urgent = enforce::panic(turned, now, in_force, history, behavior.panic);
        if urgent.desired() > in_force && self.grows_at_once(&urgent) {
            return urgent;
        }

        enforce::limit_step(urgent, now, in_force, history, behavior)
    }

    /// Returns true if a decision follows known demand, which step limits do not apply to.
    fn grows_at_once(&self, decision: &Decision) -> bool {
        is_sized(decision) && self.policy.sizing.as_ref().is_some_and(Sizing::grows_at_once)
    }

    /// The windows that a decision waits for, and the time in which desired replicas must not
    /// jitter, independent of an HPA's wait. Foresight has already held its demand for as long as a
    /// start is worth. Saturation, which decides if there is no sizing result, has not.
    fn windows(&self, decision: &Decision) -> (StabilizationWindows, Seconds) {
        let windows = StabilizationWindows::of(&self.policy.behavior);
        let sizing = self.policy.sizing.as_ref();
        let jitter = sizing.and_then(Sizing::holds_alone);
        match jitter.filter(|_| is_sized(decision)) {
            Some(jitter) => (StabilizationWindows { down: Seconds::ZERO, ..windows }, jitter),
            None => (windows, Seconds::ZERO),
        }
    }
}

/// Returns true if a decision comes from analyzers and not from saturation.
fn is_sized(decision: &Decision) -> bool {
    decision.steps.first().is_some_and(|step| matches!(step.reason, Reason::Sized(_)))
}
