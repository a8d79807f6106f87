//! An interrupt, such as Ctrl-C, heard between two steps of what is under way.
//!
//! Left to the system, it ends the process without a word, and nobody knows whether what was fetched
//! in an hour is lost.

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

use crate::backtest::BacktestError;

/// The exit code of a process that was interrupted, as shells have it.
pub const EXIT: u8 = 130;

/// Hears an interrupt until it is dropped.
pub(crate) struct Interrupt {
    heard: CancellationToken,
    _runtime: Runtime,
}

impl Interrupt {
    /// Begins to listen. A second interrupt ends the process at once.
    ///
    /// # Errors
    ///
    /// The system has no thread for it.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let heard = CancellationToken::new();
        let told = heard.clone();
        TaskTracker::new().spawn_on(
            async move {
                while tokio::signal::ctrl_c().await.is_ok() {
                    if told.is_cancelled() {
                        std::process::exit(EXIT.into());
                    }
                    told.cancel();
                }
            },
            runtime.handle(),
        );
        Ok(Self { heard, _runtime: runtime })
    }

    /// Whether it has come.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_cancelled()
    }

    /// Waits until it comes.
    pub(crate) fn wait(&self) -> WaitForCancellationFuture<'_> {
        self.heard.cancelled()
    }

    /// Ends what only reads, if it has come.
    ///
    /// # Errors
    ///
    /// It has come.
    pub(crate) fn check(&self) -> Result<(), BacktestError> {
        let nothing = "; traces were only read, and the same command reads them again";
        if self.is_heard() { Err(BacktestError::Interrupted(nothing.to_owned())) } else { Ok(()) }
    }
}
