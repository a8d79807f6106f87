//! Noise: steps of one engine that compute the same do not take the same time.
//!
//! # Model
//!
//! The time of each step is multiplied by a lognormal number of mean 1, `exp(sigma z - sigma² / 2)`,
//! where `z` is standard normal and clipped to three standard deviations, so that there is a shortest
//! time.

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;

/// Standard deviations to which noise is clipped.
const CLIP: f64 = 3.0;

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

    /// The time that a step takes this time.
    pub(super) fn stretch(&mut self, length: Micros) -> Micros {
        let z = random::normal(&mut self.random).clamp(-CLIP, CLIP);
        self.scaled(length, z)
    }

    /// The shortest time that it can take.
    pub(super) fn shortest(&self, length: Micros) -> Micros {
        self.scaled(length, -CLIP)
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
