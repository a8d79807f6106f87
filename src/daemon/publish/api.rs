//! The JSON API on the plain HTTP port: all decisions, their history, and the daemon's health.
//!
//! Each response is computed on request from one [`Published`] value, and none is cached. Responses
//! that stay the same while nothing changes have a tag, so a reader that polls gets 304. The types
//! below this module and in [`explain`](crate::publish::explain) define the shapes. `docs/api.md`
//! documents each field with the text of its doc comment. Within `v1`, fields are only added.
//!
//! # Errors
//!
//! An error is `{"error":"…"}` with a sentence that names the problem and the fix. The status is
//! 400 for an invalid query, 404 for a path or variant that does not exist, and 503 for desired
//! replicas that are not known. A filter without matches is not an error and returns an empty list.

mod attention;
pub(crate) mod context;
mod desired;
mod endpoint;
pub(crate) mod openapi;
pub(crate) mod past;
pub(crate) mod query;
pub(crate) mod status;
mod summary;
mod vitals;

pub use crate::publish::api::vitals::{ApiServiceVitals, ConfigInForce, ElectionStatus, Vitals};

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::publish::Published;
use crate::publish::api::context::ResponseContext;
use crate::publish::api::desired::{Desired, DesiredError};
use crate::publish::api::endpoint::ApiEndpoint;
use crate::publish::api::past::Events;
use crate::publish::api::query::{QueryError, QueryParameters};
use crate::publish::api::status::Status;
use crate::publish::api::summary::FleetSummary;
use crate::publish::explain::{Decisions, FailureDetails};
use crate::publish::explanation::autoscaler::Autoscaler;
use crate::publish::explanation::{self, ExplainedVariant, Explanation};
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::history::RecentHistory;
use crate::server::document::{DocumentRequest, DocumentResponse, tag_of};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::repeat::TickScene;
use plimsoll_core::units::Replicas;

/// The number of events in a response without a `limit` parameter.
const EVENTS_DEFAULT: usize = 100;

/// The maximum number of events in a response.
const EVENTS_MAX: usize = 1000;

/// The time in which the answers of an explanation are searched for.
const SEARCH_MAX: Duration = Duration::from_secs(2);

/// Returns what the autoscaler of a variant does with these desired replicas; `None` if no cluster
/// is watched. The time is the one for which the number has asked for this change.
pub type AutoscalerHook = Box<
    dyn Fn(&VariantKey, Option<Replicas>, Option<Duration>) -> Option<Autoscaler> + Send + Sync,
>;

/// Handles every request under `/api`.
pub struct ApiSurface {
    /// The published state.
    pub published: watch::Receiver<Arc<Published>>,
    /// The history of the published state.
    pub history: Arc<RecentHistory>,
    /// The clock that ages are measured with.
    pub clock: Clock,
    /// The ages at which decisions become old.
    pub ages: DecisionAges,
    /// The exact error of each replica's last failed scrape.
    pub details: Box<dyn Fn() -> FailureDetails + Send + Sync>,
    /// The facts that [`Published`] does not contain.
    pub vitals: Box<dyn Fn() -> Vitals + Send + Sync>,
    /// The capacity card file with the coefficients that this daemon learned.
    pub cards: Box<dyn Fn() -> Value + Send + Sync>,
    /// Waits for the next tick and returns its scene; `None` if there is no tick in time.
    pub scene: Box<dyn Fn() -> Option<Arc<TickScene>> + Send + Sync>,
    /// The reaction of the autoscalers.
    pub autoscaler: AutoscalerHook,
}

/// The reason why a request fails.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("unknown path {path}; valid paths: {}", ApiEndpoint::ALL.map(ApiEndpoint::path).join(", "))]
    Path { path: String },
    #[error("there is no variant {0}; /api/v1/decisions lists all variants")]
    Variant(String),
    #[error("{0}")]
    Desired(#[from] DesiredError),
    #[error("the daemon has not decided in time; try again, and check /livez")]
    NoTick,
    #[error("the response cannot be written")]
    Json(#[from] serde_json::Error),
}

// === impl ApiSurface ===

impl ApiSurface {
    /// Handles a GET request for this path and query; returns a status and JSON.
    #[must_use]
    pub fn answer(&self, path: &str, query: Option<&str>) -> (StatusCode, String) {
        match self.document(path, query) {
            Ok(document) => (StatusCode::OK, document.json),
            Err(refused) => (refused.status(), json!({"error": refused.to_string()}).to_string()),
        }
    }

    /// Handles a GET request, with 304 for a reader that has the content.
    #[must_use]
    pub fn respond(&self, request: &DocumentRequest) -> DocumentResponse {
        match self.document(&request.path, request.query.as_deref()) {
            Ok(TaggedJson { json, tag }) => {
                DocumentResponse::to(request, StatusCode::OK, json, tag)
            }
            Err(refused) => {
                let error = json!({"error": refused.to_string()}).to_string();
                DocumentResponse::plain(refused.status(), error)
            }
        }
    }

    fn document(&self, path: &str, text: Option<&str>) -> Result<TaggedJson, RequestError> {
        let endpoint = ApiEndpoint::ALL
            .into_iter()
            .find(|it| it.path() == path)
            .ok_or_else(|| RequestError::Path { path: path.to_owned() })?;
        let query = QueryParameters::parse(endpoint.path(), endpoint.parameters(), text)?;

        // Clone the value first: holding the borrow would keep the decision loop from publishing.
        let published = self.published.borrow().clone();
        let asked = ResponseContext {
            published: &published,
            history: &self.history,
            now: self.clock.now(),
            elapsed: self.clock.elapsed(),
            ages: self.ages,
        };

        let document = match endpoint {
            ApiEndpoint::Summary => {
                let summary = FleetSummary::new(&asked, &query.filter(), &|key, desired| {
                    (self.autoscaler)(key, desired, None).map(|it| it.reaction)
                });

                return TaggedJson::new(&summary, &summary.content()?);
            }
            ApiEndpoint::Decisions => {
                let details = (self.details)();
                write(&Decisions::new(&asked, &query.filter(), &details))
            }
            ApiEndpoint::Desired => {
                let key = query.variant(endpoint.path())?;
                write(&Desired::new(&asked, &key)?)
            }
            ApiEndpoint::Explain => self.explain(&query.variant(endpoint.path())?),
            ApiEndpoint::History => {
                let key = query.variant(endpoint.path())?;
                let track = self.history.track(&key);
                let known = published.variants.get(&key).zip(track);
                let (variant, track) =
                    known.ok_or_else(|| RequestError::Variant(key.to_string()))?;
                let past = past::History::new(&asked, &key, &variant.spec.model, &track);
                return TaggedJson::new(&past, &(&track.levels, &track.samples));
            }
            ApiEndpoint::Events => {
                let limit = query.limit(EVENTS_DEFAULT, EVENTS_MAX)?;
                let events = Events::new(&asked, &query.filter(), limit);
                return TaggedJson::new(&events, &events.content());
            }
            ApiEndpoint::Status => write(&Status::new(&asked, (self.vitals)())),
            ApiEndpoint::Cards => write(&(self.cards)()),
            ApiEndpoint::Openapi => write(&openapi::document()),
        };
        Ok(TaggedJson { json: document?, tag: None })
    }

    fn explain(&self, key: &VariantKey) -> Result<String, RequestError> {
        let unknown = || RequestError::Variant(key.to_string());
        if !self.published.borrow().variants.contains_key(key) {
            return Err(unknown());
        }

        let scene = (self.scene)().ok_or(RequestError::NoTick)?;
        let began = self.clock.elapsed();
        let goes_on = || self.clock.elapsed().saturating_sub(began) < SEARCH_MAX;
        let answers = explanation::answers(&scene, key, &goes_on).ok_or_else(unknown)?;

        let published = self.published.borrow().clone();
        let variant = published.variants.get(key).ok_or_else(unknown)?;
        let elapsed = self.clock.elapsed();
        let desired = variant.decided.as_ref().map(|decided| decided.decision.desired());
        let current = variant.observation.current;
        let asked_for = desired.zip(current).and_then(|(desired, current)| {
            self.history.track(key)?.asked_for(desired.count(), current.count(), elapsed)
        });
        let details = (self.details)();
        write(&Explanation::new(
            ExplainedVariant {
                published: &published,
                variant,
                inputs: &scene.inputs,
                details: &details,
                autoscaler: (self.autoscaler)(key, desired, asked_for),
                now: self.clock.now(),
                elapsed,
            },
            &answers,
        ))
    }
}

/// A document and the tag of its content; no tag if it changes with every answer.
struct TaggedJson {
    json: String,
    tag: Option<String>,
}

impl TaggedJson {
    fn new(document: &impl Serialize, content: &impl Hash) -> Result<Self, RequestError> {
        Ok(Self { json: write(document)?, tag: Some(tag_of(content)) })
    }
}

fn write(document: &impl Serialize) -> Result<String, RequestError> {
    Ok(serde_json::to_string(document)?)
}

impl RequestError {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::Path { .. } | Self::Variant(_) | Self::Desired(DesiredError::NoVariant(_)) => {
                StatusCode::NOT_FOUND
            }
            Self::Desired(DesiredError::Unavailable(_)) | Self::NoTick => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Json(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}
