//! The requests of one model: replayed, drawn, or made by clients who wait for their answers.

use std::sync::Arc;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{self, Purpose, generator};
use crate::simulate::replica::prefix::{PromptId, Prompts};
use crate::simulate::workload::clients::{Described, Sent};
use crate::simulate::workload::drift::{Drift, Stretch};
use crate::simulate::workload::rate::{Rate, Renewals};
use crate::simulate::workload::round::{Round, Shifted, Speed};

/// The requests of one model.
#[derive(Clone, Debug)]
pub enum Load {
    /// As recorded.
    Replay(Replay),
    /// At a rate over time, whether or not earlier requests have been answered.
    Drawn(Drawn),
    /// By clients of which each has one request at a time.
    Closed(Closed),
    /// By clients of whom is known what they sent when.
    Described(Described),
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When it arrives, from the trace's start.
    pub at: Micros,
    /// How long it is.
    pub size: Size,
    /// What its prompt consists of, where the trace says so.
    pub prompt: Option<PromptId>,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Micros,
    /// How long it is.
    pub size: Size,
    /// What its prompt consists of, where that is known.
    pub prompt: Option<PromptId>,
}

/// How long a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens of its answer.
    pub output: u32,
}

/// A trace, over and over again, with more or less load than was recorded.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The requests, times ascending.
    pub rows: Arc<[Row]>,
    /// What their prompts consist of, where the trace says so. Copies and later rounds have prompts
    /// of their own.
    pub prompts: Option<Arc<Prompts>>,
    /// How long the trace is; no row is later.
    pub span: Micros,
    /// How many traces run at once: each but the first is shifted in time, and of the last only a
    /// share of the requests is there when this is no whole number.
    pub copies: f64,
    /// How far the others are shifted at most.
    pub spread: Micros,
    /// How many times as fast time runs.
    pub speed: f64,
}

/// Requests at a rate.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The rate.
    pub rate: Rate,
    /// The coefficient of variation of the gaps where the rate is constant.
    pub variation: f64,
    /// How long they are.
    pub sizes: Sizes,
    /// How these lengths change; `None` where they do not.
    pub drift: Option<Drift>,
}

/// Clients of which each has one request at a time.
#[derive(Clone, Debug)]
pub struct Closed {
    /// How many there are.
    pub clients: u32,
    /// The mean time from an answer to the next request.
    pub think: Micros,
    /// How long the requests are.
    pub sizes: Sizes,
}

/// How long requests are.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// Prompts and answers, independent of each other.
    Apart {
        /// Prompts.
        prompt: Lengths,
        /// Answers.
        output: Lengths,
    },
    /// Pairs that were recorded, in any order.
    Pairs(Arc<[Size]>),
}

/// A distribution of lengths.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Each as likely as any other, both ends included.
    Uniform {
        /// The shortest.
        min: u32,
        /// The longest.
        max: u32,
    },
    /// Lognormal, clipped.
    Lognormal {
        /// Half of them are shorter.
        median: f64,
        /// The standard deviation of the logarithm.
        sigma: f64,
        /// The shortest.
        min: u32,
        /// The longest.
        max: u32,
    },
    /// As often as counted: each length with the share of all that are not longer.
    Counted(Arc<[(u32, f64)]>),
}

/// The open-loop arrivals of one model.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Of a trace.
    Replayed {
        /// The requests of one round that are still to come.
        round: Box<Round>,
        /// How long a round is.
        span: Micros,
        /// When this round began.
        base: Micros,
        /// The worlds of its prompts, of which no other round has one.
        world: u32,
        /// How many worlds a round has.
        worlds: u32,
    },
    /// At a rate.
    Drawn {
        /// Their times.
        times: Box<Renewals>,
        /// How long they are.
        sizes: Sizes,
        /// How these lengths change.
        drift: Option<Drift>,
        /// Where the lengths come from.
        random: Box<Pcg64>,
    },
    /// None: clients make them.
    Closed,
    /// Of described clients.
    Described(Box<Sent>),
}

impl Load {
    /// The rate of its requests, where one is known.
    #[must_use]
    pub const fn rate(&self) -> Option<&Rate> {
        match self {
            Self::Drawn(drawn) => Some(&drawn.rate),
            Self::Replay(_) | Self::Closed(_) | Self::Described(_) => None,
        }
    }

    /// The arrivals of a seed. `model` tells several models apart.
    #[must_use]
    pub fn arrivals(&self, seed: u64, model: usize) -> Arrivals {
        match self {
            Self::Replay(replay) => {
                let (round, span) = replay.round(seed, model);
                let (round, worlds) = (Box::new(round), replay.worlds());
                Arrivals::Replayed { round, span, base: Micros::ZERO, world: 0, worlds }
            }
            Self::Drawn(Drawn { rate, variation, sizes, drift }) => {
                let times = generator(seed, Purpose::Times, model);
                Arrivals::Drawn {
                    times: Box::new(Renewals::new(rate.clone(), *variation, times)),
                    sizes: sizes.clone(),
                    drift: drift.clone(),
                    random: Box::new(generator(seed, Purpose::Lengths, model)),
                }
            }
            Self::Closed(_) => Arrivals::Closed,
            Self::Described(described) => {
                let times = generator(seed, Purpose::Times, model);
                let lengths = generator(seed, Purpose::Lengths, model);
                Arrivals::Described(Box::new(Sent::new(described.clone(), times, lengths)))
            }
        }
    }
}

impl Replay {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "there are few copies, and the cast saturates"
    )]
    fn worlds(&self) -> u32 {
        self.copies.ceil() as u32
    }

    /// The requests of one round, and how long it is.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative, and the cast saturates"
    )]
    fn round(&self, seed: u64, model: usize) -> (Round, Micros) {
        let pace = Speed::new(self.speed);
        if pace == Speed::Recorded && (self.copies - 1.0).abs() < f64::EPSILON {
            return (Round::recorded(Arc::clone(&self.rows)), self.span);
        }
        let span = pace.of(self.span).max(Micros::new(1));
        let copies = (0..self.worlds()).map(|world| {
            let copy = world as usize;
            let share = (self.copies - f64::from(world)).min(1.0);
            let mut random = generator(seed, Purpose::Times, model * 1_000_003 + copy);
            let shift = match copy {
                0 => 0.0,
                _ => random.random::<f64>() * self.spread.micros() as f64,
            };
            let rows = if share < 1.0 {
                let is_there = |_: &&Row| random.random::<f64>() < share;
                self.rows.iter().filter(is_there).copied().collect()
            } else {
                Arc::clone(&self.rows)
            };
            Shifted { rows, shift: Micros::new(shift as u64), world }
        });
        (Round::merged(pace, copies.collect(), span), span)
    }
}

impl Sizes {
    /// One length.
    pub fn draw(&self, random: &mut Pcg64) -> Size {
        self.draw_stretched(Stretch::NONE, random)
    }

    /// One length of those that are so many times as long.
    fn draw_stretched(&self, stretch: Stretch, random: &mut Pcg64) -> Size {
        match self {
            Self::Apart { prompt, output } => {
                let prompt = prompt.draw(stretch.prompt, random);
                Size { prompt, output: output.draw(stretch.output, random) }
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

impl Lengths {
    /// Lengths that are drawn as often as their weights say, which must not be negative. `None` where
    /// nothing has a weight.
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

    /// One length of those that are `factor` times as long. The clip stays where it is.
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

/// A length that is so many times as long, and at least a token.
fn stretched(length: u32, factor: f64) -> u32 {
    rounded(f64::from(length) * factor).max(1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths are not negative, and the cast saturates"
)]
fn rounded(length: f64) -> u32 {
    length.round() as u32
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        match self {
            Self::Replayed { round, span, base, world, worlds } => {
                let row = round.next().or_else(|| {
                    *base += *span;
                    *world = world.saturating_add(*worlds);
                    round.begin();
                    round.next()
                });
                let Row { at, size, prompt } = row?;
                let moved =
                    |it: PromptId| PromptId { world: it.world.saturating_add(*world), ..it };
                Some(Arrival { at: *base + at, size, prompt: prompt.map(moved) })
            }
            Self::Drawn { times, sizes, drift, random } => {
                let at = times.next()?;
                let stretch = drift.as_ref().map_or(Stretch::NONE, |drift| drift.at(at));
                Some(Arrival { at, size: sizes.draw_stretched(stretch, random), prompt: None })
            }
            Self::Closed => None,
            Self::Described(sent) => sent.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(copies: f64, speed: f64) -> Replay {
        let size = Size { prompt: 1, output: 1 };
        let rows =
            (0..1000).map(|at| Row { at: Micros::from_secs(at), size, prompt: None }).collect();
        let (span, spread) = (Micros::from_secs(1000), Micros::from_secs(60));
        Replay { rows, prompts: None, span, copies, spread, speed }
    }

    /// The lengths of the first requests at this rate.
    fn lengths(rate: f64, count: usize) -> Vec<Size> {
        let prompt = Lengths::Lognormal { median: 500.0, sigma: 0.8, min: 10, max: 4000 };
        let output = Lengths::Lognormal { median: 120.0, sigma: 0.5, min: 10, max: 4000 };
        let sizes = Sizes::Apart { prompt, output };
        let drawn =
            Drawn { rate: Rate::constant(rate).unwrap(), variation: 1.0, sizes, drift: None };
        Load::Drawn(drawn).arrivals(7, 0).take(count).map(|arrival| arrival.size).collect()
    }

    #[test]
    fn lengths_have_the_median_that_was_asked_for_and_stay_inside_the_clip() {
        let mut prompts: Vec<u32> = lengths(5.0, 10_001).iter().map(|size| size.prompt).collect();
        prompts.sort_unstable();
        // The median of 10,001 draws has a standard error of 1 per cent at this sigma.
        assert!((480..=520).contains(&prompts[5_000]), "{}", prompts[5_000]);
        assert!(prompts[0] >= 10 && prompts[10_000] <= 4000);
    }

    #[test]
    fn one_seed_gives_one_sequence_and_another_rate_the_same_lengths() {
        assert_eq!(lengths(5.0, 1000), lengths(5.0, 1000));
        assert_eq!(lengths(5.0, 1000), lengths(9.0, 1000));
        assert_eq!(lengths(0.0, 1), [], "no rate means no arrivals");
    }

    #[test]
    fn lengths_that_drift_are_so_many_times_as_long_and_come_at_the_same_times() {
        let arrivals = |drift| -> Vec<Arrival> {
            let sizes = Sizes::Apart {
                prompt: Lengths::Lognormal { median: 500.0, sigma: 0.0, min: 1, max: 1_200 },
                output: Lengths::Fixed(100),
            };
            let rate = Rate::constant(1.0).unwrap();
            let drawn = Drawn { rate, variation: 0.0, sizes, drift };
            Load::Drawn(drawn).arrivals(7, 0).take(300).collect()
        };
        let points = vec![
            (Micros::from_secs(100), Stretch { prompt: 1.0, output: 1.0 }),
            (Micros::from_secs(200), Stretch { prompt: 3.0, output: 0.5 }),
        ];
        let drift = Drift::through(points).unwrap();
        let (steady, drifting) = (arrivals(None), arrivals(Some(drift.clone())));
        for (steady, drifting) in steady.iter().zip(drifting) {
            assert_eq!(steady.at, drifting.at);
            let Stretch { prompt, output } = drift.at(steady.at);
            assert_eq!(drifting.size.prompt, rounded(500.0 * prompt).min(1_200));
            assert_eq!(drifting.size.output, rounded(100.0 * output));
        }
    }

    fn within(replay: Replay, seconds: u64) -> usize {
        let arrivals = Load::Replay(replay).arrivals(1, 0);
        let mut last = Micros::ZERO;
        arrivals
            .take_while(|Arrival { at, .. }| {
                assert!(*at >= last, "times ascend");
                last = *at;
                *at < Micros::from_secs(seconds)
            })
            .count()
    }

    #[test]
    fn a_trace_is_scaled_in_rate_and_in_time_and_begins_again() {
        assert_eq!(within(replay(1.0, 1.0), 1000), 1000);
        assert_eq!(within(replay(3.0, 1.0), 1000), 3000);
        assert_eq!(within(replay(1.0, 2.0), 1000), 2000);
        assert_eq!(within(replay(1.0, 1.0), 2500), 2500);
        let half = within(replay(0.5, 1.0), 1000);
        assert!((440..=560).contains(&half), "{half}");
        let shifted = |seed| replay(2.0, 1.0).round(seed, 0).0;
        assert!(!shifted(1).eq(shifted(2)), "another seed shifts otherwise");
    }

    #[test]
    fn copies_and_rounds_of_a_trace_have_prompts_of_their_own() {
        let prompt = Some(PromptId { place: 7, world: 0 });
        let one = replay(2.0, 1.0);
        let rows = one.rows.iter().take(1).map(|row| Row { prompt, ..*row }).collect();
        let arrivals = Load::Replay(Replay { rows, ..one }).arrivals(1, 0);
        let mut worlds: Vec<u32> =
            arrivals.take(6).filter_map(|it| Some(it.prompt?.world)).collect();
        worlds.sort_unstable();
        assert_eq!(worlds, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn lengths_that_were_counted_are_drawn_as_often() {
        let mut random = generator(1, Purpose::Lengths, 0);
        let lengths = Lengths::counted(vec![(400, 1.0), (10, 3.0), (20, 0.0), (0, 4.0)]).unwrap();
        let drawn: Vec<u32> = (0..8_000).map(|_| lengths.draw(1.0, &mut random)).collect();
        let of = |length: u32| drawn.iter().filter(|it| **it == length).count();
        // 4,000, 3,000 and 1,000, with standard deviations of at most 45.
        assert!((3_820..=4_180).contains(&of(1)), "{} without a token have one", of(1));
        assert!((2_820..=3_180).contains(&of(10)), "{}", of(10));
        assert_eq!(of(1) + of(10) + of(400), drawn.len());
        assert!(Lengths::counted(vec![(5, 0.0)]).is_none() && Lengths::counted(vec![]).is_none());
    }
}
