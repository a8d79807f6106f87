//! Arguments of the demo.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;

use plimsoll_daemon::config::positive_duration;

/// Arguments of `demo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// Ends after this time, such as `90s` or `5m`.
    /// Without it, the demo runs until it is interrupted.
    #[arg(verbatim_doc_comment, long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Shows the demo in this form.
    #[arg(verbatim_doc_comment, long, value_name = "FORM", default_value = "auto")]
    pub output: DemoOutput,
    /// Draws the load from this seed: the same seed gives the same load.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Plays this.
    #[arg(verbatim_doc_comment, long, value_name = "SCENARIO", default_value = "standard")]
    pub scenario: DemoScenario,
    /// Decides by this.
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", default_value = "saturation")]
    pub policy: DemoPolicy,
    /// Serves the daemon's plain HTTP port at this address, such as `127.0.0.1:8080`, for a
    /// Prometheus or a browser, and says so on standard error. Port 0 takes a free one.
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
    /// Spare KV cache and queue; one replica at a time.
    Saturation,
    /// Tokens in the KV cache, at the least cost.
    Tokens,
    /// Tokens generated in a second, at the least cost.
    Throughput,
    /// Latency objectives and a queueing model, at the least cost. It learns for two minutes.
    Queueing,
    /// Requests that will have arrived when a new replica serves, at the least cost.
    Foresight,
    /// All analyzers, at the least cost: each can make a model grow, and all must agree to shrink it.
    All,
}

/// What the demo shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoOutput {
    /// A table that is redrawn in place where standard output is a terminal, and lines elsewhere.
    Auto,
    /// Lines of text.
    Lines,
    /// A JSON object a line for each tick.
    Json,
}
