//! The analyzers as sizing sees them: each learns, judges, and is remembered in the same way.

mod foresight;
mod loads;
mod queueing;
mod throughput;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::analyze::analyzers::{Analyzer, each_analyzer};
use crate::analyze::capacity::CapacityReport;
use crate::analyze::foresight::Foreseen;
use crate::analyze::foresight::admissible::Admissible;
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::estimate::Estimate;
use crate::analyze::foresight::outlier::Slowest;
use crate::analyze::foresight::starving::Starvation;
use crate::decide::sized::Unmeetable;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::pipeline::sizing::bridged::Bridges;
use crate::pipeline::sizing::queued::Fronts;
use crate::pipeline::sizing::{Moment, Sizable, Sizing};
use crate::pipeline::workloads::Workloads;

pub use crate::pipeline::sizing::analyzers::queueing::SavedTaught;

/// What an analyzer has learned of models and variants, and how it judges by that.
pub(crate) trait Learner {
    /// What it judges by.
    type Policy;
    /// What is remembered of one variant.
    type Saved: Savable;

    /// Learns from one model, and says what is found of it.
    fn judge(&mut self, scene: &mut Scene<'_>, policy: &Self::Policy) -> Judgment;

    /// Forgets what is of no use any more, and what is gone.
    fn forget(&mut self, now: Timestamp, roster: &Roster<'_>);

    /// What is remembered of one variant; `None` where nothing is known.
    fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<Self::Saved>;

    /// Goes on from what was remembered. What is known here already stays, and what cannot be is left
    /// out.
    fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &Self::Saved);
}

/// What is remembered of what an analyzer has learned.
pub(crate) trait Savable {
    /// Whether all of it can be.
    fn is_sound(&self) -> bool {
        true
    }

    /// Leaves out the observations that it was learned from.
    fn shorten(&mut self) {}
}

/// One model as an analyzer sees it.
pub(crate) struct Scene<'a> {
    pub(crate) moment: Moment<'a>,
    pub(crate) model: &'a ModelKey,
    pub(crate) members: &'a [Sizable<'a>],
    pub(crate) workloads: &'a Workloads,
    pub(crate) fronts: &'a mut Fronts,
    /// What was learned elsewhere of engines like these.
    pub(crate) cards: &'a Arc<[Arc<Card>]>,
}

/// The models and variants that there are.
pub(crate) struct Roster<'a> {
    pub(crate) models: BTreeSet<&'a ModelKey>,
    pub(crate) variants: BTreeSet<&'a VariantKey>,
}

/// What an analyzer finds of one model.
pub(crate) struct Judgment {
    pub(crate) report: CapacityReport,
    /// Why no number of replicas of a variant meets a latency target, where none does.
    pub(crate) floors: BTreeMap<VariantKey, Unmeetable>,
    pub(crate) outlook: Option<Outlook>,
}

/// The findings of `foresight` that its report has no place for.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    /// What is foreseen of each role.
    pub(crate) foreseen: BTreeMap<Role, Foreseen>,
    /// The cards that variants go by.
    pub(crate) cards: BTreeMap<VariantKey, Arc<Card>>,
    /// What one replica carries.
    pub(crate) estimates: BTreeMap<VariantKey, Estimate>,
    /// Rates that a gateway may let through.
    pub(crate) admissible: BTreeMap<VariantKey, Admissible>,
    /// The slowest replica of each variant.
    pub(crate) slowest: BTreeMap<VariantKey, Slowest>,
    /// What carries load until others serve, beside the plan.
    pub(crate) bridges: Bridges,
    /// The variants whose card takes nothing away.
    pub(crate) bound: BTreeSet<VariantKey>,
    /// The variants that starve next to idle ones.
    pub(crate) starving: BTreeMap<VariantKey, Starvation>,
}

macro_rules! analyzers {
    ($($(#[$doc:meta])* $Name:ident $word:ident,)*) => {
        /// What every analyzer has learned.
        #[derive(Clone, Debug, Default)]
        pub(crate) struct Analyzers {
            $($(#[$doc])* pub(crate) $word: $word::State,)*
        }

        /// What is remembered of what every analyzer has learned of a variant.
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
                scene: &mut Scene<'_>,
                policy: &Sizing,
            ) -> Judgment {
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
            /// Leaves out the observations that something was learned from.
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

// === impl Judgment ===

impl Judgment {
    /// A report alone.
    pub(crate) const fn of(report: CapacityReport) -> Self {
        Self { report, floors: BTreeMap::new(), outlook: None }
    }
}
