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
//! expander of the Cluster Autoscaler 1.37, whose scores [`Formula::cluster_autoscaler`]
//! reproduces. `docs/decisions.md` says what is otherwise for variants.
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

use serde::{Deserialize, Serialize};

use crate::units::{Amount, CostPerHour, Fraction, Replicas};

pub use crate::decide::rank::preferred::{PREFERRED, Preference, preferred_cpus};
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
    /// How well its kind fits.
    pub fit: Fit,
    /// Whether there is something to start from.
    pub start: Start,
    /// Factor for something scarce that it has and the demand does not need; 1 for nothing.
    pub mismatch: Fraction,
}

/// How well the kind of an option fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// By its size, against the preferred one.
    Size(Amount),
    /// It has something scarce that the demand does not need, and is to be the last choice.
    Scarce,
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
    /// The preferred size, in the unit of [`Fit::Size`].
    pub preferred: Amount,
    /// The damper.
    pub damper: CostPerHour,
    /// The exponent of the unfitness: 1 takes it as it is, 0 looks at the price alone.
    pub weight: Fraction,
    /// The largest unfitness; `None` without a limit.
    pub unfitness_max: Option<Fraction>,
    /// What is counted as replicas where the unfitness is suppressed.
    pub counting: Counting,
    /// Factor on the score of a cold start.
    pub cold: Fraction,
    /// In place of the suppressed unfitness of what is scarce.
    pub scarce: Fraction,
}

/// What counts as one replica where the unfitness is suppressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Each one.
    Each,
    /// Each amount of the preferred size; so many small replicas are no reason to like small ones.
    Preferred,
}

/// The numbers behind one option's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Replicas that it adds.
    pub count: Replicas,
    /// Replicas as the suppression counts them.
    pub counted: f64,
    /// What they cost.
    pub real: CostPerHour,
    /// What their demand would cost on a perfect fit.
    pub theoretical: CostPerHour,
    /// `(C + X) / (T + X)`.
    pub ratio: f64,
    /// The unfitness; `None` of what is scarce.
    pub unfitness: Option<f64>,
    /// The unfitness after suppression, or what stands in its place.
    pub suppressed: f64,
    /// The factor of a cold start; 1 for a warm one.
    pub cold: f64,
    /// The factor of something scarce that is not needed; 1 for nothing.
    pub mismatch: f64,
    /// The score; the lowest wins.
    pub score: f64,
}

/// Why an option has no score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// It adds nothing.
    NoReplicas,
    /// Its size or the preferred one is zero.
    NoSize,
    /// There is neither a theoretical cost nor a damper to hold its cost against.
    NoMeasure,
    /// Its numbers are too large for a score.
    NotFinite,
}

impl Formula {
    /// The formula with the numbers of the Cluster Autoscaler: the unfitness as it is, twice the
    /// score for a group that does not exist yet, and 1000 for nodes with GPUs.
    #[must_use]
    pub fn cluster_autoscaler(preferred: Amount, damper: CostPerHour) -> Self {
        let number = |number| Fraction::new(number).unwrap_or_default();
        Self {
            preferred,
            damper,
            weight: Fraction::ONE,
            unfitness_max: None,
            counting: Counting::Each,
            cold: number(2.0),
            scarce: number(1000.0),
        }
    }

    /// The score of an option, with all numbers behind it.
    ///
    /// # Errors
    ///
    /// When it is outside the domain of the formula.
    pub fn score(&self, offer: &Offer) -> Result<Record, Dropped> {
        let Offer { count, real, theoretical, fit, start, mismatch } = offer;
        if *count == Replicas::ZERO {
            return Err(Dropped::NoReplicas);
        }
        let (unfitness, counted, suppressed) = match fit {
            Fit::Scarce => (None, f64::from(count.count()), self.scarce.fraction()),
            Fit::Size(size) => {
                let unfitness = self.unfitness(*size).ok_or(Dropped::NoSize)?;
                let counted = self.counted(*count, *size);
                (Some(unfitness), counted, suppress(unfitness, counted))
            }
        };
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
    #[must_use]
    pub fn unfitness(&self, size: Amount) -> Option<f64> {
        let (preferred, size) = (self.preferred.amount(), size.amount());
        if preferred <= 0.0 || size <= 0.0 {
            return None;
        }
        let far = (preferred / size).max(size / preferred);
        let weighted =
            if self.weight == Fraction::ONE { far } else { far.powf(self.weight.fraction()) };
        Some(self.unfitness_max.map_or(weighted, |most| weighted.min(most.fraction().max(1.0))))
    }

    fn counted(&self, count: Replicas, size: Amount) -> f64 {
        let count = f64::from(count.count());
        match self.counting {
            Counting::Each => count,
            Counting::Preferred => (count * size.amount() / self.preferred.amount()).max(1.0),
        }
    }
}

/// The unfitness that is left when so many replicas are added at once.
///
/// `1 + (u - 1) * (1 - tanh((n - 1) / 15))`: all of it for one replica, none from about 50 on.
#[must_use]
pub fn suppress(unfitness: f64, count: f64) -> f64 {
    (unfitness - 1.0) * (1.0 - ((count - 1.0) / SUPPRESSION).tanh()) + 1.0
}
