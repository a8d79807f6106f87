//! The demo: a simulated fleet under load, the real daemon, and a model of the stock HPA.

use crate::cli::DemoArgs;

/// Runs the demo until its time is over or it is interrupted.
///
/// # Errors
///
/// A listener cannot be opened, or the terminal cannot be written to.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    anyhow::bail!("no demo to run with seed {}", args.seed)
}
