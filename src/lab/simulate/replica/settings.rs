//! The settings of an engine.

use crate::simulate::Micros;
use crate::simulate::replica::arrivals::Fetch;
use crate::simulate::replica::request::Request;
use crate::simulate::replica::speculation::Speculation;

/// The default seats of vLLM's V1 engine for an online server.
pub const SEATS: u32 = 256;

/// The default tokens per block of vLLM's KV cache.
pub const BLOCK_SIZE: u32 = 16;

/// The limits and the speed of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The duration of a step.
    pub step: StepTime,
    /// Seats in the batch.
    pub max_num_seqs: u32,
    /// Tokens that one step may compute, prompts and decodes together.
    pub max_num_batched_tokens: u32,
    /// Tokens in a block of the KV cache.
    pub block_size: u32,
    /// Blocks that requests can hold.
    pub kv_blocks: u32,
    /// The rules for admission and preemption.
    pub admission: Admission,
}

/// Options that make an engine less regular than its limits and its speed suggest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// API servers in front of it (`--api-server-count`).
    pub api_servers: u32,
    /// Pipeline stages (`--pipeline-parallel-size`), each of which has a step of its own.
    pub stages: u32,
    /// The speculation; `None` if the engine does not speculate.
    pub speculation: Option<Speculation>,
    /// The standard deviation of the logarithm of a step's time.
    pub noise: f64,
    /// The fetching of prompts' caches; `None` to fetch nothing.
    pub fetch: Option<Fetch>,
}

/// The coefficients of a step's time, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Microseconds per step, for reading the weights and launching kernels.
    pub alpha: f64,
    /// Microseconds per computed prompt token.
    pub beta: f64,
    /// Microseconds per request that decodes one token.
    pub delta: f64,
    /// Microseconds per KV cache token that a decode reads.
    pub gamma: f64,
    /// The additional time of a mixture of experts.
    pub experts: Experts,
}

/// The weights that a mixture of experts reads. Each of the first tokens of a step activates more
/// experts, until all are active. Together with the rest of a step's time, that gives two straight
/// lines over the batch size, of which the first is steeper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The tokens, of prompts and decodes together, that activate all experts.
    pub tokens: u32,
    /// Microseconds per each of these tokens.
    pub per_token: f64,
}

/// The conditions for admitting a waiting request, and the state that a preempted request keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The whole prompt must fit into the free blocks. A preempted request keeps its generated
    /// tokens, which become a part of its prompt. vLLM works like this.
    WholePrompt,
    /// The first chunk must fit, and a preempted request starts from the beginning.
    FirstChunk,
}

/// The reason why settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A count is zero that must not be.
    #[error("seats, block size and KV blocks must not be zero")]
    Zero,
    /// The step's budget is smaller than its seats.
    #[error("max_num_batched_tokens must be at least max_num_seqs")]
    BudgetBelowSeats,
    /// A coefficient is negative or not a number.
    #[error("the coefficients of a step's time must be finite and not negative")]
    Coefficient,
}

// === impl Options ===

impl Default for Options {
    /// One API server, no pipeline, no speculation, no noise, no fetching.
    fn default() -> Self {
        Self { api_servers: 1, stages: 1, speculation: None, noise: 0.0, fetch: None }
    }
}

// === impl Experts ===

impl Experts {
    /// A dense model, which has no experts.
    pub const NONE: Self = Self { tokens: 0, per_token: 0.0 };
}

// === impl Settings ===

impl Settings {
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let Self { step, max_num_seqs, max_num_batched_tokens, block_size, kv_blocks, .. } = *self;
        if max_num_seqs == 0 || block_size == 0 || kv_blocks == 0 {
            return Err(SettingsError::Zero);
        }
        if max_num_batched_tokens < max_num_seqs {
            return Err(SettingsError::BudgetBelowSeats);
        }

        let StepTime { alpha, beta, delta, gamma, experts: Experts { per_token, .. } } = step;
        if [alpha, beta, delta, gamma, per_token].iter().any(|&c| !c.is_finite() || c < 0.0) {
            return Err(SettingsError::Coefficient);
        }

        Ok(())
    }

    pub(crate) const fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Returns true if the engine can finish a request that has the whole cache to itself.
    #[must_use]
    pub const fn can_serve(&self, request: &Request) -> bool {
        let most = request.prompt as u64 + request.output as u64 - 1;
        request.prompt > 0
            && request.output > 0
            && most <= self.kv_blocks as u64 * self.block_size as u64
    }
}

impl StepTime {
    /// The same coefficients, multiplied by `factor`.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> Self {
        let Self { alpha, beta, delta, gamma, experts: Experts { tokens, per_token } } = *self;
        Self {
            alpha: alpha * factor,
            beta: beta * factor,
            delta: delta * factor,
            gamma: gamma * factor,
            experts: Experts { tokens, per_token: per_token * factor },
        }
    }

    /// A model without a mixture of experts, with coefficients in the order of the fields.
    #[must_use]
    pub const fn dense(alpha: f64, beta: f64, delta: f64, gamma: f64) -> Self {
        Self { alpha, beta, delta, gamma, experts: Experts::NONE }
    }

    /// The duration of a step.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cut to whole microseconds is the rule; a signed number is sooner made"
    )]
    pub fn of(&self, prefill_tokens: u32, decodes: u32, kv_tokens: u64) -> Micros {
        let Self { alpha, beta, delta, gamma, experts } = *self;
        let mut micros = (alpha + beta * f64::from(prefill_tokens)) + delta * f64::from(decodes);
        if gamma > 0.0 {
            micros += gamma * kv_tokens as f64;
        }
        if experts.tokens > 0 {
            let awake = prefill_tokens.saturating_add(decodes).min(experts.tokens);
            micros += experts.per_token * f64::from(awake);
        }

        Micros::new((micros as i64).unsigned_abs().max(1))
    }

    /// The microseconds of an empty step with all experts active.
    #[must_use]
    pub fn fixed(&self) -> f64 {
        self.alpha + self.experts.per_token * f64::from(self.experts.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_cut_to_whole_microseconds_and_never_takes_none() {
        let step = StepTime::dense(7050.0, 19.5, 25.4, 0.0);
        assert_eq!(step.of(374, 0, 0), Micros::new(14_343));
        assert_eq!(step.of(0, 1, 1_000_000), Micros::new(7_075));
        let reading = StepTime { gamma: 0.042, ..step };
        assert_eq!(reading.of(0, 1, 100_000), Micros::new(11_275));
        let instant = StepTime::dense(0.0, 0.0, 0.0, 0.0);
        assert_eq!(instant.of(1, 1, 1), Micros::new(1));
    }

    #[test]
    fn a_mixture_of_experts_gets_slower_with_the_first_tokens_and_hardly_with_more() {
        // Qwen3-30B-A3B on an H100, at 1000 tokens of context. aiconfigurator 0.12 gives 4.7, 20.8
        // and 28.3 ms for batches of 1, 32 and 128.
        let experts = Experts { tokens: 32, per_token: 442.0 };
        let step = StepTime { alpha: 4_180.0, beta: 9.9, delta: 21.0, gamma: 0.056, experts };
        for (batch, published) in [(1, 4.7), (32, 20.8), (128, 28.3)] {
            let millis = step.of(0, batch, u64::from(batch) * 1_000).seconds() * 1e3;
            assert!((millis / published - 1.0).abs() < 0.01, "{millis} for {published}");
        }

        let prompt = step.of(2_000, 0, 0).micros() - step.of(1_000, 0, 0).micros();
        assert_eq!(prompt, 9_900, "a prompt wakes them all");
        assert!((step.fixed() - 18_324.0).abs() < 1e-9);
    }

    #[test]
    fn settings_that_vllm_refuses_are_refused() {
        let step = StepTime::dense(1.0, 0.0, 0.0, 0.0);
        let good = Settings {
            step,
            max_num_seqs: 8,
            max_num_batched_tokens: 8,
            block_size: 16,
            kv_blocks: 1,
            admission: Admission::WholePrompt,
        };

        assert_eq!(good.check(), Ok(()));
        assert_eq!(Settings { kv_blocks: 0, ..good }.check(), Err(SettingsError::Zero));
        assert_eq!(
            Settings { max_num_seqs: 9, ..good }.check(),
            Err(SettingsError::BudgetBelowSeats)
        );
        let unknown = StepTime { beta: f64::NAN, ..step };
        assert_eq!(Settings { step: unknown, ..good }.check(), Err(SettingsError::Coefficient));
    }
}
