//! Targets that are listed outside Kubernetes: static, in files, in DNS.

use std::path::PathBuf;
use std::time::Duration;

/// Where the targets of one variant are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// These addresses, `HOST:PORT` each.
    Static(Vec<String>),
    /// Files in the format of Prometheus' `file_sd_configs` (JSON or YAML).
    File {
        /// The files.
        paths: Vec<PathBuf>,
        /// How often they are read again.
        refresh: Duration,
    },
    /// Names in DNS.
    Dns {
        /// The names.
        names: Vec<String>,
        /// What is asked for.
        record: Record,
        /// The port; `None` only for SRV records, which carry it.
        port: Option<u16>,
        /// How often the names are looked up again.
        refresh: Duration,
    },
}

/// A type of DNS record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Hosts and ports.
    Srv,
}

/// How an address becomes the URL of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Port for addresses that have none.
    pub port: u16,
    /// Path of the page, such as `/metrics`.
    pub path: String,
}

/// The scheme of a page's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}
