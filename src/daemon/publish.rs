//! Publishing: one value, read by every surface, so that no two of them can disagree.

pub mod api;
pub mod events;
pub mod explain;
pub mod external_metrics;
pub mod gauges;
pub mod history;
pub mod load;
pub mod quantity;
pub mod selector;
pub mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use plimsoll_core::decide::limit::LimitReport;
use plimsoll_core::decide::pools::pooled::PoolReport;
use plimsoll_core::decide::workload::WorkloadReport;
use plimsoll_core::decide::{Decision, ModelReport, Undecided, VariantReport};
use plimsoll_core::fleet::{Bounds, ModelKey, Role, VariantKey, VariantSpec};
use plimsoll_core::observe::Observation;
use plimsoll_core::units::Replicas;

/// What all surfaces show. Replaced as a whole after each tick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// Counts the ticks; never goes back.
    pub generation: u64,
    /// Every variant of the fleet, decided or not. A variant that is not here does not exist.
    pub variants: BTreeMap<VariantKey, PublishedVariant>,
    /// What the analysis found of each model and role with fresh data.
    pub models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// What was found of each pool with fresh data.
    pub pools: BTreeMap<VariantKey, PoolReport>,
    /// Which of several replicas decided; `None` where there is only one.
    pub decided_by: Option<String>,
    /// What may be used, and how much of it is; empty where nothing limits.
    pub limits: Vec<LimitReport>,
    /// What is known of each variant's workload.
    pub workloads: BTreeMap<VariantKey, WorkloadReport>,
    /// What policies beside the one in force would say, by their names.
    pub shadows: BTreeMap<String, BTreeMap<VariantKey, Shadowed>>,
}

/// What a policy that is not in force would say of one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// Its number; `None` where it has none.
    pub desired: Option<Replicas>,
    /// The step that explains it, or why there is none, as a sentence.
    pub because: String,
}

/// What all surfaces show of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedVariant {
    /// What is known of it without looking at its load.
    pub spec: VariantSpec,
    /// What was last observed.
    pub observation: Observation,
    /// What the analysis found; `None` without fresh data.
    pub report: Option<VariantReport>,
    /// The last decision with its age; `None` while nothing was ever decided.
    pub decided: Option<Decided>,
    /// Why this tick has no decision, where it has none.
    pub undecided: Option<Undecided>,
}

impl PublishedVariant {
    /// The bounds that the published number is within; without a number, those that hold.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.decided.as_ref().map_or(self.observation.bounds, |decided| decided.decision.bounds)
    }
}

/// A decision and when it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// When the data that it rests on was current, in wall-clock time: what timestamps say.
    pub at: Timestamp,
    /// The same instant on the monotonic clock ([`crate::clock::Clock::elapsed`]): what ages use.
    pub elapsed: Duration,
}
