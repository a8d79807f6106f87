//! The settings of a scrape, and the TLS files and credentials of its client.

use std::path::PathBuf;
use std::time::Duration;

/// The scrape settings for the targets of one variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeSettings {
    /// Time between two scrapes of one target.
    pub interval: Duration,
    /// Time after which a scrape is abandoned; not longer than the interval.
    pub timeout: Duration,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS and credentials.
    pub client: ClientSettings,
}

/// TLS and credentials of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientSettings {
    /// PEM bundle of the authorities that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM certificate chain and key that Plimsoll presents.
    pub identity: Option<ClientIdentity>,
    /// Disables verification of the server's certificate.
    pub insecure_skip_verify: bool,
    /// File with a bearer token, read again as it rotates.
    pub bearer_token_file: Option<PathBuf>,
}

/// A client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientIdentity {
    /// PEM certificate chain.
    pub cert_file: PathBuf,
    /// PEM key.
    pub key_file: PathBuf,
}
