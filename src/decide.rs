//! Decisions: the vocabulary of an answer.
//!
//! A [`Decision`] is a number of replicas for one variant together with the chain of [`Step`]s
//! that made it. Each stage that changes the number, or that had a reason to and did not, appends
//! one step; the last step's `after` is the answer. So every published number can say where it
//! comes from, and the explanation cannot drift from the arithmetic.

pub mod check;
pub mod enforce;

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use crate::analyze::saturation::{Outcome, Unmeasured};
use crate::fleet::{Bounds, ModelKey, VariantKey};
use crate::units::{Replicas, Seconds};

pub use crate::analyze::saturation::{SpareEnough, SpareKept, SpareLow, Transition};

/// How many replicas one variant should have, and why.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The variant.
    pub variant: VariantKey,
    /// The model that it serves.
    pub model: ModelKey,
    /// Replicas that exist; `None` when nobody can say.
    pub current: Option<Replicas>,
    /// The bounds that held.
    pub bounds: Bounds,
    /// The chain that made the number; never empty.
    pub steps: Vec<Step>,
    /// The instant of the newest data that the number rests on. A decision that was recomputed
    /// from old data is as old as its data.
    pub inputs_at: Timestamp,
    /// Whether the number was decided on fresh data or kept from before.
    pub basis: Basis,
}

/// Whether a number was decided on fresh data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Decided in this tick, on fresh data.
    Fresh,
    /// Kept from an earlier tick, because there is no fresh data.
    Held,
}

impl Decision {
    /// The answer: the last step's outcome.
    #[must_use]
    pub fn desired(&self) -> Replicas {
        self.steps.last().map_or(Replicas::ZERO, |step| step.after)
    }

    /// What the analysis alone asks for, before bounds, windows and step limits.
    #[must_use]
    pub fn unconstrained(&self) -> Replicas {
        self.steps
            .iter()
            .rev()
            .find(|step| matches!(step.stage, Stage::Analyze | Stage::Hold))
            .map_or_else(|| self.desired(), |step| step.after)
    }

    /// The step that explains the answer best: the last that changed the number, else the last.
    #[must_use]
    pub fn because(&self) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.before != step.after).or(self.steps.last())
    }
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Which stage.
    pub stage: Stage,
    /// The number before it.
    pub before: Replicas,
    /// The number after it.
    pub after: Replicas,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, before, after, reason } = self;
        if before == after {
            write!(f, "{}: {after}, {reason}", stage.label())
        } else {
            write!(f, "{}: {before} -> {after}, {reason}", stage.label())
        }
    }
}

/// The stages of a decision, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The analysis of the model's load.
    Analyze,
    /// Keeping the last number, because there is nothing to decide on.
    Hold,
    /// Refusing to go down on incomplete data.
    Guard,
    /// Minimum and maximum.
    Bounds,
    /// Stabilisation windows.
    Stabilize,
    /// Limits on how far the number may move in a period.
    StepLimit,
    /// The final check of the invariants.
    Check,
}

impl Stage {
    /// The stage as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Analyze => "analyze",
            Self::Hold => "hold",
            Self::Guard => "guard",
            Self::Bounds => "bounds",
            Self::Stabilize => "stabilize",
            Self::StepLimit => "step_limit",
            Self::Check => "check",
        }
    }
}

/// Why a stage did what it did.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Too little spare capacity: one replica more, on the cheapest variant that can grow.
    SpareLow(SpareLow),
    /// Too little spare capacity, and another variant grows.
    SpareLowElsewhere(VariantKey),
    /// Too little spare capacity, and no variant can grow.
    SpareLowNoRoom(SpareLow),
    /// Enough would be left without one replica: one less, on the dearest variant that can shrink.
    SpareEnough(SpareEnough),
    /// Enough would be left without one replica, and another variant shrinks.
    SpareEnoughElsewhere(VariantKey),
    /// Spare capacity is not low, and one replica less would be too few.
    SpareKept(SpareKept),
    /// Neither more nor less is needed.
    Steady,
    /// An earlier decision is still being carried out, so the model waits.
    Transition(Transition),
    /// There is no fresh data, so the last number stays.
    NoData(NoData),
    /// The number is not lowered, because some replicas have not been heard.
    Incomplete {
        /// Ready replicas without fresh data.
        missing: Replicas,
    },
    /// The number is not lowered, because the same replicas have not been measured long enough.
    Settling {
        /// How long it takes from now.
        remaining: Seconds,
    },
    /// The minimum is higher.
    BelowMin(Replicas),
    /// The maximum is lower.
    AboveMax(Replicas),
    /// A recommendation inside the stabilisation window is nearer to the present number.
    Stabilized {
        /// Length of the window.
        window: Seconds,
    },
    /// The number may not move further in this period.
    StepLimited {
        /// Length of the period.
        period: Seconds,
    },
    /// The set of decisions broke an invariant, so the last good number stays.
    Refused(check::Violation),
}

/// Why there is nothing to decide on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoData {
    /// No replica of the variant has fresh data.
    NoFreshReplica,
    /// The variant has no replicas, so there is nothing to measure.
    NoReplicas,
    /// The scale target is unknown; says why.
    ScaleUnknown(String),
    /// The list of replicas is missing or too old.
    ListingStale,
}

impl fmt::Display for NoData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFreshReplica => f.write_str("no replica has fresh data"),
            Self::NoReplicas => f.write_str("there are no replicas to measure"),
            Self::ScaleUnknown(why) => f.write_str(why),
            Self::ListingStale => f.write_str("the list of replicas is missing or too old"),
        }
    }
}

impl Reason {
    /// The reason as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::SpareLow(_) => "spare_low",
            Self::SpareLowElsewhere(_) => "spare_low_elsewhere",
            Self::SpareLowNoRoom(_) => "spare_low_no_room",
            Self::SpareEnough(_) => "spare_enough",
            Self::SpareEnoughElsewhere(_) => "spare_enough_elsewhere",
            Self::SpareKept(_) => "spare_kept",
            Self::Steady => "steady",
            Self::Transition(_) => "transition",
            Self::NoData(_) => "no_data",
            Self::Incomplete { .. } => "incomplete_data",
            Self::Settling { .. } => "settling",
            Self::BelowMin(_) => "below_min",
            Self::AboveMax(_) => "above_max",
            Self::Stabilized { .. } => "stabilized",
            Self::StepLimited { .. } => "step_limited",
            Self::Refused(_) => "refused",
        }
    }
}

impl From<Outcome> for Reason {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::SpareLow(low) => Self::SpareLow(low),
            Outcome::SpareLowElsewhere(variant) => Self::SpareLowElsewhere(variant),
            Outcome::SpareLowNoRoom(low) => Self::SpareLowNoRoom(low),
            Outcome::SpareEnough(enough) => Self::SpareEnough(enough),
            Outcome::SpareEnoughElsewhere(variant) => Self::SpareEnoughElsewhere(variant),
            Outcome::SpareKept(kept) => Self::SpareKept(kept),
            Outcome::Transition(transition) => Self::Transition(transition),
            Outcome::Unmeasured(Unmeasured::NoFreshReplica) => Self::NoData(NoData::NoFreshReplica),
            Outcome::Unmeasured(Unmeasured::NoReplicas) => Self::NoData(NoData::NoReplicas),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpareLow(low) => write!(f, "{low}"),
            Self::SpareLowElsewhere(variant) => {
                write!(f, "spare is low and {variant} grows")
            }
            Self::SpareLowNoRoom(low) => write!(f, "{low}, but no variant can grow"),
            Self::SpareEnough(enough) => write!(f, "{enough}"),
            Self::SpareEnoughElsewhere(variant) => {
                write!(f, "spare is enough and {variant} shrinks")
            }
            Self::SpareKept(kept) => write!(f, "{kept}"),
            Self::Steady => f.write_str("neither more nor less is needed"),
            Self::Transition(transition) => write!(f, "waiting: {transition}"),
            Self::NoData(no_data) => write!(f, "holding: {no_data}"),
            Self::Incomplete { missing } => {
                write!(f, "not lowered: {missing} ready replicas have no fresh data")
            }
            Self::Settling { remaining } => write!(
                f,
                "not lowered: these replicas must be measured for another {:.0} s",
                remaining.seconds().ceil()
            ),
            Self::BelowMin(min) => write!(f, "raised to the minimum of {min}"),
            Self::AboveMax(max) => write!(f, "lowered to the maximum of {max}"),
            Self::Stabilized { window } => {
                write!(f, "held by the stabilisation window of {:.0} s", window.seconds())
            }
            Self::StepLimited { period } => {
                write!(f, "limited to what may change in {:.0} s", period.seconds())
            }
            Self::Refused(violation) => write!(f, "not published: {violation}"),
        }
    }
}
