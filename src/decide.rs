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
pub mod sized;
pub mod unheard;
pub mod workload;
pub mod zero;

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::standby::Bridge;
use crate::analyze::saturation::{Outcome, Thresholds, Transition};
use crate::decide::enforce::Restraint;
use crate::decide::limited::Limited;
use crate::decide::pools::pooled::Pooled;
use crate::decide::sized::{Shortfall, Sized, Unmeetable};
use crate::decide::unheard::Unheard;
use crate::decide::zero::Move;
use crate::fleet::{Bounds, ModelKey, VariantKey, VariantName};
use crate::units::{Fraction, Replicas, Requests, Seconds};

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
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Analyze,
        Self::Share,
        Self::Bridge,
        Self::Pool,
        Self::Hold,
        Self::Guard,
        Self::Stabilize,
        Self::Dwell,
        Self::FlapBudget,
        Self::Panic,
        Self::StepLimit,
        Self::Zero,
        Self::Bounds,
        Self::Limit,
        Self::Check,
    ];

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

/// Why a stage did what it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// What the load asks for.
    Load(Outcome),
    /// What analyzers say that the load takes, at the least cost.
    Sized(Sized),
    /// It is standby and carries load until others serve.
    Bridged(Bridge),
    /// What the adapters of a pool need.
    Pool(Box<Pooled>),
    /// There is no fresh data, so the last number stays.
    NoData(NoData),
    /// The number is not lowered, because some replicas have not been heard.
    Incomplete {
        /// Ready replicas without fresh data.
        missing: Replicas,
    },
    /// The number is not lowered, because nobody says how many requests are in front of the model.
    Unheard {
        /// What would say it.
        signal: String,
        /// Why it does not.
        why: Unheard,
    },
    /// The number is not lowered, because a variant of the model has not been listed, and may
    /// carry any load.
    Unlisted {
        /// The variant.
        variant: VariantName,
    },
    /// The number is not lowered, because the list of replicas is old.
    Outdated {
        /// Age of the list.
        age: Seconds,
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
    /// No number of replicas meets a latency target, so it asks for none.
    SloUnmeetable(Unmeetable),
    /// A rule holds the number back, or lets it go.
    Restrained(Restraint),
    /// The number may not move further in this period.
    StepLimited {
        /// Length of the period.
        period: Seconds,
    },
    /// The model goes to zero, comes back, or stays.
    Zero(Move),
    /// A limit on what may be used cuts it.
    Limited(Limited),
    /// The set of decisions broke an invariant, so the last good number stays.
    Refused(check::Violation),
    /// Another replica decided it, and this is what it said.
    Told(Told),
}

/// A reason that another replica gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    label: String,
    text: String,
}

/// Why there is nothing to decide on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoData {
    /// No replica of the variant has fresh data.
    NoFreshReplica,
    /// The scale target is unknown; says why.
    ScaleUnknown(String),
    /// The replicas have not been listed yet.
    NotListed,
    /// Some of the listed targets have not been tried yet.
    NotTried,
    /// The daemon has restarted, and has no data yet.
    Restored,
    /// The replicas of this daemon have not shared a decision about it.
    NotShared,
    /// The decisions of this tick broke an invariant, and no number was in force before.
    Refused,
    /// The scale target was brought back from zero, and its replicas are starting.
    BroughtBack,
}

impl fmt::Display for NoData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFreshReplica => f.write_str("no replica has fresh data"),
            Self::ScaleUnknown(why) => f.write_str(why),
            Self::NotListed => f.write_str("the replicas have not been listed yet"),
            Self::NotTried => f.write_str("not every listed target has been tried yet"),
            Self::NotShared => f.write_str("no decision about it is shared by the replicas yet"),
            Self::Refused => f.write_str("the decisions break an invariant and are not published"),
            Self::Restored => f.write_str("restored after a restart, without data yet"),
            Self::BroughtBack => f.write_str("brought back from zero, without data yet"),
        }
    }
}

impl Told {
    /// A reason with this label and text. A label that only another release knows is `told`.
    #[must_use]
    pub fn new(label: &str, text: String) -> Self {
        Self { label: label.to_owned(), text }
    }

    fn label(&self) -> &'static str {
        Reason::LABELS.into_iter().find(|known| *known == self.label).unwrap_or("told")
    }
}

impl From<Outcome> for Reason {
    fn from(outcome: Outcome) -> Self {
        Self::Load(outcome)
    }
}

impl Reason {
    /// The label values of all reasons.
    pub const LABELS: [&'static str; 51] = [
        "spare_low",
        "spare_low_elsewhere",
        "spare_low_no_room",
        "spare_enough",
        "spare_enough_elsewhere",
        "spare_kept",
        "transition",
        "unmeasured",
        "capacity_kept",
        "capacity_added",
        "capacity_tried",
        "capacity_removed",
        "capacity_replaced",
        "capacity_serving",
        "capacity_refused",
        "capacity_unknown",
        "bridged",
        "pool_unsure",
        "pool_idle",
        "pool_copies",
        "pool_slots",
        "pool_load",
        "pool_waiting",
        "pool_emptied",
        "pool_packed",
        "pool_kept",
        "no_data",
        "incomplete_data",
        "signal_silent",
        "not_listed",
        "outdated_listing",
        "settling",
        "below_min",
        "above_max",
        "slo_unmeetable",
        "stabilized",
        "left_to_hpa",
        "dwelling",
        "flap_budget_spent",
        "burst",
        "step_limited",
        "idle",
        "idle_unproved",
        "paired",
        "woken",
        "kept_awake",
        "limited",
        "limited_elsewhere",
        "limit_unread",
        "refused",
        "told",
    ];

    /// The reason as a label value.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Load(outcome) => outcome.label(),
            Self::Sized(sized) => sized.label(),
            Self::Bridged(_) => "bridged",
            Self::Pool(pooled) => pooled.label(),
            Self::NoData(_) => "no_data",
            Self::Incomplete { .. } => "incomplete_data",
            Self::Unheard { .. } => "signal_silent",
            Self::Unlisted { .. } => "not_listed",
            Self::Outdated { .. } => "outdated_listing",
            Self::Settling { .. } => "settling",
            Self::BelowMin(_) => "below_min",
            Self::AboveMax(_) => "above_max",
            Self::Stabilized { .. } => "stabilized",
            Self::SloUnmeetable(_) => "slo_unmeetable",
            Self::Restrained(restraint) => restraint.label(),
            Self::StepLimited { .. } => "step_limited",
            Self::Zero(moved) => moved.label(),
            Self::Limited(limited) => limited.label(),
            Self::Refused(_) => "refused",
            Self::Told(told) => told.label(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(outcome) => write!(f, "{outcome}"),
            Self::Sized(sized) => write!(f, "{sized}"),
            Self::Bridged(bridge) => write!(f, "{bridge}"),
            Self::Pool(pooled) => write!(f, "{pooled}"),
            Self::NoData(no_data) => write!(f, "holding: {no_data}"),
            Self::Incomplete { missing } => {
                let (replicas, have) = if *missing == Replicas::ONE {
                    ("replica", "has")
                } else {
                    ("replicas", "have")
                };
                write!(f, "not lowered: {missing} ready {replicas} {have} no fresh data")
            }
            Self::Unheard { signal, why } => {
                write!(f, "not lowered: {signal}, which counts requests that no replica has, {why}")
            }
            Self::Unlisted { variant } => {
                write!(f, "not lowered: the replicas of {variant} have not been listed yet")
            }
            Self::Outdated { age } => {
                write!(f, "not lowered: the list of replicas is {:.0} s old", age.seconds())
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
            Self::SloUnmeetable(why) => write!(f, "{why}, so this target has no say"),
            Self::Restrained(restraint) => write!(f, "{restraint}"),
            Self::StepLimited { period } => {
                write!(f, "limited to what may change in {:.0} s", period.seconds())
            }
            Self::Zero(moved) => write!(f, "{moved}"),
            Self::Limited(limited) => write!(f, "{limited}"),
            Self::Refused(violation) => write!(f, "not published: {violation}"),
            Self::Told(told) => f.write_str(&told.text),
        }
    }
}
