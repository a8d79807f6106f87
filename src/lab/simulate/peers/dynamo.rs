//! Dynamo's planner, for engines that both prefill and decode.
//!
//! Its two modes decide separately in this model: [`load`] reacts every 5 s, [`throughput`]
//! predicts every 180 s. Both use a model of an engine's iteration ([`Iteration`]).
//!
//! # Source
//!
//! ai-dynamo/dynamo, `components/src/dynamo/planner`: `core/load_scaling.py` at commit 0c6da1e,
//! `core/throughput_scaling.py` at 0c9050c, `core/perf_model/agg.py` at 518a702, intervals and
//! sensitivity of `config/defaults.py` at 1ca6015.
//!
//! # Limits
//!
//! The original fits the iteration time to the engines' reports of each forward pass. In the
//! simulator the fit is perfect: the coefficients are the engine's own. There is no GPU budget
//! except the variant's maximum replicas.

pub(crate) mod load;
pub(crate) mod throughput;

use crate::simulate::replica::settings::Settings;

/// The duration of an iteration: `wall_time = f(prompt tokens, KV tokens that are read)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iteration {
    fixed: f64,
    per_prompt_token: f64,
    per_kv_token: f64,
}

impl Iteration {
    /// The best fit for this engine while each decoding request has `context` tokens.
    pub(crate) fn of(engine: &Settings, context: f64) -> Self {
        let step = &engine.step;
        Self {
            fixed: step.fixed() * 1e-6,
            per_prompt_token: step.beta * 1e-6,
            per_kv_token: (step.gamma + step.delta / context.max(1.0)) * 1e-6,
        }
    }

    /// The duration of an iteration in seconds.
    pub(crate) fn time(&self, prompt_tokens: f64, kv_tokens: f64) -> f64 {
        let work = self.per_prompt_token * prompt_tokens + self.per_kv_token * kv_tokens;
        (self.fixed + work).max(1e-6)
    }

    /// Seconds until the first token of a request of `usual` length behind a queue
    /// (`estimate_next_ttft`).
    pub(crate) fn ttft(&self, queued: f64, usual: f64, chunk: f64, kv_tokens: f64) -> f64 {
        let tokens = queued + usual;
        if tokens <= 0.0 || chunk <= 0.0 {
            return 0.0;
        }

        let whole = (tokens / chunk).floor();
        let rest = tokens - whole * chunk;
        let last = if rest > 0.0 { self.time(rest, kv_tokens) } else { 0.0 };
        whole * self.time(chunk, kv_tokens) + last
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::simulate::replica::settings::{Admission, StepTime};

    /// An engine whose step takes 10 ms, 20 us per prompt token, 40 us per request, 0.04 us per KV
    /// token.
    pub(crate) fn engine() -> Settings {
        Settings {
            step: StepTime::dense(10_000.0, 20.0, 40.0, 0.04),
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            block_size: 16,
            kv_blocks: 20_000,
            admission: Admission::WholePrompt,
        }
    }

    #[test]
    fn a_first_token_takes_the_iterations_that_its_prompt_and_the_queue_need() {
        let iteration = Iteration::of(&engine(), 1000.0);
        // 10 ms, 20 us per prompt token, 0.08 us per KV token.
        assert!((iteration.time(2048.0, 100_000.0) - 0.058_96).abs() < 1e-9);
        let two = iteration.ttft(2048.0, 1000.0, 2048.0, 0.0);
        assert!((two - (0.050_96 + 0.030)).abs() < 1e-9, "{two}");
        assert!(iteration.ttft(0.0, 0.0, 2048.0, 0.0) < 1e-12);
    }
}
