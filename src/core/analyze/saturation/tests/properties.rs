//! Properties that hold for any input.

use proptest::prelude::*;

use crate::analyze::saturation::TransitionRule::{ModelWide, PendingOnly, PerVariant};
use crate::analyze::saturation::tests::*;
use crate::analyze::saturation::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn any_rule() -> impl Strategy<Value = TransitionRule> {
    prop::sample::select(vec![ModelWide, PerVariant, PendingOnly])
}

/// Loads on both sides of the thresholds, often on one exactly.
fn any_loads() -> impl Strategy<Value = Vec<SaturationReplicaLoad>> {
    let kv = prop_oneof![0.0..1.2f64, prop::sample::select(vec![0.0, 0.1, 0.7, 0.8, 1.0])];
    let queue = prop_oneof![0.0..9.0f64, prop::sample::select(vec![0.0, 1.0, 2.0, 5.0])];

    prop::collection::vec((prop::sample::select(NAMES.to_vec()), kv, queue), 0..12).prop_map(
        |replicas| {
            replicas
                .into_iter()
                .enumerate()
                .map(|(index, (variant, kv, queue))| SaturationReplicaLoad {
                    replica: replica(variant, &format!("pod-{index}")),
                    kv: Fraction::new(kv).unwrap(),
                    queue: Requests::new(queue).unwrap(),
                })
                .collect()
        },
    )
}

fn any_state(name: &'static str) -> impl Strategy<Value = SaturationVariant> {
    (
        0..6u32,
        prop_oneof![3 => Just(0u32), 1 => 1..3u32],
        prop_oneof![3 => Just(None), 1 => (0..6u32).prop_map(Some)],
        any::<bool>(),
        prop::sample::select(vec![1.0, 5.0, 5.0, 20.0]),
        0..4u32,
        prop::option::of(0..4u32),
    )
        .prop_map(move |(current, pending, desired, patient, cost, min, above)| {
            SaturationVariant {
                pending: replicas(pending),
                desired: desired.map(replicas),
                patience: if patient {
                    TransitionPatience::Left
                } else {
                    TransitionPatience::Exhausted
                },
                bounds: bounds(min, above.map(|above| min + above)),
                ..state(name, current, cost)
            }
        })
}

fn any_states() -> impl Strategy<Value = Vec<SaturationVariant>> {
    NAMES.map(any_state).prop_map(Vec::from)
}

/// The distance of a target from the variant's current replicas, if no earlier decision is kept.
fn step_of(target: &SaturationTarget) -> i64 {
    i64::from(target.asked.count()) - i64::from(target.before.count())
}

fn is_above_max(state: &SaturationVariant) -> bool {
    state.bounds.max().is_some_and(|max| state.current > max)
}

proptest! {
    #[test]
    fn order_never_changes_the_outcome(
        (ordered, shuffled) in any_loads().prop_flat_map(|loads| {
            (Just(loads.clone()), Just(loads).prop_shuffle())
        }),
        (states, mixed) in any_states().prop_flat_map(|states| {
            (Just(states.clone()), Just(states).prop_shuffle())
        }),
        rule in any_rule(),
    ) {
        let first = analyze(&ordered, &thresholds());
        let second = analyze(&shuffled, &thresholds());
        prop_assert_eq!(&first, &second);
        prop_assert_eq!(targets(&first, &states, rule), targets(&second, &mixed, rule));
    }

    #[test]
    fn low_spare_and_a_safe_scale_down_exclude_each_other(loads in any_loads()) {
        let analysis = analyze(&loads, &thresholds());
        prop_assert!(!(analysis.scale_up.is_some() && is_safe(&analysis)), "{:?}", analysis);
    }

    #[test]
    fn every_variant_gets_one_target_within_its_bounds(
        loads in any_loads(), states in any_states(), rule in any_rule(),
    ) {
        let targets = targets(&analyze(&loads, &thresholds()), &states, rule);
        prop_assert_eq!(targets.len(), states.len());
        for (target, state) in targets.iter().zip(&states) {
            prop_assert_eq!(&target.variant, &state.key);
            prop_assert_eq!(target.after, state.bounds.clamp(target.asked));
            prop_assert_eq!(target.after, state.bounds.clamp(target.after));
        }
    }

    #[test]
    fn at_most_one_replica_moves_and_never_the_last_one(
        loads in any_loads(), states in any_states(), rule in any_rule(),
    ) {
        let undecided: Vec<_> =
            states.into_iter().map(|state| SaturationVariant { desired: None, ..state }).collect();
        let targets = targets(&analyze(&loads, &thresholds()), &undecided, rule);

        let moved: i64 = targets.iter().map(|target| step_of(target).abs()).sum();
        prop_assert!(moved <= 1, "{:?}", targets);
        for target in &targets {
            prop_assert!(target.asked >= target.before.min(Replicas::ONE));
        }
    }

    #[test]
    fn an_earlier_wish_is_kept_or_put_aside_but_never_added_to(
        loads in any_loads(), states in any_states(), rule in any_rule(),
    ) {
        let targets = targets(&analyze(&loads, &thresholds()), &states, rule);
        for (target, state) in targets.iter().zip(&states) {
            let kept = Some(target.asked) == state.desired;
            prop_assert!(kept || step_of(target).abs() <= 1, "{:?}", target);
        }
    }

    #[test]
    fn bounds_and_load_do_not_both_take_a_measured_replica(
        loads in any_loads(), states in any_states(), rule in any_rule(),
    ) {
        let analysis = analyze(&loads, &thresholds());
        let targets = targets(&analysis, &states, rule);

        let bounded = states
            .iter()
            .any(|state| is_above_max(state) && analysis.variants.contains_key(&state.key));
        let by_load = targets.iter().zip(&states).any(|(target, state)| {
            matches!(target.outcome, SaturationOutcome::SpareEnough(_)) && !is_above_max(state)
        });
        prop_assert!(!(bounded && by_load), "{:?}", targets);
    }

    #[test]
    fn a_model_whose_replicas_are_all_saturated_never_shrinks(
        loads in any_loads(), states in any_states(), rule in any_rule(),
    ) {
        let full: Vec<_> = loads
            .into_iter()
            .map(|load| SaturationReplicaLoad { kv: load.kv.max(thresholds().kv_cache), ..load })
            .collect();
        for target in targets(&analyze(&full, &thresholds()), &states, rule) {
            prop_assert!(!matches!(target.outcome, SaturationOutcome::SpareEnough(_)), "{:?}", target);
        }
    }

    #[test]
    fn another_saturated_replica_never_turns_an_up_into_a_down(
        loads in any_loads(),
        states in any_states(),
        rule in any_rule(),
        on in prop::sample::select(NAMES.to_vec()),
    ) {
        let before = analyze(&loads, &thresholds());
        prop_assume!(before.scale_up.is_some());
        let mut more = loads;
        more.push(SaturationReplicaLoad {
            replica: replica(on, "another"),
            kv: Fraction::ONE,
            queue: Requests::ZERO,
        });

        let after = analyze(&more, &thresholds());
        prop_assert_eq!(after.scale_up, before.scale_up);
        for target in targets(&after, &states, rule) {
            prop_assert!(!matches!(target.outcome, SaturationOutcome::SpareEnough(_)), "{:?}", target);
        }
    }

    #[test]
    fn more_load_never_turns_an_up_into_a_down(
        loads in any_loads(), more in 0.0..1.0f64, waiting in 0.0..5.0f64,
    ) {
        let busier: Vec<_> = loads
            .iter()
            .map(|load| SaturationReplicaLoad {
                kv: load.kv + Fraction::new(more).unwrap(),
                queue: load.queue + Requests::new(waiting).unwrap(),
                ..load.clone()
            })
            .collect();

        let before = analyze(&loads, &thresholds());
        let after = analyze(&busier, &thresholds());
        if before.scale_up.is_some() && before.non_saturated == after.non_saturated {
            prop_assert!(after.scale_up.is_some());
        }
    }
}
