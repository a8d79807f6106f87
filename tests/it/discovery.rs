//! Discovered variants in a running daemon, against an API server that is scripted.

use std::fs;
use std::time::Duration;

use plimsoll::clock::Clock;
use plimsoll::simulate::replica::stats::Stats;
use plimsoll::units::{CostPerHour, Fraction};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::fake::FakeCluster;
use crate::daemon::{Engine, Running, stats};
use crate::events::{a_cluster_with_an_engine, configuration};
use crate::prometheus::server::{Server, Target};
use crate::prometheus::{engine as page, labels};

const HPAS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";
/// Where discovery lists those of all namespaces.
const ALL_HPAS: &str = "/apis/autoscaling/v2/horizontalpodautoscalers";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";

/// Annotates the HPA of that cluster, with this beside the model.
fn annotate(fake: &FakeCluster, engine: &Engine, name: &str, value: &str) {
    annotate_all(fake, engine, &[(name, value)]);
}

fn annotate_all(fake: &FakeCluster, engine: &Engine, more: &[(&str, &str)]) {
    let mut hpa = fake.objects(HPAS).into_iter().next().unwrap();
    let port = engine.address.port().to_string();
    let mut annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/port": port});
    for (name, value) in more {
        annotations[*name] = json!(value);
    }
    hpa["metadata"]["annotations"] = annotations;
    fake.put(HPAS, &hpa);
}

/// The configuration of that cluster without its variant; numbers survive in a file.
fn discovering(folder: &TempDir, fake: &FakeCluster, engine: &Engine) -> String {
    let text = configuration(folder, fake, engine, ", discovery: {enabled: true}");
    let (text, _declared) = text.split_once("variants:").unwrap();
    format!("{text}state_file: state.json\n")
}

#[tokio::test]
async fn with_the_plain_port_alone_a_daemon_of_a_cluster_serves_until_the_delay_is_over() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let folder = TempDir::new().unwrap();
    let text = configuration(&folder, &fake, &engine, "").replace("delay: 0s", "delay: 2s");
    let running = Running::start_in(folder, &text).await;
    running.until_desired("llama", Some(1.0)).await;

    let ready = running.request("GET", "/readyz").build().unwrap();
    let number = "/api/v1/desired?namespace=shop&variant=llama";
    let number = running.request("GET", number).build().unwrap();
    let client = reqwest::Client::new();
    let serves = async {
        while client.execute(ready.try_clone().unwrap()).await.unwrap().status().is_success() {
            tokio::task::yield_now().await;
        }
        assert!(client.execute(number).await.unwrap().status().is_success(), "it still serves");
    };
    let (folder, ()) = tokio::join!(running.end(), serves);
    drop(folder);
}

#[tokio::test]
async fn a_discovered_variant_outlives_a_reload_and_its_number_a_restart() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &engine);
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("llama", Some(2.0)).await;

    // Nothing of it is in the configuration, whatever that says.
    let other = text.replace("tick_interval: 100ms", "tick_interval: 150ms");
    fs::write(daemon.file(), &other).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    assert_eq!(daemon.desired("llama").await, Some(2.0));
    daemon.until_desired("llama", Some(2.0)).await;

    // Without a page there is nothing but the number of before.
    engine.show(None);
    let folder = daemon.end().await;
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(2.0)).await;
    let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
    assert!(said.contains("restored after a restart"), "{said}");

    fake.delete(HPAS, "llama-hpa");
    daemon.until_desired("llama", None).await;
    assert_eq!(daemon.sample("plimsoll_variant_info").await, None);
    daemon.end().await;
}

#[tokio::test]
async fn a_variant_whose_object_is_replaced_continues_from_its_number() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &engine).replace("state_file: state.json\n", "");
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("llama", Some(2.0)).await;

    // Without a page there is nothing but the number of before.
    engine.show(None);
    let hpa = fake.objects(HPAS).remove(0);
    fake.delete(HPAS, "llama-hpa");
    daemon.until_desired("llama", None).await;
    fake.put(HPAS, &hpa);
    daemon.until_desired("llama", Some(2.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_cluster_that_first_refuses_costs_no_number_of_what_it_would_have_shown() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let folder = TempDir::new().unwrap();
    let now = Clock::start().now();
    let line =
        format!(r#"{{"namespace":"shop","variant":"llama","model":"m","desired":7,"at":"{now}"}}"#);
    let saved = format!(r#"{{"version":3,"written":"{now}","decisions":[{line}]}}"#);
    let state = folder.path().join("state.json");
    fs::write(&state, saved).unwrap();
    let text = discovering(&folder, &fake, &engine).replace("state.json", state.to_str().unwrap())
        + &format!(
            "variants:\n- {{name: other, model: m, targets: {{static: [\"{}\"]}}}}\n",
            engine.address
        );

    fake.refuse(ALL_HPAS);
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("other", Some(1.0)).await;
    daemon.until_sample("plimsoll_discovery_objects{state=\"accepted\"}", 0.0).await;
    let folder = daemon.end().await;
    let kept = fs::read_to_string(&state).unwrap();
    assert!(kept.contains("\"other\"") && kept.contains("\"desired\":7"), "{kept}");

    fake.allow(ALL_HPAS);
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(7.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_discovered_variant_is_read_from_prometheus_unless_it_says_otherwise() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let prometheus = Server::start().await;
    let pod = |load: (u32, u32)| Target {
        labels: labels(&[("namespace", "shop"), ("pod", "llama-0"), ("instance", "a")]),
        page: Some(page(load.0, load.1)),
    };
    prometheus.show(vec![pod((950, 20))]);
    let folder = TempDir::new().unwrap();
    let mut text = discovering(&folder, &fake, &engine);
    text.push_str("prometheus: {interval: 200ms, stale_after: 3s, timeout: 3s, url: \"");
    text.push_str(&(prometheus.url() + "\"}\n"));
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(2.0)).await;
    assert_eq!(daemon.sample("plimsoll_scrape_targets").await, Some(0.0));

    annotate(&fake, &engine, "plimsoll.dev/source", "scrape");
    daemon.until_sample("plimsoll_scrape_targets", 1.0).await;
    annotate(&fake, &engine, "plimsoll.dev/source", "prometheus");
    daemon.until_sample("plimsoll_discovery_objects{state=\"refused\"}", 1.0).await;
    assert_eq!(daemon.sample("plimsoll_scrape_targets").await, Some(1.0), "the last sound reading");
    daemon.end().await;
}

#[tokio::test]
async fn discovery_can_be_switched_on_and_off_while_the_daemon_runs() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/variant", "by-annotation");
    let folder = TempDir::new().unwrap();
    let declared = configuration(&folder, &fake, &engine, "");
    let discovered = discovering(&folder, &fake, &engine).replace("state_file: state.json\n", "");
    let daemon = Running::start_in(folder, &declared).await;
    daemon.until_desired("llama", Some(1.0)).await;
    assert_eq!(daemon.desired("by-annotation").await, None);

    fs::write(daemon.file(), &discovered).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    daemon.until_desired("by-annotation", Some(1.0)).await;
    assert_eq!(daemon.desired("llama").await, None);

    // Both on one target: the configuration is in force, and the object is told.
    let (_, variants) = declared.split_once("variants:").unwrap();
    fs::write(daemon.file(), format!("{discovered}variants:{variants}")).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    daemon.until_desired("llama", Some(1.0)).await;
    daemon.until_desired("by-annotation", None).await;
    daemon.until_sample("plimsoll_discovery_objects{state=\"shadowed\"}", 1.0).await;
    let taken = |event: &serde_json::Value| event["reason"] == "ScaleTargetTaken";
    let events = fake.until(EVENTS, |events| events.iter().any(taken)).await;
    let event = events.iter().find(|event| taken(event)).unwrap();
    assert_eq!(event["regarding"]["uid"], "uid-of-hpa");

    fs::write(daemon.file(), &declared).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    daemon.until_desired("llama", Some(1.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_variant_that_moves_into_an_annotation_keeps_its_number() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let folder = TempDir::new().unwrap();
    let declared = configuration(&folder, &fake, &engine, ", discovery: {enabled: true}");
    let (discovered, _) = declared.split_once("variants:").unwrap();
    let daemon = Running::start_in(folder, &declared).await;
    daemon.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("llama", Some(2.0)).await;
    daemon.until_sample("plimsoll_discovery_objects{state=\"shadowed\"}", 1.0).await;

    engine.show(None);
    fs::write(daemon.file(), discovered).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    daemon.until_sample("plimsoll_discovery_objects{state=\"accepted\"}", 1.0).await;
    daemon.until_sample("plimsoll_cost_per_hour", 2.0).await;
    daemon.until_desired("llama", Some(2.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_wrong_annotation_is_an_event_on_its_object_and_changes_nothing() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    annotate(&fake, &engine, "plimsoll.dev/cost", "2");
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &engine);
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    daemon.until_sample("plimsoll_discovery_objects{state=\"accepted\"}", 1.0).await;
    daemon.until_sample("plimsoll_cost_per_hour", 2.0).await;

    annotate(&fake, &engine, "plimsoll.dev/cost", "cheap");
    daemon.until_sample("plimsoll_discovery_objects{state=\"refused\"}", 1.0).await;
    let refused = |event: &serde_json::Value| event["reason"] == "AnnotationsRefused";
    let events = fake.until(EVENTS, |events| events.iter().any(refused)).await;
    let event = events.iter().find(|event| refused(event)).unwrap();
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("annotation plimsoll.dev/cost must be a number"), "{note}");
    assert!(note.ends_with("the last valid annotations stay in effect"), "{note}");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["uid"], "uid-of-hpa");
    assert_eq!(daemon.sample("plimsoll_cost_per_hour").await, Some(2.0));
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("llama", Some(2.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn the_settings_of_ranking_by_price_are_discovered_and_a_wrong_one_leaves_the_last() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let priced = |price: &'static str, mismatch: &'static str| {
        [("plimsoll.dev/list-price", price), ("plimsoll.dev/mismatch", mismatch)]
    };
    annotate_all(&fake, &engine, &priced("8", "1.5"));
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &engine);
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    let found = || {
        let published = daemon.daemon.published().borrow().clone();
        let spec = &published.variants.values().next().unwrap().spec;
        (spec.list_price.unwrap(), spec.mismatch)
    };
    let price = |price: f64| CostPerHour::new(price).unwrap();
    let mismatch = |mismatch: f64| Fraction::new(mismatch).unwrap();
    assert_eq!(found(), (price(8.0), mismatch(1.5)));

    annotate_all(&fake, &engine, &priced("8 EUR", "-1"));
    daemon.until_sample("plimsoll_discovery_objects{state=\"refused\"}", 1.0).await;
    for said in [
        "annotation plimsoll.dev/list-price must be a number from 0 to 1000000000; found \"8 EUR\"",
        "annotation plimsoll.dev/mismatch must be a number",
    ] {
        let refused = |event: &serde_json::Value| {
            let note = event["note"].as_str().unwrap_or_default();
            event["reason"] == "AnnotationsRefused" && note.contains(said)
        };
        fake.until(EVENTS, |events| events.iter().any(refused)).await;
    }
    assert_eq!(found(), (price(8.0), mismatch(1.5)));

    annotate_all(&fake, &engine, &priced("9.5", "2"));
    let mended = async {
        while found() != (price(9.5), mismatch(2.0)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), mended).await.unwrap();
    daemon.end().await;
}

#[tokio::test]
async fn engine_arguments_in_a_config_map_are_read_as_soon_as_that_is_granted() {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
    const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let container = json!({"name": "engine", "image": "vllm/vllm-openai",
                           "args": ["--config=/etc/vllm/engine.yaml", "--max-num-seqs", "64"],
                           "volumeMounts": [{"name": "settings", "mountPath": "/etc/vllm"}]});
    let pod = json!({"containers": [container],
                     "volumes": [{"name": "settings", "configMap": {"name": "engine"}}]});
    let spec = json!({"template": {"spec": pod}});
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}, "spec": spec}));
    let text = "max-num-seqs: 8\nmax-num-batched-tokens: 1024\n";
    fake.put(CONFIG_MAPS, &json!({"metadata": {"name": "engine"}, "data": {"engine.yaml": text}}));
    fake.refuse(CONFIG_MAPS);
    let folder = TempDir::new().unwrap();
    let text = configuration(&folder, &fake, &engine, "");
    let daemon = Running::start_in(folder, &text).await;
    let arguments = |state: &str| {
        format!(
            "plimsoll_engine_arguments{{model=\"m\",namespace=\"shop\",state=\"{state}\",variant=\"llama\"}}"
        )
    };
    daemon.until_sample(&arguments("elsewhere"), 1.0).await;
    let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
    assert!(said.contains("/etc/vllm/engine.yaml is only known inside the container"), "{said}");

    fake.allow(CONFIG_MAPS);
    daemon.until_sample(&arguments("read"), 1.0).await;
    let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
    // The command line wins over the file.
    assert!(said.contains("vllm, 64 sequences at once, 1024 tokens per step"), "{said}");
    daemon.end().await;
}
