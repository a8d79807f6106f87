//! The external metrics API behind its front proxy.
//!
//! The fuzzer controls the whole request except the client certificate: the front proxy's or none.
//! One namespace denies all access, and of another nobody knows who may read it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response};
use percent_encoding::percent_decode_str;
use plimsoll::clock::Clock;
use plimsoll::decide::sized::AdmissibleRate;
use plimsoll::decide::{Basis, Decision, Reason, Stage, Step};
use plimsoll::fleet::{
    Bounds, ModelKey, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll::observe::Observation;
use plimsoll::publish::external_metrics::authorize::{
    Access, AccessVerdict, Authorize, PermissionSource,
};
use plimsoll::publish::external_metrics::metrics::ApiMetrics;
use plimsoll::publish::external_metrics::route::Route;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_metrics::{ExternalMetricsApi, ExternalMetricsSettings};
use plimsoll::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll::server::ServerPhase;
use plimsoll::server::auth::{ConnectionPeer, TrustAnchor, UserIdentity};
use plimsoll::server::readiness::Readiness;
use plimsoll::units::{CostPerHour, Fraction, Replicas, RequestRate, Seconds};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::request;

/// The default maximum ages of a daemon's decisions.
const AGES: DecisionAges =
    DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };

/// The namespace that denies all access.
pub(super) const CLOSED: &str = "closed";

/// The namespace whose permissions cannot be reviewed.
const AWAY: &str = "away";

/// The variant in the closed namespace: a text that only a response about it can contain.
pub(super) const HIDDEN: &str = "hidden-5d1f0c";

/// The name under which all metrics are listed.
const PLACEHOLDER: &str = "externalmetrics";

/// The metrics that exist.
const METRICS: [&str; 3] = [
    "plimsoll_desired_replicas",
    "wva_desired_replicas",
    "plimsoll_admissible_requests_per_second",
];

/// The variants that anyone may read.
static READABLE: [ReadableVariant; 5] = [
    ReadableVariant { namespace: "shop", name: "a", replicas: Some(3), millirate: None },
    ReadableVariant { namespace: "shop", name: "b", replicas: Some(7), millirate: Some(12_345) },
    ReadableVariant { namespace: "shop", name: "cold", replicas: None, millirate: None },
    ReadableVariant { namespace: "shop", name: "expired", replicas: None, millirate: None },
    ReadableVariant { namespace: "lab", name: "a", replicas: Some(11), millirate: Some(29_500) },
];

/// The variant in the closed namespace.
static HIDDEN_VARIANT: ReadableVariant =
    ReadableVariant { namespace: CLOSED, name: HIDDEN, replicas: Some(5), millirate: Some(1) };

/// A variant, and what may be served of it: nothing that is `None`.
pub(super) struct ReadableVariant {
    namespace: &'static str,
    name: &'static str,
    pub(super) replicas: Option<u32>,
    /// The admissible requests per second, in thousandths.
    millirate: Option<u32>,
}

/// The state shared by all inputs.
struct Scene {
    runtime: Runtime,
    serving: ExternalMetricsApi,
    /// An API that does not know the front proxy's authority, in a process that shuts down.
    leaving: ExternalMetricsApi,
    proxy: ConnectionPeer,
    stranger: ConnectionPeer,
    /// Dropped senders would end their receivers.
    _senders: Senders,
}

/// The senders of all that an API receives.
struct Senders {
    _published: watch::Sender<Arc<Published>>,
    _trust: [watch::Sender<Option<Arc<TrustAnchor>>>; 2],
    _phases: [watch::Sender<ServerPhase>; 2],
}

/// Answers a request. Responses must not contain a guess, or anything that the caller may not read.
pub fn check(input: &[u8]) {
    answers(input);
}

/// Answers a request of the front proxy, of a stranger, and of the front proxy while nobody knows
/// it. Returns the route and the status code of each answer.
pub fn answers(input: &[u8]) -> Vec<(String, u16)> {
    static STAGE: OnceLock<Scene> = OnceLock::new();
    let Some(request) = request::read(input) else { return Vec::new() };
    let stage = STAGE.get_or_init(Scene::new);
    let route = Route::parse(request.uri().path());
    let is_health = matches!(route, Route::Health(..));

    let known = stage.answer(&stage.serving, &stage.proxy, &request, input);
    let unknown = stage.answer(&stage.serving, &stage.stranger, &request, input);
    assert!(is_health || unknown == 401, "{route:?} is answered to a stranger with {unknown}");
    let untrusted = stage.answer(&stage.leaving, &stage.proxy, &request, input);
    assert!(is_health || untrusted == 503, "{route:?} is answered to anybody with {untrusted}");

    [known, unknown, untrusted].map(|code| (name(&route), code)).into()
}

/// A route's name, which has nothing of the request in it.
fn name(route: &Route) -> String {
    match route {
        Route::Health(probe, _) => format!("{probe:?}"),
        Route::Page(page) => format!("{page:?}"),
        Route::Metric(_, name) if name == PLACEHOLDER || METRICS.contains(&name.as_str()) => {
            name.clone()
        }
        Route::Metric(..) => "another metric".to_owned(),
        Route::ObjectMetric(..) => "the metric of an object".to_owned(),
        Route::Malformed(_) => "malformed".to_owned(),
        Route::Unknown => "unknown".to_owned(),
    }
}

/// Reads a response, which an HPA controller must be able to handle.
fn read(response: Response<Full<Bytes>>, is_head: bool) -> (u16, String) {
    let code = response.status().as_u16();
    assert!([200, 304, 400, 401, 403, 404, 405, 406, 500, 503].contains(&code), "{code}");
    for header in ["retry-after", "location"] {
        assert!(!response.headers().contains_key(header), "{code} with {header}");
    }
    let body = response.into_body().collect().now_or_never();
    let body = body.expect("the body is there").expect("a body in memory can be read").to_bytes();
    assert!(!is_head || body.is_empty(), "HEAD is answered with a body");
    let text = String::from_utf8(body.to_vec()).expect("an answer is text");
    let document: Option<Value> = serde_json::from_str(&text).ok();
    let retry = document.as_ref().map(|document| &document["details"]["retryAfterSeconds"]);
    assert!(retry.is_none_or(Value::is_null), "{text}");
    (code, text)
}

/// Every value must be one that may be served. A question without a selector is answered with all
/// variants, and no question with none.
fn metric(namespace: &str, name: &str, is_selected: bool, text: &str) {
    assert!(![CLOSED, AWAY].contains(&namespace), "{namespace} is readable: {text}");
    let document: Value = serde_json::from_str(text).expect("an answer is JSON");
    let is_table = document["kind"] == "Table";
    let values = if is_table { rows(&document) } else { items(&document, namespace) };

    for (metric, variant, value) in &values {
        assert!(name == PLACEHOLDER || name == metric, "{name} is answered with {text}");
        let served = variant_named(namespace, variant).value(metric);
        let shown = served.or_else(|| is_table.then(|| "<unknown>".to_owned()));
        assert_eq!(shown.as_ref(), Some(value), "{metric} of {variant}: {text}");
    }

    let found: BTreeSet<_> = values.iter().map(|(metric, variant, _)| (metric, variant)).collect();
    assert_eq!(found.len(), values.len(), "a variant counts twice: {text}");
    assert!(!values.is_empty() || name == PLACEHOLDER, "an HPA takes nothing for zero: {text}");
    let metrics = if name == PLACEHOLDER { 2 } else { 1 };
    let all = READABLE.iter().filter(|it| it.namespace == namespace).count() * metrics;
    assert!(is_selected || found.len() == all, "a part of {all} values: {text}");
}

/// The variant of this name, if there is one, readable or not.
pub(super) fn known(namespace: &str, name: &str) -> Option<&'static ReadableVariant> {
    let mut all = READABLE.iter().chain([&HIDDEN_VARIANT]);
    all.find(|it| it.namespace == namespace && it.name == name)
}

fn variant_named(namespace: &str, name: &str) -> &'static ReadableVariant {
    let found = READABLE.iter().find(|it| it.namespace == namespace && it.name == name);
    found.unwrap_or_else(|| panic!("nobody asked for {name} of {namespace}"))
}

/// The values of a list: metric, variant and value.
fn items(list: &Value, namespace: &str) -> Vec<(String, String, String)> {
    assert_eq!(list["kind"], "ExternalMetricValueList");
    let items = list["items"].as_array().expect("a list has items");
    let read = items.iter().map(|item| {
        let labels = &item["metricLabels"];
        let metric = word(&item["metricName"]);
        let mut label = "variant";
        if metric == "wva_desired_replicas" {
            label = "variant_name";
            assert_eq!(labels["namespace"], namespace, "{item}");
            assert_eq!(labels["exported_namespace"], namespace, "{item}");
        }
        (metric, word(&labels[label]), word(&item["value"]))
    });
    read.collect()
}

/// The values of a table: metric, variant and value.
fn rows(table: &Value) -> Vec<(String, String, String)> {
    let rows = table["rows"].as_array().expect("a table has rows");
    let cells = rows.iter().map(|row| &row["cells"]);
    cells.map(|cells| (word(&cells[0]), word(&cells[1]), word(&cells[2]))).collect()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a text")).to_owned()
}

// === impl ReadableVariant ===

impl ReadableVariant {
    fn value(&self, metric: &str) -> Option<String> {
        match metric {
            "plimsoll_desired_replicas" | "wva_desired_replicas" => {
                self.replicas.map(|replicas| replicas.to_string())
            }
            "plimsoll_admissible_requests_per_second" => {
                self.millirate.map(|rate| format!("{rate}m"))
            }
            _ => panic!("there is no metric {metric}"),
        }
    }
}

// === impl Scene ===

impl Scene {
    fn new() -> Self {
        let clock = Clock::start();
        let published = watch::Sender::new(Arc::new(published(clock)));
        let (anchor, proxy) = front_proxy();
        let trust = [Some(Arc::new(anchor)), None].map(watch::Sender::new);
        let phases = [ServerPhase::Serving, ServerPhase::Unready].map(watch::Sender::new);
        let api = |place: usize| {
            let readiness =
                Readiness::new(phases[place].subscribe()).with_trust(trust[place].subscribe());
            ExternalMetricsApi::new(
                ExternalMetricsSettings { ages: AGES, wva_metrics: true, object_metrics: false },
                published.subscribe(),
                clock,
                trust[place].subscribe(),
                Arc::new(ByNamespace),
                readiness,
                ApiMetrics::register(&prometheus::Registry::new()).expect("the registry is empty"),
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();

        Self {
            runtime: runtime.expect("a runtime without threads can be built"),
            serving: api(0),
            leaving: api(1),
            proxy,
            stranger: ConnectionPeer::new(Vec::new()),
            _senders: Senders { _published: published, _trust: trust, _phases: phases },
        }
    }

    /// Asks an API and checks its answer. Returns the status code.
    fn answer(
        &self,
        api: &ExternalMetricsApi,
        peer: &ConnectionPeer,
        request: &Request<Full<Bytes>>,
        input: &[u8],
    ) -> u16 {
        let is_head = *request.method() == Method::HEAD;
        let response = self.runtime.block_on(api.respond(request, peer));
        let (code, text) = read(response, is_head);
        let route = Route::parse(request.uri().path());
        let is_health = matches!(route, Route::Health(..));
        if code < 400 && !request.headers().contains_key("x-remote-user") {
            assert!(is_health, "{route:?} is answered to nobody");
        }
        if is_head {
            return code;
        }

        let said = String::from_utf8_lossy(input);
        let said = percent_decode_str(&said).decode_utf8_lossy();
        assert!(!text.contains(HIDDEN) || said.contains(HIDDEN), "{code}: {text}");
        if code >= 400 && !(is_health && code == 500) {
            let status: Value = serde_json::from_str(&text).expect("an error is a Status");
            assert_eq!(status["kind"], "Status", "{status}");
            assert_eq!(status["code"], code, "{status}");
            let message = status["message"].as_str();
            assert!(message.is_some_and(|message| !message.is_empty()), "{status}");
        }
        if code == 200
            && let Route::Metric(namespace, name) = &route
        {
            metric(namespace.as_str(), name, request.uri().query().is_some(), &text);
        }

        code
    }
}

/// Allows all access except to two namespaces, and so not to all namespaces together.
struct ByNamespace;

impl Authorize for ByNamespace {
    fn authorize<'a>(
        &'a self,
        _: &'a UserIdentity,
        access: &'a Access,
    ) -> BoxFuture<'a, AccessVerdict> {
        let verdict = match access.namespace.as_str() {
            CLOSED | "" => AccessVerdict::Denied("nobody may".to_owned()),
            AWAY => AccessVerdict::Unavailable("nobody knows".to_owned()),
            _ => AccessVerdict::Allowed(PermissionSource::Trusted),
        };
        std::future::ready(verdict).boxed()
    }
}

pub(super) fn published(clock: Clock) -> Published {
    // Values that never expire.
    let later = clock.elapsed() + Duration::from_hours(24 * 365);
    let variants = READABLE.iter().chain([&HIDDEN_VARIANT]).map(|readable| {
        let decided = match (readable.name, readable.replicas) {
            ("expired", _) => Some((9, Duration::ZERO)),
            (_, replicas) => replicas.map(|replicas| (replicas, later)),
        };
        variant(readable, decided)
    });
    let variants: BTreeMap<VariantKey, PublishedVariant> =
        variants.map(|variant| (variant.spec.key.clone(), variant)).collect();
    Published { generation: 1, variants, ..Published::default() }
}

fn variant(readable: &ReadableVariant, decided: Option<(u32, Duration)>) -> PublishedVariant {
    let namespace = Namespace::new(readable.namespace).expect("it is not empty");
    let variant = VariantName::new(readable.name).expect("it is not empty");
    let key = VariantKey { namespace: namespace.clone(), variant };
    let model = ModelName::new("meta-llama/Llama-3.1-8B").expect("it is not empty");
    let at = jiff::Timestamp::UNIX_EPOCH;
    let decision = |count| {
        let after = Replicas::new(count).expect("it is small");
        let reason = Reason::Settling { remaining: Seconds::ZERO };
        Decision {
            variant: key.clone(),
            model: ModelKey { namespace: namespace.clone(), model: model.clone() },
            current: None,
            bounds: Bounds::default(),
            steps: vec![Step { stage: Stage::Analyze, before: after, after, reason }],
            inputs_at: at,
            basis: Basis::Fresh,
            admissible: readable.millirate.map(admissible),
            sizing: None,
        }
    };
    PublishedVariant {
        decided: decided.map(|(count, elapsed)| PublishedDecision {
            decision: decision(count),
            at,
            elapsed,
        }),
        spec: VariantSpec {
            key: key.clone(),
            model: model.clone(),
            accelerator: None,
            gpus: None,
            role: Role::Both,
            cost: CostPerHour::ZERO,
            list_price: None,
            start_time: None,
            mismatch: Fraction::ONE,
            bounds: Bounds::default(),
        },
        observation: Observation::of_nothing(Bounds::default()),
        report: None,
        undecided: None,
    }
}

/// An admissible rate in thousandths of a request per second.
fn admissible(millirate: u32) -> AdmissibleRate {
    AdmissibleRate {
        variant: RequestRate::new(f64::from(millirate) / 1000.0).expect("it is positive"),
        model: None,
        serving: Replicas::ZERO.up(),
    }
}

/// A front-proxy authority, and the peer of a connection with one of its client certificates.
fn front_proxy() -> (TrustAnchor, ConnectionPeer) {
    let params = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).expect("there are no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let authority_key = KeyPair::generate().expect("there is randomness");
    let mut authority = params("front-proxy-ca");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).expect("the key fits").pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let mut client = params("front-proxy-client");
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client_key = KeyPair::generate().expect("there is randomness");
    let client = client.signed_by(&client_key, &issuer).expect("the key fits");
    let data = [
        ("requestheader-client-ca-file", pem.as_str()),
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let anchor = TrustAnchor::from_config_map(&data).expect("it is as clusters publish it");
    (anchor, ConnectionPeer::new(vec![client.der().clone()]))
}
