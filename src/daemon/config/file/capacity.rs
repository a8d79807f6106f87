//! The section about analyzers that size a model.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::cards::CardKeys;
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::foresight;
use plimsoll_core::analyze::sharing::CardSharing;
use plimsoll_core::decide::rank;
use plimsoll_core::settings;
use plimsoll_core::settings::{hours, millis, minutes, secs};
use plimsoll_core::units::{Fraction, Seconds, Tokens};

const SHARES: RangeInclusive<f64> = 0.05..=1.0;
/// Times that a replica may take to start.
pub const START_TIMES: RangeInclusive<Duration> = secs(1)..=hours(1);

const LATENCIES: RangeInclusive<Duration> = millis(1)..=hours(1);
/// One second per token is more than any engine takes.
const TOKEN_SPANS: RangeInclusive<Duration> = Duration::ZERO..=secs(1);
const PROMPTS: RangeInclusive<f64> = 0.0..=1e8;

settings! {
    /// Analyzers that size a model: all that are named vote, and the cheapest mix of variants that
    /// meets each of them is asked for.
    pub struct CapacityKeys {
        /// Analyzers that vote.
        analyzers: Vec<Analyzer> = vec![Analyzer::Foresight];

        /// Share of the replicas' capacity above which `tokens` and `throughput` scale a model up.
        // This value and the next are the defaults of the Workload Variant Autoscaler.
        scale_up_threshold: Fraction = 0.85, in SHARES;

        /// Share of the replicas' capacity that `tokens` and `throughput` let a scale-down reach.
        scale_down_boundary: Fraction = 0.70, in SHARES;

        /// Latency objectives. Without any, `queueing` infers them from its model, and `foresight`
        /// takes 2 s to the first token and 100 ms between tokens.
        slo: Option<SloKeys>;

        /// Choice of variants for a shortfall.
        optimizer: Optimizer = Optimizer::LeastCost;

        /// Ranking of variants, if `optimizer` is `rank`.
        rank: rank::Policy;

        /// Cost of starting a replica, as a share of its cost per hour.
        // Five minutes to start and one to drain, spread over half an hour. A replica that costs
        // its whole hour to start is never started for less than an hour.
        start_cost: Fraction = 5.0 / 30.0, in 0.0..=10.0;

        /// Cost of draining a replica, as a share of its cost per hour.
        // At one, no replica would ever be drained.
        drain_cost: Fraction = 1.0 / 30.0, in 0.0..=0.9;

        /// Share of a replica's capacity that `foresight` lets load use.
        // With 0.1, Plimsoll keeps ten replicas instead of one; above 1.5, queues never empty.
        utilization: Fraction = 1.0, in 0.1..=1.5;

        /// Time from asking for a replica until it serves, if it was not measured.
        start_time: Seconds = minutes(2), in START_TIMES;

        /// Parameters of `foresight`.
        foresight: Option<foresight::ForesightPolicy> = settings::on();

        /// Capacity learned elsewhere from engines like these, for the first minutes of
        /// `foresight`.
        cards: Option<Vec<CardKeys>>;

        /// Variants that share learned values of `foresight` and `tokens` with others of their
        /// kind: those of one namespace, or of the whole cluster. Cards of the configuration are
        /// for all.
        // An owner of pods can write anything into a page, and namespaces are borders of owners.
        share_cards: CardSharing = CardSharing::Namespace;

        /// Files with more capacity cards, as `plimsoll card export` writes them.
        card_files: Option<Vec<PathBuf>>;
    }

    /// Latency objectives.
    pub struct SloKeys {
        /// The longest time to first token.
        ttft: Option<Seconds>, in LATENCIES;

        /// The percentile of requests that `ttft` holds for; without it, the mean. Only `queueing`
        /// reads it.
        ttft_percentile: Option<f64>, in 50.0..=99.0;

        /// How much later the first token may be for each token of the prompt beyond `long_prompt`.
        /// Only `foresight` reads it.
        ttft_per_token: Option<Seconds>, in TOKEN_SPANS;

        /// Tokens of a prompt from which it is long; without it, 4000.
        long_prompt: Option<Tokens>, in PROMPTS;

        /// The longest mean time between tokens.
        itl: Option<Seconds>, in LATENCIES;
    }
}

/// Method that decides the number of replicas of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Analysis {
    /// KV-cache and queue headroom move one replica at a time.
    Saturation,
    /// Analyzers compute the number, and an optimizer finds the cheapest replicas.
    Capacity,
}

/// Choice of variants for a shortfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Those that cost least together, found by an exact search.
    LeastCost,
    /// By the rank of their price, best first.
    Rank,
}

settings! { plain: Analysis; Optimizer; }
