//! The JSON API of the plain HTTP port: every number, its past, and how the daemon is.
//!
//! All answers are made when they are asked for, from one [`Published`], and none is kept. The
//! shapes are the types below this module and in [`explain`]; `docs/api.md` says what each field
//! means, from their doc comments. Within `v1`, fields are only added.
//!
//! # Errors
//!
//! An error is `{"error":"…"}` with a sentence that says what is wrong and how to mend it: 400 for
//! a query that cannot be understood, 404 for a path or a variant that does not exist. A filter
//! that lets nothing through is no error and gives an empty list.

pub(crate) mod openapi;
pub(crate) mod past;
pub(crate) mod query;
pub(crate) mod status;

pub use crate::publish::api::status::{ConfigInForce, Vitals};

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::publish::Published;
use crate::publish::api::past::Events;
use crate::publish::api::query::{FILTER, Query, QueryError};
use crate::publish::api::status::Status;
use crate::publish::explain::{Decisions, Details};
use crate::publish::history::History;

/// Events in an answer that does not say how many it wants.
const EVENTS_DEFAULT: usize = 100;

/// Events in an answer at the most.
const EVENTS_MAX: usize = 1000;

/// A path of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Every number and the steps that made it.
    Decisions,
    /// The last hour of one variant.
    History,
    /// What has happened to the variants.
    Events,
    /// How the daemon and its fleet are.
    Status,
    /// What was learned of engines.
    Cards,
    /// This API, as an `OpenAPI` document.
    Openapi,
}

/// Answers for everything under `/api`.
pub struct Surface {
    /// The numbers.
    pub published: watch::Receiver<Arc<Published>>,
    /// Their past.
    pub history: Arc<History>,
    /// What ages are measured with.
    pub clock: Clock,
    /// What was wrong with each replica's last scrape.
    pub details: Box<dyn Fn() -> Details + Send + Sync>,
    /// What is not in [`Published`].
    pub vitals: Box<dyn Fn() -> Vitals + Send + Sync>,
    /// The file of capacity cards that says what was learned here.
    pub cards: Box<dyn Fn() -> Value + Send + Sync>,
}

/// What all parts of one answer are made from.
pub(crate) struct Asked<'a> {
    pub(crate) published: &'a Published,
    pub(crate) history: &'a History,
    pub(crate) now: Timestamp,
    pub(crate) elapsed: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("there is nothing at {path}; there is {}", Endpoint::ALL.map(Endpoint::path).join(", "))]
    Path { path: String },
    #[error("there is no variant {0}; /api/v1/decisions lists those that are")]
    Variant(String),
    #[error("the answer cannot be written")]
    Json(#[from] serde_json::Error),
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) const ALL: [Self; 6] =
        [Self::Decisions, Self::History, Self::Events, Self::Status, Self::Cards, Self::Openapi];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Decisions => "/api/v1/decisions",
            Self::History => "/api/v1/history",
            Self::Events => "/api/v1/events",
            Self::Status => "/api/v1/status",
            Self::Cards => "/api/v1/cards",
            Self::Openapi => "/api/v1/openapi.json",
        }
    }

    /// The parameters that it takes.
    pub(crate) const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Decisions => FILTER,
            Self::History => &["namespace", "variant"],
            Self::Events => &["namespace", "model", "variant", "limit"],
            Self::Status | Self::Cards | Self::Openapi => &[],
        }
    }
}

// === impl Surface ===

impl Surface {
    /// Answers a GET for this path and query: a status and JSON.
    #[must_use]
    pub fn answer(&self, path: &str, query: Option<&str>) -> (StatusCode, String) {
        match self.document(path, query) {
            Ok(document) => (StatusCode::OK, document),
            Err(refused) => (refused.status(), json!({"error": refused.to_string()}).to_string()),
        }
    }

    fn document(&self, path: &str, query: Option<&str>) -> Result<String, Refused> {
        let endpoint = Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path);
        let endpoint = endpoint.ok_or_else(|| Refused::Path { path: path.to_owned() })?;
        let query = Query::parse(endpoint.path(), endpoint.parameters(), query)?;
        // The value is taken out first: who reads it in place keeps the loop from publishing.
        let published = self.published.borrow().clone();
        let asked = Asked {
            published: &published,
            history: &self.history,
            now: self.clock.now(),
            elapsed: self.clock.elapsed(),
        };
        match endpoint {
            Endpoint::Decisions => {
                let details = (self.details)();
                write(&Decisions::new(&asked, &query.filter(), &details))
            }
            Endpoint::History => {
                let key = query.variant(endpoint.path())?;
                let track = self.history.track(&key);
                let known = published.variants.get(&key).zip(track);
                let (variant, track) = known.ok_or_else(|| Refused::Variant(key.to_string()))?;
                write(&past::History::new(&asked, &key, &variant.spec.model, &track))
            }
            Endpoint::Events => {
                let limit = query.limit(EVENTS_DEFAULT, EVENTS_MAX)?;
                write(&Events::new(&asked, &query.filter(), limit))
            }
            Endpoint::Status => write(&Status::new(&asked, (self.vitals)())),
            Endpoint::Cards => write(&(self.cards)()),
            Endpoint::Openapi => write(&openapi::document()),
        }
    }
}

fn write(document: &impl Serialize) -> Result<String, Refused> {
    Ok(serde_json::to_string(document)?)
}

impl Refused {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::Path { .. } | Self::Variant(_) => StatusCode::NOT_FOUND,
            Self::Json(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}
