//! How an engine was started, as far as it says what the engine can carry.
//!
//! [`EngineArguments`] holds the settings that bound the work of one engine: how much KV cache it
//! has, how many sequences it runs at once and how many tokens it computes in one step.
//! [`parse`] reads them from the containers of a pod, without running or fetching anything.
//!
//! # Domain
//!
//! What is not written there takes the engine's default as far as it is a constant. vLLM chooses
//! two defaults by the accelerator (tokens in a step and sequences: 8192 and 1024 on large ones,
//! 2048 and 256 on others, in the server); here they are 8192 and 256. Nothing that bounds a capacity
//! rests on them: a deployment whose capacity is to be derived before it has run states its own.

mod explain;
mod flags;
mod words;

#[cfg(test)]
mod tests;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::analyze::engine_args::flags::Flags;
use crate::observe::engine::Engine;
pub use crate::observe::template::Container;
use crate::observe::template::VLLM_GENERATION;
use crate::settings;
use crate::units::{Fraction, Requests, Tokens};
use derive_more::Display;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tokens that vLLM's first engine computes in a step at least, in chunks or not.
const STEP_TOKENS_V0: f64 = 2048.0;

/// Sequences that either engine runs at once, if not told.
const SEQUENCES: f64 = 256.0;

/// Tokens that vLLM's V1 engine and `SGLang` compute in a step with chunked prefill, if not told.
const STEP_TOKENS_CHUNKED: f64 = 8192.0;

/// What the containers of a pod say of its engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The arguments.
    pub arguments: EngineArguments,
    /// Whether a container names an engine; without one the arguments are a guess.
    pub named: bool,
    /// What is set elsewhere and is not in the arguments: files that nobody could read, and values
    /// that refer to what only the running container knows.
    pub unread: Vec<String>,
}

/// Why nobody can say how an engine is started.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub enum Unread {
    /// No container names an engine that is known.
    #[display("no container of the pod template names vLLM or SGLang in its image or command")]
    NoEngine,
    /// What is set by these is not written in the template.
    #[display(
        "the engine's settings are not all written in the pod template: {} is only known where it \
         runs",
        _0.join(", ")
    )]
    Elsewhere(Vec<String>),
}

/// Reads the arguments of the engine among these containers, all or nothing: what is left out could
/// be what matters.
///
/// # Errors
///
/// No container names an engine, or some of its settings are not written there.
pub fn read(containers: &[Container]) -> Result<EngineArguments, Unread> {
    let Parsed { arguments, named, unread } = parse(containers);
    match (named, unread.is_empty()) {
        (false, _) => Err(Unread::NoEngine),
        (true, false) => Err(Unread::Elsewhere(unread)),
        (true, true) => Ok(arguments),
    }
}

/// Reads the arguments of the engine among these containers; without any, the defaults of vLLM.
///
/// Only containers that name an engine in their image or command count, so that a sidecar's flags
/// set nothing; if none does, all count.
#[must_use]
pub fn parse(containers: &[Container]) -> Parsed {
    let read: Vec<(&Container, Vec<String>)> =
        containers.iter().map(|container| (container, words::words(container))).collect();
    let engine = if read.iter().any(|(container, words)| is_sglang(container, words)) {
        Engine::Sglang
    } else {
        Engine::Vllm
    };
    let names_engine = |(container, words): &(&Container, Vec<String>)| {
        is_sglang(container, words) || is_vllm(container, words)
    };
    let named = read.iter().any(names_engine);
    let mut arguments = EngineArguments::default_of(engine);
    let mut flags = Flags::default();
    for (container, words) in read.iter().filter(|read| !named || names_engine(read)) {
        if engine == Engine::Vllm && is_v0(container) {
            arguments.generation = Generation::V0;
            arguments.prefill = Prefill::Whole;
        }
        flags.take(&mut arguments, &container.files, words);
    }
    flags.conclude(&mut arguments);
    Parsed { arguments, named, unread: flags.unread }
}

fn is_sglang(container: &Container, words: &[String]) -> bool {
    container.image.to_ascii_lowercase().contains("sglang")
        || words.iter().any(|word| word == "sglang.launch_server" || word == "sglang serve")
        || words.windows(2).any(|pair| pair[0] == "sglang" && pair[1] == "serve")
}

fn is_vllm(container: &Container, words: &[String]) -> bool {
    container.image.to_ascii_lowercase().contains("vllm")
        || words.iter().any(|word| word == "vllm" || word.starts_with("vllm."))
}

/// Whether vLLM is told to use its first engine.
fn is_v0(container: &Container) -> bool {
    container.environment.get(VLLM_GENERATION).is_some_and(|value| value == "0")
}

/// The settings of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineArguments {
    /// Which engine.
    pub engine: Engine,
    /// Which generation of the engine.
    pub generation: Generation,
    /// Share of GPU memory that it may use.
    pub gpu_memory: Fraction,
    /// Tokens in a block of the KV cache.
    pub block_size: Tokens,
    /// The type in which the KV cache is kept, such as `fp8_e5m2`; `auto` is the model's own.
    pub kv_dtype: Arc<str>,
    /// Over how many GPUs it is spread, and how.
    pub parallel: Parallelism,
    /// Blocks in the KV cache, where they are prescribed.
    pub kv_blocks: Option<NonZeroU64>,
    /// Tokens in the KV cache, where they are prescribed.
    pub kv_tokens: Option<Tokens>,
    /// Tokens computed in a step, where they are prescribed.
    pub step_tokens: Option<Tokens>,
    /// Sequences that run at once, where they are prescribed.
    pub sequences: Option<Requests>,
    /// Longest request, prompt and output together; `None` when the model decides.
    pub context: Option<Tokens>,
    /// Whether steps are captured as CUDA graphs.
    pub execution: Execution,
    /// Whether long prompts are computed in several steps.
    pub prefill: Prefill,
    /// Draft tokens that are tried in each step of each sequence (speculative decoding).
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

/// How steps are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// As captured CUDA graphs.
    #[default]
    Graphs,
    /// Operation by operation.
    Eager,
}

/// How prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefill {
    /// In chunks, beside decoding.
    #[default]
    Chunked,
    /// Whole, in one step.
    Whole,
}

/// Over how many GPUs an engine is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// GPUs that share each layer.
    pub tensor: NonZeroU32,
    /// Groups of layers on GPUs of their own.
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
    /// What an engine does that is told nothing.
    #[must_use]
    pub fn default_of(engine: Engine) -> Self {
        let block_size = match engine {
            Engine::Vllm => 16.0,
            Engine::Sglang => 1.0,
        };
        Self {
            engine,
            generation: Generation::V1,
            gpu_memory: Fraction::new(0.9).unwrap_or(Fraction::ONE),
            block_size: Tokens::new(block_size).unwrap_or_default(),
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

    /// Tokens that one engine computes in a step at most.
    ///
    /// What is prescribed; else 8192 with chunked prefill (2048 in vLLM's first engine); else the
    /// longest request, but at least 2048.
    #[must_use]
    pub fn tokens_per_step(&self) -> Tokens {
        let number = |tokens| Tokens::new(tokens).unwrap_or_default();
        self.step_tokens.unwrap_or(match (self.prefill, self.generation) {
            (Prefill::Chunked, Generation::V1) => number(STEP_TOKENS_CHUNKED),
            (Prefill::Chunked, Generation::V0) => number(STEP_TOKENS_V0),
            (Prefill::Whole, _) => self.context.unwrap_or_default().max(number(STEP_TOKENS_V0)),
        })
    }

    /// Sequences that one engine runs at once: what is prescribed, else 256.
    #[must_use]
    pub fn sequences_at_once(&self) -> Requests {
        self.sequences.or(Requests::new(SEQUENCES)).unwrap_or_default()
    }

    /// Tokens in the KV cache of one engine, where the arguments prescribe them.
    #[must_use]
    pub fn kv_capacity(&self) -> Option<Tokens> {
        self.kv_tokens.or_else(|| {
            let blocks = self.kv_blocks?.get();
            Tokens::new(blocks as f64 * self.block_size.tokens())
        })
    }

    /// Whether an engine with these other arguments has as much KV cache and computes as much in a
    /// step on the same accelerator. How many sequences it runs is compared where it is used.
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
