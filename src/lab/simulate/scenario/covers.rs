//! When faults of replicas hold, and for which of them.

use crate::simulate::Micros;
use crate::simulate::scenario::{CrashLoop, Outage, Silence, Slowdown};

// === impl Outage ===

impl Outage {
    /// Whether it lasts at a time.
    #[must_use]
    pub fn covers(&self, at: Micros) -> bool {
        (self.from..self.from + self.length).contains(&at)
    }
}

// === impl Slowdown, CrashLoop, Silence ===

impl Slowdown {
    /// Whether it holds at a time for the replica of this number.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl CrashLoop {
    /// Whether it holds at a time for the replica of this number.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl Silence {
    /// Whether it holds at a time for the replica of this number.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = (self.from..self.from + self.length).contains(&at);
        lasts && self.replica.is_none_or(|replica| replica == number)
    }
}
