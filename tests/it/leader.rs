//! Several replicas, of which one decides: whole daemons against an API server that is scripted.
//!
//! The paces are short enough for a test; nothing here measures them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use plimsoll::clock::Clock;
use plimsoll::clock::heartbeat::Heartbeat;
use plimsoll::decide::Decision;
use plimsoll::decide::enforce::Behavior;
use plimsoll::fleet::VariantKey;
use plimsoll::leader::elect::Elector;
use plimsoll::leader::share::{
    DocumentAccess, DocumentBody, DocumentDraft, DocumentPosition, DocumentWriter, LeaderDocument,
    LeaderTerm,
};
use plimsoll::leader::{ElectionSettings, ElectionTiming, Leadership};
use plimsoll::observe::ScrapeFailure;
use plimsoll::pipeline::{Decisions, DesiredReplicas, Pipeline, Policy};
use plimsoll::simulate::replica::stats::Stats;
use proptest::prelude::*;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::fake::FakeCluster;
use crate::daemon::{Engine, Running, stats};
use crate::events::{a_cluster_with_an_engine, configuration};
use crate::external_metrics_harness::{Authority, Use, Validity, write_leaf};
use crate::overrides::later;
use crate::pipeline::{IDLE, World, at, policy, spec};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/plimsoll/leases";
const CONFIG_MAPS: &str = "/api/v1/namespaces/plimsoll/configmaps";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const PATIENCE: Duration = Duration::from_mins(1);

/// A machine that stands still for some seconds costs no leader the Lease.
const PACE: ElectionTiming = ElectionTiming {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_millis(100),
};

/// A configuration that takes part in the election.
fn election(folder: &TempDir, fake: &FakeCluster, engine: &Engine, who: &str) -> String {
    let election = format!(
        ", leader_election: {{enabled: true, namespace: plimsoll, identity: {who}, \
         lease_duration: 15s, renew_deadline: 10s, retry_period: 100ms}}"
    );
    configuration(folder, fake, engine, &election)
}

/// A daemon that takes part in the election.
async fn replica(fake: &FakeCluster, engine: &Engine, who: &str) -> Running {
    let folder = TempDir::new().unwrap();
    let text = election(&folder, fake, engine, who);
    Running::start_in(folder, &text).await
}

async fn variant(daemon: &Running) -> (Value, Value) {
    let decisions = daemon.ask("GET", "/api/v1/decisions").await.1;
    let decisions: Value = serde_json::from_str(&decisions).unwrap();
    (decisions["decided_by"].clone(), decisions["variants"][0].clone())
}

fn holder(leases: &[Value]) -> &str {
    leases.first().and_then(|it| it["spec"]["holderIdentity"].as_str()).unwrap_or_default()
}

fn decided(fake: &FakeCluster) -> Value {
    let document = fake.objects(CONFIG_MAPS).pop().unwrap_or_default();
    let Some(packed) = document["binaryData"]["decisions.json.zst"].as_str() else {
        let body = document["data"]["decisions.json"].as_str().unwrap_or("{}");
        return serde_json::from_str(body).unwrap();
    };
    assert_eq!(document["data"]["decisions.json"], "{}", "what an earlier release reads");
    let packed = BASE64_STANDARD.decode(packed).unwrap();
    serde_json::from_slice(&zstd::decode_all(packed.as_slice()).unwrap()).unwrap()
}

/// The series of variants and models, but for those that count events and are the leader's alone.
async fn series(daemon: &Running) -> BTreeSet<String> {
    let page = daemon.ask("GET", "/metrics").await.1;
    let names = page.lines().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name);
    let told = ["plimsoll_decisions_total", "plimsoll_desired_changes_total"];
    names
        .filter(|name| name.starts_with("plimsoll_") && name.contains("namespace="))
        .filter(|name| !told.iter().any(|told| name.starts_with(told)))
        .map(str::to_owned)
        .collect()
}

async fn leads(daemon: &Running) -> bool {
    daemon.sample("plimsoll_leader ").await == Some(1.0)
}

#[tokio::test]
async fn followers_show_the_leaders_numbers_with_their_reasons() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let first = replica(&fake, &engine, "first").await;
    first.until_desired("llama", Some(1.0)).await;
    let second = replica(&fake, &engine, "second").await;
    second.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    first.until_desired("llama", Some(2.0)).await;
    second.until_desired("llama", Some(2.0)).await;
    assert!(leads(&first).await && !leads(&second).await);
    let shown = [variant(&first).await.1, variant(&second).await.1];
    assert_eq!(shown[0]["steps"], shown[1]["steps"]);
    assert_eq!(shown[0]["headline"], shown[1]["headline"]);
    // Rates take more than one page.
    let same = async {
        while series(&first).await != series(&second).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, same).await.unwrap();
    for daemon in [&first, &second] {
        assert_eq!(daemon.ask("GET", "/readyz").await.0, 200, "ready, leading or not");
        let (by, variant) = variant(daemon).await;
        assert!(by.as_str().unwrap().starts_with("first_"), "{by}");
        let step = &variant["steps"][0];
        assert_eq!((&step["stage"], &step["after"]), (&"analyze".into(), &2.into()), "{variant}");
        assert!(step["text"].as_str().unwrap().contains("headroom"), "{variant}");
        assert!(variant["because"].as_str().unwrap().contains("1 -> 2"), "{variant}");
        assert!(variant["age_seconds"].as_f64().unwrap() < 45.0, "{variant}");
        assert_eq!(variant["replicas"].as_array().unwrap().len(), 1, "it has looked itself");
    }
    // What is counted and told is the leader's.
    assert_eq!(second.sample("plimsoll_desired_changes_total").await, None);
    let events = fake.until(EVENTS, |events| !events.is_empty()).await;
    let [event] = events.as_slice() else { panic!("one change, {events:#?}") };
    assert_eq!(event["reason"], "ScaledUp");
    second.end().await;
    first.end().await;
}

#[tokio::test]
async fn a_leader_that_ends_hands_over_at_once_and_no_number_changes() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let first = replica(&fake, &engine, "first").await;
    first.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    first.until_desired("llama", Some(2.0)).await;
    // What the load asks for from here on is what is in force.
    engine.show(stats(600));
    let second = replica(&fake, &engine, "second").await;
    second.until_desired("llama", Some(2.0)).await;
    let mut seen = second.daemon.published();
    first.end().await;
    fake.until(LEASES, |leases| holder(leases).starts_with("second_")).await;
    second.until_sample("plimsoll_leader ", 1.0).await;
    let by_us = |it: &Arc<plimsoll::publish::Published>| {
        it.decided_by.as_ref().is_some_and(|by| by.starts_with("second_"))
    };
    let reached = tokio::time::timeout(PATIENCE, async {
        loop {
            seen.changed().await.unwrap();
            let now = seen.borrow_and_update().clone();
            let desired = now.variants.values().next().and_then(|it| it.decided.clone());
            assert_eq!(desired.unwrap().decision.desired().count(), 2);
            if by_us(&now) {
                return;
            }
        }
    });
    reached.await.unwrap();
    second.end().await;
}

/// The causes of the variant that need a person, in the list of variants and in the status.
async fn attention(daemon: &Running) -> [BTreeSet<String>; 2] {
    let summary = read(daemon, "/api/v1/summary").await;
    let listed = summary["variants"][0]["attention"].as_array().unwrap().iter();
    let status = read(daemon, "/api/v1/status").await;
    let items = status["attention"].as_array().unwrap().iter().filter(|it| it["count"] == 1);

    [listed.map(name).collect(), items.map(|it| name(&it["cause"])).collect()]
}

fn name(cause: &Value) -> String {
    cause.as_str().unwrap().to_owned()
}

async fn read(daemon: &Running, path: &str) -> Value {
    serde_json::from_str(&daemon.ask("GET", path).await.1).unwrap()
}

async fn until_attention(daemon: &Running, causes: &[&str]) {
    let wanted: BTreeSet<String> = causes.iter().map(|&cause| cause.to_owned()).collect();
    let same = async {
        while attention(daemon).await.iter().any(|it| *it != wanted) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(PATIENCE, same).await.unwrap();
}

#[tokio::test]
async fn a_follower_that_hears_nothing_says_that_its_decisions_are_too_old() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let first = replica(&fake, &engine, "first").await;
    first.until_desired("llama", Some(1.0)).await;

    let folder = TempDir::new().unwrap();
    let leaf = Authority::new("serving-ca").issue("plimsoll", Use::Server, Validity::Now);
    write_leaf(folder.path(), &leaf);
    let served = "external_metrics: {listen: \"127.0.0.1:0\", fresh: 1s, hold: 12s, \
                  tls: {cert_file: tls.crt, key_file: tls.key}}";
    let unserved = election(&folder, &fake, &engine, "second");
    let text = unserved.replace("external_metrics: {enabled: false}", served);
    let second = Running::start_in(folder, &text).await;
    second.until_desired("llama", Some(1.0)).await;
    assert_eq!(attention(&second).await, [BTreeSet::new(), BTreeSet::new()]);

    fake.refuse(CONFIG_MAPS);
    until_attention(&second, &["expired"]).await;
    assert_eq!(variant(&second).await.1["desired"], 1, "the page still shows it");
    fake.allow(CONFIG_MAPS);
    until_attention(&second, &[]).await;
    second.end().await;
    first.end().await;
}

/// Waits until the variant has an override of this kind, and returns its number.
async fn overridden(daemon: &Running, kind: &str) -> Value {
    let found = async {
        loop {
            let variant = variant(daemon).await.1;
            if variant["override"]["kind"] == kind {
                return variant["desired"].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap()
}

#[tokio::test]
async fn a_pin_and_a_pause_survive_changes_of_the_leader() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let path = "/-/override?namespace=shop&variant=llama";
    let put = async |daemon: &Running, body: Value| {
        let sent = daemon.request("PUT", path).body(body.to_string()).send().await.unwrap();
        assert_eq!(sent.status(), StatusCode::OK, "{}", sent.text().await.unwrap());
    };
    let mut leader = replica(&fake, &engine, "r0").await;
    leader.until_desired("llama", Some(1.0)).await;
    leader.until_sample("plimsoll_leader ", 1.0).await;
    put(&leader, json!({"pin": 3, "until": later(3600)})).await;
    leader.until_desired("llama", Some(3.0)).await;

    for (turn, kind) in [(1, "pin"), (2, "pause"), (3, "pause")] {
        if turn == 2 {
            put(&leader, json!({"pause": true, "until": later(3600)})).await;
            assert_eq!(overridden(&leader, "pause").await, 3);
        }

        let next = replica(&fake, &engine, &format!("r{turn}")).await;
        next.until_desired("llama", Some(3.0)).await;
        assert_eq!(overridden(&next, kind).await, 3, "a follower shows the leader's order");
        let ticks = next.sample("plimsoll_ticks_total").await.unwrap();
        leader.end().await;
        next.until_sample("plimsoll_leader ", 1.0).await;
        // Without the order, the load would ask for one replica.
        let decided = async {
            loop {
                let (by, variant) = variant(&next).await;
                assert_eq!(variant["desired"], 3, "{variant}");
                if by.as_str().is_some_and(|by| by.starts_with(&format!("r{turn}_"))) {
                    return variant;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let variant = tokio::time::timeout(PATIENCE, decided).await.unwrap();
        assert_eq!(variant["override"]["kind"], kind, "{variant}");
        assert!(next.until("plimsoll_ticks_total", |now| now > ticks + 20.0).await);
        assert_eq!(overridden(&next, kind).await, 3);
        leader = next;
    }
    leader.end().await;
}

#[tokio::test]
async fn an_order_that_is_answered_survives_a_leader_that_ends_at_once() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let path = "/-/override?namespace=shop&variant=llama";
    let leader = replica(&fake, &engine, "r0").await;
    leader.until_sample("plimsoll_leader ", 1.0).await;
    leader.until_desired("llama", Some(1.0)).await;
    let next = replica(&fake, &engine, "r1").await;
    next.until_desired("llama", Some(1.0)).await;

    let order = json!({"pause": true, "until": later(3600)});
    let refused = next.request("PUT", path).body(order.to_string()).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::CONFLICT, "a follower takes no order");
    let sent = leader.request("PUT", path).body(order.to_string()).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::OK);
    leader.end().await;
    next.until_sample("plimsoll_leader ", 1.0).await;
    overridden(&next, "pause").await;

    let last = replica(&fake, &engine, "r2").await;
    overridden(&last, "pause").await;
    assert_eq!(next.ask("DELETE", path).await.0, StatusCode::OK);
    next.end().await;
    last.until_sample("plimsoll_leader ", 1.0).await;
    let ticks = last.sample("plimsoll_ticks_total").await.unwrap();
    assert!(last.until("plimsoll_ticks_total", |now| now > ticks + 20.0).await);
    assert_eq!(variant(&last).await.1["override"], Value::Null);
    last.end().await;
}

/// The number of the shared document.
fn sequence(fake: &FakeCluster) -> f64 {
    let document = fake.objects(CONFIG_MAPS).pop().unwrap();
    document["data"]["sequence"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_stream_of_orders_is_written_every_two_seconds_however_rare_ticks_are() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let folder = TempDir::new().unwrap();
    let text = election(&folder, &fake, &engine, "first");
    // An order that waits for the next of these ticks is not answered in time.
    let rare = text.replace("tick_interval: 100ms", "tick_interval: 10s");
    assert_ne!(rare, text);
    let leader = Running::start_in(folder, &rare).await;
    leader.until_sample("plimsoll_leader ", 1.0).await;
    leader.until_desired("llama", Some(1.0)).await;

    let before = sequence(&fake);
    let clock = Clock::start();
    for _ in 0..5 {
        let order = json!({"pause": true, "until": later(3600)}).to_string();
        let path = "/-/override?namespace=shop&variant=llama";
        let sent = leader.request("PUT", path).body(order).send().await.unwrap();
        assert_eq!(sent.status(), StatusCode::OK);
    }

    let writes = sequence(&fake) - before;
    let took = clock.elapsed().as_secs_f64();
    assert!(writes >= 5.0 && writes <= took / 2.0 + 2.0, "{writes} in {took} s");
    leader.end().await;
}

/// A replica that leads before it has ticked with the numbers in force knows none of its own.
#[tokio::test]
async fn a_replica_that_leads_as_soon_as_it_has_started_takes_no_number_back() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let first = replica(&fake, &engine, "first").await;
    first.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    first.until_desired("llama", Some(2.0)).await;
    engine.show(None);

    let folder = TempDir::new().unwrap();
    let text = election(&folder, &fake, &engine, "second");
    let slow = text.replace("tick_interval: 100ms", "tick_interval: 5s");
    assert_ne!(slow, text);
    // What is shared is seen only after the first ticks, and the next is five seconds away.
    fake.refuse(CONFIG_MAPS);
    let second = Running::start_in(folder, &slow).await;
    assert!(second.until("plimsoll_ticks_total", |ticks| ticks >= 2.0).await);
    fake.allow(CONFIG_MAPS);
    second.until_desired("llama", Some(2.0)).await;
    let mut seen = second.daemon.published();
    first.end().await;
    let by_second = |documents: &[Value]| {
        let holder = documents.first().and_then(|it| it["data"]["holder"].as_str());
        holder.is_some_and(|holder| holder.starts_with("second_"))
    };
    fake.until(CONFIG_MAPS, by_second).await;
    // The first tick that leads comes up to five seconds later, and its number is written.
    let led = async {
        while !leads(&second).await {
            assert_eq!(second.desired("llama").await, Some(2.0));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, led).await.unwrap();
    second.until_desired("llama", Some(2.0)).await;
    assert!(seen.borrow_and_update().variants.values().all(|it| it.decided.is_some()));
    let kept = decided(&fake).to_string();
    assert!(kept.contains("llama"), "{kept}");
    second.end().await;
}

/// A document that says 4 replicas of `llama`: written so long ago, with data that was so old then.
fn document(written_ago: Duration, age: Duration, data: &Value) -> Value {
    let now = Clock::start().now();
    let written = now.checked_sub(written_ago).unwrap();
    let at = written.checked_sub(age).unwrap();
    let body = json!({"version": 2, "generation": 812, "written": written, "decisions": [{
        "variant": {"namespace": "shop", "variant": "llama"}, "model": "m", "at": at,
        "age": age.as_secs_f64(), "basis": "held", "current": 3, "bounds": {"min": 1, "max": 8},
        "steps": [{"stage": "hold", "before": 4, "after": 4, "code": "no_data",
                   "reason": {"no_data": "no_fresh_replica"}}],
    }]});
    let mut document = json!({
        "metadata": {"name": "plimsoll-decisions", "uid": "history"},
        "data": {"decisions.json": body.to_string()},
    });
    for (key, value) in data.as_object().unwrap() {
        document["data"][key] = value.clone();
    }
    document
}

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_mins(20);

#[tokio::test]
async fn a_number_that_was_held_for_long_survives_a_failover() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    engine.show(None);
    let gone = json!({"term": "7", "sequence": "90", "holder": "gone"});
    fake.put(CONFIG_MAPS, &document(NOW, LONG, &gone));
    let daemon = replica(&fake, &engine, "next").await;
    daemon.until_desired("llama", Some(4.0)).await;
    daemon.until_sample("plimsoll_leader ", 1.0).await;
    fake.until(CONFIG_MAPS, |all| all[0]["data"]["sequence"] != "90").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(daemon.desired("llama").await, Some(4.0));
    assert_eq!(decided(&fake)["decisions"][0]["steps"][0]["after"], 4);
    daemon.end().await;
}

#[tokio::test]
async fn what_was_learned_survives_an_outage_that_is_longer_than_numbers_are_in_effect() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let gone = json!({"term": "7", "sequence": "90", "holder": "gone"});
    let mut document = document(LONG, NOW, &gone);
    let text = document["data"]["decisions.json"].as_str().unwrap();
    let mut body: Value = serde_json::from_str(text).unwrap();
    let pace = json!({"logarithms": [-5.0, -10.0, -9.5], "covariance": [[0.1, 0.0, 0.0],
        [0.0, 0.1, 0.0], [0.0, 0.0, 0.1]], "lessons": 40});
    let seen = json!({"iteration": pace, "lengths": [50_000.0, 10_000.0, 100.0],
        "held": [5.5e6, 1e4], "ranks": 1, "kv": 16_000.0, "most_running": 31.0, "busiest": 300.0});
    let foresight = json!({"learned_at": 1_795_253_460_000_i64, "seen": seen});
    body["decisions"][0]["memory"] = json!({"learned": {"foresight": foresight}});
    document["data"]["decisions.json"] = json!(body.to_string());
    fake.put(CONFIG_MAPS, &document);

    let daemon = replica(&fake, &engine, "next").await;
    daemon.until_desired("llama", Some(1.0)).await;
    fake.until(CONFIG_MAPS, |all| all[0]["data"]["sequence"] != "90").await;
    let written = async {
        loop {
            let written = decided(&fake)["decisions"][0].clone();
            // Its own recommendations show that the new leader has written its own memory.
            let recommended = written["memory"]["history"]["recommended"].as_array();
            if recommended.is_some_and(|all| !all.is_empty()) {
                return written;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let written = tokio::time::timeout(PATIENCE, written).await.unwrap();
    let kept = &written["memory"]["learned"]["foresight"]["seen"]["iteration"]["lessons"];
    assert_eq!(kept, 40, "{written}");
    daemon.end().await;
}

#[tokio::test]
async fn a_leader_that_gets_the_lease_back_has_the_orders_that_it_had() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let path = "/-/override?namespace=shop&variant=llama";
    let leader = replica(&fake, &engine, "r0").await;
    let lose_and_win = async || {
        fake.refuse(LEASES);
        leader.until_sample("plimsoll_leader ", 0.0).await;
        let ticks = leader.sample("plimsoll_ticks_total").await.unwrap();
        assert!(leader.until("plimsoll_ticks_total", |now| now > ticks + 5.0).await);
        fake.allow(LEASES);
        leader.until_sample("plimsoll_leader ", 1.0).await;
        let ticks = leader.sample("plimsoll_ticks_total").await.unwrap();
        assert!(leader.until("plimsoll_ticks_total", |now| now > ticks + 20.0).await);
    };

    leader.until_desired("llama", Some(1.0)).await;
    leader.until_sample("plimsoll_leader ", 1.0).await;
    let body = json!({"pin": 3, "until": later(3600)}).to_string();
    let sent = leader.request("PUT", path).body(body).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::OK, "{}", sent.text().await.unwrap());
    leader.until_desired("llama", Some(3.0)).await;
    lose_and_win().await;
    let (_, kept) = variant(&leader).await;
    assert_eq!((&kept["desired"], &kept["override"]["kind"]), (&json!(3), &json!("pin")), "{kept}");

    assert_eq!(leader.ask("DELETE", path).await.0, StatusCode::OK);
    lose_and_win().await;
    let (_, ended) = variant(&leader).await;
    assert_eq!(ended["override"], Value::Null, "{ended}");
    leader.end().await;
}

#[tokio::test]
async fn a_claim_makes_no_number_younger() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    engine.show(None);
    // It never leads.
    fake.refuse(LEASES);
    let gone = json!({"term": "7", "sequence": "90", "holder": "gone"});
    let old = document(LONG, NOW, &gone);
    fake.put(CONFIG_MAPS, &old);
    let daemon = replica(&fake, &engine, "reader").await;
    assert!(daemon.until("plimsoll_ticks_total", |ticks| ticks >= 5.0).await);
    assert_eq!(daemon.desired("llama").await, None, "nobody has had it in force for too long");
    // Long enough for what is seen from now on to count as just written.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut claimed = old;
    for (key, value) in [("term", "8"), ("sequence", "91"), ("holder", "another")] {
        claimed["data"][key] = json!(value);
    }
    fake.put(CONFIG_MAPS, &claimed);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(daemon.desired("llama").await, None);
    }
    daemon.end().await;
}

#[tokio::test]
async fn what_a_leader_of_another_release_says_is_counted_until_it_is_written_by_this_one() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    engine.show(None);
    // It does not lead yet.
    fake.refuse(LEASES);
    let gone = json!({"term": "7", "sequence": "90", "holder": "gone"});
    let mut document = document(NOW, NOW, &gone);
    let text = document["data"]["decisions.json"].as_str().unwrap();
    let mut body: Value = serde_json::from_str(text).unwrap();
    body["decisions"][0]["memory"] = json!({"clairvoyance": 1});
    body["decisions"][0]["steps"][0]["stage"] = json!("quota");
    document["data"]["decisions.json"] = json!(body.to_string());
    fake.put(CONFIG_MAPS, &document);
    let daemon = replica(&fake, &engine, "next").await;
    daemon.until_desired("llama", Some(4.0)).await;
    let unknown = "plimsoll_state_unknown_words{document=\"shared\"}";
    daemon.until_sample(unknown, 2.0).await;

    fake.allow(LEASES);
    daemon.until_sample("plimsoll_leader ", 1.0).await;
    daemon.until_sample(unknown, 0.0).await;
    assert_eq!(daemon.desired("llama").await, Some(4.0));
    daemon.end().await;
}

#[tokio::test]
async fn a_leader_keeps_the_numbers_of_variants_that_it_does_not_know() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let gone = json!({"term": "7", "sequence": "90", "holder": "gone"});
    let mut both = document(NOW, NOW, &gone);
    let known = both["data"]["decisions.json"].as_str().unwrap();
    let other = known.replace("llama", "unseen");
    let line = |text: &str| {
        let body: Value = serde_json::from_str(text).unwrap();
        body["decisions"][0].clone()
    };
    let mut body: Value = serde_json::from_str(known).unwrap();
    body["decisions"] = json!([line(known), line(&other)]);
    both["data"]["decisions.json"] = json!(body.to_string());
    fake.put(CONFIG_MAPS, &both);
    let daemon = replica(&fake, &engine, "next").await;
    daemon.until_sample("plimsoll_leader ", 1.0).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    // A draft of its own is written after the claim.
    fake.until(CONFIG_MAPS, |_| {
        let written = decided(&fake);
        written["generation"] != 812
    })
    .await;
    let kept = decided(&fake);
    let of = |name: &str| {
        let all = kept["decisions"].as_array().unwrap();
        all.iter().find(|line| line["variant"]["variant"] == name).cloned()
    };
    assert!(of("llama").is_some(), "{kept}");
    let unseen = of("unseen").unwrap();
    assert_eq!(unseen["steps"][0]["after"], 4, "{kept}");
    assert_eq!(daemon.desired("unseen").await, None, "it is not in the fleet here");
    daemon.end().await;
}

#[tokio::test]
async fn a_leader_that_vanishes_is_followed_by_one_that_changes_no_number() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    // Somebody who held the Lease, wrote a number and was never heard of again.
    let lease = json!({
        "metadata": {"name": "plimsoll", "uid": "u"},
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 2, "leaseTransitions": 7,
                 "renewTime": "2026-11-21T09:30:00.000000Z"},
    });
    fake.put(LEASES, &lease);
    let written = Clock::start().now();
    let low = json!({"load": {"spare_low": {"kv": [0.045, 0.1], "queue": null}}});
    let body = json!({"version": 2, "generation": 812, "written": written, "decisions": [{
        "variant": {"namespace": "shop", "variant": "llama"}, "model": "m", "at": written,
        "age": 0.5, "basis": "fresh", "current": 3, "bounds": {"min": 1, "max": 8},
        "steps": [{"stage": "analyze", "before": 3, "after": 4, "code": "spare_low",
                   "reason": low}],
    }]});
    let document = json!({
        "metadata": {"name": "plimsoll-decisions", "uid": "history"},
        "data": {"term": "7", "sequence": "90", "holder": "gone",
                 "decisions.json": body.to_string()},
    });
    fake.put(CONFIG_MAPS, &document);
    let daemon = replica(&fake, &engine, "next").await;
    daemon.until_desired("llama", Some(4.0)).await;
    let (by, shown) = variant(&daemon).await;
    assert_eq!(by, "gone", "it is shown before anybody leads");
    assert_eq!(shown["because"], "analyze: 3 -> 4, low KV-cache headroom (0.045 < 0.100)");
    daemon.until_sample("plimsoll_leader ", 1.0).await;
    fake.until(CONFIG_MAPS, |all| {
        let document = &all[0]["data"];
        document["term"] == "8" && document["sequence"].as_str().unwrap() > "91"
    })
    .await;
    // A minute's window of idle engines is not over, so nothing may be lowered yet.
    assert_eq!(
        decided(&fake)["decisions"][0]["steps"].as_array().unwrap().last().unwrap()["after"],
        4
    );
    assert!(decided(&fake)["generation"].as_u64().unwrap() >= 812, "{}", decided(&fake));
    assert_eq!(fake.objects(LEASES)[0]["spec"]["leaseTransitions"], 8);
    assert_eq!(daemon.desired("llama").await, Some(4.0));
    daemon.end().await;
}

#[tokio::test]
async fn a_number_is_shown_only_when_it_is_written() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let daemon = replica(&fake, &engine, "only").await;
    daemon.until_desired("llama", Some(1.0)).await;
    fake.refuse(CONFIG_MAPS);
    engine.show(Stats { waiting: 20, ..stats(950) });
    // It has decided: it tries to write.
    let tried = || fake.requests("PUT", CONFIG_MAPS) + fake.requests("GET", CONFIG_MAPS);
    let before = tried();
    tokio::time::timeout(PATIENCE, async {
        while tried() < before + 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(daemon.desired("llama").await, Some(1.0));
    fake.allow(CONFIG_MAPS);
    daemon.until_desired("llama", Some(2.0)).await;
    assert_eq!(decided(&fake)["decisions"][0]["steps"][0]["after"], 2);
    daemon.end().await;
}

#[tokio::test]
async fn without_permissions_the_daemon_says_so_and_keeps_what_runs() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    fake.refuse(LEASES);
    let daemon = replica(&fake, &engine, "only").await;
    daemon.until_sample("plimsoll_leader ", 0.0).await;
    tokio::time::timeout(PATIENCE, async {
        while fake.requests("GET", LEASES) < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(daemon.desired("llama").await, None);
    let (_, shown) = variant(&daemon).await;
    assert!(shown["because"].as_str().unwrap().contains("have not shared a decision"), "{shown}");
    fake.allow(LEASES);
    daemon.until_desired("llama", Some(1.0)).await;
    daemon.end().await;
}

fn settings(who: &str) -> ElectionSettings {
    ElectionSettings {
        namespace: "plimsoll".to_owned(),
        name: "plimsoll".to_owned(),
        identity: who.to_owned(),
        pace: PACE,
    }
}

/// A decision loop that is never silent for too long.
fn ticking(clock: Clock) -> Heartbeat {
    Heartbeat::start(clock, PATIENCE)
}

/// Happens to the decision loop when it publishes: wakers are woken in its thread.
enum Trap {
    Block(Mutex<mpsc::Receiver<()>>),
    Panic,
}

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        match &*self {
            // Until the sender is dropped.
            Self::Block(release) => drop(release.lock().unwrap().recv()),
            Self::Panic => panic!("the decision loop has stepped into a trap"),
        }
    }
}

impl Trap {
    /// Springs in the next tick, and not before `act`.
    async fn set(self, daemon: &Running, act: impl Future<Output = ()>) {
        let waker = Waker::from(Arc::new(self));
        let mut published = daemon.daemon.published();
        loop {
            published.borrow_and_update();
            let mut changed = std::pin::pin!(published.changed());
            if changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                return act.await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_loop_stands_still_gives_up_and_another_replica_leads() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let first = replica(&fake, &engine, "first").await;
    first.until_desired("llama", Some(1.0)).await;
    let second = replica(&fake, &engine, "second").await;
    second.until_desired("llama", Some(1.0)).await;

    let (release, blocked) = mpsc::channel();
    let replaced = async {
        fake.until(LEASES, |leases| holder(leases).starts_with("second_")).await;
        second.until_sample("plimsoll_leader ", 1.0).await;
        engine.show(Stats { waiting: 20, ..stats(950) });
        second.until_desired("llama", Some(2.0)).await;
        drop(release);
    };
    Trap::Block(Mutex::new(blocked)).set(&first, replaced).await;

    first.until_sample("plimsoll_leader ", 0.0).await;
    first.until_desired("llama", Some(2.0)).await;
    assert!(leads(&second).await, "who comes back takes nothing back");
    second.end().await;
    first.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_loop_panics_gives_the_lease_back_and_is_not_alive() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let daemon = replica(&fake, &engine, "only").await;
    daemon.until_desired("llama", Some(1.0)).await;
    assert_eq!(daemon.ask("GET", "/livez").await.0, 200);

    // A Lease that expires keeps its holder's name.
    let given_back = async {
        fake.until(LEASES, |leases| holder(leases).is_empty()).await;
    };
    Trap::Panic.set(&daemon, given_back).await;
    let (status, said) = daemon.ask("GET", "/livez").await;
    assert_eq!(status, 500, "{said}");
    assert!(said.contains("the decision loop has ended"), "{said}");
    daemon.end().await;
}

fn plain(body: &str) -> DocumentBody {
    DocumentBody::Plain(body.into())
}

/// Someone who believes that they lead until the end of time.
struct Believer {
    drafts: watch::Sender<Option<DocumentDraft>>,
    seat: watch::Receiver<DocumentAccess>,
    leadership: watch::Sender<Leadership>,
    _stop: tokio_util::sync::DropGuard,
}

impl Believer {
    fn start(fake: &FakeCluster, who: &str) -> Self {
        let leads = Leadership { until: Some(Duration::MAX), holder: Some(who.to_owned()) };
        let (leadership, believed) = watch::channel(leads);
        let (drafts, to_write) = watch::channel(None);
        let clock = Clock::start();
        let failures = prometheus::IntCounter::new("failures", "failures").unwrap();
        let (desk, seat) =
            DocumentWriter::new(fake.client(), settings(who), clock, believed, to_write, failures);
        let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
        tracker.spawn(desk.run(stop.clone()));
        Self { drafts, seat, leadership, _stop: stop.drop_guard() }
    }

    async fn until(&mut self, is: impl FnMut(&DocumentAccess) -> bool) -> DocumentAccess {
        tokio::time::timeout(PATIENCE, self.seat.wait_for(is)).await.unwrap().unwrap().clone()
    }

    async fn until_writer(&mut self) -> LeaderTerm {
        match self.until(|seat| *seat != DocumentAccess::Reader).await {
            DocumentAccess::Writer { term, .. } => term,
            DocumentAccess::Reader => unreachable!("waited for"),
        }
    }

    fn write(&self, number: u64, term: LeaderTerm, body: &str) {
        self.drafts.send_replace(Some(DocumentDraft { number, term, body: plain(body) }));
    }
}

#[tokio::test]
async fn what_was_decided_in_a_term_that_is_over_is_never_written() {
    let fake = FakeCluster::start().await;
    let mut old = Believer::start(&fake, "old");
    let term = old.until_writer().await;
    old.write(1, term, "old 1");
    old.until(|seat| matches!(seat, DocumentAccess::Writer { written: 1, .. })).await;

    let mut new = Believer::start(&fake, "new");
    let newer = new.until_writer().await;
    assert!(newer > term);
    let DocumentAccess::Writer { inherited, .. } = new.seat.borrow().clone() else {
        panic!("it writes")
    };
    assert_eq!(inherited.unwrap().body, plain("old 1"), "it goes on from what it found");
    new.write(1, newer, "new 1");
    new.until(|seat| matches!(seat, DocumentAccess::Writer { written: 1, .. })).await;

    // What the old leader has decided before it knew that its term is over.
    old.leadership.send_modify(|it| it.until = None);
    old.until(|seat| *seat == DocumentAccess::Reader).await;
    let before = fake.requests("PUT", CONFIG_MAPS);
    old.write(2, term, "old 2");
    old.leadership.send_modify(|it| it.until = Some(Duration::MAX));
    let latest = old.until_writer().await;
    assert!(latest > newer, "who leads after all has a term of its own");
    old.write(3, latest, "old 3");
    old.until(|seat| matches!(seat, DocumentAccess::Writer { written: 3, .. })).await;
    assert_eq!(fake.requests("PUT", CONFIG_MAPS) - before, 2, "a claim and what it decided in it");
    let document: k8s_openapi::api::core::v1::ConfigMap =
        serde_json::from_value(fake.objects(CONFIG_MAPS).pop().unwrap()).unwrap();
    let document = LeaderDocument::read(&document).unwrap();
    assert_eq!(document.body, plain("old 3"));
}

#[tokio::test]
async fn a_deposed_leaders_late_write_is_refused() {
    let fake = FakeCluster::start().await;
    let mut one = Believer::start(&fake, "one");
    let first = one.until_writer().await;
    let mut other = Believer::start(&fake, "other");
    let second = other.until_writer().await;
    // It still believes, and does not know of the other's claim.
    one.write(1, first, "late");
    let third = match one
        .until(|it| matches!(it, DocumentAccess::Writer { term, .. } if *term > second))
        .await
    {
        DocumentAccess::Writer { term, .. } => term,
        DocumentAccess::Reader => unreachable!("waited for"),
    };
    assert!(third > second);
    let writes = fake.requests("PUT", CONFIG_MAPS);
    assert_eq!(writes, 3, "the other's claim, the late write that is refused, and a new claim");
    let body = &fake.objects(CONFIG_MAPS)[0]["data"]["decisions.json"];
    assert_eq!(*body, "{}", "what was decided in a term that is over is not written");
}

#[tokio::test]
async fn contenders_take_turns_and_one_leads_at_a_time() {
    let fake = FakeCluster::start().await;
    let (clock, tracker) = (Clock::start(), TaskTracker::new());
    let start = |who: &str| {
        let (elector, leadership) =
            Elector::new(fake.client(), settings(who), clock, ticking(clock));
        let retire = CancellationToken::new();
        tracker.spawn(elector.run(retire.clone()));
        (leadership, retire)
    };
    let contenders: Vec<_> = ["a", "b", "c"].map(start).into();
    let leading = || {
        let now = clock.elapsed();
        contenders.iter().position(|(leadership, _)| leadership.borrow().leads(now))
    };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..contenders.len() {
        let leader = tokio::time::timeout(PATIENCE, async {
            loop {
                let fresh = leading().filter(|leader| !seen.contains(leader));
                if let Some(leader) = fresh {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let leader = leader.await.unwrap();
        let now = clock.elapsed();
        let leaders = contenders.iter().filter(|(it, _)| it.borrow().leads(now)).count();
        assert_eq!(leaders, 1);
        seen.insert(leader);
        contenders[leader].1.cancel();
    }
    fake.until(LEASES, |leases| holder(leases).is_empty()).await;
    assert_eq!(fake.objects(LEASES)[0]["spec"]["leaseTransitions"], 2);
}

#[tokio::test]
async fn a_contender_that_ends_gives_the_lease_back_and_leads_no_longer() {
    let fake = FakeCluster::start().await;
    let clock = Clock::start();
    let (elector, mut leadership) =
        Elector::new(fake.client(), settings("a"), clock, ticking(clock));
    let retire = CancellationToken::new();
    let running = TaskTracker::new().spawn(elector.run(retire.clone()));
    let leading = leadership.wait_for(|it| it.until.is_some());
    tokio::time::timeout(PATIENCE, leading).await.unwrap().unwrap();

    retire.cancel();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!(leadership.borrow().until, None, "at once, not when the time is over");
    assert_eq!(holder(&fake.objects(LEASES)), "");
}

#[tokio::test]
async fn a_contender_knows_the_holder_before_it_leads_itself() {
    let fake = FakeCluster::start().await;
    let clock = Clock::start();
    let now = clock.now().to_string();
    let spec = json!({"holderIdentity": "other", "leaseDurationSeconds": 600,
                      "renewTime": now, "acquireTime": now, "leaseTransitions": 3});
    fake.put(LEASES, &json!({"metadata": {"name": "plimsoll"}, "spec": spec}));
    let (elector, mut leadership) =
        Elector::new(fake.client(), settings("a"), clock, ticking(clock));
    let retire = CancellationToken::new();
    TaskTracker::new().spawn(elector.run(retire.clone()));
    let known = leadership.wait_for(|it| it.holder.is_some());
    let known = tokio::time::timeout(PATIENCE, known).await.unwrap().unwrap().clone();
    assert_eq!(known, Leadership { until: None, holder: Some("other".to_owned()) });
    retire.cancel();
}

/// A Lease that lasts for longer than the test passes on only if it is given back.
#[tokio::test]
async fn a_contender_whose_loop_stands_still_gives_the_lease_back() {
    let fake = FakeCluster::start().await;
    let clock = Clock::start();
    let pace = ElectionTiming {
        lease_duration: 2 * PATIENCE,
        renew_deadline: 2 * PATIENCE,
        retry_period: Duration::from_millis(20),
    };
    let settings = ElectionSettings { pace, ..settings("a") };
    let heartbeat = Heartbeat::start(clock, Duration::from_millis(20));
    let (elector, mut leadership) = Elector::new(fake.client(), settings, clock, heartbeat);
    let retire = CancellationToken::new();
    TaskTracker::new().spawn(elector.run(retire.clone()));
    fake.until(LEASES, |leases| holder(leases) == "a").await;
    fake.until(LEASES, |leases| holder(leases).is_empty()).await;
    let ended = leadership.wait_for(|it| it.until.is_none());
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    retire.cancel();
}

fn place(seat: &DocumentAccess) -> DocumentPosition {
    match seat {
        DocumentAccess::Writer { place, .. } => place.position,
        DocumentAccess::Reader => panic!("it only reads"),
    }
}

#[tokio::test]
async fn a_writer_knows_the_place_of_what_it_wrote_and_claims_again_what_was_deleted() {
    let fake = FakeCluster::start().await;
    let mut writer = Believer::start(&fake, "a");
    let term = writer.until_writer().await;
    let claimed = place(&writer.seat.borrow());
    writer.write(1, term, "1");
    let is_written =
        |seat: &DocumentAccess| matches!(seat, DocumentAccess::Writer { written: 1, .. });
    let written = place(&writer.until(is_written).await);
    assert_eq!((written.term, written.sequence), (claimed.term, claimed.sequence + 1));

    fake.delete(CONFIG_MAPS, "plimsoll-decisions");
    writer.write(2, term, "2");
    let again = |seat: &DocumentAccess| matches!(seat, DocumentAccess::Writer { term: later, .. } if *later > term);
    let again = place(&writer.until(again).await);
    assert!(again > written, "no position is used twice");
    assert_eq!(fake.objects(CONFIG_MAPS)[0]["data"]["decisions.json"], "{}");
}

/// One second of a leader's life.
#[derive(Clone, Debug)]
enum Second {
    Load(f64, f64),
    Fail(u32),
    Heal,
    Silence,
    Scale(u32),
}

fn second() -> impl Strategy<Value = Second> {
    prop_oneof![
        4 => (0.0..1.2, 0.0..40.0).prop_map(|(kv, queue)| Second::Load(kv, queue)),
        1 => (0..6_u32).prop_map(Second::Fail),
        1 => Just(Second::Heal),
        1 => Just(Second::Silence),
        1 => (1..6_u32).prop_map(Second::Scale),
    ]
}

fn numbers(decisions: &Decisions) -> BTreeMap<VariantKey, DesiredReplicas> {
    let number = |decision: &Decision| {
        let desired = decision.desired();
        let inputs_at = decision.inputs_at;
        (decision.variant.clone(), DesiredReplicas { desired, inputs_at, packed: None })
    };
    decisions.decisions.iter().map(number).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A follower joins at some time and takes over at another. Its first number lies between the
    /// one in force and what the leader would have decided: a failover by itself changes nothing.
    #[test]
    fn who_follows_and_then_leads_goes_on_from_the_numbers_in_force(
        seconds in prop::collection::vec((second(), 1..15_i64), 1..30),
        join in 0_usize..10,
        stabilised in any::<bool>(),
    ) {
        let behavior = if stabilised { Behavior { flap_budget: u32::MAX, ..Behavior::default() } } else { policy().behavior };
        let policy = Policy { behavior, ..policy() };
        let mut world = World::with(policy.clone(), vec![spec("a", 1.0, (1, 6))]);
        world.set("a", 3, IDLE);
        let mut follower = Pipeline::new(policy);
        let mut in_force = BTreeMap::new();
        for (index, (second, times)) in seconds.into_iter().enumerate() {
            let known = world.variants.get_mut("a").unwrap();
            match second {
                Second::Load(kv, queue) => known.load = (kv, queue),
                Second::Fail(index) => drop(known.failing.insert(index, ScrapeFailure::Timeout)),
                Second::Heal => {
                    known.failing.clear();
                    known.silent.clear();
                }
                Second::Silence => known.silent = vec![0, 1, 2, 3, 4, 5],
                Second::Scale(count) => {
                    known.listed = count;
                    known.scale = crate::pipeline::known(count, count);
                }
            }
            for tick in 1..=times {
                let inputs = world.inputs();
                let now = at(world.second);
                let before = in_force.clone();
                let decisions = world.tick();
                // The leader vanishes at the end of each stretch.
                if index > join && tick == times {
                    let mut next = follower.clone();
                    next.take_over(now, &before);
                    let taken = next.tick(now, &inputs);
                    for (key, before) in &before {
                        let of = |all: &Decisions| numbers(all)[key].desired;
                        let (leader, follower) = (of(&decisions), of(&taken));
                        let before = before.desired;
                        prop_assert!(
                            before.min(leader) <= follower && follower <= before.max(leader),
                            "{} in force, {} by the leader, {} after it", before, leader, follower
                        );
                    }
                }
                in_force = numbers(&decisions);
                if index >= join {
                    let _not_in_force = follower.follow(now, &inputs, &in_force);
                }
            }
        }
    }
}
