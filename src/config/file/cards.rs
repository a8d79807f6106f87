//! Capacity cards, as written: in a configuration, or in a file of their own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::{Items, Role};

sections! {
    /// A file of capacity cards: what was learned of kinds of engines, for others of the same kind.
    CardFile {
        /// The version of the file's shape, which is 1.
        version: u32,
        /// The cards.
        #[schemars(with = "Option<Vec<Card>>")]
        cards: Items<Card>,
    }

    /// What was learned of one kind of engine, and from what. It counts for variants with the same
    /// model, accelerator, role and engine arguments, until their own replicas have shown more.
    Card {
        /// What its engines call the model.
        model: String,
        /// The accelerator, as variants name it.
        accelerator: String,
        /// How many of them a replica takes, where `engine` does not say it.
        accelerators: u32,
        /// What part of a request it serves; without it, all of it.
        role: Role,
        /// How the engine is started. Without it, the card is for variants of which nobody knows that.
        engine: CardEngine,
        /// What an iteration takes.
        iteration: CardIteration,
        /// The requests that it was learned from. For requests of other lengths, by more than half as
        /// much again, the card says nothing.
        requests: CardRequests,
        /// The iterations that it was learned from.
        lessons: CardLessons,
        /// What its engines were seen to have room for.
        shown: CardShown,
        /// The variant that taught it, as `NAMESPACE/VARIANT`.
        learned_from: String,
        /// When it was learned, such as `2026-11-21T09:30:00Z`.
        learned_at: String,
    }

    /// How an engine is started, as far as it bounds what it carries. What is left out is the
    /// engine's default.
    CardEngine {
        /// Which engine.
        name: CardEngineName,
        /// Which generation of it.
        generation: CardGeneration,
        /// The share of the accelerator's memory that it may use.
        gpu_memory: f64,
        /// Tokens in a block of the KV cache.
        block_size: f64,
        /// The type in which the KV cache is kept.
        kv_dtype: String,
        /// Accelerators that share each layer.
        tensor_parallel: u32,
        /// Groups of layers on accelerators of their own.
        pipeline_parallel: u32,
        /// Engines that serve side by side as one replica.
        data_parallel: u32,
        /// Blocks in the KV cache.
        kv_blocks: u64,
        /// Tokens in the KV cache.
        kv_tokens: f64,
        /// Tokens computed in a step.
        step_tokens: f64,
        /// Sequences that run at once.
        sequences: f64,
        /// The longest request, prompt and output together.
        context: f64,
        /// Whether steps are run operation by operation instead of as captured graphs.
        eager: bool,
        /// Whether long prompts are computed in several steps.
        chunked_prefill: bool,
        /// Draft tokens that are tried in each step of each sequence.
        draft_tokens: u32,
    }

    /// What an iteration takes: `alpha + beta * prompt tokens + delta * requests that generate`.
    CardIteration {
        /// Seconds of each, whatever is in it.
        alpha: f64,
        /// Seconds of a prompt token.
        beta: f64,
        /// Seconds of a request that generates.
        delta: f64,
    }

    /// The requests that a card was learned from.
    CardRequests {
        /// Mean tokens of a prompt.
        prompt: f64,
        /// Mean tokens of an answer.
        output: f64,
        /// Mean KV tokens that a running request holds; without it, `prompt + output / 2`.
        held: f64,
    }

    /// The iterations that a card was learned from.
    CardLessons {
        /// How many lessons there were.
        count: u32,
        /// Mean prompt tokens of an iteration.
        prompt: f64,
        /// Mean requests that generated in an iteration.
        batch: f64,
    }

    /// What engines were seen to have room for.
    CardShown {
        /// The most requests that an engine ran.
        most_running: f64,
        /// Requests in a batch that was full.
        full_at: f64,
        /// The most tokens of an iteration.
        busiest: f64,
    }
}

choices! {
    /// An engine.
    CardEngineName {
        /// vLLM.
        Vllm = "vllm",
        /// `SGLang`.
        Sglang = "sglang",
    }

    /// Generations of an engine that schedule differently.
    CardGeneration {
        /// vLLM before its V1 engine.
        V0 = "v0",
        /// vLLM's V1 engine, and every `SGLang`.
        V1 = "v1",
    }
}
