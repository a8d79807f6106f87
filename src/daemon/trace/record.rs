//! The records of a trace, and the header of its files.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::state::SavedDecision;
use plimsoll_core::decide::{Basis, Decision, NoData, NoDecision, Step};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, DesiredReplicas};
use plimsoll_core::units::Replicas;

/// The version of the format. The reader rejects any other version.
pub const VERSION: u32 = 2;

/// A record of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceRecord {
    /// The configuration in effect from here on, as YAML.
    Config(String),
    /// Desired replicas and memories that were put into effect from outside. At the beginning of
    /// every part except the first, it holds the state in effect at that point.
    Restored(Vec<SavedDecision>),
    /// A tick.
    Tick(Box<TraceTick>),
}

/// The event that a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStart {
    /// The start of a process, without any earlier state.
    Process,
    /// The tick after the last tick of the previous part. The state known at that point comes
    /// first.
    Rotation,
    /// A tick after some ticks that were lost. The state known at that point comes first.
    Gap,
}

/// The trace and the part that a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader {
    /// The release that wrote the file.
    pub by: String,
    /// The start time of the process that wrote it.
    pub run: Timestamp,
    /// The number of the file within that process, from 1.
    pub part: u32,
    /// The event that the file begins with.
    pub begins: FileStart,
}

/// The inputs and results of one tick.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceTick {
    /// The instant of the tick.
    pub now: Timestamp,
    /// The inputs of the tick.
    pub inputs: Inputs,
    /// The desired replicas in effect, if another daemon replica decides or several replicas share
    /// decisions.
    pub follows: Option<BTreeMap<VariantKey, DesiredReplicas>>,
    /// The result of each variant.
    pub said: BTreeMap<VariantKey, RecordedResult>,
}

/// The result of one tick for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedResult {
    /// Desired replicas; `None` if there is no decision.
    pub desired: Option<Replicas>,
    /// True if the desired replicas were held from an earlier tick.
    pub held: bool,
    /// The time when the underlying data was current.
    pub inputs_at: Option<Timestamp>,
    /// Each decision step, or the reason why there is no decision.
    pub why: Vec<ResultReason>,
}

/// One part of a variant's result, as codes and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResultReason {
    /// A decision step that led to the desired replicas.
    Step(Box<Step>),
    /// The reason why there is no decision.
    NoNumber(NoData),
    /// A part from another release that this release cannot decode.
    Strange(Value),
}

// === impl RecordedResult ===

impl RecordedResult {
    /// Returns the result of each variant in one tick.
    #[must_use]
    pub fn of(found: &Decisions) -> BTreeMap<VariantKey, Self> {
        let undecided = found.undecided.iter().map(|(key, why)| (key.clone(), Self::from(why)));
        let decided = found.decisions.iter().map(|it| (it.variant.clone(), Self::from(it)));
        undecided.chain(decided).collect()
    }
}

impl From<&Decision> for RecordedResult {
    fn from(decision: &Decision) -> Self {
        Self {
            desired: Some(decision.desired()),
            held: decision.basis == Basis::Held,
            inputs_at: Some(decision.inputs_at),
            why: decision.steps.iter().cloned().map(Box::new).map(ResultReason::Step).collect(),
        }
    }
}

impl From<&NoDecision> for RecordedResult {
    fn from(undecided: &NoDecision) -> Self {
        let why = vec![ResultReason::NoNumber(undecided.0.clone())];
        Self { desired: None, held: false, inputs_at: None, why }
    }
}

// === impl ResultReason ===

impl ResultReason {
    /// Returns the codes and values as JSON.
    #[must_use]
    pub fn data(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for ResultReason {
    /// Writes a sentence, or the codes and values if this release has no sentence for them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => step.fmt(f),
            Self::NoNumber(why) => why.fmt(f),
            Self::Strange(value) => value.fmt(f),
        }
    }
}
