//! The rules by which one variant is scaled and the others stay.

use crate::analyze::saturation::TransitionRule::{ModelWide, PendingOnly, PerVariant};
use crate::analyze::saturation::tests::*;
use crate::analyze::saturation::*;

#[test]
fn equal_costs_grow_the_first_name_and_shrink_the_last() {
    let states = [state("b", 2, 7.0), state("a", 2, 7.0), state("c", 2, 7.0)];
    let variants = [("a", 2), ("b", 2), ("c", 2)];
    check(&fleet(&variants, LOW), &states, PendingOnly, &[("a", 3), ("b", 2), ("c", 2)]);
    check(&fleet(&variants, IDLE), &states, PendingOnly, &[("a", 2), ("b", 2), ("c", 1)]);
}

#[test]
fn the_last_replica_stays_even_with_a_minimum_of_zero() {
    let states = [state("dear", 1, 20.0), state("cheap", 2, 5.0)];
    let load = fleet(&[("dear", 1), ("cheap", 2)], IDLE);
    check(&load, &states, PendingOnly, &[("cheap", 1), ("dear", 1)]);
    let singles = [state("dear", 1, 20.0), state("cheap", 1, 5.0)];
    check(&load, &singles, PendingOnly, &[("cheap", 1), ("dear", 1)]);
}

#[test]
fn the_dearest_at_its_minimum_lets_the_next_dearest_shrink() {
    let states = [
        SaturationVariant { bounds: bounds(2, None), ..state("dear", 2, 20.0) },
        state("cheap", 5, 5.0),
    ];
    let load = fleet(&[("dear", 2), ("cheap", 5)], IDLE);

    for rule in [ModelWide, PerVariant, PendingOnly] {
        check(&load, &states, rule, &[("cheap", 4), ("dear", 2)]);
    }
}

#[test]
fn a_variant_above_its_maximum_is_the_one_that_shrinks() {
    let states = [
        state("dear", 4, 20.0),
        SaturationVariant { bounds: bounds(0, Some(2)), ..state("cheap", 3, 5.0) },
    ];
    let load = fleet(&[("dear", 4), ("cheap", 3)], IDLE);
    check(&load, &states, PendingOnly, &[("cheap", 2), ("dear", 4)]);

    // Replicas that were not measured did not count as capacity, so their removal changes nothing.
    check(&fleet(&[("dear", 4)], IDLE), &states, PendingOnly, &[("cheap", 2), ("dear", 3)]);
}

#[test]
fn a_variant_above_its_maximum_that_keeps_a_wish_is_the_one_that_shrinks() {
    let wish = SaturationVariant {
        desired: Some(replicas(4)),
        bounds: bounds(0, Some(2)),
        ..state("cheap", 3, 5.0)
    };
    let load = fleet(&[("dear", 4), ("cheap", 3)], IDLE);
    check(&load, &[state("dear", 4, 20.0), wish], PerVariant, &[("cheap", 2), ("dear", 4)]);
}

#[test]
fn bounds_may_take_the_last_replica_but_the_load_does_not_ask_for_it() {
    let none = SaturationVariant { bounds: bounds(0, Some(0)), ..state("cheap", 1, 5.0) };
    let load = fleet(&[("cheap", 1), ("dear", 2)], IDLE);
    let targets =
        targets(&analyze(&load, &thresholds()), &[none, state("dear", 2, 20.0)], PendingOnly);
    assert_eq!((targets[0].asked, targets[0].after), (Replicas::ONE, Replicas::ZERO));
    assert_eq!(targets[1].after, replicas(2));
}

#[test]
fn bounds_hold_in_a_transition_too() {
    let wish = SaturationVariant {
        desired: Some(replicas(9)),
        bounds: bounds(1, Some(3)),
        ..state("a", 2, 1.0)
    };

    for rule in [ModelWide, PerVariant, PendingOnly] {
        let targets = targets(
            &analyze(&loads("a", &[FAIR, FAIR]), &thresholds()),
            std::slice::from_ref(&wish),
            rule,
        );
        assert_eq!((targets[0].asked, targets[0].after), (replicas(9), replicas(3)), "{rule:?}");
    }
}

#[test]
fn a_variant_without_metrics_keeps_what_it_has_within_its_bounds() {
    let states = [
        state("measured", 2, 5.0),
        state("silent", 3, 1.0),
        state("none", 0, 1.0),
        SaturationVariant { bounds: bounds(2, None), ..state("short", 0, 1.0) },
    ];
    let load = loads("measured", &[LOW, LOW]);
    let expect = [("measured", 3), ("none", 0), ("short", 2), ("silent", 3)];
    check(&load, &states, PendingOnly, &expect);

    assert_eq!(
        sentences(&load, &states, PendingOnly)[1..],
        [
            "holding: there are no replicas to measure",
            "holding: there are no replicas to measure",
            "holding: no replica has fresh data"
        ]
    );
}

#[test]
fn a_replica_without_a_state_is_load_and_nothing_more() {
    let mut load = loads("stranger", &[LOW, LOW]);
    load.extend(loads("v", &[LOW]));
    check(&load, &[state("v", 1, 10.0)], PendingOnly, &[("v", 2)]);
}

#[test]
fn no_room_anywhere_is_said_with_the_numbers() {
    let full = SaturationVariant { bounds: bounds(1, Some(2)), ..state("v", 2, 1.0) };
    assert_eq!(
        sentences(&loads("v", &[(0.755, 1.0), (0.755, 1.0)]), &[full], PendingOnly),
        ["low KV-cache headroom (0.045 < 0.100), but no variant can scale up"]
    );
}

#[test]
fn every_steady_model_says_why_it_does_not_shrink() {
    for (peaks, min, sentence) in [
        (
            &[FAIR, FAIR][..],
            0,
            "headroom is not low, but one replica less would leave KV headroom -0.200 < 0.100",
        ),
        (
            &[(0.5, 1.5), (0.5, 1.5)],
            0,
            "headroom is not low, but one replica less would leave KV headroom -0.200 < 0.100 and queue headroom 2.0 < 3.0",
        ),
        (&[FAIR], 0, "headroom is not low, but scale-down needs 2 unsaturated replicas (1 < 2)"),
        (
            &[IDLE, IDLE],
            2,
            "headroom is sufficient without one replica (KV 0.600, queue 5.0), but no variant can scale down",
        ),
    ] {
        let current = u32::try_from(peaks.len()).unwrap();
        let states = [SaturationVariant { bounds: bounds(min, None), ..state("v", current, 1.0) }];
        assert_eq!(sentences(&loads("v", peaks), &states, PendingOnly), [sentence]);
    }
}

#[test]
fn the_others_say_which_variant_moves() {
    let (variants, states) = three();
    assert_eq!(
        sentences(&fleet(&variants, (0.755, 1.0)), &states, PendingOnly),
        [
            "headroom is low; scaling up ns/v2-cheap instead",
            "low KV-cache headroom (0.045 < 0.100)",
            "headroom is low; scaling up ns/v2-cheap instead"
        ]
    );

    assert_eq!(
        sentences(&fleet(&variants, IDLE), &states, PendingOnly),
        [
            "headroom is sufficient without one replica (KV 0.680, queue 5.0)",
            "headroom is sufficient; scaling down ns/v1-expensive instead",
            "headroom is sufficient; scaling down ns/v1-expensive instead"
        ]
    );
}

// === The transition rules ===

#[test]
fn model_wide_one_silent_replica_blocks_every_variant() {
    let states = [state("v1-l4", 2, 5.0), state("v2-a100", 4, 20.0)];
    let load = fleet(&[("v1-l4", 2), ("v2-a100", 3)], LOW);
    check(&load, &states, ModelWide, &[("v1-l4", 2), ("v2-a100", 4)]);
    assert_eq!(
        sentences(&load, &states, ModelWide),
        ["waiting: not all replicas of ns/v2-a100 are reporting"; 2]
    );
}

#[test]
fn model_wide_one_wish_blocks_every_variant_and_is_kept() {
    let states = [
        SaturationVariant { desired: Some(replicas(4)), ..state("a", 2, 5.0) },
        state("b", 2, 9.0),
    ];
    let load = fleet(&[("a", 2), ("b", 2)], IDLE);
    check(&load, &states, ModelWide, &[("a", 4), ("b", 2)]);

    assert_eq!(
        sentences(&load, &states, ModelWide)[1],
        "waiting: ns/a has not reached its desired replicas yet"
    );
}

#[test]
fn model_wide_a_variant_that_is_pending_but_reports_fully_does_not_grow() {
    let states =
        [SaturationVariant { pending: Replicas::ONE, ..state("a", 2, 5.0) }, state("b", 2, 9.0)];
    let load = fleet(&[("a", 2), ("b", 2)], LOW);
    check(&load, &states, ModelWide, &[("a", 2), ("b", 3)]);
}

#[test]
fn model_wide_an_unmeasured_variant_with_replicas_blocks() {
    let states = [state("a", 2, 5.0), state("silent", 1, 9.0)];
    for peak in [LOW, IDLE] {
        check(&fleet(&[("a", 2)], peak), &states, ModelWide, &[("a", 2), ("silent", 1)]);
    }
}

#[test]
fn per_variant_a_wish_is_kept_and_the_others_go_on() {
    let states = [
        SaturationVariant { desired: Some(replicas(4)), ..state("a", 2, 5.0) },
        state("b", 2, 9.0),
    ];
    let load = fleet(&[("a", 2), ("b", 2)], LOW);
    check(&load, &states, PerVariant, &[("a", 4), ("b", 3)]);
    check(&fleet(&[("a", 2), ("b", 2)], IDLE), &states, PerVariant, &[("a", 4), ("b", 1)]);
}

#[test]
fn per_variant_pending_replicas_pass_growth_on_but_not_shrinking() {
    let states = [
        SaturationVariant { pending: Replicas::ONE, ..state("a", 3, 5.0) },
        state("b", 2, 4.0 + 2.0),
    ];
    check(&fleet(&[("a", 2), ("b", 2)], LOW), &states, PerVariant, &[("a", 3), ("b", 3)]);
    let dear =
        [SaturationVariant { pending: Replicas::ONE, ..state("a", 3, 9.0) }, state("b", 2, 6.0)];
    check(&fleet(&[("a", 2), ("b", 2)], IDLE), &dear, PerVariant, &[("a", 2), ("b", 2)]);
}

/// The older document counts from the reporting replicas. In its own example, a variant with a
/// replica that is not reporting keeps its current replicas.
#[test]
fn per_variant_the_documents_example_holds() {
    let states = [
        state("v1-l4", 2, 5.0),
        SaturationVariant {
            desired: Some(replicas(4)),
            pending: Replicas::ONE,
            ..state("v2-a100", 4, 20.0)
        },
    ];

    let load = fleet(&[("v1-l4", 2), ("v2-a100", 3)], LOW);
    check(&load, &states, PerVariant, &[("v1-l4", 3), ("v2-a100", 4)]);
}

#[test]
fn per_variant_growth_counts_from_the_replicas_that_report() {
    let states = [state("a", 3, 5.0), state("b", 1, 9.0)];
    let load = fleet(&[("a", 2), ("b", 1)], LOW);
    check(&load, &states, PerVariant, &[("a", 3), ("b", 1)]);
    assert_eq!(
        sentences(&load, &states, PerVariant),
        ["waiting: not all replicas of ns/a are reporting"; 2]
    );
}

#[test]
fn per_variant_silent_replicas_are_never_taken_for_absent_ones() {
    for peak in [LOW, FAIR] {
        let load = fleet(&[("a", 1)], peak);
        check(&load, &[state("a", 4, 5.0)], PerVariant, &[("a", 4)]);
    }
}

#[test]
fn pending_only_a_silent_replica_does_not_block() {
    let states = [state("a", 3, 5.0), state("b", 2, 9.0)];
    let load = fleet(&[("a", 2), ("b", 2)], LOW);
    check(&load, &states, PendingOnly, &[("a", 4), ("b", 2)]);
}

#[test]
fn pending_only_a_pending_replica_blocks_up_and_down() {
    let states =
        [state("a", 3, 5.0), SaturationVariant { pending: Replicas::ONE, ..state("b", 3, 9.0) }];

    for peak in [LOW, IDLE] {
        let load = fleet(&[("a", 3), ("b", 2)], peak);
        check(&load, &states, PendingOnly, &[("a", 3), ("b", 3)]);
        assert_eq!(
            sentences(&load, &states, PendingOnly),
            ["waiting: ns/b has pending replicas"; 2]
        );
    }
}

#[test]
fn pending_only_a_variant_that_is_all_new_answers_the_deficit_that_it_was_started_for() {
    let states =
        [state("a", 2, 5.0), SaturationVariant { pending: replicas(2), ..state("new", 2, 9.0) }];
    check(&fleet(&[("a", 2)], LOW), &states, PendingOnly, &[("a", 2), ("new", 2)]);

    assert_eq!(
        sentences(&fleet(&[("a", 2)], LOW), &states, PendingOnly),
        ["waiting: ns/new has pending replicas", "holding: no replica has fresh data"]
    );

    // More capacity is on its way, so there is no reason to keep excess replicas.
    check(&fleet(&[("a", 2)], IDLE), &states, PendingOnly, &[("a", 1), ("new", 2)]);
}

#[test]
fn a_transition_that_lasts_too_long_lets_other_variants_grow() {
    let stuck = SaturationVariant {
        pending: Replicas::ONE,
        patience: TransitionPatience::Exhausted,
        ..state("stuck", 2, 5.0)
    };
    let states = [state("other", 1, 9.0), stuck];
    let load = fleet(&[("other", 1), ("stuck", 1)], LOW);
    for rule in [ModelWide, PerVariant, PendingOnly] {
        check(&load, &states, rule, &[("other", 2), ("stuck", 2)]);
    }

    // The same for a variant that was never measured.
    for rule in [ModelWide, PerVariant, PendingOnly] {
        check(&fleet(&[("other", 1)], LOW), &states, rule, &[("other", 2), ("stuck", 2)]);
    }
}

#[test]
fn a_replica_that_never_reports_does_not_block_for_ever() {
    let mute =
        SaturationVariant { patience: TransitionPatience::Exhausted, ..state("mute", 2, 5.0) };
    let load = fleet(&[("mute", 1), ("other", 1)], LOW);
    for rule in [ModelWide, PerVariant] {
        check(&load, &[mute.clone(), state("other", 1, 9.0)], rule, &[("mute", 2), ("other", 2)]);
    }
}

#[test]
fn a_replica_that_sleeps_blocks_nothing() {
    let dozing = SaturationVariant { asleep: Replicas::ONE, ..state("v", 2, 5.0) };
    let tired = SaturationVariant { patience: TransitionPatience::Exhausted, ..dozing.clone() };
    for rule in [ModelWide, PerVariant, PendingOnly] {
        for it in [&dozing, &tired] {
            check(&fleet(&[("v", 1)], LOW), std::slice::from_ref(it), rule, &[("v", 3)]);
        }
    }
}

#[test]
fn a_number_that_is_not_followed_is_dropped_in_the_end() {
    let wish = SaturationVariant {
        desired: Some(replicas(3)),
        patience: TransitionPatience::Exhausted,
        ..state("v", 2, 5.0)
    };

    for rule in [ModelWide, PerVariant, PendingOnly] {
        check(
            &loads("v", &[(0.3, 0.0), (0.5, 0.0)]),
            std::slice::from_ref(&wish),
            rule,
            &[("v", 2)],
        );
    }
}
