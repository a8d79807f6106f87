//! The times and replicas that a fault affects.

use crate::simulate::Micros;
use crate::simulate::scenario::{CrashLoop, Outage, Silence, Slowdown};

// === impl Outage ===

impl Outage {
    /// Returns true if the outage is active at a time.
    #[must_use]
    pub fn covers(&self, at: Micros) -> bool {
        (self.from..self.from + self.length).contains(&at)
    }
}

// === impl Slowdown, CrashLoop, Silence ===

impl Slowdown {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl CrashLoop {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = self.until.is_none_or(|until| at < until);
        self.from <= at && lasts && self.replica.is_none_or(|replica| replica == number)
    }
}

impl Silence {
    /// Returns true if the fault affects the replica with this number at a time.
    #[must_use]
    pub fn covers(&self, at: Micros, number: u32) -> bool {
        let lasts = (self.from..self.from + self.length).contains(&at);
        lasts && self.replica.is_none_or(|replica| replica == number)
    }
}
