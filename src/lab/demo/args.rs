//! Arguments of the demo.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;

use plimsoll_daemon::config::positive_duration;

/// Arguments of `demo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// End after this time, such as `90s` or `5m`. Default: run until interrupted
    #[arg(verbatim_doc_comment, long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Output form
    #[arg(verbatim_doc_comment, long, value_name = "FORM", default_value = "auto")]
    pub output: DemoOutput,
    /// Random seed; the same seed gives the same load
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Scenario to show
    #[arg(verbatim_doc_comment, long, value_name = "SCENARIO", default_value = "standard")]
    pub scenario: DemoScenario,
    /// Decide by this policy. Default: that of the daemon.
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", default_value = "foresight")]
    pub policy: DemoPolicy,
    /// Address for the daemon's plain HTTP port, such as `127.0.0.1:8080`, for a Prometheus or a
    /// browser. Port 0 takes a free one, and standard error shows it
    #[arg(verbatim_doc_comment, long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

/// What the demo plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoScenario {
    /// Two models in three variants.
    Standard,
    /// A pool of replicas that serve six adapters of one model, two at a time.
    Lora,
}

/// What the demo decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoPolicy {
    /// Forecast need against learned capacity, at the least cost. It learns for about a minute.
    Foresight,
    /// Spare KV cache and queue; one replica at a time. Foresight's fallback while it learns.
    Saturation,
    /// Tokens in the KV cache, at the least cost.
    Tokens,
    /// Tokens generated per second, at the least cost.
    Throughput,
    /// Latency objectives and a queueing model, at the least cost. It learns for two minutes.
    Queueing,
    /// All analyzers except foresight, at the least cost: each can make a model grow, and all must
    /// agree to shrink it.
    All,
}

/// What the demo shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoOutput {
    /// A live table if standard output is a terminal, otherwise lines.
    Auto,
    /// Lines of text.
    Lines,
    /// One JSON object per tick and line.
    Json,
}
