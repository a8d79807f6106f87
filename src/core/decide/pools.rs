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
//! # Why one number is enough for growing
//!
//! No replica holds two copies of one model. So the largest number of copies that any model wants is
//! a lower bound of the replicas that the pool needs, whatever else it hosts. Growing aims at that
//! bound and packing stops at it, so from one state the two can never undo each other.
//!
//! # Source
//!
//! Built on the rules of Seldon Core 2, "Autoscaling Servers"; `docs/decisions.md` has the
//! differences and their reasons.

pub mod adapters;
pub mod packing;
pub mod plan;
pub mod pooled;

use derive_more::Display;

use crate::units::Replicas;

/// The place of a replica in its pool, counted from 0. Of a `StatefulSet`, the highest goes first.
#[derive(Clone, Copy, Debug, Display, Default, PartialEq, Eq, PartialOrd, Ord)]
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
