//! Arguments of the engine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_core::units::RequestRate;
use plimsoll_daemon::config;

/// The maximum background load, in requests per second; far above the capacity of any engine.
pub(crate) const RATE_MAX: f64 = 10_000.0;

/// Arguments of `engine`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct EngineArgs {
    /// Scenario file that describes the engine (docs/simulator.md). Default: the demo's
    #[arg(verbatim_doc_comment, value_name = "FILE")]
    pub scenario: Option<PathBuf>,
    /// Variant in the scenario that this replica belongs to. Default: the first
    #[arg(verbatim_doc_comment, long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Set a value of the scenario, such as `variants[0].engine.kv_tokens=40000`. Repeatable
    #[arg(verbatim_doc_comment, long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Address to listen on
    #[arg(verbatim_doc_comment, long, value_name = "ADDRESS", default_value = "0.0.0.0:8000")]
    pub listen: SocketAddr,
    /// Model name to serve, instead of the scenario's
    #[arg(verbatim_doc_comment, long, value_name = "NAME")]
    pub model: Option<String>,
    /// Refuse connections for this time after the start, like an engine that loads weights.
    /// Default: the scenario's `startup.load` and `startup.warmup`
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = startup)]
    pub startup: Option<Duration>,
    /// Background load in requests per second, with the request lengths of the scenario. `PUT
    /// /load` changes it
    #[arg(verbatim_doc_comment, long, value_name = "RATE", default_value = "0", value_parser = rate)]
    pub load: RequestRate,
    /// Random seed. Default: different in each process
    #[arg(verbatim_doc_comment, long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Reads a rate in requests per second.
///
/// # Errors
///
/// The text is no number from 0 to [`RATE_MAX`].
pub(crate) fn rate(text: &str) -> Result<RequestRate, String> {
    let number = text.trim().parse().ok().filter(|rate| *rate <= RATE_MAX);
    number
        .and_then(RequestRate::new)
        .ok_or_else(|| format!("must be requests per second, from 0 to {RATE_MAX}"))
}

/// Reads a duration, which may be zero.
fn startup(text: &str) -> Result<Duration, &'static str> {
    config::duration(text).ok_or("a duration has a unit, such as 90s or 5m")
}
