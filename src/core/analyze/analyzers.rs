//! The list of analyzers that can size a model, one row per analyzer.
//!
//! To add an analyzer:
//!
//! - write a module in `analyze` that estimates capacity per replica,
//! - write a module of the same name below `pipeline::sizing::analyzers` that passes it the observed
//!   data,
//! - add a row.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings;

/// Passes each analyzer's name, word and policy to a macro. The word is the analyzer's label, its
/// name in the configuration and in saved memory, the field of its policy, and its module, which
/// exports the policy. Ties go to the first row.
macro_rules! each_analyzer {
    ($make:ident) => {
        $make! {
            /// Tokens in the KV cache.
            Tokens tokens TokenPolicy,
            /// Tokens generated a second.
            Throughput throughput ThroughputPolicy,
            /// Latency at a rate of requests.
            Queueing queueing QueueingPolicy,
            /// Requests that will arrive.
            Foresight foresight ForesightPolicy,
        }
    };
}
pub(crate) use each_analyzer;

macro_rules! analyzer {
    ($($(#[$doc:meta])* $Name:ident $word:ident $Policy:ident,)*) => {
        /// An analyzer that may vote. Ties go to the first.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Analyzer {
            $($(#[$doc])* $Name,)*
        }

        impl Analyzer {
            /// All of them, in the order of their rows.
            pub const ALL: &[Self] = &[$(Self::$Name),*];

            /// The analyzer as a label value.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$Name => stringify!($word),)*
                }
            }
        }
    };
}
each_analyzer!(analyzer);

settings! { plain: Analyzer; }

impl fmt::Display for Analyzer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_analyzer_is_written_as_it_is_labelled() {
        for analyzer in Analyzer::ALL {
            assert_eq!(serde_json::to_value(analyzer).unwrap(), analyzer.label());
        }
    }
}
