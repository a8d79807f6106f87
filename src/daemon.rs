//! The daemon: builds everything, runs the loop, shuts down.

use crate::cli::RunArgs;

/// Runs the daemon until it is told to end.
///
/// # Errors
///
/// The configuration is wrong, or something that is needed does not answer.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs { config, log, log_format } = args;
    anyhow::bail!("no daemon to run {} with ({log}, {log_format:?})", config.display())
}
