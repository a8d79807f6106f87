//! Pins and pauses: what they do to a number, and how long they last.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::limit::{Allowance, LimitName, LimitScope, LimitSource, SupplyLimit};
use plimsoll::decide::zero::ZeroPolicy;
use plimsoll::decide::{Basis, Decision, ReasonCode};
use plimsoll::fleet::{Role, VariantSpec};
use plimsoll::observe::overrides::{OVERRIDE_MAX, Order, Override, OverrideSource};
use plimsoll::observe::{DemandSignal, Inputs, Naming, SignalQuantity, SignalValue};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::zero::{Zero, ZeroRule};
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{Gpus, Requests, Seconds};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::daemon::{Engine, Running, stats, text};
use crate::limits::{limited, on};
use crate::pipeline::{BUSY, IDLE, World, at, desired, key, n, of, policy, spec};
use crate::sizing::sized;

/// A tick of a world in which variant `a` has this order until a second.
fn ordered(world: &mut World, order: Order, until: i64) -> Decisions {
    let inputs = world.inputs();
    ordered_on(world, inputs, order, until)
}

/// A tick on these inputs, in which variant `a` has this order until a second.
fn ordered_on(world: &mut World, inputs: Inputs, order: Order, until: i64) -> Decisions {
    let given = Override { order, until: at(until), by: OverrideSource::Api };
    let with_order = Inputs { overrides: [(key("a"), given)].into(), ..inputs };
    let decisions = world.pipeline.tick(at(world.second), &with_order);

    world.second += 1;
    decisions
}

/// Ticks once a second with this order for variant `a`, and returns the last decisions.
fn run_ordered(world: &mut World, order: Order, seconds: i64) -> Decisions {
    let until = world.second + seconds;
    let mut decisions = Decisions::default();
    for _ in 0..seconds {
        decisions = ordered(world, order, until);
    }

    decisions
}

/// A world that analyzers size, with variant `a` and variant `b`.
fn sized_pair(a: VariantSpec, b: VariantSpec) -> World {
    World::with(sized(&[Analyzer::Tokens]), vec![a, b])
}

fn numbers(decisions: &Decisions) -> (u32, u32) {
    (desired(decisions, "a"), desired(decisions, "b"))
}

fn alone(bounds: (u32, u32), policy: Policy) -> World {
    World::with(policy, vec![spec("a", 1.0, bounds)])
}

fn last(decisions: &Decisions) -> &Decision {
    of(decisions, "a")
}

#[test]
fn a_pin_sets_the_number_until_it_ends_and_then_the_load_decides_again() {
    let mut world = alone((1, 9), policy());
    world.set("a", 2, BUSY);
    let _ = world.run(3);
    let until = world.second + 5;
    for _ in 0..5 {
        let decisions = ordered(&mut world, Order::Pin(n(7)), until);
        assert_eq!(desired(&decisions, "a"), 7);
        let pinned = last(&decisions).overridden().unwrap();
        assert_eq!((pinned.order, pinned.until), (Order::Pin(n(7)), at(until)));
        assert_eq!(last(&decisions).because().unwrap().reason.code(), ReasonCode::Pinned);
    }

    let decisions = ordered(&mut world, Order::Pin(n(7)), until);
    assert_eq!(last(&decisions).overridden(), None, "it has ended");
    world.set("a", 7, IDLE);
    let decisions = world.run(400);
    assert!(desired(&decisions, "a") < 7, "{:?}", last(&decisions).steps);
}

#[test]
fn a_pin_stays_within_the_bounds_and_the_limits() {
    let mut world = alone((2, 5), policy());
    world.set("a", 3, (0.5, 0.0));
    let _ = world.run(3);
    let until = world.second + 60;
    let decisions = ordered(&mut world, Order::Pin(n(9)), until);
    assert_eq!(desired(&decisions, "a"), 5);
    assert_eq!(last(&decisions).is_short_at_max(), Some(false), "the load asks for less");
    assert_eq!(desired(&ordered(&mut world, Order::Pin(n(0)), until), "a"), 2);

    let source = LimitSource::Read(Allowance::Total(Gpus::new(4)));
    let name = LimitName::new("quota").unwrap();
    let configured = vec![SupplyLimit { name, scope: LimitScope::Cluster, source }];
    let limits = LimitPolicy { configured, ..LimitPolicy::default() };
    let limited = Policy { limits, ..policy() };
    let mut world = alone((1, 9), limited.clone());
    world.set("a", 3, (0.5, 0.0));
    let _ = world.run(3);
    let decisions = ordered(&mut world, Order::Pin(n(8)), until);
    assert_eq!(desired(&decisions, "a"), 4, "{:?}", last(&decisions).steps);

    let mut world = alone((1, 9), limited);
    world.set("a", 3, (0.5, 0.0));
    let _ = world.run(5);
    world.set("a", 3, (0.5, 0.0)).silent = vec![0, 1, 2];
    let number = desired(&world.run(60), "a");
    let decisions = ordered(&mut world, Order::Pin(n(8)), until + 60);
    assert_eq!((last(&decisions).basis, number), (Basis::Held, 3));
    assert_eq!(desired(&decisions, "a"), 4, "{:?}", last(&decisions).steps);
}

#[test]
fn while_data_is_missing_a_pin_raises_and_never_lowers() {
    let mut world = alone((1, 9), policy());
    world.set("a", 4, (0.5, 0.0));
    let _ = world.run(5);
    let number = n(desired(&world.run(1), "a"));
    world.set("a", 4, (0.5, 0.0)).silent = vec![0, 1, 2, 3];
    let _ = world.run(60);
    let until = world.second + 60;
    let decisions = ordered(&mut world, Order::Pin(n(1)), until);
    assert_eq!((last(&decisions).basis, last(&decisions).desired()), (Basis::Held, number));
    let decisions = ordered(&mut world, Order::Pin(n(8)), until);
    assert_eq!((last(&decisions).basis, desired(&decisions, "a")), (Basis::Held, 8));
    // Its data stays as old as it is, so the number expires as it would without the pin.
    assert!(last(&decisions).inputs_at < at(world.second - 30));
}

#[test]
fn a_pause_keeps_the_number_under_any_load() {
    let mut world = alone((1, 9), policy());
    world.set("a", 3, (0.5, 0.0));
    let number = desired(&world.run(5), "a");
    let until = world.second + 1000;
    for load in [BUSY, IDLE] {
        world.set("a", 3, load);
        let mut decisions = Decisions::default();
        for _ in 0..400 {
            decisions = ordered(&mut world, Order::Pause, until);
            assert_eq!(desired(&decisions, "a"), number);
        }
        assert!(last(&decisions).steps.iter().any(|it| it.reason.code() == ReasonCode::Paused));
    }
}

/// At these loads the model needs five replicas, and `a` is the cheaper variant.
#[test]
fn what_a_pin_keeps_from_a_variant_another_one_provides() {
    for (pin, bounds, expected) in [
        (2, (1, 20), (2, 3)),
        (3, (1, 20), (3, 2)),
        (0, (0, 20), (0, 5)),
        (1, (2, 20), (2, 3)),
        (9, (1, 3), (3, 2)),
    ] {
        let mut world = sized_pair(spec("a", 6.0, bounds), spec("b", 10.0, (1, 20)));
        world.set("a", 2, (0.75, 0.0));
        world.set("b", 2, (0.75, 0.0));
        let decisions = run_ordered(&mut world, Order::Pin(n(pin)), 3);
        assert_eq!(numbers(&decisions), expected, "pinned to {pin} in {bounds:?}");
        let pinned = last(&decisions).overridden().unwrap();
        assert_eq!(pinned.order, Order::Pin(n(pin)));
    }
}

/// At these loads the model needs six replicas, and `b` is the cheaper variant.
#[test]
fn replicas_that_a_pin_adds_count_before_the_scale_target_asks_for_them() {
    for (pin, expected) in [(3, (3, 3)), (4, (4, 2)), (10, (10, 2))] {
        let mut world = sized_pair(spec("a", 10.0, (1, 20)), spec("b", 6.0, (1, 20)));
        world.set("a", 2, (0.98, 0.0));
        world.set("b", 2, (0.98, 0.0));
        let decisions = run_ordered(&mut world, Order::Pin(n(pin)), 3);
        assert_eq!(numbers(&decisions), expected, "pinned to {pin}");
    }
}

#[test]
fn replicas_that_a_pin_does_not_remove_without_data_are_not_replaced() {
    let mut world = sized_pair(spec("a", 6.0, (1, 20)), spec("b", 6.0, (1, 20)));
    world.set("a", 5, (0.6, 0.0));
    world.set("b", 8, (0.6, 0.0));
    assert_eq!(numbers(&world.run(5)), (5, 8));

    world.set("a", 5, (0.6, 0.0)).silent = vec![0, 1, 2, 3, 4];
    let _ = world.run(60);
    // The load of `b` needs twelve replicas.
    world.set("b", 8, (0.98, 0.0));
    let decisions = run_ordered(&mut world, Order::Pin(n(2)), 3);
    assert_eq!((last(&decisions).basis, numbers(&decisions)), (Basis::Held, (5, 8)));
}

#[test]
fn after_a_pin_the_cheapest_variant_grows_again() {
    let mut world = sized_pair(spec("a", 6.0, (1, 20)), spec("b", 10.0, (1, 20)));
    world.set("a", 2, (0.75, 0.0));
    world.set("b", 2, (0.75, 0.0));
    let _ = run_ordered(&mut world, Order::Pin(n(2)), 3);
    assert_eq!(desired(&world.run(3), "a"), 4);
}

#[test]
fn what_a_pause_keeps_from_a_variant_another_one_provides() {
    let mut world = sized_pair(spec("a", 6.0, (1, 20)), spec("b", 10.0, (1, 20)));
    world.set("a", 2, (0.5, 0.0));
    world.set("b", 2, (0.5, 0.0));
    let in_effect = desired(&world.run(3), "a");
    assert!(in_effect < 4, "{in_effect}");
    world.set("a", 2, (0.98, 0.0));
    world.set("b", 2, (0.98, 0.0));
    let decisions = run_ordered(&mut world, Order::Pause, 20);
    // 62,720 tokens in use need 73,788 at 85%: six replicas of 12,800.
    assert_eq!(numbers(&decisions), (in_effect, 6 - in_effect));
    assert_eq!(last(&decisions).because().unwrap().reason.code(), ReasonCode::Paused);
}

#[test]
fn replicas_that_a_pin_keeps_count_for_the_others() {
    let mut world = sized_pair(spec("a", 10.0, (1, 20)), spec("b", 6.0, (1, 20)));
    world.set("a", 4, (0.3, 0.0));
    world.set("b", 2, (0.3, 0.0));
    let decisions = run_ordered(&mut world, Order::Pin(n(4)), 30);
    assert_eq!(numbers(&decisions), (4, 1), "four replicas are enough");
}

#[test]
fn a_pin_of_one_role_concerns_that_role_alone() {
    let of_role = |name, cost, role| VariantSpec { role, ..spec(name, cost, (1, 20)) };
    let specs = vec![
        of_role("a", 6.0, Role::Prefill),
        of_role("b", 10.0, Role::Prefill),
        of_role("c", 6.0, Role::Decode),
    ];
    let mut world = World::with(sized(&[Analyzer::Tokens]), specs);
    world.set("a", 2, (0.98, 0.0));
    world.set("b", 2, (0.98, 0.0));
    world.set("c", 4, (0.98, 0.0));
    let decisions = run_ordered(&mut world, Order::Pin(n(2)), 3);
    assert_eq!((numbers(&decisions), desired(&decisions, "c")), ((2, 4), 6));
}

#[test]
fn saturation_adds_no_replica_where_a_pin_discards_it() {
    let specs = vec![spec("a", 2.0, (1, 9)), spec("b", 9.0, (1, 9))];
    let mut world = World::new(specs);
    world.set("a", 2, BUSY);
    world.set("b", 2, BUSY);
    let decisions = run_ordered(&mut world, Order::Pin(n(2)), 3);
    assert_eq!(numbers(&decisions), (2, 3));
}

#[test]
fn limits_leave_to_other_models_what_a_pin_does_not_use() {
    let source = LimitSource::Read(Allowance::Total(Gpus::new(8)));
    let name = LimitName::new("quota").unwrap();
    let quota = SupplyLimit { name, scope: LimitScope::Cluster, source };
    let specs = vec![on("a", "a", "H100", 4.0), on("b", "b", "H100", 4.0)];
    let policy = limited(sized(&[Analyzer::Tokens]), vec![quota]);
    let mut world = World::with(policy, specs);
    world.set("a", 3, (0.98, 0.0));
    world.set("b", 3, (0.98, 0.0));
    // Both models need five.
    let decisions = run_ordered(&mut world, Order::Pin(n(3)), 3);
    assert_eq!(numbers(&decisions), (3, 5), "{:?}", of(&decisions, "b").steps);
    assert_eq!(last(&decisions).because().unwrap().reason.code(), ReasonCode::Pinned);
}

#[test]
fn a_model_whose_cheapest_variant_is_pinned_to_zero_wakes_on_another() {
    let idle = ZeroPolicy::AfterIdle(Seconds::literal(900));
    let default = ZeroRule { policy: idle, awake_min: Seconds::literal(120) };
    let policy = Policy { zero: Zero { default, ..Zero::default() }, ..policy() };
    let specs = vec![spec("a", 1.0, (0, 9)), spec("b", 2.0, (0, 9))];
    let model = specs[0].model_key();
    let mut world = World::with(policy, specs);
    world.set("a", 0, IDLE);
    world.set("b", 0, IDLE);
    let _ = world.run(3);

    let seen = SignalValue::Number(Requests::new(3.0).unwrap(), at(world.second));
    let (counts, naming) = (SignalQuantity::Requests, Naming::Named);
    let signal = DemandSignal { signal: "gateway".to_owned(), seen, counts, naming };
    let demand = [(model, vec![signal])].into();
    let inputs = Inputs { demand, ..world.inputs() };
    let until = world.second + 60;
    let decisions = ordered_on(&mut world, inputs, Order::Pin(n(0)), until);
    assert_eq!(numbers(&decisions), (0, 1), "{:?}", of(&decisions, "b").steps);
}

#[test]
fn an_order_that_ends_too_late_has_no_effect() {
    let given = |until| Override { order: Order::Pause, until, by: OverrideSource::Annotation };
    let now = at(0);
    let latest = now.checked_add(OVERRIDE_MAX).unwrap();
    assert!(given(latest).is_in_effect(now));
    assert!(!given(latest.checked_add(SignedDuration::from_secs(1)).unwrap()).is_in_effect(now));
    assert!(!given(now).is_in_effect(now));
}

const PATH: &str = "/-/override?namespace=default&variant=a";

/// An instant so many seconds from now.
pub(crate) fn later(seconds: i64) -> String {
    let now = plimsoll::clock::Clock::start().now();
    now.checked_add(SignedDuration::from_secs(seconds)).unwrap().to_string()
}

async fn put(running: &Running, body: &Value) -> (StatusCode, Value) {
    let sent = running.request("PUT", PATH).body(body.to_string()).send().await.unwrap();
    let status = sent.status();
    (status, serde_json::from_str(&sent.text().await.unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_over_http_is_on_every_surface_survives_a_restart_and_can_be_ended() {
    let engine = Engine::start().await;
    engine.show(stats(500));
    let folder = tempfile::TempDir::new().unwrap();
    let state = format!("state_file: {}\n", folder.path().join("state.json").display());
    let running = Running::start(&text(&[("a", engine.address)], &state)).await;
    running.until_desired("a", Some(1.0)).await;

    let until = later(3600);
    let (status, answer) = put(&running, &json!({"pin": 4, "until": until})).await;
    assert_eq!((status, &answer["override"]), (StatusCode::OK, &json!("pin")), "{answer}");
    running.until_desired("a", Some(4.0)).await;
    let instant = until.parse::<Timestamp>().unwrap().as_duration().as_secs_f64();
    let metric = "plimsoll_override_until_timestamp_seconds";
    assert!(running.until(metric, |at| (at - instant).abs() < 1.0).await);
    let decisions: Value =
        serde_json::from_str(&running.ask("GET", "/api/v1/decisions").await.1).unwrap();
    let variant = &decisions["variants"][0];
    assert_eq!(variant["override"]["kind"], "pin");
    assert_eq!(variant["override"]["replicas"], 4);
    assert!(variant["because"].as_str().unwrap().contains("pinned to 4 by api until"), "{variant}");

    let explained = running.ask("GET", "/api/v1/explain?namespace=default&variant=a").await.1;
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let change = &explained["changes"][0];
    assert_eq!((&change["input"], &change["desired"]), (&json!("override"), &json!(1)), "{change}");

    let url = running.end().await;
    let again = Running::start_in(url, &text(&[("a", engine.address)], &state)).await;
    again.until_sample("plimsoll_decision_held", 0.0).await;
    again.until_desired("a", Some(4.0)).await;
    let (status, _) = again.ask("DELETE", PATH).await;
    assert_eq!(status, StatusCode::OK);
    let (status, gone) = again.ask("DELETE", PATH).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{gone}");
    drop(again.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_orders_delays_no_tick() {
    let engine = Engine::start().await;
    let running = Running::start(&text(&[("a", engine.address)], "")).await;
    running.until_desired("a", Some(1.0)).await;

    let before = running.sample("plimsoll_ticks_total").await.unwrap();
    let orders = async {
        loop {
            let (status, _) = put(&running, &json!({"pause": true, "until": later(60)})).await;
            assert_eq!(status, StatusCode::OK);
        }
    };
    let ticks = running.until("plimsoll_ticks_total", |now| now > before + 10.0);
    tokio::select! {
        () = orders => unreachable!("it ends by itself never"),
        ticked = ticks => assert!(ticked),
    }
    drop(running.end().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_carried_out_is_refused_with_the_reason() {
    let engine = Engine::start().await;
    let running = Running::start(&text(&[("a", engine.address)], "")).await;
    running.until_desired("a", Some(1.0)).await;

    let until = later(60);
    let week = later(8 * 24 * 3600);
    for (body, said) in [
        (json!({"until": until}), "give either"),
        (json!({"pin": 2, "pause": true, "until": until}), "give either"),
        (json!({"pin": 3_000_000, "until": until}), "must be from 0"),
        (json!({"pin": -1, "until": until}), "the body is not"),
        (json!({"pin": 2}), "missing field `until`"),
        (json!({"pin": 2, "until": "06:00"}), "the body is not"),
        (json!({"pin": 2, "until": "2020-01-01T00:00:00Z"}), "later than now"),
        (json!({"pin": 2, "until": week}), "at most 7 days"),
        (json!({"pin": 2, "until": until, "why": "x"}), "unknown field"),
    ] {
        let (status, answer) = put(&running, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body} {answer}");
        assert!(answer["error"].as_str().unwrap().contains(said), "{body} {answer}");
    }

    let unknown = "/-/override?namespace=default&variant=b";
    let body = json!({"pin": 2, "until": until}).to_string();
    let sent = running.request("PUT", unknown).body(body.clone()).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::NOT_FOUND);
    let page = running.request("PUT", PATH).header("origin", "http://localhost").body(body);
    assert_eq!(page.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(running.ask("GET", PATH).await.0, StatusCode::METHOD_NOT_ALLOWED);

    let (status, _) = put(&running, &json!({"pause": true, "until": until})).await;
    assert_eq!(status, StatusCode::OK);
    engine.show(stats(950));
    assert!(running.until("plimsoll_kv_cache_usage_ratio", |usage| usage > 0.9).await);
    tokio::time::timeout(Duration::from_mins(1), async {
        while running.sample("plimsoll_unconstrained_desired_replicas").await != Some(2.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(running.desired("a").await, Some(1.0));
    drop(running.end().await);
}
