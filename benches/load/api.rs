//! The external metrics API under load: 10,000 metrics over TLS, requested as an API server does.
//! The baseline is a server that only returns a body of the same size.

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use plimsoll::clock::Clock;
use plimsoll::decide::{Basis, Decision, Reason, Stage, Step};
use plimsoll::fleet::{Bounds, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec};
use plimsoll::observe::Observation;
use plimsoll::publish::external_metrics::authorize::TrustFrontProxy;
use plimsoll::publish::external_metrics::metrics::ApiMetrics;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_metrics::{ExternalMetricsApi, ExternalMetricsSettings, serve};
use plimsoll::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll::server::auth::TrustAnchor;
use plimsoll::server::readiness::Readiness;
use plimsoll::server::shed::{ShedListener, ShedMetrics};
use plimsoll::server::tls::{self, ServingCertificate, server_config};
use plimsoll::server::{ServerLimits, ServerPhase};
use plimsoll::units::{CostPerHour, Fraction, Replicas, Seconds};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::engines::for_each_line;
use crate::process::{Process, load_average};

const METRICS: usize = 10_000;
const NAMESPACES: usize = 10;
/// The default request rate and duration.
const USUAL: Rate = Rate { per_second: 1_000, seconds: 30 };

/// The timeout of a request. If a server cannot keep up, its requests fail.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The request rate and duration.
#[derive(Clone, Copy)]
struct Rate {
    per_second: u64,
    seconds: u64,
}

const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";

fn names(index: usize) -> (String, String) {
    (format!("team-{}", index % NAMESPACES), format!("chat-{index}"))
}

fn path(index: usize) -> String {
    let (namespace, variant) = names(index);
    let metric = "plimsoll_desired_replicas";
    format!("{BASE}/namespaces/{namespace}/{metric}?labelSelector=variant%3D{variant}")
}

// === certificates ===

/// Writes the certificates of the servers and the client: an authority for each side, and its
/// certificate.
fn write_certificates(folder: &Path) -> Result<()> {
    let sides = [
        ("server", vec!["127.0.0.1".to_owned()], ExtendedKeyUsagePurpose::ServerAuth),
        ("client", Vec::new(), ExtendedKeyUsagePurpose::ClientAuth),
    ];
    for (side, names, purpose) in sides {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.distinguished_name.push(DnType::CommonName, format!("{side}-ca"));
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        fs::write(folder.join(format!("{side}-ca.crt")), authority.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(authority, key);
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, "front-proxy-client");
        leaf.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;
        fs::write(folder.join(format!("{side}.crt")), certificate.pem())?;
        fs::write(folder.join(format!("{side}.key")), key.serialize_pem())?;
    }
    Ok(())
}

async fn serving_config(folder: &Path, clock: Clock) -> Result<Arc<rustls::ServerConfig>> {
    let settings = tls::TlsSettings {
        cert_file: folder.join("server.crt"),
        key_file: folder.join("server.key"),
    };
    let certificate = ServingCertificate::load(clock.now(), settings).await?;
    Ok(server_config(Arc::new(certificate))?)
}

fn trust(folder: &Path) -> Result<Arc<TrustAnchor>> {
    let ca = fs::read_to_string(folder.join("client-ca.crt"))?;
    let data = [
        ("requestheader-client-ca-file", ca.as_str()),
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Ok(Arc::new(TrustAnchor::from_config_map(&data)?))
}

fn client(folder: &Path) -> Result<reqwest::Client> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("server-ca.crt"))?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(folder.join("client.crt"))?],
            PrivateKeyDer::from_pem_file(folder.join("client.key"))?,
        )?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .timeout(ANSWER_MAX)
        .build()?)
}

// === servers ===

fn variant(index: usize, clock: Clock) -> Option<(VariantKey, PublishedVariant)> {
    let (namespace, name) = names(index);
    let key =
        VariantKey { namespace: Namespace::new(&namespace)?, variant: VariantName::new(&name)? };
    let spec = VariantSpec {
        key: key.clone(),
        model: ModelName::new("meta-llama/Llama-3.1-8B-Instruct")?,
        accelerator: None,
        gpus: None,
        role: Role::Both,
        cost: CostPerHour::ZERO,
        list_price: None,
        start_time: None,
        mismatch: Fraction::ONE,
        bounds: Bounds::default(),
    };
    let after = Replicas::ONE;
    let reason = Reason::Settling { remaining: Seconds::ZERO };
    let decision = Decision {
        variant: key.clone(),
        model: spec.model_key(),
        current: Some(after),
        bounds: spec.bounds,
        steps: vec![Step { stage: Stage::Analyze, before: after, after, reason }],
        inputs_at: clock.now(),
        basis: Basis::Fresh,
        admissible: None,
        sizing: None,
    };
    let decided = PublishedDecision { decision, at: clock.now(), elapsed: clock.elapsed() };
    let observation = Observation::of_nothing(spec.bounds);
    let (report, undecided) = (None, None);
    Some((key, PublishedVariant { spec, observation, report, decided: Some(decided), undecided }))
}

/// Serves the API until standard input ends, and then prints the histogram of response times.
pub(crate) async fn serve_api(folder: &str) -> Result<()> {
    let (folder, clock) = (Path::new(folder), Clock::start());
    let variants = (0..METRICS).filter_map(|index| variant(index, clock)).collect();
    let published = Published { generation: 1, variants, ..Published::default() };
    let published = watch::Sender::new(Arc::new(published));
    let trust = watch::Sender::new(Some(trust(folder)?));
    let phase = watch::Sender::new(ServerPhase::Serving);
    let registry = prometheus::Registry::new();
    let metrics = ApiMetrics::register(&registry)?;
    let (seen, authorizer) = (published.subscribe(), Arc::new(TrustFrontProxy));
    let ages = DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };
    let settings = ExternalMetricsSettings { ages, wva_metrics: false, object_metrics: false };
    let anchor = trust.subscribe();
    let ready = Readiness::new(phase.subscribe()).with_trust(anchor.clone());
    let api = ExternalMetricsApi::new(settings, seen, clock, anchor, authorizer, ready, metrics);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (tls, phases, tracker) =
        (serving_config(folder, clock).await?, phase.subscribe(), TaskTracker::new());
    let tasks = tracker.clone();
    let (api, limits) = (Arc::new(api), ServerLimits::default());
    let shed = ShedMetrics::register(&registry)?.of(ShedListener::ExternalMetrics);
    tracker.spawn(async move { serve(listener, api, tls, limits, shed, phases, &tasks).await });
    // Each line requests the histogram.
    for_each_line(move || println!("{}", shares(&registry))).await
}

/// The share of metric requests that were answered within each edge of the histogram.
fn shares(registry: &prometheus::Registry) -> String {
    let families = registry.gather();
    let durations = families
        .iter()
        .filter(|it| it.name() == "plimsoll_external_metrics_request_duration_seconds");
    let metric = durations
        .flat_map(prometheus::proto::MetricFamily::get_metric)
        .max_by_key(|metric| metric.get_histogram().get_sample_count());
    let Some(metric) = metric else { return "no requests".to_owned() };
    let histogram = metric.get_histogram();
    let count = histogram.get_sample_count() as f64;
    let mean = 1e6 * histogram.get_sample_sum() / count;
    let share = |bucket: &prometheus::proto::Bucket| {
        let share = 100.0 * bucket.cumulative_count() as f64 / count;
        format!("{share:.2} % within {:.0} us", 1e6 * bucket.upper_bound())
    };
    let shares: Vec<String> = histogram.get_bucket().iter().take(4).map(share).collect();
    format!("mean {mean:.1} us, {}", shares.join(", "))
}

/// The baseline: TLS, HTTP and a constant body, until standard input ends.
pub(crate) async fn serve_constant(folder: &str, body: &str) -> Result<()> {
    let body = Bytes::from(vec![b'x'; body.parse()?]);
    let acceptor = TlsAcceptor::from(serving_config(Path::new(folder), Clock::start()).await?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let tracker = TaskTracker::new();
    let tasks = tracker.clone();
    tracker.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, body) = (acceptor.clone(), body.clone());
            tasks.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |_: Request<Incoming>| {
                    let answer = Response::new(Full::new(body.clone()));
                    async move { Ok::<_, Infallible>(answer) }
                });
                let http = auto::Builder::new(TokioExecutor::new());
                let _ended = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    for_each_line(|| ()).await
}

// === load ===

/// Sends requests to the API and to the baseline in turn. The arguments may set the rate and the
/// duration.
pub(crate) async fn load(arguments: &[&str]) -> Result<()> {
    let rate = match arguments {
        [] => USUAL,
        [often, long] => Rate { per_second: often.parse()?, seconds: long.parse()? },
        other => bail!("expected how often a second and for how many, got {other:?}"),
    };
    let folder = tempfile::tempdir()?;
    write_certificates(folder.path())?;
    let path = folder.path().to_str().context("the folder's name is not text")?;
    let client = client(folder.path())?;
    let mut api = Process::this(&["serve-api", path])?;
    let address = api.line()?;
    let body = ask(&client, &format!("https://{address}{}", self::path(0))).await?;
    println!("an answer has {body} bytes");
    ask_for_a_while(rate, &client, &address, "external metrics API", &api).await?;
    api.write_line()?;
    println!("  server side, the handler alone: {}", api.line()?);
    let mut constant = Process::this(&["serve-constant", path, &body.to_string()])?;
    let address = constant.line()?;
    ask_for_a_while(rate, &client, &address, "floor, a constant body", &constant).await
}

async fn ask(client: &reqwest::Client, url: &str) -> Result<usize> {
    let request = client.get(url).header("X-Remote-User", "hpa");
    Ok(request.send().await?.error_for_status()?.bytes().await?.len())
}

/// Sends requests at a fixed rate, independent of responses, so that a slow response delays no
/// other.
async fn ask_for_a_while(
    Rate { per_second, seconds }: Rate,
    client: &reqwest::Client,
    address: &str,
    who: &str,
    server: &Process,
) -> Result<()> {
    let clock = Clock::start();
    ask(client, &format!("https://{address}{}", path(0))).await?;
    let before = server.usage()?;
    let mut ticks = interval(Duration::from_micros(1_000_000 / per_second));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asking = JoinSet::new();
    let count = usize::try_from(seconds * per_second)?;
    for number in 0..count {
        ticks.tick().await;
        let began = clock.elapsed();
        // A stride without a common divisor visits all metrics.
        let url = format!("https://{address}{}", path(number * 7919 % METRICS));
        let client = client.clone();
        asking.spawn(async move {
            ask(&client, &url).await.map(|_| clock.elapsed().saturating_sub(began))
        });
    }
    let mut times = Vec::with_capacity(count);
    let mut failed = 0;
    while let Some(time) = asking.join_next().await {
        match time? {
            Ok(time) => times.push(time),
            Err(_) => failed += 1,
        }
    }
    let after = server.usage()?;
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 1000).copied().unwrap_or_default();
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() / count as f64;
    println!(
        "{who}: {count} requests, {failed} failed; client side p50 {:.0?}, p99 {:.0?}; {:.0} us of \
         processor time each; {:.0} MB resident; load average {}",
        at(500),
        at(990),
        1e6 * cpu,
        after.resident,
        load_average()
    );
    Ok(())
}
