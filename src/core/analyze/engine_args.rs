//! The engine arguments that determine an engine's capacity.
//!
//! [`EngineArguments`] holds the settings that bound the work of one engine: the size of its KV
//! cache, the number of sequences it runs at once and the number of tokens it computes in one step.
//! [`parse`] reads them from the containers of a pod, without running or fetching anything.
//!
//! # Domain
//!
//! A setting that is not written in the containers takes the engine's default if that default is a
//! constant. vLLM chooses two defaults by accelerator: tokens per step and sequences. In the server
//! they are 8192 and 1024 on large accelerators, and 2048 and 256 on others. Plimsoll uses 8192 and
//! 256. No capacity bound depends on these defaults: a deployment whose capacity is derived before
//!      its first run must set both values itself.

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

/// The minimum number of tokens that vLLM's V0 engine computes in a step, with or without chunks.
const STEP_TOKENS_V0: f64 = 2048.0;

/// Sequences that either engine runs at once by default.
const SEQUENCES: f64 = 256.0;

/// Tokens that vLLM's V1 engine and `SGLang` compute in a step by default, with chunked prefill.
const STEP_TOKENS_CHUNKED: f64 = 8192.0;

/// The engine settings found in the containers of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedArguments {
    /// The arguments.
    pub arguments: EngineArguments,
    /// True if a container names an engine; otherwise the arguments are a guess.
    pub named: bool,
    /// Settings missing from the arguments: paths of files that could not be read, and values that
    /// contain references resolved only inside the running container.
    pub unread: Vec<String>,
}

/// The reason why an engine's arguments are unknown.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub enum UnknownArguments {
    /// No container names a known engine.
    #[display("no container of the pod template names vLLM or SGLang in its image or command")]
    NoEngine,
    /// The template does not contain the settings that come from these files and references.
    #[display(
        "the engine's settings are not all written in the pod template: {} is only known where it \
         runs",
        _0.join(", ")
    )]
    Elsewhere(Vec<String>),
}

/// Reads the arguments of the engine among these containers. The result is complete or an error,
/// because an unread setting could be the one that bounds the capacity.
///
/// # Errors
///
/// No container names an engine, or some of its settings are not written in the containers.
pub fn read(containers: &[Container]) -> Result<EngineArguments, UnknownArguments> {
    let ParsedArguments { arguments, named, unread } = parse(containers);
    match (named, unread.is_empty()) {
        (false, _) => Err(UnknownArguments::NoEngine),
        (true, false) => Err(UnknownArguments::Elsewhere(unread)),
        (true, true) => Ok(arguments),
    }
}

/// Reads the arguments of the engine among these containers. Without containers, returns vLLM's
/// defaults.
///
/// Only containers that name an engine in their image or command count, so a sidecar's flags have
/// no effect. If no container names an engine, all containers count.
#[must_use]
pub fn parse(containers: &[Container]) -> ParsedArguments {
    let read: Vec<(&Container, Vec<String>)> =
        containers.iter().map(|container| (container, words::words(container))).collect();
    let engine = if read.iter().any(|(container, words)| is_sglang(container, words)) {
        Engine::Sglang
    } else {
        Engine::Vllm
    };
    let named = read.iter().any(|(container, words)| names_engine(container, words));

    let mut arguments = EngineArguments::default_of(engine);
    let mut flags = Flags::default();
    for (container, words) in &read {
        if named && !names_engine(container, words) {
            continue;
        }

        if engine == Engine::Vllm && is_v0(container) {
            arguments.generation = Generation::V0;
            arguments.prefill = Prefill::Whole;
        }
        flags.take(&mut arguments, &container.files, words);
    }

    flags.conclude(&mut arguments);
    ParsedArguments { arguments, named, unread: flags.unread }
}

fn names_engine(container: &Container, words: &[String]) -> bool {
    is_sglang(container, words) || is_vllm(container, words)
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

/// Returns true if the environment selects vLLM's V0 engine.
fn is_v0(container: &Container) -> bool {
    container.environment.get(VLLM_GENERATION).is_some_and(|value| value == "0")
}

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
        let block_size = match engine {
            Engine::Vllm => 16.0,
            Engine::Sglang => 1.0,
        };

        Self {
            engine,
            generation: Generation::V1,
            gpu_memory: Fraction::new(0.9).unwrap_or(Fraction::ONE),
            block_size: tokens(block_size),
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
