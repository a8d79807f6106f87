//! The documents against the code: what they name exists, what exists they name, and what they
//! show works.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll::config::{Files, Surroundings, parse};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::decide::ReasonCode;
use plimsoll::demo::pki::{FRONT_PROXY, Pki};
use plimsoll::publish::gauges::{FAMILIES, GaugeFamily, WVA_FAMILIES};
use plimsoll::server::auth::TrustAnchor;
use plimsoll::simulate::Micros;
use plimsoll::simulate::page::{CONTENT_TYPE, EngineIdentity, render};
use plimsoll::simulate::replica::adapters::{AdapterId, AdapterSettings};
use plimsoll::simulate::replica::settings::{Admission, Settings, StepTime};
use plimsoll::simulate::replica::{Replica, Request};
use plimsoll::telemetry::Telemetry;
use prometheus::core::Collector;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// Families that a sound daemon without a cluster does not show: they judge objects of a
/// cluster, count what is written to it, or are of certificates that are kept in one. What they are
/// is checked on the collector instead.
const SILENT: [&str; 15] = [
    "plimsoll_apiservice_state",
    "plimsoll_autoscaler_follows",
    "plimsoll_autoscaler_problem",
    "plimsoll_cluster_state_age_seconds",
    "plimsoll_discovery_objects",
    "plimsoll_engine_arguments",
    "plimsoll_events_total",
    "plimsoll_hpa_ignores_desired",
    "plimsoll_shared_document_bytes",
    "plimsoll_shared_document_limit_bytes",
    "plimsoll_shared_document_variants",
    "plimsoll_startup_seconds",
    "plimsoll_tls_authority_not_after_timestamp_seconds",
    "plimsoll_tls_changes_total",
    "plimsoll_tls_failures_total",
];

/// Families that are there once a Prometheus has answered with samples; `prometheus.rs` has them.
const OF_PROMETHEUS: [&str; 2] = [
    "plimsoll_prometheus_last_success_timestamp_seconds",
    "plimsoll_prometheus_newest_sample_timestamp_seconds",
];

/// Families that are there where `external_scaler` is configured; `external_scaler.rs` has them.
const OF_SCALER: [&str; 4] = [
    "plimsoll_external_scaler_calls_total",
    "plimsoll_external_scaler_certificate_not_after_timestamp_seconds",
    "plimsoll_external_scaler_certificate_reload_failures_total",
    "plimsoll_external_scaler_streams",
];

/// Families that are there only while a variant is pinned or paused; `overrides.rs` has them.
const OF_OVERRIDES: [&str; 1] = ["plimsoll_override_until_timestamp_seconds"];

/// Families that are there only while a limit cuts, and with the nodes of a cluster.
const OF_LIMITS: [&str; 4] = [
    "plimsoll_limit_shadow_price",
    "plimsoll_limited_replicas",
    "plimsoll_node_accelerators",
    "plimsoll_node_accelerators_of_others",
];

/// Families that are there where `foresight` decides, once it has learned something. Their words are
/// held with the other gauges', and `terms.rs` has them.
const OF_FORESIGHT: [&str; 11] = [
    "plimsoll_admissible_requests_per_second",
    "plimsoll_capacity_per_second",
    "plimsoll_model_admissible_requests_per_second",
    "plimsoll_need_held_per_second",
    "plimsoll_need_per_second",
    "plimsoll_replica_carries_high_per_second",
    "plimsoll_replica_carries_low_per_second",
    "plimsoll_replica_carries_per_second",
    "plimsoll_slo_itl_seconds",
    "plimsoll_slowest_replica_ratio",
    "plimsoll_starving_variant",
];

/// Families that are there only with a pool's gateway; `pools.rs` has them.
const OF_GATEWAYS: [&str; 1] = ["plimsoll_pool_arrivals_per_second"];

/// One row of the tables in docs/metrics.md.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    kind: String,
    labels: BTreeSet<String>,
    meaning: String,
}

fn table() -> BTreeMap<String, Row> {
    let mut table = BTreeMap::new();
    for line in read("docs/metrics.md").lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _unit, meaning] = cells[..] else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let labels = labels.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let row = Row { kind: kind.to_owned(), labels, meaning: meaning.to_owned() };
        assert!(table.insert(name.to_owned(), row).is_none(), "{name} is there twice");
    }
    assert!(table.len() > 50, "the tables of docs/metrics.md are found");
    table
}

fn labels(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_gauges_are_documented_word_for_word() {
    let table = table();
    for family in FAMILIES.iter().chain(WVA_FAMILIES) {
        let GaugeFamily { name, labels: names, help } = *family;
        let want =
            Row { kind: "gauge".to_owned(), labels: labels(names), meaning: help.to_owned() };
        assert_eq!(table.get(name), Some(&want), "{name}");
    }
}

#[test]
fn every_reason_is_documented_with_its_meaning() {
    let file = root("docs/reasons.md");
    let kept = std::fs::read_to_string(&file).unwrap();
    let (head, _) = kept.split_once("|---|---|\n").unwrap();
    let row = |code: &ReasonCode| format!("| `{}` | {} |\n", code.label(), code.meaning());
    let rows: String = ReasonCode::ALL.iter().map(row).collect();
    let table = format!("{head}|---|---|\n{rows}");
    if std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        std::fs::write(&file, &table).unwrap();
    } else {
        assert!(
            kept == table,
            "INSTA_UPDATE=always cargo test --test it documents writes {file:?}"
        );
    }
}

#[test]
fn every_documented_metric_is_in_the_sources_and_the_other_way_round() {
    let table = table();
    // What the simulator writes are an engine's metrics, and tests name parts of metrics.
    let ours =
        |file: &Path| !file.starts_with(root("src/lab/simulate")) && !file.ends_with("tests.rs");
    let files = sources("src").into_iter().filter(|(file, _)| ours(file));
    let code: String = files.map(|(_, text)| before_tests(&text).to_owned()).collect();
    for (name, Row { meaning, .. }) in &table {
        assert!(code.contains(&format!("\"{name}\"")), "no source has {name}");
        assert!(code.contains(&format!("\"{meaning}\"")), "no source has the meaning of {name}");
    }
    for name in code.split('"').filter(|text| is_metric(text)) {
        assert!(table.contains_key(name), "docs/metrics.md has no {name}");
    }
}

#[test]
fn families_without_samples_are_documented_as_they_are() {
    let table = table();
    let telemetry = Telemetry::register(&prometheus::Registry::new()).unwrap();
    let Telemetry {
        following, api_service, events, certificates, discovery_objects, leading, ..
    } = &telemetry;
    let collectors: [(&dyn Collector, &str); 13] = [
        (&leading.document_bytes, "gauge"),
        (&leading.document_limit, "gauge"),
        (&leading.document_variants, "gauge"),
        (discovery_objects, "gauge"),
        (&following.ignores, "gauge"),
        (&following.follows, "gauge"),
        (&following.problems, "gauge"),
        (&following.cluster_age, "gauge"),
        (api_service, "gauge"),
        (events, "counter"),
        (&certificates.authority_not_after, "gauge"),
        (&certificates.changes, "counter"),
        (&certificates.failures, "counter"),
    ];
    // Their words are held with the other gauges'.
    let others = ["plimsoll_engine_arguments", "plimsoll_startup_seconds"];
    let mut seen = BTreeSet::from(others.map(str::to_owned));
    for (collector, kind) in collectors {
        let description = collector.desc()[0];
        let want = Row {
            kind: kind.to_owned(),
            labels: description.variable_labels.iter().cloned().collect(),
            meaning: description.help.clone(),
        };
        assert_eq!(table.get(&description.fq_name), Some(&want));
        seen.insert(description.fq_name.clone());
    }
    assert_eq!(seen, labels(&SILENT));
}

#[tokio::test]
async fn what_a_running_daemon_exposes_is_what_is_documented() {
    let stage = Stage::open().await;
    let page = stage.page().await;
    let table = table();
    let shown = families(&page);
    for (name, row) in &shown {
        assert_eq!(table.get(name), Some(row), "{name}");
    }
    let missing: BTreeSet<String> =
        table.keys().filter(|name| !shown.contains_key(*name)).cloned().collect();
    let unseen = [
        &SILENT[..],
        &OF_PROMETHEUS,
        &OF_SCALER,
        &OF_OVERRIDES,
        &OF_LIMITS,
        &OF_FORESIGHT,
        &OF_GATEWAYS,
    ];
    assert_eq!(missing, labels(&unseen.concat()), "the rest of the table is on the page");
    stage.daemon.shutdown().await;
}

#[test]
fn every_metric_that_a_document_names_exists() {
    let table = table();
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            // Keys of the configuration and crates that look like metrics, and metrics that are missing.
            let known = ["wva_metrics", "wva_config", "plimsoll_daemon"].contains(&word)
                || (file == "docs/migrating-from-wva.md" && word.starts_with("wva_"));
            if !is_metric(word) || known {
                continue;
            }
            let part = |suffix| {
                let whole = word.strip_suffix(suffix).and_then(|name| table.get(name));
                whole.is_some_and(|row| row.kind == "histogram")
            };
            let group = word.ends_with('_') && table.keys().any(|name| name.starts_with(word));
            if !table.contains_key(word)
                && !group
                && !["_bucket", "_sum", "_count"].map(part).contains(&true)
            {
                wrong.push(format!("{file}: {word}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_link_between_documents_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for (file, text) in documents() {
        for target in prose(&text).split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&file).parent().unwrap();
            let at = if path.is_empty() { PathBuf::from(&file) } else { folder.join(path) };
            let found = root(&at);
            let there = found.exists()
                && (heading.is_empty()
                    || headings(&std::fs::read_to_string(&found).unwrap()).contains(heading));
            if !there {
                wrong.push(format!("{file}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_test_that_a_document_names_exists() {
    let code: String = sources("src").into_values().chain(sources("tests").into_values()).collect();
    let mut named = 0;
    for (file, text) in documents() {
        for name in prose(&text).split('`').skip(1).step_by(2) {
            let is_claim =
                name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                    && name.matches('_').count() >= 4;
            if is_claim && !is_metric(name) {
                named += 1;
                assert!(code.contains(&format!("fn {name}(")), "{file}: {name}");
            }
        }
    }
    assert!(named > 30, "the names are found");
}

#[test]
fn every_configuration_in_a_document_is_valid() {
    let mut found = BTreeSet::new();
    for (file, text) in documents() {
        for block in yaml_blocks(&text) {
            if !block.lines().any(|line| line == "variants:") {
                continue;
            }
            let loaded = parse(&block, &surroundings(Path::new("/etc/plimsoll")));
            let loaded = loaded.unwrap_or_else(|error| panic!("{file}: {error}\n{block}"));
            assert_eq!(loaded.warnings, Vec::new(), "{file}");
            found.insert(file.clone());
        }
    }
    let known = [
        "docs/capacity.md",
        "docs/configuration.md",
        "docs/foresight-reference.md",
        "docs/high-availability.md",
        "docs/limits.md",
        "docs/pools.md",
        "docs/seldon.md",
        "docs/without-kubernetes.md",
    ];
    assert_eq!(found, labels(&known));
}

#[test]
fn the_hpa_in_the_documents_is_the_example() {
    let lines = |text: &str| -> Vec<String> {
        let code = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim_end());
        code.filter(|line| !line.is_empty() && !line.trim().starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let (plain, annotated) =
        (lines(&read("examples/hpa.yaml")), lines(&read("examples/hpa-annotated.yaml")));
    let mut seen = 0;
    for (file, text) in documents() {
        for block in yaml_blocks(&text) {
            if block.contains("kind: HorizontalPodAutoscaler") {
                let example =
                    if block.contains("plimsoll.dev/model") { &annotated } else { &plain };
                assert_eq!(lines(&block), *example, "{file}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "a document shows the HPA");
}

/// The end-to-end tests show that these permissions are enough.
#[test]
fn the_example_of_a_cluster_asks_for_what_the_end_to_end_tests_need() {
    let roles = |path: &str| -> BTreeSet<String> {
        let text = read(path);
        let code = text.lines().filter(|line| !line.starts_with('#'));
        let code = code.collect::<Vec<_>>().join("\n");
        let objects = code.split("\n---\n").map(str::trim);
        objects
            .filter(|object| {
                ["rbac.authorization", "flowcontrol.apiserver"]
                    .iter()
                    .any(|group| object.contains(&format!("apiVersion: {group}.k8s.io/v1")))
            })
            .map(str::to_owned)
            .collect()
    };
    let (example, proven) =
        (roles("examples/cluster.yaml"), roles("tests/e2e/manifests/plimsoll.yaml"));
    assert!(proven.len() >= 6, "the roles are found");
    assert_eq!(example, proven);
}

#[test]
fn lines_of_prose_fit_a_hundred_columns() {
    let own = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "docs/api.md",
        "docs/metrics.md",
        "docs/external-metrics.md",
        "docs/safety.md",
        "docs/configuration.md",
        "docs/monitoring.md",
        "docs/prometheus.md",
        "docs/alerts.md",
        "docs/discovery.md",
        "docs/keda.md",
        "docs/limits.md",
        "docs/migrating-from-hpa.md",
        "docs/migrating-from-keda.md",
        "docs/migrating-from-wva.md",
        "docs/seldon.md",
    ];
    let mut wide = Vec::new();
    for file in own {
        for (at, line) in prose(&read(file)).lines().enumerate() {
            if !line.starts_with('|') && line.chars().count() > 100 {
                wide.push(format!("{file}:{}: {line}", at + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

// === the stage ===

/// A daemon with everything on that needs no cluster, and one engine under load.
struct Stage {
    daemon: Daemon,
    pki: Pki,
    _engine: DropGuard,
    _folder: tempfile::TempDir,
}

impl Stage {
    /// Starts both, and waits until every signal of the engine has been seen.
    async fn open() -> Self {
        let _there_already = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (address, engine) = engine().await;
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::generate().unwrap();
        std::fs::write(folder.path().join("tls.crt"), &pki.serving_certificate).unwrap();
        std::fs::write(folder.path().join("tls.key"), &pki.serving_key).unwrap();
        let text = format!(
            "server: {{listen: '127.0.0.1:0'}}\n\
             external_metrics:\n  listen: '127.0.0.1:0'\n  \
             tls: {{cert_file: tls.crt, key_file: tls.key}}\n  authorization: trust_front_proxy\n\
             compatibility: {{wva_metrics: true}}\n\
             shutdown: {{delay: 0s, drain: 1s}}\n\
             tick_interval: 100ms\nscrape: {{interval: 100ms, timeout: 100ms}}\n\
             prometheus: {{url: 'http://127.0.0.1:1'}}\n\
             scale_to_zero: {{wake: [{{name: w, url: 'http://127.0.0.1:1/metrics'}}]}}\n\
             pools: {{default/a: {{}}}}\n\
             limits: {{budget_per_hour: 9, accelerators: {{L4: 4}}}}\n\
             shadow: [{{name: s}}]\n\
             variants:\n- name: a\n  model: {MODEL}\n  accelerator: L4\n  source: scrape\n  \
             replicas: {{min: 1, max: 3}}\n  targets: {{static: ['{address}']}}\n"
        );
        let config = parse(&text, &surroundings(folder.path())).unwrap().config;
        let trust = Some(Arc::new(trust(&pki)));
        let daemon = Daemon::start(config, DaemonOptions { trust, ..DaemonOptions::default() })
            .await
            .unwrap();
        let seen = |published: &Arc<plimsoll::publish::Published>| {
            published.variants.values().any(|variant| {
                let replica = variant.observation.replicas.first();
                let latency = |it: &plimsoll::observe::ReplicaObservation| {
                    it.itl_mean.is_some() && it.arrivals.is_some()
                };
                let ttft = variant.observation.ttft.is_some();
                variant.decided.is_some() && ttft && replica.is_some_and(latency)
            })
        };
        daemon.published().wait_for(seen).await.unwrap();
        Self { daemon, pki, _engine: engine, _folder: folder }
    }

    /// The page of metrics, after the external metrics API has been asked once.
    async fn page(&self) -> String {
        let identity = format!("{}{}", self.pki.proxy_certificate, self.pki.proxy_key);
        let authority = reqwest::Certificate::from_pem(self.pki.serving_authority.as_bytes());
        let client = reqwest::Client::builder()
            .tls_certs_only([authority.unwrap()])
            .identity(reqwest::Identity::from_pem(identity.as_bytes()).unwrap())
            .no_proxy()
            .build()
            .unwrap();
        let api = self.daemon.external_metrics().unwrap();
        let metric = format!(
            "https://{api}/apis/external.metrics.k8s.io/v1beta1/namespaces/default/\
             plimsoll_desired_replicas?labelSelector=variant%3Da"
        );
        let answer = client.get(metric).header("X-Remote-User", "hpa").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        let page = format!("http://{}/metrics", self.daemon.admin());
        client.get(page).send().await.unwrap().text().await.unwrap()
    }
}

/// An engine that lives through a second of load whenever it is scraped.
async fn engine() -> (SocketAddr, DropGuard) {
    let settings = Settings {
        step: StepTime::dense(7_400.0, 15.6, 11.0, 0.042),
        max_num_seqs: 64,
        max_num_batched_tokens: 2_048,
        block_size: 16,
        kv_blocks: 2_000,
        admission: Admission::WholePrompt,
    };
    let adapters = AdapterSettings { slots: 2, load: Micros::ZERO };
    let replica = Replica::new(settings).unwrap().with_adapters(adapters);
    let replica = Arc::new(Mutex::new((0, replica)));
    let page = move || {
        let mut engine = replica.lock().unwrap();
        let (second, replica) = &mut *engine;
        let request = Request { id: *second, prompt: 200, output: 20 };
        let adapter = AdapterId::new(0).unwrap();
        replica.submit(Micros::from_secs(*second), request).unwrap();
        replica.ask_for(request.id, adapter);
        *second += 1;
        replica.advance_to(Micros::from_secs(*second), &mut Vec::new());
        let identity = EngineIdentity {
            model: MODEL.to_owned(),
            started: "2026-11-21T08:00:00Z".parse().unwrap(),
            ready: "2026-11-21T08:01:00Z".parse().unwrap(),
        };
        let adapters = replica.adapters().unwrap().page(identity.ready, &["sql".to_owned()]);
        render(&identity, &replica.snapshot()) + &adapters
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let accept = async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let page = page.clone();
            connections.spawn(async move {
                let service = hyper::service::service_fn(|_| {
                    let mut response = Response::new(Full::new(Bytes::from(page())));
                    let kind = hyper::header::HeaderValue::from_static(CONTENT_TYPE);
                    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
                    async move { Ok::<_, Infallible>(response) }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    };
    tokio_util::task::TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(accept));
    (address, stop.drop_guard())
}

fn trust(pki: &Pki) -> TrustAnchor {
    let data = [
        ("requestheader-client-ca-file", pki.proxy_authority.clone()),
        ("requestheader-allowed-names", json!([FRONT_PROXY]).to_string()),
        ("requestheader-username-headers", json!(["X-Remote-User"]).to_string()),
        ("requestheader-group-headers", json!(["X-Remote-Group"]).to_string()),
        ("requestheader-extra-headers-prefix", json!(["X-Remote-Extra-"]).to_string()),
    ];
    let data = data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    TrustAnchor::from_config_map(&data).unwrap()
}

fn surroundings(base: &Path) -> Surroundings {
    Surroundings {
        origin: "a document".to_owned(),
        base: base.to_owned(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    }
}

/// The families on a page with what the page says about them.
fn families(page: &str) -> BTreeMap<String, Row> {
    let mut families: BTreeMap<String, Row> = BTreeMap::new();
    let mut meaning = String::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            help.split_once(' ').unwrap_or_default().1.clone_into(&mut meaning);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            name.clone_into(&mut family);
            let labels = BTreeSet::new();
            let row = Row { kind: kind.to_owned(), labels, meaning: meaning.clone() };
            families.insert(family.clone(), row);
        } else if let Some((_, rest)) = line.split_once('{') {
            let keys = rest.split("=\"").filter_map(|part| {
                part.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
            });
            // What follows the last label's name is its value.
            let keys: Vec<&str> = keys.collect();
            let row = families.get_mut(&family).unwrap();
            let keys = keys.iter().take(keys.len() - 1).filter(|key| **key != "le");
            row.labels.extend(keys.map(|key| (*key).to_owned()));
        }
    }
    families
}

// === documents ===

/// The documents of the repository by their paths in it.
fn documents() -> BTreeMap<String, String> {
    let mut documents = BTreeMap::new();
    for folder in ["", "docs", "alerts"] {
        for entry in std::fs::read_dir(root(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                let path = Path::new(folder).join(name).to_str().unwrap().to_owned();
                documents.insert(path.clone(), read(&path));
            }
        }
    }
    assert!(documents.len() >= 10, "the documents are found");
    documents
}

/// A document with its fenced blocks blanked, so that lines keep their numbers.
fn prose(text: &str) -> String {
    let mut inside = false;
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if inside || fence { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The fenced blocks of YAML, without the indentation that a list gives them.
fn yaml_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start() == "```yaml" {
            let block = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
            let block = block.map(|line| line.get(indent..).unwrap_or_default());
            blocks.push(block.fold(String::new(), |text, line| text + line + "\n"));
        }
    }
    blocks
}

/// The headings of a document, as links name them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text);
    let titles = titles.lines().filter(|line| line.starts_with('#'));
    let slug = |title: &str| {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(slug).collect()
}

fn is_metric(word: &str) -> bool {
    let name =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    ["plimsoll_", "wva_", "process_"]
        .iter()
        .any(|prefix| word.starts_with(prefix) && word != *prefix)
        && name(word)
}

fn before_tests(text: &str) -> &str {
    text.find("#[cfg(test)]").map_or(text, |at| &text[..at])
}

fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut sources = BTreeMap::new();
    let mut folders = vec![root(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                sources.insert(path, text);
            }
        }
    }
    sources
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The largest error of phases of a kind, in whole per cent, from two numbers in a column of the table
/// of the simulated engine.
fn largest_error(table: &str, phase: &str, column: usize) -> u32 {
    let rows = table.lines().filter(|line| line.starts_with("| `") && line.contains(phase));
    let errors = rows.map(|line| {
        let cell = line.split('|').nth(column).unwrap();
        let numbers: Vec<f64> = cell.split(',').map(|it| it.trim().parse().unwrap()).collect();
        let error = (100.0 * (numbers[1] / numbers[0] - 1.0)).abs().round();
        (0..1000).find(|whole| f64::from(*whole) >= error).unwrap()
    });
    errors.max().unwrap()
}

#[test]
fn the_errors_of_the_simulated_engine_are_said_where_it_is_described() {
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    // Wherever lines end.
    let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let recordings = read("recordings.md");
    let (_, table) = recordings.split_once("\n## The simulated engine\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let simulator = unwrapped(&read("simulator.md"));
    let (_, checked) = simulator.split_once("compared with recorded vLLM servers").unwrap();
    let (checked, _) = checked.split_once("recordings.md#the-simulated-engine").unwrap();
    let (_, sentences) = table.rsplit_once("|\n").unwrap();
    let sentences = unwrapped(sentences);
    for phase in ["medium", "saturated"] {
        // To the first token, and between tokens.
        for column in [3, 4] {
            let error = format!("{}%", largest_error(table, phase, column));
            assert!(checked.contains(&error), "{phase}, column {column}: {error} is not said");
            assert!(
                sentences.contains(&error),
                "{phase}, column {column}: {error} is in no sentence"
            );
        }
    }
}
