//! The clock: the only file that reads the machine's clocks.
//!
//! It has two readings for two purposes. [`Clock::now`] is wall-clock time for the timestamps of
//! samples and decisions, and it can jump. [`Clock::elapsed`] is monotonic, and measures the age of
//! a decision. Setting the clock must not expire every metric of a cluster, nor keep a dead metric
//! alive.

pub mod heartbeat;

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The value of [`Clock::elapsed`] at the start, so that earlier instants can be represented. A
/// decision that is restored after a restart was made before the clock started.
const HEAD_START: Duration = Duration::from_hours(365 * 24);

/// Reads the machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose monotonic time starts here.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads a clock")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The wall-clock time.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads a clock")]
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// The monotonic time since an origin a year before this clock was started.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        HEAD_START + self.origin.elapsed()
    }
}
