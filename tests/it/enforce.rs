//! How fast a number may move: the rules of an HPA's `behavior`, held against the model of the HPA.

use jiff::{SignedDuration, Timestamp};
use plimsoll::decide::enforce::{
    Amount, Behavior, History, Published, Rules, Select, StepPolicy, limit_step, stabilize,
};
use plimsoll::decide::{Basis, Decision, NoData, Reason, Stage, Step};
use plimsoll::fleet::{Bounds, ModelKey, ModelName};
use plimsoll::simulate::Micros;
use plimsoll::simulate::scaler::{self, Limit, MilliValue, Outcome, Scale, Scaler};
use plimsoll::units::{Replicas, Seconds};
use proptest::prelude::*;

use crate::pipeline::key;

fn n(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_millis(milliseconds)
}

fn asked(count: u32) -> Decision {
    let variant = key("a");
    let model = ModelName::new("m").unwrap();
    let (before, after) = (n(count), n(count));
    let reason = Reason::NoData(NoData::NoFreshReplica);
    Decision {
        model: ModelKey { namespace: variant.namespace.clone(), model },
        variant,
        current: None,
        bounds: Bounds::new(Replicas::ZERO, None).unwrap(),
        steps: vec![Step { stage: Stage::Analyze, before, after, reason }],
        inputs_at: at(0),
        basis: Basis::Fresh,
    }
}

fn rules(window: f64, select: Select, policies: &[(Amount, f64)]) -> Rules {
    let policy = |&(amount, period): &(Amount, f64)| StepPolicy {
        amount,
        period: Seconds::new(period).unwrap(),
    };
    Rules {
        stabilization_window: Seconds::new(window).unwrap(),
        select,
        policies: policies.iter().map(policy).collect(),
    }
}

/// The numbers that are published for what is asked for each second, from `start` on.
fn published(start: u32, asks: &[u32], behavior: &Behavior) -> Vec<u32> {
    let mut history = History::starting(at(0), n(start));
    let mut in_force = n(start);
    let times = (0..).map(|second| at(second * 1000));
    let publish = |(now, ask): (Timestamp, &u32)| {
        let stable = stabilize(asked(*ask), now, in_force, &history, behavior);
        let after = limit_step(stable, now, in_force, &history, behavior).desired();
        let moved = Published { before: in_force, after };
        history.record(now, n(*ask), moved, behavior);
        in_force = after;
        after.count()
    };
    times.zip(asks).map(publish).collect()
}

#[test]
fn a_policy_limits_what_changes_in_its_period() {
    let up = rules(0.0, Select::Max, &[(Amount::Pods(2), 2.5)]);
    let down = rules(0.0, Select::Max, &[(Amount::Percent(50), 2.5)]);
    let behavior = Behavior { scale_up: up, scale_down: down };
    assert_eq!(published(1, &[9, 9, 9, 9, 9], &behavior), [3, 3, 3, 5, 5]);
    assert_eq!(published(8, &[1, 1, 1, 1, 1, 1, 1], &behavior), [4, 4, 4, 2, 2, 2, 1]);
}

#[test]
fn select_says_which_of_several_policies_counts() {
    let policies = [(Amount::Pods(1), 60.0), (Amount::Percent(100), 60.0)];
    for (select, first) in [(Select::Max, 8), (Select::Min, 5), (Select::Disabled, 4)] {
        let one = rules(0.0, select, &policies);
        let behavior = Behavior { scale_up: one.clone(), scale_down: one };
        assert_eq!(published(4, &[50], &behavior), [first], "{select:?}");
    }
    let frozen = rules(0.0, Select::Disabled, &[]);
    let behavior = Behavior { scale_up: frozen.clone(), scale_down: frozen };
    assert_eq!(published(4, &[1], &behavior), [4], "disabled without policies");
}

#[test]
fn a_step_that_is_limited_says_so() {
    let one = rules(0.0, Select::Max, &[(Amount::Pods(1), 30.0)]);
    let behavior = Behavior { scale_up: one.clone(), scale_down: one };
    let history = History::starting(at(0), n(4));
    let limited = limit_step(asked(9), at(0), n(4), &history, &behavior);
    let step = limited.steps.last().unwrap().to_string();
    assert_eq!(step, "step_limit: 9 -> 5, limited to what may change in 30 s");
}

/// One direction in both vocabularies. Windows and periods lie between the whole seconds at which
/// numbers are published, because the two need not agree on which side of a border an instant is.
fn direction() -> impl Strategy<Value = (Rules, scaler::Rules)> {
    let window = prop_oneof![Just(0.0), Just(4.5), Just(11.5)];
    let select = prop_oneof![
        4 => Just((Select::Max, scaler::Select::Max)),
        2 => Just((Select::Min, scaler::Select::Min)),
        1 => Just((Select::Disabled, scaler::Select::Disabled)),
    ];
    let policy = (any::<bool>(), 1..120_u32, prop_oneof![Just(2.5), Just(7.5)]);
    (window, select, prop::collection::vec(policy, 1..3)).prop_map(|(window, select, policies)| {
        let ours: Vec<(Amount, f64)> = policies
            .iter()
            .map(|&(pods, amount, period)| {
                let pods = pods.then_some(Amount::Pods(amount % 9 + 1));
                (pods.unwrap_or(Amount::Percent(amount)), period)
            })
            .collect();
        let micros =
            |seconds: f64| Micros::from_duration(std::time::Duration::from_secs_f64(seconds));
        let theirs = ours.iter().map(|&(amount, period)| scaler::Policy {
            limit: match amount {
                Amount::Pods(pods) => Limit::Pods(pods),
                Amount::Percent(percent) => Limit::Percent(percent),
            },
            period: micros(period),
        });
        let theirs = scaler::Rules {
            tolerance: 0.0,
            window: micros(window),
            select: select.1,
            policies: theirs.collect(),
        };
        (rules(window, select.0, &ours), theirs)
    })
}

proptest! {
    #[test]
    fn a_number_moves_as_an_hpa_with_the_same_behavior_would_move_it(
        (up, their_up) in direction(),
        (down, their_down) in direction(),
        start in 1..20_u32,
        asks in prop::collection::vec(1..40_u32, 1..40),
    ) {
        let ours = published(start, &asks, &Behavior { scale_up: up, scale_down: down });
        let settings = scaler::Settings {
            min: n(1), max: n(1000), target: MilliValue(1000), up: their_up, down: their_down,
        };
        let mut hpa = Scaler::new(settings);
        let (mut now, mut count, mut theirs) = (0, n(start), Vec::new());
        for ask in &asks {
            let scale = Scale { spec: count, status: count };
            let value = Ok(MilliValue(i64::from(*ask) * 1000));
            if let Outcome::Scale(next) = hpa.sync(Micros::from_secs(now), scale, value) {
                count = next;
            }
            theirs.push(count.count());
            now += 1;
        }
        prop_assert_eq!(ours, theirs);
    }
}
