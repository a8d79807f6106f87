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
    /// Decides by this.
    #[arg(verbatim_doc_comment, long, value_name = "POLICY", default_value = "saturation")]
    pub policy: DemoPolicy,
    /// Serves the daemon's plain HTTP port at this address, such as `127.0.0.1:8080`, for a
    /// Prometheus or a browser, and says so on standard error. Port 0 takes a free one.
    #[arg(verbatim_doc_comment, long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
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
