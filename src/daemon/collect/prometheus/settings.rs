//! The settings for queries to a Prometheus.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::collect::prometheus::selection::LabelNames;
use crate::collect::scrape::ClientSettings;
use plimsoll_core::settings;
use plimsoll_core::settings::text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings for queries to a Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// The base URL of its API, without a trailing slash.
    pub url: String,
    /// How queries are sent.
    pub method: Method,
    /// Time between two rounds of queries.
    pub interval: Duration,
    /// Time after which a query is abandoned.
    pub timeout: Duration,
    /// The longest range of a query, and the time for which an instance without samples still
    /// counts as existing.
    pub lookback: Duration,
    /// Age from which data is too old to act on. It belongs to the pipeline and is used here to
    /// check scrape intervals.
    pub stale_after: Duration,
    /// The maximum number of series in one answer.
    pub series_limit: usize,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS, and the file with a bearer token.
    pub client: ClientSettings,
    /// A user and the file with the password.
    pub basic_auth: Option<BasicAuth>,
    /// Headers of every query.
    pub headers: BTreeMap<String, Secret>,
    /// Headers of every query whose values are in files, read again for each.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Parameters of every query.
    pub parameters: BTreeMap<String, String>,
    /// The labels that all series of replicas must have.
    pub matched: BTreeMap<String, String>,
    /// The labels by which replicas are found.
    pub labels: LabelNames,
}

/// How queries are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// In the body of a POST, or by GET where the server refuses that.
    Post,
    /// In the URL.
    Get,
}

settings! { plain: Method; }

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

settings! {
    /// A user and the file with the password.
    #[derive(Eq)]
    pub struct BasicAuth {
        /// The user.
        username: String, in text(is_user, "must be a username without `:`"),
            required "is missing";

        /// The file with the password, read again for each query.
        password_file: PathBuf, required "is missing";
    }
}

fn is_user(text: &str) -> bool {
    !text.is_empty() && !text.contains(':')
}

#[cfg(test)]
impl PrometheusSettings {
    /// Settings for a server that nothing connects to.
    pub(crate) fn unused() -> Self {
        Self {
            url: "http://prometheus:9090".into(),
            method: Method::Post,
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            lookback: Duration::from_mins(5),
            stale_after: Duration::from_mins(1),
            series_limit: 1,
            body_limit: 1,
            client: ClientSettings::default(),
            basic_auth: None,
            headers: BTreeMap::new(),
            header_files: BTreeMap::new(),
            parameters: BTreeMap::new(),
            matched: BTreeMap::new(),
            labels: LabelNames::default(),
        }
    }
}

// === impl Secret ===

impl Secret {
    /// Hides a text.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, for sending it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
