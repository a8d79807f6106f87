//! How fast a number may move: the rules of an HPA's `behavior`, held against the model of the HPA.

use jiff::{SignedDuration, Timestamp};
use plimsoll::decide::enforce::{
    Amount, Behavior, Deference, Dwell, Panic, PublishedReplicas, Rules, ScalingHistory, Select,
    StabilizationWindows, StepPolicy, dwell, limit_step, panic, spend_turns, stabilize_before,
};
use plimsoll::decide::{Basis, Decision, NoData, Reason, Stage, Step};
use plimsoll::fleet::{Bounds, ModelKey, ModelName};
use plimsoll::observe::AutoscalerWindows;
use plimsoll::simulate::Micros;
use plimsoll::simulate::scaler::{self, MilliValue, ScaleCounts, Scaler, SyncOutcome};
use plimsoll::units::{Fraction, Replicas, Seconds};
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
        admissible: None,
        sizing: None,
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
    let mut history = ScalingHistory::starting(at(0), n(start));
    let mut in_force = n(start);
    let times = (0..).map(|second| at(second * 1000));
    let publish = |(now, ask): (Timestamp, &u32)| {
        let windows = StabilizationWindows::of(behavior);
        let own = Deference::None;
        let stable = stabilize_before(asked(*ask), now, in_force, &history, windows, own, None);
        let after = limit_step(stable, now, in_force, &history, behavior).desired();
        let moved = PublishedReplicas { before: in_force, after };
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
    let behavior =
        Behavior { scale_up: up, scale_down: down, flap_budget: u32::MAX, ..Behavior::default() };
    assert_eq!(published(1, &[9, 9, 9, 9, 9], &behavior), [3, 3, 3, 5, 5]);
    assert_eq!(published(8, &[1, 1, 1, 1, 1, 1, 1], &behavior), [4, 4, 4, 2, 2, 2, 1]);
}

#[test]
fn select_says_which_of_several_policies_counts() {
    let policies = [(Amount::Pods(1), 60.0), (Amount::Percent(100), 60.0)];
    for (select, first) in [(Select::Max, 8), (Select::Min, 5), (Select::Disabled, 4)] {
        let one = rules(0.0, select, &policies);
        let behavior = Behavior {
            scale_up: one.clone(),
            scale_down: one,
            flap_budget: u32::MAX,
            ..Behavior::default()
        };
        assert_eq!(published(4, &[50], &behavior), [first], "{select:?}");
    }
    let frozen = rules(0.0, Select::Disabled, &[]);
    let behavior = Behavior {
        scale_up: frozen.clone(),
        scale_down: frozen,
        flap_budget: u32::MAX,
        ..Behavior::default()
    };
    assert_eq!(published(4, &[1], &behavior), [4], "disabled without policies");
}

#[test]
fn a_step_that_is_limited_says_so() {
    let one = rules(0.0, Select::Max, &[(Amount::Pods(1), 30.0)]);
    let behavior = Behavior {
        scale_up: one.clone(),
        scale_down: one,
        flap_budget: u32::MAX,
        ..Behavior::default()
    };
    let history = ScalingHistory::starting(at(0), n(4));
    let limited = limit_step(asked(9), at(0), n(4), &history, &behavior);
    let step = limited.steps.last().unwrap().to_string();
    assert_eq!(step, "step_limit: 9 -> 5, limited by the scaling policy over 30 s");
}

/// One direction in both vocabularies. Windows and periods lie between the whole seconds at which
/// numbers are published, because the two need not agree on which side of a border an instant is.
fn direction() -> impl Strategy<Value = (Rules, scaler::Rules)> {
    let window = prop_oneof![Just(0.0), Just(4.5), Just(11.5)];
    let select = prop_oneof![
        4 => Just(Select::Max),
        2 => Just(Select::Min),
        1 => Just(Select::Disabled),
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
        let theirs = ours
            .iter()
            .map(|&(amount, period)| scaler::ScalingPolicy { amount, period: micros(period) });
        let theirs = scaler::Rules {
            tolerance: 0.0,
            window: micros(window),
            select,
            policies: theirs.collect(),
        };
        (rules(window, select, &ours), theirs)
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
        let ours = published(start, &asks, &Behavior { scale_up: up, scale_down: down, flap_budget: u32::MAX, ..Behavior::default() });
        let settings = scaler::ScalerSettings {
            min: n(1), max: n(1000), target: MilliValue(1000), behavior: true,
            up: their_up, down: their_down,
        };
        let mut hpa = Scaler::new(settings);
        let (mut now, mut count, mut theirs) = (0, n(start), Vec::new());
        for ask in &asks {
            let scale = ScaleCounts { spec: count, status: count };
            let value = Ok(MilliValue(i64::from(*ask) * 1000));
            if let SyncOutcome::Scale(next) = hpa.sync(Micros::from_secs(now), scale, value) {
                count = next;
            }
            theirs.push(count.count());
            now += 1;
        }
        prop_assert_eq!(ours, theirs);
    }
}

/// The numbers that are published for what is asked for each second, by all the rules together, and
/// what the last of them says.
struct Course {
    behavior: Behavior,
    history: ScalingHistory,
    in_force: Replicas,
    second: i64,
    autoscaler: Option<AutoscalerWindows>,
}

impl Course {
    fn new(start: u32, behavior: Behavior) -> Self {
        let history = ScalingHistory::starting(at(0), n(start));
        Self { behavior, history, in_force: n(start), second: 0, autoscaler: None }
    }

    fn ask(&mut self, ask: u32) -> Decision {
        let Self { behavior, history, in_force, .. } = self;
        let (now, in_force) = (at(self.second * 1000), *in_force);
        let windows = StabilizationWindows::of(behavior);
        let deference = behavior.deference;
        let hpa = self.autoscaler.as_ref();
        let decision =
            stabilize_before(asked(ask), now, in_force, history, windows, deference, hpa);
        let decision = dwell(decision, now, in_force, history, behavior.dwell);
        let decision = spend_turns(decision, now, in_force, history, behavior.flap_budget);
        let decision = panic(decision, now, in_force, history, behavior.panic);
        let decision = limit_step(decision, now, in_force, history, behavior);
        let published = PublishedReplicas { before: in_force, after: decision.desired() };
        self.history.record(now, n(ask), published, &self.behavior);
        self.in_force = published.after;
        self.second += 1;
        decision
    }

    fn ask_for(&mut self, ask: u32, seconds: i64) -> Decision {
        (0..seconds).map(|_| self.ask(ask)).last().unwrap()
    }
}

fn unlimited() -> Behavior {
    let free = rules(0.0, Select::Max, &[]);
    Behavior {
        scale_up: free.clone(),
        scale_down: free,
        flap_budget: u32::MAX,
        ..Behavior::default()
    }
}

fn said(decision: &Decision) -> String {
    decision.steps.last().unwrap().to_string()
}

fn seconds(seconds: f64) -> Seconds {
    Seconds::new(seconds).unwrap()
}

#[test]
fn a_number_stays_for_its_dwell_before_it_moves_the_other_way_and_no_longer() {
    let dwell = Dwell { after_up: seconds(30.0), after_down: seconds(10.0) };
    let mut course = Course::new(3, Behavior { dwell, ..unlimited() });
    assert_eq!(course.ask(5).desired(), n(5), "nothing has moved before");
    assert_eq!(course.ask(6).desired(), n(6), "the same way is free");
    assert_eq!(
        said(&course.ask(2)),
        "dwell: 2 -> 6, not scaled down for another 29 s, because it was scaled up recently"
    );
    assert_eq!(course.ask_for(2, 28).desired(), n(6));
    assert_eq!(course.ask(2).desired(), n(2), "30 s after it was raised to 6");
    assert_eq!(course.ask(1).desired(), n(1));
    assert_eq!(
        said(&course.ask_for(4, 9)),
        "dwell: 4 -> 1, not scaled up for another 1 s, because it was scaled down recently"
    );
    assert_eq!(course.ask(4).desired(), n(4));
}

#[test]
fn a_number_that_has_spent_its_turns_is_only_raised_until_one_is_an_hour_old() {
    let mut course = Course::new(3, Behavior { flap_budget: 3, ..unlimited() });
    for ask in [4, 3, 4, 3] {
        assert_eq!(course.ask(ask).desired(), n(ask), "the first change is no turn, three are");
    }
    assert_eq!(
        said(&course.ask(2)),
        "flap_budget: 2 -> 3, scale-down blocked for 3597 s: flap budget spent (direction changed 3 times in the last hour)"
    );
    assert_eq!(course.ask(5).desired(), n(5), "always upward");
    assert_eq!(course.ask_for(2, 3595).desired(), n(5));
    assert_eq!(course.ask(2).desired(), n(5), "the raise was a turn, too");
    assert_eq!(course.ask(2).desired(), n(2));
}

#[test]
fn a_burst_is_followed_at_once_and_lowers_nothing_until_a_stable_window_has_passed() {
    let burst = Panic {
        window: seconds(6.0),
        stable_window: seconds(60.0),
        threshold: Fraction::new(2.0).unwrap(),
    };
    let slow = rules(120.0, Select::Max, &[]);
    let behavior = Behavior { scale_up: slow, panic: Some(burst), ..unlimited() };
    let mut course = Course::new(4, behavior.clone());
    let _ = course.ask_for(4, 60);
    assert_eq!(course.ask_for(7, 5).desired(), n(4), "less than twice is no burst, and waits");
    let jumped = course.ask(12);
    assert_eq!(jumped.desired(), n(12));
    assert_eq!(
        said(&jumped),
        "panic: 4 -> 12, demand is jumping to 12 replicas, from 4.2 on average: scale-down is blocked for 60 s, and scale-up skips its window"
    );
    // For six seconds the jump is in the short window.
    assert_eq!(course.ask_for(1, 5 + 59).desired(), n(12));
    assert_eq!(course.ask(1).desired(), n(1));
    let mut calm = Course::new(4, Behavior { panic: None, ..behavior });
    let _ = calm.ask_for(4, 60);
    assert_eq!(calm.ask(12).desired(), n(4), "without a panic window it waits");
}

#[test]
fn a_rate_holds_in_a_panic_too() {
    let burst = Panic {
        window: seconds(6.0),
        stable_window: seconds(60.0),
        threshold: Fraction::new(2.0).unwrap(),
    };
    let two = rules(0.0, Select::Max, &[(Amount::Pods(2), 15.0)]);
    let mut course = Course::new(4, Behavior { scale_up: two, panic: Some(burst), ..unlimited() });
    let _ = course.ask_for(4, 10);
    assert_eq!(course.ask(12).desired(), n(6));
}

#[test]
fn what_an_hpa_waits_is_taken_off_what_is_waited_here() {
    let down = rules(30.0, Select::Max, &[]);
    let behavior = Behavior { scale_down: down, ..unlimited() };
    let hpa = |window| {
        let (scale_up, scale_down) = (Seconds::ZERO, seconds(window));
        Some(AutoscalerWindows { name: "llama".to_owned(), scale_up, scale_down })
    };
    // How many seconds a lower number is held.
    let held = |behavior: &Behavior, autoscaler: Option<AutoscalerWindows>| {
        let mut course = Course { autoscaler, ..Course::new(6, behavior.clone()) };
        let _ = course.ask(6);
        (0..60).position(|_| course.ask(3).desired() == n(3)).unwrap()
    };
    assert_eq!(held(&behavior, None), 29);
    assert_eq!(held(&behavior, hpa(20.0)), 9);
    assert_eq!(held(&behavior, hpa(300.0)), 0);
    let twice = Behavior { deference: Deference::None, ..behavior.clone() };
    assert_eq!(held(&twice, hpa(300.0)), 29);
    let mut course = Course { autoscaler: hpa(300.0), ..Course::new(6, behavior) };
    let _ = course.ask(6);
    assert_eq!(
        said(&course.ask(3)),
        "stabilize: 3, stabilization left to HPA llama (300 s window)"
    );
}
