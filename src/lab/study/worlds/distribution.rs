//! The distributions that priors are made of.

use std::fmt;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::random::normal;

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
