//! What an iteration costs, learned from the latencies of running replicas.
//!
//! A [`Tuner`] turns [`OperatingPoint`]s of one variant (how much arrived, how long the requests
//! were, and how long they took) into an [`Estimate`]: the coefficients of the
//! [queueing model](crate::analyze::queueing), each with the interval in which it lies.
//!
//! # Model
//!
//! An extended Kalman filter ([`Filter`]) holds the logarithms of `alpha`, `beta` and `gamma`, and
//! measures the logarithms of TTFT and ITL as the queueing model predicts them. In logarithms an
//! error is a share, a coefficient cannot become negative, and an observation that is ten times
//! the prediction is as far away as one that is a tenth of it.
//!
//! A gate keeps single outliers out, and nothing can lock it:
//!
//! - a rejected observation makes the filter less certain of itself, so the next one like it is
//!   nearer to being accepted;
//! - [`REJECTED_MAX`] rejections in a row are not outliers but news, and the filter starts anew
//!   from a fit to the rejected points;
//! - an arrival rate at which the present coefficients have no latency at all counts as a
//!   rejection, not as an error.
//!
//! The start is a guess from the first observation that knows, by Little's law, how many requests
//! shared an iteration ([`guess()`]).
//!
//! # What can be told apart
//!
//! One operating point has two latencies and three unknowns: it tells `beta` (from the difference
//! between TTFT and ITL) and what an iteration takes, but not how much of that is `gamma`. The
//! interval of `gamma` says so, and what is predicted near that point does not depend on it.
//! Several arrival rates tell all three; requests of several shapes tell the `beta` of prompts from
//! that of answers, and only then are they separate ([`Apart`]).
//!
//! # Units
//!
//! Seconds and seconds per token; variances are those of natural logarithms, without a unit.
//!
//! # Source
//!
//! The tuner of llm-d's Workload Variant Autoscaler. Its filter can lock itself out for good;
//! `docs/decisions.md` shows how, and the difference here. The
//! filter: R. E. Kalman (1960); its correction in Joseph's form: P. D. Joseph, in Bucy and Joseph,
//! *Filtering for Stochastic Processes* (1968), chapter 16.

mod explain;
mod filter;
mod guess;
mod saved;
mod window;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Confidence;
use crate::analyze::queueing::{Coefficients, Model, Room, Shape};
use crate::analyze::tuner::window::{Fit, Window};
use crate::units::{RequestRate, Requests, Seconds, TimePerToken};

pub use crate::analyze::tuner::explain::{Lesson, Unfit};
pub use crate::analyze::tuner::filter::{Filter, Step, StepError, Verdict};
pub use crate::analyze::tuner::guess::guess;
pub use crate::analyze::tuner::saved::{Agreed, SavedFilter, SavedPoint, SavedTuner};

/// How long a replica serves before its latencies are learned from: the first iterations compile
/// kernels and capture graphs, and its queue is not the one of a steady state.
pub const TRANSIENT_DELAY: Seconds = Seconds::literal(120);

/// Rejections in a row after which the filter starts anew. Two neighbouring scrapes see the same
/// disturbance; a third that agrees with them is no accident.
pub const REJECTED_MAX: u32 = 3;

/// Observations after which an estimate is more than its guess.
const SETTLED: u32 = 3;

/// Accepted observations between two attempts to tell prompts and answers apart.
const APART_EVERY: u32 = 10;

/// The share of the places in the batch from which a point says nothing: TTFT is then the length of
/// the queue, which no stationary model predicts.
const FULL_SHARE: f64 = 0.9;

/// Requests that may wait in the model of an observation, for each place in the batch.
const QUEUE_PER_PLACE: u32 = 10;

/// What one replica did over a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingPoint {
    arrival: RequestRate,
    shape: Shape,
    batch: NonZeroU32,
    latencies: Latencies,
}

/// The latencies of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Mean time to first token.
    pub ttft: Seconds,
    /// Mean time between tokens.
    pub itl: Seconds,
}

/// What was learned.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The most likely coefficients.
    pub coefficients: Coefficients,
    /// Where `alpha` lies.
    pub alpha: Interval,
    /// Where the coefficient of computing tokens lies; that of prompts, where they are apart.
    pub beta: Interval,
    /// Where `gamma` lies.
    pub gamma: Interval,
    /// Whether the data told prompts and answers apart.
    pub apart: Apart,
    /// How far it can be trusted.
    pub confidence: Confidence,
}

/// Where a coefficient lies with a probability of 95 %, as multiples of the most likely value. It
/// holds as far as the model does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    deviation: f64,
}

/// Whether the tokens of prompts and answers have coefficients of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Apart {
    /// The data does not tell them apart, so they have one.
    #[default]
    Together,
    /// They have one each.
    Separate(Split),
}

/// How much less computing a token of an answer takes than one of a prompt, or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    decode_over_prefill: f64,
}

/// Learns the coefficients of one variant.
#[derive(Clone, Debug)]
pub struct Tuner {
    filter: Option<Filter>,
    window: Window,
    apart: Apart,
    accepted: u32,
    rejected: u32,
}

// === impl OperatingPoint ===

impl OperatingPoint {
    /// A point at which something arrived and took time. `None` where it did not: there is nothing
    /// to learn from it.
    #[must_use]
    pub fn new(
        arrival: RequestRate,
        shape: Shape,
        batch: NonZeroU32,
        latencies: Latencies,
    ) -> Option<Self> {
        let Latencies { ttft, itl } = latencies;
        (arrival > RequestRate::ZERO
            && shape.input().tokens() > 0.0
            && ttft > Seconds::ZERO
            && itl > Seconds::ZERO)
            .then_some(Self { arrival, shape, batch, latencies })
    }

    /// The requests that shared an iteration, by Little's law: arrivals times the time that each
    /// was there. Those that waited are counted too.
    #[must_use]
    pub fn present(&self) -> Requests {
        let Latencies { ttft, itl } = self.latencies;
        let there = ttft.seconds() + self.shape.output().tokens() * itl.seconds();
        Requests::new(self.arrival.requests_per_second() * there).unwrap_or_default()
    }

    /// What the model predicts here, by these coefficients.
    fn predict(&self, coefficients: Coefficients) -> Option<Latencies> {
        let queue = self.batch.get().saturating_mul(QUEUE_PER_PLACE);
        let room = Room { batch: self.batch, queue };
        let at = Model::new(coefficients, self.shape, room).at(self.arrival).ok()?;
        Some(Latencies { ttft: at.ttft, itl: at.itl })
    }

    fn is_full(&self) -> bool {
        self.present().requests() >= FULL_SHARE * f64::from(self.batch.get())
    }
}

// === impl Interval ===

impl Interval {
    /// The largest factor by which the coefficient may be above or below its most likely value.
    #[must_use]
    pub fn factor(self) -> f64 {
        (NORMAL_95 * self.deviation).exp()
    }
}

/// How many standard deviations around the mean hold 95 % of a normal distribution.
const NORMAL_95: f64 = 1.96;

// === impl Apart ===

impl Apart {
    /// Coefficients with this `alpha`, `beta` and `gamma`, in that order; `None` when one of them
    /// is no time.
    fn coefficients(self, [alpha, beta, gamma]: [f64; 3]) -> Option<Coefficients> {
        let ratio = match self {
            Self::Together => 1.0,
            Self::Separate(split) => split.decode_over_prefill,
        };
        Some(Coefficients {
            alpha: Seconds::new(alpha)?,
            beta_prefill: TimePerToken::new(beta)?,
            beta_decode: TimePerToken::new(beta * ratio)?,
            gamma: TimePerToken::new(gamma)?,
        })
    }
}

// === impl Tuner ===

impl Tuner {
    /// A tuner that has learned nothing.
    #[must_use]
    pub fn new() -> Self {
        let window = Window::default();
        Self { filter: None, window, apart: Apart::Together, accepted: 0, rejected: 0 }
    }

    /// Learns from what one replica did, which has served for so long. Where nobody knows for how
    /// long, it is taken to be long enough: what is listed in a file has no start.
    pub fn learn(&mut self, served: Option<Seconds>, point: &OperatingPoint) -> Lesson {
        if let Some(served) = served
            && served < TRANSIENT_DELAY
        {
            let remaining = TRANSIENT_DELAY.seconds() - served.seconds();
            let remaining = Seconds::new(remaining).unwrap_or_default();
            return Lesson::Unfit(Unfit::Transient { remaining });
        }
        if point.is_full() {
            let present = point.present();
            return Lesson::Unfit(Unfit::Full { present, batch: point.batch });
        }
        self.window.add(point);
        let Some(filter) = &mut self.filter else {
            return self.start();
        };
        match filter.step(point) {
            Ok(Step { verdict: Verdict::Accepted, nis }) => {
                self.accepted = self.accepted.saturating_add(1);
                self.rejected = 0;
                self.window.confirm();
                if self.accepted.is_multiple_of(APART_EVERY) {
                    self.tell_apart();
                }
                Lesson::Accepted { nis }
            }
            Ok(Step { verdict: Verdict::Rejected, nis }) => self.reject(Some(nis)),
            Err(StepError::NoPrediction) => {
                filter.doubt();
                self.reject(None)
            }
        }
    }

    /// What was learned; `None` before the first point.
    #[must_use]
    pub fn estimate(&self) -> Option<Estimate> {
        let filter = self.filter.as_ref()?;
        let [alpha, beta, gamma] = filter.deviations().map(|deviation| Interval { deviation });
        let confidence = if self.accepted < SETTLED {
            Confidence::Assumed
        } else if self.rejected > 0 {
            Confidence::Remembered
        } else {
            Confidence::Measured
        };
        let coefficients = filter.coefficients()?;
        Some(Estimate { coefficients, alpha, beta, gamma, apart: self.apart, confidence })
    }

    /// Counts a rejection; starts anew when there are too many in a row.
    fn reject(&mut self, nis: Option<f64>) -> Lesson {
        self.rejected += 1;
        if self.rejected < REJECTED_MAX {
            return Lesson::Rejected { nis, in_a_row: self.rejected };
        }
        self.window.forget_confirmed();
        self.start()
    }

    /// Starts the filter from a fit to the window.
    fn start(&mut self) -> Lesson {
        self.rejected = 0;
        self.accepted = 0;
        self.apart = Apart::Together;
        let Some(Fit { state, covariance, .. }) = self.window.fit_together() else {
            self.filter = None;
            return Lesson::Unfit(Unfit::NoFit);
        };
        self.filter = Some(Filter::ours(&state, covariance, self.apart));
        self.accepted = 1;
        self.window.confirm();
        Lesson::Started { points: self.window.len() }
    }

    /// Gives prompts and answers coefficients of their own, if the window tells them apart.
    fn tell_apart(&mut self) {
        let Some(coefficients) = self.filter.as_ref().and_then(Filter::coefficients) else {
            return;
        };
        let Some(Fit { state, covariance, apart }) = self.window.fit_apart(coefficients) else {
            return;
        };
        self.filter = Some(Filter::ours(&state, covariance, apart));
        self.apart = apart;
    }
}

impl Default for Tuner {
    fn default() -> Self {
        Self::new()
    }
}
