//! Distributions of request lengths.

use std::sync::Arc;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::simulate::random;
use crate::simulate::workload::arrival::Size;
use crate::simulate::workload::drift::LengthFactors;

/// The distribution of request lengths.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// Prompts and answers, independent of each other.
    Apart {
        /// Prompts.
        prompt: Lengths,
        /// Answers.
        output: Lengths,
    },
    /// Recorded pairs, in random order.
    Pairs(Arc<[Size]>),
}

/// A distribution of lengths.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// A constant length.
    Fixed(u32),
    /// A uniform distribution, both ends included.
    Uniform {
        /// The shortest length.
        min: u32,
        /// The longest length.
        max: u32,
    },
    /// A lognormal distribution, clipped.
    Lognormal {
        /// The median length before clipping.
        median: f64,
        /// The standard deviation of the logarithm.
        sigma: f64,
        /// The shortest length.
        min: u32,
        /// The longest length.
        max: u32,
    },
    /// An empirical distribution: each length with the share of all lengths up to it.
    Counted(Arc<[(u32, f64)]>),
}

// === impl Sizes ===

impl Sizes {
    /// Draws one length.
    pub fn draw(&self, random: &mut Pcg64) -> Size {
        self.draw_stretched(LengthFactors::NONE, random)
    }

    /// Draws one length and multiplies it by the factors of `stretch`.
    pub(super) fn draw_stretched(&self, stretch: LengthFactors, random: &mut Pcg64) -> Size {
        match self {
            Self::Apart { prompt, output } => {
                let prompt_tokens = prompt.draw(stretch.prompt, random);
                let output_tokens = output.draw(stretch.output, random);
                Size { prompt: prompt_tokens, output: output_tokens }
            }
            Self::Pairs(pairs) => {
                let Size { prompt, output } = pairs[random.random_range(0..pairs.len())];
                Size {
                    prompt: stretched(prompt, stretch.prompt),
                    output: stretched(output, stretch.output),
                }
            }
        }
    }
}

// === impl Lengths ===

impl Lengths {
    /// A distribution of lengths with these weights, which must not be negative; `None` if all
    /// weights are zero.
    #[must_use]
    pub fn counted(mut weights: Vec<(u32, f64)>) -> Option<Self> {
        weights.sort_by_key(|&(length, _)| length);
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();

        let mut below = 0.0;
        for (_, weight) in &mut weights {
            below += *weight;
            *weight = below / total;
        }

        (total > 0.0 && total.is_finite()).then(|| Self::Counted(weights.into()))
    }

    /// Draws one length of the distribution multiplied by `factor`. The clipping bounds stay the
    /// same.
    fn draw(&self, factor: f64, random: &mut Pcg64) -> u32 {
        match *self {
            Self::Fixed(length) => stretched(length, factor),
            Self::Uniform { min, max } => {
                stretched(random.random_range(min..=max.max(min)), factor)
            }
            Self::Lognormal { median, sigma, min, max } => {
                let length = factor * median * (sigma * random::normal(random)).exp();
                rounded(length).min(max).max(min).max(1)
            }
            Self::Counted(ref lengths) => {
                let place = random.random::<f64>();
                let longer = lengths.partition_point(|&(_, share)| share <= place);
                let length = lengths.get(longer).or(lengths.last()).map_or(1, |it| it.0.max(1));
                stretched(length, factor)
            }
        }
    }
}

/// A length times `factor`, at least one token.
fn stretched(length: u32, factor: f64) -> u32 {
    rounded(f64::from(length) * factor).max(1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are not negative, and the cast saturates"
)]
pub(super) fn rounded(length: f64) -> u32 {
    length.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};

    #[test]
    fn lengths_that_were_counted_are_drawn_as_often() {
        let mut random = generator(1, Purpose::Lengths, 0);
        let lengths = Lengths::counted(vec![(400, 1.0), (10, 3.0), (20, 0.0), (0, 4.0)]).unwrap();
        let drawn: Vec<u32> = (0..8_000).map(|_| lengths.draw(1.0, &mut random)).collect();
        let counts = [1, 10, 400].map(|length| drawn.iter().filter(|it| **it == length).count());

        // 4,000, 3,000 and 1,000, with standard deviations of at most 45.
        assert!((3_820..=4_180).contains(&counts[0]), "{} without a token have one", counts[0]);
        assert!((2_820..=3_180).contains(&counts[1]), "{}", counts[1]);
        assert_eq!(counts.iter().sum::<usize>(), drawn.len());

        assert!(Lengths::counted(vec![(5, 0.0)]).is_none() && Lengths::counted(vec![]).is_none());
    }
}
