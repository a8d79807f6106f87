//! Pools: groups of equal replicas that each host several models.
//!
//! Everything else in `decide` counts replicas of one model. A replica of a pool hosts several:
//! `LoRA` adapters on a vLLM server, or models on a multi-model server. A model needs a number of
//! *copies*, each on a replica of its own. The pool has as many replicas as its models need:
//!
//! - [`adapters`] turns the copies that `LoRA` adapters need into desired replicas;
//! - [`packing`] determines when the pool may scale down;
//! - [`plan`] assigns copies to replicas and picks the replica that is removed first.
//!
//! # One bound for scale-up
//!
//! No replica holds two copies of one model. The largest number of copies that any model needs is
//! therefore a lower bound for the replicas of the pool. Scale-up aims at that bound and packing
//! stops at it. From one state, the two can never undo each other.
//!
//! # Source
//!
//! Based on the rules of Seldon Core 2, "Autoscaling Servers"; `docs/decisions.md` lists the
//! differences and their reasons.

pub mod adapters;
pub mod packing;
pub mod plan;
pub mod pooled;

use derive_more::Display;

use crate::units::Replicas;

/// The position of a replica in its pool, counted from 0. A `StatefulSet` removes the highest
/// first.
#[derive(Clone, Copy, Debug, Display, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordinal(u32);

impl Ordinal {
    /// Creates the ordinal with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns true if a pool with this many replicas has this position.
    #[must_use]
    pub const fn is_below(self, replicas: Replicas) -> bool {
        self.0 < replicas.count()
    }
}
