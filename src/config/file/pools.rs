//! The sections of pools, as written.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::written::WrittenDuration;

sections! {
    /// A variant whose replicas each serve several `LoRA` adapters.
    Pool {
        /// Adapters that a replica serves in one step (`--max-loras`); without it, what its page
        /// says.
        max_loras: u32,
        /// How few and how many copies an adapter may have that `adapters` does not list.
        copies: Copies,
        /// What is declared of single adapters, by the name that requests ask for.
        adapters: BTreeMap<String, Option<Adapter>>,
        /// For how long an adapter without a request keeps its copies.
        idle_after: WrittenDuration,
        /// When the pool may have fewer replicas.
        packing: Packing,
    }

    /// How few and how many copies an adapter may have.
    Copies {
        /// The fewest, also while nobody asks for it.
        min: u32,
        /// The most; without it, as many as there are replicas.
        max: u32,
    }

    /// What is declared of one adapter.
    Adapter {
        /// How many copies it wants, whatever is asked of it.
        copies: u32,
        /// The fewest copies, also while nobody asks for it.
        min: u32,
        /// The most copies; without it, as many as there are replicas.
        max: u32,
    }

    /// When a pool may have fewer replicas.
    Packing {
        /// Whether copies that are in use may move so that fewer replicas are enough.
        enabled: bool,
        /// For how long less must have been needed.
        window: WrittenDuration,
        /// How long apart two packings are at least.
        interval: WrittenDuration,
        /// Copies that one packing may move.
        max_moved: u32,
    }
}
