//! The parts of a metrics URL that the addresses of a variant share.

use hyper::http::uri::PathAndQuery;
use plimsoll_core::settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The parts of a metrics URL that an address may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Port for addresses that have none.
    pub port: u16,
    /// Path of the metrics, such as `/metrics`.
    pub path: String,
}

/// The scheme of a page's URL.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

settings! { plain: Scheme; }

// === impl Endpoint ===

impl Endpoint {
    /// Returns true if this is the path of a URL, with or without a query.
    #[must_use]
    pub fn is_path(text: &str) -> bool {
        let is_plain = text.chars().all(|c| c.is_ascii_graphic() && c != '#');
        text.starts_with('/') && is_plain && text.parse::<PathAndQuery>().is_ok()
    }
}

// === impl Scheme ===

impl Scheme {
    /// The scheme as written in URLs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}
