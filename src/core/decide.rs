//! Decisions: the vocabulary of an answer.
//!
//! A [`Decision`] is a number of replicas for one variant together with the chain of [`Step`]s
//! that made it. Each stage that changes the number, or that had a reason to and did not, appends
//! one step; the last step's `after` is the answer. So every published number can say where it
//! comes from, and the explanation cannot drift from the arithmetic.

pub mod check;
pub mod enforce;
pub mod limit;
pub mod limited;
pub mod optimize;
pub mod pools;
pub mod rank;
pub mod reason;
pub mod sized;
pub mod unheard;
pub mod workload;
pub mod zero;

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::{Outcome, Thresholds, Transition};
use crate::decide::sized::{Admissible, Shortfall, Sized, Slowest};
use crate::fleet::{Bounds, ModelKey, VariantKey};
use crate::units::{Fraction, Replicas, Requests};

pub use crate::decide::reason::{NoData, Reason, ReasonCode, Told};

/// How many replicas one variant should have, and why.
#[must_use]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// Why a variant has no decision at all: nothing is in force, and there is nothing to decide on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided(pub NoData);

/// What the analysis found of one model's variants of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReport {
    /// The thresholds and triggers that held for the model.
    pub thresholds: Thresholds,
    /// Mean spare KV cache of the replicas that are not saturated.
    pub spare_kv: Fraction,
    /// Mean spare queue of the replicas that are not saturated.
    pub spare_queue: Requests,
    /// How much spare KV cache is missing to the trigger.
    pub required_kv: Fraction,
    /// How much spare queue is missing to the trigger.
    pub required_queue: Requests,
    /// What the model waits for, if it does.
    pub transition: Option<Transition>,
}

/// What the analysis found of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantReport {
    /// How near its replicas are to being saturated; 1 is the threshold. The mean over its
    /// replicas of the larger of KV usage and queue, each as a share of its threshold.
    pub saturation: Fraction,
    /// Replicas that are saturated.
    pub saturated: Replicas,
}

/// Whether a number was decided on fresh data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

    /// What the analysis alone asks for, before bounds, windows and step limits; with what standby
    /// carries until others serve.
    #[must_use]
    pub fn unconstrained(&self) -> Replicas {
        let last = |is: fn(Stage) -> bool| self.steps.iter().rev().find(|step| is(step.stage));
        let asked = last(|stage| matches!(stage, Stage::Analyze | Stage::Hold));
        let bridged = last(|stage| stage == Stage::Bridge);
        let number = asked.into_iter().chain(bridged).map(|step| step.after).max();
        number.unwrap_or_else(|| self.desired())
    }

    /// The number that the stabilisation windows remember: what the analysis asks for, after the
    /// guard.
    #[must_use]
    pub fn recommended(&self) -> Replicas {
        self.steps
            .iter()
            .rev()
            .find(|step| step.stage <= Stage::Guard)
            .map_or_else(|| self.desired(), |step| step.after)
    }

    /// The rate of requests that the serving replicas can take in time; `None` if it is unknown.
    #[must_use]
    pub fn admissible(&self) -> Option<Admissible> {
        self.steps.iter().find_map(|step| match &step.reason {
            Reason::Sized(sized) => sized.admissible.as_deref().copied(),
            _ => None,
        })
    }

    /// The slowest of its replicas; `None` while too few can be compared.
    #[must_use]
    pub fn slowest(&self) -> Option<&Slowest> {
        self.steps.iter().find_map(|step| match &step.reason {
            Reason::Sized(sized) => sized.slowest.as_deref(),
            _ => None,
        })
    }

    /// Whether it is not lowered only because its replicas have not been measured long enough.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.reason, Reason::Settling { .. }))
    }

    /// The maximum and why the load asks for more than it, if it does.
    #[must_use]
    pub fn beyond_max(&self) -> Option<(Replicas, &Reason)> {
        let max = self.bounds.max()?;
        let asks_more = |step: &&Step| match &step.reason {
            Reason::AboveMax(_) => true,
            Reason::Load(Outcome::SpareLowNoRoom(_))
            | Reason::Sized(Sized { short: Shortfall::Some, .. }) => {
                !self.bounds.allow_up(self.desired())
            }
            _ => false,
        };
        let fresh = self.basis == Basis::Fresh;
        let step = self.steps.iter().find(asks_more).filter(|_| fresh)?;
        Some((max, &step.reason))
    }

    /// The step that explains the answer best: the last that changed the number, else the last.
    #[must_use]
    pub fn because(&self) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.before != step.after).or(self.steps.last())
    }
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The analysis of the model's load.
    Analyze,
    /// Planning again with what the limits leave for the model.
    Share,
    /// What standby carries until others serve.
    Bridge,
    /// What the adapters of a pool need beside its load.
    Pool,
    /// Keeping the last number, because there is nothing to decide on.
    Hold,
    /// Refusing to go down on incomplete data.
    Guard,
    /// Stabilisation windows.
    Stabilize,
    /// The time that a number stays before it moves the other way.
    Dwell,
    /// How often a number may turn in an hour.
    FlapBudget,
    /// What a burst of demand overrides.
    Panic,
    /// Limits on how far the number may move in a period.
    StepLimit,
    /// To zero and back.
    Zero,
    /// Minimum and maximum.
    Bounds,
    /// What may be used: inventories, quotas and budgets.
    Limit,
    /// The final check of the invariants.
    Check,
}

impl Stage {
    /// The stage as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Analyze => "analyze",
            Self::Pool => "pool",
            Self::Hold => "hold",
            Self::Share => "share",
            Self::Bridge => "bridge",
            Self::Limit => "limit",
            Self::Guard => "guard",
            Self::Bounds => "bounds",
            Self::Stabilize => "stabilize",
            Self::Dwell => "dwell",
            Self::FlapBudget => "flap_budget",
            Self::Panic => "panic",
            Self::StepLimit => "step_limit",
            Self::Zero => "zero",
            Self::Check => "check",
        }
    }
}
