//! Pools: groups of equal replicas that each host several models.
//!
//! Everything else in `decide` counts replicas of one model. Here a replica hosts several: `LoRA`
//! adapters on a vLLM server, or models on a multi-model server. A model wants a number of *copies*,
//! each on a replica of its own, and the pool has as many replicas as its models need:
//!
//! - [`adapters`] turns the copies that `LoRA` adapters want into a number of replicas;
//! - [`packing`] says when fewer replicas than there are may be asked for;
//! - [`plan`] says which copy should be on which replica, and which replica should go first.
//!
//! The other modules hold the rules of Seldon Core 2 for multi-model servers, which these are built
//! on: [`count`] (statistics and the two scaling rules), [`written`] (what a server's object says),
//! [`copies`] (states of copies and models), [`placement`] (which copy goes where), [`lag`] (when a
//! model wants another copy), [`drain`] (how long a replica stays) and [`memory`] (what fits into it).
//!
//! # Why one number is enough for growing
//!
//! No replica holds two copies of one model. So the largest number of copies that any model wants is
//! a lower bound of the replicas that the pool needs, whatever else it hosts. Growing aims at that
//! bound and packing stops at it, so from one state the two can never undo each other.
//!
//! # Source
//!
//! Seldon Core 2, "Autoscaling Servers", and what its scheduler answers at commit 7b77f8b7
//! (January 2026). Where [`Rules::Mended`] answers otherwise, `docs/decisions.md` says why.

pub mod adapters;
pub mod copies;
pub mod count;
pub mod drain;
pub mod lag;
pub mod memory;
pub mod packing;
pub mod placement;
pub mod plan;
pub mod pooled;
pub mod written;

use std::fmt;

use crate::units::Replicas;

/// Whose rules hold where Seldon Core 2 is known to go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Seldon's, with everything that follows from them.
    Seldon,
    /// Ours: the same, without the known defects.
    #[default]
    Mended,
}

/// The place of a replica in its pool, counted from 0. Of a `StatefulSet`, the highest goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordinal(u32);

impl Ordinal {
    /// The place with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Whether a pool of so many replicas has this place.
    #[must_use]
    pub const fn is_below(self, replicas: Replicas) -> bool {
        self.0 < replicas.count()
    }
}

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An amount of memory. Whole bytes, so that two amounts are compared exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(u64);

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);

    /// So many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// What is left after taking `other` away; nothing when there is less than that.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Both together, up to the largest number.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// So many times this much, up to the largest number.
    #[must_use]
    pub const fn times(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests;
