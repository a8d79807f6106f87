//! Pairs of a model and accelerators with the time of an engine's iteration.
//!
//! An iteration takes `alpha + beta * prompt tokens + delta * decoding requests + gamma * tokens of
//! the cache that are read`. If `alpha` was fitted to kernels, it includes a millisecond for the
//! host.

/// A model on accelerators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) model: &'static str,
    pub(crate) accelerator: &'static str,
    /// Dollars per hour.
    pub(crate) cost: f64,
    /// Milliseconds.
    pub(crate) alpha: f64,
    /// Microseconds.
    pub(crate) beta: f64,
    /// Microseconds.
    pub(crate) delta: f64,
    /// Nanoseconds.
    pub(crate) gamma: f64,
    /// Tokens of KV cache that fit next to the weights.
    pub(crate) kv_tokens: f64,
    pub(crate) experts: ExpertMixture,
}

/// The kind of a model: dense, or a mixture with the time of its experts until all are active.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertMixture {
    Dense,
    /// A mixture whose time is linear in the tokens of a step.
    Linear,
    /// Tokens of a step until all experts are active, and microseconds per token.
    Waking(u32, f64),
}

/// The pairs.
///
/// # Source
///
/// - `llama-8b`, `qwen-32b`, `llama-70b`: fits to the vLLM kernel data of aiconfigurator 0.12
///   (decode batches of 1 to 256 at contexts of 128 to 8192; 2 to 4% off). L4 is derived from the
///   L40S by bandwidth and FLOPS.
/// - `qwen-7b`, `qwen-14b`, `mixtral`, `gpt-oss-120b`: fits of BLIS to runs of vLLM 0.8 to 0.11
///   (inference-sim, `defaults.yaml` at 458041ff), which have no `gamma`; it is the bytes of a
///   token over 0.9 of the memory's bandwidth.
/// - `qwen-30b-a3b`: the fit of docs/simulator.md, with its experts.
/// - `gpt-oss-120b` on H200s: the fit on H100s, scaled by bandwidth and FLOPS.
/// - `llama-405b`: derived; weights in FP8 over 0.8 of eight H100s' bandwidth.
///
/// Prices are the hourly on-demand prices of 2026, for all accelerators of a replica.
pub(crate) const PAIRS: [Pair; 20] = [
    dense("llama-8b", "L4", 0.75, [68.0, 145.0, 110.0, 550.0], 13e3),
    dense("llama-8b", "L40S", 1.30, [23.2, 48.0, 37.0, 190.0], 194e3),
    dense("llama-8b", "A100", 1.80, [12.5, 53.0, 37.0, 81.0], 458e3),
    dense("llama-8b", "H100", 2.95, [7.4, 15.6, 11.0, 42.0], 458e3),
    dense("llama-8b", "H200", 3.80, [5.9, 16.3, 12.0, 30.0], 917e3),
    dense("qwen-7b", "A100", 1.80, [10.04, 81.1, 60.0, 32.0], 976e3),
    dense("qwen-7b", "H100", 2.95, [7.05, 19.5, 25.4, 19.0], 976e3),
    dense("qwen-14b", "H100", 2.95, [13.58, 39.4, 27.3, 54.0], 260e3),
    dense("qwen-32b", "2xA100", 3.60, [25.6, 123.0, 90.0, 86.0], 294e3),
    dense("qwen-32b", "2xH100", 5.90, [14.6, 39.0, 24.0, 43.0], 330e3),
    dense("qwen-32b", "H200", 3.80, [20.0, 72.0, 37.0, 59.0], 270e3),
    dense("llama-70b", "4xL40S", 5.20, [33.5, 1160.0, 1065.0, 51.0], 289e3),
    dense("llama-70b", "4xA100", 7.20, [28.6, 152.0, 103.0, 55.0], 497e3),
    dense("llama-70b", "4xH100", 11.80, [16.2, 52.0, 32.0, 27.0], 497e3),
    dense("llama-70b", "2xH200", 7.60, [21.9, 87.0, 40.0, 35.0], 401e3),
    dense("llama-405b", "8xH100", 23.60, [20.9, 103.0, 60.0, 21.0], 310e3),
    Pair {
        experts: ExpertMixture::Waking(32, 442.0),
        ..dense("qwen-30b-a3b", "H100", 2.95, [5.2, 9.9, 21.0, 56.0], 98e3)
    },
    Pair {
        experts: ExpertMixture::Linear,
        ..dense("mixtral", "2xH100", 5.90, [12.62, 30.0, 29.7, 21.0], 359e3)
    },
    Pair {
        experts: ExpertMixture::Linear,
        ..dense("gpt-oss-120b", "4xH100", 11.80, [5.6, 21.1, 7.4, 6.1], 2900e3)
    },
    Pair {
        experts: ExpertMixture::Linear,
        ..dense("gpt-oss-120b", "2xH200", 7.60, [7.8, 42.2, 14.8, 8.5], 2500e3)
    },
];

const fn dense(
    model: &'static str,
    accelerator: &'static str,
    cost: f64,
    [alpha, beta, delta, gamma]: [f64; 4],
    kv_tokens: f64,
) -> Pair {
    let experts = ExpertMixture::Dense;
    Pair { model, accelerator, cost, alpha, beta, delta, gamma, kv_tokens, experts }
}

// === impl Pair ===

impl Pair {
    /// Returns true if the model is a mixture of experts.
    pub(crate) const fn is_mixture(&self) -> bool {
        !matches!(self.experts, ExpertMixture::Dense)
    }
}
