//! Arguments of `report`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::backtest::args::{ObjectiveArgs, SourceArgs};

/// Arguments of `report`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct ReportArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The objectives.
    #[command(flatten)]
    pub objectives: ObjectiveArgs,
    /// Number of days to report on, up to the end of the trace
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=92))]
    pub days: u32,
    /// Output format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: ReportFormat,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One page without scripts or external resources.
    #[default]
    Html,
    /// JSON; docs/advice.md lists the fields.
    Json,
}
