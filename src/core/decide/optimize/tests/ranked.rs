//! Rules of plans by the rank of prices.

use proptest::prelude::*;

use super::*;
use crate::decide::rank::{self, Preference};

fn by_rank(by: rank::Policy) -> OptimizerPolicy {
    OptimizerPolicy { rule: GrowthRule::Ranked(by), ..OptimizerPolicy::default() }
}

fn ranked_plan(offers: &[Offer<'_>], required: f64, spare: f64) -> ModelPlan {
    let report = report(offers, required, spare);
    let candidates = offers.iter().map(|offer| candidate(*offer)).collect();
    plan_of(candidates, &report, None)
}

fn plan_of(
    candidates: Vec<Candidate>,
    report: &CapacityReport,
    room: Option<&SupplyHeadroom>,
) -> ModelPlan {
    super::super::plan(
        &model(candidates, report),
        room,
        &by_rank(rank::Policy::default()),
        &consent,
    )
}

fn scores(plan: &ModelPlan, round: usize) -> Vec<(&str, f64)> {
    let options = plan.rankings[0].residual.rounds[round].options.iter();
    options.map(|it| (it.key.variant.as_str(), it.scored.unwrap().score)).collect()
}

// The worked example of docs/models.md: prices in currency per hour, sizes in requests/s.
#[test]
fn a_cold_variant_at_three_tenths_of_its_price_comes_before_a_warm_one_at_the_whole() {
    let offers = [("a100", 4.0, 24.0, 0), ("h100", 8.0, 60.0, 1), ("spot", 2.4, 60.0, 0)];
    let report = report(&offers, 50.0, 0.0);
    let mut candidates: Vec<Candidate> = offers.iter().map(|it| candidate(*it)).collect();
    candidates[2].list_price = CostPerHour::new(8.0).unwrap();
    let plan = plan_of(candidates, &report, None);
    // 110 are wanted and five replicas preferred: 22 each, and 24 is the nearest size.
    let residual = &plan.rankings[0].residual;
    assert_eq!(residual.preferred, Some(amount(24.0)));
    let expected = [("a100", 3.2903), ("h100", 1.4304), ("spot", 1.1920)];
    for ((name, score), expected) in scores(&plan, 0).into_iter().zip(expected) {
        assert_eq!(name, expected.0);
        assert!((score - expected.1).abs() < 5e-5, "{name}: {score}");
    }

    assert_eq!(targets(&plan), [0, 1, 1]);
    assert_eq!(plan.method, PlanMethod::Ranked);
}

#[test]
fn what_is_added_for_one_analyzer_carries_for_the_next() {
    let offers = [("a", 4.0, 10.0, 1)];
    let one = report(&offers, 15.0, 0.0);
    let mut two = report(&offers, 15.0, 0.0);
    two.unit = Unit::RequestsPerSecond;

    let mut model = model(vec![candidate(offers[0])], &one);
    model.voices.push(VotingReport { report: &two, ..model.voices[0].clone() });
    let plan = super::super::plan(&model, None, &by_rank(rank::Policy::default()), &consent);
    assert_eq!(targets(&plan), [3]);
    assert_eq!(plan.rankings.len(), 1, "the second misses nothing any more");
}

#[test]
fn what_is_spare_goes_at_the_least_cost_and_nothing_goes_while_something_is_missing() {
    let offers = [("dear", 10.0, 10.0, 2), ("cheap", 1.0, 10.0, 2)];
    assert_eq!(targets(&ranked_plan(&offers, 0.0, 20.0)), [2, 0], "by key: cheap, dear");

    let grown = ranked_plan(&offers, 10.0, 0.0);
    assert_eq!(targets(&grown), [3, 2]);
    // The least cost would exchange the expensive ones.
    assert_eq!(grown.placements[1].because, PlanReason::Kept);
    let spared = ranked_plan(&offers, 0.0, 20.0);
    assert!(spared.rankings.is_empty());
}

#[test]
fn a_variant_of_unknown_capacity_keeps_its_number() {
    let offers = [("a", 4.0, 10.0, 1), ("unknown", 1.0, 0.0, 2)];
    let plan = ranked_plan(&offers, 15.0, 0.0);
    assert_eq!(targets(&plan), [3, 2]);
    assert_eq!(plan.placements[1].because, PlanReason::Unknown);
}

#[test]
fn a_variant_that_is_not_to_be_used_is_not_ranked_whatever_is_missing() {
    let offers = [("used", 5.0, 10_000.0, 1), ("unused", 1.0, 1e-8, 1)];
    let report = report(&offers, 30_000.0, 0.0);
    let mut candidates: Vec<Candidate> = offers.iter().map(|it| candidate(*it)).collect();
    for candidate in &mut candidates {
        candidate.bounds = Bounds::new(Replicas::ZERO, Some(replicas(2))).unwrap();
    }

    let plan = plan_of(candidates, &report, None);

    assert!(plan.shortfall().is_some());
    // In the order of their names.
    assert_eq!(targets(&plan), [1, 2], "{plan:?}");
}

/// Cost, capacity, replicas and how many more the maximum allows.
type Row = (u32, u32, u32, u32);

struct Question<'a> {
    rows: &'a [Row],
    required: f64,
    weight: f64,
}

impl Question<'_> {
    /// Plans with costs multiplied by a factor and candidates turned by some places.
    fn solve(&self, factor: f64, turn: usize) -> ModelPlan {
        let rows = self.rows.iter().zip(["a", "b", "c", "d"]);
        let offers: Vec<Offer<'_>> = rows
            .map(|(&(cost, size, current, _), name)| {
                (name, f64::from(cost) * factor, f64::from(size), current)
            })
            .collect();
        let report = report(&offers, self.required, 0.0);

        let mut candidates: Vec<Candidate> = offers.iter().map(|it| candidate(*it)).collect();
        for (candidate, row) in candidates.iter_mut().zip(self.rows) {
            let max = Some(replicas(row.2 + row.3));
            candidate.bounds = Bounds::new(Replicas::ZERO, max).unwrap();
        }
        candidates.rotate_left(turn % self.rows.len());

        let by = rank::Policy {
            weight: Fraction::new(self.weight).unwrap(),
            preference: Preference::default(),
            ..rank::Policy::default()
        };
        super::super::plan(&model(candidates, &report), None, &by_rank(by), &consent)
    }
}

proptest! {
    #[test]
    fn ranking_carries_what_is_wanted_inside_its_bounds_whatever_the_order_and_the_currency(
        rows in proptest::collection::vec((1_u32..40, 1_u32..30, 0_u32..4, 1_u32..5), 1..5),
        required in 1_u32..100,
        weight in 0.0_f64..1.0,
        turn in 0_usize..4,
        factor in prop_oneof![Just(0.01), Just(7.3)],
    ) {
        let question = Question { rows: &rows, required: f64::from(required), weight };
        let plan = question.solve(1.0, 0);
        let rooms: u32 = rows.iter().map(|row| row.1 * row.3).sum();
        for (row, placement) in rows.iter().zip(&plan.placements) {
            prop_assert!(placement.after >= replicas(row.2));
            prop_assert!(placement.after <= replicas(row.2 + row.3));
        }

        prop_assert_eq!(plan.shortfall().is_none(), rooms >= required, "{}", plan);
        prop_assert_eq!(targets(&question.solve(1.0, turn)), targets(&plan));
        prop_assert_eq!(targets(&question.solve(factor, 0)), targets(&plan));
    }

    #[test]
    fn without_weight_and_cold_starts_the_cheapest_of_equal_options_is_taken(
        costs in proptest::collection::vec(1_u32..40, 2..5),
    ) {
        let names = ["a", "b", "c", "d"];
        let offers: Vec<Offer<'_>> =
            costs.iter().zip(names).map(|(cost, name)| (name, f64::from(*cost), 10.0, 0)).collect();
        let plan = ranked_plan(&offers, 25.0, 0.0);
        let least = costs.iter().min().unwrap();
        prop_assert_eq!(plan.cost_after, CostPerHour::new(f64::from(least * 3)).unwrap());
    }
}
