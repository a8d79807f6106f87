//! The section about models without replicas.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::written::WrittenDuration;

sections! {
    /// Which models may have no replicas, and when.
    ScaleToZero {
        /// Whether models may have no replicas.
        enabled: bool,
        /// How long a model must be proved to be idle.
        after: WrittenDuration,
        /// For how long a variant that was woken stays in any case.
        awake_for: WrittenDuration,
        /// Rules of single models, by `MODEL#NAMESPACE`; what is absent there comes from here.
        overrides: BTreeMap<String, Option<ZeroRule>>,
    }

    /// Whether and when one model may have no replicas.
    ZeroRule {
        /// Whether it may.
        enabled: bool,
        /// How long it must be proved to be idle.
        after: WrittenDuration,
        /// For how long a variant that was woken stays in any case.
        awake_for: WrittenDuration,
    }
}
