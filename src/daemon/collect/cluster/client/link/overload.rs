//! Responses of an API server that has too much to do.
//!
//! It asks for a delay in the header `Retry-After`. A short delay is waited for here. A longer one
//! is the caller's, who knows until when the answer matters: the header is copied into the `Status`,
//! which is the only part of a failure that the client library passes on.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use serde_json::{Value, json};
use tokio::time::{Sleep, sleep};
use tower::BoxError;
use tower::retry::Policy;

/// The longest delay that is waited for within a request.
const BRIEF: Duration = Duration::from_secs(2);

/// The most bytes of a failure that are read.
const TEXT_MAX: usize = 64 * 1024;

/// Repeats a request that the API server refuses because of its load, if it asks for a short delay.
#[derive(Clone, Debug)]
pub(crate) struct BriefRetry {
    left: u32,
}

impl Default for BriefRetry {
    fn default() -> Self {
        Self { left: 3 }
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for BriefRetry {
    type Future = Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Sleep> {
        let delay = delay(result.as_ref().ok()?)?;
        self.left = self.left.checked_sub(1)?;
        (delay <= BRIEF).then(|| sleep(delay))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut RetryPolicy::default(), request)
    }
}

/// Returns the delay for which a response asks.
fn delay<B>(response: &Response<B>) -> Option<Duration> {
    let is_busy = matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let seconds = response.headers().get(RETRY_AFTER).filter(|_| is_busy)?;
    Some(Duration::from_secs(seconds.to_str().ok()?.parse().ok()?))
}

/// Copies the delay for which a response asks into its `Status`.
pub(crate) async fn with_delay(
    response: Response<Incoming>,
) -> Result<Response<Either<Incoming, Full<Bytes>>>, BoxError> {
    let Some(delay) = delay(&response) else { return Ok(response.map(Either::Left)) };
    let (mut head, body) = response.into_parts();
    let text = Limited::new(body, TEXT_MAX).collect().await?.to_bytes();

    let read: Option<Value> = serde_json::from_slice(&text).ok();
    let mut status = read.filter(|it| it["kind"] == "Status").unwrap_or_else(|| {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
               "code": head.status.as_u16(), "message": String::from_utf8_lossy(&text)})
    });
    status["details"]["retryAfterSeconds"] = delay.as_secs().min(u64::from(u32::MAX)).into();

    head.headers.remove(CONTENT_LENGTH);
    let body = Full::new(Bytes::from(status.to_string()));
    Ok(Response::from_parts(head, Either::Right(body)))
}
