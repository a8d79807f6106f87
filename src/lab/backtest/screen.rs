//! Progress on standard error, if that is a terminal.

use std::io::Write as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar for reading.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A progress bar for this total.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        let style = ProgressStyle::with_template("{wide_bar} {percent} %, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    /// Sets the position.
    pub(crate) fn reached(&self, position: u64) {
        self.0.set_position(position);
    }

    /// Prints a message above the bar.
    pub(crate) fn say(&self, text: &str) {
        if self.0.is_hidden() {
            // If standard error is closed, the message is lost.
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.0.println(text);
        }
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
