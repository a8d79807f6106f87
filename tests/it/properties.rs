//! What holds of whole decisions whatever the load is, for each way to decide.

use std::collections::BTreeMap;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::queueing::{LatencyTarget, LatencyTargets, Statistic};
use plimsoll::fleet::VariantSpec;
use plimsoll::pipeline::sizing::Sizing;
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{CostPerHour, Seconds};
use proptest::prelude::*;

use crate::foresight::quick;
use crate::pipeline::{policy, spec};
use crate::sizing::sized;
use crate::working::{Beside, Busy, Engine, Work};

/// How a number is decided: by saturation, by each analyzer, and by all of them.
fn way() -> impl Strategy<Value = Policy> {
    use Analyzer::{Queueing, Throughput, Tokens};
    let others =
        one_of(&[&[], &[Tokens], &[Throughput], &[Queueing], &[Tokens, Throughput, Queueing]]);
    prop_oneof![5 => others, 2 => Just(quick())]
}

/// The ways that learn nothing from how fast replicas are. To the others more load is more knowledge,
/// too: under another load another thing changes than the load.
fn way_that_learns_no_pace() -> impl Strategy<Value = Policy> {
    one_of(&[&[], &[Analyzer::Tokens]])
}

/// The ways of which a last page with more asks for no fewer. Throughput is none of them: it takes
/// the page for a reading of its line.
fn way_that_reads_one_page() -> impl Strategy<Value = Policy> {
    use Analyzer::{Foresight, Queueing, Tokens};
    one_of(&[&[], &[Tokens], &[Queueing], &[Foresight]])
}

fn rate_of(story: &[(f64, u32)]) -> f64 {
    story.last().map_or(0.0, |(rate, _)| *rate)
}

fn one_of(ways: &[&'static [Analyzer]]) -> impl Strategy<Value = Policy> + use<> {
    prop::sample::select(ways.to_vec()).prop_map(policy_of)
}

/// By saturation where there are no analyzers.
fn policy_of(analyzers: &[Analyzer]) -> Policy {
    if analyzers.is_empty() {
        return policy();
    }
    let mut policy = sized(analyzers);
    let Some(Sizing { queueing, .. }) = &mut policy.sizing else { panic!() };
    let seconds = |seconds| Seconds::new(seconds).unwrap();
    let ttft = LatencyTarget { limit: seconds(0.1), of: Statistic::Mean };
    queueing.targets = LatencyTargets { ttft: Some(ttft), itl: Some(seconds(0.02)) };
    policy
}

/// Requests a second for each replica: from next to nothing to more than one finishes.
fn rate() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.05..25.0_f64, 1 => 25.0..60.0_f64]
}

fn desired(decisions: &Decisions) -> BTreeMap<String, u32> {
    let number = |it: &plimsoll::decide::Decision| {
        (it.variant.variant.as_str().to_owned(), it.desired().count())
    };
    decisions.decisions.iter().map(number).collect()
}

/// Three variants of one model at these prices, that have seen these loads for a while each.
fn fleet(prices: [f64; 3]) -> Vec<VariantSpec> {
    ["a", "b", "c"].into_iter().zip(prices).map(|(name, cost)| spec(name, cost, (1, 30))).collect()
}

fn busy(replicas: [u32; 3], rate: f64) -> Vec<Busy<'static>> {
    ["a", "b", "c"]
        .into_iter()
        .zip(replicas)
        .map(|(name, replicas)| (name, replicas, rate))
        .collect()
}

/// Loads with the seconds that they last.
fn story() -> impl Strategy<Value = Vec<(f64, u32)>> {
    prop::collection::vec((rate(), 5..70_u32), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two fleets with one past; in one of them more arrives from now on.
    #[test]
    fn more_load_never_asks_for_fewer_replicas(
        policy in way_that_learns_no_pace(),
        replicas in prop::array::uniform3(1..6_u32),
        before in story(),
        now in rate(),
        times in 1.0..3.0_f64,
        seconds in 1..40_u32,
    ) {
        let mut work = Work::with(policy, fleet([1.0, 2.0, 3.0]), Engine::default());
        for (rate, seconds) in before {
            let _ = work.run_all(&busy(replicas, rate), seconds);
        }
        let mut more = work.clone();
        for _ in 0..seconds {
            let less = desired(&work.run_all(&busy(replicas, now), 1));
            let more = desired(&more.run_all(&busy(replicas, now * times), 1));
            let (less, more): (u32, u32) = (less.values().sum(), more.values().sum());
            prop_assert!(more >= less, "{less} -> {more}");
        }
    }

    /// Two fleets with one past; in the last page of one of them more runs and waits.
    #[test]
    fn more_at_once_never_asks_for_fewer_replicas(
        policy in way_that_reads_one_page(),
        replicas in prop::array::uniform3(1..6_u32),
        before in story(),
        (running, waiting) in (0.0..20.0_f64, prop_oneof![Just(0.0), 0.0..40.0_f64]),
    ) {
        let mut work = Work::with(policy, fleet([1.0, 2.0, 3.0]), Engine::default());
        let last = rate_of(&before);
        for (rate, seconds) in before {
            let _ = work.run_all(&busy(replicas, rate), seconds);
        }
        let mut more = work.clone();
        more.beside = Beside { running, waiting };
        let less = desired(&work.run_all(&busy(replicas, last), 1));
        let more = desired(&more.run_all(&busy(replicas, last), 1));
        let (less, more): (u32, u32) = (less.values().sum(), more.values().sum());
        prop_assert!(more >= less, "{less} -> {more}");
    }

    /// What arrives in another order, and what is listed in another order, is the same.
    #[test]
    fn the_order_of_what_arrives_changes_nothing(
        policy in way(),
        replicas in prop::array::uniform3(1..6_u32),
        loads in story(),
        rotation in 1..17_usize,
    ) {
        let mut one = Work::with(policy.clone(), fleet([1.0, 2.0, 2.0]), Engine::default());
        let mut specs = fleet([1.0, 2.0, 2.0]);
        specs.rotate_left(rotation % 3);
        let mut other = Work::with(policy, specs, Engine::default());
        other.rotation = rotation;
        for (rate, seconds) in loads {
            for _ in 0..seconds {
                let (one, other) = (one.run_all(&busy(replicas, rate), 1), other.run_all(&busy(replicas, rate), 1));
                prop_assert_eq!(one.decisions, other.decisions);
            }
        }
    }

    /// Prices in another currency lead to the same numbers.
    #[test]
    fn the_currency_of_prices_changes_nothing(
        policy in way(),
        replicas in prop::array::uniform3(1..6_u32),
        prices in prop::array::uniform3(0.1..20.0_f64),
        currency in prop_oneof![Just(0.01), Just(7.3), Just(160.0), Just(1e6)],
        loads in story(),
    ) {
        let mut one = Work::with(policy.clone(), fleet(prices), Engine::default());
        let mut other = Work::with(policy, fleet(prices.map(|price| price * currency)), Engine::default());
        prop_assert!(CostPerHour::new(prices[0] * currency).is_some());
        for (rate, seconds) in loads {
            for _ in 0..seconds {
                let numbers = desired(&one.run_all(&busy(replicas, rate), 1));
                prop_assert_eq!(desired(&other.run_all(&busy(replicas, rate), 1)), numbers);
            }
        }
    }

    /// Replicas that stop to answer, some or all, and come back. Foresight keeps as many as are silent,
    /// and the others keep all.
    #[test]
    fn missing_data_lowers_nothing_and_no_number_leaves_its_bounds(
        policy in way(),
        replicas in prop::array::uniform3(1..6_u32),
        loads in prop::collection::vec((rate(), 5..40_u32, prop::array::uniform3(0..7_u32)), 1..6),
        (min, span) in (0..3_u32, 0..12_u32),
    ) {
        let bounds = (min.max(1), min.max(1) + span);
        let specs = ["a", "b", "c"].into_iter().map(|name| spec(name, 1.0, bounds)).collect();
        let is_foreseen =
            policy.sizing.as_ref().is_some_and(|it| it.analyzers == [Analyzer::Foresight]);
        let mut work = Work::with(policy, specs, Engine::default());
        let mut before: BTreeMap<String, u32> = BTreeMap::new();
        for (rate, seconds, failing) in loads {
            let names = || ["a", "b", "c"].into_iter().map(str::to_owned);
            work.failing = names().zip(failing).collect();
            let silent = failing.into_iter().zip(replicas).map(|(failing, all)| failing.min(all));
            let silent: BTreeMap<String, u32> = names().zip(silent).collect();
            // Three seconds old is fresh, and may still lower.
            for second in 0..seconds {
                let now = desired(&work.run_all(&busy(replicas, rate), 1));
                for (name, number) in &now {
                    prop_assert!((bounds.0..=bounds.1).contains(number), "{name}: {number}");
                    let missing = failing.iter().any(|failing| *failing > 0);
                    if missing && second > 3 {
                        let known = before.get(name).copied().unwrap_or_default();
                        let known = if is_foreseen { known.min(silent[name]) } else { known };
                        prop_assert!(*number >= known, "{name}: {known} -> {number} without data");
                    }
                }
                before = now;
            }
        }
    }
}

proptest! {
    // A rise takes minutes to be believed.
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// More at the end of a steady rise or fall, which foresight believes to go on.
    #[test]
    fn more_at_the_end_of_a_rise_never_asks_for_fewer_replicas(
        policy in one_of(&[&[Analyzer::Foresight], &[Analyzer::Tokens, Analyzer::Foresight]]),
        replicas in 1..5_u32,
        (from, to) in (0.5..15.0_f64, 0.5..25.0_f64),
        seconds in 60..300_u32,
        (times, running, waiting) in (1.0..4.0_f64, 0.0..20.0_f64, 0.0..40.0_f64),
    ) {
        let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 60))], Engine::default());
        let rate = |second| from + (to - from) * f64::from(second) / f64::from(seconds);
        for second in 0..seconds {
            let _ = work.run_all(&[("a", replicas, rate(second))], 1);
        }
        let ask = |beside: Beside, times: f64| {
            let mut one = work.clone();
            one.beside = beside;
            desired(&one.run_all(&[("a", replicas, to * times)], 1))["a"]
        };
        let less = ask(Beside::default(), 1.0);
        let at_once = ask(Beside { running, waiting }, 1.0);
        let second = ask(Beside::default(), times);
        prop_assert!(at_once >= less && second >= less, "{less} -> {at_once}, {second}");
    }
}
