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
    /// Reads traces from this folder if the scenario's own folder does not have them.
    #[arg(verbatim_doc_comment, long, value_name = "FOLDER", env = "PLIMSOLL_TRACES")]
    pub traces: Option<PathBuf>,
    /// The policies to compare.
    #[arg(long, help = policies(), value_name = "POLICY", value_delimiter = ',')]
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
    #[arg(verbatim_doc_comment, value_name = "FILE", required_unless_present_any = ["worlds", "world"])]
    pub scenarios: Vec<PathBuf>,
    /// Draws this many random worlds instead, plays them and writes distributions; docs/worlds.md
    /// has the priors. Without --policy, fewer are compared than on scenarios.
    #[arg(verbatim_doc_comment, long, value_name = "N", conflicts_with_all = OF_SCENARIOS, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub worlds: Option<u32>,
    /// Draws --worlds from this seed, or as many from each of several, such as `1,2,3`.
    #[arg(
        verbatim_doc_comment,
        long,
        value_name = "SEED",
        value_delimiter = ',',
        default_value = "1"
    )]
    pub seed: Vec<u32>,
    /// Prints one world as a scenario for `simulate`, by its seed and its number, such as `1:37`.
    #[arg(verbatim_doc_comment, long, value_name = "SEED:NUMBER", conflicts_with_all = OF_SCENARIOS, conflicts_with_all = ["worlds", "seed", "policy", "ablation", "out"])]
    pub world: Option<String>,
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
    /// Writes the table to this path with `.md` and with `.html` at its end, that of worlds with
    /// `.md` and `.csv`. Without it, `scoreboard` or `worlds`.
    #[arg(verbatim_doc_comment, long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

/// The help of `--policy`.
fn policies() -> String {
    format!(
        "Compares these instead of the policies in the scenario: {}. docs/simulator.md describes \
         each.",
        Peer::choices()
    )
}
