//! The panic window: while demand jumps, nothing is lowered and nothing more is waited for.
//!
//! Knative's autoscaler compares the demand of a short window with what its pods carry, and while the
//! ratio is high follows the short window alone and never goes down. Here demand is what the analyzers
//! ask for, in replicas, so that it means the same in each analyzer's unit: the largest number that
//! was asked for in a short window, against the mean of a long one.
//!
//! Where analyzers size models, a jump of load is a jump of that number. Where saturation moves a
//! number by one, only a step from one replica to two is a jump, and the panic window changes next
//! to nothing.
//!
//! # Source
//!
//! Knative Serving, `pkg/autoscaler/scaling/autoscaler.go`: `Scale` enters panic mode while
//! the panic window asks for at least `panicThreshold` times the ready pods, and leaves it when a
//! whole stable window has passed without. Its largest rate of growth holds in panic as well, as
//! step policies do here.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{History, Restraint, remaining, step_or_note, within};
use crate::decide::{Decision, Reason, Stage};
use crate::settings;
use crate::settings::{hours, minutes, secs};
use crate::units::{Fraction, Replicas, Seconds};

/// Windows without a length see nothing, and an hour is the longest that an HPA accepts.
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

/// A burst that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// When it was last seen.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The largest number of the short window.
    pub asked: Replicas,
    /// The mean of the long window.
    pub mean: f64,
}

impl History {
    /// The burst that is seen when this is recommended, or the last one that was.
    pub(super) fn burst(
        &self,
        now: Timestamp,
        recommended: Replicas,
        panic: Panic,
    ) -> Option<Burst> {
        let known = self.burst.filter(|it| within(now, it.at, panic.stable_window));
        let Some(mean) = self.mean(now, panic.stable_window) else { return known };
        let asked = self.recommended_within(now, panic.window).fold(recommended, Replicas::max);
        // A number that comes back from none is no burst of anything.
        let jumps = f64::from(asked.count()) >= panic.threshold.fraction() * mean.max(1.0);
        if jumps { Some(Burst { at: now, asked, mean }) } else { known }
    }

    /// The mean over time of what was recommended in a window that ends now; `None` while no time
    /// of it has been seen.
    fn mean(&self, now: Timestamp, window: Seconds) -> Option<f64> {
        let ends = self.recommendations.iter().skip(1).map(|next| next.first).chain([now]);
        let (mut sum, mut weight) = (0.0, 0.0);
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

/// While there is a burst, lowers nothing and holds back nothing that is asked for.
pub fn panic(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &History,
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
