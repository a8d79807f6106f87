//! An interrupt, such as Ctrl-C, which is handled between two steps of the work in progress.
//!
//! By default, an interrupt ends the process without a message. Then users would not know if an
//! hour of fetched data is lost.

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

use crate::backtest::error::BacktestError;

/// The exit code of an interrupted process, as shells report it.
pub const EXIT: u8 = 130;

/// A listener for interrupts, active until it is dropped.
pub(crate) struct Interrupt {
    heard: CancellationToken,
    _runtime: Runtime,
}

impl Interrupt {
    /// Starts to listen. A second interrupt ends the process at once.
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

    /// Returns true if an interrupt has arrived.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_cancelled()
    }

    /// Waits for an interrupt.
    pub(crate) fn wait(&self) -> WaitForCancellationFuture<'_> {
        self.heard.cancelled()
    }

    /// Stops an operation that only reads, if an interrupt has arrived.
    ///
    /// # Errors
    ///
    /// An interrupt has arrived.
    pub(crate) fn check(&self) -> Result<(), BacktestError> {
        let nothing = "; traces were only read, and the same command reads them again";
        if self.is_heard() { Err(BacktestError::Interrupted(nothing.to_owned())) } else { Ok(()) }
    }
}
