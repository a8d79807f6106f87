//! The clock: the only file that reads one.
//!
//! Two readings, because they answer different questions. [`Clock::now`] is wall-clock time, which
//! is what timestamps on samples and decisions mean, and which can jump. [`Clock::elapsed`] is
//! monotonic, and is what decides how old a decision is: a stepped clock must not expire every
//! metric of a cluster, nor keep a dead one alive.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// What [`Clock::elapsed`] shows at the start, so that instants before it can be written down: a
/// decision that is restored after a restart was made before the clock was started.
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
