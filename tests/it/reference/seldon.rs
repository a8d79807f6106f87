//! The rules of Seldon Core 2 for servers that host several models.
//!
//! [`count`] has the statistics and the two scaling rules, [`written`] reads a server's object,
//! [`copies`] has the states of copies and models, [`placement`] assigns copies to replicas,
//! [`lag`] decides when a model wants another copy, [`drain`] how long a replica stays and
//! [`memory`] which models fit into it.
//!
//! # Source
//!
//! Seldon Core 2, "Autoscaling Servers", and the answers of its scheduler at commit 7b77f8b7
//! (January 2026). Where [`Rules::Mended`] answers otherwise, `docs/decisions.md` has the reason.

pub(crate) mod copies;
pub(crate) mod count;
pub(crate) mod drain;
pub(crate) mod lag;
pub(crate) mod memory;
pub(crate) mod placement;
pub(crate) mod written;

mod tests;

use std::fmt;

/// Whose rules hold where Seldon Core 2 is known to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Seldon's, with everything that follows from them.
    Seldon,
    /// The same, without the known defects.
    Mended,
}

/// An amount of memory. Whole bytes, so that two amounts are compared exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(u64);

impl Bytes {
    /// No memory.
    pub(crate) const ZERO: Self = Self(0);

    /// So many bytes.
    #[must_use]
    pub(crate) const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }

    /// What is left after taking `other` away; nothing when there is less than that.
    #[must_use]
    pub(crate) const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Both together, up to the largest number.
    #[must_use]
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// So many times this much, up to the largest number.
    #[must_use]
    pub(crate) const fn times(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}
