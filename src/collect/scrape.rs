//! Scraping: one page a target a interval, turned into [`crate::observe::Scrape`].

use std::path::PathBuf;
use std::time::Duration;

use crate::fleet::ReplicaKey;

/// How the targets of one variant are scraped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two scrapes of one target.
    pub interval: Duration,
    /// Time after which a scrape is given up; not longer than the interval.
    pub timeout: Duration,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS and credentials.
    pub client: Client,
}

/// TLS and credentials of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// PEM bundle of the authorities that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM certificate chain and key that we present.
    pub identity: Option<Identity>,
    /// Skips the check of the server's certificate.
    pub insecure_skip_verify: bool,
    /// File with a bearer token, read again as it rotates.
    pub bearer_token_file: Option<PathBuf>,
}

/// A client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM certificate chain.
    pub cert_file: PathBuf,
    /// PEM key.
    pub key_file: PathBuf,
}

/// One thing to scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The replica that it is.
    pub replica: ReplicaKey,
    /// Where its page is: scheme, host, port and path.
    pub url: String,
    /// How it is scraped.
    pub settings: std::sync::Arc<Settings>,
}
