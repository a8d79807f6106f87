//! The section about models without replicas.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::file::scrape::ClientTlsKeys;
use plimsoll_core::fleet::names::{DNS_LABEL, is_dns_label};
use plimsoll_core::settings;
use plimsoll_core::settings::{Written, hours, millis, minutes, secs};
use plimsoll_core::units::Seconds;

/// A signal is unknown after three of the longest intervals without an answer.
pub const WAKE_INTERVALS: RangeInclusive<Duration> = millis(200)..=secs(10);

/// Declares sections that each have the keys of a model's rule, and more.
macro_rules! with_rule {
    ($($(#[$($meta:tt)*])* pub struct $name:ident { $($more:tt)* })*) => {
        settings! {$(
            $(#[$($meta)*])*
            pub struct $name {
                /// Lets models have no replicas.
                enabled: bool = false;

                /// Time for which a model must be proved to be idle.
                // Longer than most breaks of people, and far shorter than a night. Scaling to zero
                // is not worthwhile after less than ten seconds of idle time, and always is after a
                // week.
                after: Seconds = minutes(15), in secs(10)..=hours(168);

                /// Shortest time for which a woken variant stays.
                // Long enough for the retry of a client that gave up while the replica started.
                awake_for: Seconds = minutes(5), in Duration::ZERO..=hours(24);

                $($more)*
            }
        )*}
    };
}

with_rule! {
    /// Models that may have no replicas, and when.
    pub struct ScaleToZeroKeys {
        /// Rules of single models, by `MODEL#NAMESPACE`; absent keys come from here.
        overrides: BTreeMap<String, Option<Written<ZeroKeys>>>;

        /// Signals of requests that queue in front of models, which wake those without replicas.
        wake: Option<Vec<WakeSignalKeys>>;
    }

    /// The rule of one model.
    #[derive(Copy)]
    pub struct ZeroKeys {}
}

settings! {
    /// A signal of requests that queue in front of models.
    pub struct WakeSignalKeys {
        /// Its name in explanations.
        name: String,
            in settings::text(is_name, "must be a short name of printable characters that does not start with pools["),
            required "is missing: explanations call the signal by it";

        /// The models that it is for, as `MODEL#NAMESPACE`. A picker needs none, and is then for
        /// all.
        models: Option<Vec<String>>;

        /// The namespaces of its models; without it, all. A page of an endpoint picker has no
        /// namespace, so without this key and `models`, it is for all models of a name.
        namespaces: Option<Vec<String>>, in settings::text(is_dns_label, DNS_LABEL);

        /// A `/metrics` URL: that of an endpoint picker, or with `metric` any.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String>;

        /// The metric at the URL whose samples are added up.
        #[serde(skip_serializing_if = "Option::is_none")]
        metric: Option<String>;

        /// The labels that these samples must have.
        #[serde(skip_serializing_if = "Option::is_none")]
        labels: Option<BTreeMap<String, Option<String>>>;

        /// An expression for Prometheus whose series are added up. Needs the section `prometheus`.
        #[serde(skip_serializing_if = "Option::is_none")]
        query: Option<String>;

        /// Time between two readings: 1s without it, or 5s for a query.
        interval: Option<Duration>, in WAKE_INTERVALS;

        /// Set if its value counts waiting requests, which are then part of the arrived load and of
        /// the backlog. Without it, only that of an endpoint picker does.
        counts_requests: Option<bool>;

        /// Set if its value is a counter of requests that the gateway has rejected. They are then
        /// part of the arrived load. Such a signal wakes no model.
        counts_rejected: bool = false;

        /// TLS of the URL; needs `https`.
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: Option<ClientTlsKeys>;

        /// File with a bearer token for the URL, read again as it rotates.
        #[serde(skip_serializing_if = "Option::is_none")]
        bearer_token_file: Option<PathBuf>;
    }
}

fn is_name(text: &str) -> bool {
    // Gateways of pools have the paths of their keys as names.
    let is_free = !text.starts_with("pools[");
    is_free
        && (1..=63).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}
