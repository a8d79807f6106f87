//! The sources of target lists, and the reasons why a source has no list.

use std::path::PathBuf;
use std::time::Duration;

use crate::collect::file::FileError;
use crate::collect::targets::address::{Address, AddressError};
use plimsoll_core::settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The source of one variant's target list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSource {
    /// These addresses, `HOST:PORT` each.
    Static(Vec<String>),
    /// Files in the format of Prometheus' `file_sd_configs` (JSON or YAML).
    File {
        /// The files.
        paths: Vec<PathBuf>,
        /// Interval at which they are read.
        refresh: Duration,
    },
    /// Names in DNS.
    Dns {
        /// The names.
        names: Vec<String>,
        /// The record type to look up.
        record: Record,
        /// The port; `None` only for SRV records, which contain it.
        port: Option<u16>,
        /// Interval at which the names are looked up.
        refresh: Duration,
    },
}

/// A type of DNS record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Record {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Hosts and ports.
    Srv,
}

settings! { plain: Record; }

/// The reason why a source has no list.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not a list of groups of targets.
    #[error("{} is not a list of targets: {detail}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem, and its position.
        detail: String,
    },
    /// An entry is not an address.
    #[error("{text:?} is not a target")]
    Address {
        /// The entry.
        text: String,
        /// The problem with it.
        #[source]
        source: AddressError,
    },
    /// The name does not exist, or has no records of this type.
    #[error("{name} has no {} records", record.label())]
    NoRecords {
        /// The name.
        name: String,
        /// The record type that was looked up.
        record: Record,
    },
    /// No name server answered.
    #[error("no name server responded for {name}")]
    NoAnswer {
        /// The name.
        name: String,
    },
    /// The lookup failed in another way.
    #[error("cannot look up {name}: {detail}")]
    Lookup {
        /// The name.
        name: String,
        /// The error.
        detail: String,
    },
    /// The system's name servers cannot be determined.
    #[error("the system's name servers are unknown: {detail}")]
    NoResolver {
        /// The error.
        detail: String,
    },
}

// === impl Record ===

impl Record {
    /// The type as written in zone files.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Srv => "SRV",
        }
    }
}

// === impl ListError ===

impl ListError {
    /// The error as a label value.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::File(_) => "unreadable",
            Self::Malformed { .. } => "malformed",
            Self::Address { .. } => "bad_address",
            Self::NoRecords { .. } => "no_records",
            Self::NoAnswer { .. } => "no_answer",
            Self::Lookup { .. } => "lookup_failed",
            Self::NoResolver { .. } => "no_resolver",
        }
    }
}

/// Parses an entry of a list.
pub(super) fn parse(text: &str) -> Result<Address, ListError> {
    text.parse().map_err(|source| ListError::Address { text: text.to_owned(), source })
}
