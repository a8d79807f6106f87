//! Pools: the worked examples of docs/pools.md, computed anew, and a daemon that reads a gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::decide::pools::Ordinal;
use plimsoll::decide::pools::adapters::{
    AdapterActivity, BindingNeed, Copies, CopiesSource, PoolNeed, need,
};
use plimsoll::decide::pools::plan::{AdapterLayout, LayoutWish, ReplicaPlan, plan};
use plimsoll::fleet::ModelName;
use plimsoll::observe::engine::lora::Slots;
use plimsoll::units::Replicas;
use serde_json::Value;

use crate::daemon::{Engine, Running, stats, text};
use crate::scrape::server::{Server, page};

/// A daemon whose pool has a gateway, which has routed 20 more requests for `x` at each reading.
#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_an_adapter_at_the_gateway_is_on_every_surface() {
    let engine = Engine::start().await;
    engine.show(stats(500));
    let counted = Arc::new(AtomicU64::new(1_000_000));
    let shown = Arc::clone(&counted);
    let gateway = Server::http(move |_| {
        let count = shown.fetch_add(20, Ordering::Relaxed);
        let text = format!(
            "inference_pool_ready_pods{{name=\"pool\"}} 1\n\
             process_start_time_seconds 1.7e+09\n\
             llm_d_epp_request_total{{fairness_id=\"a\",model_name=\"m\",priority=\"0\",target_model_name=\"x\"}} {count}\n\
             llm_d_epp_request_total{{fairness_id=\"a\",model_name=\"m\",priority=\"0\",target_model_name=\"unserved\"}} {count}\n\
             inference_objective_request_total{{model_name=\"m\",priority=\"0\",target_model_name=\"x\"}} 7\n"
        );
        async move { page(&text) }
    })
    .await;
    let pool = format!(
        "pools: {{default/a: {{max_loras: 2, adapters: {{x: {{max: 4}}}}, idle_after: 10s, \
         gateway: {{url: \"http://{}/metrics\", interval: 200ms}}}}}}\n",
        gateway.address
    );
    let daemon = Running::start(&text(&[("a", engine.address)], &pool)).await;
    let arrivals = "plimsoll_pool_arrivals_per_second";
    assert!(daemon.until(arrivals, |rate| rate > 0.0).await);
    let reads =
        r#"plimsoll_wake_signal_reads_total{outcome="read",signal="pools[\"default/a\"].gateway"}"#;
    assert!(daemon.sample(reads).await.unwrap() > 2.0);

    let answer = daemon.ask("GET", "/api/v1/decisions").await.1;
    let decisions: Value = serde_json::from_str(&answer).unwrap();
    let adapters = decisions["variants"][0]["pool"]["adapters"].as_array().unwrap();
    let names: Vec<_> = adapters.iter().map(|it| it["adapter"].as_str().unwrap()).collect();
    assert_eq!(names, ["x"], "a client's name alone is no adapter");
    assert!(adapters[0]["arriving"].as_f64().unwrap() > 0.0, "{decisions}");
    daemon.end().await;
}

const DOCUMENT: &str = include_str!("../../docs/pools.md");

/// The cells of the table with this heading.
fn table(heading: &str) -> Vec<Vec<String>> {
    let lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    assert!(!rows.is_empty(), "{heading} is in the document");
    rows
}

fn n(text: &str) -> Replicas {
    Replicas::new(text.parse().unwrap()).unwrap()
}

fn model(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

fn set(cell: &str) -> BTreeSet<ModelName> {
    cell.split(',').filter_map(|name| ModelName::new(name.trim())).collect()
}

#[test]
fn the_numbers_of_the_document_are_those_that_are_computed() {
    for row in table("| copies of a, b, c, d, e |") {
        let [copies, slots, load, for_copies, for_slots, replicas, because] = &row[..] else {
            panic!("{row:?}")
        };
        let wants = copies.split(',').zip(["a", "b", "c", "d", "e"]).map(|(wanted, name)| Copies {
            adapter: model(name),
            wanted: n(wanted.trim()),
            source: CopiesSource::Seen(AdapterActivity::Busy),
        });
        let wants: Vec<Copies> = wants.collect();
        let slots = Slots::new(slots.parse().unwrap());
        let found = need(&wants, slots, Some(n(load)));
        assert_eq!(found.replicas(), n(replicas), "{row:?}");
        assert_eq!(found.copies.as_ref().unwrap().1, n(for_copies), "{row:?}");
        let PoolNeed { slots, .. } = &found;
        assert!(format!("{slots:?}").contains(&format!("replicas: {:?}", n(for_slots))), "{row:?}");
        let label = match found.binding() {
            BindingNeed::Nothing => "`pool_idle`",
            BindingNeed::Copies => "`pool_copies`",
            BindingNeed::Slots => "`pool_slots`",
            BindingNeed::Load => "`pool_load`",
        };
        assert_eq!(label, because, "{row:?}");
    }
}

#[test]
fn the_plan_of_the_document_is_the_one_that_is_made() {
    let rows = table("| replica | has | keep | load |");
    let at = |row: &[String]| Ordinal::new(row[0].parse().unwrap());
    let current: AdapterLayout = rows.iter().map(|row| (at(row), set(&row[1]))).collect();
    let copies = ["a", "b", "c"].map(|name| (model(name), n("2"))).into();
    let wish = LayoutWish { copies, replicas: n("3"), slots: Slots::new(2).unwrap() };
    let made = plan(&current, &wish);
    let want = rows.iter().map(|row| {
        let (keep, load) = (set(&row[2]), set(&row[3]));
        (at(row), ReplicaPlan { keep, load, unload: BTreeSet::new() })
    });
    assert_eq!(made.replicas, want.collect::<BTreeMap<_, _>>());

    let together = |plan: &ReplicaPlan| plan.keep.union(&plan.load).cloned().collect();
    let after: AdapterLayout =
        made.replicas.iter().map(|(at, plan)| (*at, together(plan))).collect();
    assert_eq!(plan(&after, &wish).loads(), Replicas::ZERO, "it is content with itself");
}
