//! The external metrics API of Kubernetes, `external.metrics.k8s.io/v1beta1`.
//!
//! [`Api`] turns what is [`Published`] into the answers that a stock HPA controller reads, through
//! the aggregation layer of the cluster's API server. It is plain HTTP on purpose: HPA controllers,
//! `kubectl` and the aggregator need a dozen paths with JSON, and each has rules that a generic
//! server would get wrong:
//!
//! - An answer is an error rather than a guess. On an error the controller keeps what is running;
//!   on 0 it scales down. So what is unknown is 404, what is known but has no usable value is 503,
//!   and neither is ever 0 or an empty list.
//! - No answer has `Retry-After`. The controller would sleep on it and retry ten times.
//! - Discovery looks at no data. While it fails, no namespace of the cluster can be deleted.
//! - Answering a metric does no IO but asking whether the user may, which is remembered.

pub mod answer;
pub mod authorize;
mod discovery;
pub mod metrics;
mod negotiate;
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
use crate::publish::external_metrics::answer::{Metric, Question, Reading, Value};
use crate::publish::external_metrics::authorize::{Access, Authorize, Verdict};
use crate::publish::external_metrics::discovery::{Documents, Keep, PLACEHOLDER};
use crate::publish::external_metrics::metrics::Metrics;
use crate::publish::external_metrics::negotiate::{Form, negotiate};
use crate::publish::external_metrics::route::{GROUP, Page, Probe, Route};
use crate::publish::external_metrics::state::Ages;
use crate::publish::external_metrics::wire::{Failure, FailureKind};
use crate::publish::selector::Selector;
use crate::server::auth::{Identity, Peer, TrustAnchor, identify};
use crate::server::{Limits, Phase, serve as serve_connections};
use plimsoll_core::fleet::Namespace;

/// Longest time to answer. A controller's worker waits for the whole of it.
const REQUEST_MAX: Duration = Duration::from_secs(1);

/// Longest name of a namespace, which bounds what authorization remembers.
const NAMESPACE_MAX: usize = 253;

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// When decisions become old.
    pub ages: Ages,
    /// Whether the numbers are served under the workload-variant-autoscaler's name as well.
    pub wva_metrics: bool,
}

/// The answers to all requests.
pub struct Api {
    settings: Settings,
    published: watch::Receiver<Arc<Published>>,
    clock: Clock,
    trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
    authorizer: Arc<dyn Authorize>,
    metrics: Metrics,
    documents: Documents,
}

/// Serves the API until the phase is [`Phase::Draining`] and the last request is answered.
pub async fn serve(
    listener: TcpListener,
    api: Arc<Api>,
    tls: Arc<ServerConfig>,
    limits: Limits,
    phase: watch::Receiver<Phase>,
    tracker: &TaskTracker,
) {
    let seen = phase.clone();
    let handler = move |request: Request<hyper::body::Incoming>, peer: Arc<Peer>| {
        let (api, phase) = (Arc::clone(&api), *seen.borrow());
        async move { api.respond(&request, &peer, phase).await }
    };
    serve_connections(listener, tls, limits, phase, tracker, handler).await;
}

impl Api {
    /// Answers from what is published, for whom the trust anchor and the authorizer accept.
    #[must_use]
    pub fn new(
        settings: Settings,
        published: watch::Receiver<Arc<Published>>,
        clock: Clock,
        trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
        authorizer: Arc<dyn Authorize>,
        metrics: Metrics,
    ) -> Self {
        let documents = Documents::new();
        Self { settings, published, clock, trust, authorizer, metrics, documents }
    }

    /// The answer to one request. Its body is not looked at.
    pub async fn respond<B>(
        &self,
        request: &Request<B>,
        peer: &Peer,
        phase: Phase,
    ) -> Response<Full<Bytes>> {
        let started = self.clock.elapsed();
        let route = Route::parse(request.uri().path());
        let asked = Asked::read(request);
        let answer = timeout(REQUEST_MAX, self.answer(&asked, &route, peer, phase));
        let late = || Failure::new(FailureKind::Unavailable, "answering took longer than a second");
        let mut response = match answer.await.unwrap_or_else(|_| Err(late())) {
            Ok(response) => response,
            Err(failure) => {
                debug!(kind = ?failure.kind, reason = failure.message, "Answered with an error");
                failure.response()
            }
        };
        if *request.method() == Method::HEAD {
            *response.body_mut() = Full::default();
        }
        let time = self.clock.elapsed().saturating_sub(started);
        self.metrics.request(&route, response.status().as_u16(), time);
        response
    }

    async fn answer(
        &self,
        asked: &Asked<'_>,
        route: &Route,
        peer: &Peer,
        phase: Phase,
    ) -> Result<Response<Full<Bytes>>, Failure> {
        // Probes come from kubelets, which have no certificate.
        if let Route::Health(probe, check) = route {
            asked.must_read()?;
            return self.health(asked, *probe, check.as_deref(), phase);
        }
        let identity = self.identity(asked, peer)?;
        match route {
            Route::Page(page) => {
                asked.must_read()?;
                self.page(asked, *page)
            }
            Route::Metric(namespace, metric) => {
                asked.must_read()?;
                self.metric(asked, &identity, namespace, metric).await
            }
            Route::Malformed(why) => Err(Failure::new(FailureKind::BadRequest, *why)),
            Route::Health(..) | Route::Unknown => {
                Err(Failure::new(FailureKind::NotFound, "there is nothing at this path"))
            }
        }
    }

    fn page(&self, asked: &Asked<'_>, page: Page) -> Result<Response<Full<Bytes>>, Failure> {
        let offered: &[Form] = match page {
            Page::Groups => &[Form::Json, Form::DiscoveryV2],
            Page::Version
            | Page::Group
            | Page::Resources
            | Page::OpenApiV2
            | Page::OpenApiV3Index
            | Page::OpenApiV3 => &[Form::Json],
        };
        let form = asked.form(offered)?;
        let documents = &self.documents;
        let mut keep = Keep::Revalidate;
        let document = match page {
            Page::Version => &documents.version,
            Page::Groups if form == Form::DiscoveryV2 => &documents.groups_v2,
            Page::Groups => &documents.groups,
            Page::Group => &documents.group,
            Page::Resources => &documents.resources,
            Page::OpenApiV2 => &documents.openapi_v2,
            Page::OpenApiV3Index => &documents.openapi_v3_index,
            Page::OpenApiV3 => {
                // The index names the document with its hash, so under that name it never changes.
                if asked.parameter("hash")?.as_deref() == Some(documents.openapi_v3.hash()) {
                    keep = Keep::Forever;
                }
                &documents.openapi_v3
            }
        };
        Ok(document.response(asked.header(&header::IF_NONE_MATCH), keep))
    }

    fn identity(&self, asked: &Asked<'_>, peer: &Peer) -> Result<Identity, Failure> {
        let anchor = self.trust.borrow().clone();
        let anchor = anchor.ok_or_else(|| {
            let message = "the front proxy's certificate authority is not known yet: \
                           kube-system/extension-apiserver-authentication has not been read";
            Failure::new(FailureKind::Unavailable, message)
        })?;
        identify(self.clock.now(), asked.headers, peer, &anchor)
            .map_err(|refusal| Failure::new(FailureKind::Unauthorized, refusal.to_string()))
    }

    /// The state of the process. It does not depend on data: a pod that is not ready takes the
    /// whole API with it.
    fn health(
        &self,
        asked: &Asked<'_>,
        probe: Probe,
        only: Option<&str>,
        phase: Phase,
    ) -> Result<Response<Full<Bytes>>, Failure> {
        let (name, checks) = match probe {
            Probe::Live => ("livez", vec![("ping", true)]),
            Probe::Ready => {
                let trust = self.trust.borrow().is_some();
                let serving = phase == Phase::Serving;
                ("readyz", vec![("ping", true), ("trust-anchor", trust), ("shutdown", serving)])
            }
        };
        let excluded: Vec<String> = asked.parameters("exclude").collect();
        let mut checks: Vec<(&str, bool)> = checks
            .into_iter()
            .filter(|(check, _)| only.is_none_or(|only| only == *check))
            .collect();
        if checks.is_empty() {
            return Err(Failure::new(FailureKind::NotFound, "there is no such check"));
        }
        checks.retain(|(check, _)| !excluded.iter().any(|excluded| excluded == check));
        let passed = checks.iter().all(|(_, passed)| *passed);
        let verbose = asked.parameters("verbose").next().is_some();
        let mut text = String::new();
        for (check, passed) in checks {
            let line = if passed { ("+", "ok") } else { ("-", "failed: reason withheld") };
            let _ = writeln!(text, "[{}]{check} {}", line.0, line.1);
        }
        let code = if passed { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        let _ = writeln!(text, "{name} check {}", if passed { "passed" } else { "failed" });
        let text = if passed && !verbose { "ok".to_owned() } else { text };
        Ok(wire::response(code, "text/plain; charset=utf-8", text.into()))
    }

    async fn metric(
        &self,
        asked: &Asked<'_>,
        identity: &Identity,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Response<Full<Bytes>>, Failure> {
        let named = |failure: Failure| failure.of_metric(name);
        let metrics = self.metrics_named(name).map_err(named)?;
        self.authorize(identity, namespace, name).await.map_err(named)?;
        if asked.watches()? {
            let message = "watching external metrics is not supported";
            return Err(named(Failure::new(FailureKind::MethodNotAllowed, message)));
        }
        let form = asked.form(&[Form::Json, Form::Table]).map_err(named)?;
        asked.check_field_selector(namespace, name).map_err(named)?;
        let selector = asked.selector().map_err(named)?;

        let published = self.published.borrow().clone();
        let question = Question { namespace, metrics: &metrics, selector: &selector };
        let now = self.clock.elapsed();
        let readings = answer::readings(now, &published, self.settings.ages, question);
        if readings.is_empty() && name != PLACEHOLDER {
            let message = answer::unmatched(&published, namespace, &selector);
            return Err(named(Failure::new(FailureKind::NotFound, message)));
        }
        if form == Form::Table {
            return Ok(wire::table(&readings));
        }
        let values = all_values(&readings).map_err(named)?;
        for age in values.iter().filter_map(|(reading, _)| reading.state.age()) {
            self.metrics.age(age);
        }
        Ok(wire::list(&values))
    }

    /// The metrics that a name stands for. That there is no such metric is told to everybody: the
    /// names are the same in every cluster.
    fn metrics_named(&self, name: &str) -> Result<Vec<Metric>, Failure> {
        let mut served = vec![Metric::Desired];
        if self.settings.wva_metrics {
            served.push(Metric::Wva);
        }
        if name == PLACEHOLDER {
            return Ok(served);
        }
        served.push(Metric::Admissible);
        served.iter().find(|metric| metric.name() == name).map(|metric| vec![*metric]).ok_or_else(
            || {
                let names: Vec<&str> = served.iter().map(|metric| metric.name()).collect();
                let message =
                    format!("there is no metric {name:?}; there is: {}", names.join(", "));
                Failure::new(FailureKind::NotFound, message)
            },
        )
    }

    async fn authorize(
        &self,
        identity: &Identity,
        namespace: &Namespace,
        metric: &str,
    ) -> Result<(), Failure> {
        if namespace.as_str().len() > NAMESPACE_MAX {
            let message = format!("no namespace has a name longer than {NAMESPACE_MAX} bytes");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        let access = Access { namespace: namespace.as_str().to_owned(), metric: metric.to_owned() };
        let verdict = self.authorizer.authorize(identity, &access).await;
        self.metrics.authorization(&verdict);
        match verdict {
            Verdict::Allowed(_) => Ok(()),
            Verdict::Denied(reason) => {
                let mut message = format!(
                    "{metric}.{GROUP} is forbidden: User {:?} cannot list resource {metric:?} in \
                     API group {GROUP:?} in the namespace {:?}",
                    identity.user,
                    namespace.as_str()
                );
                if !reason.is_empty() {
                    let _ = write!(message, ": {reason}");
                }
                Err(Failure::new(FailureKind::Forbidden, message))
            }
            Verdict::Unavailable(reason) => {
                let message = format!("cannot ask whether this user may read metrics: {reason}");
                Err(Failure::new(FailureKind::Unavailable, message))
            }
        }
    }
}

/// All values, or the reasons of all readings that have none.
fn all_values(readings: &[Reading]) -> Result<Vec<(&Reading, Value)>, Failure> {
    let missing: Vec<&str> = readings
        .iter()
        .filter_map(|reading| reading.value.as_ref().err().map(String::as_str))
        .collect();
    if missing.is_empty() {
        let values =
            readings.iter().filter_map(|reading| Some((reading, *reading.value.as_ref().ok()?)));
        return Ok(values.collect());
    }
    Err(Failure::new(FailureKind::Unavailable, missing.join("; ")))
}

/// What is read of a request.
struct Asked<'a> {
    method: &'a Method,
    headers: &'a hyper::HeaderMap,
    query: &'a str,
}

impl<'a> Asked<'a> {
    fn read<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            headers: request.headers(),
            query: request.uri().query().unwrap_or_default(),
        }
    }

    fn must_read(&self) -> Result<(), Failure> {
        if matches!(*self.method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        let message = format!("{} is not supported: this API is read-only", self.method);
        Err(Failure::new(FailureKind::MethodNotAllowed, message))
    }

    fn header(&self, name: &HeaderName) -> Option<&'a str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn form(&self, offered: &[Form]) -> Result<Form, Failure> {
        // Several header lines are one list.
        let lines: Vec<&str> = self
            .headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let accept = (!lines.is_empty()).then(|| lines.join(","));
        negotiate(accept.as_deref(), offered).ok_or_else(|| {
            let message = "only the following media types are acceptable: application/json";
            Failure::new(FailureKind::NotAcceptable, message)
        })
    }

    /// All values of a query parameter. The aggregator writes a space as a plus sign.
    fn parameters(&self, name: &str) -> impl Iterator<Item = String> {
        form_urlencoded::parse(self.query.as_bytes())
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }

    fn parameter(&self, name: &str) -> Result<Option<String>, Failure> {
        let mut values = self.parameters(name);
        let value = values.next();
        if values.next().is_some() {
            let message = format!("the parameter {name} is there more than once");
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        Ok(value)
    }

    fn watches(&self) -> Result<bool, Failure> {
        Ok(self.parameter("watch")?.is_some_and(|watch| watch != "false" && watch != "0"))
    }

    fn selector(&self) -> Result<Selector, Failure> {
        let text = self.parameter("labelSelector")?.unwrap_or_default();
        text.parse().map_err(|error| {
            let message = format!("unable to parse the label selector {text:?}: {error}");
            Failure::new(FailureKind::BadRequest, message)
        })
    }

    /// A field selector may only say what the path says: ignoring one would answer with more than
    /// was asked for.
    fn check_field_selector(&self, namespace: &Namespace, metric: &str) -> Result<(), Failure> {
        let text = self.parameter("fieldSelector")?.unwrap_or_default();
        let said = |term: &str| {
            let (key, value) = term.split_once("==").or_else(|| term.split_once('=')).unzip();
            (key == Some("metadata.namespace") && value == Some(namespace.as_str()))
                || (key == Some("metadata.name") && value == Some(metric))
        };
        if text.is_empty() || text.split(',').all(said) {
            return Ok(());
        }
        let message = format!("the field selector {text:?} is not supported");
        Err(Failure::new(FailureKind::BadRequest, message))
    }
}
