//! Draws the requests of a model from the arrivals and lengths in a trace.

use rand::RngExt as _;

use crate::backtest::demand::{INTERVAL, Interval, RecordedLoad};
use crate::simulate::Micros;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::workload::load::{Row, Size};
use plimsoll_core::observe::histogram::Histogram;

/// The longest request that is simulated; longer ones fit no engine.
const LENGTH_MAX: f64 = 1e6;

/// Draws the requests of each interval: as many as arrived, at random times in it. Their lengths
/// follow the requests that finished in it.
pub(super) fn rows(load: &RecordedLoad, seed: u64, model: usize, span: Micros) -> Vec<Row> {
    let mut times = generator(seed, Purpose::Times, model);
    let mut lengths = generator(seed, Purpose::Lengths, model);
    let prompts = LengthDistribution::of(&load.prompts);
    let answers = LengthDistribution::of(&load.answers);
    let mut rows = Vec::new();
    let mut owed = 0.0;
    let mut known = Interval::default();
    for (at, interval) in load.intervals.iter().enumerate() {
        if interval.prompts[1] >= 1.0 {
            known.prompts = interval.prompts;
        }
        if interval.answers[1] >= 1.0 {
            known.answers = interval.answers;
        }

        owed += interval.arrived;
        while owed >= 0.5 {
            owed -= 1.0;
            let second = (at as f64 + times.random::<f64>()) * INTERVAL;
            let prompt = prompts.draw(lengths.random::<f64>(), mean(known.prompts));
            let output = answers.draw(lengths.random::<f64>(), mean(known.answers));
            let size = Size { prompt, output };
            rows.push(Row { at: Micros::from_secs_f64(second).min(span), size, prompt: None });
        }
    }

    rows.sort_by_key(|row| row.at);
    rows
}

/// The mean of so many tokens in so many requests; `None` without any.
fn mean([tokens, requests]: [f64; 2]) -> Option<f64> {
    (requests > 0.0).then(|| tokens / requests)
}

/// The distribution of lengths around their mean.
struct LengthDistribution {
    /// Upper edges of buckets, with the share of lengths up to each.
    buckets: Vec<(f64, f64)>,
    /// The mean of the recorded lengths, and the mean of drawn lengths before scaling. They differ
    /// by up to a tenth, because lengths are not uniform within a bucket.
    mean: f64,
    drawn: f64,
}

impl LengthDistribution {
    fn of(histogram: &Histogram) -> Self {
        let total = histogram.buckets.last().map_or(0.0, |(_, count)| *count);
        let mean = histogram.mean().unwrap_or(1.0).max(1.0);
        let finite = histogram.buckets.iter().filter(|(edge, _)| edge.is_finite() && total > 0.0);
        let buckets: Vec<(f64, f64)> = finite.map(|(edge, count)| (*edge, count / total)).collect();
        let mut low = 0.0;
        let mut below = 0.0;
        let mut drawn = 0.0;
        for &(edge, upto) in &buckets {
            drawn += (upto - below) * f64::midpoint(low, edge);
            (low, below) = (edge, upto);
        }

        drawn += (1.0 - below) * low;
        Self { mean, drawn: if drawn > 0.0 { drawn } else { mean }, buckets }
    }

    /// The length at this quantile, scaled so that the mean of all lengths is `mean`, if given.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between one and a million"
    )]
    fn draw(&self, share: f64, mean: Option<f64>) -> u32 {
        let mut low = 0.0;
        let mut below = 0.0;
        let mut drawn = None;
        for &(edge, upto) in &self.buckets {
            if share <= upto && upto > below {
                drawn = Some(low + (edge - low) * (share - below) / (upto - below));
                break;
            }
            (low, below) = (edge, upto);
        }

        // Beyond the last edge, only the edge itself is known.
        let unscaled = drawn.unwrap_or(if self.buckets.is_empty() { self.mean } else { low });
        let moved = unscaled * mean.unwrap_or(self.mean) / self.drawn;
        moved.clamp(1.0, LENGTH_MAX).round() as u32
    }
}
