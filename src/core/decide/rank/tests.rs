//! The values of the proposal, and the worked examples for variants.

use proptest::prelude::*;

use super::*;
use crate::decide::optimize::{Candidate, Headroom, SupplyHeadroom};
use crate::fleet::{Accelerator, Bounds, Role, VariantKey, VariantSpec};
use crate::units::{Amount, CostPerHour, Fraction, Gpus, Replicas};

fn cost(cost: f64) -> CostPerHour {
    CostPerHour::new(cost).unwrap()
}

fn amount(amount: f64) -> Amount {
    Amount::new(amount).unwrap()
}

/// The formula of the proposal.
fn formula() -> Formula {
    Formula {
        preferred: amount(8.0),
        damper: cost(0.016),
        weight: Fraction::ONE,
        unfitness_max: Fraction::new(1e6).unwrap(),
        cold: Fraction::ONE,
    }
}

#[test]
fn the_suppression_has_the_numbers_of_the_proposal() {
    let numbers = [
        (1.0, 4.0),
        (2.0, 3.800_296),
        (3.0, 3.602_354),
        (4.0, 3.407_874),
        (5.0, 3.218_439),
        (10.0, 2.388_851),
        (20.0, 1.441_325),
        (50.0, 1.008_712),
    ];

    for (count, expected) in numbers {
        assert!((suppress(4.0, count) - expected).abs() < 5e-7, "{count}");
    }
}

#[test]
fn the_rank_tables_of_the_proposal_follow_where_they_are_not_truncated() {
    // Theoretical cost, size, real cost, and the rank that follows from the inputs in the proposal.
    let rows = [
        (0.003, 2.0, 0.095, 23.3684),
        (0.003, 8.0, 0.380, 20.8421),
        (0.003, 2.0, 0.795, 170.7368),
        (0.045, 2.0, 0.095, 7.2787),
        (0.045, 8.0, 0.380, 6.4918),
        (0.045, 2.0, 0.795, 53.1803),
    ];
    let formula = formula();
    for (theoretical, size, real, expected) in rows {
        let offer = Offer {
            count: Replicas::ONE,
            real: cost(real),
            theoretical: cost(theoretical),
            size: amount(size),
            start: RankStart::Warm,
            mismatch: Fraction::ONE,
        };

        let record = formula.score(&offer).unwrap();
        assert!((record.score - expected).abs() < 5e-5, "{record}");
    }
}

/// Four variants with illustrative prices; sizes in requests/s.
fn variants() -> Vec<(Candidate, Amount)> {
    let rows =
        [("l4", 0.8, 4.0), ("a100", 4.0, 24.0), ("h100", 8.0, 60.0), ("h100x2", 16.0, 130.0)];
    rows.into_iter()
        .map(|(name, price, size)| {
            let candidate = Candidate {
                key: key(name),
                role: Role::Both,
                accelerator: Accelerator::new(name),
                gpus: Gpus::ONE,
                cost: cost(price),
                leaving: Replicas::ZERO,
                untried: false,
                list_price: cost(price),
                mismatch: Fraction::ONE,
                bounds: Bounds::new(Replicas::ZERO, None).unwrap(),
                current: Replicas::ZERO,
                pending: Replicas::ZERO,
            };

            (candidate, amount(size))
        })
        .collect()
}

fn key(name: &str) -> VariantKey {
    VariantSpec::example(name).key
}

/// The rounds for this demand, with this preferred size and weight.
fn ranked(demand: f64, preferred: f64, weight: f64, room: Option<&SupplyHeadroom>) -> Residual {
    let question = Question { demand, preferred, weight };
    ranked_of(&variants(), Warmth::Warm, question, room)
}

/// A demand, the preferred size for it, and the weight of a size.
#[derive(Clone, Copy)]
struct Question {
    demand: f64,
    preferred: f64,
    weight: f64,
}

fn ranked_of(
    variants: &[(Candidate, Amount)],
    warmth: Warmth,
    Question { demand, preferred, weight }: Question,
    room: Option<&SupplyHeadroom>,
) -> Residual {
    let options: Vec<RankedVariant<'_>> = variants
        .iter()
        .map(|(candidate, size)| RankedVariant {
            candidate,
            size: *size,
            list_price: candidate.list_price,
            warmth,
        })
        .collect();

    let replicas = (1..100).min_by_key(|count| {
        // The replica count at which the preferred size is ideal.
        ordered((demand / f64::from(*count) / preferred).ln().abs())
    });
    let policy = Policy {
        preference: Preference::Spread(Replicas::saturating(replicas.unwrap())),
        weight: Fraction::new(weight).unwrap(),
        damper: Fraction::new(1.25).unwrap(),
        unfitness_max: Fraction::new(100.0).unwrap(),
        ..Policy::default()
    };

    let missing = ResidualDemand { missing: amount(demand), total: amount(demand) };
    rank_variants(&options, &missing, room, &policy)
}

/// Converts a number that is not negative to an integer of the same order.
fn ordered(number: f64) -> u64 {
    number.to_bits()
}

/// The same variants, but `h100` and `h100x2` have scarce hardware that the model does not need.
fn mismatched(factor: f64) -> Vec<(Candidate, Amount)> {
    let mut variants = variants();
    for (candidate, _) in &mut variants[2..] {
        candidate.mismatch = Fraction::new(factor).unwrap();
    }
    variants
}

fn score(residual: &Residual, name: &str) -> f64 {
    let found = residual.rounds[0].options.iter().find(|option| option.key == key(name));
    found.unwrap().scored.unwrap().score
}

#[test]
fn the_worked_examples_for_variants_come_out() {
    // 50 requests/s, with a preferred size of 24. The damper of the examples is 5 requests/s, 1.25
    // times the smallest replica.
    let half = ranked(50.0, 24.0, 0.25, None);
    for (name, expected) in [("l4", 2.475), ("a100", 1.864), ("h100", 1.568), ("h100x2", 3.375)] {
        assert!((score(&half, name) - expected).abs() < 5e-4, "{name}: {}", score(&half, name));
    }

    assert_eq!(half.rounds[0].taken, (key("h100"), Replicas::ONE));
    let large = ranked(300.0, 60.0, 1.0, None);
    for (name, expected) in [("l4", 18.33), ("a100", 2.930), ("h100", 1.082), ("h100x2", 2.276)] {
        assert!((score(&large, name) - expected).abs() < 5e-3, "{name}: {}", score(&large, name));
    }
}

#[test]
fn what_one_option_leaves_is_ranked_again_until_everything_is_served() {
    let mut room = SupplyHeadroom::default();
    for (name, free) in [("l4", 20), ("a100", 2), ("h100", 1), ("h100x2", 1)] {
        let kind = Accelerator::new(name).unwrap();
        room.cluster.insert(kind, Headroom::Limited(Gpus::new(free)));
    }

    let residual = ranked(300.0, 60.0, 1.0, Some(&room));
    let taken: Vec<_> = residual
        .rounds
        .iter()
        .map(|round| (round.taken.0.variant.as_str(), round.taken.1.count()))
        .collect();
    assert_eq!(taken, [("h100", 1), ("h100x2", 1), ("a100", 2), ("l4", 16)]);
    assert_eq!(residual.unserved, Amount::ZERO);
    assert_eq!(residual.added(&key("l4")).count(), 16);
    assert!(
        residual.to_string().starts_with(
            "1 x shop/h100 serve 60.0: 1 replica for 8.00 per hour serves load worth 7.38: ratio"
        ),
        "{residual}"
    );
}

/// 50 requests/s, with a preferred size of 60: three A100s are 1.2 replicas of the preferred size,
/// which makes 4.622.
#[test]
fn what_is_scarce_and_not_needed_is_taken_up_to_its_factor() {
    let question = Question { demand: 50.0, preferred: 60.0, weight: 1.0 };

    for (factor, expected, taken) in [
        (1.0, 1.273, "h100"),
        (2.0, 2.546, "h100"),
        (3.63, 4.620, "h100"),
        (3.64, 4.633, "a100"),
        (1000.0, 1272.7, "a100"),
    ] {
        let residual = ranked_of(&mismatched(factor), Warmth::Warm, question, None);
        let score = score(&residual, "h100");
        assert!((score - expected).abs() < 1e-3 * expected, "{factor}: {score}");
        assert_eq!(residual.rounds[0].taken.0.variant.as_str(), taken, "{factor}");
    }
}

#[test]
fn what_is_scarce_is_the_last_choice_and_still_a_choice() {
    let mut variants = mismatched(1000.0);
    for ((candidate, _), most) in variants.iter_mut().zip([20, 2, 9, 9]) {
        candidate.bounds = Bounds::new(Replicas::ZERO, Replicas::new(most)).unwrap();
    }

    let question = Question { demand: 300.0, preferred: 60.0, weight: 1.0 };
    let residual = ranked_of(&variants, Warmth::Warm, question, None);
    let taken: Vec<_> = residual
        .rounds
        .iter()
        .map(|round| (round.taken.0.variant.as_str(), round.taken.1.count()))
        .collect();
    // A100s and L4s handle only 48 and 80; without the factor, five H100s would be enough.
    assert_eq!(taken, [("a100", 2), ("l4", 20), ("h100", 3)]);
    assert_eq!(residual.unserved, Amount::ZERO);
    let said = residual.rounds[2].to_string();
    assert!(
        said.contains(" x 1000.0 for a scarce accelerator that the model does not need, score "),
        "{said}"
    );
}

#[test]
fn demand_beyond_all_capacity_is_reported() {
    let mut variants = variants();
    for (candidate, _) in &mut variants {
        candidate.bounds = Bounds::new(Replicas::ZERO, Replicas::new(1)).unwrap();
    }

    let question = Question { demand: 223.0, preferred: 60.0, weight: 0.25 };
    let residual = ranked_of(&variants, Warmth::Cold, question, None);
    assert_eq!(residual.rounds.len(), 4);
    assert_eq!(residual.unserved, amount(5.0));
    assert!(
        residual.to_string().ends_with("; 5.0 exceeds the capacity of all variants"),
        "{residual}"
    );
    assert_eq!(residual.rounds[3].options.iter().filter(|it| it.scored.is_ok()).count(), 1);
}

proptest! {
    #[test]
    fn everything_is_served_and_the_currency_changes_nothing(
        demand in 1.0_f64..2000.0,
        preferred in 1.0_f64..200.0,
    ) {
        let residual = ranked(demand, preferred, 0.25, None);
        prop_assert_eq!(residual.unserved, Amount::ZERO);
        let carried: f64 = variants()
            .iter()
            .map(|(variant, size)| size.times(residual.added(&variant.key)).amount())
            .sum();
        prop_assert!(carried >= demand * (1.0 - 1e-6));
    }

    #[test]
    fn a_dearer_option_never_scores_better(
        real in 0.0_f64..100.0,
        more in 0.0_f64..100.0,
        count in 1_u32..100,
    ) {
        let formula = formula();
        let [less, more] = [real, real + more].map(|real| {
            let offer = Offer {
                count: Replicas::saturating(count),
                real: cost(real),
                theoretical: cost(0.5),
                size: amount(2.0),
                start: RankStart::Warm,
                mismatch: Fraction::ONE,
            };
            formula.score(&offer).unwrap().score
        });

        prop_assert!(less <= more);
    }
}

#[test]
fn variants_that_cost_nothing_are_ranked_too() {
    let question = Question { demand: 100.0, preferred: 24.0, weight: 0.25 };
    let mut variants = variants();
    variants[1].0.cost = CostPerHour::ZERO;
    variants[1].0.list_price = CostPerHour::ZERO;
    let one = ranked_of(&variants, Warmth::Warm, question, None);
    assert_eq!(one.unserved, Amount::ZERO);
    assert_eq!(one.rounds[0].taken.0, key("a100"), "what is free comes first");

    for (candidate, _) in &mut variants {
        candidate.cost = CostPerHour::ZERO;
        candidate.list_price = CostPerHour::ZERO;
    }
    assert_eq!(ranked_of(&variants, Warmth::Warm, question, None).unserved, Amount::ZERO);
}
