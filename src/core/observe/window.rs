//! Values over time: the changes of a replica's series during the last minute.
//!
//! A [`ScrapeWindow`] has a row for each scrape and a column for each series. All values of a
//! scrape have one instant and are read together. A tick touches the first and last of a few rows.
//! With one window per series, it would wait for memory once per series. A scrape that lacks a
//! series leaves its cell empty. Gauges are stored apart from counters, because their means and
//! peaks use every row.
//!
//! A column holds a gauge's values, or the growth of a counter. Counters are combined only
//! afterwards: a sum of counters that restart one by one has no meaningful increase, but a sum of
//! increases has. Rates divide by the real time between the first and the last sample. They do not
//! extrapolate to the window's edges as `rate` of `PromQL` does. Extrapolation turns whole requests
//! into fractions, and a series that has just appeared into a trend.
//!
//! Time is wall-clock time and may jump. A scrape restarts the window if it is not newer than the
//! last one, or if it comes after a gap longer than the window. The time between the two is then
//! not known. Such a gap in one column restarts that column.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::observe::histogram::{Histogram, ProcessLife};
use crate::units::Seconds;

/// The maximum of rows in one window. At one scrape per second this is eight minutes. A faster
/// source loses its oldest rows first.
const ROWS_MAX: usize = 512;

/// The scrapes of the last minute, each with the same `G` gauges and `C` counters.
#[derive(Clone, Debug)]
pub(crate) struct ScrapeWindow<const G: usize, const C: usize> {
    rows: VecDeque<ScrapeRow<C>>,
    /// The gauges of each row.
    gauges: VecDeque<[f64; G]>,
    /// The rows that lack a gauge.
    with_gaps: usize,
}

/// The values of one scrape, except for its gauges.
#[derive(Clone, Copy, Debug)]
struct ScrapeRow<const C: usize> {
    /// Nanoseconds since the epoch.
    at: i64,
    /// One bit for each cell that is not empty, those of the gauges first.
    filled: u32,
    /// The growth of each counter since the window began.
    totals: [f64; C],
}

/// A view of a window at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pane<'a, const G: usize, const C: usize> {
    of: &'a ScrapeWindow<G, C>,
    /// The rows before the window.
    outside: usize,
}

/// The columns of one histogram's sum and count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) sum: usize,
    pub(crate) count: usize,
}

/// The time of a scrape, and the facts that decide if it continues from the scrapes before. Times
/// are converted to nanoseconds once, because each series needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrapeTime {
    /// Nanoseconds since the epoch.
    pub(crate) at: i64,
    pub(crate) life: ProcessLife,
    /// Length of the window in nanoseconds.
    pub(crate) window: i64,
}

/// The last value of a counter.
///
/// A scrape may lack a counter: engines create one for each label value when they first use it, and
/// rules drop series. The treatment of its next value depends on the length of the gap.
///
/// - Less than a window, in one life: the counter continues, and its growth meanwhile counts.
/// - A window or more: the counter starts over, because the time of its growth was not observed.
/// - A new life began meanwhile: the counter has counted from zero. All of it is growth, even if it
///   has passed its old value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    /// The time in nanoseconds since the epoch, and the value.
    last: Option<(i64, f64)>,
}

/// The last sum and count of a histogram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HistogramTotals {
    sum: f64,
    count: Counter,
}

/// The change of a counter during a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Increase {
    /// The growth.
    pub(crate) amount: f64,
    /// The time between the first and the last sample.
    pub(crate) elapsed: Seconds,
}

// === impl ScrapeWindow ===

impl<const G: usize, const C: usize> ScrapeWindow<G, C> {
    /// The bits of all gauges.
    const GAUGES: u32 = (1 << G) - 1;

    /// Adds a scrape: the values of its gauges, and the growth of its counters since the previous
    /// scrape. Removes the rows that the window no longer reaches, except for the one that it
    /// starts from.
    pub(crate) fn push(
        &mut self,
        page: &ScrapeTime,
        gauges: [Option<f64>; G],
        growths: [Option<f64>; C],
    ) {
        let ScrapeTime { at, window, .. } = *page;
        if self.rows.back().is_some_and(|last| starts_anew(last.at, at, window)) {
            self.rows.clear();
            self.gauges.clear();
            self.with_gaps = 0;
        }

        while self.rows.len() >= ROWS_MAX
            || self.rows.get(1).is_some_and(|second| !within(at, second.at, window))
        {
            self.forget_first();
        }

        let last = self.rows.back().copied();
        let mut row = ScrapeRow { at, filled: 0, totals: [0.0; C] };
        let mut values = [0.0; G];
        for (column, value) in gauges.into_iter().enumerate() {
            let Some(value) = value else { continue };
            if last.is_none_or(|last| !last.has(column)) {
                self.before_a_gap(column, at, window);
            }
            row.filled |= 1 << column;
            values[column] = value;
        }

        for (column, growth) in growths.into_iter().enumerate() {
            let Some(growth) = growth else { continue };
            let before = match last.and_then(|last| last.total(G, column)) {
                Some(total) => Some(total),
                None => self.before_a_gap(G + column, at, window).map(|row| row.totals[column]),
            };
            row.filled |= 1 << (G + column);
            row.totals[column] = before.map_or(0.0, |total| total + growth);
        }

        self.with_gaps += usize::from(row.lacks(Self::GAUGES));
        self.rows.push_back(row);
        self.gauges.push_back(values);
    }

    fn forget_first(&mut self) {
        let row = self.rows.pop_front();
        self.gauges.pop_front();
        self.with_gaps -= usize::from(row.is_some_and(|row| row.lacks(Self::GAUGES)));
    }

    /// The row that a cell continues from if the last scrape lacks it. After a long gap, the column
    /// restarts.
    fn before_a_gap(&mut self, bit: usize, at: i64, window: i64) -> Option<ScrapeRow<C>> {
        let last = *self.rows.iter().rev().find(|row| row.has(bit))?;
        if within(at, last.at, window) {
            return Some(last);
        }
        self.rows.iter_mut().for_each(|row| row.filled &= !(1 << bit));
        self.with_gaps = self.rows.iter().filter(|row| row.lacks(Self::GAUGES)).count();
        None
    }

    /// A window with only these gauges.
    pub(crate) fn of_gauges<const M: usize>(&self, columns: [usize; M]) -> ScrapeWindow<M, 0> {
        let mut narrow = ScrapeWindow::default();
        for (row, gauges) in self.rows.iter().zip(&self.gauges) {
            let present = columns.iter().enumerate().filter(|(_, from)| row.has(**from));
            let filled = present.fold(0, |bits, (to, _)| bits | 1 << to);
            let narrow_row = ScrapeRow { at: row.at, filled, totals: [] };
            narrow.with_gaps += usize::from(narrow_row.lacks(ScrapeWindow::<M, 0>::GAUGES));
            narrow.rows.push_back(narrow_row);
            narrow.gauges.push_back(columns.map(|from| gauges[from]));
        }

        narrow
    }

    /// The last `window` nanoseconds before `now`.
    pub(crate) fn pane(&self, now: i64, window: i64) -> Pane<'_, G, C> {
        Pane { of: self, outside: outside(&self.rows, now, window) }
    }

    /// The value of a gauge in a row.
    fn gauge(&self, row: usize, column: usize) -> Option<f64> {
        self.rows[row].has(column).then(|| self.gauges[row][column])
    }
}

impl<const G: usize, const C: usize> Default for ScrapeWindow<G, C> {
    fn default() -> Self {
        Self { rows: VecDeque::new(), gauges: VecDeque::new(), with_gaps: 0 }
    }
}

// === impl ScrapeRow ===

impl<const C: usize> ScrapeRow<C> {
    const fn has(&self, bit: usize) -> bool {
        self.filled & 1 << bit != 0
    }

    const fn lacks(&self, bits: u32) -> bool {
        self.filled & bits != bits
    }

    /// The growth of a counter, in a row that has `gauges` gauges.
    fn total(&self, gauges: usize, column: usize) -> Option<f64> {
        self.has(gauges + column).then(|| self.totals[column])
    }
}

// === impl Pane ===

impl<const G: usize, const C: usize> Pane<'_, G, C> {
    /// The latest value of a gauge and its age at `now`.
    pub(crate) fn last(&self, now: i64, column: usize) -> Option<(f64, Seconds)> {
        let (at, value) = self.last_of(&|row| self.of.gauge(row, column))?;
        Some((value, passed(now, at).unwrap_or(Seconds::ZERO)))
    }

    /// The mean and the peak of each gauge's samples in the window. If the window has no sample,
    /// both are the latest sample.
    pub(crate) fn means_and_peaks(&self) -> [Option<(f64, f64)>; G] {
        let count = self.of.rows.len() - self.outside;
        if count == 0 || self.of.with_gaps > 0 {
            return std::array::from_fn(|column| self.mean_and_peak_with_gaps(column));
        }

        let mut sums = [0.0; G];
        let mut peaks = [f64::NEG_INFINITY; G];
        let (older, newer) = self.of.gauges.as_slices();
        let split = older.len();
        let older = older.get(self.outside..).unwrap_or_default();
        let newer = &newer[self.outside.saturating_sub(split)..];
        // From the latest to the oldest: the order of a sum decides its last digits.
        for part in [newer, older] {
            for values in part.iter().rev() {
                for (column, value) in values.iter().enumerate() {
                    sums[column] += value;
                    peaks[column] = if *value > peaks[column] { *value } else { peaks[column] };
                }
            }
        }

        std::array::from_fn(|column| Some((sums[column] / count as f64, peaks[column])))
    }

    /// The mean and the peak of a gauge that some scrape in the window lacks.
    fn mean_and_peak_with_gaps(&self, column: usize) -> Option<(f64, f64)> {
        let mut count = 0_u32;
        let mut sum = 0.0;
        let mut peak = f64::NEG_INFINITY;
        for row in (self.outside..self.of.rows.len()).rev() {
            let Some(value) = self.of.gauge(row, column) else { continue };
            count += 1;
            sum += value;
            peak = if value > peak { value } else { peak };
        }

        if count == 0 {
            let (_, last) = self.last_of(&|row| self.of.gauge(row, column))?;
            return Some((last, last));
        }
        Some((sum / f64::from(count), peak))
    }

    /// The sums of two gauges at both ends of the window, between the same samples as
    /// [`Pane::increases`].
    pub(crate) fn ends(&self, [one, other]: [usize; 2]) -> Option<(f64, f64)> {
        let [(_, first), (_, last)] =
            self.ends_of(|row| Some(self.of.gauge(row, one)? + self.of.gauge(row, other)?))?;
        Some((first, last))
    }

    /// The growth of each counter during the window; `None` before there are two samples.
    pub(crate) fn increases(&self) -> [Option<Increase>; C] {
        let rows = &self.of.rows;
        let (Some(first), Some(last)) = (rows.get(self.start()), rows.back()) else {
            return [None; C];
        };

        let elapsed = passed(last.at, first.at);
        std::array::from_fn(|column| match (first.total(G, column), last.total(G, column)) {
            (Some(first), Some(last)) => Increase::over(elapsed, last - first),
            _ => self.increase_with_gaps(column),
        })
    }

    /// The growth of a counter that the scrape at one of the window's ends lacks.
    fn increase_with_gaps(&self, column: usize) -> Option<Increase> {
        let [(first_at, first), (last_at, last)] =
            self.ends_of(|row| self.of.rows[row].total(G, column))?;
        Increase::over(passed(last_at, first_at), last - first)
    }

    /// The row that a change over the window is measured from: the one at or before the window's
    /// start, otherwise the oldest. The window includes the change since that row.
    const fn start(&self) -> usize {
        self.outside.saturating_sub(1)
    }

    /// The samples at both ends of the window, the earlier one first.
    fn ends_of(&self, value: impl Fn(usize) -> Option<f64>) -> Option<[(i64, f64); 2]> {
        Some([self.first_of(&value)?, self.last_of(&value)?])
    }

    /// The latest sample up to that row, otherwise the oldest.
    fn first_of(&self, value: &impl Fn(usize) -> Option<f64>) -> Option<(i64, f64)> {
        let start = self.start();
        let end = self.of.rows.len();
        let mut rows = (0..end.min(start + 1)).rev().chain(start..end);
        rows.find_map(|row| Some((self.of.rows[row].at, value(row)?)))
    }

    fn last_of(&self, value: &impl Fn(usize) -> Option<f64>) -> Option<(i64, f64)> {
        (0..self.of.rows.len()).rev().find_map(|row| Some((self.of.rows[row].at, value(row)?)))
    }
}

// === impl Increase ===

impl Increase {
    fn over(elapsed: Option<Seconds>, amount: f64) -> Option<Self> {
        elapsed.filter(|it| *it > Seconds::ZERO).map(|elapsed| Self { amount, elapsed })
    }

    /// Adds another increase, over the longer of both times.
    fn plus(self, other: Self) -> Self {
        Self { amount: self.amount + other.amount, elapsed: self.elapsed.max(other.elapsed) }
    }

    /// Adds up the increases of each column over several windows, over the longest of their times.
    pub(crate) fn added<const N: usize>(
        windows: impl Iterator<Item = [Option<Self>; N]>,
    ) -> [Option<Self>; N] {
        windows.fold([None; N], |all, more| {
            std::array::from_fn(|at| match (all[at], more[at]) {
                (Some(one), Some(other)) => Some(one.plus(other)),
                (one, other) => one.or(other),
            })
        })
    }
}

// === impl Columns ===

impl Columns {
    /// The mean observation, from the increases of all columns: the sum over the count.
    pub(crate) fn mean<const N: usize>(self, increases: &[Option<Increase>; N]) -> Option<f64> {
        let (sum, count) = increases[self.sum].zip(increases[self.count])?;
        (count.amount > 0.0).then(|| sum.amount / count.amount)
    }
}

// === impl Counter ===

impl Counter {
    /// The growth of the counter since its last value; `None` if the scrape lacks it. A value below
    /// the last one means that the counter has started from zero. So does a new life: after a
    /// restart, a counter may have passed its old value unseen. A counter that is seen for the
    /// first time has not grown.
    pub(crate) fn grow(&mut self, page: &ScrapeTime, value: Option<f64>) -> Option<f64> {
        let at = page.at;
        let last = self.before(page);
        let Some(value) = value else {
            if page.life == ProcessLife::New {
                self.last = last.map(|_| (at, 0.0));
            }
            return None;
        };

        self.last = Some((at, value));
        Some(match (last, page.life) {
            (None, _) => 0.0,
            (Some(last), ProcessLife::Same) if value >= last => value - last,
            (Some(_), ProcessLife::Same | ProcessLife::New) => value,
        })
    }

    /// The value that it continues from, if it does.
    fn before(&self, page: &ScrapeTime) -> Option<f64> {
        let (last, value) = self.last?;
        (!starts_anew(last, page.at, page.window)).then_some(value)
    }

    /// Returns true if this value alone shows a restart.
    fn fell(&self, value: f64) -> bool {
        self.last.is_some_and(|(_, last)| value < last)
    }
}

// === impl HistogramTotals ===

impl HistogramTotals {
    /// The growth of sum and count. A sum that falls in its last digits, while the count does not,
    /// is not a restart. Processes that share a /metrics response are added up in no fixed order.
    pub(crate) fn grow(
        &mut self,
        page: &ScrapeTime,
        value: Option<&Histogram>,
    ) -> Option<(f64, f64)> {
        let Some(value) = value else {
            self.count.grow(page, None);
            if page.life == ProcessLife::New {
                self.sum = 0.0;
            }
            return None;
        };

        let life = self.life(value, page.life);
        let own_page = ScrapeTime { life, ..*page };
        let goes_on = self.count.before(&own_page).is_some();
        let count = self.count.grow(&own_page, Some(value.count))?;
        let last = std::mem::replace(&mut self.sum, value.sum);

        let sum = match life {
            ProcessLife::Same if goes_on => (value.sum - last).max(0.0),
            ProcessLife::New if goes_on => value.sum,
            ProcessLife::Same | ProcessLife::New => 0.0,
        };
        Some((sum, count))
    }

    /// The life of the scrape. Sum and count restart together, and only the count shows it.
    pub(crate) fn life(&self, value: &Histogram, life: ProcessLife) -> ProcessLife {
        if self.count.fell(value.count) { ProcessLife::New } else { life }
    }
}

// === helpers ===

/// Nanoseconds since the epoch. Times outside of the years 1677 to 2262 become the ends of that
/// range.
pub(crate) fn nanoseconds(at: Timestamp) -> i64 {
    let nanoseconds = i64::from(at.subsec_nanosecond());
    at.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// A length of time in nanoseconds, at most 292 years.
pub(crate) fn length(time: SignedDuration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The time between two instants; `None` when the second is the later one.
fn passed(now: i64, at: i64) -> Option<Seconds> {
    Seconds::from_span(SignedDuration::from_nanos(now.saturating_sub(at)))
}

/// Returns true if an instant lies in the window that ends at `now`. The window is open on the
/// left.
pub(crate) fn within(now: i64, at: i64, window: i64) -> bool {
    now.saturating_sub(at) < window
}

/// Returns true if a sample at `at` does not continue from the last sample.
pub(crate) fn starts_anew(last: i64, at: i64, window: i64) -> bool {
    last >= at || !within(at, last, window)
}

/// The number of rows before the window that ends at `now`.
fn outside<const C: usize>(rows: &VecDeque<ScrapeRow<C>>, now: i64, window: i64) -> usize {
    let [first, second] =
        [0, 1].map(|index| rows.get(index).is_none_or(|row| within(now, row.at, window)));
    // The window keeps only one row that it does not reach, so this is nearly always the answer.
    if second {
        return usize::from(!first);
    }
    rows.partition_point(|row| !within(now, row.at, window))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
mod tests {
    use super::*;

    /// A minute.
    const WINDOW: i64 = 60_000_000_000;

    fn at(second: i64) -> i64 {
        nanoseconds(Timestamp::from_second(1_795_000_000 + second).unwrap())
    }

    fn page(at: i64) -> ScrapeTime {
        ScrapeTime { at, life: ProcessLife::Same, window: WINDOW }
    }

    fn gauge(samples: impl IntoIterator<Item = (i64, f64)>) -> ScrapeWindow<1, 0> {
        let mut window = ScrapeWindow::default();
        for (second, value) in samples {
            window.push(&page(at(second)), [Some(value)], []);
        }
        window
    }

    /// A counter and its window.
    #[derive(Default)]
    struct Counted {
        counter: Counter,
        window: ScrapeWindow<0, 1>,
    }

    impl Counted {
        fn of(samples: &[(i64, f64)]) -> Self {
            let mut counted = Self::default();
            for (second, value) in samples {
                counted.push(*second, *value, ProcessLife::Same);
            }
            counted
        }

        fn push(&mut self, second: i64, value: f64, life: ProcessLife) {
            let page = ScrapeTime { life, ..page(at(second)) };
            let growth = self.counter.grow(&page, Some(value));
            self.window.push(&page, [], [growth]);
        }

        fn increase(&self, second: i64) -> Option<Increase> {
            self.window.pane(at(second), WINDOW).increases()[0]
        }
    }

    #[test]
    fn a_gauge_keeps_its_peak_for_the_window_and_no_longer() {
        let mut window = ScrapeWindow::<1, 0>::default();
        for second in 0..=100 {
            let value = if second == 10 { 9.0 } else { 1.0 };
            window.push(&page(at(second)), [Some(value)], []);
            if second == 69 {
                let [seen] = window.pane(at(second), WINDOW).means_and_peaks();
                assert_eq!(seen.unwrap().1, 9.0);
            }
        }

        for now in [100, 200] {
            let seen = window.pane(at(now), WINDOW).means_and_peaks();
            assert_eq!(seen, [Some((1.0, 1.0))], "{now}");
        }

        let three = Seconds::new(3.0).unwrap();
        assert_eq!(window.pane(at(103), WINDOW).last(at(103), 0).unwrap(), (1.0, three));
    }

    #[test]
    fn a_gauge_and_a_counter_change_between_the_same_samples() {
        let samples: Vec<_> = (0..=100_i32).map(|it| (it.into(), f64::from(2 * it))).collect();
        let gauge = gauge(samples.iter().copied());
        let counted = Counted::of(&samples);
        for late in 0..3 {
            // The sum of the column with itself is twice the column.
            let (first, last) = gauge.pane(at(100 + late), WINDOW).ends([0, 0]).unwrap();
            let increase = counted.increase(100 + late).unwrap();
            assert_eq!(last - first, 2.0 * increase.amount, "{late} s after the last sample");
        }
    }

    #[test]
    fn a_rate_divides_by_the_time_that_passed() {
        let increase = Counted::of(&[(0, 100.0), (7, 107.0), (20, 140.0)]).increase(20);
        assert_eq!(increase, Some(Increase { amount: 40.0, elapsed: Seconds::new(20.0).unwrap() }));
    }

    #[test]
    fn one_sample_has_no_increase() {
        assert_eq!(Counted::of(&[(0, 100.0)]).increase(1), None);
    }

    #[test]
    fn a_counter_that_goes_back_has_started_from_zero() {
        let counted = Counted::of(&[(0, 100.0), (10, 110.0), (20, 5.0), (30, 9.0)]);
        assert_eq!(counted.increase(30).unwrap().amount, 19.0);
    }

    #[test]
    fn a_restart_counts_even_when_the_counter_has_passed_its_old_value() {
        let mut counted = Counted::of(&[(0, 100.0), (10, 110.0)]);
        counted.push(20, 150.0, ProcessLife::New);
        assert_eq!(counted.increase(20).unwrap().amount, 160.0);
    }

    #[test]
    fn a_clock_that_jumps_starts_the_window_anew() {
        let mut counted = Counted::of(&[(0, 100.0), (10, 110.0)]);
        counted.push(-3600, 111.0, ProcessLife::Same);
        assert_eq!(counted.increase(-3600), None, "back");
        counted.push(7200, 112.0, ProcessLife::Same);
        assert_eq!(counted.increase(7200), None, "forward");
        counted.push(7201, 113.0, ProcessLife::Same);
        assert_eq!(counted.increase(7201).unwrap().amount, 1.0);
    }

    #[test]
    fn a_window_is_bounded_however_fast_samples_come() {
        let mut window = ScrapeWindow::<1, 0>::default();
        for millisecond in 0..5_000 {
            let now = at(0) + 1_000_000 * millisecond;
            window.push(&page(now), [Some(1.0)], []);
        }
        assert_eq!(window.rows.len(), ROWS_MAX);
    }

    /// Two counters that grow by one per second. Some scrapes lack the second.
    fn with_gaps(lacking: impl Fn(i64) -> bool) -> ScrapeWindow<0, 2> {
        let mut window = ScrapeWindow::default();
        for second in 0..=100 {
            let other = (!lacking(second)).then_some(1.0);
            window.push(&page(at(second)), [], [Some(1.0), other]);
        }
        window
    }

    #[test]
    fn a_series_that_a_page_lacks_is_measured_between_the_pages_that_have_it() {
        for (lacking, elapsed) in [(40..=45, 54.0), (98..=100, 57.0), (60..=70, 60.0)] {
            let window = with_gaps(|second| lacking.contains(&second));
            let [whole, other] = window.pane(at(100), WINDOW).increases();
            assert_eq!(whole.unwrap().elapsed.seconds(), 60.0);
            assert_eq!(other.unwrap().elapsed.seconds(), elapsed, "{lacking:?}");
        }
    }

    #[test]
    fn a_series_that_was_gone_for_a_window_begins_anew() {
        let window = with_gaps(|second| (10..=80).contains(&second));
        let elapsed = window.pane(at(100), WINDOW).increases()[1].unwrap().elapsed;
        assert_eq!(elapsed, Seconds::new(19.0).unwrap());
        assert_eq!(with_gaps(|second| second > 10).pane(at(100), WINDOW).increases()[1], None);
    }

    #[test]
    fn a_histogram_that_stands_still_has_observed_nothing() {
        let mut totals = HistogramTotals::default();
        let mut window = ScrapeWindow::<0, 2>::default();
        let columns = Columns { sum: 0, count: 1 };
        for (second, sum, count, mean) in
            [(0, 4.0, 2.0, None), (5, 4.0, 2.0, None), (6, 7.0, 3.0, Some(3.0))]
        {
            let page = page(at(second));
            let (sum, count) = totals.grow(&page, Some(&histogram(sum, count))).unwrap();
            window.push(&page, [], [Some(sum), Some(count)]);
            let increases = window.pane(at(second), WINDOW).increases();
            assert_eq!(columns.mean(&increases), mean, "{second}");
        }
    }

    fn histogram(sum: f64, count: f64) -> Histogram {
        Histogram { sum, count, buckets: Vec::new() }
    }

    /// The growth of a counter at each of these seconds.
    fn growths<const N: usize>(samples: [(i64, Option<f64>); N]) -> [Option<f64>; N] {
        let mut counter = Counter::default();
        samples.map(|(second, value)| counter.grow(&page(at(second)), value))
    }

    #[test]
    fn a_counter_that_was_away_for_less_than_a_window_goes_on() {
        let grown = growths([(0, Some(5.0)), (1, None), (59, Some(9.0))]);
        assert_eq!(grown, [Some(0.0), None, Some(4.0)]);
    }

    #[test]
    fn a_counter_that_was_away_for_a_window_begins_anew() {
        let grown = growths([(0, Some(5.0)), (30, None), (60, Some(9.0)), (61, Some(10.0))]);
        assert_eq!(grown, [Some(0.0), None, Some(0.0), Some(1.0)]);
    }

    #[test]
    fn a_counter_that_a_new_life_first_lacks_has_counted_from_zero() {
        let mut counter = Counter::default();
        let mut totals = HistogramTotals::default();
        for (second, value) in [(0, 100.0), (1, 110.0)] {
            counter.grow(&page(at(second)), Some(value));
            totals.grow(&page(at(second)), Some(&histogram(value, value)));
        }

        let restarted = ScrapeTime { life: ProcessLife::New, ..page(at(2)) };
        assert_eq!(counter.grow(&restarted, None), None);
        assert_eq!(totals.grow(&restarted, None), None);
        assert_eq!(counter.grow(&page(at(3)), Some(150.0)), Some(150.0));
        let grown = totals.grow(&page(at(3)), Some(&histogram(300.0, 150.0)));
        assert_eq!(grown, Some((300.0, 150.0)));
    }

    #[test]
    fn a_sum_that_falls_in_its_last_digit_has_not_grown() {
        let mut totals = HistogramTotals::default();
        let samples = [(0, 0.1 + 0.2, 3.0), (1, 0.3, 3.0), (2, 0.25, 1.0)];
        let [first, second, third] = samples.map(|(second, sum, count)| {
            totals.grow(&page(at(second)), Some(&histogram(sum, count)))
        });
        assert_eq!(first, Some((0.0, 0.0)));
        assert_eq!(second, Some((0.0, 0.0)));
        assert_eq!(third, Some((0.25, 1.0)), "the count fell");
    }
}
