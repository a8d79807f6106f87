//! One tick of a trace, with the state before it.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::backtest::error::BacktestError;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::replay::TraceReplay;
use plimsoll_core::pipeline::repeat::TickScene;
use plimsoll_daemon::trace::{self, TraceFiles};

/// Replays traces up to the first tick at or after an instant, and returns that tick.
///
/// # Errors
///
/// The trace cannot be read, or ends before the instant.
pub fn at(traces: &[PathBuf], at: Timestamp) -> anyhow::Result<TickScene> {
    let interrupt = Interrupt::listen()?;
    let TraceFiles { readers, .. } = trace::files(traces)?;
    let mut replay = TraceReplay::until(at);
    for mut reader in readers {
        replay.begin(&reader);
        while let Some(record) = reader.record()? {
            interrupt.check()?;
            replay.take(reader.path(), record)?;
            if let Some(scene) = replay.scene() {
                return Ok(scene);
            }
        }

        replay.end(&reader);
    }

    Err(BacktestError::TooEarly { at, span: replay.finish().span }.into())
}
