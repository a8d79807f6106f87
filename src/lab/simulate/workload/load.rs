//! The requests of one model: replayed, drawn, or made by clients that wait for their answers.

use std::sync::Arc;

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::replica::prefix::{PromptId, Prompts};
pub use crate::simulate::workload::arrival::{RequestArrival, Row, Size};
use crate::simulate::workload::clients::{ClientArrivals, Described};
use crate::simulate::workload::drift::{Drift, LengthFactors};
pub use crate::simulate::workload::lengths::{Lengths, Sizes};
use crate::simulate::workload::rate::{Rate, Renewals};
use crate::simulate::workload::round::{Round, Shifted, Speed};

/// The source of one model's requests.
#[derive(Clone, Debug)]
pub enum Load {
    /// Requests as recorded.
    Replay(ReplayLoad),
    /// Requests at a rate over time, independent of earlier answers.
    Drawn(RateLoad),
    /// Requests of clients, each of which has one request at a time.
    Closed(ClosedLoad),
    /// Requests of described clients.
    Described(Described),
}

/// A trace that repeats, with more or less load than was recorded.
#[derive(Clone, Debug)]
pub struct ReplayLoad {
    /// The requests in ascending order of time.
    pub rows: Arc<[Row]>,
    /// The contents of their prompts, if the trace has them. Copies and later rounds have prompts
    /// of their own.
    pub prompts: Option<Arc<Prompts>>,
    /// The length of the trace; no row is later.
    pub span: Micros,
    /// The number of traces that run at once. Each one after the first is shifted in time. If this
    /// is not a whole number, the last one has only a share of its requests.
    pub copies: f64,
    /// The largest time shift of a copy.
    pub spread: Micros,
    /// The factor by which time runs faster.
    pub speed: f64,
}

/// Requests at a rate.
#[derive(Clone, Debug)]
pub struct RateLoad {
    /// The rate.
    pub rate: Rate,
    /// The coefficient of variation of the gaps while the rate is constant.
    pub variation: f64,
    /// The lengths of the requests.
    pub sizes: Sizes,
    /// The change of these lengths over time; `None` if they are constant.
    pub drift: Option<Drift>,
}

/// Clients, each of which has one request at a time.
#[derive(Clone, Debug)]
pub struct ClosedLoad {
    /// The number of clients.
    pub clients: u32,
    /// The mean time from an answer to the next request.
    pub think: Micros,
    /// The lengths of the requests.
    pub sizes: Sizes,
}

/// The open-loop arrivals of one model.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Arrivals of a trace.
    Replayed {
        /// The remaining requests of this round.
        round: Box<Round>,
        /// The length of a round.
        span: Micros,
        /// The start of this round.
        base: Micros,
        /// The first world of this round's prompts. No two rounds share a world.
        world: u32,
        /// The number of worlds per round.
        worlds: u32,
    },
    /// Arrivals at a rate.
    Drawn {
        /// The times of the arrivals.
        times: Box<Renewals>,
        /// The lengths of the requests.
        sizes: Sizes,
        /// The change of these lengths over time.
        drift: Option<Drift>,
        /// The random numbers for the lengths.
        random: Box<Pcg64>,
    },
    /// No arrivals: clients send their requests after their answers.
    Closed,
    /// Arrivals of described clients.
    Described(Box<ClientArrivals>),
}

impl Load {
    /// The request rate, if known.
    #[must_use]
    pub const fn rate(&self) -> Option<&Rate> {
        match self {
            Self::Drawn(drawn) => Some(&drawn.rate),
            Self::Replay(_) | Self::Closed(_) | Self::Described(_) => None,
        }
    }

    /// The arrivals of a seed. `model` gives each model its own sequence.
    #[must_use]
    pub fn arrivals(&self, seed: u64, model: usize) -> Arrivals {
        match self {
            Self::Replay(replay) => {
                let (round, span) = replay.round(seed, model);
                Arrivals::Replayed {
                    round: Box::new(round),
                    span,
                    base: Micros::ZERO,
                    world: 0,
                    worlds: replay.worlds(),
                }
            }
            Self::Drawn(RateLoad { rate, variation, sizes, drift }) => {
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
                Arrivals::Described(Box::new(ClientArrivals::new(
                    described.clone(),
                    times,
                    lengths,
                )))
            }
        }
    }
}

impl ReplayLoad {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "there are few copies, and the cast saturates"
    )]
    fn worlds(&self) -> u32 {
        self.copies.ceil() as u32
    }

    /// The requests of one round, and its length.
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
                self.rows.iter().filter(|_| random.random::<f64>() < share).copied().collect()
            } else {
                Arc::clone(&self.rows)
            };
            Shifted { rows, shift: Micros::new(shift as u64), world }
        });

        (Round::merged(pace, copies.collect(), span), span)
    }
}

impl Iterator for Arrivals {
    type Item = RequestArrival;

    fn next(&mut self) -> Option<RequestArrival> {
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
                    prompt.map(|it| PromptId { world: it.world.saturating_add(*world), ..it });
                Some(RequestArrival { at: *base + at, size, prompt: moved })
            }
            Self::Drawn { times, sizes, drift, random } => {
                let at = times.next()?;
                let stretch = drift.as_ref().map_or(LengthFactors::NONE, |drift| drift.at(at));
                Some(RequestArrival {
                    at,
                    size: sizes.draw_stretched(stretch, random),
                    prompt: None,
                })
            }
            Self::Closed => None,
            Self::Described(sent) => sent.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::workload::lengths::rounded;

    fn replay(copies: f64, speed: f64) -> ReplayLoad {
        let size = Size { prompt: 1, output: 1 };
        let rows =
            (0..1000).map(|at| Row { at: Micros::from_secs(at), size, prompt: None }).collect();
        let span = Micros::from_secs(1000);
        let spread = Micros::from_secs(60);
        ReplayLoad { rows, prompts: None, span, copies, spread, speed }
    }

    /// The lengths of the first requests at this rate.
    fn lengths(rate: f64, count: usize) -> Vec<Size> {
        let prompt = Lengths::Lognormal { median: 500.0, sigma: 0.8, min: 10, max: 4000 };
        let output = Lengths::Lognormal { median: 120.0, sigma: 0.5, min: 10, max: 4000 };
        let sizes = Sizes::Apart { prompt, output };
        let drawn =
            RateLoad { rate: Rate::constant(rate).unwrap(), variation: 1.0, sizes, drift: None };
        Load::Drawn(drawn).arrivals(7, 0).take(count).map(|arrival| arrival.size).collect()
    }

    #[test]
    fn lengths_have_the_median_that_was_asked_for_and_stay_inside_the_clip() {
        let mut prompts: Vec<u32> = lengths(5.0, 10_001).iter().map(|size| size.prompt).collect();
        prompts.sort_unstable();
        // The median of 10,001 draws has a standard error of 1% at this sigma.
        assert!((480..=520).contains(&prompts[5_000]), "{}", prompts[5_000]);
        assert!(prompts[0] >= 10 && prompts[10_000] <= 4000);
    }

    #[test]
    fn one_seed_gives_one_sequence_and_another_rate_the_same_lengths() {
        assert_eq!(lengths(5.0, 1000), lengths(5.0, 1000));
        assert_eq!(lengths(5.0, 1000), lengths(9.0, 1000));
        assert_eq!(lengths(0.0, 1), [], "no rate means no arrivals");
    }

    /// The first requests of a steady rate whose lengths drift.
    fn arrivals(drift: Option<Drift>) -> Vec<RequestArrival> {
        let sizes = Sizes::Apart {
            prompt: Lengths::Lognormal { median: 500.0, sigma: 0.0, min: 1, max: 1_200 },
            output: Lengths::Fixed(100),
        };
        let rate = Rate::constant(1.0).unwrap();
        let drawn = RateLoad { rate, variation: 0.0, sizes, drift };
        Load::Drawn(drawn).arrivals(7, 0).take(300).collect()
    }

    #[test]
    fn lengths_that_drift_are_so_many_times_as_long_and_come_at_the_same_times() {
        let points = vec![
            (Micros::from_secs(100), LengthFactors { prompt: 1.0, output: 1.0 }),
            (Micros::from_secs(200), LengthFactors { prompt: 3.0, output: 0.5 }),
        ];
        let drift = Drift::through(points).unwrap();
        let steady = arrivals(None);
        let drifting = arrivals(Some(drift.clone()));

        for (steady, drifting) in steady.iter().zip(drifting) {
            assert_eq!(steady.at, drifting.at);
            let LengthFactors { prompt, output } = drift.at(steady.at);
            assert_eq!(drifting.size.prompt, rounded(500.0 * prompt).min(1_200));
            assert_eq!(drifting.size.output, rounded(100.0 * output));
        }
    }

    fn within(replay: ReplayLoad, seconds: u64) -> usize {
        let arrivals = Load::Replay(replay).arrivals(1, 0);
        let mut last = Micros::ZERO;

        arrivals
            .take_while(|RequestArrival { at, .. }| {
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
        let [one, other] = [1, 2].map(|seed| replay(2.0, 1.0).round(seed, 0).0);
        assert!(!one.eq(other), "another seed shifts otherwise");
    }

    #[test]
    fn copies_and_rounds_of_a_trace_have_prompts_of_their_own() {
        let prompt = Some(PromptId { place: 7, world: 0 });
        let one = replay(2.0, 1.0);
        let rows = one.rows.iter().take(1).map(|row| Row { prompt, ..*row }).collect();
        let arrivals = Load::Replay(ReplayLoad { rows, ..one }).arrivals(1, 0);

        let mut worlds: Vec<u32> =
            arrivals.take(6).filter_map(|it| Some(it.prompt?.world)).collect();
        worlds.sort_unstable();
        assert_eq!(worlds, [0, 1, 2, 3, 4, 5]);
    }
}
