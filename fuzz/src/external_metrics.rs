//! The external metrics API behind its front proxy.
//!
//! The fuzzer controls the whole request except the client certificate, which is the front proxy's.
//! One namespace denies all access.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::{Method, Response};
use percent_encoding::percent_decode_str;
use plimsoll::clock::Clock;
use plimsoll::decide::{Basis, Decision, Reason, Stage, Step};
use plimsoll::fleet::{
    Bounds, ModelKey, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll::observe::Observation;
use plimsoll::publish::external_metrics::authorize::{
    Access, AccessVerdict, Authorize, PermissionSource,
};
use plimsoll::publish::external_metrics::metrics::ApiMetrics;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_metrics::{ExternalMetricsApi, ExternalMetricsSettings};
use plimsoll::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll::server::ServerPhase;
use plimsoll::server::auth::{ConnectionPeer, TrustAnchor, UserIdentity};
use plimsoll::server::readiness::Readiness;
use plimsoll::units::{CostPerHour, Fraction, Replicas, Seconds};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::request;

/// The default maximum ages of a daemon's decisions.
const AGES: DecisionAges =
    DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };

/// The namespace that denies all access.
const CLOSED: &str = "closed";

/// The variant in it: a text that only a response about it can contain.
const HIDDEN: &str = "hidden-5d1f0c";

/// The served variants, with their desired replicas.
const SERVED: [(&str, &str, u32); 3] = [("shop", "a", 3), ("shop", "b", 7), ("lab", "a", 11)];

/// The state shared by all inputs.
struct Scene {
    runtime: Runtime,
    api: ExternalMetricsApi,
    peer: ConnectionPeer,
    /// A dropped sender would end its receiver.
    _published: watch::Sender<Arc<Published>>,
    _trust: watch::Sender<Option<Arc<TrustAnchor>>>,
}

/// Answers a request. Responses must not contain a guess, or anything that the caller may not read.
pub fn check(input: &[u8]) {
    static STAGE: OnceLock<Scene> = OnceLock::new();
    let Some(request) = request::read(input) else { return };
    let stage = STAGE.get_or_init(Scene::new);
    let response = stage.runtime.block_on(stage.api.respond(&request, &stage.peer));
    let is_head = *request.method() == Method::HEAD;
    let (code, text) = read(response, is_head);
    if is_head {
        return;
    }
    let said = String::from_utf8_lossy(input);
    let said = percent_decode_str(&said).decode_utf8_lossy();
    assert!(!text.contains(HIDDEN) || said.contains(HIDDEN), "{code}: {text}");
    let path = request.uri().path();
    let is_health = ["livez", "healthz", "readyz"].contains(&path.split('/').nth(1).unwrap_or(""));
    if code >= 400 && !(is_health && code == 500) {
        let status: Value = serde_json::from_str(&text).expect("an error is a Status");
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["code"], code, "{status}");
        assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{status}");
    }
    if code == 200 && !request.headers().contains_key("x-remote-user") {
        assert!(is_health, "{path} is answered to nobody");
    }
    if code == 200 && path.split('/').nth(4) == Some("namespaces") {
        metric(&text);
    }
}

/// Reads a response, which an HPA controller must be able to handle.
fn read(response: Response<http_body_util::Full<Bytes>>, is_head: bool) -> (u16, String) {
    let code = response.status().as_u16();
    assert!([200, 304, 400, 401, 403, 404, 405, 406, 500, 503].contains(&code), "{code}");
    for header in ["retry-after", "location"] {
        assert!(!response.headers().contains_key(header), "{code} with {header}");
    }
    let body = response.into_body().collect().now_or_never();
    let body = body.expect("the body is there").expect("a body in memory can be read").to_bytes();
    assert!(!is_head || body.is_empty(), "HEAD is answered with a body");
    let text = String::from_utf8(body.to_vec()).expect("an answer is text");
    assert!(!text.contains("retryAfterSeconds"), "{text}");
    (code, text)
}

/// Every value must be a published one.
fn metric(text: &str) {
    let list: Value = serde_json::from_str(text).expect("a list is JSON");
    if list["kind"] == "Table" {
        return;
    }
    assert_eq!(list["kind"], "ExternalMetricValueList");
    for item in list["items"].as_array().expect("a list has items") {
        let is = |(namespace, variant, count): &(&str, &str, u32)| {
            let labels = &item["metricLabels"];
            labels["namespace"] == *namespace
                && labels["variant"] == *variant
                && item["value"].as_str() == Some(&count.to_string())
        };
        assert!(SERVED.iter().any(is), "{item}");
    }
}

// === impl Scene ===

impl Scene {
    fn new() -> Self {
        let clock = Clock::start();
        let published = watch::Sender::new(Arc::new(published(clock)));
        let (anchor, peer) = front_proxy();
        let trust = watch::Sender::new(Some(Arc::new(anchor)));
        let phase = watch::Sender::new(ServerPhase::Serving);
        let readiness = Readiness::new(phase.subscribe()).with_trust(trust.subscribe());
        let api = ExternalMetricsApi::new(
            ExternalMetricsSettings { ages: AGES, wva_metrics: true },
            published.subscribe(),
            clock,
            trust.subscribe(),
            Arc::new(NobodyInClosed),
            readiness,
            ApiMetrics::register(&prometheus::Registry::new()).expect("the registry is empty"),
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without threads can be built");
        Self { runtime, api, peer, _published: published, _trust: trust }
    }
}

/// Allows all access except to the closed namespace.
struct NobodyInClosed;

impl Authorize for NobodyInClosed {
    fn authorize<'a>(
        &'a self,
        _: &'a UserIdentity,
        access: &'a Access,
    ) -> BoxFuture<'a, AccessVerdict> {
        let verdict = if access.namespace == CLOSED {
            AccessVerdict::Denied("nobody may".to_owned())
        } else {
            AccessVerdict::Allowed(PermissionSource::Trusted)
        };
        std::future::ready(verdict).boxed()
    }
}

fn published(clock: Clock) -> Published {
    // Values that never expire.
    let later = clock.elapsed() + Duration::from_hours(24 * 365);
    let variants = SERVED
        .map(|(namespace, name, count)| variant(namespace, name, Some((count, later))))
        .into_iter()
        .chain([
            variant(CLOSED, HIDDEN, Some((5, later))),
            variant("shop", "cold", None),
            variant("shop", "expired", Some((9, Duration::ZERO))),
        ]);
    let variants: BTreeMap<VariantKey, PublishedVariant> =
        variants.map(|variant| (variant.spec.key.clone(), variant)).collect();
    Published { generation: 1, variants, ..Published::default() }
}

fn variant(namespace: &str, name: &str, decided: Option<(u32, Duration)>) -> PublishedVariant {
    let namespace = Namespace::new(namespace).expect("it is not empty");
    let variant = VariantName::new(name).expect("it is not empty");
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
