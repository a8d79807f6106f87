//! The section about analyzers that size a model.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight;
use crate::config::file::{Analyzer, Card, Items, Optimizer};
use crate::config::written::WrittenDuration;
use crate::decide::rank;
use crate::settings::Written;

sections! {
    /// Analyzers that size a model: all that are named vote, and the cheapest mix of variants that
    /// meets each of them is asked for.
    Capacity {
        /// Those that vote.
        #[schemars(with = "Option<Vec<Analyzer>>")]
        analyzers: Items<Analyzer>,
        /// Share of what replicas carry above which a model grows.
        scale_up_threshold: f64,
        /// Share of what replicas carry that may be reached by taking replicas away.
        scale_down_boundary: f64,
        /// Latency objectives. Without any, `queueing` infers them from what the replicas do without
        /// load, and `foresight` takes 2 s to the first token and 100 ms between tokens.
        slo: Slo,
        /// Which variants are chosen for what is required.
        optimizer: Optimizer,
        /// How variants are ranked, where `optimizer` is `rank`.
        rank: Written<rank::Policy>,
        /// What it costs to start a replica, as a share of what it costs in an hour.
        start_cost: f64,
        /// What it costs to drain a replica, as a share of what it costs in an hour.
        drain_cost: f64,
        /// The share of what a replica carries that `foresight` lets load use.
        utilisation: f64,
        /// How long a replica takes from being asked for to carrying load, where it was not measured.
        start_time: WrittenDuration,
        /// Parameters of `foresight`.
        foresight: Written<foresight::Policy>,
        /// What was learned elsewhere of engines like these, for the first minutes of `foresight`.
        #[schemars(with = "Option<Vec<Card>>")]
        cards: Items<Card>,
        /// Files with more of them, as `plimsoll card export` writes them.
        #[schemars(with = "Option<Vec<PathBuf>>")]
        card_files: Items<PathBuf>,
    }

    /// Latency objectives.
    Slo {
        /// The longest time to first token.
        ttft: WrittenDuration,
        /// The percentile of requests that `ttft` holds for, from 50 to 99; without it, the mean.
        ttft_percentile: f64,
        /// The longest mean time between tokens.
        itl: WrittenDuration,
    }
}
