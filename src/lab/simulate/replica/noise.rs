//! Noise: steps of one engine with the same work vary in duration.
//!
//! # Model
//!
//! The duration of each step is multiplied by a factor of mean 1, `exp(sigma z - sigma² / 2)`,
//! where `z` has mean 0 and variance 1. `z` is the sum of four uniform numbers: it is nearly normal
//! and costs a third of the time. It is at most 3.5, so that a shortest duration exists.

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::Micros;

/// The most standard deviations from the mean: four uniform numbers have a variance of a third.
const MOST: f64 = 3.464_101_615_137_754_6;

/// Bits of a uniform number; one random number provides four of them.
const BITS: u32 = 16;

/// The noise of one engine.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    sigma: f64,
    random: Pcg64,
}

// === impl Noise ===

impl Noise {
    pub(super) const fn new(sigma: f64, random: Pcg64) -> Self {
        Self { sigma, random }
    }

    /// The duration of this step, with noise.
    pub(super) fn stretch(&mut self, length: Micros) -> Micros {
        let bits: u64 = self.random.random();
        let sum: u64 = (0..4).map(|part| (bits >> (part * BITS)) & ((1 << BITS) - 1)).sum();
        let most = f64::from(4 * ((1_u32 << BITS) - 1));
        self.scaled(length, MOST * (2.0 * sum as f64 / most - 1.0))
    }

    /// The shortest duration with noise.
    pub(super) fn shortest(&self, length: Micros) -> Micros {
        self.scaled(length, -MOST)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time is not negative, and the cast saturates"
    )]
    fn scaled(&self, length: Micros, z: f64) -> Micros {
        let factor = (self.sigma * z - self.sigma * self.sigma / 2.0).exp();
        Micros::new((length.micros() as f64 * factor) as u64).max(Micros::new(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};

    #[test]
    fn steps_take_their_time_on_average_and_vary_by_sigma() {
        let length = Micros::new(1_000_000);
        let mut noise = Noise::new(0.2, generator(1, Purpose::Steps, 0));
        let drawn: Vec<f64> = (0..100_000).map(|_| noise.stretch(length).seconds()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;

        // The mean of 100,000 has a standard error of 0.0006.
        assert!((mean - 1.0).abs() < 0.003, "{mean}");

        let squares = drawn.iter().map(|it| (it.ln() + 0.02).powi(2)).sum::<f64>();
        let sigma = (squares / drawn.len() as f64).sqrt();
        assert!((sigma - 0.2).abs() < 0.003, "{sigma}");
        assert!(drawn.iter().all(|it| *it >= noise.shortest(length).seconds()));
    }
}
