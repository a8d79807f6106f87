//! Price scores for variants, which compare options that serve different demand.
//!
//! # Model
//!
//! An option adds `n` replicas (or nodes) and serves some demand with them. The costs of two
//! options that serve different demand cannot be compared directly. So the real cost of each is
//! divided by the cost of its demand on replicas that fit it perfectly:
//!
//! ```text
//! score    = suppressed * (C + X) / (T + X) * cold * mismatch
//! u        = max(preferred / size, size / preferred) ^ weight, at most cap
//! suppressed = 1 + (u - 1) * (1 - tanh((n - 1) / 15))
//! ```
//!
//! | symbol | meaning | unit |
//! |---|---|---|
//! | `C` | cost of the option | currency per hour |
//! | `T` | cost of its demand on a perfect fit | currency per hour |
//! | `X` | damper: limits the ratio for very small demand | currency per hour |
//! | `u` | unfitness: distance of the size from the preferred size, at least 1 | none |
//! | `n` | replicas that are added; the more, the less their size matters | replicas |
//! | `cold` | factor for a cold start | none |
//! | `mismatch` | factor for scarce hardware that is offered and not needed | none |
//!
//! The lowest score wins. Multiplying all costs by one factor changes no score.
//!
//! # Source
//!
//! The proposal "Cost-based node group ranking function for Cluster Autoscaler", and the price
//! expander of the Cluster Autoscaler 1.37. `docs/decisions.md` lists the differences for variants.
//!
//! # Domain
//!
//! Sizes above zero, at least one replica, and `T + X` above zero. Other options are dropped, and
//! the reason is recorded.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::{Amount, CostPerHour, Fraction, Replicas};

/// The number of replicas from which their count matters more than their size. With this many above
/// one, three quarters of the unfitness are gone.
pub const SUPPRESSION: f64 = 15.0;

/// One way to add capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Replicas that it adds.
    pub count: Replicas,
    /// Cost of all of them.
    pub real: CostPerHour,
    /// Cost of the demand that they serve, on replicas that fit it perfectly.
    pub theoretical: CostPerHour,
    /// Capacity per replica.
    pub size: Amount,
    /// The state that it starts from.
    pub start: RankStart,
    /// Factor for scarce hardware that it has and the demand does not need; 1 without.
    pub mismatch: Fraction,
}

/// The state that a replica starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankStart {
    /// There is something to start from.
    Warm,
    /// It must be created, or its weights must be loaded for the first time.
    Cold,
}

/// The parameters of the formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The preferred size, in the unit of [`Offer::size`].
    pub preferred: Amount,
    /// The damper.
    pub damper: CostPerHour,
    /// The exponent of the unfitness: 1 uses it unchanged, 0 uses the price alone.
    pub weight: Fraction,
    /// The largest unfitness.
    pub unfitness_max: Fraction,
    /// Factor on the score of a cold start.
    pub cold: Fraction,
}

/// The values behind one option's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Replicas that it adds.
    pub count: Replicas,
    /// Replicas as the suppression counts them: their capacity in units of the preferred size, at
    /// least one. A high count of small replicas therefore gives small sizes no advantage.
    pub counted: f64,
    /// Their cost.
    pub real: CostPerHour,
    /// Cost of their demand on a perfect fit.
    pub theoretical: CostPerHour,
    /// `(C + X) / (T + X)`.
    pub ratio: f64,
    /// The unfitness.
    pub unfitness: f64,
    /// The unfitness after suppression.
    pub suppressed: f64,
    /// The factor of a cold start; 1 for a warm one.
    pub cold: f64,
    /// The factor for scarce hardware that is not needed; 1 without.
    pub mismatch: f64,
    /// The score; the lowest wins.
    pub score: f64,
}

/// The reason why an option has no score.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoScore {
    /// It adds nothing.
    #[display("no replica can be added, or none is needed")]
    NoReplicas,
    /// Its size or the preferred size is zero.
    #[display("its capacity or the preferred one is unknown")]
    NoSize,
    /// There is neither a theoretical cost nor a damper to compare its cost with.
    #[display("there is no cost to compare it with")]
    NoMeasure,
    /// Its values are too large for a score.
    #[display("its values are too large for a score")]
    NotFinite,
}

impl Formula {
    /// Returns the score of an option, with all values behind it.
    ///
    /// # Errors
    ///
    /// Returns the reason if the option is outside the domain of the formula.
    pub fn score(&self, offer: &Offer) -> Result<RankRecord, NoScore> {
        let Offer { count, real, theoretical, size, start, mismatch } = *offer;
        if count == Replicas::ZERO {
            return Err(NoScore::NoReplicas);
        }

        let unfitness = self.unfitness(size).ok_or(NoScore::NoSize)?;
        let counted = self.counted(count, size);
        let suppressed = suppress(unfitness, counted);

        let ratio = self.ratio(real, theoretical)?;
        let cold = match start {
            RankStart::Warm => 1.0,
            RankStart::Cold => self.cold.fraction(),
        };
        let scarcity = mismatch.fraction();
        let score = suppressed * ratio * cold * scarcity;
        if !score.is_finite() {
            return Err(NoScore::NotFinite);
        }

        Ok(RankRecord {
            count,
            counted,
            real,
            theoretical,
            ratio,
            unfitness,
            suppressed,
            cold,
            mismatch: scarcity,
            score,
        })
    }

    /// `(C + X) / (T + X)`.
    fn ratio(&self, real: CostPerHour, theoretical: CostPerHour) -> Result<f64, NoScore> {
        let damper = self.damper.per_hour();
        let measure = theoretical.per_hour() + damper;
        if measure <= 0.0 {
            return Err(NoScore::NoMeasure);
        }

        let ratio = (real.per_hour() + damper) / measure;
        if ratio.is_finite() { Ok(ratio) } else { Err(NoScore::NotFinite) }
    }

    /// Returns the weighted distance of a size from the preferred size; `None` if either is zero.
    fn unfitness(&self, size: Amount) -> Option<f64> {
        let preferred = self.preferred.amount();
        let own = size.amount();
        if preferred <= 0.0 || own <= 0.0 {
            return None;
        }

        let far = (preferred / own).max(own / preferred);
        let weighted = far.powf(self.weight.fraction());
        Some(weighted.min(self.unfitness_max.fraction().max(1.0)))
    }

    fn counted(&self, count: Replicas, size: Amount) -> f64 {
        (f64::from(count.count()) * size.amount() / self.preferred.amount()).max(1.0)
    }
}

/// Returns the unfitness that is left when this many replicas are added at once.
///
/// `1 + (u - 1) * (1 - tanh((n - 1) / 15))`: all of it for one replica, none from about 50 on.
#[must_use]
pub fn suppress(unfitness: f64, count: f64) -> f64 {
    (unfitness - 1.0) * (1.0 - ((count - 1.0) / SUPPRESSION).tanh()) + 1.0
}
