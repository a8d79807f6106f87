//! Random numbers of worlds, and the distributions that priors are made of.
//!
//! Each aspect of each world has its own generator. A new aspect, or another number of draws in one
//! aspect, leaves all other aspects of all worlds unchanged.

use std::fmt;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::random::{self, normal};
use crate::study::worlds::priors::Aspect;

/// The random numbers of one world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lot {
    pub(crate) seed: u32,
    pub(crate) number: u32,
}

/// A distribution of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PriorDistribution {
    /// All values are equally likely.
    Uniform { low: f64, high: f64 },
    /// All orders of magnitude are equally likely.
    LogUniform { low: f64, high: f64 },
    /// Lognormal, clipped.
    Lognormal { median: f64, sigma: f64, low: f64, high: f64 },
}

/// A choice: the weight, the name and the value of each option. Weights are percentages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<T: 'static>(pub(crate) &'static [(u32, &'static str, T)]);

/// A drawn option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnOption<T> {
    pub(crate) name: &'static str,
    pub(crate) value: T,
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

// === impl PriorDistribution ===

impl PriorDistribution {
    pub(crate) fn draw(self, random: &mut Pcg64) -> f64 {
        match self {
            Self::Uniform { low, high } => low + (high - low) * random.random::<f64>(),
            Self::LogUniform { low, high } => low * (high / low).powf(random.random::<f64>()),
            Self::Lognormal { median, sigma, low, high } => {
                (median * (sigma * normal(random)).exp()).clamp(low, high)
            }
        }
    }
}

impl fmt::Display for PriorDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform { low, high } => write!(f, "{low} to {high}"),
            Self::LogUniform { low, high } => write!(f, "{low} to {high} (log-uniform)"),
            Self::Lognormal { median, sigma, low, high } => {
                write!(f, "{low} to {high} (lognormal: median {median}, sigma {sigma})")
            }
        }
    }
}

// === impl Choice ===

impl<T: Copy> Choice<T> {
    /// The option at a place from 0 to below 100.
    fn at(&self, place: u32) -> Option<DrawnOption<T>> {
        let mut below = 0;
        self.0.iter().find_map(|&(weight, name, value)| {
            below += weight;
            (place < below).then_some(DrawnOption { name, value })
        })
    }

    pub(crate) fn draw(&self, random: &mut Pcg64) -> DrawnOption<T> {
        self.at(random.random_range(0..100)).expect("the weights of a choice are percentages")
    }
}

impl<T> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (weight, name, _)) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { ", " };
            write!(f, "{gap}{name} {weight}%")?;
        }
        Ok(())
    }
}
