//! The lengths of requests, and the work that they are for engines.

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::Memory;
use crate::observe::stride::IntervalDelta;
use crate::units::{Requests, Seconds, Tokens};

/// Finished requests from which a variant's own lengths count. With fewer, the model's lengths
/// count.
const FINISHED_MIN: f64 = 20.0;

/// Requests whose mean length is off by at most 3.5% by chance, if lengths have an exponential
/// distribution. A decaying sum of this weight is as good as twice as many requests.
const ENOUGH: f64 = 400.0;

/// The shortest time in seconds in which half of the lengths are forgotten, even with many
/// requests: the requests of one client come together.
const HALF_MIN: f64 = 30.0;

/// The mean square of an exponential distribution over the square of its mean. A lognormal
/// distribution with a sigma of 0.83 has the same. Azure's traces of 2023 have 1.92 (conversations)
/// and 1.93 (code).
const EXPONENTIAL_SQUARES: f64 = 2.0;

/// Lengths of finished requests, with recent ones weighted most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RequestLengths {
    prompt: f64,
    output: f64,
    requests: f64,
}

/// The work of engines for the requests that began their answers, with recent ones weighted most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestWork {
    /// Prompt tokens, including cached ones.
    pub prompt: f64,
    /// Prompt tokens that were computed.
    pub computed: f64,
    /// Tokens of answers after their first.
    pub decoded: f64,
    /// Engine outputs that contained these tokens.
    pub outputs: f64,
    /// Requests.
    pub begun: f64,
    /// Lengths of the prompts of finished requests.
    #[serde(default)]
    pub prompts: LengthMoments,
    /// Computed tokens of these prompts.
    #[serde(default)]
    pub computed_prompts: LengthMoments,
    /// Lengths of their answers.
    #[serde(default)]
    pub answers: LengthMoments,
}

/// The moments of a distribution of lengths, from histogram buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LengthMoments {
    /// Their number.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

// === impl RequestLengths ===

impl RequestLengths {
    pub(crate) const fn numbers(&self) -> [f64; 3] {
        [self.prompt, self.output, self.requests]
    }

    pub(crate) const fn of([prompt, output, requests]: [f64; 3]) -> Self {
        Self { prompt, output, requests }
    }

    pub(crate) fn take(&mut self, stride: &IntervalDelta) {
        let Some((prompt, output, requests)) = stride.lengths else { return };
        self.prompt += prompt.tokens();
        self.output += output.tokens();
        self.requests += requests.requests();
    }

    /// Lets lengths fade over this time. With more requests than the mean needs, they fade sooner.
    pub(crate) fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        let enough = ENOUGH / self.requests.max(ENOUGH);
        let usual = kept_after(elapsed, memory.lengths.seconds());
        let kept = usual.min(enough.max(kept_after(elapsed, HALF_MIN)));
        self.prompt *= kept;
        self.output *= kept;
        self.requests *= kept;
    }

    /// Adds this many requests of these mean lengths.
    pub(super) fn add(&mut self, requests: f64, prompt: Tokens, output: Tokens) {
        self.prompt += requests * prompt.tokens();
        self.output += requests * output.tokens();
        self.requests += requests;
    }

    /// The weighted number of requests, at least one.
    pub(super) fn count(&self) -> f64 {
        self.requests.max(1.0)
    }

    pub(super) fn means(&self) -> Option<(f64, f64)> {
        let requests = self.requests;
        (requests > 0.0).then_some((self.prompt / requests, self.output / requests))
    }

    /// The means, if they are of enough requests to tell mixes apart.
    pub(super) fn telling(&self) -> Option<(f64, f64)> {
        self.means().filter(|_| self.requests >= FINISHED_MIN)
    }
}

/// The share that is kept after this time, given the seconds in which it is halved.
fn kept_after(elapsed: Seconds, half: f64) -> f64 {
    (-elapsed.seconds() / half).exp2()
}

// === impl RequestWork ===

impl RequestWork {
    pub(super) fn take(&mut self, stride: &IntervalDelta) {
        if let Some((_, _, finished)) = stride.lengths {
            self.prompts.take(finished, stride.prompt_moments);
            self.computed_prompts.take(finished, stride.computed_moments);
            self.answers.take(finished, stride.answer_moments);
        }

        let (Some(prompt), Some(computed), Some(generated), Some(begun), Some((_, outputs))) =
            (stride.prompt, stride.computed, stride.generated, stride.begun, stride.intervals)
        else {
            return;
        };

        self.prompt += prompt.tokens();
        self.computed += computed.tokens();
        self.decoded += (generated.tokens() - begun.requests()).max(0.0);
        self.outputs += outputs.requests();
        self.begun += begun.requests();
    }

    /// Lets all sums fade over this time.
    pub(super) fn age(&mut self, elapsed: Seconds, memory: &Memory) {
        let kept = (-elapsed.seconds() / memory.lengths.seconds()).exp2();
        let Self { prompt, computed, decoded, outputs, begun, prompts, computed_prompts, answers } =
            self;
        for sum in [prompt, computed, decoded, outputs, begun] {
            *sum *= kept;
        }
        for spread in [prompts, computed_prompts, answers] {
            *spread = LengthMoments::of(spread.numbers().map(|number| kept * number));
        }
    }

    /// Forgets values that depend on the arguments of engines: cached tokens, and tokens per
    /// output.
    pub(super) fn start_over(&mut self) {
        *self = Self { prompts: self.prompts, answers: self.answers, ..Self::default() };
    }

    /// The computed share of prompts; one while too few requests are known.
    pub(super) fn computed(&self) -> f64 {
        if self.begun < FINISHED_MIN || self.prompt <= 0.0 {
            return 1.0;
        }
        (self.computed / self.prompt).min(1.0)
    }

    /// The mean square of the computed tokens of prompts over the square of their mean. That of
    /// whole prompts while too few are known.
    pub(super) fn computed_squares(&self) -> f64 {
        self.computed_prompts.known_squares().unwrap_or_else(|| self.prompts.squares())
    }

    /// Tokens per output; one while too few outputs are known.
    pub(super) fn pieces(&self) -> f64 {
        if self.outputs < FINISHED_MIN {
            return 1.0;
        }
        (self.decoded / self.outputs).max(1.0)
    }
}

// === impl LengthMoments ===

impl LengthMoments {
    fn take(&mut self, finished: Requests, moments: Option<[f64; 2]>) {
        if let Some([sum, squares]) = moments {
            self.count += finished.requests();
            self.sum += sum;
            self.squares += squares;
        }
    }

    pub(super) const fn numbers(&self) -> [f64; 3] {
        [self.count, self.sum, self.squares]
    }

    const fn of([count, sum, squares]: [f64; 3]) -> Self {
        Self { count, sum, squares }
    }

    /// The mean square over the square of the mean. While too few lengths are known, the value of
    /// an exponential distribution.
    pub(super) fn squares(&self) -> f64 {
        self.known_squares().unwrap_or(EXPONENTIAL_SQUARES)
    }

    /// The same; `None` while too few lengths are known.
    fn known_squares(&self) -> Option<f64> {
        let is_known = self.count >= FINISHED_MIN && self.sum > 0.0;
        is_known.then(|| (self.count * self.squares / (self.sum * self.sum)).max(1.0))
    }
}
