//! The HTTP server of an engine.
//!
//! | path | method | answer |
//! |---|---|---|
//! | `/metrics` | GET | the metrics of one vLLM replica |
//! | `/health` | GET | 200 |
//! | `/v1/models` | GET | the served model |
//! | `/v1/completions`, `/v1/chat/completions` | POST | a completion, streamed on request |
//! | `/load` | GET, PUT | the background load in requests per second |

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::args;
use crate::engine::completion::{
    AnswerDelivery, AnswerEnding, CompletionAnswer, CompletionEndpoint, CompletionRequest, DONE,
};
use crate::engine::served::{AnswerProgress, ServedReplica, SubmitRefusal};
use crate::simulate::Micros;
use crate::simulate::page::{self, EngineIdentity};
use crate::simulate::workload::load::Size;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::server::stream::{GuardedStream, StreamLimits};

/// Simultaneous connections; further ones wait until one ends.
const CONNECTIONS_MAX: usize = 1_024;

/// Bytes of a request's line and headers.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Time in which the head of a request must arrive. It also limits idle connections.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of a request body. The longest context of a model has about as many characters.
const BODY_MAX: usize = 1 << 20;

/// Time in which a request body must arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// Time for a stalled client to read on, and for a connection without a byte. A request in a long
/// queue waits for minutes.
const STREAM: StreamLimits =
    StreamLimits { write_max: Duration::from_secs(30), silence_max: Duration::from_mins(15) };

/// The longest time between two advances of the simulation, which bounds the work of each.
const ADVANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a failed accept, which usually means that the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A body in memory, or a stream.
type AnswerBody = Either<Full<Bytes>, Channel<Bytes>>;

/// The engine behind the server.
#[derive(Debug)]
pub(crate) struct EngineServer {
    served: Mutex<ServedReplica>,
    identity: EngineIdentity,
    clock: Clock,
    /// The clock's time at the start of the simulation.
    began: Duration,
    /// Wakes the task that advances the simulation.
    submitted: Notify,
    /// Connections and answers in progress.
    tracker: TaskTracker,
    /// Cancelled when the server takes no more requests.
    stop: CancellationToken,
}

/// A request in the engine, which is dropped from it with this value.
struct OpenRequest {
    server: Arc<EngineServer>,
    id: u64,
    progress: watch::Receiver<AnswerProgress>,
}

// === impl EngineServer ===

impl EngineServer {
    /// A server whose simulated time starts at this call.
    pub(crate) fn new(
        served: ServedReplica,
        identity: EngineIdentity,
        clock: Clock,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            served: Mutex::new(served),
            identity,
            clock,
            began: clock.elapsed(),
            submitted: Notify::new(),
            tracker: TaskTracker::new(),
            stop,
        })
    }

    /// Serves until `stop` is cancelled, and then for at most `drain_max` until all requests are
    /// answered.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, drain_max: Duration) {
        tokio::select! {
            () = self.advance() => {}
            () = Arc::clone(&self).answer_all(listener, drain_max) => {}
        }
    }

    async fn answer_all(self: Arc<Self>, listener: TcpListener, drain_max: Duration) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let accepting = async {
            loop {
                // The semaphore is never closed.
                let slot = Arc::clone(&slots).acquire_owned().await;
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };

                let guarded = GuardedStream::new(stream, STREAM, CancellationToken::new());
                let connection = Arc::clone(&self).connection(guarded);
                self.tracker.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
        };

        self.stop.run_until_cancelled(accepting).await;
        drop(listener);
        self.tracker.close();
        let _unanswered = timeout(drain_max, self.tracker.wait()).await;
    }

    async fn connection(self: Arc<Self>, stream: GuardedStream) {
        let stop = self.stop.clone();
        let service = hyper::service::service_fn(move |request| {
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);

        // A client may disconnect at any time.
        tokio::select! {
            _ = connection.as_mut() => {}
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            }
        }
    }

    /// Advances the simulation whenever an answer may have grown.
    async fn advance(&self) {
        loop {
            let next = {
                let mut served = self.served();
                served.advance_to(self.now());
                served.next_progress()
            };

            // A step's results exist just after its end.
            let pause = next.map(|at| (at + Micros::new(1)).since(self.now()).duration());
            let wait = tokio::time::sleep(pause.unwrap_or(ADVANCE_INTERVAL).min(ADVANCE_INTERVAL));
            tokio::select! {
                () = wait => {}
                () = self.submitted.notified() => {}
            }
        }
    }

    fn served(&self) -> MutexGuard<'_, ServedReplica> {
        // A panic in another task leaves a consistent replica.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Micros {
        Micros::from_duration(self.clock.elapsed().saturating_sub(self.began))
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<AnswerBody> {
        let method = request.method().clone();
        match (request.uri().path(), method) {
            ("/metrics", Method::GET) => reply(StatusCode::OK, page::CONTENT_TYPE, self.metrics()),
            ("/health", Method::GET) => reply(StatusCode::OK, "text/plain", String::new()),
            ("/v1/models", Method::GET) => reply_json(StatusCode::OK, &self.models()),
            ("/load", Method::GET) => self.show_load(),
            ("/load", Method::PUT) => self.change_load(request).await,
            ("/v1/completions", Method::POST) => {
                self.complete(CompletionEndpoint::Text, request).await
            }
            ("/v1/chat/completions", Method::POST) => {
                self.complete(CompletionEndpoint::Chat, request).await
            }
            ("/metrics" | "/health" | "/v1/models", _) => not_allowed("GET"),
            ("/load", _) => not_allowed("GET, PUT"),
            ("/v1/completions" | "/v1/chat/completions", _) => not_allowed("POST"),
            (path, _) => failure(StatusCode::NOT_FOUND, &format!("there is nothing at {path}")),
        }
    }

    fn metrics(&self) -> String {
        let mut served = self.served();
        served.advance_to(self.now());
        let stats = served.snapshot();
        drop(served);

        page::render(&self.identity, &stats)
    }

    fn models(&self) -> Value {
        let created = self.identity.started.as_second();
        let model = json!({
            "id": self.identity.model, "object": "model", "created": created, "owned_by": "vllm",
        });
        json!({"object": "list", "data": [model]})
    }

    fn show_load(&self) -> Response<AnswerBody> {
        let rate = self.served().load().requests_per_second();
        reply(StatusCode::OK, "text/plain", format!("{rate}\n"))
    }

    async fn change_load(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let body = match read(request).await {
            Ok(bytes) => bytes,
            Err(refusal) => return *refusal,
        };
        match args::rate(&String::from_utf8_lossy(&body)) {
            Ok(rate) => {
                self.served().set_load(self.now(), rate);
                self.show_load()
            }
            Err(why) => failure(StatusCode::BAD_REQUEST, &format!("the load {why}")),
        }
    }

    async fn complete(
        self: Arc<Self>,
        endpoint: CompletionEndpoint,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let body = match read(request).await {
            Ok(bytes) => bytes,
            Err(refusal) => return *refusal,
        };
        let asked = match CompletionRequest::read(endpoint, &body) {
            Ok(request) => request,
            Err(why) => return failure(StatusCode::BAD_REQUEST, &why),
        };
        if let Some(model) = asked.model.filter(|model| *model != self.identity.model) {
            return failure(StatusCode::NOT_FOUND, &format!("the model {model:?} does not exist"));
        }

        let submitted = {
            let mut served = self.served();
            let output = asked.max_tokens.unwrap_or_else(|| served.draw_size().output);
            served.submit(self.now(), Size { prompt: asked.prompt_tokens, output })
        };
        let accepted = match submitted {
            Ok(request) => request,
            Err(refusal @ SubmitRefusal::TooLong { .. }) => {
                return failure(StatusCode::BAD_REQUEST, &refusal.to_string());
            }
            Err(refusal @ SubmitRefusal::Full) => {
                return failure(StatusCode::SERVICE_UNAVAILABLE, &refusal.to_string());
            }
        };

        self.submitted.notify_one();
        let answer = CompletionAnswer {
            endpoint,
            id: accepted.id,
            created: self.clock.now().as_second(),
            model: self.identity.model.clone(),
            prompt_tokens: asked.prompt_tokens,
            ending: asked.max_tokens.map_or(AnswerEnding::Stop, |_| AnswerEnding::Length),
        };
        let server = Arc::clone(&self);
        let open = OpenRequest { server, id: accepted.id, progress: accepted.progress };
        self.deliver(open, answer, asked.delivery).await
    }

    async fn deliver(
        &self,
        mut open: OpenRequest,
        answer: CompletionAnswer,
        delivery: AnswerDelivery,
    ) -> Response<AnswerBody> {
        let has_usage = match delivery {
            AnswerDelivery::Whole => {
                return match open.progress.wait_for(|progress| progress.is_complete).await {
                    Ok(progress) => reply_json(StatusCode::OK, &answer.whole(progress.tokens)),
                    Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the request was dropped"),
                };
            }
            AnswerDelivery::Streamed => false,
            AnswerDelivery::StreamedWithUsage => true,
        };

        let (sender, body) = Channel::new(1);
        self.tracker.spawn(stream(open, answer, has_usage, sender));

        let mut response = Response::new(Either::Right(body));

        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let now = self.server.now();
        self.server.served().abort(now, self.id);
    }
}

/// Sends an answer as it grows, until it is complete or the client has left. A client that reads
/// slowly gets several tokens in one event.
async fn stream(
    mut open: OpenRequest,
    answer: CompletionAnswer,
    has_usage: bool,
    mut sender: Sender<Bytes>,
) {
    if let Some(first) = answer.first_event()
        && sender.send_data(first).await.is_err()
    {
        return;
    }

    let mut sent = 0;
    while open.progress.changed().await.is_ok() {
        let AnswerProgress { tokens, is_complete } = *open.progress.borrow_and_update();
        let event = answer.event(tokens - sent, is_complete);
        sent = tokens;
        if sender.send_data(event).await.is_err() {
            return;
        }
        if is_complete {
            break;
        }
    }

    if has_usage && sender.send_data(answer.usage_event(sent)).await.is_err() {
        return;
    }
    // The client has everything else already.
    let _end = sender.send_data(DONE).await;
}

/// Reads a body, which is bounded in size and in time.
async fn read(request: Request<Incoming>) -> Result<Bytes, Box<Response<AnswerBody>>> {
    let body = Limited::new(request.into_body(), BODY_MAX);
    match timeout(BODY_TIME_MAX, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => {
            let message = format!("the body is larger than {BODY_MAX} bytes, or was cut off");
            Err(Box::new(last(failure(StatusCode::PAYLOAD_TOO_LARGE, &message))))
        }
        Err(_) => {
            let message = format!("the body did not arrive within {BODY_TIME_MAX:?}");
            Err(Box::new(last(failure(StatusCode::REQUEST_TIMEOUT, &message))))
        }
    }
}

/// The last response of a connection whose request was not read to its end.
fn last(mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// An error in the form that clients of vLLM read.
fn failure(status: StatusCode, message: &str) -> Response<AnswerBody> {
    let kind = status.canonical_reason().unwrap_or_default();
    let code = status.as_u16();
    let error = json!({"message": message, "type": kind, "param": null, "code": code});
    reply_json(status, &json!({"error": error}))
}

fn not_allowed(allowed: &'static str) -> Response<AnswerBody> {
    let message = format!("only {allowed} is answered at this path");
    let mut response = failure(StatusCode::METHOD_NOT_ALLOWED, &message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn reply_json(status: StatusCode, value: &Value) -> Response<AnswerBody> {
    reply(status, "application/json", value.to_string())
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response<AnswerBody> {
    let mut response = Response::new(Either::Left(Full::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
