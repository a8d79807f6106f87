//! Every term of a need by name, and what a replica carries as a metric: on the API and as series,
//! where `foresight` has its say and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight;
use plimsoll::analyze::foresight::policy::ErrorBudget;
use plimsoll::clock::Clock;
use plimsoll::fleet::Fleet;
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::publish::Published;
use plimsoll::publish::api::{ApiSurface, ConfigInForce, Vitals};
use plimsoll::publish::explain::FailureDetails;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::gauges::{DecisionGauges, WvaPublication};
use plimsoll::publish::history::RecentHistory;
use plimsoll::publish::state::shared::{
    self, DocumentArrival, DocumentReceipt, ShareEntry, SharedMemories,
};
use plimsoll::units::Fraction;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::api::{compare, reference};
use crate::foresight::{holding, quick};
use crate::pipeline::{World, policy, spec};
use crate::restart::published;
use crate::sizing::sized;
use crate::working::{Engine, Work};

fn work(policy: Policy) -> Work {
    Work::with(policy, vec![spec("a", 1.0, (1, 30))], Engine::default())
}

/// A policy with everything that foresight can do, but for what is set otherwise.
fn with(change: impl FnOnce(&mut foresight::ForesightPolicy)) -> Policy {
    let mut policy = sized(&[Analyzer::Foresight]);
    change(&mut policy.sizing.as_mut().unwrap().foresight);
    policy
}

fn surface(published: Published) -> ApiSurface {
    let clock = Clock::start();
    let loaded = (clock.now(), clock.elapsed());
    let (_, published) = watch::channel(Arc::new(published));
    let vitals = move || Vitals {
        version: "0",
        started: loaded.1,
        tick_interval: loaded.1,
        checks: Vec::new(),
        config: ConfigInForce {
            file: None,
            hash: String::new(),
            loaded,
            last_reload: None,
            refused_since: None,
        },
        api_service: None,
        election: None,
    };
    ApiSurface {
        published,
        history: Arc::new(RecentHistory::default()),
        clock,
        ages: DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) },
        details: Box::new(FailureDetails::new),
        vitals: Box::new(vitals),
        cards: Box::new(|| Value::Null),
        scene: Box::new(|| None),
        autoscaler: Box::new(|_, _, _| None),
    }
}

/// What the API says of decisions.
fn first_answer(world: &World, decisions: &Decisions) -> Value {
    let surface = surface(published(world, decisions));
    serde_json::from_str(&surface.answer("/api/v1/decisions", None).1).unwrap()
}

/// What the API says, in the shape that it documents, and the first step of variant `a`.
fn first_step(world: &World, decisions: &Decisions) -> Value {
    let surface = surface(published(world, decisions));
    let ask =
        |path: &str| -> Value { serde_json::from_str(&surface.answer(path, None).1).unwrap() };
    let (answer, document) = (ask("/api/v1/decisions"), ask("/api/v1/openapi.json"));
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut seen = BTreeSet::new();
    compare(&answer, &reference("Decisions"), schemas, "decisions", &mut seen);
    let step = answer["variants"][0]["steps"][0].clone();
    let said = !step["foreseen"].is_null();
    let summary = ask("/api/v1/summary");
    compare(&summary, &reference("Summary"), schemas, "summary", &mut seen);
    let balance = &summary["variants"][0]["balance"];
    assert_eq!(balance["held_per_second"], step["foreseen"]["held_per_second"], "one definition");
    assert_eq!(balance["need_per_second"], step["foreseen"]["total_per_second"], "one definition");
    assert_eq!(["Foreseen", "Term", "Carries"].map(|it| seen.contains(it)), [said; 3]);
    step
}

/// The terms of a step by their names.
fn terms(step: &Value) -> BTreeMap<String, f64> {
    let terms = step["foreseen"]["terms"].as_array().unwrap();
    let term = |it: &Map<String, Value>| {
        (it["term"].as_str().unwrap().to_owned(), it["per_second"].as_f64().unwrap())
    };
    let named: BTreeMap<_, _> = terms.iter().map(|it| term(it.as_object().unwrap())).collect();
    assert_eq!(named.len(), terms.len(), "each is there once: {terms:?}");
    named
}

/// The need by its terms, as docs/api.md puts them together.
fn total(terms: &BTreeMap<String, f64>, used: f64) -> f64 {
    let of = |term: &str| terms.get(term).copied().unwrap_or(0.0);
    let latest = of("arriving").max(of("jump"));
    let looked_back = latest.max(of("growth")).max(of("ramp")) + of("unevenness");
    let steady = (looked_back.max(of("schedule")) + of("young")) / used;
    steady.max(of("bursts")) + of("backlog") + of("error_budget") + of("gateway") + of("absences")
}

#[test]
fn the_terms_of_the_api_make_the_need_as_it_is_documented() {
    let policy = with(|it| {
        it.used = Fraction::new(0.8).unwrap();
        it.error_budget = Some(ErrorBudget::default());
    });
    let mut work = work(policy);
    let _ = work.run(4, 60.0, 120);
    let mut seen = BTreeSet::new();
    // Up steadily, down, and a jump that queues, at the replicas and at a gateway.
    let rates = (0..12).map(|k| 60.0 + 6.0 * f64::from(k)).chain([40.0, 40.0, 300.0, 300.0]);
    for rate in rates {
        work.front = vec![holding(&work, (rate - 200.0).max(0.0))];
        let decisions = work.run(4, rate, 15);
        let step = first_step(&work.world, &decisions);
        let foreseen = &step["foreseen"];
        let (terms, number) = (terms(&step), |field: &str| foreseen[field].as_f64().unwrap());
        let (found, sum) = (number("total_per_second"), total(&terms, number("used")));
        assert!((found - sum).abs() < 1e-9 * found.max(1.0), "{found} is not {sum} of {terms:?}");
        assert!(number("held_per_second") >= found - terms["backlog"] - 1e-9, "{foreseen}");
        assert!(step["text"].as_str().unwrap().contains(&format!(": {found:.2}")), "{step}");
        let decides = foreseen["terms"].as_array().unwrap().iter();
        assert_eq!(decides.filter(|it| it["decides"] == true).count(), 1, "{foreseen}");
        seen.extend(terms.into_keys());
    }
    let all =
        ["arriving", "growth", "ramp", "unevenness", "young", "backlog", "error_budget", "gateway"];
    assert!(all.iter().all(|term| seen.contains(*term)), "{seen:?}");
}

#[test]
fn a_term_that_is_off_or_has_nothing_to_say_is_absent_and_one_that_asks_for_nothing_is_zero() {
    let named = |policy: Policy| {
        let mut work = work(policy);
        let decisions = work.run(4, 80.0, 120);
        terms(&first_step(&work.world, &decisions))
    };
    let all = named(with(|_| ()));
    assert!(all["backlog"].abs() < 1e-9, "nothing waits: {all:?}");
    // There is no standby, no ramp, no gateway and no past; the error budget is off by default.
    for silent in ["jump", "reserve", "ramp", "schedule", "error_budget", "gateway", "absences"] {
        assert!(!all.contains_key(silent), "{silent}: {all:?}");
    }
    let none = named(with(|it| {
        (it.jump, it.growth, it.ramp) = (None, None, None);
        (it.unevenness, it.young) = (None, None);
        (it.bursts, it.backlog, it.gateway) = (None, None, None);
        (it.error_budget, it.schedule, it.absences) = (None, None, None);
    }));
    assert_eq!(none.keys().collect::<Vec<_>>(), ["arriving"]);
}

/// The series of what is needed and carried, by name and labels.
fn series(published: Published) -> BTreeMap<String, f64> {
    let shown = [
        "plimsoll_need",
        "plimsoll_replica_carries",
        "plimsoll_admissible",
        "plimsoll_model",
        "plimsoll_slowest",
    ];
    series_of(published, &shown)
}

/// The series of gauges whose names start with one of these, by name and labels.
fn series_of(published: Published, shown: &[&str]) -> BTreeMap<String, f64> {
    let (_, published) = watch::channel(Arc::new(published));
    let gauges = DecisionGauges::new(published, Clock::start(), WvaPublication::Off);
    let mut page = String::new();
    gauges.write(&mut page);

    let mut series = BTreeMap::new();
    for line in page.lines().filter(|line| shown.iter().any(|it| line.starts_with(it))) {
        let (labelled, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = labelled.split_once('{').unwrap();
        let labels: Vec<&str> = labels.split('"').skip(1).step_by(2).collect();
        series.insert(format!("{name} {}", labels.join(" ")), value.parse().unwrap());
    }
    series
}

#[test]
fn the_slowest_replica_is_compared_with_its_peers_in_the_api_and_as_a_metric_without_its_name() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    let all = work.run(3, 60.0, 300);
    let slowest = &first_step(&work.world, &all)["slowest"];
    let times = slowest["times"].as_f64().unwrap();
    assert!((times - 1.0).abs() < 0.05, "all are alike: {slowest}");
    assert_eq!((&slowest["peers"], &slowest["is_outlier"]), (&2.into(), &false.into()));

    let found = series(published(&work.world, &all));
    assert!((found["plimsoll_slowest_replica_ratio m shop a"] - times).abs() < 1e-9, "{found:?}");
}

#[test]
fn what_is_needed_and_carried_is_as_the_api_says_and_vanishes_with_the_variant() {
    let specs = vec![spec("a", 1.0, (1, 30)), spec("b", 2.0, (1, 30))];
    let mut work = Work::with(quick(), specs, Engine::default());
    let early = work.run_all(&[("a", 2, 20.0), ("b", 2, 20.0)], 5);
    assert_eq!(series(published(&work.world, &early)), BTreeMap::new(), "nothing is known yet");
    let both = work.run_all(&[("a", 2, 20.0), ("b", 2, 20.0)], 90);
    let step = first_step(&work.world, &both);
    let found = series(published(&work.world, &both));
    let of = |name: &str| found[&format!("plimsoll_{name}")];
    let api = |part: &str, field: &str| step[part][field].as_f64().unwrap();
    for (metric, part, field) in [
        ("need_per_second m shop both", "foreseen", "total_per_second"),
        ("need_held_per_second m shop both", "foreseen", "held_per_second"),
        ("replica_carries_per_second m shop replicas a", "carries", "per_second"),
        ("replica_carries_low_per_second m shop replicas a", "carries", "low_per_second"),
        ("replica_carries_high_per_second m shop replicas a", "carries", "high_per_second"),
    ] {
        assert!((of(metric) - api(part, field)).abs() < 1e-9, "{metric}: {found:?}");
    }
    let variant = &first_answer(&work.world, &both)["variants"][0];
    for (metric, field) in [
        ("admissible_requests_per_second m shop a", "admissible_per_second"),
        ("model_admissible_requests_per_second m shop", "model_admissible_per_second"),
    ] {
        assert!(
            (of(metric) - variant[field].as_f64().unwrap()).abs() < 1e-9,
            "{metric}: {found:?}"
        );
    }
    let admissible = of("admissible_requests_per_second m shop a");
    assert!((admissible - 2.0 * api("carries", "per_second")).abs() < 1e-9, "two replicas");
    let [low, mean, high] =
        ["low_per_second", "per_second", "high_per_second"].map(|field| api("carries", field));
    assert!(0.0 < low && low < mean && mean < high, "{low} {mean} {high}");
    assert_eq!(found.keys().filter(|it| it.ends_with(" b")).count(), 4, "{found:?}");
    // The variant goes, and nothing else does.
    let fleet = Fleet::new(vec![spec("a", 1.0, (1, 30))]);
    work.world.fleet = fleet;
    work.world.variants.remove("b");
    let left = work.run_all(&[("a", 2, 20.0)], 2);
    let left: Vec<String> = series(published(&work.world, &left)).into_keys().collect();
    let kept: Vec<String> = found.into_keys().filter(|it| !it.ends_with(" b")).collect();
    assert_eq!(left, kept);
}

#[test]
fn capacity_counts_the_replicas_now_soon_and_at_the_maximum_and_is_absent_before_it_is_learned() {
    const SHOWN: [&str; 2] = ["plimsoll_capacity", "plimsoll_short_at_maximum"];
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    let early = work.run(2, 20.0, 5);
    let early = series_of(published(&work.world, &early), &SHOWN);
    let expected =
        [("plimsoll_capacity_learned m shop a", 0.0), ("plimsoll_short_at_maximum m shop a", 0.0)];
    assert_eq!(early, expected.map(|(series, value)| (series.to_owned(), value)).into());

    let learned = work.run(2, 20.0, 90);
    let carries = series(published(&work.world, &learned))["plimsoll_replica_carries_per_second m shop replicas a"];
    let found = series_of(published(&work.world, &learned), &SHOWN);
    for (series, replicas) in [("maximum", 30.0), ("now", 2.0), ("ready", 2.0)] {
        let capacity = found[&format!("plimsoll_capacity_per_second m shop both a {series}")];
        assert!((capacity - replicas * carries).abs() < 1e-9, "{series}: {found:?}");
    }
    assert!((found["plimsoll_capacity_learned m shop a"] - 1.0).abs() < 1e-9, "{found:?}");
    assert_eq!(found.len(), 5, "{found:?}");
}

/// The same as another replica of Plimsoll shows it.
fn followed(leader: &Published) -> Published {
    let decided = leader.variants.values().filter_map(|it| it.decided.as_ref());
    let entries: Vec<_> =
        decided.map(|decided| ShareEntry { decided, memory: None, in_effect: true }).collect();
    let now = entries[0].decided.at;
    let elapsed = entries[0].decided.elapsed;
    let undecided = SharedMemories::new();
    let encoded = shared::encode(now, elapsed, leader.generation, entries, &undecided, usize::MAX);
    let written = encoded.unwrap();

    let receipt =
        DocumentReceipt { elapsed, now, arrival: DocumentArrival::Prompt, holder: "leader" };
    let mut read = shared::decode_packed(&written.packed, receipt).unwrap();
    let mut follower = leader.clone();
    for (key, variant) in &mut follower.variants {
        variant.decided = read.decided.remove(key);
    }
    follower
}

#[test]
fn a_follower_shows_the_terms_and_the_series_of_its_leader() {
    let mut work = work(sized(&[Analyzer::Foresight]));
    let decisions = work.run(4, 80.0, 120);
    let leader = published(&work.world, &decisions);
    let follower = followed(&leader);
    let decided = |of: &Published| -> Vec<_> {
        of.variants.values().map(|it| it.decided.clone().unwrap().decision).collect()
    };
    assert_eq!(decided(&follower), decided(&leader));
    let found = series(leader.clone());
    assert!(found.keys().any(|it| it.starts_with("plimsoll_need_per_second")), "{found:?}");
    assert_eq!(series(follower.clone()), found);
    let steps = |of: Published| -> Value {
        let answer: Value =
            serde_json::from_str(&surface(of).answer("/api/v1/decisions", None).1).unwrap();
        answer["variants"][0]["steps"].clone()
    };
    let shown = steps(leader);
    assert!(!shown[0]["foreseen"].is_null() && !shown[0]["carries"].is_null(), "{shown}");
    assert_eq!(steps(follower), shown);
}

#[test]
fn a_model_that_saturation_decides_has_neither_terms_nor_series() {
    let mut work = work(policy());
    let decisions = work.run(4, 80.0, 120);
    let step = first_step(&work.world, &decisions);
    assert_eq!((&step["foreseen"], &step["carries"]), (&Value::Null, &Value::Null));
    assert_eq!(series(published(&work.world, &decisions)), BTreeMap::new());
}
