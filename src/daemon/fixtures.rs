//! Values that several unit tests of this crate share.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::{Method, Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;

use crate::publish::PublishedDecision;
use plimsoll_core::decide::{Basis, Decision, NoData, Reason, Stage, Step};
use plimsoll_core::fleet::{
    Bounds, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll_core::units::{CostPerHour, Fraction, Replicas};

/// A variant of model `m` in `shop` between one and five replicas.
pub(crate) fn variant(name: &str) -> VariantSpec {
    let namespace = Namespace::new("shop").unwrap();

    VariantSpec {
        key: VariantKey { namespace, variant: VariantName::new(name).unwrap() },
        model: ModelName::new("m").unwrap(),
        accelerator: None,
        gpus: None,
        role: Role::Both,
        cost: CostPerHour::ZERO,
        list_price: None,
        mismatch: Fraction::ONE,
        start_time: None,
        bounds: Bounds::new(Replicas::ONE, Replicas::new(5)).unwrap(),
    }
}

/// A decision of the epoch with these steps, for a variant whose replicas are unknown.
pub(crate) fn decided(spec: &VariantSpec, basis: Basis, steps: Vec<Step>) -> PublishedDecision {
    let at = Timestamp::UNIX_EPOCH;
    let decision = Decision {
        variant: spec.key.clone(),
        model: spec.model_key(),
        current: None,
        bounds: spec.bounds,
        steps,
        inputs_at: at,
        basis,
        admissible: None,
        sizing: None,
    };
    PublishedDecision { decision, at, elapsed: Duration::ZERO }
}

/// A decision of the epoch that holds these desired replicas, because there is no data.
pub(crate) fn held(spec: &VariantSpec, desired: u32) -> PublishedDecision {
    let after = Replicas::saturating(desired);
    let reason = Reason::NoData(NoData::NoFreshReplica);
    let step = Step { stage: Stage::Hold, before: after, after, reason };
    decided(spec, Basis::Held, vec![step])
}

/// The time of a test's paused clock.
#[expect(clippy::disallowed_methods, reason = "a paused clock is no real one")]
pub(crate) fn paused_now() -> Instant {
    Instant::now()
}

/// A request to a [`ScriptedApi`].
#[derive(Clone, Debug)]
pub(crate) struct AskedRequest {
    pub(crate) method: Method,
    /// The JSON body; null if there is none.
    pub(crate) body: Value,
    /// The time since the start of the script.
    pub(crate) at: Duration,
}

/// An API server in the test's own thread, so that a paused clock moves only while all wait. Clones
/// have the same requests.
#[derive(Clone, Default)]
pub(crate) struct ScriptedApi {
    asked: Arc<Mutex<Vec<AskedRequest>>>,
}

impl ScriptedApi {
    /// A client of it. `answer` gets the number of the request, from 0, and the request. It returns
    /// a status code and a JSON body.
    pub(crate) fn client(
        &self,
        answer: impl Fn(usize, &AskedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> kube::Client {
        let requests = Arc::clone(&self.asked);
        let began = paused_now();
        let answering = Arc::new(answer);
        let service = tower::service_fn(move |request: Request<Body>| {
            let asked = Arc::clone(&requests);
            let answer = Arc::clone(&answering);
            async move {
                let (head, sent) = request.into_parts();
                let bytes = sent.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&bytes).unwrap_or_default();

                let request = AskedRequest { method: head.method, body, at: began.elapsed() };
                let mut asked = asked.lock().unwrap();
                let (code, said) = answer(asked.len(), &request);
                asked.push(request);
                let reason = match code {
                    404 => "NotFound",
                    409 => "Conflict",
                    _ => "Unknown",
                };
                let refusal = json!({"kind": "Status", "status": "Failure", "code": code,
                                     "reason": reason, "message": "no"});
                let said = if code < 400 { said } else { refusal };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(
                    response.body(Body::from(said.to_string().into_bytes())).unwrap(),
                )
            }
        });
        kube::Client::new(service, "shop")
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<AskedRequest> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until there have been this many requests, and returns them.
    pub(crate) async fn until(&self, count: usize) -> Vec<AskedRequest> {
        while self.asked().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.asked()
    }

    /// The methods of all requests so far.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.asked().iter().map(|it| it.method.to_string()).collect()
    }
}

/// What this thread logs until it is dropped.
pub(crate) struct CapturedLog {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

impl CapturedLog {
    pub(crate) fn start() -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let sink = Arc::clone(&text);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || LogSink(Arc::clone(&sink)))
            .finish();
        Self { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// The number of lines that contain this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        let all = self.text.lock().unwrap().clone();
        String::from_utf8_lossy(&all).lines().filter(|line| line.contains(text)).count()
    }
}

struct LogSink(Arc<Mutex<Vec<u8>>>);

impl Write for LogSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
