//! KEDA's external scalers: desired replicas over gRPC, pulled (`external`) and pushed
//! (`external-push`).
//!
//! The server answers the calls of KEDA's `externalscaler.proto` from the same [`Published`] value,
//! with the same judgment of age, as the external metrics API:
//!
//! - Unknown desired replicas are `UNAVAILABLE` and never 0 or inactive. On an error, KEDA and the
//!   HPA keep the replicas. On 0 or inactive, they remove them.
//! - The metric's specification is known even without a decision. Without it, KEDA makes no HPA.
//! - The namespace is that of the `ScaledObject`, which KEDA fills in. The trigger's metadata, which
//!   a tenant writes, cannot name another.
//!
//! KEDA multiplexes the calls of all its `ScaledObject`s over one connection, so [`limits`] allow
//! thousands of streams on it.

mod call;
pub mod messages;
pub mod metrics;
pub mod streams;

use std::fmt::Write as _;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::{BoxError, service_fn};
use tracing::debug;

use crate::clock::Clock;
use crate::publish::Published;
use crate::publish::external_metrics::answer::{self, desired};
use crate::publish::external_metrics::route::MetricScope;
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::external_scaler::call::ScalerCall;
use crate::publish::external_scaler::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use crate::publish::external_scaler::metrics::ScalerMetrics;
use crate::publish::external_scaler::streams::{StreamBudget, StreamBudgetLimits, activity};
use crate::server::auth::ConnectionPeer;
use crate::server::budget::{BudgetLimits, SlotLimits};
use crate::server::shed::ShedConnections;
use crate::server::{
    Handler, ResponseBody, ServerLimits, ServerPhase, ServerTransport, serve as serve_connections,
};
use plimsoll_core::fleet::{Namespace, VariantKey, VariantName};
use plimsoll_core::units::Replicas;

/// The name of the only metric. It is constant, because KEDA rewrites its HPAs when it changes.
pub const METRIC: &str = "plimsoll-desired-replicas";

/// The key of the trigger's metadata that names the variant.
const VARIANT: &str = "variant";

/// The key that people expect to name another namespace.
const NAMESPACE: &str = "namespace";

/// Bytes of a request. KEDA sends the names of the `ScaledObject` and the trigger's metadata.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Time in which a request must arrive.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of an error message, which travels in a header.
const MESSAGE_MAX: usize = 1024;

/// Answers the calls of KEDA.
pub struct ExternalScaler {
    published: watch::Receiver<Arc<Published>>,
    clock: Clock,
    ages: DecisionAges,
    phase: watch::Receiver<ServerPhase>,
    metrics: ScalerMetrics,
    streams: Arc<StreamBudget>,
}

/// Returns the limits of the server's connections.
#[must_use]
pub fn limits() -> ServerLimits {
    ServerLimits {
        connections: BudgetLimits {
            // KEDA's operator has one connection for each address, authority and client certificate
            // that triggers name, and has leaked connections.
            handshakes: SlotLimits { total: 256, per_address: 64 },
            strangers: SlotLimits { total: 128, per_address: 32 },
            verified_max: 512,
            // Every response fits into a frame.
            unwritten_max: 1 << 20,
        },
        // A stream that must wait for another to end is a model that does not start.
        streams_max: 4096,
        accepted_streams_max: 4096,
        ..ServerLimits::default()
    }
}

/// Serves until the phase is [`ServerPhase::Draining`] and the last call is answered.
pub async fn serve(
    listener: TcpListener,
    scaler: Arc<ExternalScaler>,
    transport: ServerTransport,
    limits: ServerLimits,
    shed: ShedConnections,
    phase: watch::Receiver<ServerPhase>,
    tracker: &TaskTracker,
) {
    let is_mutual = matches!(transport, ServerTransport::MutualTls(_));
    let handler = ScalerHandler { scaler, is_mutual };
    serve_connections(listener, transport, limits, shed, phase, tracker, handler).await;
}

/// The body of a call.
pub trait CallBody: Body<Error: Into<BoxError> + Send> + Send + 'static {}

impl<B: Body<Error: Into<BoxError> + Send> + Send + 'static> CallBody for B {}

/// Answers the calls of connections.
#[derive(Clone)]
struct ScalerHandler {
    scaler: Arc<ExternalScaler>,
    /// True if the handshake has verified every client.
    is_mutual: bool,
}

impl Handler for ScalerHandler {
    type Body = ResponseBody;

    fn accepts(&self, _: &ConnectionPeer) -> bool {
        self.is_mutual
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        _: Arc<ConnectionPeer>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + 'static {
        Arc::clone(&self.scaler).respond(request)
    }
}

// === impl ExternalScaler ===

impl ExternalScaler {
    /// Creates a scaler that serves `published`.
    #[must_use]
    pub fn new(
        published: watch::Receiver<Arc<Published>>,
        clock: Clock,
        ages: DecisionAges,
        phase: watch::Receiver<ServerPhase>,
        limits: StreamBudgetLimits,
        metrics: ScalerMetrics,
    ) -> Self {
        let streams = StreamBudget::new(limits, metrics.streams.clone());
        Self { published, clock, ages, phase, metrics, streams }
    }

    /// Answers a call.
    pub async fn respond<B: CallBody>(
        self: Arc<Self>,
        request: Request<B>,
    ) -> Response<ResponseBody> {
        let call = ScalerCall::parse(request.uri().path());
        let answering = Arc::clone(&self).dispatch(call, request);
        let response = timeout(REQUEST_TIME_MAX, answering).await.unwrap_or_else(|_| {
            Status::unavailable("the request did not arrive in time").into_http()
        });

        let refusal = response.extensions().get::<Status>();
        if let Some(status) = refusal {
            debug!(call = call.map(ScalerCall::label), %status, "Answered with an error");
        }
        self.metrics.answered(call, refusal);
        response.map(ResponseBody::messages)
    }

    async fn dispatch<B: CallBody>(
        self: Arc<Self>,
        call: Option<ScalerCall>,
        request: Request<B>,
    ) -> Response<tonic::body::Body> {
        match call {
            Some(ScalerCall::IsActive) => unary(request, |asked| self.is_active(&asked)).await,
            Some(ScalerCall::GetMetricSpec) => {
                unary(request, |asked| self.metric_spec(&asked)).await
            }
            Some(ScalerCall::GetMetrics) => unary(request, |asked| self.metrics_of(asked)).await,
            Some(ScalerCall::StreamIsActive) => {
                let streaming = service_fn(|asked: tonic::Request<ScaledObjectRef>| {
                    ready(self.stream(&asked.into_inner()).map(tonic::Response::new))
                });
                grpc().server_streaming(streaming, request).await
            }
            // KEDA then takes the specification of `GetMetricSpec` for good.
            Some(ScalerCall::StreamMetricSpec) => {
                Status::unimplemented("the metric never changes").into_http()
            }
            None => Status::unimplemented("unknown call").into_http(),
        }
    }

    fn is_active(&self, of: &ScaledObjectRef) -> Result<IsActiveResponse, Status> {
        let desired = self.desired(&variant(of)?)?;
        Ok(IsActiveResponse { result: desired > Replicas::ZERO })
    }

    fn metric_spec(&self, of: &ScaledObjectRef) -> Result<GetMetricSpecResponse, Status> {
        let key = variant(of)?;
        let published = self.published.borrow().clone();
        if !published.variants.contains_key(&key) {
            return Err(unknown(&published, &key));
        }

        // The value is a number of replicas, so one replica's share of it is 1.
        let spec =
            MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
        Ok(GetMetricSpecResponse { metric_specs: vec![spec] })
    }

    fn metrics_of(&self, asked: GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        let GetMetricsRequest { scaled_object_ref, metric_name } = asked;
        let of = scaled_object_ref.unwrap_or_default();
        let key = variant(&of)?;
        if metric_name != METRIC {
            let message = format!("unknown metric {metric_name:?}; use {METRIC}");
            return Err(refusal(Status::not_found, message));
        }

        let desired = self.desired(&key)?.count();
        // KEDA takes the float only if it is above 0, and the integer otherwise.
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value: i64::from(desired),
            metric_value_float: f64::from(desired),
        };
        Ok(GetMetricsResponse { metric_values: vec![value] })
    }

    fn stream(
        &self,
        of: &ScaledObjectRef,
    ) -> Result<impl Stream<Item = Result<IsActiveResponse, Status>> + Send + use<>, Status> {
        let key = variant(of)?;
        let slot = self.streams.admit(key.namespace.clone())?;

        let clock = self.clock;
        let ages = self.ages;
        let published = self.published.clone();
        Ok(activity(slot, published, self.phase.clone(), move |now_published| {
            let reading = desired(clock.elapsed(), now_published, ages, &key)?;
            reading.replicas.ok().map(|desired| desired > Replicas::ZERO)
        }))
    }

    fn desired(&self, key: &VariantKey) -> Result<Replicas, Status> {
        let published = self.published.borrow().clone();
        let reading = desired(self.clock.elapsed(), &published, self.ages, key)
            .ok_or_else(|| unknown(&published, key))?;
        reading.replicas.map_err(|why| refusal(Status::unavailable, why))
    }
}

/// Returns the variant that a trigger is for.
fn variant(of: &ScaledObjectRef) -> Result<VariantKey, Status> {
    if of.scaler_metadata.contains_key(NAMESPACE) {
        let message = "remove namespace from the trigger's metadata: the variant is always in the \
                       namespace of the ScaledObject";
        return Err(Status::invalid_argument(message));
    }

    let named = of.scaler_metadata.get(VARIANT).and_then(|name| VariantName::new(name));
    let variant = named.ok_or_else(|| {
        Status::invalid_argument("the trigger's metadata must have the key variant with its name")
    })?;
    let namespace = Namespace::new(&of.namespace)
        .ok_or_else(|| Status::invalid_argument("the ScaledObject has no namespace"))?;
    Ok(VariantKey { namespace, variant })
}

/// Returns the refusal of a variant that does not exist, with the names of its namespace.
fn unknown(published: &Published, key: &VariantKey) -> Status {
    if let Some(why) = answer::before_first_tick(published) {
        return refusal(Status::unavailable, why);
    }

    let VariantKey { namespace, variant } = key;
    let mut message = format!("there is no variant {variant} in namespace {namespace}");
    if let Some(names) = answer::names(published, &MetricScope::Namespace(namespace.clone())) {
        let _ = write!(message, "; there are: {names}");
    }

    refusal(Status::not_found, message)
}

/// Returns a refusal whose message is short enough for a header.
fn refusal(status: impl FnOnce(String) -> Status, mut message: String) -> Status {
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    status(message)
}

/// Answers a call with one message.
async fn unary<M, R, B: CallBody>(
    request: Request<B>,
    answer: impl Fn(M) -> Result<R, Status>,
) -> Response<tonic::body::Body>
where
    M: prost::Message + Default + 'static,
    R: prost::Message + 'static,
{
    let service = service_fn(|asked: tonic::Request<M>| {
        ready(answer(asked.into_inner()).map(tonic::Response::new))
    });
    grpc().unary(service, request).await
}

fn grpc<M, R>() -> Grpc<ProstCodec<R, M>>
where
    M: prost::Message + Default + 'static,
    R: prost::Message + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(REQUEST_BYTES_MAX)
}
