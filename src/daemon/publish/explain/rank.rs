//! The ranking of variants by price, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use plimsoll_core::decide::rank::{Rank, RankOption, RankRound, Ranking};
use plimsoll_core::fleet::Role;
use plimsoll_core::units::{Amount, Replicas};

/// One variant's option in one round of a ranking.
#[derive(Serialize, JsonSchema)]
pub(super) struct RankedOption {
    /// In which unit the demand is counted, as the analyzer that finds something missing counts it.
    unit: &'static str,
    /// The role that was ranked; null where all variants serve whole requests.
    role: Option<&'static str>,
    /// The round, from 1: the best option is taken, and the rest is ranked again.
    round: usize,
    /// The variant, as `NAMESPACE/NAME`.
    variant: String,
    /// Whether it was taken in this round.
    taken: bool,
    /// The part of the remaining demand that its replicas would serve, in the unit.
    served: f64,
    /// Replicas that it adds; null when it has no score.
    replicas: Option<u32>,
    /// Their cost per hour; null if it has no score.
    cost_per_hour: Option<f64>,
    /// Cost of their demand per hour on perfectly sized replicas, at list price; null if it has no
    /// score.
    theoretical_cost_per_hour: Option<f64>,
    /// The one over the other, both with the damper; null when it has no score.
    ratio: Option<f64>,
    /// Weighted distance of its size from the preferred one, a factor of at least 1; null when it
    /// has no score.
    unfitness: Option<f64>,
    /// Replicas of the preferred size, as counted by the suppression; null if it has no score.
    counted: Option<f64>,
    /// The unfitness that is left for so many; null when it has no score.
    suppressed: Option<f64>,
    /// Factor for a start from nothing, 1 where something runs; null when it has no score.
    cold: Option<f64>,
    /// Factor for something scarce that the model does not need, 1 where there is nothing; null
    /// when it has no score.
    mismatch: Option<f64>,
    /// The score; the lowest is taken. Null when it has none.
    score: Option<f64>,
    /// Why it has no score, as a sentence; null when it has one.
    dropped: Option<String>,
}

/// Returns the options of a ranking, ordered by round and name.
pub(super) fn options(rank: Option<&Rank>) -> Vec<RankedOption> {
    rank.into_iter()
        .flat_map(|rank| rank.rankings.iter())
        .flat_map(|ranking| {
            let rounds = ranking.residual.rounds.iter().enumerate();
            rounds.flat_map(move |(at, round)| {
                round.options.iter().map(move |choice| option(ranking, at + 1, round, choice))
            })
        })
        .collect()
}

fn option(
    ranking: &Ranking,
    number: usize,
    round: &RankRound,
    choice: &RankOption,
) -> RankedOption {
    let RankOption { key, served, scored } = choice;
    let record = scored.as_ref().ok();

    RankedOption {
        unit: ranking.unit.label(),
        role: ranking.role.map(Role::label),
        round: number,
        variant: key.to_string(),
        taken: round.taken.0 == *key,
        served: Amount::amount(*served),
        replicas: record.map(|it| Replicas::count(it.count)),
        cost_per_hour: record.map(|it| it.real.per_hour()),
        theoretical_cost_per_hour: record.map(|it| it.theoretical.per_hour()),
        ratio: record.map(|it| it.ratio),
        unfitness: record.map(|it| it.unfitness),
        counted: record.map(|it| it.counted),
        suppressed: record.map(|it| it.suppressed),
        cold: record.map(|it| it.cold),
        mismatch: record.map(|it| it.mismatch),
        score: record.map(|it| it.score),
        dropped: scored.as_ref().err().map(ToString::to_string),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures;
    use plimsoll_core::analyze::capacity::Unit;
    use plimsoll_core::decide::rank::{Formula, NoScore, Offer, RankStart, Residual};
    use plimsoll_core::units::{CostPerHour, Fraction};

    fn amount(of: f64) -> Amount {
        Amount::new(of).unwrap()
    }

    fn cost(per_hour: f64) -> CostPerHour {
        CostPerHour::new(per_hour).unwrap()
    }

    #[test]
    fn each_option_of_each_round_is_a_row_with_the_numbers_behind_its_score() {
        let formula = Formula {
            preferred: amount(8.0),
            damper: cost(0.016),
            weight: Fraction::ONE,
            unfitness_max: Fraction::new(100.0).unwrap(),
            cold: Fraction::ONE,
        };

        let record = formula.score(&Offer {
            count: Replicas::ONE,
            real: cost(0.095),
            theoretical: cost(0.003),
            size: amount(2.0),
            start: RankStart::Warm,
            mismatch: Fraction::new(2.0).unwrap(),
        });

        let [a, b] = ["a", "b"].map(|name| fixtures::variant(name).key);
        let served = amount(2.0);
        let round = RankRound {
            options: vec![
                RankOption { key: a.clone(), served, scored: record },
                RankOption { key: b.clone(), served, scored: Err(NoScore::NoReplicas) },
            ],
            taken: (a, Replicas::ONE),
            served,
        };
        let residual = Residual { rounds: vec![round], unserved: Amount::ZERO, preferred: None };
        let ranking = Ranking { unit: Unit::RequestsPerSecond, role: None, residual };
        let rank = Rank { variant: b, rankings: Arc::from([ranking]) };
        let shown = options(Some(&rank));

        let rows = serde_json::to_value(shown).unwrap();
        assert_eq!(rows[0]["variant"], "shop/a");
        assert_eq!((&rows[0]["taken"], &rows[1]["taken"]), (&true.into(), &false.into()));
        assert_eq!((&rows[0]["unfitness"], &rows[0]["replicas"]), (&4.0.into(), &1.into()));
        assert_eq!(rows[0]["mismatch"], 2.0);
        assert!((rows[0]["score"].as_f64().unwrap() - 2.0 * 23.3684).abs() < 1e-4);
        assert_eq!(rows[1]["score"], serde_json::Value::Null);
        assert_eq!(rows[1]["dropped"], "no replica can be added, or none is needed");
    }
}
