//! Why a number is held back or let go, in the words of the rules of [`enforce`].
//!
//! [`enforce`]: crate::decide::enforce

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decide::enforce::Direction;
use crate::units::{Replicas, Seconds};

/// Why a number is held back or let go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restraint {
    /// An HPA waits this window by itself, so it is not waited here.
    LeftToHpa {
        /// The HPA.
        hpa: String,
        /// Its window.
        window: Seconds,
    },
    /// The number has moved the other way too short a time ago.
    Dwelling {
        /// Where it would move.
        direction: Direction,
        /// How long it takes from now.
        remaining: Seconds,
    },
    /// The number is not lowered, because it has turned too often in the last hour.
    FlapBudgetSpent {
        /// How often it has turned.
        turned: u32,
        /// How long it takes from now until it may be lowered.
        refills_in: Seconds,
    },
    /// There is, or has just been, a burst of demand.
    Burst {
        /// The most that was asked for in the short window.
        asked: Replicas,
        /// The mean of the long window then.
        mean: f64,
        /// How long ago it was seen.
        age: Seconds,
        /// How long it counts from now.
        remaining: Seconds,
    },
}

impl fmt::Display for Restraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftToHpa { hpa, window } => {
                write!(f, "not held here, because HPA {hpa} waits {window:.0} s by itself")
            }
            Self::Dwelling { direction, remaining } => {
                let (now, before) = match direction {
                    Direction::Up => ("raised", "lowered"),
                    Direction::Down => ("lowered", "raised"),
                };
                write!(
                    f,
                    "not {now} for another {:.0} s, because it was {before} just now",
                    whole(*remaining)
                )
            }
            Self::FlapBudgetSpent { turned, refills_in } => {
                let times = if *turned == 1 { "once" } else { &*format!("{turned} times") };
                write!(
                    f,
                    "not lowered for another {:.0} s: it has turned {times} within an hour, which \
                     is as often as it may",
                    whole(*refills_in)
                )
            }
            Self::Burst { asked, mean, age, remaining } => {
                if *age == Seconds::ZERO {
                    write!(f, "demand jumps")?;
                } else {
                    write!(f, "demand jumped {age:.0} s ago")?;
                }
                write!(
                    f,
                    " to {asked} replicas, from {mean:.1} on average: nothing is lowered for \
                     another {:.0} s, and no window is waited for to raise it",
                    whole(*remaining)
                )
            }
        }
    }
}

/// Time that is left, in whole seconds: what is not over takes another second.
fn whole(remaining: Seconds) -> f64 {
    remaining.seconds().ceil()
}
