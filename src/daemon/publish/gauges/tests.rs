use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::*;
use crate::fixtures;
use crate::publish::ShadowResult;
use crate::publish::fixtures::decided;
use plimsoll_core::analyze::capacity::Unit;
use plimsoll_core::analyze::foresight::budget::FirstTokens;
use plimsoll_core::analyze::foresight::estimate::Teacher;
use plimsoll_core::analyze::saturation::{Thresholds, Transition};
use plimsoll_core::decide::limit::{
    AllowanceRow, Cut, GrantRefusal, LimitReading, LimitReport, Spending,
};
use plimsoll_core::decide::limited::{LimitedReason, ScarceResource, ShadowPrice};
use plimsoll_core::decide::outlook::{CapacityOutlook, LatencyObjectives, VariantOutlook};
use plimsoll_core::decide::pools::Ordinal;
use plimsoll_core::decide::pools::adapters::{Copies, CopiesSource, PoolNeed, SlotNeed};
use plimsoll_core::decide::pools::plan::{LayoutPlan, ReplicaPlan};
use plimsoll_core::decide::pools::pooled::{AdapterState, PoolReplicaState};
use plimsoll_core::decide::workload::GpusSource;
use plimsoll_core::decide::{ModelReport, NoData, Reason, RemoteReason, Step, VariantReport};
use plimsoll_core::fleet::{Accelerator, LimitName, ModelName, ReplicaKey, ReplicaName, Role};
use plimsoll_core::observe::GaugeSummary;
use plimsoll_core::observe::engine::lora::Slots;
use plimsoll_core::observe::inventory::NodeStock;
use plimsoll_core::observe::overrides::OverrideSource;
use plimsoll_core::units::{Amount, CostPerHour, Gpus};

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn kind(name: &str) -> Accelerator {
    Accelerator::new(name).unwrap()
}

fn model(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

fn cost(per_hour: f64) -> CostPerHour {
    CostPerHour::new(per_hour).unwrap()
}

fn gauge<Q: Copy>(last: Q, mean: Q) -> GaugeSummary<Q> {
    GaugeSummary { last, mean, peak: last, age: Seconds::ZERO }
}

/// A replica that finishes this many requests per second.
fn replica(name: &str, freshness: Freshness, completions: f64) -> ReplicaObservation {
    let fraction = |it| Fraction::new(it).unwrap();
    let requests = |it| Requests::new(it).unwrap();
    ReplicaObservation {
        replica: ReplicaKey {
            variant: fixtures::variant("llama").key,
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        },
        freshness,
        kv_usage: Some(gauge(fraction(0.9), fraction(0.25 * completions))),
        kv_hottest: None,
        waiting: Some(gauge(requests(3.0), requests(9.0))),
        waiting_hottest: None,
        running: Some(gauge(requests(4.0), requests(9.0))),
        arrivals: RequestRate::new(2.0),
        completions: RequestRate::new(completions),
        prompt_rate: TokenRate::new(100.0),
        generation_rate: TokenRate::new(10.0),
        ttft_mean: Seconds::new(0.1 * completions),
        itl_mean: Seconds::new(0.01 * completions),
        work: None,
        strides: Vec::new(),
        asleep: false,
        unready: false,
        stopped: false,
    }
}

fn step(stage: Stage, before: u32, after: u32, reason: Reason) -> Step {
    Step { stage, before: n(before), after: n(after), reason }
}

fn plain(stage: Stage, before: u32, after: u32) -> Step {
    step(stage, before, after, Reason::BelowMin(n(1)))
}

fn of(variant: PublishedVariant) -> Published {
    Published { variants: [(variant.spec.key.clone(), variant)].into(), ..Published::default() }
}

/// All samples but ages of decisions, by name and label values.
fn samples(published: Published) -> BTreeMap<String, f64> {
    let (_outlet, published) = watch::channel(Arc::new(published));
    let gauges = DecisionGauges::new(published, Clock::start(), WvaPublication::Published);
    let mut page = String::new();
    gauges.write(&mut page);

    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let labels: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
        let series = format!("{name} {}", labels.join(" "));
        assert_eq!(samples.insert(series, value.parse().unwrap()), None, "twice: {line}");
    }
    samples.retain(|series, _| !series.starts_with("plimsoll_decision_age_seconds"));
    samples
}

/// The samples whose series contain one of these words.
fn only(samples: &BTreeMap<String, f64>, words: &[&str]) -> Vec<(String, f64)> {
    let chosen = samples.iter().filter(|(series, _)| words.iter().any(|it| series.contains(it)));
    chosen.map(|(series, value)| (series.clone(), (value * 1e9).round() / 1e9)).collect()
}

/// Compares samples with `series value` lines, which are sorted.
fn check(found: &[(String, f64)], expected: &str) {
    let found: Vec<String> =
        found.iter().map(|(series, value)| format!("{series} {value}")).collect();
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(found, expected, "{found:#?}");
}

/// Words of the families that show an observation.
const OBSERVED: [&str; 16] = [
    "arrivals",
    "plimsoll_cost",
    "plimsoll_current",
    "tokens_per",
    "latency",
    "kv_cache",
    "pending",
    "plimsoll_ready",
    "plimsoll_replicas",
    "running",
    "saturat",
    "startup",
    "stuck",
    "first_token",
    "unschedulable",
    "waiting",
];

#[test]
fn an_observation_is_shown_by_what_fresh_replicas_say() {
    let (fresh, old) = (Freshness::Fresh { age: Seconds::ZERO }, Seconds::new(90.0).unwrap());
    let mut variant = decided(Basis::Fresh, vec![plain(Stage::Analyze, 4, 3)]);
    let quantiles = |p50, p90| {
        Some(StartQuantiles { p50: Seconds::new(p50).unwrap(), p90: Seconds::new(p90).unwrap() })
    };
    variant.observation = Observation {
        ready: Some(n(3)),
        pending: n(1),
        replicas: vec![
            replica("a", fresh, 1.0),
            replica("b", fresh, 3.0),
            replica("c", Freshness::Stale { age: old, why: None }, 3.0),
            replica("d", Freshness::Never { why: None }, 3.0),
            replica("e", Freshness::Never { why: None }, 3.0),
        ],
        startup: Startup {
            stuck: n(1),
            unschedulable: n(2),
            starts: 7,
            to_ready: quantiles(30.0, 40.0),
            to_serving: quantiles(50.0, 60.0),
        },
        ..variant.observation
    };
    variant.report =
        Some(VariantReport { saturation: Fraction::new(1.25).unwrap(), saturated: n(2) });
    let samples = samples(of(variant));
    // Means over the window, weighted by completions where they are latencies; the last counts.
    let expected = "
        plimsoll_arrivals_per_second m shop llama 4
        plimsoll_cost_per_hour m shop llama 10
        plimsoll_current_replicas m shop llama 4
        plimsoll_generation_tokens_per_second m shop llama 20
        plimsoll_inter_token_latency_seconds m shop llama 0.025
        plimsoll_kv_cache_usage_ratio m shop llama 0.5
        plimsoll_pending_replicas m shop llama 1
        plimsoll_prompt_tokens_per_second m shop llama 200
        plimsoll_ready_replicas m shop llama 3
        plimsoll_replicas fresh m shop llama 2
        plimsoll_replicas never m shop llama 2
        plimsoll_replicas stale m shop llama 1
        plimsoll_running_requests m shop llama 8
        plimsoll_saturated_replicas m shop llama 2
        plimsoll_saturation_ratio m shop llama 1.25
        plimsoll_startup_seconds m shop 0.5 ready llama 30
        plimsoll_startup_seconds m shop 0.5 serving llama 50
        plimsoll_startup_seconds m shop 0.9 ready llama 40
        plimsoll_startup_seconds m shop 0.9 serving llama 60
        plimsoll_stuck_replicas m shop llama 1
        plimsoll_time_to_first_token_seconds m shop llama 0.25
        plimsoll_unschedulable_replicas m shop llama 2
        plimsoll_waiting_requests m shop llama 6";
    check(&only(&samples, &OBSERVED), expected);
}

#[test]
fn an_idle_replica_weighs_as_much_as_one_request_a_minute() {
    let fresh = Freshness::Fresh { age: Seconds::ZERO };
    let mut idle = replica("a", fresh, 0.0);
    idle.ttft_mean = Seconds::new(4.0);
    let mut busy = replica("b", fresh, 1.0 / 20.0);
    busy.ttft_mean = Seconds::new(2.0);
    let both = weighted_mean(&[idle.clone(), busy], |it| it.ttft_mean).unwrap();
    assert!((both - 2.5).abs() < 1e-9, "{both}");
    assert_eq!(weighted_mean(&[idle], |it| it.ttft_mean), Some(4.0));
    assert_eq!(weighted_mean(&[], |it| it.ttft_mean), None);
}

#[test]
fn a_decision_is_shown_with_the_rules_that_bound_it() {
    let told = |code| Reason::Told(RemoteReason { code, text: String::new() });
    let words = ["held", "flap", "slo_unmeetable", "panicking", "override", "desired", "unconstr"];
    let plain_one = samples(of(decided(Basis::Fresh, vec![plain(Stage::Analyze, 4, 3)])));
    let expected = "
        plimsoll_decision_held m shop llama 0
        plimsoll_desired_replicas m shop llama 3
        plimsoll_flap_budget_spent m shop llama 0
        plimsoll_panicking m shop llama 0
        plimsoll_slo_unmeetable m shop llama 0
        plimsoll_unconstrained_desired_replicas m shop llama 3
        wva_desired_ratio unresolved shop llama 0.75
        wva_desired_replicas unresolved shop llama 3";
    check(&only(&plain_one, &words), expected);

    let by = OverrideSource::Annotation;
    let until = Timestamp::from_second(1_800_000_000).unwrap();
    let steps = vec![
        step(Stage::Analyze, 4, 2, told(ReasonCode::SloUnmeetable)),
        plain(Stage::FlapBudget, 2, 4),
        plain(Stage::Panic, 4, 4),
        step(Stage::Override, 4, 5, Reason::Pinned { replicas: n(5), until, by }),
    ];
    let bounded = samples(of(decided(Basis::Held, steps)));
    let expected = "
        plimsoll_decision_held m shop llama 1
        plimsoll_desired_replicas m shop llama 5
        plimsoll_flap_budget_spent m shop llama 1
        plimsoll_override_until_timestamp_seconds pin m shop llama 1800000000
        plimsoll_panicking m shop llama 1
        plimsoll_slo_unmeetable m shop llama 1
        plimsoll_unconstrained_desired_replicas m shop llama 2
        wva_desired_ratio unresolved shop llama 1.25
        wva_desired_replicas unresolved shop llama 5";
    check(&only(&bounded, &words), expected);

    let mut empty = decided(Basis::Fresh, vec![plain(Stage::Analyze, 0, 2)]);
    empty.observation.current = Some(Replicas::ZERO);
    check(&only(&samples(of(empty)), &["ratio"]), "wva_desired_ratio unresolved shop llama 2");
    let mut unknown = decided(Basis::Fresh, vec![plain(Stage::Hold, 3, 3)]);
    unknown.observation.current = None;
    unknown.decided.as_mut().unwrap().decision.steps[0].reason =
        Reason::NoData(NoData::NoFreshReplica);
    let unknown = samples(of(unknown));
    check(&only(&unknown, &["ratio", "current", "pending", "stuck", "cost_per_hour"]), "");
}

#[test]
fn a_variant_is_short_at_its_maximum_only_on_fresh_data_with_known_reasons() {
    let shown = |basis, reason| {
        let steps = vec![step(Stage::Bounds, 9, 8, reason)];
        let mut variant = decided(basis, steps);
        let decision = &mut variant.decided.as_mut().unwrap().decision;
        decision.bounds = plimsoll_core::fleet::Bounds::new(n(1), Some(n(8))).unwrap();
        only(&samples(of(variant)), &["short_at_maximum"])
    };
    let series = "plimsoll_short_at_maximum m shop llama";
    check(&shown(Basis::Fresh, Reason::AboveMax(n(8))), &format!("{series} 1"));
    check(&shown(Basis::Fresh, Reason::BelowMin(n(1))), &format!("{series} 0"));
    check(&shown(Basis::Held, Reason::AboveMax(n(8))), "");
    let told = RemoteReason { code: ReasonCode::AboveMax, text: String::new() };
    check(&shown(Basis::Fresh, Reason::Told(told)), "");
}

#[test]
fn an_outlook_is_shown_by_what_is_known_of_it() {
    let rate = |it| RequestRate::new(it).unwrap();
    let variant = decided(Basis::Fresh, vec![plain(Stage::Analyze, 4, 3)]);
    let key = variant.spec.key.clone();
    let known = VariantOutlook {
        said_by: Some(Teacher::Card),
        capacity: Some(CapacityOutlook {
            now: rate(20.0),
            when_ready: rate(30.0),
            at_maximum: Some(rate(80.0)),
        }),
        objectives: LatencyObjectives {
            ttft: Seconds::new(2.0).unwrap(),
            itl: Seconds::new(0.05),
            late_share: Fraction::new(0.01).unwrap(),
        },
        first_tokens: Some(FirstTokens { seen: 600.0, late: 12.0 }),
    };
    let shown = |outlook| {
        let mut published = of(variant.clone());
        published.outlooks.insert(key.clone(), outlook);
        only(&samples(published), &["plimsoll_capacity", "plimsoll_slo_", "_first_tokens"])
    };
    let expected = "
        plimsoll_capacity_learned m shop llama 0
        plimsoll_capacity_per_second m shop both llama maximum 80
        plimsoll_capacity_per_second m shop both llama now 20
        plimsoll_capacity_per_second m shop both llama ready 30
        plimsoll_first_tokens m shop llama 600
        plimsoll_late_first_tokens m shop llama 12
        plimsoll_slo_itl_seconds m shop llama 0.05
        plimsoll_slo_late_ratio m shop llama 0.01
        plimsoll_slo_ttft_seconds m shop llama 2
        plimsoll_slo_unmeetable m shop llama 0";
    check(&shown(known), expected);

    let objectives = LatencyObjectives { itl: None, ..known.objectives };
    let unknown = VariantOutlook { said_by: None, capacity: None, first_tokens: None, objectives };
    let expected = "
        plimsoll_capacity_learned m shop llama 0
        plimsoll_slo_unmeetable m shop llama 0";
    check(&shown(unknown), expected);

    let own = VariantOutlook { said_by: Some(Teacher::Replicas), ..unknown };
    check(
        &shown(own),
        &expected.replace("llama 0\n        plimsoll_slo", "llama 1\n        plimsoll_slo"),
    );
}

/// A pool of three replicas, one of which says nothing.
fn pool_report() -> PoolReport {
    let state = |name: &str, known, slots, running: &[&str]| PoolReplicaState {
        name: ReplicaName::new(name).unwrap(),
        known,
        slots,
        running: running.iter().map(|it| model(it)).collect(),
        waiting: BTreeSet::new(),
        loaded: BTreeSet::new(),
    };
    let adapter = |name: &str, wanted, starved| AdapterState {
        copies: Copies {
            adapter: model(name),
            wanted: n(wanted),
            source: CopiesSource::Declared(n(wanted)),
        },
        arriving: None,
        hosts: Replicas::ZERO,
        starved: n(starved),
    };
    let replicas = vec![
        state("a", true, Slots::new(2), &["x", "y", "z"]),
        state("b", true, None, &["x"]),
        state("c", false, None, &[]),
    ];
    let load = |names: &[&str]| ReplicaPlan {
        keep: BTreeSet::new(),
        load: names.iter().map(|it| model(it)).collect(),
        unload: BTreeSet::new(),
    };
    let mut plan = LayoutPlan::default();
    let need = PoolNeed {
        copies: None,
        slots: SlotNeed::Known { copies: n(3), slots: Slots::new(4).unwrap(), replicas: n(1) },
        load: None,
    };
    plan.replicas.extend([(Ordinal::new(0), load(&["x", "y"])), (Ordinal::new(1), load(&["z"]))]);
    PoolReport {
        slots: Slots::new(4),
        adapters: vec![adapter("x", 2, 0), adapter("y", 1, 1), adapter("z", 0, 2)],
        replicas,
        need,
        unmet: n(3),
        plan,
        places: BTreeMap::new(),
        departures: Vec::new(),
    }
}

#[test]
fn a_pool_is_shown_by_the_replicas_that_say_what_they_run() {
    let mut report = pool_report();
    let variant = decided(Basis::Fresh, vec![plain(Stage::Pool, 4, 4)]);
    let key = variant.spec.key.clone();
    let shown = |report: PoolReport| {
        let mut published = of(variant.clone());
        published.pools.insert(key.clone(), report);
        only(&samples(published), &["plimsoll_pool"])
    };
    let expected = "
        plimsoll_pool_adapters m shop llama 2
        plimsoll_pool_adapters_per_replica m shop llama 2
        plimsoll_pool_adapters_waiting m shop llama 2
        plimsoll_pool_copies m shop llama 3
        plimsoll_pool_plan_loads m shop llama 3
        plimsoll_pool_slots_free m shop llama 3
        plimsoll_pool_slots_used m shop llama 3
        plimsoll_pool_unmet_replicas m shop llama 3";
    check(&shown(report.clone()), expected);

    report.slots = None;
    let expected = "
        plimsoll_pool_adapters m shop llama 2
        plimsoll_pool_adapters_per_replica m shop llama 2
        plimsoll_pool_adapters_waiting m shop llama 2
        plimsoll_pool_copies m shop llama 3
        plimsoll_pool_slots_used m shop llama 3
        plimsoll_pool_unmet_replicas m shop llama 3";
    check(&shown(report.clone()), expected);

    report.replicas.retain(|it| !it.known);
    let expected = "
        plimsoll_pool_adapters m shop llama 2
        plimsoll_pool_adapters_waiting m shop llama 2
        plimsoll_pool_copies m shop llama 3
        plimsoll_pool_unmet_replicas m shop llama 3";
    check(&shown(report), expected);
}

#[test]
fn limits_are_shown_with_what_is_held_and_how_old_they_are() {
    let quota = LimitName::new("quota").unwrap();
    let why = GrantRefusal::UnknownKind;
    let cut = LimitedReason::Cut { cut: Cut { limit: quota.clone(), why }, age: None, price: None };
    let steps = vec![plain(Stage::Analyze, 4, 7), step(Stage::Limit, 7, 5, Reason::Limited(cut))];
    let mut published = of(decided(Basis::Fresh, steps));
    let llama = fixtures::variant("llama").key;
    let price = |of| ShadowPrice {
        of,
        next: llama.clone(),
        carries: Amount::new(1.5).unwrap(),
        unit: Unit::RequestsPerSecond,
    };
    let report = |name: &str, reading, price| LimitReport {
        name: LimitName::new(name).unwrap(),
        reading,
        rows: Vec::new(),
        spending: None,
        price,
        stock: Vec::new(),
    };
    let stocked = LimitReport {
        rows: vec![
            AllowanceRow {
                kind: Some(kind("H100")),
                allowed: Some(Gpus::new(8)),
                held: Gpus::new(6),
            },
            AllowanceRow { kind: None, allowed: None, held: Gpus::new(7) },
        ],
        stock: vec![NodeStock {
            product: kind("H100"),
            allocatable: Gpus::new(16),
            used_by_others: Gpus::new(5),
        }],
        ..report(
            "quota",
            LimitReading::Known,
            Some(price(ScarceResource::Accelerator(Some(kind("H100"))))),
        )
    };
    let spent = LimitReport {
        spending: Some(Spending { allowed: cost(40.0), held: cost(30.0) }),
        ..report(
            "budget",
            LimitReading::Held(Seconds::new(90.0).unwrap()),
            Some(price(ScarceResource::CostPerHour)),
        )
    };
    published.limits = vec![stocked, spent, report("new", LimitReading::Unread, None)];
    let expected = "
        plimsoll_limit_accelerators H100 quota 8
        plimsoll_limit_accelerators_held  quota 7
        plimsoll_limit_accelerators_held H100 quota 6
        plimsoll_limit_age_seconds budget 90
        plimsoll_limit_age_seconds quota 0
        plimsoll_limit_cost_per_hour budget 40
        plimsoll_limit_cost_per_hour_held budget 30
        plimsoll_limit_shadow_price budget shop cost_per_hour requests/s llama 1.5
        plimsoll_limit_shadow_price quota shop H100 requests/s llama 1.5
        plimsoll_limit_unread budget 0
        plimsoll_limit_unread new 1
        plimsoll_limit_unread quota 0
        plimsoll_limited_replicas quota m shop llama 2
        plimsoll_node_accelerators H100 16
        plimsoll_node_accelerators_of_others H100 5";
    check(&only(&samples(published), &["plimsoll_limit", "plimsoll_node"]), expected);
}

#[test]
fn models_workloads_and_shadows_are_shown_with_their_values() {
    let variant = decided(Basis::Fresh, vec![plain(Stage::Analyze, 4, 3)]);
    let (key, model_key) = (variant.spec.key.clone(), variant.spec.model_key());
    let mut published = of(variant);
    let report = |transition| ModelReport {
        thresholds: Thresholds::default(),
        spare_kv: Fraction::new(0.3).unwrap(),
        spare_queue: Requests::new(4.0).unwrap(),
        required_kv: Fraction::new(0.2).unwrap(),
        required_queue: Requests::new(2.0).unwrap(),
        transition,
    };
    let waits = Some(Transition::Pending(key.clone()));
    published.models.insert((model_key.clone(), Role::Both), report(waits));
    published.models.insert((model_key, Role::Decode), report(None));
    let workload =
        WorkloadReport { gpus: Gpus::new(8), said_by: GpusSource::Template, engine: None };
    published.workloads.insert(key.clone(), workload);
    let said = |desired| ShadowResult { desired, because: String::new() };
    published.shadows.insert("eager".to_owned(), [(key.clone(), said(Some(n(6))))].into());
    published.shadows.insert("blind".to_owned(), [(key, said(None))].into());
    let expected = "
        plimsoll_replica_accelerators m shop template llama 8
        plimsoll_required_kv_cache_ratio m shop both 0.2
        plimsoll_required_kv_cache_ratio m shop decode 0.2
        plimsoll_shadow_desired_replicas m shop eager llama 6
        plimsoll_variant_info  m shop both llama 1";
    let words = ["required_kv", "replica_accelerators", "shadow_desired", "variant_info"];
    check(&only(&samples(published), &words), expected);
}
