//! The report of a week: what a trace shows of the requests, the cost and the decisions.
//!
//! Nothing is simulated or decided again, so a report takes as long as reading the trace.

pub mod args;
mod held;
mod html;
mod ledger;
mod summary;

use anyhow::Context as _;

use crate::backtest::fleet::objectives;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::source::TraceSource;
use crate::output::print;
use crate::report::args::{ReportArgs, ReportFormat};
use crate::report::ledger::WeekLedger;
use crate::report::summary::Report;

/// Reports on the end of a trace.
///
/// # Errors
///
/// The trace cannot be read or has no tick, Prometheus does not respond, or the output cannot be
/// written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    let source = TraceSource::open(&args.source, &interrupt)?;
    let mut ledger = WeekLedger::new(args.days);
    let candidates = source.read(&interrupt, |tick| ledger.take(tick))?;
    let slo = objectives(&candidates, &args.objectives);
    let report = Report::new(&ledger, &slo)?;

    let text = match args.output {
        ReportFormat::Json => serde_json::to_string_pretty(&report)? + "\n",
        ReportFormat::Html => html::page(&report),
    };
    if let Some(path) = &args.file {
        return std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()));
    }

    print(&text)
}
