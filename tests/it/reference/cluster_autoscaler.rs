//! The price expander of the Cluster Autoscaler 1.37.
//!
//! ```text
//! score      = suppressed * (C + X) / (T + X) * cold
//! u          = max(preferred / size, size / preferred)
//! suppressed = 1 + (u - 1) * (1 - tanh((n - 1) / 15)), 1000 for nodes with GPUs
//! ```
//!
//! The terms are those of [`plimsoll::decide::rank`], which follows the formula for variants.

use plimsoll::decide::rank::{RankStart, suppress};
use plimsoll::units::{Amount, CostPerHour, Replicas};

/// Preferred CPUs of a node, by the number of nodes up to which they hold. A larger cluster prefers
/// [`PREFERRED_MOST`].
///
/// The proposal has 80 and 300 in place of 60 and 200, and counts 20 and 80 in two rows each. The
/// code has a rule of thumb in a comment, by which nodes double when the cluster triples.
const PREFERRED: [(u32, u32); 5] = [(2, 1), (6, 2), (20, 4), (60, 8), (200, 16)];

/// Preferred CPUs of a node in a cluster above the table.
const PREFERRED_MOST: u32 = 32;

/// The factor of a group that does not exist yet.
const COLD: f64 = 2.0;

/// The suppressed unfitness of nodes with GPUs.
const SCARCE: f64 = 1000.0;

/// Preferred CPUs of a node in a cluster of so many nodes.
pub(crate) fn preferred_cpus(nodes: u32) -> u32 {
    let row = PREFERRED.iter().find(|(up_to, _)| nodes <= *up_to);
    row.map_or(PREFERRED_MOST, |(_, cpus)| *cpus)
}

/// The numbers of the formula.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formula {
    pub(crate) preferred: Amount,
    pub(crate) damper: CostPerHour,
}

/// One way to add capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) count: Replicas,
    pub(crate) real: CostPerHour,
    pub(crate) theoretical: CostPerHour,
    pub(crate) fit: Fit,
    pub(crate) start: RankStart,
}

/// How well the kind of an option fits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fit {
    /// By its size.
    Size(Amount),
    /// It has GPUs that the pods do not need.
    Scarce,
}

/// The numbers behind a score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) ratio: f64,
    /// `None` for nodes with GPUs.
    pub(crate) unfitness: Option<f64>,
    pub(crate) suppressed: f64,
    pub(crate) score: f64,
}

impl Formula {
    /// The score of an option; `None` outside the domain of the formula.
    pub(crate) fn score(&self, offer: &Offer) -> Option<Record> {
        if offer.count == Replicas::ZERO {
            return None;
        }

        let unfitness = match offer.fit {
            Fit::Scarce => None,
            Fit::Size(size) => Some(self.unfitness(size)?),
        };
        let count = f64::from(offer.count.count());
        let suppressed = unfitness.map_or(SCARCE, |unfitness| suppress(unfitness, count));

        let damper = self.damper.per_hour();
        let measure = offer.theoretical.per_hour() + damper;
        if measure <= 0.0 {
            return None;
        }
        let ratio = (offer.real.per_hour() + damper) / measure;
        let cold = match offer.start {
            RankStart::Warm => 1.0,
            RankStart::Cold => COLD,
        };

        let score = suppressed * ratio * cold;
        score.is_finite().then_some(Record { ratio, unfitness, suppressed, score })
    }

    /// How far a size is from the preferred one; `None` when one of them is zero.
    pub(crate) fn unfitness(&self, size: Amount) -> Option<f64> {
        let preferred = self.preferred.amount();
        let size = size.amount();
        let is_known = preferred > 0.0 && size > 0.0;
        is_known.then(|| (preferred / size).max(size / preferred))
    }
}

/// Fifty requests per second, 60 preferred: cold H100s score 2.546 instead of 1.273, and the A100s
/// 4.289.
#[test]
fn what_is_scarce_is_worth_less_as_what_is_cold_is() {
    let cost = |cost: f64| CostPerHour::new(cost).unwrap();
    let amount = |amount: f64| Amount::new(amount).unwrap();
    let formula = Formula { preferred: amount(60.0), damper: cost(8.0 / 13.0) };
    let score = |count, real, size, start| {
        let offer = Offer {
            count: Replicas::saturating(count),
            real: cost(real),
            theoretical: cost(50.0 * 16.0 / 130.0),
            fit: Fit::Size(amount(size)),
            start,
        };
        formula.score(&offer).unwrap().score
    };

    for (found, expected) in [
        (score(3, 12.0, 24.0, RankStart::Warm), 4.289),
        (score(1, 8.0, 60.0, RankStart::Warm), 1.273),
        (score(1, 8.0, 60.0, RankStart::Cold), 2.546),
    ] {
        assert!((found - expected).abs() < 6e-4, "{found}, not {expected}");
    }
}
