//! The part of the trace that is simulated, and its division into parts of equal length.
//!
//! A run takes about a microsecond of a core per request, and five per replica and tick. The
//! simulated part is as long as all runs together may take, so one trace gives one result on any
//! machine.

use jiff::{SignedDuration, Timestamp};

use crate::backtest::demand::{INTERVAL, TraceDemand};
use crate::simulate::Micros;

/// Seconds of a core per simulated request.
const REQUEST: f64 = 1e-6;

/// Seconds of a core per replica and tick.
const REPLICA_TICK: f64 = 5e-6;

/// Runs of one seed per model: the fleet of today, and a dozen changes.
const RUNS: f64 = 13.0;

/// Seconds of a core that all runs may take.
const BUDGET: f64 = 60.0;

/// The shortest part, even if it takes longer.
const SHORTEST: f64 = 1800.0;

/// The longest time at the start that is not counted: the simulated daemon has learned nothing yet.
const WARM_UP: f64 = 1800.0;

/// Parts of a time that is shorter than [`DAYS`].
const PARTS: u32 = 8;

/// Days from which the parts are days.
const DAYS: f64 = 4.0;

const DAY: f64 = 86_400.0;

/// The division of the simulated time into equal parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Blocks {
    /// The end of the time that is not counted.
    pub(crate) from: Micros,
    /// The length of a part.
    pub(crate) length: Micros,
    /// The number of parts.
    pub(crate) count: u32,
}

// === impl Blocks ===

impl Blocks {
    /// The parts of a simulation of this length.
    pub(crate) fn of(length: Micros) -> Self {
        let whole = length.seconds();
        let warm_up = WARM_UP.min(whole / 10.0);
        let counted = whole - warm_up;
        if counted < DAYS * DAY {
            let part = Micros::from_secs_f64(counted / f64::from(PARTS));
            return Self { from: Micros::from_secs_f64(warm_up), length: part, count: PARTS };
        }

        let days = whole_number(counted / DAY);
        let from = Micros::from_secs_f64(whole - f64::from(days) * DAY);
        Self { from, length: Micros::from_secs_f64(DAY), count: days }
    }

    /// The part that ends at or after an instant, and begins before it.
    pub(crate) fn at(&self, at: Micros) -> Option<usize> {
        let elapsed = at.micros().checked_sub(self.from.micros() + 1)?;
        let part = elapsed / self.length.micros().max(1);
        usize::try_from(part).ok().filter(|part| *part < self.count as usize)
    }
}

/// The instant from which a trace is simulated, without a span from the command line.
pub(crate) fn begin(gathered: &TraceDemand, tick: Micros, seeds: u32) -> Option<Timestamp> {
    let (first, last) = gathered.span?;
    let longest = gathered.models.values().map(|it| it.intervals.len()).max().unwrap_or(0);
    let runs = RUNS * f64::from(seeds);
    let mut work = 0.0;
    for at in (0..longest).rev() {
        let past = (longest - at) as f64 * INTERVAL;
        let loads = gathered.models.values().filter_map(|load| load.intervals.get(at));
        let arrived: f64 = loads.map(|interval| interval.arrived.max(0.0)).sum();
        let now = instant(first, at as f64 * INTERVAL).min(last);
        let crews = gathered.variants.values();
        let replicas: f64 =
            crews.map(|it| it.existing(now).map_or(0.0, |it| f64::from(it.count()))).sum();
        let ticks = INTERVAL / tick.seconds().max(1.0);
        work += runs * (arrived * REQUEST + (replicas + 1.0) * ticks * REPLICA_TICK);
        if work > BUDGET && past > SHORTEST {
            return Some(instant(first, (at + 1) as f64 * INTERVAL).min(last));
        }
    }

    Some(first)
}

fn instant(first: Timestamp, seconds: f64) -> Timestamp {
    first.saturating_add(SignedDuration::from_secs_f64(seconds)).unwrap_or(first)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and counts are not negative"
)]
fn whole_number(value: f64) -> u32 {
    value as u32
}

/// A span of time in the largest fitting unit.
pub(crate) fn hours(seconds: f64) -> String {
    if seconds >= 2.0 * DAY {
        format!("{:.1} days", seconds / DAY)
    } else if seconds >= 7200.0 {
        format!("{:.1} h", seconds / 3600.0)
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instant_after_the_warm_up_is_in_one_part() {
        let blocks = Blocks::of(Micros::from_secs(24 * 3600));
        assert_eq!((blocks.from, blocks.count), (Micros::from_secs(1800), 8));
        assert_eq!(blocks.at(Micros::from_secs(1800)), None, "it ends the warm-up");
        assert_eq!(blocks.at(Micros::from_secs(1801)), Some(0));
        assert_eq!(blocks.at(Micros::from_secs(24 * 3600)), Some(7));
        assert_eq!(blocks.at(Micros::from_secs(24 * 3600 + 1)), None);
        let week = Blocks::of(Micros::from_secs(7 * 86_400));
        assert_eq!((week.count, week.length), (6, Micros::from_secs(86_400)), "whole days");
        assert_eq!(week.at(Micros::from_secs(7 * 86_400)), Some(5));
    }
}
