//! The engine of a variant.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::simulate::Micros;
use crate::simulate::replica::adapters::AdapterSettings;
use crate::simulate::replica::settings::{BLOCK_SIZE, SEATS};
use crate::simulate::scenario::{SPANS, TOKEN_SPANS};
use plimsoll_core::settings;
use plimsoll_core::settings::minutes;
use plimsoll_core::units::Fraction;

/// Sizes of engines.
const SIZES: RangeInclusive<u32> = 1..=1_000_000_000;

/// Times of a step and of its parts.
const STEPS: RangeInclusive<Duration> = Duration::ZERO..=minutes(1);

settings! {
    /// An engine.
    pub(crate) struct EngineKeys {
        /// The time of a step by itself.
        alpha: Duration, in STEPS, required;

        /// The time for each token of a prompt.
        beta: Duration, in STEPS, required;

        /// The time for each request that decodes a token.
        delta: Duration, in STEPS, required;

        /// The time for each token of the KV cache that is read.
        gamma: Duration, in STEPS;

        /// What a mixture of experts takes beside that.
        experts: Option<ExpertKeys>;

        /// The size of the KV cache in tokens.
        kv_tokens: Option<u32>, in SIZES, required;

        /// Requests in a batch: `max_num_seqs`.
        seats: u32 = SEATS, in SIZES;

        /// Tokens that a step may compute: `max_num_batched_tokens`. Without it, 2048, or as many
        /// as there are seats.
        batch_tokens: Option<u32>, in SIZES;

        /// Tokens in a block of the cache.
        block_size: u32 = BLOCK_SIZE, in SIZES;

        /// The share of each prompt that its prefix cache has.
        prefix_hits: Fraction = 0.0, in 0.0..=1.0;

        /// Whether its prefix cache has what it has computed, by the `hash_ids` of the trace.
        prefix_caching: bool = false;

        /// How it serves `LoRA` adapters. Required where requests ask for some.
        adapters: Option<AdapterSettings>;

        /// API servers in front of it (`--api-server-count`). Each counts a step that has a request
        /// of its own.
        api_servers: u32 = 1, in 1..=64;

        /// Stages of its pipeline (`--pipeline-parallel-size`): so many steps are in flight at a
        /// time.
        pipeline_stages: u32 = 1, in 1..=64;

        /// Speculative decoding (`--speculative-config`).
        speculation: Option<SpeculationKeys>;

        /// What it fetches of the caches of prompts from elsewhere, through a KV connector.
        fetch: Option<FetchKeys>;

        /// Whether the daemon reads the engine's arguments in its pod template, as in a cluster.
        arguments: bool = false;

        /// The standard deviation of the logarithm of the time of a step.
        noise: f64 = 0.0, in 0.0..=2.0;
    }

    /// What an engine fetches of the caches of prompts. Requests wait for that as `deferred`.
    #[derive(Copy)]
    pub(crate) struct FetchKeys {
        /// The share of each prompt.
        share: Fraction = 1.0, in 0.0..=1.0;

        /// How long that takes, whatever its length.
        latency: Micros, in SPANS;

        /// How much longer for each token that is fetched.
        per_token: Duration, in TOKEN_SPANS;
    }

    /// Speculative decoding.
    #[derive(Copy)]
    pub(crate) struct SpeculationKeys {
        /// Tokens that a step drafts for a request (`num_speculative_tokens`).
        drafts: u32, in 1..=32, required;

        /// Tokens that a step gives a request in the mean: one, and the accepted drafts.
        tokens: f64, in 1.0..=33.0, required;
    }

    /// What a mixture of experts takes until all of them are awake.
    #[derive(Copy)]
    pub(crate) struct ExpertKeys {
        /// Tokens of a step by which all are.
        tokens: u32, in 1..=1_000_000, required;

        /// The time for each of these tokens.
        per_token: Duration, in STEPS, required;
    }
}
