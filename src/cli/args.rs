//! The arguments, and the texts that explain them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::config;

/// What `--help` says about exit codes; the numbers are the constants of [`crate::cli`].
const EXIT_CODES: &str = "\
Exit codes:
   0  Everything went well.
  64  The command line or the configuration is wrong.
  69  Something outside that is needed does not answer.
  70  There is a mistake in the program; please report it.";

/// What `backtest --help` shows beside its arguments.
const BACKTEST_EXAMPLES: &str = "\
Examples:
  plimsoll backtest /var/lib/plimsoll/trace
      Does this release decide what the one decided that wrote the trace?
  plimsoll backtest /var/lib/plimsoll/trace --policy examples/policy-foresight.yaml
      What would this policy have made of the same load?
  plimsoll backtest --prometheus http://prometheus:9090 --config plimsoll.yaml --from 6h --save past
      The same, of what a Prometheus has seen without Plimsoll.

Exit codes:
   0  Every decision is what it was.
   1  Decisions are not what they were.
  64  The command line, a trace or a policy is wrong.
  69  Something outside that is needed does not answer, or a file cannot be read.
  70  There is a mistake in the program; please report it.";

/// Decides how many replicas every LLM deployment should have.
///
/// Plimsoll scrapes inference engines, decides how many replicas each variant of each model should
/// have, and publishes that number as Prometheus gauges and through the Kubernetes external metrics
/// API, so that a stock HPA does the scaling.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "plimsoll", version, disable_help_subcommand = true, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Command {
    /// Runs the daemon.
    ///
    /// It runs until it gets SIGTERM or SIGINT, goes on serving for the configured delay, and then
    /// ends. Every key of the configuration can be set in the environment too, over the file:
    /// `PLIMSOLL__SERVER__LISTEN` sets `server.listen`.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Run(RunArgs),
    /// Checks a configuration file and lists everything that is wrong with it.
    ///
    /// Warnings are printed to standard error and do not change the exit code.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Check(CheckArgs),
    /// Prints the JSON Schema of the configuration file.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Schema,
    /// Shows the daemon at work on simulated engines under load.
    ///
    /// Neither a cluster nor a GPU is needed, and nothing outside this machine is contacted.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Demo(DemoArgs),
    /// Simulates a fleet under a workload, and says how requests fared and what it cost.
    ///
    /// Decisions are made by the same code as in the daemon; docs/simulator.md says how a scenario
    /// is written. One scenario and one seed have one result.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Simulate(SimulateArgs),
    /// Compares many autoscalers on many scenarios, and writes a table of them.
    ///
    /// All scenarios must decide by the same policy, so that none is tuned for. One whose traces
    /// are not there is left out, and the table says so.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Scoreboard(ScoreboardArgs),
    /// Decides a trace again, and scores other policies on it.
    ///
    /// A daemon with `trace` in its configuration writes what it sees and decides. Given that, this
    /// decides it all again by the same code; a decision that is not what it was ends it with exit
    /// code 1, and the difference is shown. docs/backtest.md says more.
    #[command(verbatim_doc_comment, after_help = BACKTEST_EXAMPLES)]
    Backtest(BacktestArgs),
    /// Takes what was learned of engines to other clusters, as capacity cards.
    ///
    /// docs/cards.md says what a card does and what it cannot do.
    #[command(subcommand, verbatim_doc_comment, after_help = EXIT_CODES)]
    Card(CardCommand),
}

/// What to do with capacity cards.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum CardCommand {
    /// Writes what was learned to standard output, as a file for `capacity.card_files`.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Export(CardExportArgs),
    /// Checks files of capacity cards, lists everything that is wrong with them, and else the cards.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Check(CardCheckArgs),
    /// Prints the JSON Schema of a file of capacity cards.
    #[command(verbatim_doc_comment, after_help = EXIT_CODES)]
    Schema,
}

/// Arguments of `card export`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CardExportArgs {
    /// Asks the daemon whose plain HTTP port is here.
    #[arg(verbatim_doc_comment, long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Reads this state file instead of asking a daemon. It does not say how engines are
    /// started, so its cards are for variants of which nobody knows that.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires = "config",
        conflicts_with = "url"
    )]
    pub state: Option<PathBuf>,
    /// The configuration of the variants in the state file.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", requires = "state")]
    pub config: Option<PathBuf>,
    /// Writes in this format.
    #[arg(verbatim_doc_comment, long, value_name = "FORMAT", default_value = "yaml")]
    pub format: CardFormat,
}

/// Arguments of `card check`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CardCheckArgs {
    /// Checks these files.
    #[arg(verbatim_doc_comment, value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// The format of capacity cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CardFormat {
    /// For people.
    Yaml,
    /// For programs; it is YAML too.
    Json,
}

/// Arguments of `run`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct RunArgs {
    /// Reads the configuration from this file.
    #[arg(verbatim_doc_comment, long, value_name = "FILE", env = "PLIMSOLL_CONFIG")]
    pub config: PathBuf,
    /// Logs what this filter lets through, such as `info` or `warn,plimsoll::collect=debug`.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FILTER",
        env = "PLIMSOLL_LOG",
        default_value = "info,kube_client=off"
    )]
    pub log: String,
    /// Writes logs in this format.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "FORMAT",
        env = "PLIMSOLL_LOG_FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[value(verbatim_doc_comment)]
    Text,
    /// One JSON object a line.
    #[value(verbatim_doc_comment)]
    Json,
}

/// Arguments of `check`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct CheckArgs {
    /// Checks this configuration file.
    #[arg(verbatim_doc_comment, value_name = "FILE")]
    pub file: PathBuf,
    /// Prints the effective configuration with every default as YAML.
    #[arg(verbatim_doc_comment, long)]
    pub print: bool,
    /// Does not look for the files that the configuration names, such as certificates:
    /// for checking the configuration of another machine.
    #[arg(verbatim_doc_comment, long)]
    pub skip_files: bool,
}

/// Arguments of `demo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// Ends after this time, such as `90s` or `5m`.
    /// Without it, the demo runs until it is interrupted.
    #[arg(verbatim_doc_comment, long = "for", value_name = "DURATION", value_parser = duration)]
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

/// What says something of runs that are simulated, and nothing of results that are put together.
const OF_RUNS: [&str; 9] =
    ["scenario", "seed", "seeds", "set", "policy", "shard", "series", "cards", "trace"];

/// Arguments of `simulate`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct SimulateArgs {
    /// Simulates this scenario.
    #[arg(verbatim_doc_comment, value_name = "FILE", required_unless_present_any = ["merge", "schema"])]
    pub scenario: Option<PathBuf>,
    /// Draws all random numbers from this seed instead of the scenario's.
    #[arg(verbatim_doc_comment, long, value_name = "N")]
    pub seed: Option<u64>,
    /// Runs this many seeds, from the first on.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// Sets a value of the scenario, such as `models[0].workload.trace.rate=20`.
    /// May be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Compares these: `plimsoll` is the scenario as it is, `plimsoll-only-up` never scales down;
    /// `static:4` never scales, and `static:best` finds the cheapest number that serves 99 % within
    /// SLO; `waiting:5`, `in-flight:40` and `kv:0.7` are stock HPAs on that average for each
    /// replica; `keda-rate:15`, `kpa:100`, `apa:0.5`, `wva-v1`, `wva-v2`, `llm-d-slo`,
    /// `dynamo-load`, `dynamo-throughput`, `melange` and `oracle` are described in
    /// docs/simulator.md. Without it, the scenario says who is compared.
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Runs every n-th of the runs, from the i-th on, such as `2/8`; `--merge` puts them together.
    /// `job/8` takes the i-th from `JOB_COMPLETION_INDEX`, which the pods of an Indexed Job have.
    #[arg(verbatim_doc_comment, long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Puts the results of several shards together instead of simulating. Of a folder, all files
    /// that end with `.json`.
    #[arg(verbatim_doc_comment, long, value_name = "RESULTS", num_args = 1.., conflicts_with_all = OF_RUNS)]
    pub merge: Vec<PathBuf>,
    /// Writes all results as JSON to this file; `-` is standard output, without the table.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes what was seen over time in the first run as CSV to this file.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// Writes the capacity cards that the first run ended with to this file, for
    /// `policy.capacity.card_files` of another.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub cards: Option<PathBuf>,
    /// Writes what the daemon of the first run saw and decided as a trace into this folder, for
    /// `backtest`.
    #[arg(verbatim_doc_comment, long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Writes a report with charts as one HTML file.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Prints a JSON Schema instead of simulating: that of the results, or of scenario files.
    #[arg(verbatim_doc_comment, long, value_name = "OF", num_args = 0..=1, require_equals = true, default_missing_value = "results")]
    pub schema: Option<SchemaOf>,
}

/// What `simulate --schema` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// What `--json` writes.
    Results,
    /// A scenario file.
    Scenario,
}

/// Arguments of `scoreboard`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct ScoreboardArgs {
    /// Simulates these scenarios, each once.
    #[arg(verbatim_doc_comment, value_name = "FILE", required = true)]
    pub scenarios: Vec<PathBuf>,
    /// Compares these instead of all, each once; see `simulate --help`.
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Adds a table of what each term and constant of Plimsoll's own policy is worth.
    #[arg(verbatim_doc_comment, long)]
    pub ablation: bool,
    /// Runs this many seeds, from each scenario's own on, and shows the means.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// Looks for traces in this folder, too.
    #[arg(verbatim_doc_comment, long, value_name = "FOLDER", env = "PLIMSOLL_TRACES")]
    pub traces: Option<PathBuf>,
    /// Writes the table to this path with `.md` and with `.html` at its end.
    #[arg(verbatim_doc_comment, long, value_name = "PATH", default_value = "scoreboard")]
    pub out: PathBuf,
}

/// Arguments of `backtest`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct BacktestArgs {
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
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub step: Duration,
    /// Keeps the trace that is made of it in this folder. The same command goes on where one that
    /// was interrupted has stopped, and with a time ago adds what came since.
    #[arg(verbatim_doc_comment, long, value_name = "DIR", requires = "prometheus")]
    pub save: Option<PathBuf>,
    /// Scores the policy in this file too: the sections of a configuration that decisions depend on.
    /// Those that it does not have are the recorded ones. May be given several times.
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub policy: Vec<PathBuf>,
    /// Shows at most this many decisions that are not what they were.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 10)]
    pub differences: usize,
    /// Counts a request as served well when its first token comes within this time.
    /// Without it, the recorded policy's objective holds, or 2s.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = duration)]
    pub slo_ttft: Option<Duration>,
    /// And when the mean time between its tokens is at most this.
    /// Without it, the recorded policy's objective holds, or 100ms.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = duration)]
    pub slo_itl: Option<Duration>,
    /// Lets replicas take this long to start. Without it, what the trace has seen, or the policy says.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = duration)]
    pub start_time: Option<Duration>,
    /// Lets the cache of a prompt take this long from a prefill replica to a decode replica.
    /// Without it, no time, because no page says how long.
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = duration)]
    pub transfer_time: Option<Duration>,
    /// Draws the times and lengths of requests from this seed.
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
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

fn duration(text: &str) -> Result<Duration, &'static str> {
    config::duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or("a duration has a unit and is above zero, such as 90s or 5m")
}
