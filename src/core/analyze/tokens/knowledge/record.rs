//! The record of a variant's capacity per replica.

use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::experience::Experience;
use crate::fleet::Accelerator;
use crate::units::Tokens;

/// The capacity per replica of a variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityRecord {
    /// The accelerator that the variant runs on.
    pub accelerator: Option<Accelerator>,
    /// The number of accelerators per replica.
    pub gpus: Option<NonZeroU32>,
    /// The arguments of its engines; not part of the saved state.
    #[serde(skip)]
    pub arguments: Option<EngineArguments>,
    /// The size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// The capacity per replica.
    pub capacity: Option<Tokens>,
    /// The source of the capacity.
    pub source: RecordSource,
}

/// The source of a record's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordSource {
    /// Measured on running replicas, last seen at this instant.
    Measured(#[serde(with = "crate::units::instants")] Timestamp),
    /// Derived from the engine's arguments.
    Declared(#[serde(with = "crate::units::instants")] Timestamp),
}

impl Experience for CapacityRecord {
    /// A measured capacity counts more than a derived one. Of two measured ones, the own is newer.
    fn knows_less_than(&self, other: &Self) -> bool {
        let is_measured = matches!(self.source, RecordSource::Measured(_));
        !is_measured && matches!(other.source, RecordSource::Measured(_))
    }
}

impl RecordSource {
    /// The last instant at which the record was known to be true.
    #[must_use]
    pub const fn at(self) -> Timestamp {
        match self {
            Self::Measured(at) | Self::Declared(at) => at,
        }
    }
}
