//! Progress on standard error, where that is a terminal.

use std::io::Write as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is drawn while something is read.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for so much.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        let style = ProgressStyle::with_template("{wide_bar} {percent} %, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    /// So much of it has been reached.
    pub(crate) fn reached(&self, position: u64) {
        self.0.set_position(position);
    }

    /// Says something above it.
    pub(crate) fn say(&self, text: &str) {
        if self.0.is_hidden() {
            // Nothing is left to tell anyone when standard error is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.0.println(text);
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
