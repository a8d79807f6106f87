//! Arguments of `simulate` and `scoreboard`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::simulate::peers::Peer;

/// The options that apply to simulated runs and not to merged results.
const OF_RUNS: [&str; 9] =
    ["scenario", "seed", "seeds", "set", "policy", "shard", "series", "cards", "trace"];

/// The options that apply to scenarios and not to random worlds.
const OF_SCENARIOS: [&str; 2] = ["scenarios", "seeds"];

/// Arguments of `simulate`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct SimulateArgs {
    /// Scenario file
    #[arg(verbatim_doc_comment, value_name = "FILE", required_unless_present_any = ["merge", "schema"])]
    pub scenario: Option<PathBuf>,
    /// Random seed, instead of the scenario's
    #[arg(verbatim_doc_comment, long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of seeds to run, from the first on
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub seeds: u32,
    /// Set a value of the scenario, such as `models[0].workload.trace.rate=20`. Repeatable
    #[arg(verbatim_doc_comment, long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Folder for traces that are not in the scenario's own folder
    #[arg(verbatim_doc_comment, long, value_name = "FOLDER", env = "PLIMSOLL_TRACES")]
    pub traces: Option<PathBuf>,
    /// The policies to compare.
    #[arg(long, help = policies(), value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Run every n-th of the runs, from the i-th on, such as `2/8`; `--merge` combines the
    /// results. `job/8` takes i from `JOB_COMPLETION_INDEX`, as set in pods of an Indexed Job
    #[arg(verbatim_doc_comment, long, value_name = "I/N")]
    pub shard: Option<String>,
    /// Merge the results of several shards instead of simulating. Of a folder, all files that end
    /// with `.json`
    #[arg(verbatim_doc_comment, long, value_name = "RESULTS", num_args = 1.., conflicts_with_all = OF_RUNS)]
    pub merge: Vec<PathBuf>,
    /// Write all results as JSON to this file; `-` is standard output, without the table
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the time series of the first run as CSV to this file
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// Write the capacity cards from the end of the first run to this file, for
    /// `policy.capacity.card_files`
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub cards: Option<PathBuf>,
    /// Write the inputs and decisions of the first run as a trace into this folder, for
    /// `backtest`
    #[arg(verbatim_doc_comment, long, value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Write a report with charts as one HTML file
    #[arg(verbatim_doc_comment, long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print a JSON Schema instead of simulating: that of the results, or of scenario files
    #[arg(verbatim_doc_comment, long, value_name = "OF", num_args = 0..=1, require_equals = true, default_missing_value = "results")]
    pub schema: Option<SchemaOf>,
}

/// What `simulate --schema` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// The output of `--json`.
    Results,
    /// A scenario file.
    Scenario,
}

/// Arguments of `scoreboard`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct ScoreboardArgs {
    /// Scenario files
    #[arg(verbatim_doc_comment, value_name = "FILE", required_unless_present_any = ["worlds", "world"])]
    pub scenarios: Vec<PathBuf>,
    /// Simulate this many random worlds instead, and write distributions; docs/worlds.md has the
    /// priors. Without --policy, fewer policies are compared than on scenarios
    #[arg(verbatim_doc_comment, long, value_name = "N", conflicts_with_all = OF_SCENARIOS, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub worlds: Option<u32>,
    /// Seed of --worlds, or several, such as `1,2,3`; each draws that many worlds
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "SEED",
        value_delimiter = ',',
        default_value = "1"
    )]
    pub seed: Vec<u32>,
    /// Print one world as a scenario for `simulate`, by its seed and its number, such as `1:37`
    #[arg(verbatim_doc_comment, long, value_name = "SEED:NUMBER", conflicts_with_all = OF_SCENARIOS, conflicts_with_all = ["worlds", "seed", "policy", "ablation", "out"])]
    pub world: Option<String>,
    /// Policies to compare instead of the default; see `simulate --help`
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Add a table with the effect of terms and constants of Plimsoll's own policy
    #[arg(verbatim_doc_comment, long)]
    pub ablation: bool,
    /// Number of seeds to run, from each scenario's own on; the table shows the means
    #[arg(verbatim_doc_comment, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// Additional folder for traces
    #[arg(verbatim_doc_comment, long, value_name = "FOLDER", env = "PLIMSOLL_TRACES")]
    pub traces: Option<PathBuf>,
    /// Path of the table, to which `.md` and `.html` are added, or `.md` and `.csv` for worlds.
    /// Default: `scoreboard` or `worlds`
    #[arg(verbatim_doc_comment, long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

/// The help of `--policy`.
fn policies() -> String {
    format!(
        "Policies to compare, instead of those in the scenario: {}. docs/simulator.md describes each",
        Peer::choices()
    )
}
