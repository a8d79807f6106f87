//! The gRPC calls of KEDA's scalers.
//!
//! The first byte selects the call and the framing, and the rest is the message. Whatever arrives,
//! an unknown number must not be answered with a number, and the answer to a message that can be
//! read must be the one that follows from its fields.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use plimsoll::clock::Clock;
use plimsoll::fleet::{Namespace, VariantName};
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_scaler::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use plimsoll::publish::external_scaler::metrics::ScalerMetrics;
use plimsoll::publish::external_scaler::streams::StreamBudgetLimits;
use plimsoll::publish::external_scaler::{ExternalScaler, METRIC};
use plimsoll::server::ServerPhase;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::external_metrics::{CLOSED, HIDDEN, known, published};

/// The default maximum ages of a daemon's decisions.
const AGES: DecisionAges =
    DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };

/// The calls, of which the last does not exist.
const CALLS: [&str; 6] =
    ["IsActive", "GetMetrics", "GetMetricSpec", "StreamIsActive", "StreamMetricSpec", "Other"];

/// The bit of the first byte with which the rest is the whole body, and not one message.
const RAW: u8 = 0x80;

/// Bytes of the largest message that a server reads.
const MESSAGE_MAX: usize = 64 << 10;

/// Bytes of the largest error message in a header, each of which may be escaped.
const ERROR_MAX: usize = 3 * 1024;

const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const NOT_FOUND: u32 = 5;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;

/// The state shared by all inputs.
struct Scene {
    runtime: Runtime,
    scaler: Arc<ExternalScaler>,
    /// Dropped senders would end their receivers.
    _senders: (watch::Sender<Arc<plimsoll::publish::Published>>, watch::Sender<ServerPhase>),
}

/// An answer: its status, and the first message.
struct Answer {
    code: u32,
    error: String,
    message: Option<Vec<u8>>,
}

/// Makes a call, and checks its answer.
pub fn check(input: &[u8]) {
    static STAGE: OnceLock<Scene> = OnceLock::new();
    let Some((first, rest)) = input.split_first() else { return };
    let call = CALLS[usize::from(first & !RAW) % CALLS.len()];
    let is_raw = first & RAW != 0;
    let length = u32::try_from(rest.len()).expect("inputs are short");
    let body =
        if is_raw { rest.to_vec() } else { [&[0][..], &length.to_be_bytes(), rest].concat() };

    let answer = STAGE.get_or_init(Scene::new).ask(call, body);
    let said = String::from_utf8_lossy(input);
    let is_about_it = said.contains(HIDDEN) || said.contains(CLOSED);
    assert!(!answer.error.contains(HIDDEN) || is_about_it, "{}", answer.error);
    assert!(answer.error.len() <= ERROR_MAX, "an error of {} bytes", answer.error.len());
    assert_eq!(answer.code == OK, answer.error.is_empty(), "{}: {}", answer.code, answer.error);
    if is_raw {
        return;
    }

    match expected(call, rest) {
        Some(Ok(wanted)) => assert_eq!(answer.wanted(call), wanted, "{call}"),
        Some(Err(code)) => assert_eq!(answer.code, code, "{call}: {}", answer.error),
        None => assert_ne!(answer.code, OK, "{call} is answered without a message"),
    }
}

/// The number in the answer to a message, or the status code of its refusal; `None` if it cannot be
/// read.
fn expected(call: &str, bytes: &[u8]) -> Option<Result<Option<u32>, u32>> {
    match call {
        "StreamMetricSpec" | "Other" => return Some(Err(UNIMPLEMENTED)),
        _ if bytes.len() > MESSAGE_MAX => return None,
        _ => {}
    }

    let (of, metric) = if call == "GetMetrics" {
        let asked = GetMetricsRequest::decode(bytes).ok()?;
        (asked.scaled_object_ref.unwrap_or_default(), asked.metric_name)
    } else {
        (ScaledObjectRef::decode(bytes).ok()?, METRIC.to_owned())
    };

    let variant = of.scaler_metadata.get("variant").and_then(|name| VariantName::new(name));
    let Some(variant) = variant.filter(|_| !of.scaler_metadata.contains_key("namespace")) else {
        return Some(Err(INVALID_ARGUMENT));
    };
    if Namespace::new(&of.namespace).is_none() {
        return Some(Err(INVALID_ARGUMENT));
    }
    if metric != METRIC {
        return Some(Err(NOT_FOUND));
    }

    let found = known(&of.namespace, variant.as_str());
    Some(match (found, found.and_then(|it| it.replicas), call) {
        (None, _, "StreamIsActive") | (Some(_), None, "StreamIsActive") => Ok(None),
        (None, ..) => Err(NOT_FOUND),
        (Some(_), _, "GetMetricSpec") => Ok(Some(1)),
        (Some(_), None, _) => Err(UNAVAILABLE),
        (Some(_), Some(replicas), "GetMetrics") => Ok(Some(replicas)),
        (Some(_), Some(replicas), _) => Ok(Some(u32::from(replicas > 0))),
    })
}

// === impl Answer ===

impl Answer {
    fn new(head: &HeaderMap, body: Option<Bytes>) -> Self {
        let text = |name| head.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let message = body.filter(|bytes| !bytes.is_empty()).map(|bytes| {
            let [0, a, b, c, d, message @ ..] = &bytes[..] else { panic!("{bytes:?}") };
            let length = u32::from_be_bytes([*a, *b, *c, *d]);
            assert_eq!(length as usize, message.len(), "one message is answered");
            message.to_vec()
        });
        let code = text("grpc-status").parse().expect("an answer has a status");
        Self { code, error: text("grpc-message").to_owned(), message }
    }

    /// The number in the answer: 1 for active and 0 for inactive.
    fn wanted(&self, call: &str) -> Option<u32> {
        assert_eq!(self.code, OK, "{call}: {}", self.error);
        let bytes = self.message.as_deref()?;
        let decoded = "an answer can be read";
        Some(match call {
            "GetMetrics" => {
                let metrics = GetMetricsResponse::decode(bytes).expect(decoded).metric_values;
                let [value] = &metrics[..] else { panic!("{metrics:?}") };
                let difference = value.metric_value as f64 - value.metric_value_float;
                assert!(difference.abs() < 0.5, "{value:?}");
                u32::try_from(value.metric_value).expect("a number of replicas")
            }
            "GetMetricSpec" => {
                let specs = GetMetricSpecResponse::decode(bytes).expect(decoded).metric_specs;
                let [spec] = &specs[..] else { panic!("{specs:?}") };
                u32::try_from(spec.target_size).expect("a target")
            }
            _ => u32::from(IsActiveResponse::decode(bytes).expect(decoded).result),
        })
    }
}

// === impl Scene ===

impl Scene {
    fn new() -> Self {
        let clock = Clock::start();
        let numbers = watch::Sender::new(Arc::new(published(clock)));
        let phase = watch::Sender::new(ServerPhase::Serving);
        let metrics = ScalerMetrics::register(&prometheus::Registry::new());
        let scaler = ExternalScaler::new(
            numbers.subscribe(),
            clock,
            AGES,
            phase.subscribe(),
            StreamBudgetLimits::default(),
            metrics.expect("the registry is empty"),
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Self {
            runtime: runtime.expect("a runtime without threads can be built"),
            scaler: Arc::new(scaler),
            _senders: (numbers, phase),
        }
    }

    fn ask(&self, call: &str, body: Vec<u8>) -> Answer {
        let request = Request::builder()
            .method("POST")
            .uri(format!("/externalscaler.ExternalScaler/{call}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from(body)))
            .expect("the request is sound");
        self.runtime.block_on(async {
            let response = Arc::clone(&self.scaler).respond(request).await;
            assert_eq!(response.status(), 200, "errors of gRPC are in its own status");
            let (head, mut body) = response.into_parts();
            if head.headers.contains_key("grpc-status") {
                return Answer::new(&head.headers, None);
            }

            let mut message = None;
            let mut trailers = HeaderMap::new();
            // A stream that waits for a change has no further frame.
            while let Some(Some(frame)) = body.frame().now_or_never() {
                match frame.expect("a body in memory can be read").into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => assert!(message.replace(data).is_none(), "one message is sent"),
                    Err(end) => trailers = end.into_trailers().expect("the end of the body"),
                }
            }
            if trailers.is_empty() {
                assert_eq!(call, "StreamIsActive", "the answer has an end");
                trailers.insert("grpc-status", "0".parse().expect("a status"));
            }
            Answer::new(&trailers, message)
        })
    }
}
