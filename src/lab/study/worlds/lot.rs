//! Random numbers of worlds.
//!
//! Each aspect of each world has its own generator. A new aspect, or another number of draws in one
//! aspect, leaves all other aspects of all worlds unchanged.

use std::fmt;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::random;
use crate::study::worlds::priors::Aspect;

/// The random numbers of one world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lot {
    pub(crate) seed: u32,
    pub(crate) number: u32,
}

// === impl Lot ===

impl Lot {
    /// Reads a seed and a number, such as `1:37`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (seed, number) = text.split_once(':')?;
        Some(Self { seed: seed.parse().ok()?, number: number.parse().ok()? })
    }

    /// The generator of one aspect.
    pub(crate) fn of(self, aspect: Aspect) -> Pcg64 {
        let world = u64::from(self.seed) << 32 | u64::from(self.number);
        random::of_world(world, aspect as u64)
    }

    /// The seed with which the world is simulated.
    pub(crate) fn simulation_seed(self) -> u32 {
        self.of(Aspect::Simulation).random()
    }
}

impl fmt::Display for Lot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seed, self.number)
    }
}

/// Returns true in `percent` of a hundred worlds.
pub(crate) fn happens(percent: u32, random: &mut Pcg64) -> bool {
    random.random_range(0..100) < percent
}
