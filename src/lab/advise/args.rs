//! Arguments of `advise`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::backtest::args::{AssumptionArgs, SourceArgs};
use plimsoll_daemon::config::positive_duration;

/// Arguments of `advise`.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct AdviseArgs {
    /// The trace.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What the simulation assumes.
    #[command(flatten)]
    pub assumptions: AssumptionArgs,
    /// Sufficient share of requests within their objectives, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0, value_parser = percent)]
    pub attainment: f64,
    /// Part of the trace to simulate, up to its end. Default: as much as takes about a minute
    #[arg(verbatim_doc_comment, long, value_name = "DURATION", value_parser = positive_duration)]
    pub span: Option<Duration>,
    /// Number of seeds to simulate each change with
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub seeds: u32,
    /// Price of one accelerator per hour, such as `L40S=0.95`. Repeatable. Default: its price
    /// elsewhere in the trace
    #[arg(verbatim_doc_comment, long, value_name = "NAME=PRICE", value_parser = price)]
    pub price: Vec<(String, f64)>,
    /// File with capacity cards of engines on other accelerators. Repeatable
    #[arg(long, value_name = "FILE")]
    pub card: Vec<PathBuf>,
    /// Output format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: AdviceFormat,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdviceFormat {
    /// Tables for people.
    #[default]
    Text,
    /// JSON; docs/advice.md lists the fields.
    Json,
}

// === impl AdviseArgs ===

impl AdviseArgs {
    /// The share of requests within their objectives that is good enough.
    pub(crate) fn target(&self) -> f64 {
        self.attainment / 100.0
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "must be a number of percent".to_owned())?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent)
    } else {
        Err("must be from 0 to 100".to_owned())
    }
}

fn price(text: &str) -> Result<(String, f64), String> {
    let (name, price) =
        text.split_once('=').ok_or_else(|| "must be NAME=PRICE, such as L40S=0.95".to_owned())?;
    let price: f64 = price.parse().map_err(|_| format!("{price:?} must be a number"))?;
    if name.is_empty() || !price.is_finite() || price < 0.0 {
        return Err("must have a name and a price of at least 0".to_owned());
    }

    Ok((name.to_owned(), price))
}
