//! An analyzer as sizing sees it: its inputs, its findings, and its learned state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::capacity::CapacityReport;
use crate::analyze::foresight::DemandForecast;
use crate::analyze::foresight::admissible::AdmissibleRate;
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::outlier::SlowestReplica;
use crate::analyze::foresight::standby::Bridge;
use crate::analyze::foresight::starving::Starvation;
use crate::decide::sized::UnmeetableTarget;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::pipeline::sizing::input::VariantInput;
use crate::pipeline::sizing::queued::QueueSignals;
use crate::pipeline::tick::Tick;
use crate::pipeline::workloads::Workloads;

/// The learned state of an analyzer, and its judgment based on that state.
pub(crate) trait Learner {
    /// The policy of its judgment.
    type Policy;
    /// The saved state of one variant.
    type Saved: Savable;

    /// Learns from one model and returns the judgment on it.
    fn judge(&mut self, scene: &mut AnalyzerInput<'_>, policy: &Self::Policy) -> AnalyzerFindings;

    /// Forgets state that is of no further use, and models or variants that are gone.
    fn forget(&mut self, now: Timestamp, roster: &Roster<'_>);

    /// The state to save for one variant; `None` if nothing is known.
    fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<Self::Saved>;

    /// Restores saved state. Existing state stays unless it is shorter experience, and invalid state
    /// is skipped.
    fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &Self::Saved);
}

/// Saved state of an analyzer.
pub(crate) trait Savable {
    /// Returns true if all values are possible.
    fn is_sound(&self) -> bool {
        true
    }

    /// Drops the observations that the state was learned from.
    fn shorten(&mut self) {}
}

/// One model as an analyzer sees it.
pub(crate) struct AnalyzerInput<'a> {
    pub(crate) tick: &'a Tick<'a>,
    pub(crate) model: &'a ModelKey,
    pub(crate) members: &'a [VariantInput<'a>],
    pub(crate) workloads: &'a Workloads,
    /// The queues in front of the model.
    pub(crate) queues: &'a mut QueueSignals,
    /// Capacity cards: coefficients learned elsewhere from engines like these.
    pub(crate) cards: &'a Arc<[Arc<Card>]>,
}

/// The existing models and variants.
pub(crate) struct Roster<'a> {
    pub(crate) models: BTreeSet<&'a ModelKey>,
    pub(crate) variants: BTreeSet<&'a VariantKey>,
}

/// An analyzer's findings on one model.
pub(crate) struct AnalyzerFindings {
    pub(crate) report: CapacityReport,
    /// The variants for which no replica count meets a latency target, with the reason.
    pub(crate) floors: BTreeMap<VariantKey, UnmeetableTarget>,
    pub(crate) outlook: Option<ForesightFindings>,
}

/// The findings of `foresight` that its report has no fields for.
#[derive(Debug, Default)]
pub(crate) struct ForesightFindings {
    /// The forecast of each role.
    pub(crate) foreseen: BTreeMap<Role, DemandForecast>,
    /// The capacity card that each variant uses.
    pub(crate) cards: BTreeMap<VariantKey, Arc<Card>>,
    /// The estimated capacity per replica.
    pub(crate) estimates: BTreeMap<VariantKey, CapacityEstimate>,
    /// Rates that a gateway may admit.
    pub(crate) admissible: BTreeMap<VariantKey, AdmissibleRate>,
    /// The slowest replica of each variant.
    pub(crate) slowest: BTreeMap<VariantKey, SlowestReplica>,
    /// Bridging replicas, which serve in addition to the plan until others are ready.
    pub(crate) bridges: BTreeMap<VariantKey, Bridge>,
    /// The variants whose card must not remove replicas.
    pub(crate) bound: BTreeSet<VariantKey>,
    /// The variants that starve next to idle ones.
    pub(crate) starving: BTreeMap<VariantKey, Starvation>,
}

// === impl AnalyzerFindings ===

impl AnalyzerFindings {
    /// A judgment that consists of a report only.
    pub(crate) const fn of(report: CapacityReport) -> Self {
        Self { report, floors: BTreeMap::new(), outlook: None }
    }
}
