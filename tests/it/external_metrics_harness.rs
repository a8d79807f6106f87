//! What the tests of the external metrics API share: certificates, published data, a running
//! server and clients that act as the front proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll::clock::Clock;
use plimsoll::decide::sized::AdmissibleRate;
use plimsoll::decide::{Basis, Decision, NoData, NoDecision, Reason, Stage, Step};
use plimsoll::fleet::{
    Accelerator, Bounds, ModelKey, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll::observe::Observation;
use plimsoll::publish::external_metrics::authorize::{Authorize, TrustFrontProxy};
use plimsoll::publish::external_metrics::metrics::ApiMetrics;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_metrics::{ExternalMetricsApi, ExternalMetricsSettings, serve};
use plimsoll::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll::server::auth::TrustAnchor;
use plimsoll::server::readiness::Readiness;
use plimsoll::server::shed::{ShedListener, ShedMetrics};
use plimsoll::server::tls::{self, ServingCertificate, server_config};
use plimsoll::server::{ServerLimits, ServerPhase};
use plimsoll::units::{CostPerHour, Fraction, Replicas, RequestRate, Seconds};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// The path of the API.
pub(crate) const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";

/// The user that an HPA controller asks as.
pub(crate) const HPA: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";

// === certificates ===

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate with its key, and the intermediates that lead to its authority.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
}

/// What a certificate is for.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Client,
    Server,
}

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let params = authority_params(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// An authority below this one.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let params = authority_params(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub(crate) fn issue(&self, name: &str, purpose: Use, validity: Validity) -> Leaf {
        self.issue_for(&KeyPair::generate().unwrap(), name, purpose, validity)
    }

    pub(crate) fn issue_for(
        &self,
        key: &KeyPair,
        name: &str,
        purpose: Use,
        validity: Validity,
    ) -> Leaf {
        let names = match purpose {
            Use::Client => Vec::new(),
            Use::Server => vec!["127.0.0.1".to_owned(), "plimsoll.plimsoll.svc".to_owned()],
        };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![match purpose {
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        let (from, to) = match validity {
            Validity::Now => (2020, 2090),
            Validity::Past => (2010, 2020),
            Validity::Future => (2080, 2090),
        };
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let certificate = params.signed_by(key, &self.issuer).unwrap();
        Leaf { chain_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}

impl Leaf {
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(self.chain_pem.as_bytes()).map(Result::unwrap).collect()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap()
    }
}

/// The data of `kube-system/extension-apiserver-authentication`.
pub(crate) fn config_map(ca: &str, allowed_names: &str) -> BTreeMap<String, String> {
    [
        ("requestheader-client-ca-file", ca),
        ("requestheader-allowed-names", allowed_names),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

pub(crate) fn trust(ca: &str, allowed_names: &str) -> Arc<TrustAnchor> {
    Arc::new(TrustAnchor::from_config_map(&config_map(ca, allowed_names)).unwrap())
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    One,
    Two,
}

pub(crate) fn client_tls(
    serving_ca: &str,
    leaf: Option<&Leaf>,
    http: Http,
) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(serving_ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match leaf {
        Some(leaf) => builder.with_client_auth_cert(leaf.chain(), leaf.key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![match http {
        Http::One => b"http/1.1".to_vec(),
        Http::Two => b"h2".to_vec(),
    }];
    config
}

// === published data ===

/// A variant in the making.
#[derive(Clone)]
pub(crate) struct Variant(PublishedVariant);

pub(crate) fn key(namespace: &str, variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(namespace).unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}

/// When the data of all decisions was current: not a whole second.
pub(crate) fn decided_at() -> Timestamp {
    "2026-11-21T01:37:04.987Z".parse().unwrap()
}

/// A variant that nothing was ever decided about.
pub(crate) fn variant(namespace: &str, name: &str) -> Variant {
    Variant(PublishedVariant {
        spec: VariantSpec {
            key: key(namespace, name),
            model: ModelName::new("meta-llama/Llama-3.1-8B").unwrap(),
            accelerator: Accelerator::new("H100"),
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
        decided: None,
    })
}

impl Variant {
    pub(crate) fn current(mut self, count: u32) -> Self {
        self.0.observation.current = Replicas::new(count);
        self
    }

    /// Decides, on data that was current when the clock read `elapsed`.
    pub(crate) fn desired(mut self, count: u32, elapsed: Duration) -> Self {
        let after = Replicas::new(count).unwrap();
        let spec = &self.0.spec;
        let decision = Decision {
            variant: spec.key.clone(),
            model: ModelKey { namespace: spec.key.namespace.clone(), model: spec.model.clone() },
            current: self.0.observation.current,
            bounds: Bounds::default(),
            steps: vec![Step {
                stage: Stage::Analyze,
                before: after,
                after,
                reason: Reason::Settling { remaining: Seconds::ZERO },
            }],
            inputs_at: decided_at(),
            basis: Basis::Fresh,
            admissible: None,
            sizing: None,
        };
        self.0.decided = Some(PublishedDecision { decision, at: decided_at(), elapsed });
        self
    }

    /// Has no decision to show, for this reason.
    pub(crate) fn undecided(mut self, why: NoData) -> Self {
        self.0.undecided = Some(NoDecision(why));
        self
    }

    /// Gives its decision this reason.
    pub(crate) fn because(mut self, reason: Reason) -> Self {
        if let Some(step) = self.0.decided.as_mut().and_then(|it| it.decision.steps.last_mut()) {
            step.reason = reason;
        }
        self
    }

    /// Holds its decision, without fresh data.
    pub(crate) fn held(mut self) -> Self {
        if let Some(decided) = &mut self.0.decided {
            decided.decision.basis = Basis::Held;
        }
        self
    }

    /// Decides as `foresight`, with this admissible rate.
    pub(crate) fn admissible(mut self, per_second: Option<f64>) -> Self {
        let rate = per_second.and_then(RequestRate::new);
        if let Some(decided) = &mut self.0.decided {
            let serving = Replicas::ZERO.up();
            decided.decision.admissible =
                rate.map(|variant| AdmissibleRate { variant, model: None, serving });
        }
        self
    }
}

pub(crate) fn published(variants: impl IntoIterator<Item = Variant>) -> Arc<Published> {
    let variants = variants.into_iter().map(|Variant(variant)| (variant.spec.key.clone(), variant));
    Arc::new(Published { generation: 1, variants: variants.collect(), ..Published::default() })
}

// === server ===

/// A running server with everything that drives it.
pub(crate) struct Fixture {
    pub(crate) address: SocketAddr,
    pub(crate) front_proxy: Authority,
    pub(crate) proxy_leaf: Leaf,
    pub(crate) serving: Authority,
    pub(crate) clock: Clock,
    pub(crate) published: watch::Sender<Arc<Published>>,
    pub(crate) trust: watch::Sender<Option<Arc<TrustAnchor>>>,
    pub(crate) phase: watch::Sender<ServerPhase>,
    pub(crate) tracker: TaskTracker,
    pub(crate) registry: prometheus::Registry,
}

/// What may differ between fixtures.
pub(crate) struct Options {
    pub(crate) settings: ExternalMetricsSettings,
    pub(crate) limits: ServerLimits,
    pub(crate) authorizer: Arc<dyn Authorize>,
}

impl Default for Options {
    fn default() -> Self {
        let ages = DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };
        Self {
            settings: ExternalMetricsSettings { ages, wva_metrics: false, object_metrics: false },
            limits: ServerLimits::default(),
            authorizer: Arc::new(TrustFrontProxy),
        }
    }
}

/// A serving certificate that is valid for the loopback address.
pub(crate) async fn serving_certificate(authority: &Authority) -> Arc<ServingCertificate> {
    let directory = tempfile::tempdir().unwrap();
    let settings =
        write_leaf(directory.path(), &authority.issue("plimsoll", Use::Server, Validity::Now));
    Arc::new(ServingCertificate::load(Clock::start().now(), settings).await.unwrap())
}

/// Writes a certificate to files.
pub(crate) fn write_leaf(directory: &std::path::Path, leaf: &Leaf) -> tls::TlsSettings {
    let settings = tls::TlsSettings {
        cert_file: directory.join("tls.crt"),
        key_file: directory.join("tls.key"),
    };
    std::fs::write(&settings.cert_file, &leaf.chain_pem).unwrap();
    std::fs::write(&settings.key_file, &leaf.key_pem).unwrap();
    settings
}

impl Fixture {
    pub(crate) async fn start(options: Options) -> Self {
        let Options { settings, limits, authorizer } = options;
        let front_proxy = Authority::new("front-proxy-ca");
        let proxy_leaf = front_proxy.issue("front-proxy-client", Use::Client, Validity::Now);
        let serving = Authority::new("serving-ca");
        let clock = Clock::start();
        let registry = prometheus::Registry::new();
        let published = watch::Sender::new(published([]));
        let anchor = trust(&front_proxy.pem, r#"["front-proxy-client"]"#);
        let trust = watch::Sender::new(Some(anchor));
        let phase = watch::Sender::new(ServerPhase::Serving);
        let tracker = TaskTracker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::new(phase.subscribe()).with_trust(trust.subscribe());
        let api = Arc::new(ExternalMetricsApi::new(
            settings,
            published.subscribe(),
            clock,
            trust.subscribe(),
            authorizer,
            readiness,
            ApiMetrics::register(&registry).unwrap(),
        ));
        let tls = server_config(serving_certificate(&serving).await).unwrap();
        let (seen, tasks) = (phase.subscribe(), tracker.clone());
        let shed = ShedMetrics::register(&registry).unwrap().of(ShedListener::ExternalMetrics);
        tracker.spawn(async move { serve(listener, api, tls, limits, shed, seen, &tasks).await });
        Self {
            address,
            front_proxy,
            proxy_leaf,
            serving,
            clock,
            published,
            trust,
            phase,
            tracker,
            registry,
        }
    }

    /// A client that shows this certificate.
    pub(crate) fn client(&self, leaf: Option<&Leaf>, http: Http) -> Client {
        let tls = client_tls(&self.serving.pem, leaf, http);
        let inner = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap();
        Client { inner, address: self.address }
    }

    /// A client that is the front proxy.
    pub(crate) fn proxy(&self, http: Http) -> Client {
        self.client(Some(&self.proxy_leaf), http)
    }

    /// Publishes variants.
    pub(crate) fn publish(&self, variants: impl IntoIterator<Item = Variant>) {
        self.published.send_replace(published(variants));
    }

    /// The value of a counter of the server.
    pub(crate) fn counter(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        counter(&self.registry, name, labels)
    }
}

/// The sum of a registry's counters of this name with these labels.
pub(crate) fn counter(registry: &prometheus::Registry, name: &str, labels: &[(&str, &str)]) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name).unwrap();
    let matching = family.get_metric().iter().filter(|metric| {
        labels.iter().all(|(name, value)| {
            let mut own = metric.get_label().iter();
            own.any(|label| label.name() == *name && label.value() == *value)
        })
    });
    matching.map(|metric| metric.get_counter().get_value()).sum()
}

/// An HTTP client of one server.
#[derive(Clone)]
pub(crate) struct Client {
    inner: reqwest::Client,
    address: SocketAddr,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Client {
    /// A request as the HPA controller's.
    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.request("GET", path)
            .header("X-Remote-User", HPA)
            .header("X-Remote-Group", "system:serviceaccounts")
    }

    /// A request of nobody.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("https://{}{path}", self.address);
        self.inner.request(method.parse().unwrap(), url)
    }

    /// What a request as the HPA controller's is answered with.
    pub(crate) async fn ask(&self, path: &str) -> Answer {
        answer(self.get(path)).await
    }
}

/// Sends a request. No answer of this server may ever be a redirect or ask for a retry.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let answer = Answer {
        code: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.text().await.unwrap(),
    };
    assert!(!answer.headers.contains_key("retry-after"), "{answer:?}");
    assert!(!answer.text.contains("retryAfterSeconds"), "{answer:?}");
    assert!(!(300..400).contains(&answer.code) || answer.code == 304, "{answer:?}");
    answer
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The message of an error, after a check that it is a proper one.
    pub(crate) fn error(&self, code: u16, reason: &str) -> String {
        let status = self.json();
        assert_eq!(self.code, code, "{status}");
        assert_eq!(self.header("content-type"), "application/json");
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["code"], code);
        assert_eq!(status["reason"], reason);
        status["message"].as_str().unwrap().to_owned()
    }

    /// The values of a list, with the variants that they are for.
    pub(crate) fn values(&self) -> Vec<(String, String)> {
        assert_eq!(self.code, 200, "{}", self.text);
        let list = self.json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| (text(&item["metricLabels"]["variant"]), text(&item["value"]))).collect()
    }
}
