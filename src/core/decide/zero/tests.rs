use proptest::prelude::*;

use super::*;
use crate::fleet::VariantSpec;
use crate::units::Requests;

const RETENTION: f64 = 600.0;

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn requests(number: f64) -> Requests {
    Requests::new(number).unwrap()
}

fn key(name: &str) -> VariantKey {
    VariantSpec::example(name).key
}

fn candidate(name: &str, cost: f64, current: u32, target: u32) -> ZeroVariant {
    ZeroVariant {
        variant: key(name),
        cost: CostPerHour::new(cost),
        current: Replicas::new(current),
        target: replicas(target),
        bounds: Bounds::new(Replicas::ZERO, Replicas::new(8)).unwrap(),
    }
}

/// No work for the whole retention, and everything was observed.
fn silence() -> ObservedWork {
    ObservedWork {
        finished: Some(Requests::ZERO),
        on_replicas: Some(Requests::ZERO),
        in_front: FrontQueue::Queued(Requests::ZERO),
        seen_for: Seconds::new(RETENTION).unwrap(),
        starting: Replicas::ZERO,
        evidence: IdleEvidence::default(),
    }
}

fn after_idle() -> ZeroPolicy {
    ZeroPolicy::AfterIdle(Seconds::new(RETENTION).unwrap())
}

fn settled(work: &ObservedWork, candidates: &[ZeroVariant]) -> SettledTargets {
    settle(after_idle(), work, candidates)
}

#[test]
fn a_model_that_is_proved_idle_goes_to_zero_and_says_why() {
    let settled = settled(&silence(), &[candidate("a", 1.0, 2, 1), candidate("b", 2.0, 1, 1)]);
    assert_eq!(settled.targets, [Replicas::ZERO; 2]);
    assert_eq!(
        settled.outcome.to_string(),
        "to zero: idle: no request has finished, run, waited or queued for 600 s"
    );
}

#[test]
fn whatever_is_missing_proves_nothing() {
    let silence = silence();
    let cases = [
        ObservedWork { finished: None, ..silence },
        ObservedWork { on_replicas: None, ..silence },
        ObservedWork { in_front: FrontQueue::Unknown, ..silence },
        ObservedWork { seen_for: Seconds::new(RETENTION - 1.0).unwrap(), ..silence },
        ObservedWork { starting: Replicas::ONE, ..silence },
    ];

    for work in cases {
        let settled = settled(&work, &[candidate("a", 1.0, 1, 1)]);
        assert_eq!(settled.targets, [Replicas::ONE], "{work:?}");
        assert!(matches!(settled.outcome, ZeroOutcome::NotIdle(Idleness::Unproved(_))), "{work:?}");
    }
}

#[test]
fn a_replica_that_was_woken_for_a_long_request_is_not_taken_away() {
    let work = ObservedWork { on_replicas: Some(requests(1.0)), ..silence() };
    let woken = [candidate("a", 1.0, 1, 1)];

    let ours = settled(&work, &woken);
    assert_eq!(ours.targets, [Replicas::ONE]);
    assert_eq!(
        ours.outcome.to_string(),
        "stays: not idle: requests that finished: 0, ran or waited: 1, were queued: 0"
    );
}

#[test]
fn a_model_that_grows_or_queues_is_not_idle() {
    let growing = settled(&silence(), &[candidate("a", 1.0, 1, 2)]);
    assert_eq!(growing.outcome, ZeroOutcome::Growing(key("a")));
    let queued = ObservedWork { in_front: FrontQueue::Queued(requests(0.5)), ..silence() };
    assert_eq!(settled(&queued, &[candidate("a", 1.0, 1, 1)]).targets, [Replicas::ONE]);
}

#[test]
fn a_variant_with_a_minimum_keeps_it_and_the_others_go() {
    let held = ZeroVariant {
        bounds: Bounds::new(Replicas::ONE, None).unwrap(),
        ..candidate("held", 1.0, 2, 2)
    };
    let settled = settled(&silence(), &[held, candidate("b", 2.0, 1, 1)]);
    assert_eq!(settled.targets, [Replicas::ONE, Replicas::ZERO]);
}

#[test]
fn the_last_replica_of_the_cheapest_variant_that_has_one_stays() {
    let candidates =
        [candidate("cheap", 1.0, 0, 0), candidate("dear", 9.0, 1, 0), candidate("mid", 5.0, 1, 0)];
    let kept = settle(ZeroPolicy::KeepOne, &silence(), &candidates);
    assert_eq!(kept.targets, [replicas(0), replicas(0), replicas(1)], "none has to start");
}

#[test]
fn a_model_that_is_not_proved_idle_is_not_left_without_replicas() {
    let unseen = ObservedWork { finished: None, ..silence() };

    let kept = settled(&unseen, &[candidate("a", 1.0, 1, 0)]);
    assert_eq!(kept.targets, [Replicas::ONE]);
    assert_eq!(
        kept.outcome.to_string(),
        "shop/a keeps one replica: may not be idle: some counts of finished requests could not be read"
    );
}

#[test]
fn where_nothing_may_grow_no_replica_is_kept_and_that_is_said() {
    let bounds = Bounds::new(Replicas::ZERO, Some(Replicas::ZERO)).unwrap();
    let closed = ZeroVariant { bounds, ..candidate("a", 1.0, 1, 0) };
    let kept = settle(ZeroPolicy::KeepOne, &silence(), &[closed]);
    assert_eq!((kept.targets, kept.outcome), (vec![Replicas::ZERO], ZeroOutcome::NoneAllowed));
    let none = settle(ZeroPolicy::KeepOne, &silence(), &[]);
    assert_eq!((none.targets, none.outcome), (Vec::new(), ZeroOutcome::Wanted));
}

#[test]
fn of_equal_costs_the_first_name_stays_and_an_unknown_cost_comes_last() {
    let unknown = ZeroVariant { cost: None, ..candidate("a", 1.0, 1, 0) };
    let [b, c] = ["b", "c"].map(|name| candidate(name, 5.0, 1, 0));
    let kept = settle(ZeroPolicy::KeepOne, &silence(), &[c, unknown.clone(), b]);
    assert_eq!(kept.targets, [replicas(0), replicas(0), replicas(1)]);
    let later = ZeroVariant { variant: key("z"), ..unknown.clone() };
    let kept = settle(ZeroPolicy::KeepOne, &silence(), &[later, unknown]);
    assert_eq!(kept.targets, [replicas(0), replicas(1)]);
}

fn any_count() -> impl Strategy<Value = Option<Requests>> {
    prop::option::of((0_u32..3).prop_map(|number| requests(f64::from(number))))
}

prop_compose! {
    fn any_work()(
        finished in any_count(),
        on_replicas in any_count(),
        in_front in prop::option::of(any_count()),
        seen in 0_u32..1200,
        starting in 0_u32..2,
    ) -> ObservedWork {
        let queue = match in_front {
            None => FrontQueue::NoQueue,
            Some(None) => FrontQueue::Unknown,
            Some(Some(queued)) => FrontQueue::Queued(queued),
        };

        ObservedWork {
            finished,
            on_replicas,
            in_front: queue,
            seen_for: Seconds::new(f64::from(seen)).unwrap(),
            starting: replicas(starting),
            evidence: IdleEvidence::default(),
        }
    }
}

proptest! {
    #[test]
    fn no_target_is_lowered_unless_idleness_is_proved_and_none_is_above_its_maximum(
        work in any_work(),
        counts in prop::collection::vec((0_u32..4, 0_u32..4), 1..5),
    ) {
        let candidates: Vec<ZeroVariant> = counts
            .iter()
            .enumerate()
            .map(|(at, (current, target))| candidate(&format!("v{at}"), 1.0, *current, *target))
            .collect();

        let settled = settled(&work, &candidates);
        let proved = work.finished == Some(Requests::ZERO)
            && work.on_replicas == Some(Requests::ZERO)
            && [FrontQueue::NoQueue, FrontQueue::Queued(Requests::ZERO)].contains(&work.in_front)
            && work.starting == Replicas::ZERO
            && work.seen_for.seconds() >= RETENTION;
        for (candidate, target) in candidates.iter().zip(&settled.targets) {
            prop_assert!(proved || *target >= candidate.target);
            prop_assert_eq!(candidate.bounds.clamp(*target), *target);
        }

        let left: Replicas = settled.targets.iter().copied().sum();
        prop_assert!(proved || left > Replicas::ZERO);
    }
}
