//! The reasons why the rules of [`enforce`] hold a value back or release it.
//!
//! [`enforce`]: crate::decide::enforce

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decide::enforce::direction::ScalingDirection;
use crate::units::{Replicas, Seconds};

/// The reason why a rule holds a value back or releases it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restraint {
    /// An HPA waits for this window on its own, so Plimsoll does not.
    LeftToHpa {
        /// The HPA.
        hpa: String,
        /// Its window.
        window: Seconds,
    },
    /// The last change in the other direction is too recent.
    Dwelling {
        /// The direction of the blocked change.
        direction: ScalingDirection,
        /// Time until the change is allowed.
        remaining: Seconds,
    },
    /// Scale-down is blocked, because the direction has changed too often in the last hour.
    FlapBudgetSpent {
        /// Direction changes in the last hour.
        turned: u32,
        /// Time until scale-down is allowed again.
        refills_in: Seconds,
    },
    /// A burst of demand is in progress, or ended recently.
    Burst {
        /// The largest recommendation in the short window.
        asked: Replicas,
        /// The mean of the long window at that time.
        mean: f64,
        /// Time since the burst was detected.
        age: Seconds,
        /// Time until the burst no longer counts.
        remaining: Seconds,
    },
}

impl fmt::Display for Restraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftToHpa { hpa, window } => {
                write!(f, "stabilization left to HPA {hpa} ({window:.0} s window)")
            }
            Self::Dwelling { direction, remaining } => {
                let (now, before) = match direction {
                    ScalingDirection::Up => ("scaled up", "scaled down"),
                    ScalingDirection::Down => ("scaled down", "scaled up"),
                };
                write!(
                    f,
                    "not {now} for another {:.0} s, because it was {before} recently",
                    whole(*remaining)
                )
            }
            Self::FlapBudgetSpent { turned, refills_in } => {
                let times = if *turned == 1 { "once" } else { &*format!("{turned} times") };
                write!(
                    f,
                    "scale-down blocked for {:.0} s: flap budget spent (direction changed {times} \
                     in the last hour)",
                    whole(*refills_in)
                )
            }
            Self::Burst { asked, mean, age, remaining } => {
                if *age == Seconds::ZERO {
                    write!(f, "demand is jumping")?;
                } else {
                    write!(f, "demand jumped {age:.0} s ago")?;
                }

                write!(
                    f,
                    " to {}, from {mean:.1} on average: scale-down is blocked for {:.0} s, and \
                     scale-up skips its window",
                    asked.counted(),
                    whole(*remaining)
                )
            }
        }
    }
}

/// Rounds the remaining time up to whole seconds.
fn whole(remaining: Seconds) -> f64 {
    remaining.seconds().ceil()
}
