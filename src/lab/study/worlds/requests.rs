//! Requests of a world: how long they are, and what counts as serving them well.

use std::time::Duration;

use crate::simulate::peers::profile::Size;
use crate::simulate::scenario::Slo;
use crate::study::file::LengthKeys;
use crate::study::worlds::course::digits;
use crate::study::worlds::draw::Changes;
use crate::study::worlds::drift::Factors;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::priors::{
    ALONE, Aspect, HITS, HITS_AGENTS, HITS_SOME, ITL, OUTPUT_SIGMA, PROMPT_SIGMA, TASKS, TTFT,
    Task, output_median, prompt_median,
};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// The longest prompt of models in use, and the longest answer that is asked for.
const PROMPT_MAX: f64 = 131_072.0;
const OUTPUT_MAX: f64 = 16_384.0;

/// Shares of the smallest KV cache that one prompt and one answer may take.
const PROMPT_SHARE: f64 = 0.5;
const OUTPUT_SHARE: f64 = 0.25;

/// Tokens from which a prompt is long, and how much later the first token may be for each beyond.
const LONG_PROMPT: f64 = 4_000.0;
const PER_TOKEN: Duration = Duration::from_millis(1);

/// Standard deviations from the median to the 99th percentile.
const P99: f64 = 2.326;

/// A distribution of lengths: lognormal from its median, clipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) median: f64,
    sigma: f64,
    max: f64,
}

/// How long requests are, and what of them a prefix cache has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) task: &'static str,
    pub(crate) prompt: Length,
    pub(crate) output: Length,
    /// The share of each prompt.
    pub(crate) hits: f64,
}

/// What counts as serving a request well, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objectives {
    pub(crate) ttft: f64,
    pub(crate) itl: f64,
}

// === impl Length ===

impl Length {
    /// The length of which so many standard deviations are shorter.
    fn at(&self, deviations: f64) -> f64 {
        (self.median * (self.sigma * deviations).exp()).clamp(1.0, self.max)
    }

    /// The same distribution so many times as long; the clip stays where it is.
    fn stretched(&self, factor: f64) -> Self {
        Self { median: self.median * factor, ..*self }
    }

    /// The mean, by the trapezoidal rule over five standard deviations on each side.
    fn mean(&self) -> f64 {
        let mut sum = 0.0;
        let mut weights = 0.0;
        for step in -100..=100 {
            let deviations = f64::from(step) / 20.0;
            let weight = (-deviations * deviations / 2.0).exp();
            sum += weight * self.at(deviations);
            weights += weight;
        }
        sum / weights
    }

    /// As a scenario says it.
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
        let hits = HITS.draw(&mut random);
        let hits = match task.value {
            Task::Agent => HITS_AGENTS.draw(&mut random),
            Task::Chat | Task::Classify if hits.value => HITS_SOME.draw(&mut random),
            Task::Chat | Task::Classify => 0.0,
        };
        let sigma = |sigma| digits(sigma, 2);
        Self {
            task: task.name,
            prompt: Length {
                median: prompt_median.round(),
                sigma: sigma(prompt_sigma),
                max: prompt_max,
            },
            output: Length {
                median: output_median.round().max(1.0),
                sigma: sigma(output_sigma),
                max: output_max,
            },
            hits: digits(hits, 2),
        }
    }

    /// The mean size of requests that are so many times as long.
    pub(crate) fn mean(&self, factors: Factors) -> Size {
        let Self { prompt, output, .. } = self.stretched(factors);
        Size { prompt: prompt.mean(), output: output.mean() }
    }

    /// Other requests with these medians and this spread, within the same limits.
    pub(crate) fn others(&self, prompt: f64, output: f64, sigma: f64) -> Self {
        let like = |length: Length, median: f64| Length {
            median: median.min(length.max / 2.0).round().max(1.0),
            sigma: digits(sigma, 2),
            max: length.max,
        };
        Self { prompt: like(self.prompt, prompt), output: like(self.output, output), ..*self }
    }

    /// The same requests so many times as long.
    fn stretched(&self, factors: Factors) -> Self {
        Self {
            prompt: self.prompt.stretched(factors.prompt),
            output: self.output.stretched(factors.output),
            ..*self
        }
    }
}

// === impl Objectives ===

impl Objectives {
    /// Objectives that each of these engines meets for a request that it has alone, also after these
    /// changes.
    pub(crate) fn draw(
        lot: Lot,
        requests: &Requests,
        machines: &[Machine],
        changes: Changes,
    ) -> Self {
        let mut random = lot.of(Aspect::Objectives);
        let ttft = TTFT.draw(&mut random);
        let itl = ITL.draw(&mut random) / 1e3;
        let slow = machines.iter().take(1).map(|it| it.slowed(changes.slowdowns.slowness()));
        let all: Vec<Machine> = machines.iter().copied().chain(slow).collect();
        let drawn = Self { ttft, itl }.met_by(requests, &all);
        let Self { ttft, itl } = drawn.met_by(&requests.stretched(changes.drift.last), &all);
        Self { ttft: digits(ttft + 0.005, 3), itl: (itl * 1e3).ceil() / 1e3 }
    }

    /// The same, but so that each of these engines meets them for a request that it has alone.
    fn met_by(self, requests: &Requests, machines: &[Machine]) -> Self {
        let Self { ttft, itl } = self;
        let context = requests.prompt.at(P99) + requests.output.at(P99);
        let lengths = [0.0, P99].map(|deviations| requests.prompt.at(deviations));
        let prompts = lengths.into_iter().chain([requests.prompt.at(P99).min(LONG_PROMPT)]);
        let first = |machine: &Machine, prompt: f64| {
            let allowed = (prompt - LONG_PROMPT).max(0.0) * PER_TOKEN.as_secs_f64();
            ALONE * machine.prefill(prompt * (1.0 - requests.hits)) - allowed
        };
        let ttft = machines.iter().fold(ttft, |ttft, machine| {
            prompts.clone().fold(ttft, |ttft, prompt| ttft.max(first(machine, prompt)))
        });
        let itl = machines.iter().fold(itl, |itl, it| itl.max(ALONE * it.decode(context)));
        Self { ttft, itl }
    }

    /// As a scenario says it.
    pub(crate) fn written(&self) -> Written<Slo> {
        let duration = |seconds| WrittenDuration(Duration::from_secs_f64(seconds));
        Written::<Slo> {
            ttft: Some(duration(self.ttft)),
            itl: Some(duration(self.itl)),
            ttft_per_token: Some(WrittenDuration(PER_TOKEN)),
            ..Default::default()
        }
    }
}
