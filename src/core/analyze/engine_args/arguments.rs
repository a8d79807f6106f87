//! The settings of one engine, and the limits that follow from them.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::engine::Engine;
use crate::settings;
use crate::units::{Fraction, Requests, Tokens};

/// The minimum number of tokens that vLLM's V0 engine computes in a step, with or without chunks.
const STEP_TOKENS_V0: f64 = 2048.0;

/// Sequences that either engine runs at once by default.
const SEQUENCES: f64 = 256.0;

/// Tokens that vLLM's V1 engine and `SGLang` compute in a step by default, with chunked prefill.
const STEP_TOKENS_CHUNKED: f64 = 8192.0;

/// The settings of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineArguments {
    /// The engine.
    pub engine: Engine,
    /// The generation of the engine.
    pub generation: Generation,
    /// The share of GPU memory that the engine may use.
    pub gpu_memory: Fraction,
    /// Tokens in a block of the KV cache.
    pub block_size: Tokens,
    /// The data type of the KV cache, such as `fp8_e5m2`; `auto` is the model's own type.
    pub kv_dtype: Arc<str>,
    /// The number of GPUs that the engine uses, and the way it divides the work among them.
    pub parallel: Parallelism,
    /// Blocks in the KV cache, if set.
    pub kv_blocks: Option<NonZeroU64>,
    /// Tokens in the KV cache, if set.
    pub kv_tokens: Option<Tokens>,
    /// Tokens computed per step, if set.
    pub step_tokens: Option<Tokens>,
    /// Sequences that run at once, if set.
    pub sequences: Option<Requests>,
    /// The longest request, prompt and output together; `None` if the model decides.
    pub context: Option<Tokens>,
    /// The execution mode of steps.
    pub execution: Execution,
    /// The prefill mode of prompts.
    pub prefill: Prefill,
    /// Draft tokens tried per step and sequence (speculative decoding).
    pub draft_tokens: Option<NonZeroU32>,
}

/// Generations of an engine that schedule differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// vLLM before its V1 engine, or with `VLLM_USE_V1=0`.
    V0,
    /// vLLM's V1 engine, and every `SGLang`.
    #[default]
    V1,
}

settings! { plain: Generation; }

/// The execution mode of an engine's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// Steps run as captured CUDA graphs.
    #[default]
    Graphs,
    /// Steps run one operation at a time.
    Eager,
}

/// The prefill mode of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// Prompts are computed in chunks, alongside decoding.
    #[default]
    Chunked,
    /// Each prompt is computed in one step.
    Whole,
}

/// The number of GPUs that an engine uses, by kind of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// GPUs that share each layer.
    pub tensor: NonZeroU32,
    /// Groups of layers, each on separate GPUs.
    pub pipeline: NonZeroU32,
    /// Engines that serve side by side as one replica.
    pub data: NonZeroU32,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self { tensor: NonZeroU32::MIN, pipeline: NonZeroU32::MIN, data: NonZeroU32::MIN }
    }
}

// === impl EngineArguments ===

impl EngineArguments {
    /// The arguments of an engine that was started without flags.
    #[must_use]
    pub fn default_of(engine: Engine) -> Self {
        Self {
            engine,
            generation: Generation::V1,
            gpu_memory: Fraction::new(0.9).unwrap_or(Fraction::ONE),
            block_size: tokens(engine.syntax().block_size),
            kv_dtype: Arc::from("auto"),
            parallel: Parallelism::default(),
            kv_blocks: None,
            kv_tokens: None,
            step_tokens: None,
            sequences: None,
            context: None,
            execution: Execution::Graphs,
            prefill: Prefill::Chunked,
            draft_tokens: None,
        }
    }

    /// The maximum number of tokens that one engine computes in a step.
    ///
    /// If set, the configured value. Otherwise 8192 with chunked prefill (2048 in vLLM's V0
    /// engine). Without chunks, the longest request, but at least 2048.
    #[must_use]
    pub fn tokens_per_step(&self) -> Tokens {
        self.step_tokens.unwrap_or(match (self.prefill, self.generation) {
            (Prefill::Chunked, Generation::V1) => tokens(STEP_TOKENS_CHUNKED),
            (Prefill::Chunked, Generation::V0) => tokens(STEP_TOKENS_V0),
            (Prefill::Whole, _) => self.context.unwrap_or_default().max(tokens(STEP_TOKENS_V0)),
        })
    }

    /// Sequences that one engine runs at once: the configured value, or 256.
    #[must_use]
    pub fn sequences_at_once(&self) -> Requests {
        self.sequences.or(Requests::new(SEQUENCES)).unwrap_or_default()
    }

    /// Tokens in the KV cache of one engine, if the arguments set them.
    #[must_use]
    pub fn kv_capacity(&self) -> Option<Tokens> {
        self.kv_tokens.or_else(|| {
            let blocks = self.kv_blocks?.get();
            Tokens::new(blocks as f64 * self.block_size.tokens())
        })
    }

    /// Returns true if an engine with these other arguments has the same KV cache and computes as
    /// many tokens per step on the same accelerator. Callers compare the sequence limit themselves.
    #[must_use]
    pub fn carries_like(&self, other: &Self) -> bool {
        self.engine == other.engine
            && self.gpu_memory == other.gpu_memory
            && self.block_size == other.block_size
            && self.kv_dtype == other.kv_dtype
            && self.parallel == other.parallel
            && self.kv_blocks == other.kv_blocks
            && self.kv_tokens == other.kv_tokens
            && self.tokens_per_step() == other.tokens_per_step()
    }
}

/// A number of tokens that is known to be valid.
fn tokens(number: f64) -> Tokens {
    Tokens::new(number).unwrap_or_default()
}
