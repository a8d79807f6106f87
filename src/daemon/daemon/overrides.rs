//! Requests to pin or to pause a variant over HTTP.
//!
//! `PUT /-/override?namespace=NAMESPACE&variant=VARIANT` with `{"pin":6,"until":"..."}` or
//! `{"pause":true,"until":"..."}`, and `DELETE` of the same path.

use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::daemon::ticks::overrides::{OverrideRefusal, OverrideRequest};
use crate::publish::api::query::{QueryError, QueryParameters};
use crate::server::admin::OverrideChange;
use plimsoll_core::observe::overrides::{OVERRIDE_MAX, Order, Override, OverrideSource};
use plimsoll_core::units::Replicas;

/// The longest wait until a change is written for the next leader.
const WRITTEN_MAX: Duration = Duration::from_secs(8);

/// The path in messages.
const PATH: &str = "/-/override";

/// The body of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideBody {
    pin: Option<u32>,
    pause: Option<bool>,
    until: Timestamp,
}

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
enum RequestRefusal {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error(
        "the body is not {{\"pin\":6,\"until\":\"2026-11-21T06:00:00Z\"}} or {{\"pause\":true,\"until\":...}}: {0}"
    )]
    Body(#[from] serde_json::Error),
    #[error("give either \"pin\" with a number of replicas, or \"pause\" with true")]
    Order,
    #[error("\"pin\" must be from 0 to {}", Replicas::LIMIT)]
    Replicas,
    #[error("\"until\" must be later than now and at most {} days away", OVERRIDE_MAX.as_hours() / 24)]
    Until,
    #[error("{0}")]
    Override(#[from] OverrideRefusal),
    #[error("the decision loop has ended")]
    Ended,
    #[error(
        "the change is in effect, but not saved for the next leader within {} s; send it again",
        WRITTEN_MAX.as_secs()
    )]
    Unwritten,
}

/// Sets or ends an override, and answers with a status and JSON.
pub(super) async fn change(
    requests: mpsc::Sender<OverrideRequest>,
    clock: Clock,
    change: OverrideChange,
) -> (StatusCode, String) {
    match try_change(&requests, clock, &change).await {
        Ok(answer) => (StatusCode::OK, answer),
        Err(refusal) => (refusal.status(), json!({"error": refusal.to_string()}).to_string()),
    }
}

async fn try_change(
    requests: &mpsc::Sender<OverrideRequest>,
    clock: Clock,
    change: &OverrideChange,
) -> Result<String, RequestRefusal> {
    let OverrideChange { query, body } = change;
    let query = QueryParameters::parse(PATH, &["namespace", "variant"], query.as_deref())?;
    let variant = query.variant(PATH)?;
    let order = body.as_ref().map(|body| read(clock.now(), body)).transpose()?;

    let (done, finished) = oneshot::channel();
    let request = OverrideRequest { variant: variant.clone(), order, done };
    requests.send(request).await.map_err(|_| RequestRefusal::Ended)?;
    let answered = timeout(WRITTEN_MAX, finished).await.map_err(|_| RequestRefusal::Unwritten)?;
    answered.map_err(|_| RequestRefusal::Ended)??;

    let until = order.map(|order| order.until.to_string());
    let kind = order.map(|order| order.order.label());
    Ok(json!({"variant": variant.to_string(), "override": kind, "until": until}).to_string())
}

fn read(now: Timestamp, body: &[u8]) -> Result<Override, RequestRefusal> {
    let OverrideBody { pin, pause, until } = serde_json::from_slice(body)?;
    let order = match (pin, pause) {
        (Some(pin), None | Some(false)) => {
            Order::Pin(Replicas::new(pin).ok_or(RequestRefusal::Replicas)?)
        }
        (None, Some(true)) => Order::Pause,
        (Some(_), Some(true)) | (None, None | Some(false)) => return Err(RequestRefusal::Order),
    };

    let given = Override { order, until, by: OverrideSource::Api };
    given.is_in_effect(now).then_some(given).ok_or(RequestRefusal::Until)
}

impl RequestRefusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Override(OverrideRefusal::Unknown(_) | OverrideRefusal::Nothing { .. }) => {
                StatusCode::NOT_FOUND
            }
            Self::Override(OverrideRefusal::Follows { .. }) => StatusCode::CONFLICT,
            Self::Query(_) | Self::Body(_) | Self::Order | Self::Replicas | Self::Until => {
                StatusCode::BAD_REQUEST
            }
            Self::Ended | Self::Unwritten => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
