//! The panic window: during a jump in demand, nothing scales down and scale-up waits for no window.
//!
//! Knative's autoscaler compares the demand in a short window with the capacity of its pods. While
//! the ratio is high, it follows the short window alone and never scales down. In Plimsoll, demand
//! is the number of replicas that the analyzers ask for, which means the same in each analyzer's
//! unit. Plimsoll compares its largest value in a short window with its mean in a long window.
//!
//! If analyzers size models, a jump in load is a jump in that value. If the saturation analyzer
//! changes the value by one, usually only a step from one replica to two is a jump at the default
//! threshold. The panic window then has almost no effect.
//!
//! # Source
//!
//! Knative Serving, `pkg/autoscaler/scaling/autoscaler.go`: `Scale` enters panic mode while the
//! panic window asks for at least `panicThreshold` times the ready pods. It leaves panic mode after
//! a whole stable window without such a demand. Its maximum scale-up rate also applies in panic
//! mode, as step policies do in Plimsoll.

use jiff::Timestamp;

use crate::decide::decision::{Decision, Stage};
use crate::decide::enforce::behavior::Panic;
use crate::decide::enforce::history::{Burst, ScalingHistory};
use crate::decide::enforce::restraint::Restraint;
use crate::decide::enforce::step::step_or_note;
use crate::decide::enforce::window::remaining;
use crate::decide::reason::Reason;
use crate::units::{Replicas, Seconds};

/// During a burst, blocks scale-down and lets scale-up pass without delay.
pub fn panic(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    panic: Option<Panic>,
) -> Decision {
    let Some(panic) = panic else { return decision };
    let recommended = decision.recommended();
    let Some(burst) = history.burst(now, recommended, panic) else { return decision };

    let remaining = remaining(now, burst.at, panic.stable_window).unwrap_or_default();
    let Burst { at, asked, mean } = burst;
    let age = Seconds::between(at, now);

    let after = decision.desired().max(in_force).max(recommended);
    let why = Restraint::Burst { asked, mean, age, remaining };
    step_or_note(decision, Stage::Panic, after, Reason::Restrained(why))
}
