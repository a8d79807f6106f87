//! Rules of the optimizers, on small models.

mod fleet;
mod properties;
mod ranked;

use std::collections::BTreeMap;

use super::*;
use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use crate::fleet::{Accelerator, Bounds, Role, VariantKey, VariantSpec};
use crate::units::{Amount, CostPerHour, Fraction, Gpus, Replicas};

/// One variant: `(name, cost, capacity per replica, replicas)`.
type Offer<'a> = (&'a str, f64, f64, u32);

pub(super) fn amount(amount: f64) -> Amount {
    Amount::new(amount).unwrap()
}

pub(super) fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

pub(super) fn key(name: &str) -> VariantKey {
    VariantSpec::example(name).key
}

pub(super) fn candidate(offer: Offer<'_>) -> Candidate {
    let (name, cost, _, current) = offer;

    Candidate {
        key: key(name),
        role: Role::Both,
        accelerator: Accelerator::new("H100"),
        gpus: Gpus::ONE,
        cost: CostPerHour::new(cost).unwrap(),
        leaving: Replicas::ZERO,
        untried: false,
        list_price: CostPerHour::new(cost).unwrap(),
        mismatch: Fraction::ONE,
        bounds: Bounds::new(Replicas::ZERO, None).unwrap(),
        current: replicas(current),
        pending: Replicas::ZERO,
    }
}

/// A report in KV tokens with the present supply, the shortfall and the headroom.
pub(super) fn report(offers: &[Offer<'_>], required: f64, spare: f64) -> CapacityReport {
    let supply = offers.iter().map(|offer| offer.2 * f64::from(offer.3)).sum();
    let variants = offers.iter().map(|&offer| VariantCapacity {
        key: key(offer.0),
        role: Role::Both,
        cost: CostPerHour::new(offer.1).unwrap(),
        replicas: replicas(offer.3),
        pending: Replicas::ZERO,
        per_replica: Amount::new(offer.2).filter(|size| *size > Amount::ZERO),
        demand: Amount::ZERO,
        confidence: Confidence::Measured,
    });

    CapacityReport {
        unit: Unit::KvTokens,
        variants: variants.collect(),
        total: Totals {
            supply: amount(supply),
            anticipated: amount(supply),
            demand: Amount::ZERO,
            required: amount(required),
            spare: amount(spare),
        },
        roles: BTreeMap::new(),
    }
}

pub(super) fn model(candidates: Vec<Candidate>, report: &CapacityReport) -> PlanModel<'_> {
    PlanModel {
        key: VariantSpec::example("a").model_key(),
        candidates,
        sizing: report,
        voices: vec![VotingReport { report, standing: ReportFreshness::Live }],
    }
}

pub(super) fn consent(_: &VariantKey, _: Replicas) -> Consent {
    Consent::Given
}

/// The plan for these offers.
fn plan(offers: &[Offer<'_>], required: f64, spare: f64) -> ModelPlan {
    let report = report(offers, required, spare);
    let candidates = offers.iter().map(|offer| candidate(*offer)).collect();
    least_cost(&model(candidates, &report), None, &OptimizerPolicy::default(), &consent)
}

fn targets(plan: &ModelPlan) -> Vec<u32> {
    plan.placements.iter().map(|placement| placement.after.count()).collect()
}

#[test]
fn the_cheapest_for_what_it_carries_is_not_always_the_cheapest_for_the_need() {
    // The small variant costs 0.92 per thousand, the large one 1.00. But 20,000 take four small
    // replicas for 24, and only two large ones for 20.
    let offers = [("large", 10.0, 10_000.0, 0), ("small", 6.0, 6_500.0, 0)];
    let exact = plan(&offers, 20_000.0, 0.0);
    assert_eq!(targets(&exact), [2, 0]);

    assert!(matches!(exact.method, PlanMethod::Exact { .. }));
    assert_eq!(
        exact.to_string().replace(|c: char| c.is_ascii_digit(), "#"),
        "# -> # replicas for #.## -> ##.## per hour: cheapest plan (optimal, # steps); capacity for #####.# of #####.# KV tokens"
    );
    assert_eq!(exact.cost_after, CostPerHour::new(20.0).unwrap());
}

#[test]
fn a_mix_fills_up_with_the_smaller_one() {
    let offers = [("large", 10.0, 10_000.0, 0), ("small", 6.0, 5_000.0, 0)];
    assert_eq!(targets(&plan(&offers, 15_000.0, 0.0)), [1, 1]);
    assert_eq!(targets(&plan(&offers, 24_000.0, 0.0)), [2, 1]);
}

#[test]
fn between_the_thresholds_nothing_moves_unless_an_exchange_pays_for_itself() {
    // Six at 10 and six at 9.9 have the same capacity; starting one costs a sixth of its price.
    assert_eq!(targets(&plan(&[("a", 10.0, 100.0, 6), ("b", 9.9, 100.0, 0)], 0.0, 0.0)), [6, 0]);

    // At 5 each, an exchange pays. The new replicas start first, and the others stay until then.
    let exchanged = plan(&[("a", 10.0, 100.0, 6), ("b", 5.0, 100.0, 0)], 0.0, 0.0);
    assert_eq!(targets(&exchanged), [6, 6]);
    assert_eq!(exchanged.placements[0].because, PlanReason::Serving { planned: Replicas::ZERO });

    // When the new replicas serve load, the others go.
    let after = plan(&[("a", 10.0, 100.0, 6), ("b", 5.0, 100.0, 6)], 0.0, 600.0);
    assert_eq!(targets(&after), [0, 6]);
}

#[test]
fn what_starts_stays_while_something_is_missing() {
    // At half the price an exchange would pay, but two of three replicas start and one more is
    // missing.
    let offers = [("a", 10.0, 100.0, 3), ("b", 5.0, 100.0, 0)];
    let report = report(&offers, 100.0, 0.0);
    let mut model = model(offers.into_iter().map(candidate).collect(), &report);
    model.candidates[0].pending = replicas(2);
    let two_start = least_cost(&model, None, &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&two_start), [3, 1]);

    model.candidates[0].pending = Replicas::ZERO;
    let none_starts = least_cost(&model, None, &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&none_starts), [3, 4], "serving replicas stay until the others serve");
}

#[test]
fn a_mix_that_was_chosen_is_chosen_again() {
    let mut offers = [("a", 10.0, 10_000.0, 3), ("b", 6.0, 6_500.0, 2), ("c", 3.1, 3_000.0, 1)];
    for required in [5_000.0, 12_345.0, 40_000.0] {
        let first = plan(&offers, required, 0.0);
        for (offer, placement) in offers.iter_mut().zip(&first.placements) {
            offer.3 = placement.after.count();
        }

        // The demand is the same as before, and every planned replica exists.
        let wanted = first.covers[0].wanted;
        let carried = first.covers[0].planned;
        let second = plan(&offers, 0.0, carried.beyond(wanted).amount());
        assert!(second.cost_after <= first.cost_after, "{second} after {first}");
        for (offer, placement) in offers.iter_mut().zip(&second.placements) {
            offer.3 = placement.after.count();
        }

        let carried = second.covers[0].planned;
        let third = plan(&offers, 0.0, carried.beyond(wanted).amount());
        assert_eq!(targets(&third), targets(&second), "{third} after {second}");
    }
}

/// Refuses to remove the last replica of `dear`.
fn one_dear_stays(variant: &VariantKey, after: Replicas) -> Consent {
    match variant.variant.as_str() {
        "dear" if after == Replicas::ZERO => Consent::Refused,
        _ => Consent::Given,
    }
}

#[test]
fn removing_goes_from_the_most_expensive_and_asks_before_each() {
    let offers = [("cheap", 5.0, 10_000.0, 3), ("dear", 15.0, 20_000.0, 2)];
    let report = report(&offers, 0.0, 45_000.0);
    let model = model(offers.iter().map(|offer| candidate(*offer)).collect(), &report);
    let free = least_cost(&model, None, &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&free), [3, 0]);

    let held = least_cost(&model, None, &OptimizerPolicy::default(), &one_dear_stays);
    assert_eq!(targets(&held), [3, 1]);
    assert_eq!(held.placements[1].because, PlanReason::Refused { planned: Replicas::ZERO });
    assert_eq!(
        held.placements[1].to_string(),
        "shop/dear: 2 -> 1 at 15.00 each, 0 would be enough, but scale-down is blocked"
    );
}

#[test]
fn without_any_load_one_replica_stays_and_none_is_started() {
    let offers = [("cheap", 5.0, 10_000.0, 3), ("dear", 15.0, 20_000.0, 2)];
    assert_eq!(targets(&plan(&offers, 0.0, 70_000.0)), [1, 0]);
    let none = [("cheap", 5.0, 10_000.0, 0), ("dear", 15.0, 20_000.0, 0)];
    assert_eq!(targets(&plan(&none, 0.0, 0.0)), [0, 0]);
}

/// Room for this many H100s.
fn room_of(gpus: u32) -> SupplyHeadroom {
    let mut room = SupplyHeadroom::default();
    let kind = Accelerator::new("H100").unwrap();
    room.cluster.insert(kind, Headroom::Limited(Gpus::new(gpus)));
    room
}

#[test]
fn what_bounds_and_room_do_not_allow_is_said() {
    let offers = [("a", 5.0, 10_000.0, 1), ("b", 15.0, 20_000.0, 0)];
    let report = report(&offers, 90_000.0, 0.0);
    let candidates: Vec<Candidate> = offers.iter().map(|offer| candidate(*offer)).collect();
    let mut model = model(candidates, &report);
    model.candidates[0].bounds = Bounds::new(Replicas::ZERO, Some(replicas(3))).unwrap();

    let mut room = room_of(5);
    let plan = least_cost(&model, Some(&room), &OptimizerPolicy::default(), &consent);
    // 100,000 are wanted and five GPUs are free: one more of the first variant, four of the second.
    assert_eq!(targets(&plan), [2, 4]);
    assert!(plan.shortfall().is_none());

    room = room_of(3);
    let plan = least_cost(&model, Some(&room), &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&plan), [1, 3]);
    let (cover, missing) = plan.shortfall().unwrap();
    assert_eq!(cover.planned, amount(70_000.0));
    assert!((missing.fraction() - 0.3).abs() < 1e-9);
    assert!(
        plan.to_string().ends_with("30% of the KV tokens exceed capacity within bounds and limits")
    );

    model.candidates[1].accelerator = None;
    let plan = least_cost(&model, Some(&room), &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&plan), [3, 0], "what runs on something unknown does not grow");
}

#[test]
fn a_variant_of_unknown_capacity_stays_inside_its_bounds() {
    let offers = [("known", 5.0, 10_000.0, 1), ("unknown", 1.0, 0.0, 4)];
    let report = report(&offers, 15_000.0, 0.0);
    let mut model = model(offers.iter().map(|offer| candidate(*offer)).collect(), &report);
    model.candidates[1].bounds = Bounds::new(Replicas::ZERO, Some(replicas(3))).unwrap();
    let plan = least_cost(&model, None, &OptimizerPolicy::default(), &consent);
    assert_eq!(targets(&plan), [3, 3]);
    assert_eq!(plan.placements[1].because, PlanReason::Unknown);
}

/// Two variants of unknown capacity and a known one with at most `max` replicas.
fn plan_with_unknown(max: u32, required: f64, untried: bool) -> ModelPlan {
    let offers = [("dear", 9.0, 0.0, 0), ("known", 5.0, 10_000.0, 1), ("new", 6.0, 0.0, 0)];
    let report = report(&offers, required, 0.0);
    let mut model = model(offers.iter().map(|offer| candidate(*offer)).collect(), &report);
    model.candidates[0].untried = untried;
    model.candidates[1].bounds = Bounds::new(Replicas::ONE, Some(replicas(max))).unwrap();
    model.candidates[2].untried = untried;
    least_cost(&model, None, &OptimizerPolicy::default(), &consent)
}

#[test]
fn an_unknown_capacity_is_tried_once_and_only_where_the_others_are_not_enough() {
    let short = plan_with_unknown(2, 30_000.0, true);
    assert_eq!(targets(&short), [0, 2, 1], "the cheapest of them");
    assert_eq!(short.placements[2].because, PlanReason::Tried);

    let enough = plan_with_unknown(9, 30_000.0, true);
    assert_eq!(targets(&enough), [0, 4, 0], "what is known suffices");
    let quiet = plan_with_unknown(2, 0.0, true);
    assert_eq!(targets(&quiet), [0, 1, 0], "nothing is missing");
    let tried = plan_with_unknown(2, 30_000.0, false);
    assert_eq!(targets(&tried), [0, 2, 0], "it is being tried");
}

#[test]
fn a_variant_that_is_not_to_be_used_is_not_started_whatever_is_missing() {
    let offers = [("used", 5.0, 10_000.0, 1), ("unused", 1.0, 1e-8, 1)];
    let report = report(&offers, 30_000.0, 0.0);
    let mut model = model(offers.iter().map(|offer| candidate(*offer)).collect(), &report);
    model.candidates[0].bounds = Bounds::new(Replicas::ZERO, Some(replicas(2))).unwrap();

    let plan = least_cost(&model, None, &OptimizerPolicy::default(), &consent);

    assert!(plan.shortfall().is_some());
    // In the order of their names.
    assert_eq!(targets(&plan), [1, 2], "{plan:?}");
}

#[test]
fn each_analyzer_is_met_in_its_own_unit() {
    let offers = [("a", 10.0, 10_000.0, 1), ("b", 12.0, 9_000.0, 1)];
    let tokens = report(&offers, 1_000.0, 0.0);
    let rates = [("a", 10.0, 2.0, 1), ("b", 12.0, 5.0, 1)];
    let mut requests = report(&rates, 5.0, 0.0);
    requests.unit = Unit::RequestsPerSecond;

    let mut model = model(offers.iter().map(|offer| candidate(*offer)).collect(), &tokens);
    model.voices.push(VotingReport { report: &requests, standing: ReportFreshness::Live });
    let plan = least_cost(&model, None, &OptimizerPolicy::default(), &consent);
    // One more replica of the second variant meets both: 1,000 tokens and 5 requests/s.
    assert_eq!(targets(&plan), [1, 2]);
    assert_eq!(plan.covers[1].to_string(), "capacity for 12.0 of 12.0 requests/s");
}
