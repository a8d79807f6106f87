//! The progress of the decision loop, as other tasks see it.
//!
//! A loop that hangs, in a plan that never ends or on a processor that never comes, cannot say so.
//! Other tasks go on: one would renew the leadership of a replica that decides nothing, and
//! another would answer probes as if all were well. So both look at the time since the last tick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;

/// A loop that has missed this many ticks no longer leads.
const TICKS_MISSED_MAX: u32 = 5;

/// The shortest silence after which a loop no longer leads. A processor that is short for some
/// seconds must not move the leadership around.
const LEAD_SILENCE_MIN: Duration = Duration::from_secs(10);

/// The shortest silence after which a loop counts as dead. A restart loses the observations of some
/// minutes, so it must not follow from a machine that is overloaded for a moment.
const LIFE_SILENCE_MIN: Duration = Duration::from_mins(1);

/// The time of the last completed tick.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    clock: Clock,
    beats: Arc<LastBeat>,
}

/// Both in milliseconds.
#[derive(Debug)]
struct LastBeat {
    at: AtomicU64,
    interval: AtomicU64,
}

impl Heartbeat {
    /// A loop that starts to tick at this interval. The start counts as a tick.
    #[must_use]
    pub fn start(clock: Clock, interval: Duration) -> Self {
        let beats = LastBeat { at: AtomicU64::new(0), interval: AtomicU64::new(0) };
        let heartbeat = Self { clock, beats: Arc::new(beats) };

        heartbeat.beat(interval);
        heartbeat
    }

    /// Records that a tick has completed. The next one follows after `interval`.
    pub fn beat(&self, interval: Duration) {
        self.beats.interval.store(milliseconds(interval), Ordering::Relaxed);
        self.beats.at.store(milliseconds(self.clock.elapsed()), Ordering::Release);
    }

    /// Returns true if the loop is quick enough to decide for other replicas.
    #[must_use]
    pub fn may_lead(&self) -> bool {
        self.silence() <= lead_silence_max(self.interval())
    }

    /// Returns the time since the last tick if it is so long that the loop counts as dead.
    #[must_use]
    pub fn death(&self) -> Option<Duration> {
        let silence = self.silence();
        (silence > life_silence_max(self.interval())).then_some(silence)
    }

    fn silence(&self) -> Duration {
        let at = Duration::from_millis(self.beats.at.load(Ordering::Acquire));
        self.clock.elapsed().saturating_sub(at)
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.beats.interval.load(Ordering::Relaxed))
    }
}

fn lead_silence_max(interval: Duration) -> Duration {
    LEAD_SILENCE_MIN.max(interval * TICKS_MISSED_MAX)
}

fn life_silence_max(interval: Duration) -> Duration {
    LIFE_SILENCE_MIN.max(interval * TICKS_MISSED_MAX)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Heartbeat {
        /// A loop of a tick a second that has been silent for this long.
        pub(crate) fn silent_for(silence: Duration) -> Self {
            let heartbeat = Self::start(Clock::start(), Duration::from_secs(1));
            let at = heartbeat.clock.elapsed().saturating_sub(silence);
            heartbeat.beats.at.store(milliseconds(at), Ordering::Release);
            heartbeat
        }
    }

    #[test]
    fn a_silent_loop_first_loses_its_lead_and_then_its_life() {
        let states = [0, 5, 15, 55, 65].map(|seconds| {
            let heartbeat = Heartbeat::silent_for(Duration::from_secs(seconds));
            (heartbeat.may_lead(), heartbeat.death().is_none())
        });
        let expected = [(true, true), (true, true), (false, true), (false, true), (false, false)];
        assert_eq!(states, expected);

        let heartbeat = Heartbeat::silent_for(Duration::from_secs(65));
        heartbeat.beat(Duration::from_secs(1));
        assert!(heartbeat.may_lead() && heartbeat.death().is_none(), "it ticks again");
    }

    #[test]
    fn a_slow_loop_may_be_silent_for_five_of_its_ticks() {
        assert_eq!(lead_silence_max(Duration::from_millis(100)), Duration::from_secs(10));
        assert_eq!(lead_silence_max(Duration::from_mins(1)), Duration::from_mins(5));
        assert_eq!(life_silence_max(Duration::from_secs(1)), Duration::from_mins(1));
        assert_eq!(life_silence_max(Duration::from_mins(1)), Duration::from_mins(5));
    }
}
