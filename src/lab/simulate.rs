//! The simulator: engines, their load, and the autoscalers of their replicas.
//!
//! Everything in this module is a pure function of its arguments. Time is a count of microseconds
//! that the caller advances ([`Micros`]). So the same parts run against a wall clock in the demo
//! and against an event queue elsewhere, and results are reproducible.

pub mod page;
pub mod peers;
pub mod random;
pub mod reading;
pub mod replica;
pub mod run;
pub mod scaler;
pub mod scenario;
pub mod score;
pub mod workload;

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use plimsoll_core::settings;
use plimsoll_core::settings::written::WrittenDuration;

/// A time in a simulation: an instant since its start, or the span between two instants.
///
/// A whole number of microseconds, because the recorded reference runs of other simulators use them
/// and are compared exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

settings! {
    value:
    Micros: Duration as WrittenDuration, |it| Some(Self::from_duration(it)), Self::duration;
}

impl Micros {
    /// The start of the simulation, or an empty span.
    pub const ZERO: Self = Self(0);

    /// This many microseconds.
    #[must_use]
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// This many whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// This many seconds, to the nearest microsecond; zero if negative or not a number.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and takes NaN and negatives to zero, as it should"
    )]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e6).round() as u64)
    }

    /// The whole microseconds of a span of real time.
    #[must_use]
    pub fn from_duration(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// The number of microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The time in seconds.
    #[must_use]
    pub const fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The time from `earlier` to this one; zero if this one is earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The same span of real time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.seconds())
    }
}
