//! Random numbers: one generator for each purpose, all from one seed.
//!
//! The number of draws in one part must not change the numbers of another. For example, a policy
//! that starts more replicas still gets the same requests.

use std::f64::consts::TAU;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// The purpose of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Times of arrivals.
    Times = 1,
    /// Lengths of prompts and answers.
    Lengths = 2,
    /// Starts of replicas.
    Starts = 3,
    /// Crashes and interruptions.
    Faults = 4,
    /// Failures of scrapes.
    Scrapes = 5,
    /// Think times of clients.
    Thoughts = 6,
    /// Adapters that requests ask for.
    Adapters = 7,
    /// Steps of engines.
    Steps = 8,
    /// Sessions that requests belong to.
    Sessions = 9,
    /// Choices of a router.
    Routes = 10,
    /// Starts of replicas before the simulation.
    EarlierStarts = 11,
}

/// The generator for one purpose; `index` distinguishes several generators of the same purpose.
#[must_use]
pub fn generator(seed: u64, purpose: Purpose, index: usize) -> Pcg64 {
    let mixed = mix(seed ^ mix(purpose as u64 ^ mix(index as u64)));
    Pcg64::seed_from_u64(mixed)
}

/// A generator that is seeded by the next number of another.
pub(crate) fn fork(random: &mut Pcg64) -> Pcg64 {
    Pcg64::seed_from_u64(random.random())
}

/// The generator for one aspect of a randomly drawn world.
#[must_use]
pub fn of_world(world: u64, aspect: u64) -> Pcg64 {
    Pcg64::seed_from_u64(mix(mix(world) ^ mix(aspect)))
}

/// `SplitMix64`'s finalizer (Steele, Lea and Flood, 2014): similar inputs have very different
/// outputs.
pub(crate) const fn mix(value: u64) -> u64 {
    let next = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let once = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}

/// A number above 0 and up to 1.
pub fn uniform(random: &mut Pcg64) -> f64 {
    1.0 - random.random::<f64>()
}

/// A number of the exponential distribution with mean 1.
pub fn exponential(random: &mut Pcg64) -> f64 {
    -uniform(random).ln()
}

/// A standard normal number (Box and Muller, 1958).
pub fn normal(random: &mut Pcg64) -> f64 {
    let radius = (-2.0 * uniform(random).ln()).sqrt();
    radius * (TAU * random.random::<f64>()).cos()
}

/// A number of the gamma distribution with this shape and scale 1 (Marsaglia and Tsang, 2000).
pub fn gamma(random: &mut Pcg64, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = uniform(random).powf(1.0 / shape);
        return boost * gamma(random, shape + 1.0);
    }

    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && uniform(random).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gamma_distribution_has_its_mean_and_its_variance() {
        for shape in [0.2, 1.0, 4.0] {
            let mut random = generator(1, Purpose::Times, 0);
            let draws: Vec<f64> = (0..200_000).map(|_| gamma(&mut random, shape)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let square = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            let variance = square / draws.len() as f64;
            // Both are `shape`; four standard errors of the mean are below 2%.
            assert!((mean / shape - 1.0).abs() < 0.02, "{mean} for {shape}");
            assert!((variance / shape - 1.0).abs() < 0.1, "{variance} for {shape}");
        }
    }

    #[test]
    fn purposes_seeds_and_indices_have_numbers_of_their_own() {
        let all = [
            generator(1, Purpose::Times, 0),
            generator(2, Purpose::Times, 0),
            generator(1, Purpose::Lengths, 0),
            generator(1, Purpose::Times, 1),
        ]
        .map(|mut random| uniform(&mut random).to_bits());

        for (index, one) in all.iter().enumerate() {
            assert!(all.iter().skip(index + 1).all(|other| one != other), "{all:?}");
        }
    }
}
