//! Variants of a model by price: the best option is taken, and the rest ranked again.
//!
//! # Model
//!
//! A variant's option is as many replicas as serve what is left, inside its maximum and what is
//! free. Its theoretical cost is what its served demand costs on the variant that is cheapest for
//! what it carries, in fractions of replicas and at the list price, so a discount shows as a ratio
//! below 1.
//!
//! Each variant is taken to be able to serve any of the demand: nothing that is observed tells
//! demand apart by who can serve it. `docs/decisions.md` says what was looked for.
//!
//! A score does not reward covering more. So the best option is taken, what it serves subtracted,
//! and the rest ranked anew, until nothing is left or nobody can serve it.
//!
//! Sizes are amounts that one replica carries, the preferred size follows from the whole demand,
//! and equal scores are decided by the lower cost, fewer replicas, what runs already, and the name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Unit;
use crate::decide::optimize::{Candidate, Room};
use crate::decide::rank::{Dropped, Formula, Offer, Preference, Record, Start};
use crate::fleet::{Role, VariantKey};
use crate::settings;
use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// A share of the demand that is too small to be worth a replica: it comes from rounding.
const REST: f64 = 1e-9;

/// Two scores that are nearer than this share are equal: prices are not known better.
const TIE: f64 = 1e-9;

/// What is to be served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// What is not served.
    pub missing: Amount,
    /// Everything that is asked of the model, served or not; the preferred size follows from it.
    pub total: Amount,
}

/// One variant that may be added to.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked<'a> {
    /// The variant; `cost` is what is paid for a replica, with any discount.
    pub candidate: &'a Candidate,
    /// What one replica carries inside its SLO.
    pub size: Amount,
    /// What one replica costs without a discount.
    pub list_price: CostPerHour,
    /// Whether it can start quickly.
    pub warmth: Warmth,
}

/// Whether a variant can start quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// It runs, or its weights are where it would run.
    Warm,
    /// It must load everything for the first time, or needs a new node.
    Cold,
}

settings! {
    /// Ranking of variants by their price.
    #[derive(Copy)]
    pub struct Policy {
        /// Number of replicas that a model should have; each then has the preferred size.
        // The loss of one of a hundred is no loss.
        preference as "preferred_replicas": Preference = 5, in 1..=100;

        /// Weight of a replica's distance from the preferred size: 1 as in the Cluster Autoscaler, 0
        /// not at all.
        // 1, as for nodes, would buy 50 % dearer replicas to have the preferred size; at 1/4 size
        // decides between prices that are near. At two, size counts with its square, which no price
        // makes good.
        weight: Fraction = 0.25, in 0.0..=2.0;

        /// Largest weight of a size, as a factor on the score.
        unfitness_max: Fraction = 8.0, in 1.0..=1000.0;

        /// Damper of the score for little demand, in replicas of the smallest size at their list
        /// price.
        // Without any damper there is nothing to hold the cost of a tiny demand against.
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
pub struct Choice {
    /// The variant.
    pub key: VariantKey,
    /// What its replicas would serve of what is left.
    pub served: Amount,
    /// Its numbers, or why it has no score.
    pub scored: Result<Record, Dropped>,
}

/// One round: every option with its numbers, and the one that was taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Each variant's option, in the order of their keys.
    pub options: Vec<Choice>,
    /// The variant that was taken, with how many replicas.
    pub taken: (VariantKey, Replicas),
    /// What they serve.
    pub served: Amount,
}

/// The variants of a model, ranked for what one analyzer finds missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranking {
    /// The unit of all amounts.
    pub unit: Unit,
    /// The role; `None` where all variants serve whole requests.
    pub role: Option<Role>,
    /// What was taken, round by round.
    pub residual: Residual,
}

/// How one variant fared when the variants of its model were ranked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// The variant.
    pub variant: VariantKey,
    /// All rankings of its model.
    pub rankings: Arc<[Ranking]>,
}

/// Everything that was taken.
#[must_use]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// The rounds, in their order.
    pub rounds: Vec<Round>,
    /// What nobody can serve.
    pub unserved: Amount,
    /// The preferred size; `None` when nothing was ranked.
    pub preferred: Option<Amount>,
}

impl Residual {
    /// How many replicas of a variant were taken.
    #[must_use]
    pub fn added(&self, key: &VariantKey) -> Replicas {
        let of_variant = self.rounds.iter().filter(|round| round.taken.0 == *key);
        of_variant.map(|round| round.taken.1).sum()
    }
}

/// Adds variants by price until the demand is served or nobody can serve the rest.
pub fn rank_variants(
    variants: &[Ranked<'_>],
    demand: &Demand,
    room: Option<&Room>,
    policy: &Policy,
) -> Residual {
    let mut order: Vec<&Ranked<'_>> = variants.iter().filter(|it| it.size > Amount::ZERO).collect();
    order.sort_by(|a, b| a.candidate.key.cmp(&b.candidate.key));
    let sizes: Vec<Amount> = order.iter().map(|variant| variant.size).collect();
    let mut left = Left {
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
    let price = order.iter().map(|variant| variant.price()).fold(f64::INFINITY, f64::min);
    while let Some(round) = left.round(&order, (price, &formula)) {
        rounds.push(round);
    }
    Residual { rounds, unserved: left.missing, preferred }
}

impl Policy {
    /// `None` without variants.
    fn formula(&self, preferred: Amount, variants: &[&Ranked<'_>]) -> Option<Formula> {
        let smallest = variants.iter().map(|variant| variant.size).reduce(Amount::min)?;
        let price = variants.iter().map(|variant| variant.price()).reduce(f64::min)?;
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

impl Ranked<'_> {
    /// The list price of one unit of demand.
    fn price(&self) -> f64 {
        self.list_price.per_hour() / self.size.amount()
    }
}

/// What is left between rounds.
struct Left {
    missing: Amount,
    whole: Amount,
    room: Option<Room>,
    added: Vec<Replicas>,
}

impl Left {
    /// Ranks all options and takes the best; `None` when there is none.
    fn round(
        &mut self,
        variants: &[&Ranked<'_>],
        (price, formula): (f64, &Formula),
    ) -> Option<Round> {
        let options: Vec<Choice> = variants
            .iter()
            .zip(&self.added)
            .map(|(variant, added)| {
                let (offer, served) = self.offer(variant, *added, price);
                let key = variant.candidate.key.clone();
                Choice { key, served, scored: formula.score(&offer) }
            })
            .collect();
        let scored = options.iter().enumerate();
        let scored = scored.filter_map(|(at, option)| Some((at, option.scored.ok()?)));
        let (best, record) = scored.reduce(|best, next| {
            let runs = |at: usize| variants[at].candidate.current == Replicas::ZERO;
            let by_score = (best.1.score * (1.0 - TIE)).total_cmp(&next.1.score);
            let is_tie = (best.1.score - next.1.score).abs() <= TIE * best.1.score.abs();
            let order = if is_tie { std::cmp::Ordering::Equal } else { by_score }
                .then(best.1.real.compare(next.1.real))
                .then(best.1.count.cmp(&next.1.count))
                .then(runs(best.0).cmp(&runs(next.0)));
            if order.is_gt() { next } else { best }
        })?;
        let served = self.take(variants[best], record.count);
        self.added[best] += record.count;
        let taken = (variants[best].candidate.key.clone(), record.count);
        Some(Round { options, taken, served })
    }

    /// The option of a variant: as many replicas as serve what is left, and what they serve, where a
    /// unit of demand costs `price` on a perfect fit.
    fn offer(&self, variant: &Ranked<'_>, added: Replicas, price: f64) -> (Offer, Amount) {
        let candidate = variant.candidate;
        let is_rest = self.missing.amount() <= REST * self.whole.amount();
        let wanted = if is_rest { 0.0 } else { self.missing.amount() };
        let needed = (wanted / variant.size.amount() * (1.0 - REST)).ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let needed = needed.clamp(0.0, f64::from(Replicas::LIMIT.count())) as u32;
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
                Warmth::Warm => Start::Warm,
                Warmth::Cold => Start::Cold,
            },
            mismatch: candidate.mismatch,
        };
        (offer, served)
    }

    /// Takes what so many replicas of a variant serve, and what they run on.
    fn take(&mut self, variant: &Ranked<'_>, count: Replicas) -> Amount {
        let served = self.missing.min(variant.size.times(count));
        self.missing = self.missing.beyond(served);
        if let Some(room) = &mut self.room {
            room.start(variant.candidate, count);
        }
        served
    }
}
