//! Variants of a model by price: the best option is taken, and the rest is ranked again.
//!
//! # Model
//!
//! A variant's option is the number of replicas that serve the remaining demand, inside its maximum
//! and the free room. Its theoretical cost is the cost of the demand that it serves, on the variant
//! with the lowest price per capacity. That cost uses fractions of replicas and the list price, so
//! a discount shows as a ratio below 1.
//!
//! Each variant is assumed to be able to serve any demand. No observed metric splits the demand by
//! the variants that can serve it; `docs/decisions.md` lists the metrics that were considered.
//!
//! A score does not reward an option that covers more. So the best option is taken, the demand that
//! it serves is subtracted, and the rest is ranked again. This ends when nothing is left or no
//! variant can serve the rest.
//!
//! A size is the capacity of one replica, and the preferred size follows from the whole demand.
//! Equal scores are decided by lower cost, then fewer replicas, then running variants, then name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Unit;
use crate::decide::optimize::model::Candidate;
use crate::decide::optimize::room::SupplyHeadroom;
use crate::decide::rank::preferred::Preference;
use crate::decide::rank::score::{Formula, NoScore, Offer, RankRecord, RankStart};
use crate::fleet::{Role, VariantKey};
use crate::settings;
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// A share of the demand that is too small to be worth a replica, because it comes from rounding.
const REST: f64 = 1e-9;

/// Scores that differ by less than this share are equal, because prices are not known more
/// precisely.
const TIE: f64 = 1e-9;

/// The demand to be served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidualDemand {
    /// Demand that is not served.
    pub missing: Amount,
    /// The whole demand on the model, served or not; the preferred size follows from it.
    pub total: Amount,
}

/// A variant that replicas may be added to.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedVariant<'a> {
    /// The variant; `cost` is the price that is paid per replica, with any discount.
    pub candidate: &'a Candidate,
    /// Capacity per replica inside its SLO.
    pub size: Amount,
    /// Cost per replica without a discount.
    pub list_price: CostPerHour,
    /// The time that it takes to start.
    pub warmth: Warmth,
}

/// The time that a variant takes to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Short: the variant runs, or its weights are where it would run.
    Warm,
    /// Long: the variant must load everything for the first time, or needs a new node.
    Cold,
}

settings! {
    /// Ranking of variants by their price.
    #[derive(Copy)]
    pub struct Policy {
        /// Number of replicas that a model should have; each then has the preferred size.
        // The loss of one replica of a hundred is negligible.
        preference as "preferred_replicas": Preference = 5, in 1..=100;

        /// Weight of a replica's distance from the preferred size: 1 as in the Cluster Autoscaler,
        /// 0 not at all.
        // A weight of 1, as for nodes, would buy 50% more expensive replicas to have the preferred
        // size. At 1/4, the size decides between prices that are close. At 2, the size counts with
        // its square, which no price makes up for.
        weight: Fraction = 0.25, in 0.0..=2.0;

        /// Largest weight of a size, as a factor on the score.
        unfitness_max: Fraction = 8.0, in 1.0..=1000.0;

        /// Damper of the score for little demand, in replicas of the smallest size at the lowest
        /// list price of capacity.
        // Without a damper, the cost of a tiny demand has nothing to be compared with.
        damper: Fraction = 0.5, in 0.01..=100.0;

        /// Factor on the score of a variant that has no replicas yet.
        cold: Fraction = 2.0, in 1.0..=100.0;
    }
}

settings! { value:
    Preference: u32 as u32, |it| Some(Self::Spread(Replicas::saturating(it))), |Self::Spread(it)| it.count();
}

/// One variant's option in a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankOption {
    /// The variant.
    pub key: VariantKey,
    /// The part of the remaining demand that its replicas would serve.
    pub served: Amount,
    /// Its values, or the reason why it has no score.
    pub scored: Result<RankRecord, NoScore>,
}

/// One round: every option with its values, and the option that was taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRound {
    /// Each variant's option, in the order of their keys.
    pub options: Vec<RankOption>,
    /// The variant that was taken, with its replicas.
    pub taken: (VariantKey, Replicas),
    /// The demand that they serve.
    pub served: Amount,
}

/// The variants of a model, ranked for the shortfall of one analyzer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// The unit of all amounts.
    pub unit: Unit,
    /// The role; `None` if all variants serve whole requests.
    pub role: Option<Role>,
    /// The options that were taken, round by round.
    pub residual: Residual,
}

/// The result of one variant when the variants of its model were ranked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// The variant.
    pub variant: VariantKey,
    /// All rankings of its model.
    pub rankings: Arc<[Ranking]>,
}

/// All options that were taken.
#[must_use]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// The rounds, in order.
    pub rounds: Vec<RankRound>,
    /// Demand that no variant can serve.
    pub unserved: Amount,
    /// The preferred size; `None` if nothing was ranked.
    pub preferred: Option<Amount>,
}

impl Residual {
    /// Returns the replicas of a variant that were taken.
    #[must_use]
    pub fn added(&self, key: &VariantKey) -> Replicas {
        let of_variant = self.rounds.iter().filter(|round| round.taken.0 == *key);
        of_variant.map(|round| round.taken.1).sum()
    }
}

/// Adds replicas by price until the demand is served or no variant can serve the rest.
pub fn rank_variants(
    variants: &[RankedVariant<'_>],
    demand: &ResidualDemand,
    room: Option<&SupplyHeadroom>,
    policy: &Policy,
) -> Residual {
    let mut order: Vec<&RankedVariant<'_>> =
        variants.iter().filter(|it| it.size > Amount::ZERO).collect();
    order.sort_by(|a, b| a.candidate.key.cmp(&b.candidate.key));

    let sizes: Vec<Amount> = order.iter().map(|variant| variant.size).collect();
    let mut left = RemainingDemand {
        missing: demand.missing,
        whole: demand.total,
        room: room.cloned(),
        added: vec![Replicas::ZERO; order.len()],
    };

    let preferred = policy.preference.size(demand.total, &sizes);
    let mut rounds = Vec::new();
    let Some(formula) = preferred.and_then(|size| policy.formula(size, &order)) else {
        return Residual { rounds, unserved: left.missing, preferred };
    };
    let price = lowest_price(&order);
    while let Some(round) = left.round(&order, price, &formula) {
        rounds.push(round);
    }

    Residual { rounds, unserved: left.missing, preferred }
}

/// The lowest list price of one unit of demand that is not free. Ratios to a price of zero would say
/// nothing, so if all variants are free, the price is 1.
fn lowest_price(variants: &[&RankedVariant<'_>]) -> f64 {
    let prices = variants.iter().map(|variant| variant.price());
    prices.filter(|price| *price > 0.0).reduce(f64::min).unwrap_or(1.0)
}

impl Policy {
    /// Returns the formula; `None` without variants.
    fn formula(&self, preferred: Amount, variants: &[&RankedVariant<'_>]) -> Option<Formula> {
        let smallest = variants.iter().map(|variant| variant.size).reduce(Amount::min)?;
        let price = lowest_price(variants);
        let damper = CostPerHour::new(self.damper.fraction() * smallest.amount() * price)?;

        Some(Formula {
            preferred,
            damper,
            weight: self.weight,
            unfitness_max: self.unfitness_max,
            cold: self.cold,
        })
    }
}

impl RankedVariant<'_> {
    /// Returns the list price of one unit of demand.
    fn price(&self) -> f64 {
        self.list_price.per_hour() / self.size.amount()
    }
}

/// The state between rounds.
struct RemainingDemand {
    missing: Amount,
    whole: Amount,
    room: Option<SupplyHeadroom>,
    added: Vec<Replicas>,
}

impl RemainingDemand {
    /// Ranks all options and takes the best; `None` if there is none.
    fn round(
        &mut self,
        variants: &[&RankedVariant<'_>],
        price: f64,
        formula: &Formula,
    ) -> Option<RankRound> {
        let options: Vec<RankOption> = variants
            .iter()
            .zip(&self.added)
            .map(|(variant, added)| {
                let (offer, served) = self.offer(variant, *added, price);
                let key = variant.candidate.key.clone();
                RankOption { key, served, scored: formula.score(&offer) }
            })
            .collect();

        let numbered = options.iter().enumerate();
        let scored = numbered.filter_map(|(at, option)| Some((at, option.scored.ok()?)));
        let (best, record) = scored.reduce(|best, next| {
            let best_is_cold = variants[best.0].candidate.current == Replicas::ZERO;
            let next_is_cold = variants[next.0].candidate.current == Replicas::ZERO;
            let by_score = (best.1.score * (1.0 - TIE)).total_cmp(&next.1.score);
            let is_tie = (best.1.score - next.1.score).abs() <= TIE * best.1.score.abs();
            let order = if is_tie { std::cmp::Ordering::Equal } else { by_score }
                .then(best.1.real.compare(next.1.real))
                .then(best.1.count.cmp(&next.1.count))
                .then(best_is_cold.cmp(&next_is_cold));
            if order.is_gt() { next } else { best }
        })?;

        let served = self.take(variants[best], record.count);
        self.added[best] += record.count;
        let taken = (variants[best].candidate.key.clone(), record.count);
        Some(RankRound { options, taken, served })
    }

    /// Returns the option of a variant, and the demand that it serves. The option has the replicas
    /// that serve the remaining demand. A unit of demand costs `price` on a perfect fit.
    fn offer(&self, variant: &RankedVariant<'_>, added: Replicas, price: f64) -> (Offer, Amount) {
        let candidate = variant.candidate;
        let is_rest = self.missing.amount() <= REST * self.whole.amount();
        let wanted = if is_rest { 0.0 } else { self.missing.amount() };
        let whole = (wanted / variant.size.amount() * (1.0 - REST)).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let needed = whole.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32;

        let there = candidate.current + added;
        let below_max = candidate.bounds.max().map_or(Replicas::LIMIT, |max| max.beyond(there));
        let fit = self.room.as_ref().and_then(|room| room.fit(candidate));
        let count = Replicas::saturating(needed).min(below_max).min(fit.unwrap_or(Replicas::LIMIT));

        let served = self.missing.min(variant.size.times(count));
        let offer = Offer {
            count,
            real: candidate.cost.times(count),
            theoretical: CostPerHour::new(served.amount() * price).unwrap_or_default(),
            size: variant.size,
            start: match variant.warmth {
                Warmth::Warm => RankStart::Warm,
                Warmth::Cold => RankStart::Cold,
            },
            mismatch: candidate.mismatch,
        };

        (offer, served)
    }

    /// Takes the demand that these replicas of a variant serve, and their room.
    fn take(&mut self, variant: &RankedVariant<'_>, count: Replicas) -> Amount {
        let served = self.missing.min(variant.size.times(count));
        self.missing = self.missing.beyond(served);
        if let Some(room) = &mut self.room {
            room.start(variant.candidate, count);
        }
        served
    }
}
