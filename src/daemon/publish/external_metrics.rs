//! The external metrics API of Kubernetes, `external.metrics.k8s.io/v1beta1`, and on request Object
//! metrics, `custom.metrics.k8s.io/v1beta2`.
//!
//! [`ExternalMetricsApi`] turns [`Published`] into the responses that a stock HPA controller reads
//! through the aggregation layer of the cluster's API server. It is implemented directly on HTTP on
//! purpose. HPA controllers, `kubectl` and the aggregator need only a dozen paths with JSON, and a
//! generic API server would violate some of their rules:
//!
//! - If a value is unknown, the response is an error instead of a guess. On an error the controller
//!   keeps the current replicas; on 0 it scales down. So an unknown metric or variant returns 404,
//!   and a known variant without a usable value returns 503. Neither returns 0 or an empty list.
//! - No response has `Retry-After`. It would make the controller sleep and retry ten times.
//! - Discovery does not depend on data. While it fails, no namespace of the cluster can be deleted.
//! - A metric request causes no I/O except the authorization review, whose result is cached.

pub mod answer;
pub mod authorize;
mod discovery;
pub mod metrics;
mod negotiate;
mod object;
mod request;
pub mod route;
pub mod state;
mod wire;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderName};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::clock::Clock;
use crate::publish::Published;
use crate::publish::external_metrics::answer::{
    MetricReading, MetricRequest, ServedMetric, ServedValue,
};
use crate::publish::external_metrics::authorize::{Access, AccessVerdict, Authorize};
use crate::publish::external_metrics::discovery::{CachePolicy, StaticDocuments};
use crate::publish::external_metrics::metrics::ApiMetrics;
use crate::publish::external_metrics::negotiate::{ResponseForm, negotiate};
use crate::publish::external_metrics::request::ObjectRequest;
use crate::publish::external_metrics::route::{
    DescribedObject, GROUP, HealthProbe, MetricScope, OBJECT_GROUP, PLACEHOLDER, Route, StaticPage,
};
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::external_metrics::wire::{ErrorResponse, FailureKind};
use crate::publish::selector::Selector;
use crate::server::auth::{ConnectionPeer, TrustAnchor, UserIdentity, identify};
use crate::server::readiness::{Readiness, ReadinessCheck};
use crate::server::shed::ShedConnections;
use crate::server::{
    Handler, ServerLimits, ServerPhase, ServerTransport, serve as serve_connections,
};
use plimsoll_core::fleet::Namespace;

/// Time limit for a response. A controller's worker waits for all of it.
const REQUEST_MAX: Duration = Duration::from_secs(1);

/// The maximum length of a namespace name, which bounds the memory of authorization.
const NAMESPACE_MAX: usize = 253;

/// The maximum length of an object's resource or name.
const OBJECT_MAX: usize = 253;

/// The settings of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalMetricsSettings {
    /// The ages at which decisions become old.
    pub ages: DecisionAges,
    /// True if the desired replicas are also served under the workload-variant-autoscaler's metric
    /// name.
    pub wva_metrics: bool,
    /// True if Object metrics are served too.
    pub object_metrics: bool,
}

/// Responds to all requests of the API.
pub struct ExternalMetricsApi {
    settings: ExternalMetricsSettings,
    published: watch::Receiver<Arc<Published>>,
    clock: Clock,
    trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
    authorizer: Arc<dyn Authorize>,
    readiness: Readiness,
    metrics: ApiMetrics,
    documents: StaticDocuments,
}

/// Serves the API until the phase is [`ServerPhase::Draining`] and the last request has its
/// response. Connections that are closed to make room for others count in `shed`.
pub async fn serve(
    listener: TcpListener,
    api: Arc<ExternalMetricsApi>,
    tls: Arc<ServerConfig>,
    limits: ServerLimits,
    shed: ShedConnections,
    phase: watch::Receiver<ServerPhase>,
    tracker: &TaskTracker,
) {
    let transport = ServerTransport::Tls(tls);
    serve_connections(listener, transport, limits, shed, phase, tracker, ApiHandler(api)).await;
}

/// Answers the requests of connections.
#[derive(Clone)]
struct ApiHandler(Arc<ExternalMetricsApi>);

impl Handler for ApiHandler {
    type Body = Full<Bytes>;

    /// Accepts the front proxy, once its authority is known.
    fn accepts(&self, peer: &ConnectionPeer) -> bool {
        let Self(api) = self;
        let anchor = api.trust.borrow().clone();
        anchor.is_some_and(|anchor| peer.check(api.clock.now(), &anchor).is_ok())
    }

    fn answer(
        &self,
        request: Request<hyper::body::Incoming>,
        peer: Arc<ConnectionPeer>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send + 'static {
        let api = Arc::clone(&self.0);
        async move { api.respond(&request, &peer).await }
    }
}

impl ExternalMetricsApi {
    /// Creates an API that serves `published` to clients that the trust anchor and the authorizer
    /// accept.
    #[must_use]
    pub fn new(
        settings: ExternalMetricsSettings,
        published: watch::Receiver<Arc<Published>>,
        clock: Clock,
        trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
        authorizer: Arc<dyn Authorize>,
        readiness: Readiness,
        metrics: ApiMetrics,
    ) -> Self {
        let documents = StaticDocuments::new(settings.object_metrics);
        Self { settings, published, clock, trust, authorizer, readiness, metrics, documents }
    }

    /// Responds to one request. The request body is ignored.
    pub async fn respond<B>(
        &self,
        request: &Request<B>,
        peer: &ConnectionPeer,
    ) -> Response<Full<Bytes>> {
        let started = self.clock.elapsed();
        let route = Route::parse(request.uri().path());
        let asked = ExternalMetricsRequest::read(request);
        let answer =
            timeout(REQUEST_MAX, self.answer(&asked, &route, peer)).await.unwrap_or_else(|_| {
                let message = "answering took longer than a second";
                Err(ErrorResponse::new(FailureKind::Unavailable, message))
            });

        let mut response = answer.unwrap_or_else(|failure| {
            debug!(kind = ?failure.kind, reason = failure.message, "Answered with an error");
            failure.response()
        });

        if *request.method() == Method::HEAD {
            *response.body_mut() = Full::default();
        }

        let time = self.clock.elapsed().saturating_sub(started);
        self.metrics.request(&route, response.status().as_u16(), time);
        response
    }

    async fn answer(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        route: &Route,
        peer: &ConnectionPeer,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        // Probes come from kubelets, which have no certificate.
        if let Route::Health(probe, check) = route {
            asked.must_read()?;
            return self.health(asked, *probe, check.as_deref());
        }

        let identity = self.identity(asked, peer)?;
        if route.is_of_objects() && !self.settings.object_metrics {
            let message = "Object metrics are not served: external_metrics.object_metrics is false";
            return Err(ErrorResponse::new(FailureKind::NotFound, message));
        }

        match route {
            Route::Page(page) => {
                asked.must_read()?;
                self.page(asked, *page)
            }
            Route::Metric(scope, metric) => {
                asked.must_read()?;
                self.metric(asked, &identity, scope, metric).await
            }
            Route::ObjectMetric(namespace, object, metric) => {
                asked.must_read()?;
                let answer = self.object_metric(asked, &identity, namespace, object, metric).await;
                answer.map_err(|it| it.of_metric(metric))
            }
            Route::Malformed(why) => Err(ErrorResponse::new(FailureKind::BadRequest, *why)),
            Route::Health(..) | Route::Unknown => {
                Err(ErrorResponse::new(FailureKind::NotFound, "unknown path"))
            }
        }
    }

    fn page(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        page: StaticPage,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let offered: &[ResponseForm] = match page {
            StaticPage::Groups => &[ResponseForm::Json, ResponseForm::DiscoveryV2],
            StaticPage::Version
            | StaticPage::Group
            | StaticPage::Resources
            | StaticPage::ObjectGroup
            | StaticPage::ObjectResources
            | StaticPage::OpenApiV2
            | StaticPage::OpenApiV3Index
            | StaticPage::OpenApiV3 => &[ResponseForm::Json],
        };

        let form = asked.form(offered)?;
        let documents = &self.documents;
        let mut keep = CachePolicy::Revalidate;
        let document = match page {
            StaticPage::Version => &documents.version,
            StaticPage::Groups if form == ResponseForm::DiscoveryV2 => &documents.groups_v2,
            StaticPage::Groups => &documents.groups,
            StaticPage::Group => &documents.group,
            StaticPage::Resources => &documents.resources,
            StaticPage::ObjectGroup => &documents.object_group,
            StaticPage::ObjectResources => &documents.object_resources,
            StaticPage::OpenApiV2 => &documents.openapi_v2,
            StaticPage::OpenApiV3Index => &documents.openapi_v3_index,
            StaticPage::OpenApiV3 => {
                // The index refers to the document by its hash, so under that address it never
                // changes.
                if asked.parameter("hash")?.as_deref() == Some(documents.openapi_v3.hash()) {
                    keep = CachePolicy::Forever;
                }
                &documents.openapi_v3
            }
        };

        Ok(document.response(asked.header(&header::IF_NONE_MATCH), keep))
    }

    fn identity(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        peer: &ConnectionPeer,
    ) -> Result<UserIdentity, ErrorResponse> {
        let known = self.trust.borrow().clone();
        let anchor = known.ok_or_else(|| {
            let message = "the front proxy's certificate authority is not known yet: \
                           kube-system/extension-apiserver-authentication has not been read";
            ErrorResponse::new(FailureKind::Unavailable, message)
        })?;

        identify(self.clock.now(), asked.headers, peer, &anchor)
            .map_err(|refusal| ErrorResponse::new(FailureKind::Unauthorized, refusal.to_string()))
    }

    /// Responds with the state of the process. It does not depend on data, because a pod that is
    /// not ready makes the whole API unavailable.
    fn health(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        probe: HealthProbe,
        only: Option<&str>,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let (name, all) = match probe {
            HealthProbe::Live => ("livez", vec![("ping", Ok(()))]),
            HealthProbe::Ready => ("readyz", self.readiness.checks()),
        };

        let excluded: Vec<String> = asked.parameters("exclude").collect();
        let mut checks: Vec<ReadinessCheck> =
            all.into_iter().filter(|(check, _)| only.is_none_or(|only| only == *check)).collect();
        if checks.is_empty() {
            return Err(ErrorResponse::new(FailureKind::NotFound, "there is no such check"));
        }

        checks.retain(|(check, _)| !excluded.iter().any(|excluded| excluded == check));
        let passed = checks.iter().all(|(_, outcome)| outcome.is_ok());
        let verbose = asked.parameters("verbose").next().is_some();
        let mut text = String::new();
        for (check, outcome) in checks {
            let line = if outcome.is_ok() { ("+", "ok") } else { ("-", "failed: reason withheld") };
            let _ = writeln!(text, "[{}]{check} {}", line.0, line.1);
        }

        let code = if passed { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        let _ = writeln!(text, "{name} check {}", if passed { "passed" } else { "failed" });
        let body = if passed && !verbose { "ok".to_owned() } else { text };
        Ok(wire::response(code, "text/plain; charset=utf-8", body.into()))
    }

    async fn metric(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        identity: &UserIdentity,
        scope: &MetricScope,
        name: &str,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let metrics = self.metrics_named(name).map_err(|it| it.of_metric(name))?;
        let access = self.authorize(identity, scope, name, None).await;
        access.map_err(|it| it.of_metric(name))?;
        if asked.watches()? {
            let message = "watching external metrics is not supported";
            return Err(ErrorResponse::new(FailureKind::MethodNotAllowed, message).of_metric(name));
        }

        let form = asked
            .form(&[ResponseForm::Json, ResponseForm::Table])
            .map_err(|it| it.of_metric(name))?;
        asked.check_field_selector(scope, name).map_err(|it| it.of_metric(name))?;
        let selector = asked.selector("labelSelector").map_err(|it| it.of_metric(name))?;

        let published = self.published.borrow().clone();
        let question = MetricRequest { scope, metrics: &metrics, selector: &selector };
        let now = self.clock.elapsed();
        let readings = answer::readings(now, &published, self.settings.ages, question);
        if readings.is_empty() && name != PLACEHOLDER {
            let (kind, message) = match answer::before_first_tick(&published) {
                Some(why) => (FailureKind::Unavailable, why),
                None => (FailureKind::NotFound, answer::unmatched(&published, scope, &selector)),
            };
            return Err(ErrorResponse::new(kind, message).of_metric(name));
        }

        if form == ResponseForm::Table {
            return Ok(wire::table(&readings));
        }

        let values = all_values(&readings).map_err(|it| it.of_metric(name))?;
        for age in values.iter().filter_map(|(reading, _)| reading.state.age()) {
            self.metrics.age(age);
        }

        Ok(wire::list(&values))
    }

    async fn object_metric(
        &self,
        asked: &ExternalMetricsRequest<'_>,
        identity: &UserIdentity,
        namespace: &Namespace,
        object: &DescribedObject,
        name: &str,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let metrics = self.metrics_named(name)?;
        let metric = match metrics.as_slice() {
            [metric] if name != PLACEHOLDER => *metric,
            _ => {
                let message = "listing all metrics of an object is not supported";
                return Err(ErrorResponse::new(FailureKind::NotFound, message));
            }
        };

        let scope = MetricScope::Namespace(namespace.clone());
        self.authorize(identity, &scope, name, Some(object)).await?;
        asked.form(&[ResponseForm::Json])?;
        let selector = asked.selector("metricLabelSelector")?;
        let published = self.published.borrow().clone();
        let request = ObjectRequest { namespace, object, metric, selector: &selector };
        let now = self.clock.elapsed();
        let value = object::value(now, &published, self.settings.ages, request)?;
        Ok(wire::object_list(&request, value))
    }

    /// Returns the metrics that a name stands for. An unknown name is an error even without
    /// authorization, because the names are the same in every cluster.
    fn metrics_named(&self, name: &str) -> Result<Vec<ServedMetric>, ErrorResponse> {
        let mut served = vec![ServedMetric::Desired];
        if self.settings.wva_metrics {
            served.push(ServedMetric::Wva);
        }
        if name == PLACEHOLDER {
            return Ok(served);
        }

        served.push(ServedMetric::Admissible);
        served.iter().find(|metric| metric.name() == name).map(|metric| vec![*metric]).ok_or_else(
            || {
                let names: Vec<&str> = served.iter().map(|metric| metric.name()).collect();
                let message =
                    format!("unknown metric {name:?}; known metrics: {}", names.join(", "));
                ErrorResponse::new(FailureKind::NotFound, message)
            },
        )
    }

    async fn authorize(
        &self,
        identity: &UserIdentity,
        scope: &MetricScope,
        metric: &str,
        object: Option<&DescribedObject>,
    ) -> Result<(), ErrorResponse> {
        if object.is_some_and(|it| it.resource.len() > OBJECT_MAX || it.name.len() > OBJECT_MAX) {
            let message = format!("the name of an object has at most {OBJECT_MAX} bytes");
            return Err(ErrorResponse::new(FailureKind::NotFound, message));
        }
        if scope.as_str().len() > NAMESPACE_MAX {
            let message = format!("the name of a namespace has at most {NAMESPACE_MAX} bytes");
            return Err(ErrorResponse::new(FailureKind::NotFound, message));
        }

        let access = Access {
            namespace: scope.as_str().to_owned(),
            metric: metric.to_owned(),
            object: object.cloned(),
        };
        let verdict = self.authorizer.authorize(identity, &access).await;
        self.metrics.authorization(&verdict);
        match verdict {
            AccessVerdict::Allowed(_) => Ok(()),
            AccessVerdict::Denied(reason) => {
                let place = match scope {
                    MetricScope::Namespace(namespace) => {
                        format!("in the namespace {:?}", namespace.as_str())
                    }
                    MetricScope::AllNamespaces => "at the cluster scope".to_owned(),
                };
                let (group, verb, resource) = match object {
                    None => (GROUP, "list", metric.to_owned()),
                    Some(object) => (OBJECT_GROUP, "get", format!("{}/{metric}", object.resource)),
                };
                let mut message = format!(
                    "{metric}.{group} is forbidden: User {:?} cannot {verb} resource {resource:?} \
                     in API group {group:?} {place}",
                    identity.user
                );
                if !reason.is_empty() {
                    let _ = write!(message, ": {reason}");
                }

                Err(ErrorResponse::new(FailureKind::Forbidden, message))
            }
            AccessVerdict::Unavailable(reason) => {
                let message = format!("cannot check whether this user may read metrics: {reason}");
                Err(ErrorResponse::new(FailureKind::Unavailable, message))
            }
        }
    }
}

/// Returns all values, or the reasons of all readings without a value.
fn all_values(
    readings: &[MetricReading],
) -> Result<Vec<(&MetricReading, ServedValue)>, ErrorResponse> {
    let missing: Vec<&str> = readings
        .iter()
        .filter_map(|reading| reading.value.as_ref().err().map(String::as_str))
        .collect();
    if missing.is_empty() {
        let values =
            readings.iter().filter_map(|reading| Some((reading, *reading.value.as_ref().ok()?)));
        return Ok(values.collect());
    }

    Err(ErrorResponse::new(FailureKind::Unavailable, missing.join("; ")))
}

/// The parts of a request that the API reads.
struct ExternalMetricsRequest<'a> {
    method: &'a Method,
    headers: &'a hyper::HeaderMap,
    query: &'a str,
}

impl<'a> ExternalMetricsRequest<'a> {
    fn read<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            headers: request.headers(),
            query: request.uri().query().unwrap_or_default(),
        }
    }

    fn must_read(&self) -> Result<(), ErrorResponse> {
        if matches!(*self.method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        let message = format!("{} is not supported: this API is read-only", self.method);
        Err(ErrorResponse::new(FailureKind::MethodNotAllowed, message))
    }

    fn header(&self, name: &HeaderName) -> Option<&'a str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn form(&self, offered: &[ResponseForm]) -> Result<ResponseForm, ErrorResponse> {
        // Several header lines form one list.
        let lines: Vec<&str> = self
            .headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let accept = (!lines.is_empty()).then(|| lines.join(","));

        negotiate(accept.as_deref(), offered).ok_or_else(|| {
            let message = "only the following media types are acceptable: application/json";
            ErrorResponse::new(FailureKind::NotAcceptable, message)
        })
    }

    /// Returns all values of a query parameter. The aggregator encodes a space as a plus sign.
    fn parameters(&self, name: &str) -> impl Iterator<Item = String> {
        form_urlencoded::parse(self.query.as_bytes())
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }

    fn parameter(&self, name: &str) -> Result<Option<String>, ErrorResponse> {
        let mut values = self.parameters(name);
        let value = values.next();
        if values.next().is_some() {
            let message = format!("the parameter {name} is repeated");
            return Err(ErrorResponse::new(FailureKind::BadRequest, message));
        }
        Ok(value)
    }

    fn watches(&self) -> Result<bool, ErrorResponse> {
        Ok(self.parameter("watch")?.is_some_and(|watch| watch != "false" && watch != "0"))
    }

    fn selector(&self, name: &str) -> Result<Selector, ErrorResponse> {
        let text = self.parameter(name)?.unwrap_or_default();
        text.parse().map_err(|error| {
            let message = format!("unable to parse the label selector {text:?}: {error}");
            ErrorResponse::new(FailureKind::BadRequest, message)
        })
    }

    /// Checks that a field selector only repeats the path. If other selectors were ignored, the
    /// response would contain more than the client asked for.
    fn check_field_selector(&self, scope: &MetricScope, metric: &str) -> Result<(), ErrorResponse> {
        let text = self.parameter("fieldSelector")?.unwrap_or_default();
        if text.is_empty() || text.split(',').all(|term| repeats_path(term, scope, metric)) {
            return Ok(());
        }

        let message = format!("the field selector {text:?} is not supported");
        Err(ErrorResponse::new(FailureKind::BadRequest, message))
    }
}

/// Returns true if a term of a field selector names the namespace or the metric of the path.
fn repeats_path(term: &str, scope: &MetricScope, metric: &str) -> bool {
    let (key, value) = term.split_once("==").or_else(|| term.split_once('=')).unzip();
    (key == Some("metadata.namespace") && value == Some(scope.as_str()))
        || (key == Some("metadata.name") && value == Some(metric))
}
