//! Values over time: what a gauge, a counter and a histogram did during the last minute.
//!
//! Each series has a window of its own, and is put together with others only afterwards: a sum of
//! counters that restart one by one has no meaningful increase, a sum of increases has. Rates
//! divide by the time that really passed between the first and the last sample, without the
//! extrapolation to the window's edges that `rate` of `PromQL` does: it turns whole requests into
//! fractions, and a series that has just appeared into a trend.
//!
//! Time is wall-clock time and may jump. A sample that is not newer than the last one, or that
//! comes after a gap longer than the window, starts the window anew, because the time between the
//! two is not known.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::observe::histogram::{Histogram, Life};
use crate::units::Seconds;

/// Samples that one window keeps at most. At one scrape a second it is eight minutes; a source that
/// delivers faster loses its oldest samples first.
const SAMPLES_MAX: usize = 512;

/// How many snapshots of a histogram's buckets a window keeps. Quantiles then span between
/// 15/16 of the window and all of it, at a sixteenth of the memory of one snapshot a scrape.
const SNAPSHOTS: i64 = 16;

/// Samples in order of time, which is in nanoseconds since the epoch: a window is full of them, and
/// a thousand replicas have twenty thousand windows.
type Samples = VecDeque<(i64, f64)>;

/// The samples of one gauge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge {
    samples: Samples,
}

/// The increases of one counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    /// When, and how much the counter had increased since the window's first sample ever.
    samples: Samples,
    raw: f64,
}

/// The increases of one histogram's sum and count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    sum: Counter,
    count: Counter,
}

/// The increases of one histogram.
#[derive(Clone, Debug, Default)]
pub(crate) struct Distribution {
    totals: Totals,
    snapshots: VecDeque<(i64, Histogram)>,
}

/// What a counter did during a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Increase {
    /// By how much it grew.
    pub(crate) amount: f64,
    /// Between the first and the last sample.
    pub(crate) elapsed: Seconds,
}

// === impl Gauge ===

impl Gauge {
    /// Adds a sample and forgets those that `window` no longer reaches, but for the one that it
    /// starts from.
    pub(crate) fn push(&mut self, at: Timestamp, value: f64, window: SignedDuration) {
        let (at, window) = (nanoseconds(at), length(window));
        if starts_anew(self.samples.back().map(|(last, _)| *last), at, window) {
            self.samples.clear();
        }
        self.samples.push_back((at, value));
        forget_but_one(&mut self.samples, at, window);
    }

    /// The latest value and its age at `now`.
    pub(crate) fn last(&self, now: Timestamp) -> Option<(f64, Seconds)> {
        let (at, value) = self.samples.back()?;
        Some((*value, passed(nanoseconds(now), *at).unwrap_or(Seconds::ZERO)))
    }

    /// The mean and the largest of the samples of the last `window`, or of the latest sample where
    /// the window holds none.
    pub(crate) fn mean_and_peak(
        &self,
        now: Timestamp,
        window: SignedDuration,
    ) -> Option<(f64, f64)> {
        let last = self.samples.back()?.1;
        let start = outside(&self.samples, nanoseconds(now), length(window));
        let count = self.samples.len() - start;
        // From the latest to the oldest: the order of a sum decides its last digits.
        let add = |(sum, peak): (f64, f64), (_, value): &(i64, f64)| {
            (sum + value, if *value > peak { *value } else { peak })
        };
        let latest_first = self.samples.range(start..).rev();
        let (sum, peak) = latest_first.fold((0.0, f64::NEG_INFINITY), add);
        if count == 0 { Some((last, last)) } else { Some((sum / count as f64, peak)) }
    }

    /// The values at both ends of the window, between the same samples as [`Counter::increase`].
    pub(crate) fn ends(&self, now: Timestamp, window: SignedDuration) -> Option<(f64, f64)> {
        let (_, first) = first_of(&self.samples, nanoseconds(now), length(window))?;
        Some((first, self.samples.back()?.1))
    }
}

// === impl Counter ===

impl Counter {
    /// Adds a sample. A value below the last one means that the counter has started from zero, as
    /// does `life`: after a restart a counter may have passed its old value unseen.
    pub(crate) fn push(&mut self, at: Timestamp, value: f64, life: Life, window: SignedDuration) {
        let (at, window) = (nanoseconds(at), length(window));
        if starts_anew(self.samples.back().map(|(last, _)| *last), at, window) {
            self.samples.clear();
        }
        let total = match (self.samples.back(), life) {
            (None, _) => 0.0,
            (Some((_, total)), Life::Same) if value >= self.raw => total + (value - self.raw),
            (Some((_, total)), Life::Same | Life::New) => total + value,
        };
        self.raw = value;
        self.samples.push_back((at, total));
        forget_but_one(&mut self.samples, at, window);
    }

    /// By how much the counter grew during the last `window`; `None` before there are two samples.
    pub(crate) fn increase(&self, now: Timestamp, window: SignedDuration) -> Option<Increase> {
        let (last_at, last) = *self.samples.back()?;
        let (first_at, first) = first_of(&self.samples, nanoseconds(now), length(window))?;
        let elapsed = passed(last_at, first_at)?;
        (elapsed > Seconds::ZERO).then_some(Increase { amount: last - first, elapsed })
    }
}

// === impl Totals ===

impl Totals {
    /// Adds what a page says.
    pub(crate) fn push(
        &mut self,
        at: Timestamp,
        value: &Histogram,
        life: Life,
        window: SignedDuration,
    ) {
        let life = self.life(value, life);
        self.sum.push(at, value.sum, life, window);
        self.count.push(at, value.count, life, window);
    }

    /// The life that the page is of. Sum and count start anew together, and only the count shows it.
    fn life(&self, value: &Histogram, life: Life) -> Life {
        if value.count < self.count.raw { Life::New } else { life }
    }

    /// The sum and the number of what was observed during the last `window`.
    pub(crate) fn increase(&self, now: Timestamp, window: SignedDuration) -> Option<(f64, f64)> {
        let sum = self.sum.increase(now, window)?.amount;
        let count = self.count.increase(now, window)?.amount;
        Some((sum, count))
    }
}

// === impl Distribution ===

impl Distribution {
    /// Adds what a page says.
    pub(crate) fn push(
        &mut self,
        at: Timestamp,
        value: &Histogram,
        life: Life,
        window: SignedDuration,
    ) {
        let life = self.totals.life(value, life);
        self.totals.push(at, value, life, window);
        self.snap(nanoseconds(at), value, life, length(window));
    }

    /// Keeps the buckets, instead of the latest ones where those are near the ones before.
    fn snap(&mut self, at: i64, value: &Histogram, life: Life, window: i64) {
        let last = self.snapshots.back().map(|(at, _)| *at);
        if life == Life::New || starts_anew(last, at, window) {
            self.snapshots.clear();
        }
        let mut latest = self.snapshots.iter().rev().map(|(at, _)| *at);
        let is_near = latest
            .next()
            .zip(latest.next())
            .is_some_and(|(last, before)| last.saturating_sub(before) < window / SNAPSHOTS);
        let replaced = if is_near { self.snapshots.pop_back() } else { None };
        let (_, mut snapshot) = replaced.unwrap_or_default();
        let Histogram { sum, count, buckets } = value;
        (snapshot.sum, snapshot.count) = (*sum, *count);
        snapshot.buckets.clone_from(buckets);
        self.snapshots.push_back((at, snapshot));
        while self.snapshots.get(1).is_some_and(|(second, _)| !within(at, *second, window)) {
            self.snapshots.pop_front();
        }
    }

    /// The sum and the number of what was observed during the last `window`.
    pub(crate) fn increase(&self, now: Timestamp, window: SignedDuration) -> Option<(f64, f64)> {
        self.totals.increase(now, window)
    }

    /// The observations between the oldest and the latest snapshot of one life of the process.
    pub(crate) fn difference(&self) -> Option<Histogram> {
        let (_, first) = self.snapshots.front()?;
        let (_, last) = self.snapshots.back()?;
        Some(last.since(first, Life::Same))
    }
}

// === helpers ===

/// Nanoseconds since the epoch. Times beyond the years 1677 to 2262 are those years' ends.
fn nanoseconds(at: Timestamp) -> i64 {
    let nanoseconds = i64::from(at.subsec_nanosecond());
    at.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// A length of time in nanoseconds. What is longer than 292 years is 292 years.
fn length(time: SignedDuration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The time between two instants; `None` when the second is the later one.
fn passed(now: i64, at: i64) -> Option<Seconds> {
    Seconds::from_span(SignedDuration::from_nanos(now.saturating_sub(at)))
}

/// Whether an instant lies in the window that ends at `now`; the window is open on the left.
fn within(now: i64, at: i64, window: i64) -> bool {
    now.saturating_sub(at) < window
}

fn starts_anew(last: Option<i64>, at: i64, window: i64) -> bool {
    last.is_some_and(|last| last >= at || !within(at, last, window))
}

/// How many of the samples lie before the window that ends at `now`.
fn outside(samples: &Samples, now: i64, window: i64) -> usize {
    let is_inside = |index| samples.get(index).is_none_or(|(at, _)| within(now, *at, window));
    // Only one is kept that the window does not reach, so this is nearly always the answer.
    if is_inside(1) {
        return usize::from(!is_inside(0));
    }
    samples.partition_point(|(at, _)| !within(now, *at, window))
}

/// The sample that a change over the window is measured from: the one at or before the window's
/// start, because the change since then is what the window saw; else the oldest.
fn first_of(samples: &Samples, now: i64, window: i64) -> Option<(i64, f64)> {
    samples.get(outside(samples, now, window).saturating_sub(1)).copied()
}

fn forget_but_one(samples: &mut Samples, now: i64, window: i64) {
    while samples.len() > SAMPLES_MAX
        || samples.get(1).is_some_and(|(second, _)| !within(now, *second, window))
    {
        samples.pop_front();
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
mod tests {
    use super::*;

    const WINDOW: SignedDuration = SignedDuration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    fn counter(samples: &[(i64, f64)]) -> Counter {
        let mut counter = Counter::default();
        for (second, value) in samples {
            counter.push(at(*second), *value, Life::Same, WINDOW);
        }
        counter
    }

    #[test]
    fn a_gauge_keeps_its_peak_for_the_window_and_no_longer() {
        let mut gauge = Gauge::default();
        for second in 0..=100 {
            gauge.push(at(second), if second == 10 { 9.0 } else { 1.0 }, WINDOW);
            if second == 69 {
                assert_eq!(gauge.mean_and_peak(at(second), WINDOW).unwrap().1, 9.0);
            }
        }
        assert_eq!(gauge.mean_and_peak(at(100), WINDOW), Some((1.0, 1.0)));
        assert_eq!(gauge.last(at(103)).unwrap(), (1.0, Seconds::new(3.0).unwrap()));
    }

    #[test]
    fn a_gauge_and_a_counter_change_between_the_same_samples() {
        let mut gauge = Gauge::default();
        let samples: Vec<_> = (0..=100).map(|second| (second, f64::from(2 * second))).collect();
        for (second, value) in &samples {
            gauge.push(at((*second).into()), *value, WINDOW);
        }
        let samples: Vec<_> = samples.iter().map(|(at, value)| ((*at).into(), *value)).collect();
        let counter = counter(&samples);
        for late in 0..3 {
            let (first, last) = gauge.ends(at(100 + late), WINDOW).unwrap();
            let increase = counter.increase(at(100 + late), WINDOW).unwrap();
            assert_eq!(last - first, increase.amount, "{late} s after the last sample");
        }
    }

    #[test]
    fn a_rate_divides_by_the_time_that_passed() {
        let increase = counter(&[(0, 100.0), (7, 107.0), (20, 140.0)]).increase(at(20), WINDOW);
        assert_eq!(increase, Some(Increase { amount: 40.0, elapsed: Seconds::new(20.0).unwrap() }));
    }

    #[test]
    fn one_sample_has_no_increase() {
        assert_eq!(counter(&[(0, 100.0)]).increase(at(1), WINDOW), None);
    }

    #[test]
    fn a_counter_that_goes_back_has_started_from_zero() {
        let counter = counter(&[(0, 100.0), (10, 110.0), (20, 5.0), (30, 9.0)]);
        assert_eq!(counter.increase(at(30), WINDOW).unwrap().amount, 19.0);
    }

    #[test]
    fn a_restart_counts_even_when_the_counter_has_passed_its_old_value() {
        let mut counter = counter(&[(0, 100.0), (10, 110.0)]);
        counter.push(at(20), 150.0, Life::New, WINDOW);
        assert_eq!(counter.increase(at(20), WINDOW).unwrap().amount, 160.0);
    }

    #[test]
    fn a_clock_that_jumps_starts_the_window_anew() {
        let mut counter = counter(&[(0, 100.0), (10, 110.0)]);
        counter.push(at(-3600), 111.0, Life::Same, WINDOW);
        assert_eq!(counter.increase(at(-3600), WINDOW), None, "back");
        counter.push(at(7200), 112.0, Life::Same, WINDOW);
        assert_eq!(counter.increase(at(7200), WINDOW), None, "forward");
        counter.push(at(7201), 113.0, Life::Same, WINDOW);
        assert_eq!(counter.increase(at(7201), WINDOW).unwrap().amount, 1.0);
    }

    #[test]
    fn a_window_is_bounded_however_fast_samples_come() {
        let (mut gauge, mut counter) = (Gauge::default(), Counter::default());
        for millisecond in 0..5_000 {
            let now = at(0).saturating_add(SignedDuration::from_millis(millisecond)).unwrap();
            gauge.push(now, 1.0, WINDOW);
            counter.push(now, 1.0, Life::Same, WINDOW);
        }
        assert_eq!((gauge.samples.len(), counter.samples.len()), (SAMPLES_MAX, SAMPLES_MAX));
    }

    #[test]
    fn a_histogram_that_stands_still_has_observed_nothing() {
        let mut distribution = Distribution::default();
        let still = Histogram { sum: 4.0, count: 2.0, buckets: Vec::new() };
        distribution.push(at(0), &still, Life::Same, WINDOW);
        distribution.push(at(5), &still, Life::Same, WINDOW);
        assert_eq!(distribution.increase(at(5), WINDOW), Some((0.0, 0.0)));
        let more = Histogram { sum: 7.0, count: 3.0, buckets: Vec::new() };
        distribution.push(at(6), &more, Life::Same, WINDOW);
        assert_eq!(distribution.increase(at(6), WINDOW), Some((3.0, 1.0)));
    }

    #[test]
    fn snapshots_of_buckets_stay_few() {
        let mut distribution = Distribution::default();
        for second in 0..600 {
            let count = f64::from(i32::try_from(second).unwrap());
            let value = Histogram { sum: count, count, buckets: vec![(f64::INFINITY, count)] };
            distribution.push(at(second), &value, Life::Same, WINDOW);
        }
        assert!(distribution.snapshots.len() <= 18, "{}", distribution.snapshots.len());
        let seen = distribution.difference().unwrap().count;
        assert!((56.0..=64.0).contains(&seen), "{seen}");
    }
}
