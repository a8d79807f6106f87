//! Requests of a world: their lengths, and their share in a prefix cache.

use crate::simulate::peers::profile::MeanSize;
use crate::study::file::LengthKeys;
use crate::study::worlds::drift::Factors;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::numbers::digits;
use crate::study::worlds::priors::{
    Aspect, HITS, HITS_AGENTS, HITS_SOME, OUTPUT_SIGMA, PROMPT_SIGMA, TASKS, Task, output_median,
    prompt_median,
};
use plimsoll_core::settings::Written;

/// The longest prompt of models in use, and the longest requested answer.
pub(crate) const PROMPT_MAX: f64 = 131_072.0;
pub(crate) const OUTPUT_MAX: f64 = 16_384.0;

/// Shares of the smallest KV cache that one prompt and one answer may take.
const PROMPT_SHARE: f64 = 0.5;
const OUTPUT_SHARE: f64 = 0.25;

/// A distribution of lengths: lognormal from its median, clipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthPrior {
    pub(crate) median: f64,
    pub(super) sigma: f64,
    pub(super) max: f64,
}

/// The lengths of requests, and the share of prompts in a prefix cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) task: &'static str,
    pub(crate) prompt: LengthPrior,
    pub(crate) output: LengthPrior,
    /// The share of each prompt.
    pub(crate) hits: f64,
}

// === impl LengthPrior ===

impl LengthPrior {
    /// The length at this many standard deviations above the median.
    pub(super) fn at(&self, deviations: f64) -> f64 {
        (self.median * (self.sigma * deviations).exp()).clamp(1.0, self.max)
    }

    /// The same distribution, `factor` times as long; the clip stays the same.
    fn stretched(&self, factor: f64) -> Self {
        Self { median: self.median * factor, ..*self }
    }

    fn mean(&self) -> f64 {
        self.moment(1)
    }

    /// The mean of a power of the length, by the trapezoidal rule over five standard deviations on
    /// each side.
    fn moment(&self, power: i32) -> f64 {
        let mut sum = 0.0;
        let mut weights = 0.0;
        for step in -100..=100 {
            let deviations = f64::from(step) / 20.0;
            let weight = (-deviations * deviations / 2.0).exp();
            sum += weight * self.at(deviations).powi(power);
            weights += weight;
        }

        sum / weights
    }

    /// The length in the form of a scenario.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "lengths are positive and far below the limit"
    )]
    pub(crate) fn written(&self) -> Written<LengthKeys> {
        let Self { median, sigma, max } = *self;
        if sigma <= 0.0 {
            return Written::<LengthKeys> { fixed: Some(median as u32), ..Default::default() };
        }

        Written::<LengthKeys> {
            median: Some(median),
            sigma: Some(sigma),
            max: Some(max as u32),
            ..Default::default()
        }
    }
}

// === impl Requests ===

impl Requests {
    /// Requests that fit these engines.
    pub(crate) fn draw(lot: Lot, kv_tokens: f64) -> Self {
        let mut random = lot.of(Aspect::Lengths);
        let task = TASKS.draw(&mut random);
        let prompt_max = (PROMPT_SHARE * kv_tokens).min(PROMPT_MAX).floor();
        let output_max = (OUTPUT_SHARE * kv_tokens).min(OUTPUT_MAX).floor();
        let prompt_median = prompt_median(task.value).draw(&mut random).min(prompt_max / 2.0);
        let output_median = output_median(task.value).draw(&mut random).min(output_max / 2.0);
        let prompt_sigma = PROMPT_SIGMA.draw(&mut random);
        let output_sigma = match task.value {
            Task::Chat | Task::Agent => OUTPUT_SIGMA.draw(&mut random),
            Task::Classify => 0.0,
        };

        let mut random = lot.of(Aspect::PrefixHits);
        let has_hits = HITS.draw(&mut random).value;
        let hits = match task.value {
            Task::Agent => HITS_AGENTS.draw(&mut random),
            Task::Chat | Task::Classify if has_hits => HITS_SOME.draw(&mut random),
            Task::Chat | Task::Classify => 0.0,
        };
        Self {
            task: task.name,
            prompt: LengthPrior {
                median: prompt_median.round(),
                sigma: digits(prompt_sigma, 2),
                max: prompt_max,
            },
            output: LengthPrior {
                median: output_median.round().max(1.0),
                sigma: digits(output_sigma, 2),
                max: output_max,
            },
            hits: digits(hits, 2),
        }
    }

    /// The mean size of requests that are scaled by these factors.
    pub(crate) fn mean(&self, factors: Factors) -> MeanSize {
        let Self { prompt, output, .. } = self.stretched(factors);
        let prompt_mean = prompt.mean();
        let output_mean = output.mean();
        // A long answer decodes for longer. Its length does not depend on that of its prompt.
        let context = prompt_mean + output.moment(2) / (2.0 * output_mean);
        MeanSize { prompt: prompt_mean, output: output_mean, context }
    }

    /// Other requests with these medians and this spread, within the same limits.
    pub(crate) fn others(&self, prompt: f64, output: f64, sigma: f64) -> Self {
        let lengths = [(self.prompt, prompt), (self.output, output)];
        let [prompt, output] = lengths.map(|(length, median)| LengthPrior {
            median: median.min(length.max / 2.0).round().max(1.0),
            sigma: digits(sigma, 2),
            max: length.max,
        });

        Self { prompt, output, ..*self }
    }

    /// The same requests, scaled by these factors.
    pub(super) fn stretched(&self, factors: Factors) -> Self {
        Self {
            prompt: self.prompt.stretched(factors.prompt),
            output: self.output.stretched(factors.output),
            ..*self
        }
    }
}
