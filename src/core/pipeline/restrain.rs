//! How fast numbers may move, and how often they may turn: the rules of `decide/enforce.rs` in the
//! order in which they hold.

use jiff::Timestamp;

use crate::decide::enforce::{self, History, Windows};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::observe::Inputs;
use crate::pipeline::sizing::Sizing;
use crate::pipeline::{InForce, Pipeline};
use crate::units::{Replicas, Seconds};

impl Pipeline {
    /// Stabilisation windows, dwell, the flap budget, panic and step limits, in this order: a burst
    /// overrides what waits, and nothing overrides a rate. The bounds hold last, after this.
    pub(super) fn restrain(
        &self,
        now: Timestamp,
        inputs: &Inputs,
        decision: Decision,
        in_force: Option<&InForce>,
    ) -> Decision {
        let decision = self.note_floor(decision);
        match (decision.basis, in_force) {
            (Basis::Fresh, Some(InForce { desired, history, .. })) => {
                self.slow_down(now, inputs, decision, (*desired, history))
            }
            (Basis::Fresh, None) => {
                let present = decision.steps.first().map_or(Replicas::ZERO, |step| step.before);
                let history = History::starting(now, present);
                self.slow_down(now, inputs, decision, (present, &history))
            }
            (Basis::Held, _) => decision,
        }
    }

    /// Says when the variant's idle replicas already miss a latency target.
    fn note_floor(&self, mut decision: Decision) -> Decision {
        let floors = self.learned.floors.get(&decision.variant);
        if let Some(floors) = floors.filter(|_| decision.basis == Basis::Fresh)
            && let Some(number) = decision.steps.first().map(|step| step.after)
        {
            for why in floors.values().rev() {
                let reason = Reason::SloUnmeetable(*why);
                let (stage, before, after) = (Stage::Analyze, number, number);
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
        (in_force, history): (Replicas, &History),
    ) -> Decision {
        let behavior = &self.policy.behavior;
        let autoscaler = inputs.autoscalers.get(&decision.variant);
        let (windows, jitter) = self.windows(&decision);
        let known = (history, windows, behavior.deference);
        let stable = enforce::stabilize_before(decision, now, in_force, known, autoscaler);
        let stable = enforce::settle(stable, now, in_force, history, jitter);
        let stayed = enforce::dwell(stable, now, in_force, history, behavior.dwell);
        let turned = enforce::spend_turns(stayed, now, in_force, history, behavior.flap_budget);
        let urgent = enforce::panic(turned, now, in_force, history, behavior.panic);
        if urgent.desired() > in_force && self.grows_at_once(&urgent) {
            return urgent;
        }
        enforce::limit_step(urgent, now, in_force, history, behavior)
    }

    /// Whether a decision is of a known need, which no step limit is for.
    fn grows_at_once(&self, decision: &Decision) -> bool {
        is_sized(decision) && self.policy.sizing.as_ref().is_some_and(Sizing::grows_at_once)
    }

    /// The windows that a decision waits for, and the time in which a number must not jitter whatever
    /// an HPA waits. Foresight has held by itself what was needed, as long as a start is worth; what
    /// saturation decides in its place has not.
    fn windows(&self, decision: &Decision) -> (Windows, Seconds) {
        let windows = Windows::of(&self.policy.behavior);
        let sizing = self.policy.sizing.as_ref();
        let jitter = sizing.and_then(Sizing::holds_alone);
        match jitter.filter(|_| is_sized(decision)) {
            Some(jitter) => (Windows { down: Seconds::ZERO, ..windows }, jitter),
            None => (windows, Seconds::ZERO),
        }
    }
}

/// Whether a decision is of what analyzers say, and not of saturation in their place.
fn is_sized(decision: &Decision) -> bool {
    decision.steps.first().is_some_and(|step| matches!(step.reason, Reason::Sized(_)))
}
