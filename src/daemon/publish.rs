//! Publishing: every surface reads the same [`Published`] value, so no two surfaces can disagree.

pub mod api;
pub mod attention;
pub mod balance;
pub mod events;
pub mod explain;
pub mod explanation;
pub mod external_metrics;
pub mod external_scaler;
#[cfg(test)]
mod fixtures;
pub mod gauges;
pub mod history;
pub mod load;
pub mod quantity;
pub mod state;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use plimsoll_core::decide::limit::LimitReport;
use plimsoll_core::decide::outlook::VariantOutlook;
use plimsoll_core::decide::pools::pooled::PoolReport;
use plimsoll_core::decide::workload::WorkloadReport;
use plimsoll_core::decide::{Decision, ModelReport, NoDecision, VariantReport};
pub use plimsoll_core::fleet::selector;
use plimsoll_core::fleet::{Bounds, Fleet, ModelKey, Role, VariantKey, VariantSpec};
use plimsoll_core::observe::Observation;
use plimsoll_core::pipeline::Decisions;
use plimsoll_core::units::Replicas;

/// The state that all surfaces show. Each tick replaces the whole value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// The number of ticks so far; never decreases.
    pub generation: u64,
    /// Every variant of the fleet, with or without a decision. A variant missing from this map does
    /// not exist.
    pub variants: BTreeMap<VariantKey, PublishedVariant>,
    /// Analysis results of each model and role with fresh data.
    pub models: BTreeMap<(ModelKey, Role), ModelReport>,
    /// Analysis results of each pool with fresh data.
    pub pools: BTreeMap<VariantKey, PoolReport>,
    /// The daemon replica that decided; `None` if the daemon runs as a single replica.
    pub decided_by: Option<String>,
    /// Each GPU limit or budget with its current use; empty if none is configured.
    pub limits: Vec<LimitReport>,
    /// Workload facts of each variant: the GPUs per replica and the engine configuration.
    pub workloads: BTreeMap<VariantKey, WorkloadReport>,
    /// The capacity and the late first tokens of each variant that `foresight` votes on.
    pub outlooks: BTreeMap<VariantKey, VariantOutlook>,
    /// Results of the shadow policies, by policy name.
    pub shadows: BTreeMap<String, BTreeMap<VariantKey, ShadowResult>>,
    /// Problems of each variant's HPA or `ScaledObject` that keep its desired replicas from being
    /// followed, as sentences.
    pub findings: BTreeMap<VariantKey, Vec<String>>,
}

// === impl Published ===

impl Published {
    /// The state after a tick of this fleet. `dated` gives each decision the time of its data.
    pub(crate) fn of(
        generation: u64,
        fleet: &Fleet,
        mut found: Decisions,
        mut dated: impl FnMut(&VariantKey, Decision) -> PublishedDecision,
    ) -> Self {
        let taken = std::mem::take(&mut found.decisions).into_iter();
        let mut decisions: BTreeMap<VariantKey, Decision> =
            taken.map(|decision| (decision.variant.clone(), decision)).collect();

        let published = fleet.variants().map(|spec| {
            let key = &spec.key;
            let decided = decisions.remove(key).map(|decision| dated(key, decision));
            let observed = found.observations.remove(key);
            let variant = PublishedVariant {
                spec: spec.clone(),
                observation: observed.unwrap_or_else(|| Observation::of_nothing(spec.bounds)),
                report: found.variants.remove(key),
                decided,
                undecided: found.undecided.remove(key),
            };

            (key.clone(), variant)
        });

        let variants = published.collect();
        let Decisions { models, pools, limits, workloads, outlooks, .. } = found;
        let decided_by = None;
        let shadows = BTreeMap::new();
        let findings = BTreeMap::new();
        Self {
            generation,
            variants,
            models,
            pools,
            decided_by,
            limits,
            workloads,
            outlooks,
            shadows,
            findings,
        }
    }
}

/// The result of a shadow policy for one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowResult {
    /// Desired replicas; `None` if the policy has no recommendation.
    pub desired: Option<Replicas>,
    /// The decision step that explains it, or the reason why it is missing, as a sentence.
    pub because: String,
}

/// The state of one variant that all surfaces show.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedVariant {
    /// The facts about the variant that do not depend on its load.
    pub spec: VariantSpec,
    /// The last observation.
    pub observation: Observation,
    /// The analysis results; `None` without fresh data.
    pub report: Option<VariantReport>,
    /// The last decision with its age; `None` before the first decision.
    pub decided: Option<PublishedDecision>,
    /// The reason why this tick has no decision; `None` if it has one.
    pub undecided: Option<NoDecision>,
}

impl PublishedVariant {
    /// The bounds that the published desired replicas are within; before the first decision, the
    /// observed bounds.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.decided.as_ref().map_or(self.observation.bounds, |decided| decided.decision.bounds)
    }
}

/// A decision and the time of the data behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedDecision {
    /// The decision.
    pub decision: Decision,
    /// The time when the underlying data was current, on the wall clock. Timestamps use it.
    pub at: Timestamp,
    /// The same instant on the monotonic clock ([`crate::clock::Clock::elapsed`]). Ages use it.
    pub elapsed: Duration,
}
