//! Arguments of `backtest`, and those that other programs share with it: the trace to read, and the
//! assumptions of a simulation.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_daemon::config::positive_duration;

/// The trace to read: recorded files, or the past of a Prometheus.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct SourceArgs {
    /// Reads these traces: files, or folders with all files that are in them.
    #[arg(verbatim_doc_comment, value_name = "TRACE", required_unless_present = "prometheus")]
    pub trace: Vec<PathBuf>,
    /// Reads what this Prometheus has seen of the variants of `--config`, instead of a trace.
    /// How it is asked is in that file's section `prometheus`; this URL takes the place of its own.
    #[arg(verbatim_doc_comment, long, value_name = "URL", conflicts_with = "trace", requires_all = ["config", "from"])]
    pub prometheus: Option<String>,
    /// The configuration of the variants that Prometheus is asked for.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", requires = "prometheus")]
    pub config: Option<PathBuf>,
    /// Asks from this instant on, such as `2026-11-21T09:00:00Z`, or from so long ago, such as `6h`.
    #[arg(verbatim_doc_comment, long, value_name = "TIME", requires = "prometheus")]
    pub from: Option<String>,
    /// Asks up to this instant. Without it, up to now.
    #[arg(verbatim_doc_comment, long, value_name = "TIME", requires = "prometheus")]
    pub to: Option<String>,
    /// Decides in steps of this length.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", default_value = "15s", value_parser = positive_duration)]
    pub step: Duration,
    /// Keeps the trace that is made of it in this folder. The same command goes on where one that
    /// was interrupted has stopped, and with a time ago adds what came since.
    #[arg(verbatim_doc_comment, long, value_name = "DIR", requires = "prometheus")]
    pub save: Option<PathBuf>,
}

/// The objectives of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub struct ObjectiveArgs {
    /// Counts a request as served well when its first token comes within this time.
    /// Without it, the recorded policy's objective holds, or 2s.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub slo_ttft: Option<Duration>,
    /// And when the mean time between its tokens is at most this.
    /// Without it, the recorded policy's objective holds, or 100ms.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub slo_itl: Option<Duration>,
}

/// What a simulation assumes beyond what a trace shows.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct AssumptionArgs {
    /// The objectives.
    #[command(flatten)]
    pub objectives: ObjectiveArgs,
    /// Lets replicas take this long to start. Without it, what the trace has seen, or the policy says.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub start_time: Option<Duration>,
    /// Lets the cache of a prompt take this long from a prefill replica to a decode replica.
    /// Without it, no time, because no page says how long.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub transfer_time: Option<Duration>,
    /// Draws the times and lengths of requests from this seed.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `backtest`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct BacktestArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Scores the policy in this file too: the sections of a configuration that decisions depend on.
    /// Those that it does not have are the recorded ones. May be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// Shows at most this many decisions that are not what they were.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 10)]
    pub differences: usize,
    /// What the simulation assumes.
    #[command(flatten)]
    pub assumptions: AssumptionArgs,
}
