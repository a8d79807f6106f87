//! The command line: arguments, exit codes, and output streams.
//!
//! Results go to standard output and everything else to standard error, so that the output of
//! `check --print` or `schema` can be piped. An error is printed once, by this module, with its
//! causes.

pub mod args;
mod ask;
mod card;
pub mod doctor;
mod explain;
mod manual;
mod migrate;
mod overrides;
pub mod top;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use clap::error::ErrorKind;

use crate::cli::args::{Args, CheckArgs, Command};
use crate::cli::ask::AskError;
use crate::cli::card::CardError;
use crate::cli::doctor::DoctorError;
use crate::cli::explain::ExplainError;
use crate::cli::migrate::MigrateError;
use crate::cli::overrides::OverrideError;
use plimsoll_daemon::config::{self, Files, LoadError, LoadedConfig};
use plimsoll_daemon::publish::state::StateError;
use plimsoll_daemon::trace::TraceError;
use plimsoll_lab::backtest::{BacktestError, EXIT_INTERRUPTED};
use plimsoll_lab::output::print;
use plimsoll_lab::study::{MergeError, PlanError, ScenarioError};

/// The command succeeded.
pub const EXIT_OK: u8 = 0;
/// `backtest` found decisions that differ from the recorded ones.
pub const EXIT_CHANGED: u8 = 1;
/// `explain` found a variant without a number that is served.
pub const EXIT_NO_NUMBER: u8 = 1;
/// The command line or the configuration is wrong (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// A required external service or file is not available (`EX_UNAVAILABLE`).
pub const EXIT_UNAVAILABLE: u8 = 69;
/// There is a bug in the program (`EX_SOFTWARE`).
pub const EXIT_BUG: u8 = 70;

/// Runs the command line of the process, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let code = match Args::try_parse() {
        Ok(args) => finish(run(args.command)),
        Err(error) => {
            let help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            // An error while printing can no longer be reported.
            let _ = error.print();
            if help { EXIT_OK } else { EXIT_USAGE }
        }
    };

    ExitCode::from(code)
}

/// Maps an error to its exit code.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(problem) = cause.downcast_ref() {
            match problem {
                BacktestError::Changed { .. } => return EXIT_CHANGED,
                // The system's error further down the chain determines the code for a file that
                // cannot be read.
                BacktestError::Trace(_) => {}
                BacktestError::Prometheus { .. } => return EXIT_UNAVAILABLE,
                BacktestError::Interrupted(_) => return EXIT_INTERRUPTED,
                BacktestError::Config { .. }
                | BacktestError::Headless { .. }
                | BacktestError::TooEarly { .. }
                | BacktestError::Policies { .. }
                | BacktestError::Unusable(_)
                | BacktestError::Nothing { .. }
                | BacktestError::Unscored(_) => return EXIT_USAGE,
            }
        }

        if let Some(problem) = cause.downcast_ref() {
            match problem {
                CardError::TooLarge { .. } => return EXIT_USAGE,
            }
        }

        if let Some(problem) = cause.downcast_ref() {
            match problem {
                AskError::Daemon { .. } | AskError::Answer { .. } => return EXIT_UNAVAILABLE,
            }
        }

        if let Some(problem) = cause.downcast_ref::<DoctorError>() {
            return problem.exit_code();
        }

        if let Some(problem) = cause.downcast_ref() {
            match problem {
                ExplainError::NoNumber { .. } => return EXIT_NO_NUMBER,
                ExplainError::Unknown { .. } => return EXIT_USAGE,
                ExplainError::Busy { .. } => return EXIT_UNAVAILABLE,
            }
        }

        if let Some(problem) = cause.downcast_ref()
            && !matches!(problem, StateError::Io { .. })
        {
            return EXIT_USAGE;
        }

        if let Some(problem) = cause.downcast_ref()
            && !matches!(problem, TraceError::Io { .. })
        {
            return EXIT_USAGE;
        }

        let usage = matches!(cause.downcast_ref(), Some(OverrideError::Refused(_)))
            || cause.is::<ScenarioError>()
            || cause.is::<PlanError>()
            || cause.is::<MergeError>();
        if cause.is::<LoadError>() || cause.is::<MigrateError>() || usage {
            return EXIT_USAGE;
        }
        if migrate::is_unavailable(cause) {
            return EXIT_UNAVAILABLE;
        }
        if cause.is::<io::Error>() || cause.is::<kube::Error>() {
            return EXIT_UNAVAILABLE;
        }
    }

    EXIT_BUG
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => plimsoll_daemon::daemon::run(args),
        Command::Check(args) => check(&args),
        Command::Schema => schema(),
        Command::Demo(args) => plimsoll_lab::demo::run(args),
        Command::Engine(args) => plimsoll_lab::engine::run(&args),
        Command::Simulate(args) => plimsoll_lab::study::run(&args),
        Command::Scoreboard(args) => plimsoll_lab::study::scoreboard(&args),
        Command::Backtest(args) => plimsoll_lab::backtest::run(&args),
        Command::Advise(args) => plimsoll_lab::advise::run(&args),
        Command::Report(args) => plimsoll_lab::report::run(&args),
        Command::Card(command) => card::run(&command),
        Command::Migrate(source) => migrate::run(&source),
        Command::Explain(args) => explain::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Pin(args) => overrides::pin(&args),
        Command::Pause(args) => overrides::pause(&args),
        Command::Resume(target) => overrides::resume(&target),
        Command::Top(args) => top::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args.folder),
    }
}

fn finish(result: anyhow::Result<()>) -> u8 {
    let Err(error) = result else { return EXIT_OK };
    if is_closed_pipe(&error) {
        return EXIT_OK;
    }
    // An error while standard error is closed can no longer be reported.
    let _ = writeln!(io::stderr(), "plimsoll: {}", told(&error));
    exit_code(&error)
}

/// Returns the error with its causes. Some libraries repeat the text of a cause in their own.
fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if told.is_empty() {
            told = cause;
        } else if !told.contains(&cause) {
            told.push_str(": ");
            told.push_str(&cause);
        }
    }
    told
}

/// Returns true if the reader of standard output has closed it, which is not an error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let CheckArgs { file, print, skip_files } = args;
    let files = if *skip_files { Files::NotChecked } else { Files::MustExist };
    let LoadedConfig { config, warnings } = config::load(file, files)?;
    let mut errors = io::stderr().lock();
    for warning in &warnings {
        writeln!(errors, "{}: {warning}", file.display())?;
    }

    let mut output = io::stdout().lock();
    if *print {
        output.write_all(config.print().as_bytes())?;
    } else {
        writeln!(
            output,
            "{} is valid: {}, hash {}",
            file.display(),
            config::counted(config.variants.len(), "variant"),
            config.hash()
        )?;
    }

    output.flush()?;
    Ok(())
}

fn schema() -> anyhow::Result<()> {
    let text =
        serde_json::to_string_pretty(&config::schema()).context("cannot write the schema")?;
    print(&format!("{text}\n"))
}
