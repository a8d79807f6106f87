//! The section about models without replicas.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::{ClientTls, Items};
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
        /// Signals that say what queues in front of models, and so wake those without replicas.
        #[schemars(with = "Option<Vec<WakeSignal>>")]
        wake: Items<WakeSignal>,
    }

    /// A signal that says what queues in front of models.
    WakeSignal {
        /// What explanations call it. Required.
        name: String,
        /// The models that it is for, as `MODEL#NAMESPACE`; without it, all that it names.
        #[schemars(with = "Option<Vec<String>>")]
        models: Items<String>,
        /// A page of metrics: an endpoint picker's, or with `metric` any.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: String,
        /// The metric on the page whose samples are added up.
        #[serde(skip_serializing_if = "Option::is_none")]
        metric: String,
        /// The labels that these samples must have.
        #[serde(skip_serializing_if = "Option::is_none")]
        labels: BTreeMap<String, Option<String>>,
        /// An expression for Prometheus whose series are added up. Needs the section `prometheus`.
        #[serde(skip_serializing_if = "Option::is_none")]
        query: String,
        /// How often it is read.
        interval: WrittenDuration,
        /// Whether its number is of requests that wait, which are then part of what has arrived and
        /// of what must be worked off. Without it, an endpoint picker's is, and no other.
        counts_requests: bool,
        /// TLS of the page; needs a URL with `https`.
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: ClientTls,
        /// File with a bearer token for the page, read again as it rotates.
        #[serde(skip_serializing_if = "Option::is_none")]
        bearer_token_file: PathBuf,
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
