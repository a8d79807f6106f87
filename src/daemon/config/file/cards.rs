//! Capacity cards: in a configuration, or in a file of their own.

use std::ops::RangeInclusive;

use crate::config::names::{self, is_label_text, is_model_name};
use plimsoll_core::analyze::engine_args::Generation;
use plimsoll_core::fleet::Role;
use plimsoll_core::observe::engine::Engine;
use plimsoll_core::settings;
use plimsoll_core::settings::text;
use plimsoll_core::units::{Fraction, Requests, Tokens};

/// From far below the fastest iteration to the slowest.
const ALPHAS: RangeInclusive<f64> = 1e-5..=10.0;
/// The time per prompt token, and per request in the batch.
const SLOPES: RangeInclusive<f64> = 1e-8..=1.0;
/// Longer than any context.
const LENGTHS: RangeInclusive<f64> = 1.0..=1e8;
const TOKENS: RangeInclusive<f64> = 0.0..=1e12;
const BATCHES: RangeInclusive<f64> = 0.0..=1e6;
const PARALLEL: RangeInclusive<u32> = 1..=100_000;

settings! {
    /// A file of capacity cards: coefficients learned from kinds of engines, for others of the same
    /// kind.
    pub struct CardFileKeys {
        /// The version of the file's format, which is 1.
        version: Option<u32>;

        /// The cards.
        cards: Option<Vec<CardKeys>>;
    }

    /// Coefficients learned from one kind of engine, and their origin. They count for variants with
    /// the same model, accelerator, role and engine arguments, until their own replicas have shown
    /// more.
    pub struct CardKeys {
        /// The model, by the name that its engines use.
        model: Option<String>, in text(is_model_name, names::MODEL_NAME);

        /// The accelerator, as variants name it.
        accelerator: Option<String>, in text(is_label_text, names::LABEL_TEXT);

        /// Accelerators of a replica, if `engine` does not state them.
        accelerators: Option<u32>, in PARALLEL;

        /// Part of a request that it serves; without it, all of it.
        role: Option<Role>;

        /// Arguments of the engine. Without it, the card is for variants whose arguments are
        /// unknown.
        engine: Option<CardEngineKeys>;

        /// Time of an iteration.
        iteration: Option<CardIterationKeys>;

        /// Requests that the card was learned from. For requests of other lengths, by more than
        /// a factor of 1.5, the card does not count.
        requests: Option<CardRequestKeys>;

        /// Iterations that the card was learned from.
        lessons: Option<CardLessonKeys>;

        /// Room that its engines were seen to have.
        shown: Option<CardShownKeys>;

        /// The variant that it was learned from, as `NAMESPACE/VARIANT`.
        learned_from: Option<String>;

        /// Time of learning, such as `2026-11-21T09:30:00Z`.
        learned_at: Option<String>;
    }
}

settings! {
    /// Arguments of an engine, as far as they bound its capacity. An absent one is the engine's
    /// default.
    pub struct CardEngineKeys {
        /// The engine.
        name: Engine = Engine::Vllm;

        /// Its generation.
        generation: Generation = Generation::V1;

        /// Share of the accelerator's memory that it may use.
        gpu_memory: Option<Fraction>, in 0.0..=1.0;

        /// Tokens in a block of the KV cache.
        block_size: Option<Tokens>, in TOKENS;

        /// Type in which the KV cache is kept.
        kv_dtype: Option<String>,
            in text(is_label_text, "must be the name of a type, such as auto or fp8");

        /// Accelerators that share each layer.
        tensor_parallel: u32 = 1, in PARALLEL;

        /// Groups of layers on accelerators of their own.
        pipeline_parallel: u32 = 1, in PARALLEL;

        /// Engines that serve side by side as one replica.
        data_parallel: u32 = 1, in PARALLEL;

        /// Blocks in the KV cache.
        kv_blocks: Option<u64>;

        /// Tokens in the KV cache.
        kv_tokens: Option<Tokens>, in TOKENS;

        /// The most tokens computed in a step.
        step_tokens: Option<Tokens>, in TOKENS;

        /// The most sequences that run at once.
        sequences: Option<Requests>, in BATCHES;

        /// The longest request, prompt and output together.
        context: Option<Tokens>, in TOKENS;

        /// Runs steps operation by operation instead of as captured graphs.
        eager: bool = false;

        /// Computes long prompts in several steps.
        chunked_prefill: Option<bool>;

        /// Draft tokens that are tried in each step of each sequence.
        draft_tokens: Option<u32>, in PARALLEL;
    }

    /// Time of an iteration: `alpha + beta * prompt tokens + delta * requests that generate`.
    pub struct CardIterationKeys {
        /// Seconds of any iteration.
        alpha: Option<f64>, in ALPHAS;

        /// Seconds of a prompt token.
        beta: Option<f64>, in SLOPES;

        /// Seconds of a request that generates.
        delta: Option<f64>, in SLOPES;
    }

    /// Requests that a card was learned from.
    pub struct CardRequestKeys {
        /// Mean tokens of a prompt.
        prompt: Option<Tokens>, in LENGTHS;

        /// Mean tokens of an answer.
        output: Option<Tokens>, in LENGTHS;

        /// Mean KV tokens that a running request holds; without it, `prompt + output / 2`.
        held: Option<Tokens>, in LENGTHS;
    }

    /// Iterations that a card was learned from.
    pub struct CardLessonKeys {
        /// Number of lessons.
        count: Option<u32>;

        /// Mean prompt tokens of an iteration.
        prompt: Option<f64>, in TOKENS;

        /// Mean requests that generated in an iteration.
        batch: Option<f64>, in BATCHES;
    }

    /// Room that engines were seen to have.
    pub struct CardShownKeys {
        /// The most requests that an engine ran.
        most_running: Option<Requests>, in BATCHES;

        /// Requests in a full batch.
        full_at: Option<Requests>, in BATCHES;

        /// The most tokens of an iteration.
        busiest: Option<Tokens>, in TOKENS;
    }
}
