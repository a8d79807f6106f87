//! Limits on the speed and the direction changes of scaling: the rules of `decide/enforce.rs`, in
//! the order in which they apply.
//!
//! # Delays of a scale-down
//!
//! Desired replicas stay up for minutes after the load fell because of the mechanisms below, in the
//! order in which they act. Each entry begins with the `stage` of the step that a decision shows.
//! Files are in `src/core`, and `foresight` stands for `analyze/foresight` or `capacity.foresight`.
//!
//! 1. `analyze`: the forecast expects the growth of the last minutes to come again
//!    (`foresight/demand.rs`; `foresight.look_back`). Late first tokens raise it for some time
//!    (`foresight/budget.rs`; `foresight.error_budget.decay`).
//! 2. `analyze`: the largest need is held for some start-up times (`foresight/held.rs`;
//!    `foresight.hold.starts`, `foresight.hold.min`). A backlog is held for the time in which it
//!    drains (`foresight/role_demand.rs`; `foresight.backlog.drain`).
//! 3. `analyze`: there is no headroom in the first minutes of a load, or unless a part of a replica
//!    is spare in addition to the one that goes (`foresight/forecast.rs`; `foresight.history_min`,
//!    `foresight.hold.starts`, `foresight.rounding.spare`).
//! 4. `analyze`: an analyzer that votes needs the replicas or has no recent data, or a capacity
//!    card stands in for measurements (`analyze/ballot.rs`, `pipeline/sizing/assessment.rs`;
//!    `capacity.analyzers`, `capacity.cards`).
//! 5. `analyze`: replaced replicas stay until their replacements serve
//!    (`decide/optimize/least_cost.rs`, `pipeline/sizing/exchange.rs`; no key).
//! 6. `analyze`: if saturation decides, it removes one replica at a time, and none while others
//!    start (`analyze/saturation/targets.rs`; `saturation.transition`,
//!    `saturation.transition_patience`).
//! 7. `bridge`: standby replicas stay for the hold of the load that they bridge
//!    (`foresight/role_demand.rs`; `foresight.hold`).
//! 8. `pool`: fewer replicas have not been enough for a whole window, or adapters have not been
//!    idle for long enough (`decide/pools/packing.rs`, `pipeline/pools.rs`; `packing.window` and
//!    `idle_after` of `pools`).
//! 9. `hold`, `guard`: data is missing or incomplete, or does not cover a window yet
//!    (`pipeline/guard.rs`; `observe.stale_after`, `observe.window`).
//! 10. `stabilize`: the largest recommendation within a window, minus the time that the HPA waits
//!     on its own (`decide/enforce.rs`; `enforce.scale_down.stabilization_window`,
//!     `enforce.defer_to_hpa`). If foresight decides alone, the hold replaces this window
//!     (`pipeline/sizing/policy.rs`; `foresight.hold.replaces_window`), and the last part of the
//!     hold applies here instead (`foresight.hold.jitter`).
//! 11. `dwell`: a recent scale-up (`decide/enforce/flapping.rs`; `enforce.min_dwell`).
//! 12. `flap_budget`: too many changes of direction within an hour (`decide/enforce/flapping.rs`;
//!     `enforce.flap_budget`).
//! 13. `panic`: a recent burst (`decide/enforce/burst.rs`; `enforce.panic`).
//! 14. `step_limit`: the largest change in a period (`decide/enforce.rs`;
//!     `enforce.scale_down.policies`).
//! 15. `zero`: a model keeps its last replica until it is proved idle, and a woken variant stays
//!     (`pipeline/zero.rs`; `after` and `awake_for` of `scale_to_zero`).
//! 16. `bounds`: the minimum (`decide/enforce.rs`; `replicas.min`, or `minReplicas` of the HPA).
//! 17. `check`: decisions that break an invariant are not published (`pipeline/verify.rs`; no key).
//!
//! A pause of the process restarts every window (`notice_gap` in `pipeline.rs`). After Plimsoll,
//! the HPA waits for the window in its own `behavior`, and keeps its replicas while a decision is
//! refused as stale (`publish/external_metrics/state.rs` in the daemon; `external_metrics.hold`).

use crate::decide::enforce::{self, ScalingHistory, StabilizationWindows};
use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::pipeline::policy::Policy;
use crate::pipeline::sizing::{LatencyFloors, Sizing};
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, Seconds};

/// Applies stabilization windows, dwell, the flap budget, panic and step limits, in this order. A
/// burst overrides waits, and nothing overrides a rate. The bounds apply last, after this.
pub(crate) fn run(
    tick: &Tick<'_>,
    floors: &LatencyFloors,
    decisions: Vec<Decision>,
) -> Vec<Decision> {
    decisions
        .into_iter()
        .enumerate()
        .map(|(place, decision)| match decision.basis {
            Basis::Fresh => restrain(tick, place, note_floor(floors, decision)),
            Basis::Held => decision,
        })
        .collect()
}

/// Adds a step if the variant's idle replicas already miss a latency target.
fn note_floor(floors: &LatencyFloors, mut decision: Decision) -> Decision {
    if let Some(floors) = floors.get(&decision.variant)
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

/// Restrains one decision. `place` is its position among all decisions, which is that of its variant
/// in the fleet unless a variant before it has no decision.
fn restrain(tick: &Tick<'_>, place: usize, decision: Decision) -> Decision {
    if let Some(in_force) = tick.in_force.get_at(place, &decision.variant) {
        return slow_down(tick, decision, in_force.desired, &in_force.history);
    }

    let present = decision.steps.first().map_or(Replicas::ZERO, |step| step.before);
    let history = ScalingHistory::starting(tick.now, present);
    slow_down(tick, decision, present, &history)
}

fn slow_down(
    tick: &Tick<'_>,
    decision: Decision,
    in_force: Replicas,
    history: &ScalingHistory,
) -> Decision {
    let Tick { now, policy, .. } = *tick;
    let behavior = &policy.behavior;
    let autoscaler = tick.inputs.autoscalers.get(&decision.variant);
    let (windows, jitter) = windows(policy, &decision);

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
    if urgent.desired() > in_force && grows_at_once(policy, &urgent) {
        return urgent;
    }

    enforce::limit_step(urgent, now, in_force, history, behavior)
}

/// Returns true if a decision follows known demand, which step limits do not apply to.
fn grows_at_once(policy: &Policy, decision: &Decision) -> bool {
    decision.sizing.is_some() && policy.grows_at_once()
}

/// The windows that a decision waits for, and the time in which desired replicas must not jitter,
/// independent of an HPA's wait. Foresight has already held its demand for as long as a start is
/// worth. Saturation, which decides if there is no sizing result, has not.
fn windows(policy: &Policy, decision: &Decision) -> (StabilizationWindows, Seconds) {
    let windows = StabilizationWindows::of(&policy.behavior);
    let jitter = policy.sizing.as_ref().and_then(Sizing::holds_alone);
    match jitter.filter(|_| decision.sizing.is_some()) {
        Some(jitter) => (StabilizationWindows { down: Seconds::ZERO, ..windows }, jitter),
        None => (windows, Seconds::ZERO),
    }
}
