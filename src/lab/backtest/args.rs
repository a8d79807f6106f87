//! Arguments of `backtest`, and those that other programs share with it: the trace to read, and the
//! assumptions of a simulation.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_daemon::config::positive_duration;

/// The trace to read: recorded files, or the past of a Prometheus.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct SourceArgs {
    /// Traces to read: files, or folders with all their trace files
    #[arg(verbatim_doc_comment, value_name = "TRACE", required_unless_present = "prometheus")]
    pub trace: Vec<PathBuf>,
    /// Read the history of the variants in `--config` from this Prometheus instead of a trace.
    /// The file's section `prometheus` has the other settings; this URL overrides its `url`
    #[arg(verbatim_doc_comment, long, value_name = "URL", conflicts_with = "trace", requires_all = ["config", "from"])]
    pub prometheus: Option<String>,
    /// Configuration with the variants to query
    #[arg(verbatim_doc_comment, long, value_name = "FILE", requires = "prometheus")]
    pub config: Option<PathBuf>,
    /// Start of the history: an instant such as `2026-11-21T09:00:00Z`, or a time ago such as
    /// `6h`
    #[arg(verbatim_doc_comment, long, value_name = "TIME", requires = "prometheus")]
    pub from: Option<String>,
    /// End of the history. Default: now
    #[arg(verbatim_doc_comment, long, value_name = "TIME", requires = "prometheus")]
    pub to: Option<String>,
    /// Time between two decisions
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", default_value = "15s", value_parser = positive_duration)]
    pub step: Duration,
    /// Folder for the resulting trace. The same command resumes an interrupted query, and adds
    /// newer data without `--to`
    #[arg(verbatim_doc_comment, long, value_name = "DIR", requires = "prometheus")]
    pub save: Option<PathBuf>,
}

/// The objectives of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub struct ObjectiveArgs {
    /// Objective for the time to first token. Default: the recorded policy's, or 2s
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub slo_ttft: Option<Duration>,
    /// Objective for the mean time between tokens. Default: the recorded policy's, or 100ms
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub slo_itl: Option<Duration>,
}

/// What a simulation assumes beyond what a trace shows.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct AssumptionArgs {
    /// The objectives.
    #[command(flatten)]
    pub objectives: ObjectiveArgs,
    /// Start-up time of replicas. Default: as observed in the trace, or set in the policy
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub start_time: Option<Duration>,
    /// Time to transfer a prompt's cache from a prefill to a decode replica. Default: 0, because
    /// it is not recorded
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub transfer_time: Option<Duration>,
    /// Random seed for the times and lengths of requests
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `backtest`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct BacktestArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// File with another policy to score: the configuration sections that affect decisions.
    /// Absent sections are the recorded ones. Repeatable
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// Maximum number of differing decisions to show
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 10)]
    pub differences: usize,
    /// What the simulation assumes.
    #[command(flatten)]
    pub assumptions: AssumptionArgs,
}
