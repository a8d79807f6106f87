//! The golden numbers, the rules of the analysis, and helpers for the other tests.

mod properties;
mod targeting;

use super::TransitionRule::{ModelWide, PendingOnly, PerVariant};
use super::*;
use crate::fleet::{Bounds, Namespace, ReplicaName, VariantKey, VariantName};
use crate::units::CostPerHour;

/// The golden numbers are decimal fractions; 1e-12 is far above their rounding in binary.
const TOLERANCE: f64 = 1e-12;

const LOW: (f64, f64) = (0.79, 4.0);
const IDLE: (f64, f64) = (0.1, 0.0);
const FAIR: (f64, f64) = (0.5, 1.0);
const FULL: (f64, f64) = (0.95, 9.0);

fn thresholds() -> Thresholds {
    Thresholds {
        kv_cache: Fraction::new(0.80).unwrap(),
        queue_length: Requests::new(5.0).unwrap(),
        kv_spare: Fraction::new(0.10).unwrap(),
        queue_spare: Requests::new(3.0).unwrap(),
    }
}

fn key(variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new("ns").unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}

fn replica(variant: &str, name: &str) -> ReplicaKey {
    ReplicaKey {
        variant: key(variant),
        replica: ReplicaName::new(name).unwrap(),
        incarnation: None,
    }
}

/// Replicas of a variant, from `pod-1` on.
fn loads(variant: &str, peaks: &[(f64, f64)]) -> Vec<SaturationReplicaLoad> {
    peaks
        .iter()
        .enumerate()
        .map(|(index, (kv, queue))| SaturationReplicaLoad {
            replica: replica(variant, &format!("pod-{}", index + 1)),
            kv: Fraction::new(*kv).unwrap(),
            queue: Requests::new(*queue).unwrap(),
        })
        .collect()
}

/// Replicas of several variants, all with the same load.
fn fleet(variants: &[(&str, usize)], peak: (f64, f64)) -> Vec<SaturationReplicaLoad> {
    variants.iter().flat_map(|(name, number)| loads(name, &vec![peak; *number])).collect()
}

fn state(variant: &str, current: u32, cost: f64) -> SaturationVariant {
    SaturationVariant {
        key: key(variant),
        current: Replicas::saturating(current),
        pending: Replicas::ZERO,
        asleep: Replicas::ZERO,
        desired: None,
        patience: TransitionPatience::Left,
        cost: CostPerHour::new(cost).unwrap(),
        bounds: bounds(0, None),
    }
}

fn bounds(min: u32, max: Option<u32>) -> Bounds {
    Bounds::new(Replicas::saturating(min), max.map(Replicas::saturating)).unwrap()
}

fn replicas(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn analysis(peaks: &[(f64, f64)]) -> SaturationAnalysis {
    analyze(&loads("v", peaks), &thresholds())
}

fn is_safe(analysis: &SaturationAnalysis) -> bool {
    matches!(analysis.scale_down, ScaleDown::Safe(_))
}

/// The targets as numbers, in the order of the variants' names.
fn numbers(
    replicas: &[SaturationReplicaLoad],
    states: &[SaturationVariant],
    rule: TransitionRule,
) -> Vec<(String, u32)> {
    targets(&analyze(replicas, &thresholds()), states, rule)
        .into_iter()
        .map(|target| (target.variant.variant.to_string(), target.after.count()))
        .collect()
}

#[track_caller]
fn check(
    replicas: &[SaturationReplicaLoad],
    states: &[SaturationVariant],
    rule: TransitionRule,
    expect: &[(&str, u32)],
) {
    let expected: Vec<_> = expect.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    assert_eq!(numbers(replicas, states, rule), expected, "{rule:?}");
}

/// The sentence of each target.
fn sentences(
    replicas: &[SaturationReplicaLoad],
    states: &[SaturationVariant],
    rule: TransitionRule,
) -> Vec<String> {
    targets(&analyze(replicas, &thresholds()), states, rule)
        .into_iter()
        .map(|target| target.outcome.to_string())
        .collect()
}

#[track_caller]
fn close(actual: f64, expect: f64) {
    assert!((actual - expect).abs() < TOLERANCE, "{actual} is not {expect}");
}

// === The golden numbers of WVA's own unit tests ===

#[test]
fn golden_rows_1_to_6_decide_up_and_down() {
    for (row, peaks, up, safe) in [
        (1, &[(0.75, 2.0), (0.76, 2.0)][..], true, false),
        (2, &[(0.50, 3.0), (0.50, 3.0)], true, false),
        (3, &[(0.50, 1.0), (0.50, 1.0)], false, false),
        (4, &[(0.20, 1.0), (0.30, 1.0), (0.25, 1.0)], false, true),
        (5, &[(0.70, 2.0), (0.75, 3.0)], true, false),
        (6, &[(0.50, 2.0)], false, false),
    ] {
        let analysis = analysis(peaks);
        assert_eq!(analysis.scale_up.is_some(), up, "row {row}, up");
        assert_eq!(is_safe(&analysis), safe, "row {row}, down");
    }

    close(analysis(&[(0.75, 2.0), (0.76, 2.0)]).spare.kv.fraction(), 0.045);
    close(analysis(&[(0.50, 3.0), (0.50, 3.0)]).spare.queue.requests(), 2.0);
}

#[test]
fn golden_row_7_adds_variants_up() {
    let mut all = loads("v1", &[(0.70, 2.0), (0.75, 3.0)]);
    all.extend(loads("v2", &[(0.60, 1.0), (0.65, 2.0)]));
    let analysis = analyze(&all, &thresholds());
    assert_eq!((analysis.measured, analysis.non_saturated), (replicas(4), replicas(4)));
    let each: Vec<_> = analysis.variants.values().map(|variant| variant.measured).collect();
    assert_eq!(each, [replicas(2), replicas(2)]);
}

#[test]
fn golden_row_8_nothing_measured_is_neither_up_nor_down() {
    let analysis = analysis(&[]);
    assert_eq!(analysis.measured, Replicas::ZERO);
    assert_eq!(analysis.scale_up, None);
    assert!(!is_safe(&analysis));
    assert!(analysis.variants.is_empty());
}

#[test]
fn golden_rows_9_and_10_name_the_saturated_replicas() {
    let some = &analysis(&[(0.85, 2.0), (0.50, 6.0), (0.60, 2.0)]).variants[&key("v")];
    assert_eq!((some.measured, some.non_saturated), (replicas(3), Replicas::ONE));
    assert_eq!(some.saturated, [replica("v", "pod-1"), replica("v", "pod-2")]);

    let all = analysis(&[(0.85, 2.0), (0.50, 6.0), (0.90, 7.0)]);
    assert_eq!((all.measured, all.non_saturated), (replicas(3), Replicas::ZERO));
    assert_eq!(all.spare, SpareCapacity::default());
    assert!(all.scale_up.is_some());
    assert_eq!(all.scale_down, ScaleDown::TooFew { non_saturated: Replicas::ZERO });
}

/// Row 11 covers the time of an analysis; Plimsoll's analysis has none.
#[test]
fn golden_row_12_states_mean_and_peak_of_the_kv_cache() {
    for (usages, mean, max) in [
        (&[0.5, 0.5][..], 0.50, 0.50),
        (&[0.3, 0.6, 0.9], 0.60, 0.90),
        (&[0.85, 0.40, 0.55], 0.60, 0.85),
    ] {
        let peaks: Vec<_> = usages.iter().map(|usage| (*usage, 0.0)).collect();
        let variant = &analysis(&peaks).variants[&key("v")];

        close(variant.kv_mean.fraction(), mean);
        close(variant.kv_max.fraction(), max);
    }
}

/// The three variants of rows 13 and 14, with two replicas each.
fn three() -> (Vec<(&'static str, usize)>, Vec<SaturationVariant>) {
    let names = [("v1-expensive", 20.0), ("v2-cheap", 5.0), ("v3-medium", 15.0)];
    (
        names.iter().map(|(name, _)| (*name, 2)).collect(),
        names.iter().map(|(name, cost)| state(name, 2, *cost)).collect(),
    )
}

#[test]
fn golden_rows_13_and_14_move_the_cheapest_up_and_the_dearest_down() {
    let (variants, states) = three();
    for rule in [ModelWide, PerVariant, PendingOnly] {
        let up = [("v1-expensive", 2), ("v2-cheap", 3), ("v3-medium", 2)];
        check(&fleet(&variants, LOW), &states, rule, &up);
        let down = [("v1-expensive", 1), ("v2-cheap", 2), ("v3-medium", 2)];
        check(&fleet(&variants, IDLE), &states, rule, &down);
    }
}

#[test]
fn golden_rows_15_and_16_wait_in_a_transition() {
    let wish = SaturationVariant { desired: Some(replicas(4)), ..state("v1", 2, 20.0) };
    let load = fleet(&[("v1", 2), ("v2", 2)], LOW);
    check(&load, &[wish, state("v2", 2, 5.0)], PendingOnly, &[("v1", 4), ("v2", 2)]);

    let pending = SaturationVariant { pending: Replicas::ONE, ..state("v1", 3, 20.0) };
    check(&load, &[pending, state("v2", 2, 5.0)], PendingOnly, &[("v1", 3), ("v2", 2)]);
}

#[test]
fn golden_row_17_counts_a_group_of_pods_as_one_replica() {
    check(&fleet(&[("lws", 2)], LOW), &[state("lws", 1, 10.0)], PendingOnly, &[("lws", 2)]);
}

#[test]
fn golden_row_18_keeps_everything_when_nothing_was_measured() {
    let (_, states) = three();
    for rule in [ModelWide, PerVariant, PendingOnly] {
        let kept = [("v1-expensive", 2), ("v2-cheap", 2), ("v3-medium", 2)];
        check(&[], &states, rule, &kept);
    }
}

#[test]
fn golden_row_19_keeps_targets_within_bounds() {
    for (min, max, current, expect) in
        [(3, None, 2, 3), (0, Some(2), 3, 2), (0, None, 9, 9), (2, Some(2), 9, 2)]
    {
        let bounded = SaturationVariant { bounds: bounds(min, max), ..state("v", current, 1.0) };
        check(&loads("v", &[FAIR]), &[bounded], PendingOnly, &[("v", expect)]);
    }
}

#[test]
fn golden_row_20_grows_the_next_cheapest_when_the_cheapest_is_at_its_maximum() {
    let states = [
        SaturationVariant { bounds: bounds(0, Some(3)), ..state("cheap", 3, 5.0) },
        state("other", 1, 10.0),
    ];
    let load = fleet(&[("cheap", 3), ("other", 1)], LOW);

    for rule in [ModelWide, PerVariant, PendingOnly] {
        check(&load, &states, rule, &[("cheap", 3), ("other", 2)]);
    }
}

// === Rules of the analysis ===

#[test]
fn a_replica_at_a_threshold_is_saturated() {
    for (kv, queue, saturated) in
        [(0.80, 0.0, true), (0.0, 5.0, true), (0.79, 4.9, false), (f64::MAX, f64::MAX, true)]
    {
        let variant = &analysis(&[(kv, queue)]).variants[&key("v")];
        assert_eq!(variant.saturated.len(), usize::from(saturated), "{kv}, {queue}");
    }
}

#[test]
fn a_spare_that_equals_its_trigger_is_not_low() {
    // Binary fractions, so that nothing is rounded.
    let exact = Thresholds {
        kv_cache: Fraction::new(0.75).unwrap(),
        kv_spare: Fraction::new(0.25).unwrap(),
        ..thresholds()
    };

    assert_eq!(analyze(&loads("v", &[(0.5, 2.0)]), &exact).scale_up, None);
    assert!(analyze(&loads("v", &[(0.500_1, 2.0)]), &exact).scale_up.is_some());
    assert!(analyze(&loads("v", &[(0.5, 2.1)]), &exact).scale_up.is_some());
}

#[test]
fn a_spare_that_would_equal_its_trigger_is_enough_to_go_down() {
    let exact = Thresholds {
        kv_cache: Fraction::new(0.75).unwrap(),
        kv_spare: Fraction::new(0.25).unwrap(),
        ..thresholds()
    };

    // Two replicas at a quarter leave one at a half, so the headroom equals the trigger.
    let safe = analyze(&loads("v", &[(0.25, 1.0), (0.25, 1.0)]), &exact).scale_down;
    let left = SpareEnough { kv: exact.kv_spare, queue: exact.queue_spare };
    assert_eq!(safe, ScaleDown::Safe(left));

    let kv = analyze(&loads("v", &[(0.25, 1.0), (0.250_1, 1.0)]), &exact).scale_down;
    assert!(matches!(kv, ScaleDown::Unsafe(SpareTight { kv: Some(_), queue: None })), "{kv:?}");
    let queue = analyze(&loads("v", &[(0.25, 1.0), (0.25, 1.1)]), &exact).scale_down;
    assert!(
        matches!(queue, ScaleDown::Unsafe(SpareTight { kv: None, queue: Some(_) })),
        "{queue:?}"
    );
}

#[test]
fn either_spare_alone_makes_the_model_grow_and_both_are_named() {
    for (peak, sentence) in [
        ((0.755, 1.0), "low KV-cache headroom (0.045 < 0.100)"),
        ((0.1, 2.5), "low queue headroom (2.5 < 3.0)"),
        ((0.79, 4.0), "low headroom in KV cache (0.010 < 0.100) and queue (1.0 < 3.0)"),
    ] {
        assert_eq!(analysis(&[peak]).scale_up.unwrap().to_string(), sentence);
    }
}

#[test]
fn a_saturated_replica_has_neither_spare_nor_load_to_hand_over() {
    let with = analysis(&[FULL, (0.2, 0.0), (0.3, 1.0)]);
    let without = analysis(&[(0.2, 0.0), (0.3, 1.0)]);
    assert_eq!(with.spare, without.spare);
    assert_eq!(with.scale_down, without.scale_down);
    assert_eq!(with.variants[&key("v")].queue_max, Requests::new(9.0).unwrap());
}

/// A consequence of excluding saturated replicas from the means; see docs/decisions.md.
#[test]
fn a_replica_that_becomes_saturated_can_hide_a_deficit() {
    assert!(analysis(&[(0.79, 1.0), (0.79, 1.0), (0.69, 1.0)]).scale_up.is_some());
    assert!(analysis(&[(0.80, 1.0), (0.80, 1.0), (0.69, 1.0)]).scale_up.is_none());
    assert!(is_safe(&analysis(&[FULL, FULL, FULL, IDLE, IDLE])));
}

#[test]
fn every_replica_weighs_the_same_in_the_models_spare() {
    let mut all = loads("one", &[(0.2, 0.0)]);
    all.extend(loads("three", &[(0.6, 4.0), (0.6, 4.0), (0.6, 4.0)]));
    let spare = analyze(&all, &thresholds()).spare;
    close(spare.kv.fraction(), (0.6 + 3.0 * 0.2) / 4.0);
    close(spare.queue.requests(), (5.0 + 3.0 * 1.0) / 4.0);
}

#[test]
fn triggers_of_zero_never_make_a_model_grow() {
    let never =
        Thresholds { kv_spare: Fraction::ZERO, queue_spare: Requests::ZERO, ..thresholds() };
    assert_eq!(analyze(&loads("v", &[FULL, FULL]), &never).scale_up, None);
}

#[test]
fn the_largest_numbers_are_no_trap() {
    let largest = Thresholds {
        kv_cache: Fraction::new(f64::MAX).unwrap(),
        queue_length: Requests::new(f64::MAX).unwrap(),
        ..thresholds()
    };
    let analysis = analyze(&loads("v", &[(0.5, 0.5), (0.5, 0.5), (0.5, 0.5)]), &largest);
    assert_eq!(analysis.scale_up, None, "there is more spare than any trigger asks for");
}
