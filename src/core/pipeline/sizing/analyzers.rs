//! The analyzers as sizing sees them: each learns, judges and is saved in the same way.

pub(crate) mod foresight;
mod loads;
pub(crate) mod queueing;
pub(crate) mod throughput;
pub(crate) mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::analyze::analyzers::{Analyzer, each_analyzer};
use crate::analyze::capacity::CapacityReport;
use crate::analyze::foresight::DemandForecast;
use crate::analyze::foresight::admissible::AdmissibleRate;
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::outlier::SlowestReplica;
use crate::analyze::foresight::starving::Starvation;
use crate::decide::sized::UnmeetableTarget;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::pipeline::sizing::bridged::Bridges;
use crate::pipeline::sizing::queued::QueueSignals;
use crate::pipeline::sizing::{Sizing, SizingInputs, VariantInput};
use crate::pipeline::workloads::Workloads;

pub use crate::pipeline::sizing::analyzers::queueing::SavedTrainedTuner;

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

    /// Restores saved state. Existing state stays, and invalid state is skipped.
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
    pub(crate) moment: SizingInputs<'a>,
    pub(crate) model: &'a ModelKey,
    pub(crate) members: &'a [VariantInput<'a>],
    pub(crate) workloads: &'a Workloads,
    pub(crate) fronts: &'a mut QueueSignals,
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
    pub(crate) bridges: Bridges,
    /// The variants whose card must not remove replicas.
    pub(crate) bound: BTreeSet<VariantKey>,
    /// The variants that starve next to idle ones.
    pub(crate) starving: BTreeMap<VariantKey, Starvation>,
}

macro_rules! analyzers {
    ($($(#[$doc:meta])* $Name:ident $word:ident,)*) => {
        /// The learned state of every analyzer.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Analyzers {
            $($(#[$doc])* pub(crate) $word: $word::State,)*
        }

        /// The saved state of every analyzer for one variant.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct SavedAnalyzers {
            $(
                $(#[$doc])*
                #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "sound")]
                pub $word: Option<$word::SavedState>,
            )*
        }

        impl Analyzers {
            pub(crate) fn judge(
                &mut self,
                analyzer: Analyzer,
                scene: &mut AnalyzerInput<'_>,
                policy: &Sizing,
            ) -> AnalyzerFindings {
                match analyzer {
                    $(Analyzer::$Name => Learner::judge(&mut self.$word, scene, &policy.$word),)*
                }
            }

            pub(crate) fn forget(&mut self, now: Timestamp, roster: &Roster<'_>) {
                $(Learner::forget(&mut self.$word, now, roster);)*
            }

            pub(crate) fn save(&self, model: &ModelKey, variant: &VariantKey) -> SavedAnalyzers {
                SavedAnalyzers { $($word: Learner::save(&self.$word, model, variant),)* }
            }

            pub(crate) fn recall(
                &mut self,
                model: &ModelKey,
                variant: &VariantKey,
                saved: &SavedAnalyzers,
            ) {
                $(if let Some(saved) = &saved.$word {
                    Learner::recall(&mut self.$word, model, variant, saved);
                })*
            }
        }

        impl SavedAnalyzers {
            /// Drops the observations that the state was learned from.
            pub(crate) fn shorten(&mut self) {
                $(self.$word.iter_mut().for_each(Savable::shorten);)*
            }
        }
    };
}
each_analyzer!(analyzers);

fn sound<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Savable,
    D: Deserializer<'de>,
{
    let saved = Option::<T>::deserialize(deserializer)?;

    if saved.as_ref().is_none_or(T::is_sound) {
        Ok(saved)
    } else {
        Err(D::Error::custom("an analyzer has learned what cannot be"))
    }
}

// === impl AnalyzerFindings ===

impl AnalyzerFindings {
    /// A judgment that consists of a report only.
    pub(crate) const fn of(report: CapacityReport) -> Self {
        Self { report, floors: BTreeMap::new(), outlook: None }
    }
}
