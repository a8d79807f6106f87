//! Replicas that are slower than their peers.
//!
//! # Model
//!
//! Each lesson of a replica is compared with the iteration that the pace of its variant predicts
//! for the same content. The ratio does not depend on the load, so replicas with uneven load are
//! comparable:
//!
//! ```text
//! ratio  = median over its last lessons of ln(seconds / predicted)
//! factor = exp(ratio - median over its peers of their ratios)
//! ```
//!
//! A replica takes part with [`LESSONS_MIN`] lessons, a comparison needs [`PEERS_MIN`] peers, and a
//! factor of [`OUTLYING`] makes an outlier.
//!
//! # Source
//!
//! The median has a breakdown point of one half, so neither single lessons nor a minority of slow
//! replicas move it: Huber, *Robust Statistics* (1981), section 1.4.

use std::collections::VecDeque;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::ReplicaName;
use crate::units::Fraction;

/// The last lessons of a replica that count. They take two minutes.
const LESSONS_MAX: usize = 8;

/// Lessons below which a replica is not compared.
const LESSONS_MIN: usize = 5;

/// The fewest peers that a replica is compared with: of two replicas, either may be the outlier.
const PEERS_MIN: usize = 2;

/// The factor from which a replica is an outlier. The median of eight lessons has an error of 5% if
/// single lessons have an error of 10%. A linear model of iterations is off by up to 20% between
/// replicas of different load.
pub(super) const OUTLYING: f64 = 1.3;

/// The slowest replica of a variant, compared with the others.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("replica {replica} is {:.1} times slower than its {peers} peers", factor.fraction())]
pub struct SlowestReplica {
    /// The replica.
    pub replica: ReplicaName,
    /// The time that an iteration takes on it, over the time that it takes on its peers.
    pub factor: Fraction,
    /// The replicas that it is compared with.
    pub peers: u32,
}

/// The last lessons of a replica, relative to the predictions.
#[derive(Clone, Debug, Default)]
pub(super) struct Ratios {
    /// Logarithms, in order of time.
    last: VecDeque<f64>,
}

// === impl SlowestReplica ===

impl SlowestReplica {
    /// The slowest of these replicas; `None` while too few can be compared.
    pub(super) fn of<'a>(
        replicas: impl Iterator<Item = (&'a ReplicaName, &'a Ratios)>,
    ) -> Option<Self> {
        let medians = replicas.filter_map(|(replica, ratios)| Some((ratios.median()?, replica)));
        let mut known: Vec<(f64, &ReplicaName)> = medians.collect();
        known.sort_by(|a, b| a.0.total_cmp(&b.0));

        let (slowest, replica) = known.pop()?;
        if known.len() < PEERS_MIN {
            return None;
        }

        let peers = middle(known.iter().map(|(ratio, _)| *ratio));
        Some(Self {
            replica: replica.clone(),
            factor: Fraction::new((slowest - peers).exp())?,
            peers: u32::try_from(known.len()).unwrap_or(u32::MAX),
        })
    }

    /// Returns true if it is so slow that something is wrong with it.
    #[must_use]
    pub fn is_outlier(&self) -> bool {
        self.factor.fraction() >= OUTLYING
    }
}

// === impl Ratios ===

impl Ratios {
    /// Adds a lesson that took this multiple of the predicted time.
    pub(super) fn add(&mut self, ratio: f64) {
        if !ratio.is_finite() || ratio <= 0.0 {
            return;
        }
        if self.last.len() == LESSONS_MAX {
            let _oldest = self.last.pop_front();
        }

        self.last.push_back(ratio.ln());
    }

    fn median(&self) -> Option<f64> {
        if self.last.len() < LESSONS_MIN {
            return None;
        }
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        Some(middle(sorted.into_iter()))
    }
}

/// The middle of some sorted numbers, or the mean of the two around it.
fn middle(sorted: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = sorted.len();
    let two = sorted.skip(count.saturating_sub(1) / 2).take(2 - count % 2);
    two.sum::<f64>() / (2 - count % 2) as f64
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    use super::*;
    use crate::analyze::foresight::change::tests::heavy_tailed;

    /// The slowest of replicas with these factors, after this many lessons each.
    fn slowest(factors: &[f64], lessons: u32, seed: u64) -> Option<SlowestReplica> {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut replicas = Vec::new();
        for (index, factor) in factors.iter().enumerate() {
            let mut ratios = Ratios::default();
            (0..lessons).for_each(|_| ratios.add(factor * (0.1 * heavy_tailed(&mut random)).exp()));
            replicas.push((ReplicaName::new(&format!("r{index}")).unwrap(), ratios));
        }

        SlowestReplica::of(replicas.iter().map(|(name, ratios)| (name, ratios)))
    }

    #[test]
    fn a_slow_replica_is_named_with_its_factor_and_noise_is_not() {
        for seed in 0..200 {
            // The pace itself may be off, and be the same for all.
            let found = slowest(&[0.9, 0.9, 1.62, 0.9], 8, seed).unwrap();
            assert_eq!((found.replica.as_str(), found.peers), ("r2", 3));
            assert!((found.factor.fraction() / 1.8 - 1.0).abs() < 0.2, "{found:?}");
            assert!(found.is_outlier());
            assert!(!slowest(&[1.0; 4], 8, seed).unwrap().is_outlier(), "{seed}");
        }

        let found = slowest(&[1.0, 1.8, 1.0], 8, 1).unwrap().to_string();
        assert_eq!(found, "replica r1 is 1.8 times slower than its 2 peers");
    }

    #[test]
    fn too_few_lessons_or_peers_are_not_compared() {
        assert_eq!(slowest(&[1.0, 1.0, 2.0], 4, 1), None);
        assert_eq!(slowest(&[1.0, 2.0], 8, 1), None);
        assert_eq!(slowest(&[], 8, 1), None);
    }

    #[test]
    fn a_minority_of_slow_replicas_does_not_hide_itself() {
        let found = slowest(&[1.0, 1.0, 1.0, 2.0, 2.0], 8, 1).unwrap();
        assert!(found.factor.fraction() > 1.7, "{found:?}");
    }

    #[test]
    fn lessons_of_long_ago_do_not_count() {
        let mut ratios = Ratios::default();
        (0..20).for_each(|_| ratios.add(3.0));
        (0..8).for_each(|_| ratios.add(1.0));
        assert!(ratios.median().unwrap().abs() < 1e-12);
        ratios.add(f64::NAN);
        assert_eq!(ratios.last.len(), LESSONS_MAX);
    }
}
