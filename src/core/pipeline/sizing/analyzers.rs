//! The analyzers as sizing sees them: each learns, judges and is saved in the same way.

pub(crate) mod foresight;
mod loads;
pub(crate) mod queueing;
pub(crate) mod throughput;
pub(crate) mod tokens;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::analyze::analyzers::{Analyzer, each_analyzer};
use crate::fleet::{ModelKey, VariantKey};
use crate::pipeline::sizing::learner::{AnalyzerFindings, AnalyzerInput, Learner, Roster, Savable};
use crate::pipeline::sizing::policy::Sizing;

pub use crate::pipeline::sizing::analyzers::queueing::SavedTrainedTuner;

macro_rules! analyzers {
    ($($(#[$doc:meta])* $Name:ident $word:ident $Policy:ident,)*) => {
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
        Err(D::Error::custom("an analyzer has invalid learned values"))
    }
}
