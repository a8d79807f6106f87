//! The least cost against adding by cost per capacity.

use std::collections::BTreeMap;

use plimsoll::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use plimsoll::decide::optimize::{
    self, Candidate, Consent, KeptMin, OptimizerPolicy, PlanReason, ReportFreshness, Switching,
    least_cost,
};
use plimsoll::fleet::{Accelerator, Bounds, ModelKey, ModelName, Namespace, Role};
use plimsoll::fleet::{VariantKey, VariantName};
use plimsoll::units::{Amount, CostPerHour, Fraction, Gpus, Replicas, Weight};
use proptest::prelude::*;

use super::{Defects, Model, Plan, Voice, cost_aware};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// One variant.
#[derive(Clone, Copy, Debug)]
struct Offer {
    cost: u32,
    size: u32,
    current: u32,
    min: u32,
    max: u32,
}

/// Variants with the report on them.
struct Fixture {
    candidates: Vec<Candidate>,
    report: CapacityReport,
}

fn amount(amount: u32) -> Amount {
    Amount::new(f64::from(amount)).unwrap()
}

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn namespace() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn model_key() -> ModelKey {
    ModelKey { namespace: namespace(), model: ModelName::new("m").unwrap() }
}

fn candidate(name: &str, offer: Offer) -> Candidate {
    let cost = CostPerHour::new(f64::from(offer.cost)).unwrap();
    Candidate {
        key: VariantKey { namespace: namespace(), variant: VariantName::new(name).unwrap() },
        role: Role::Both,
        accelerator: Accelerator::new("H100"),
        gpus: Gpus::ONE,
        cost,
        list_price: cost,
        mismatch: Fraction::ONE,
        bounds: Bounds::new(replicas(offer.min), Some(replicas(offer.max))).unwrap(),
        current: replicas(offer.current),
        pending: Replicas::ZERO,
        leaving: Replicas::ZERO,
        untried: false,
    }
}

fn row(candidate: &Candidate, offer: Offer) -> VariantCapacity {
    VariantCapacity {
        key: candidate.key.clone(),
        role: Role::Both,
        cost: candidate.cost,
        replicas: candidate.current,
        pending: Replicas::ZERO,
        per_replica: Some(amount(offer.size)),
        demand: Amount::ZERO,
        confidence: Confidence::Measured,
    }
}

impl Fixture {
    fn new(offers: &[Offer], required: u32) -> Self {
        let candidates: Vec<Candidate> =
            NAMES.iter().zip(offers).map(|(name, offer)| candidate(name, *offer)).collect();
        let supply = amount(offers.iter().map(|offer| offer.size * offer.current).sum());
        let total = Totals {
            supply,
            anticipated: supply,
            demand: Amount::ZERO,
            required: amount(required),
            spare: Amount::ZERO,
        };
        let rows = candidates.iter().zip(offers).map(|(candidate, offer)| row(candidate, *offer));
        let report = CapacityReport {
            unit: Unit::KvTokens,
            variants: rows.collect(),
            total,
            roles: BTreeMap::new(),
        };
        Self { candidates, report }
    }

    fn by_capacity(&self) -> Plan {
        let voice =
            Voice { report: &self.report, score: Weight::ONE, standing: ReportFreshness::Live };
        let model = Model {
            key: model_key(),
            priority: Weight::ONE,
            candidates: self.candidates.clone(),
            sizing: &self.report,
            voices: vec![voice],
        };
        cost_aware(&model, Defects::Mended)
    }

    /// The search alone: changes are free, and no replica is held back.
    fn exact(&self) -> optimize::ModelPlan {
        let voice =
            optimize::VotingReport { report: &self.report, standing: ReportFreshness::Live };
        let model = optimize::PlanModel {
            key: model_key(),
            candidates: self.candidates.clone(),
            sizing: &self.report,
            voices: vec![voice],
        };
        let policy = OptimizerPolicy {
            switching: Switching { start: Fraction::ZERO, drain: Fraction::ZERO },
            replicas_min: KeptMin(Replicas::ZERO),
            ..OptimizerPolicy::default()
        };
        least_cost(&model, None, &policy, &|_, _| Consent::Given)
    }
}

fn targets(plan: &Plan) -> Vec<u32> {
    plan.targets.iter().map(|(_, replicas)| replicas.count()).collect()
}

/// The numbers that the plan has in the end.
fn planned(plan: &optimize::ModelPlan) -> Vec<u32> {
    plan.placements
        .iter()
        .map(|placement| match placement.because {
            PlanReason::Serving { planned } | PlanReason::Refused { planned } => planned.count(),
            _ => placement.after.count(),
        })
        .collect()
}

/// Missing capacity, then cost: the smaller, the better.
fn worth(offers: &[Offer], counts: &[u32], wanted: f64) -> (f64, u32) {
    let capacity: u32 = offers.iter().zip(counts).map(|(offer, count)| offer.size * count).sum();
    let cost = offers.iter().zip(counts).map(|(offer, count)| offer.cost * count).sum();
    ((wanted - f64::from(capacity)).max(0.0), cost)
}

fn offers() -> impl Strategy<Value = Vec<Offer>> {
    let offer = (0_u32..40, 1_u32..30, 0_u32..4, 0_u32..2, 0_u32..5).prop_map(
        |(cost, size, current, min, more)| {
            let max = min + more;
            Offer { cost, size, current: current.min(max), min, max }
        },
    );
    proptest::collection::vec(offer, 1..5)
}

#[test]
fn the_cheapest_for_its_capacity_is_not_always_the_cheapest_for_the_need() {
    let large = Offer { cost: 10, size: 10_000, current: 0, min: 0, max: 9 };
    let small = Offer { cost: 6, size: 6_500, ..large };
    let fixture = Fixture::new(&[large, small], 20_000);
    assert_eq!(targets(&fixture.by_capacity()), [0, 4]);
    assert_eq!(planned(&fixture.exact()), [2, 0]);
}

proptest! {
    #[test]
    fn it_is_never_dearer_than_adding_by_cost_per_capacity(
        offers in offers(),
        required in 1_u32..100,
    ) {
        let fixture = Fixture::new(&offers, required);
        let exact = fixture.exact();
        let wanted = exact.covers[0].wanted.amount();

        let by_capacity: Vec<u32> = targets(&fixture.by_capacity())
            .into_iter()
            .zip(&offers)
            .map(|(count, offer)| count.max(offer.min))
            .collect();

        let least = worth(&offers, &planned(&exact), wanted);
        let other = worth(&offers, &by_capacity, wanted);
        prop_assert!(least <= other, "{least:?} > {other:?}");
    }

    #[test]
    fn the_order_of_the_variants_changes_nothing_by_cost_per_capacity(
        offers in offers(),
        required in 1_u32..100,
        turn in 0_usize..4,
    ) {
        let fixture = Fixture::new(&offers, required);
        let mut turned = Fixture::new(&offers, required);
        turned.candidates.rotate_left(turn % offers.len());
        turned.report.variants.reverse();
        prop_assert_eq!(fixture.by_capacity(), turned.by_capacity());
    }
}
