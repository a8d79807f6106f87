//! Which variant next: a price that compares options which serve different demand.
//!
//! # Model
//!
//! An option adds `n` replicas (or nodes) and serves some demand with them. Of two options that
//! serve different demand neither is cheaper as such, so each one's real cost is held against what
//! its demand would cost on replicas that fit it perfectly:
//!
//! ```text
//! score    = suppressed * (C + X) / (T + X) * cold * mismatch
//! u        = max(preferred / size, size / preferred) ^ weight, at most cap
//! suppressed = 1 + (u - 1) * (1 - tanh((n - 1) / 15))
//! ```
//!
//! | symbol | meaning | unit |
//! |---|---|---|
//! | `C` | what the option costs | currency an hour |
//! | `T` | what its demand would cost on a perfect fit | currency an hour |
//! | `X` | damper: keeps the ratio from exploding for very small demand | currency an hour |
//! | `u` | unfitness: how far the size is from the preferred one, at least 1 | none |
//! | `n` | replicas that are added; of many at once, the price decides and not the size | replicas |
//! | `cold` | factor for what must be started from nothing | none |
//! | `mismatch` | factor for something scarce that is offered and not needed | none |
//!
//! The lowest score wins. Multiplying all costs by one factor changes no score.
//!
//! # Source
//!
//! The proposal "Cost-based node group ranking function for Cluster Autoscaler", and the price
//! expander of the Cluster Autoscaler 1.37. `docs/decisions.md` has the differences for variants.
//!
//! # Domain
//!
//! Sizes above zero, at least one replica, and `T + X` above zero; other options are dropped, and
//! the record says why.

mod explain;
mod preferred;
mod residual;

#[cfg(test)]
mod tests;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::{Amount, CostPerHour, Fraction, Replicas};

pub use crate::decide::rank::preferred::Preference;
pub use crate::decide::rank::residual::{
    Choice, Demand, Policy, Rank, Ranked, Ranking, Residual, Round, Warmth, rank_variants,
};

/// How many replicas it takes until their number matters more than their size: at this many above
/// one, three quarters of the unfitness are gone.
pub const SUPPRESSION: f64 = 15.0;

/// One way to add capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Replicas that it adds.
    pub count: Replicas,
    /// What all of them cost.
    pub real: CostPerHour,
    /// What the demand that they serve would cost on replicas that fit it perfectly.
    pub theoretical: CostPerHour,
    /// What one replica carries.
    pub size: Amount,
    /// Whether there is something to start from.
    pub start: Start,
    /// Factor for something scarce that it has and the demand does not need; 1 for nothing.
    pub mismatch: Fraction,
}

/// Whether there is something to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// There is.
    Warm,
    /// There is not: it must be created, or its weights loaded for the first time.
    Cold,
}

/// The numbers of the formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The preferred size, in the unit of [`Offer::size`].
    pub preferred: Amount,
    /// The damper.
    pub damper: CostPerHour,
    /// The exponent of the unfitness: 1 takes it as it is, 0 looks at the price alone.
    pub weight: Fraction,
    /// The largest unfitness.
    pub unfitness_max: Fraction,
    /// Factor on the score of a cold start.
    pub cold: Fraction,
}

/// The numbers behind one option's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Replicas that it adds.
    pub count: Replicas,
    /// Replicas as the suppression counts them: each amount of the preferred size, and one at least,
    /// so that many small replicas are no reason to like small ones.
    pub counted: f64,
    /// What they cost.
    pub real: CostPerHour,
    /// What their demand would cost on a perfect fit.
    pub theoretical: CostPerHour,
    /// `(C + X) / (T + X)`.
    pub ratio: f64,
    /// The unfitness.
    pub unfitness: f64,
    /// The unfitness after suppression.
    pub suppressed: f64,
    /// The factor of a cold start; 1 for a warm one.
    pub cold: f64,
    /// The factor of something scarce that is not needed; 1 for nothing.
    pub mismatch: f64,
    /// The score; the lowest wins.
    pub score: f64,
}

/// Why an option has no score.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// It adds nothing.
    #[display("no replica can be added, or none is needed")]
    NoReplicas,
    /// Its size or the preferred one is zero.
    #[display("its capacity or the preferred one is unknown")]
    NoSize,
    /// There is neither a theoretical cost nor a damper to hold its cost against.
    #[display("there is no cost to hold its cost against")]
    NoMeasure,
    /// Its numbers are too large for a score.
    #[display("its numbers are too large for a score")]
    NotFinite,
}

impl Formula {
    /// The score of an option, with all numbers behind it.
    ///
    /// # Errors
    ///
    /// When it is outside the domain of the formula.
    pub fn score(&self, offer: &Offer) -> Result<Record, Dropped> {
        let Offer { count, real, theoretical, size, start, mismatch } = offer;
        if *count == Replicas::ZERO {
            return Err(Dropped::NoReplicas);
        }
        let unfitness = self.unfitness(*size).ok_or(Dropped::NoSize)?;
        let counted = self.counted(*count, *size);
        let suppressed = suppress(unfitness, counted);

        let ratio = self.ratio(*real, *theoretical)?;
        let cold = match start {
            Start::Warm => 1.0,
            Start::Cold => self.cold.fraction(),
        };
        let mismatch = mismatch.fraction();
        let score = suppressed * ratio * cold * mismatch;
        if !score.is_finite() {
            return Err(Dropped::NotFinite);
        }
        let (count, real, theoretical) = (*count, *real, *theoretical);
        Ok(Record {
            count,
            counted,
            real,
            theoretical,
            ratio,
            unfitness,
            suppressed,
            cold,
            mismatch,
            score,
        })
    }

    /// `(C + X) / (T + X)`.
    fn ratio(&self, real: CostPerHour, theoretical: CostPerHour) -> Result<f64, Dropped> {
        let damper = self.damper.per_hour();
        let measure = theoretical.per_hour() + damper;
        if measure <= 0.0 {
            return Err(Dropped::NoMeasure);
        }
        let ratio = (real.per_hour() + damper) / measure;
        if ratio.is_finite() { Ok(ratio) } else { Err(Dropped::NotFinite) }
    }

    /// How far a size is from the preferred one; `None` when one of them is zero.
    fn unfitness(&self, size: Amount) -> Option<f64> {
        let (preferred, size) = (self.preferred.amount(), size.amount());
        if preferred <= 0.0 || size <= 0.0 {
            return None;
        }
        let far = (preferred / size).max(size / preferred);
        let weighted = far.powf(self.weight.fraction());
        Some(weighted.min(self.unfitness_max.fraction().max(1.0)))
    }

    fn counted(&self, count: Replicas, size: Amount) -> f64 {
        (f64::from(count.count()) * size.amount() / self.preferred.amount()).max(1.0)
    }
}

/// The unfitness that is left when so many replicas are added at once.
///
/// `1 + (u - 1) * (1 - tanh((n - 1) / 15))`: all of it for one replica, none from about 50 on.
#[must_use]
pub fn suppress(unfitness: f64, count: f64) -> f64 {
    (unfitness - 1.0) * (1.0 - ((count - 1.0) / SUPPRESSION).tanh()) + 1.0
}
