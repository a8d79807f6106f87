//! The commands, their help, and those arguments that are not defined next to their own program.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use plimsoll_core::fleet::{Namespace, VariantKey, VariantName};
use plimsoll_daemon::config::positive_duration;
use plimsoll_daemon::daemon::args::RunArgs;
use plimsoll_lab::advise::args::AdviseArgs;
use plimsoll_lab::backtest::args::BacktestArgs;
use plimsoll_lab::demo::args::DemoArgs;
use plimsoll_lab::engine::args::EngineArgs;
use plimsoll_lab::report::args::ReportArgs;
use plimsoll_lab::study::args::{ScoreboardArgs, SimulateArgs};

/// The exit codes in `--help`; the numbers are the constants of [`crate::cli`].
const EXIT_CODES: &str = "\
Exit codes:
   0  Success.
  64  The command line or an input is invalid, or a configuration or scenario cannot be read.
  69  A required service does not respond, or a trace or an output cannot be used.
  70  Internal error; please report it.";

/// The examples in `backtest --help`.
const BACKTEST_EXAMPLES: &str = "\
Examples:
  plimsoll backtest /var/lib/plimsoll/trace
      Check that this release reproduces the recorded decisions.
  plimsoll backtest /var/lib/plimsoll/trace --policy examples/policy-foresight.yaml
      Score another policy on the same load.
  plimsoll backtest --prometheus http://prometheus:9090 --config plimsoll.yaml --from 6h --save past
      Score policies on a Prometheus's history, recorded without Plimsoll.

Exit codes:
   0  All replayed decisions match.
   1  At least one replayed decision differs.
  64  The command line, a trace or a policy is invalid.
  69  A required service does not respond, or a trace cannot be read.
  70  Internal error; please report it.";

/// The examples in `advise --help`.
const ADVISE_EXAMPLES: &str = "\
Examples:
  plimsoll advise /var/lib/plimsoll/trace
      Find changes that save money or serve more requests in time.
  plimsoll advise /var/lib/plimsoll/trace --card l40s.yaml --price L40S=0.95
      The same, with an accelerator that the fleet does not have.
  plimsoll advise --prometheus http://prometheus:9090 --config plimsoll.yaml --from 168h --save past
      The same, from a Prometheus's history, recorded without Plimsoll.

Exit codes:
   0  The advice was printed, even if it is to change nothing.
  64  The command line or a trace is invalid, or the trace is too short.
  69  A required service does not respond, or a trace cannot be read.
  70  Internal error; please report it.";

/// The examples in `migrate --help`.
const MIGRATE_EXAMPLES: &str = "\
Examples:
  plimsoll migrate wva manifests/
      Print the configuration and the manifests, with the differences as comments.
  plimsoll migrate keda --context production --namespace shop --output plimsoll/
      Read a cluster, and write the result into a folder.

Exit codes:
   0  Success.
  64  The command line or a manifest is invalid, or nothing can be migrated.
  69  The cluster does not respond, or a file cannot be written.
  70  Internal error; please report it.";

/// The exit codes in `explain --help`.
const EXPLAIN_EXIT_CODES: &str = "\
Examples:
  plimsoll explain shop/llama
      Explain the desired replicas in a running daemon.
  plimsoll explain shop/llama --trace /var/lib/plimsoll/trace --at 2026-11-21T09:30:00Z
      The same, for the first tick at or after an instant in the past.

Exit codes:
   0  The variant has desired replicas.
   1  It has none; the output names the missing data.
  64  The command line, a trace or a state file is invalid, or the variant is unknown.
  69  The daemon does not respond, or a file cannot be read.
  70  Internal error; please report it.";

/// The examples in `doctor --help`.
const DOCTOR_EXAMPLES: &str = "\
Examples:
  plimsoll doctor --url http://127.0.0.1:8080
      Check the kubeconfig's cluster and the daemon at this URL.
  kubectl plimsoll doctor
      The same, with the daemon in the cluster.
  plimsoll doctor --no-daemon --output json
      Check a cluster before or without a daemon.

Exit codes, by the worst verdict:
   0  Every check passes or is not applicable.
   1  A warning.
   2  Data for a check could not be read.
   3  A failure.
  64  The command line is invalid.
  70  Internal error; please report it.";

/// The URL of a daemon on the same host, or behind `kubectl port-forward`.
pub const DAEMON_URL: &str = "http://127.0.0.1:8080";

/// Autoscaler for LLM inference deployments
///
/// Plimsoll scrapes inference engines and computes the desired replicas of each variant of each
/// model. It publishes them as Prometheus gauges and through the Kubernetes external metrics API,
/// so that a stock HPA does the scaling.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "plimsoll", version, disable_help_subcommand = true, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Command {
    /// Run the daemon
    ///
    /// On SIGTERM or SIGINT, the daemon exits. With a cluster, it keeps serving for the configured
    /// delay first. Environment variables override keys of the configuration file:
    /// `PLIMSOLL__SERVER__LISTEN` sets `server.listen`.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Run(RunArgs),
    /// Check a configuration file and list all of its problems
    ///
    /// Warnings go to standard error and don't change the exit code.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Check(CheckArgs),
    /// Print the JSON Schema of the configuration file
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Schema,
    /// Show the daemon at work on simulated engines under load
    ///
    /// The demo needs no cluster and no GPU, and contacts no other machine.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Demo(DemoArgs),
    /// Serve one simulated vLLM replica: its metrics and its completions API
    ///
    /// Use it in place of an engine if you have no GPU, such as in a pod of a kind cluster. Its
    /// text has no meaning; the timing of its tokens comes from the simulated engine.
    /// docs/engine.md shows it with an HPA.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Engine(EngineArgs),
    /// Simulate a fleet under a workload, and report latency, attainment and cost
    ///
    /// The daemon's own code makes the decisions. The same scenario and seed always give the same
    /// result. docs/simulator.md describes scenario files.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Simulate(SimulateArgs),
    /// Compare autoscalers on many scenarios, and write a table
    ///
    /// All scenarios must have the same policy, so that no scenario gets a tuned one. Scenarios
    /// with missing traces are skipped, and the table lists them.
    ///
    /// --worlds draws scenarios at random instead. --world prints one of them, to simulate again:
    /// plimsoll simulate <(plimsoll scoreboard --world 1:37)
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Scoreboard(ScoreboardArgs),
    /// Replay a trace and compare policies on it
    ///
    /// A daemon with `trace` in its configuration records its inputs and decisions. This command
    /// replays them with the same code. If a replayed decision differs, it shows the difference and
    /// exits with code 1. docs/backtest.md has the details.
    #[command(verbatim_doc_comment, after_help = BACKTEST_EXAMPLES)]
    Backtest(BacktestArgs),
    /// Propose changes of a fleet that would save money or serve more requests in time
    ///
    /// Each change is simulated on the requests of a trace, and compared with the fleet of today.
    /// The output also lists changes that aren't worth it. docs/advice.md describes the method.
    #[command(verbatim_doc_comment, after_help = ADVISE_EXAMPLES)]
    Advise(AdviseArgs),
    /// Report on the last days of a trace: attainment, cost, changes and held decisions
    ///
    /// The HTML page has no scripts and loads nothing, so you can mail it.
    #[command(after_help = EXIT_CODES)]
    Report(ReportArgs),
    /// Explain the desired replicas of one variant, and which inputs would change them
    ///
    /// The command decides the last tick again with one input changed at a time. It reads a trace
    /// or a state file without a daemon. docs/explain.md describes the output.
    #[command(verbatim_doc_comment, after_help = EXPLAIN_EXIT_CODES)]
    Explain(ExplainArgs),
    /// Check a configuration, a cluster and a running daemon, and show how to fix problems
    ///
    /// Nothing is written, and no Secret is read. docs/doctor.md lists the checks and the permissions
    /// that they need.
    #[command(verbatim_doc_comment, after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Pin the desired replicas of one variant for some time, within its bounds and limits
    ///
    /// The pin ends on its own, after at most 7 days. docs/explain.md has the rules.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Pin(PinArgs),
    /// Keep the desired replicas of one variant as they are for some time
    #[command(after_help = EXIT_CODES)]
    Pause(PauseArgs),
    /// End the pin or the pause of one variant
    #[command(after_help = EXIT_CODES)]
    Resume(OverrideTarget),
    /// Show all variants of a running daemon live in a terminal
    #[command(after_help = EXIT_CODES)]
    Top(TopArgs),
    /// Print completions for a shell
    #[command(after_help = EXIT_CODES)]
    Completions(CompletionArgs),
    /// Write manual pages into a folder
    #[command(after_help = EXIT_CODES)]
    Man(ManArgs),
    /// Export and check capacity cards (learned engine performance)
    ///
    /// Cards take learned performance to other clusters. docs/cards.md describes their uses and
    /// limits.
    #[command(subcommand, verbatim_doc_comment, after_help = EXIT_CODES)]
    Card(CardCommand),
    /// Migrate from another autoscaler: configuration, manifests, and a list of differences
    ///
    /// The command reads manifests from files and folders, or a cluster. It never writes to a
    /// cluster.
    #[command(subcommand, verbatim_doc_comment, after_help = MIGRATE_EXAMPLES)]
    Migrate(MigrateSource),
}

/// The autoscaler to migrate from.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum MigrateSource {
    /// Migrate from llm-d's Workload Variant Autoscaler
    ///
    /// Annotated HPAs and `ScaledObject`s keep their annotations, and follow Plimsoll instead.
    /// WVA's `ConfigMap`s become settings. docs/migrating-from-wva.md describes the migration and
    /// the rollback.
    #[command(verbatim_doc_comment, after_help = MIGRATE_EXAMPLES)]
    Wva(MigrateArgs),
    /// Migrate KEDA `ScaledObject`s with triggers or targets of an LLM engine
    ///
    /// KEDA stays and follows Plimsoll. docs/migrating-from-keda.md has the details.
    #[command(verbatim_doc_comment, after_help = MIGRATE_EXAMPLES)]
    Keda(MigrateArgs),
    /// Migrate HPAs with metrics or targets of an LLM engine
    ///
    /// The HPA stays and follows Plimsoll. docs/migrating-from-hpa.md has the details.
    #[command(verbatim_doc_comment, after_help = MIGRATE_EXAMPLES)]
    Hpa(MigrateArgs),
}

/// Arguments of `migrate`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct MigrateArgs {
    /// Files and folders with manifests, instead of a cluster
    #[arg(verbatim_doc_comment, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Read only this namespace, except for WVA's `ConfigMap`s. For files: the namespace of
    /// objects without one
    #[arg(verbatim_doc_comment, short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Path to the kubeconfig
    #[arg(verbatim_doc_comment, long, value_name = "FILE", conflicts_with = "paths")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(verbatim_doc_comment, long, value_name = "NAME", conflicts_with = "paths")]
    pub context: Option<String>,
    /// Write plimsoll.yaml, values.yaml for the chart, differences.md, annotate.sh and manifests/
    /// into this folder instead of printing. The folder must be empty or absent
    #[arg(verbatim_doc_comment, short, long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
}

/// The command on capacity cards.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum CardCommand {
    /// Print learned performance as a file for `capacity.card_files`
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Export(CardExportArgs),
    /// Check files of capacity cards, and list their problems or their cards
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Check(CardCheckArgs),
    /// Print the JSON Schema of a file of capacity cards
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Schema,
}

/// Arguments of `card export`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CardExportArgs {
    /// URL of the daemon's plain HTTP port
    #[arg(verbatim_doc_comment, long, value_name = "URL", default_value = DAEMON_URL)]
    pub url: String,
    /// State file to read instead of asking a daemon. It has no engine arguments, so its cards
    /// only apply to variants with unknown arguments
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires = "config",
        conflicts_with = "url"
    )]
    pub state: Option<PathBuf>,
    /// Configuration of the variants in the state file
    #[arg(verbatim_doc_comment, long, value_name = "FILE", requires = "state")]
    pub config: Option<PathBuf>,
    /// Output format
    #[arg(verbatim_doc_comment, long, value_name = "FORMAT", default_value = "yaml")]
    pub format: CardFormat,
}

/// Arguments of `card check`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CardCheckArgs {
    /// Files to check
    #[arg(verbatim_doc_comment, value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// The format of capacity cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CardFormat {
    /// For people.
    Yaml,
    /// For programs; also valid YAML.
    Json,
}

/// Arguments of `explain`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct ExplainArgs {
    /// The variant.
    #[arg(value_name = "NAMESPACE/VARIANT", value_parser = variant_key)]
    pub variant: VariantKey,
    /// URL of the daemon's plain HTTP port
    #[arg(long, value_name = "URL", default_value = DAEMON_URL)]
    pub url: String,
    /// Trace to read instead: a file, or a folder with all trace files in it
    #[arg(long, value_name = "TRACE", requires = "at", conflicts_with = "url")]
    pub trace: Vec<PathBuf>,
    /// Instant in the trace, such as `2026-11-21T09:30:00Z`; the first tick at or after it is used
    #[arg(long, value_name = "TIME", requires = "trace")]
    pub at: Option<Timestamp>,
    /// State file to read instead. It has decisions but no inputs, so counterfactuals are missing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "trace"])]
    pub state: Option<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,
}

/// Arguments of `doctor`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct DoctorArgs {
    /// Configuration file of the daemon; without it, the `ConfigMap` of the chart
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// URL of the daemon's plain HTTP port; without it, port 8080 of this machine is tried
    #[arg(long, value_name = "URL", conflicts_with = "no_daemon")]
    pub url: Option<String>,
    /// Skip the checks of a running daemon
    #[arg(long)]
    pub no_daemon: bool,
    /// Kubeconfig of the cluster; without it, KUBECONFIG, ~/.kube/config or the pod's account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Skip the checks of a cluster
    #[arg(long, conflicts_with_all = ["kubeconfig", "context"])]
    pub no_cluster: bool,
    /// Namespace of Plimsoll itself
    #[arg(short, long, value_name = "NAMESPACE", default_value = "plimsoll")]
    pub namespace: String,
    /// Name of Plimsoll's Service, Deployment and `ConfigMap`
    #[arg(long, value_name = "NAME", default_value = "plimsoll")]
    pub name: String,
    /// Name of Plimsoll's service account; without it, that of --name
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,
    /// Print the JSON schema of `--output json`, and check nothing
    #[arg(long)]
    pub schema: bool,
}

/// The variant whose override is changed, and the daemon that does it.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct OverrideTarget {
    /// The variant.
    #[arg(value_name = "NAMESPACE/VARIANT", value_parser = variant_key)]
    pub variant: VariantKey,
    /// URL of the daemon's plain HTTP port; without a token, from the same host or pod
    #[arg(long, value_name = "URL", default_value = DAEMON_URL)]
    pub url: String,
    /// File with the bearer token of `server.admin_token_file`
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// The time for which an override holds.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(required = true, multiple = false)]
pub struct OverrideTime {
    /// Time from now until it ends, such as `8h`
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub lasts: Option<Duration>,
    /// Instant at which it ends, such as `2026-11-27T06:00:00Z`
    #[arg(long, value_name = "TIME")]
    pub until: Option<Timestamp>,
}

/// Arguments of `pin`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct PinArgs {
    /// The variant and the daemon.
    #[command(flatten)]
    pub target: OverrideTarget,
    /// The desired replicas.
    #[arg(value_name = "REPLICAS")]
    pub replicas: u32,
    /// The end.
    #[command(flatten)]
    pub time: OverrideTime,
}

/// Arguments of `pause`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct PauseArgs {
    /// The variant and the daemon.
    #[command(flatten)]
    pub target: OverrideTarget,
    /// The end.
    #[command(flatten)]
    pub time: OverrideTime,
}

/// Arguments of `top`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct TopArgs {
    /// URL of the daemon's plain HTTP port
    #[arg(long, value_name = "URL", default_value = DAEMON_URL)]
    pub url: String,
    /// Time between two requests
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive_duration)]
    pub interval: Duration,
    /// Column to sort by
    #[arg(long, value_name = "KEY", default_value = "name")]
    pub sort: TopSort,
    /// Words that the names, the model or the state of a variant must have
    #[arg(long, value_name = "WORDS")]
    pub filter: Option<String>,
    /// Print the table once; also if standard output is no terminal
    #[arg(long)]
    pub once: bool,
}

/// The column by which `top` sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Namespace and name.
    Name,
    /// Desired replicas.
    Desired,
    /// Arriving requests per second.
    Load,
    /// KV cache usage.
    Kv,
    /// Waiting requests.
    Waiting,
    /// Cost per hour.
    Cost,
    /// Age of the data.
    Age,
}

impl TopSort {
    /// The column that a key selects.
    #[must_use]
    pub const fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'n' => Self::Name,
            'd' => Self::Desired,
            'l' => Self::Load,
            'k' => Self::Kv,
            'w' => Self::Waiting,
            'c' => Self::Cost,
            'a' => Self::Age,
            _ => return None,
        })
    }

    /// The column in words.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Desired => "desired replicas",
            Self::Load => "load",
            Self::Kv => "KV cache usage",
            Self::Waiting => "waiting requests",
            Self::Cost => "cost",
            Self::Age => "age",
        }
    }
}

/// Arguments of `completions`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CompletionArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct ManArgs {
    /// Folder for the pages; created if absent
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// The format of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Reads a variant's key, such as `shop/llama`.
fn variant_key(text: &str) -> Result<VariantKey, String> {
    let (namespace, variant) = text.split_once('/').unwrap_or_default();
    let key = Namespace::new(namespace).zip(VariantName::new(variant));
    let (namespace, variant) =
        key.ok_or_else(|| "give NAMESPACE/VARIANT, such as shop/llama".to_owned())?;
    Ok(VariantKey { namespace, variant })
}

/// Arguments of `check`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CheckArgs {
    /// Configuration file to check
    #[arg(verbatim_doc_comment, value_name = "FILE")]
    pub file: PathBuf,
    /// Print the effective configuration with all defaults as YAML
    #[arg(verbatim_doc_comment, long)]
    pub print: bool,
    /// Skip the files that the configuration names, such as certificates. Use it to check the
    /// configuration of another machine
    #[arg(verbatim_doc_comment, long)]
    pub skip_files: bool,
}
