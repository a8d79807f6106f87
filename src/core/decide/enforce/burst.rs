//! The panic window: during a jump in demand, nothing scales down and scale-up waits for no window.
//!
//! Knative's autoscaler compares the demand in a short window with the capacity of its pods. While
//! the ratio is high, it follows the short window alone and never scales down. In Plimsoll, demand
//! is the number of replicas that the analyzers ask for, which means the same in each analyzer's
//! unit. Plimsoll compares its largest value in a short window with its mean in a long window.
//!
//! If analyzers size models, a jump in load is a jump in that value. If the saturation analyzer
//! changes the value by one, only a step from one replica to two is a jump. The panic window then
//! has almost no effect.
//!
//! # Source
//!
//! Knative Serving, `pkg/autoscaler/scaling/autoscaler.go`: `Scale` enters panic mode while the
//! panic window asks for at least `panicThreshold` times the ready pods. It leaves panic mode after
//! a whole stable window without such a demand. Its maximum scale-up rate also applies in panic
//! mode, as step policies do in Plimsoll.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{Restraint, ScalingHistory, remaining, step_or_note, within};
use crate::decide::{Decision, Reason, Stage};
use crate::settings;
use crate::settings::{hours, minutes, secs};
use crate::units::{Fraction, Replicas, Seconds};

/// A window of length zero is always empty, and one hour is the longest window that an HPA accepts.
const WINDOWS: RangeInclusive<Duration> = secs(1)..=hours(1);

settings! {
    /// Definition of a burst of demand. During a burst nothing is lowered, and more replicas are
    /// asked for without waiting for a window.
    #[derive(Copy)]
    pub struct Panic {
        /// Short window, of which the largest number that was asked for counts.
        // Knative's panic window, a tenth of its stable window.
        window: Seconds = secs(6), in WINDOWS;

        /// Long window, of which the mean counts. A burst is over after this time without another.
        // Knative's stable window.
        stable_window: Seconds = minutes(1), in WINDOWS;

        /// Smallest ratio of the short window to the mean of the long window in a burst.
        // Knative's panic threshold is 200 percent, and it accepts 110 to 1000.
        threshold: Fraction = 2.0, in 1.1..=10.0;
    }
}

/// A detected burst of demand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// The last time that it was detected.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The largest recommendation in the short window.
    pub asked: Replicas,
    /// The mean recommendation in the long window.
    pub mean: f64,
}

impl ScalingHistory {
    /// Returns the burst that this recommendation shows, or the last one if it still counts.
    pub(super) fn burst(
        &self,
        now: Timestamp,
        recommended: Replicas,
        panic: Panic,
    ) -> Option<Burst> {
        let known = self.burst.filter(|it| within(now, it.at, panic.stable_window));
        let Some(mean) = self.mean(now, panic.stable_window) else { return known };

        let asked = self.recommended_within(now, panic.window).fold(recommended, Replicas::max);
        // A mean below 1 counts as 1, so a wake-up to one replica is not a burst.
        let jumps = f64::from(asked.count()) >= panic.threshold.fraction() * mean.max(1.0);
        if jumps { Some(Burst { at: now, asked, mean }) } else { known }
    }

    /// Returns the time-weighted mean of the recommendations in a window that ends now; `None` if
    /// the history covers no time of it.
    fn mean(&self, now: Timestamp, window: Seconds) -> Option<f64> {
        let ends = self.recommendations.iter().skip(1).map(|next| next.first).chain([now]);
        let mut sum = 0.0;
        let mut weight = 0.0;
        for (span, end) in self.recommendations.iter().zip(ends) {
            let age = now.duration_since(span.first).as_secs_f64().min(window.seconds());
            let lasted = age - now.duration_since(end).as_secs_f64();
            if lasted > 0.0 {
                sum += lasted * f64::from(span.replicas.count());
                weight += lasted;
            }
        }

        (weight > 0.0).then(|| sum / weight)
    }
}

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
    let age = Seconds::from_span(now.duration_since(at)).unwrap_or_default();

    let after = decision.desired().max(in_force).max(recommended);
    let why = Restraint::Burst { asked, mean, age, remaining };
    step_or_note(decision, Stage::Panic, after, Reason::Restrained(why))
}
