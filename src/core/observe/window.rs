//! Values over time: what the series of one page did during the last minute.
//!
//! A [`Window`] has a row for each page and a column for each series, because what is on one page
//! has one instant and is looked at together: a tick touches the beginning and the end of a few
//! rows, where a window for each series would have it wait for memory as many times as there are
//! series. A page that lacks a series leaves its cell empty. Gauges stand apart from counters,
//! because their means and peaks are taken of every row.
//!
//! A column holds a gauge's values, or by how much a counter has grown. Counters are put together
//! with others only afterwards: a sum of counters that restart one by one has no meaningful
//! increase, a sum of increases has. Rates divide by the time that really passed between the first
//! and the last sample, without the extrapolation to the window's edges that `rate` of `PromQL`
//! does: it turns whole requests into fractions, and a series that has just appeared into a trend.
//!
//! Time is wall-clock time and may jump. A page that is not newer than the last one, or that comes
//! after a gap longer than the window, starts the window anew, because the time between the two is
//! not known. So does a gap of one column for that column.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::observe::histogram::{Histogram, Life};
use crate::units::Seconds;

/// Rows that one window keeps at most. At one scrape a second it is eight minutes; a source that
/// delivers faster loses its oldest rows first.
const ROWS_MAX: usize = 512;

/// The pages of the last minute, each with what it says of the same `G` gauges and `C` counters.
#[derive(Clone, Debug)]
pub(crate) struct Window<const G: usize, const C: usize> {
    rows: VecDeque<Row<C>>,
    /// The gauges of each row.
    gauges: VecDeque<[f64; G]>,
    /// How many of the rows lack a gauge.
    with_gaps: usize,
}

/// What one page says, but for its gauges.
#[derive(Clone, Copy, Debug)]
struct Row<const C: usize> {
    /// Nanoseconds since the epoch.
    at: i64,
    /// One bit for each cell that is not empty, those of the gauges first.
    filled: u32,
    /// By how much each counter has grown since the window began.
    totals: [f64; C],
}

/// A window as it is seen at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pane<'a, const G: usize, const C: usize> {
    of: &'a Window<G, C>,
    /// How many of the rows lie before the window.
    outside: usize,
}

/// The columns of one histogram's sum and count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) sum: usize,
    pub(crate) count: usize,
}

/// When a page is from, and what tells whether it goes on from the ones before. Its times are
/// turned into nanoseconds once, because each of its series needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Nanoseconds since the epoch.
    pub(crate) at: i64,
    pub(crate) life: Life,
    /// Length of the window in nanoseconds.
    pub(crate) window: i64,
}

/// The last value of a counter.
///
/// A page may lack a counter: engines make one for each label value when they first use it, and
/// rules drop series. What its next value is compared with depends on how long it was away.
///
/// - Less than a window, in one life: it goes on, and what it has grown meanwhile counts.
/// - A window or more: it begins anew, because nobody saw when it has grown.
/// - A new life began meanwhile: it has counted from zero, and all of it is growth, even where it
///   has passed its old value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    /// When, in nanoseconds since the epoch, and what it was.
    last: Option<(i64, f64)>,
}

/// The last sum and count of a histogram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    sum: f64,
    count: Counter,
}

/// What a counter did during a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Increase {
    /// By how much it grew.
    pub(crate) amount: f64,
    /// Between the first and the last sample.
    pub(crate) elapsed: Seconds,
}

// === impl Window ===

impl<const G: usize, const C: usize> Window<G, C> {
    /// The bits of all gauges.
    const GAUGES: u32 = (1 << G) - 1;

    /// Adds what a page says: the values of its gauges, and by how much its counters have grown since
    /// the page before. Forgets the rows that the window no longer reaches, but for the one that it
    /// starts from.
    pub(crate) fn push(
        &mut self,
        page: &Page,
        gauges: [Option<f64>; G],
        growths: [Option<f64>; C],
    ) {
        let Page { at, window, .. } = *page;
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
        let has = |bit: usize| last.is_some_and(|last| last.has(bit));
        let mut row = Row { at, filled: 0, totals: [0.0; C] };
        let mut values = [0.0; G];
        for (column, value) in gauges.into_iter().enumerate() {
            let Some(value) = value else { continue };
            if !has(column) {
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

    /// The row that a cell which the last page lacks goes on from; after a long gap its column begins
    /// anew.
    fn before_a_gap(&mut self, bit: usize, at: i64, window: i64) -> Option<Row<C>> {
        let last = *self.rows.iter().rev().find(|row| row.has(bit))?;
        if within(at, last.at, window) {
            return Some(last);
        }
        self.rows.iter_mut().for_each(|row| row.filled &= !(1 << bit));
        self.with_gaps = self.rows.iter().filter(|row| row.lacks(Self::GAUGES)).count();
        None
    }

    /// A window of some of the gauges.
    pub(crate) fn of_gauges<const M: usize>(&self, columns: [usize; M]) -> Window<M, 0> {
        let mut narrow = Window::default();
        for (row, gauges) in self.rows.iter().zip(&self.gauges) {
            let filled = columns.iter().enumerate().filter(|(_, from)| row.has(**from));
            let filled = filled.fold(0, |filled, (to, _)| filled | 1 << to);
            let row = Row { at: row.at, filled, totals: [] };
            narrow.with_gaps += usize::from(row.lacks(Window::<M, 0>::GAUGES));
            narrow.rows.push_back(row);
            narrow.gauges.push_back(columns.map(|from| gauges[from]));
        }
        narrow
    }

    /// The last `window` nanoseconds before `now`.
    pub(crate) fn pane(&self, now: i64, window: i64) -> Pane<'_, G, C> {
        Pane { of: self, outside: outside(&self.rows, now, window) }
    }

    /// What the page of a row says of a gauge.
    fn gauge(&self, row: usize, column: usize) -> Option<f64> {
        self.rows[row].has(column).then(|| self.gauges[row][column])
    }
}

impl<const G: usize, const C: usize> Default for Window<G, C> {
    fn default() -> Self {
        Self { rows: VecDeque::new(), gauges: VecDeque::new(), with_gaps: 0 }
    }
}

// === impl Row ===

impl<const C: usize> Row<C> {
    const fn has(&self, bit: usize) -> bool {
        self.filled & 1 << bit != 0
    }

    const fn lacks(&self, bits: u32) -> bool {
        self.filled & bits != bits
    }

    /// By how much a counter has grown, in a row that has so many gauges.
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

    /// The mean and the largest of the samples of each gauge in the window, or of the latest sample
    /// where the window holds none.
    pub(crate) fn means_and_peaks(&self) -> [Option<(f64, f64)>; G] {
        let count = self.of.rows.len() - self.outside;
        if count == 0 || self.of.with_gaps > 0 {
            return std::array::from_fn(|column| self.mean_and_peak_with_gaps(column));
        }
        let (mut sums, mut peaks) = ([0.0; G], [f64::NEG_INFINITY; G]);
        // From the latest to the oldest: the order of a sum decides its last digits.
        self.of.gauges.range(self.outside..).rev().for_each(|values| {
            for (column, &value) in values.iter().enumerate() {
                sums[column] += value;
                peaks[column] = if value > peaks[column] { value } else { peaks[column] };
            }
        });
        std::array::from_fn(|column| Some((sums[column] / count as f64, peaks[column])))
    }

    /// The mean and the largest of a gauge that some page of the window lacks.
    fn mean_and_peak_with_gaps(&self, column: usize) -> Option<(f64, f64)> {
        let value = |row: usize| self.of.gauge(row, column);
        let add = |(count, sum, peak): (u32, f64, f64), value: f64| {
            (count + 1, sum + value, if value > peak { value } else { peak })
        };
        let values = (self.outside..self.of.rows.len()).rev().filter_map(value);
        match values.fold((0, 0.0, f64::NEG_INFINITY), add) {
            (0, ..) => self.last_of(&value).map(|(_, last)| (last, last)),
            (count, sum, peak) => Some((sum / f64::from(count), peak)),
        }
    }

    /// The sums of two gauges at both ends of the window, between the same samples as
    /// [`Pane::increases`].
    pub(crate) fn ends(&self, [one, other]: [usize; 2]) -> Option<(f64, f64)> {
        let sum = |row: usize| Some(self.of.gauge(row, one)? + self.of.gauge(row, other)?);
        let ((_, first), (_, last)) = (self.first_of(&sum)?, self.last_of(&sum)?);
        Some((first, last))
    }

    /// By how much each counter grew during the window; `None` before there are two samples.
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

    /// The increase of a counter that the page at one of the window's ends lacks.
    fn increase_with_gaps(&self, column: usize) -> Option<Increase> {
        let total = |row: usize| self.of.rows[row].total(G, column);
        let ((last_at, last), (first_at, first)) = (self.last_of(&total)?, self.first_of(&total)?);
        Increase::over(passed(last_at, first_at), last - first)
    }

    /// The row that a change over the window is measured from: the one at or before the window's
    /// start, because the change since then is what the window saw; else the oldest.
    const fn start(&self) -> usize {
        self.outside.saturating_sub(1)
    }

    /// The latest sample up to that row; else the oldest.
    fn first_of(&self, value: &impl Fn(usize) -> Option<f64>) -> Option<(i64, f64)> {
        let sample = |row: usize| Some((self.of.rows[row].at, value(row)?));
        let (start, end) = (self.start(), self.of.rows.len());
        let before = || (0..start).rev().find_map(sample);
        Some(start)
            .filter(|start| *start < end)
            .and_then(sample)
            .or_else(before)
            .or_else(|| (start..end).find_map(sample))
    }

    fn last_of(&self, value: &impl Fn(usize) -> Option<f64>) -> Option<(i64, f64)> {
        (0..self.of.rows.len()).rev().find_map(|row| Some((self.of.rows[row].at, value(row)?)))
    }
}

// === impl Increase ===

impl Increase {
    fn over(elapsed: Option<Seconds>, amount: f64) -> Option<Self> {
        let elapsed = elapsed.filter(|elapsed| *elapsed > Seconds::ZERO)?;
        Some(Self { amount, elapsed })
    }

    /// Adds up the increases of each column over several windows, over the longest of their times.
    pub(crate) fn added<const N: usize>(
        windows: impl Iterator<Item = [Option<Self>; N]>,
    ) -> [Option<Self>; N] {
        let plus = |a: Self, b: Self| Self {
            amount: a.amount + b.amount,
            elapsed: a.elapsed.max(b.elapsed),
        };
        let both = |a: Option<Self>, b| a.zip(b).map_or(a.or(b), |(a, b)| Some(plus(a, b)));
        windows.fold([None; N], |all, more| std::array::from_fn(|at| both(all[at], more[at])))
    }
}

// === impl Columns ===

impl Columns {
    /// The mean of what was observed, from the increases of all columns: the sum over the count.
    pub(crate) fn mean<const N: usize>(self, increases: &[Option<Increase>; N]) -> Option<f64> {
        let (sum, count) = increases[self.sum].zip(increases[self.count])?;
        (count.amount > 0.0).then(|| sum.amount / count.amount)
    }
}

// === impl Counter ===

impl Counter {
    /// By how much the counter has grown since it was last seen; `None` if the page lacks it. A
    /// value below the last one means that the counter has started from zero, as does a new life:
    /// after a restart a counter may have passed its old value unseen. One that is seen for the
    /// first time has not grown.
    pub(crate) fn grow(&mut self, page: &Page, value: Option<f64>) -> Option<f64> {
        let (at, last) = (page.at, self.before(page));
        let Some(value) = value else {
            if page.life == Life::New {
                self.last = last.map(|_| (at, 0.0));
            }
            return None;
        };
        self.last = Some((at, value));
        Some(match (last, page.life) {
            (None, _) => 0.0,
            (Some(last), Life::Same) if value >= last => value - last,
            (Some(_), Life::Same | Life::New) => value,
        })
    }

    /// What it goes on from, if it does.
    fn before(&self, page: &Page) -> Option<f64> {
        let (last, value) = self.last?;
        (!starts_anew(last, page.at, page.window)).then_some(value)
    }

    /// Whether this value shows a restart by itself.
    fn fell(&self, value: f64) -> bool {
        self.last.is_some_and(|(_, last)| value < last)
    }
}

// === impl Totals ===

impl Totals {
    /// By how much sum and count have grown. A sum that falls in its last digits while the count
    /// does not is no restart: processes that share a page are added up in no fixed order.
    pub(crate) fn grow(&mut self, page: &Page, value: Option<&Histogram>) -> Option<(f64, f64)> {
        let Some(value) = value else {
            self.count.grow(page, None);
            if page.life == Life::New {
                self.sum = 0.0;
            }
            return None;
        };
        let page = Page { life: self.life(value, page.life), ..*page };
        let goes_on = self.count.before(&page).is_some();
        let count = self.count.grow(&page, Some(value.count))?;
        let last = std::mem::replace(&mut self.sum, value.sum);
        let sum = match page.life {
            Life::Same if goes_on => (value.sum - last).max(0.0),
            Life::New if goes_on => value.sum,
            Life::Same | Life::New => 0.0,
        };
        Some((sum, count))
    }

    /// The life that the page is of. Sum and count start anew together, and only the count shows it.
    pub(crate) fn life(&self, value: &Histogram, life: Life) -> Life {
        if self.count.fell(value.count) { Life::New } else { life }
    }
}

// === helpers ===

/// Nanoseconds since the epoch. Times beyond the years 1677 to 2262 are those years' ends.
pub(crate) fn nanoseconds(at: Timestamp) -> i64 {
    let nanoseconds = i64::from(at.subsec_nanosecond());
    at.as_second().saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// A length of time in nanoseconds. What is longer than 292 years is 292 years.
pub(crate) fn length(time: SignedDuration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The time between two instants; `None` when the second is the later one.
fn passed(now: i64, at: i64) -> Option<Seconds> {
    Seconds::from_span(SignedDuration::from_nanos(now.saturating_sub(at)))
}

/// Whether an instant lies in the window that ends at `now`; the window is open on the left.
pub(crate) fn within(now: i64, at: i64, window: i64) -> bool {
    now.saturating_sub(at) < window
}

/// Whether what comes at `at` does not go on from what was last seen.
pub(crate) fn starts_anew(last: i64, at: i64, window: i64) -> bool {
    last >= at || !within(at, last, window)
}

/// How many of the rows lie before the window that ends at `now`.
fn outside<const C: usize>(rows: &VecDeque<Row<C>>, now: i64, window: i64) -> usize {
    let is_inside = |index| rows.get(index).is_none_or(|row| within(now, row.at, window));
    // Only one is kept that the window does not reach, so this is nearly always the answer.
    if is_inside(1) {
        return usize::from(!is_inside(0));
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

    fn page(at: i64) -> Page {
        Page { at, life: Life::Same, window: WINDOW }
    }

    fn gauge(samples: impl IntoIterator<Item = (i64, f64)>) -> Window<1, 0> {
        let mut window = Window::default();
        for (second, value) in samples {
            window.push(&page(at(second)), [Some(value)], []);
        }
        window
    }

    /// A counter and its window.
    #[derive(Default)]
    struct Counted {
        counter: Counter,
        window: Window<0, 1>,
    }

    impl Counted {
        fn of(samples: &[(i64, f64)]) -> Self {
            let mut counted = Self::default();
            for (second, value) in samples {
                counted.push(*second, *value, Life::Same);
            }
            counted
        }

        fn push(&mut self, second: i64, value: f64, life: Life) {
            let page = Page { life, ..page(at(second)) };
            let growth = self.counter.grow(&page, Some(value));
            self.window.push(&page, [], [growth]);
        }

        fn increase(&self, second: i64) -> Option<Increase> {
            self.window.pane(at(second), WINDOW).increases()[0]
        }
    }

    #[test]
    fn a_gauge_keeps_its_peak_for_the_window_and_no_longer() {
        let mut window = Window::<1, 0>::default();
        for second in 0..=100 {
            let value = if second == 10 { 9.0 } else { 1.0 };
            window.push(&page(at(second)), [Some(value)], []);
            if second == 69 {
                let [seen] = window.pane(at(second), WINDOW).means_and_peaks();
                assert_eq!(seen.unwrap().1, 9.0);
            }
        }
        let seen = |now| window.pane(at(now), WINDOW).means_and_peaks();
        assert_eq!((seen(100), seen(200)), ([Some((1.0, 1.0))], [Some((1.0, 1.0))]));
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
        counted.push(20, 150.0, Life::New);
        assert_eq!(counted.increase(20).unwrap().amount, 160.0);
    }

    #[test]
    fn a_clock_that_jumps_starts_the_window_anew() {
        let mut counted = Counted::of(&[(0, 100.0), (10, 110.0)]);
        counted.push(-3600, 111.0, Life::Same);
        assert_eq!(counted.increase(-3600), None, "back");
        counted.push(7200, 112.0, Life::Same);
        assert_eq!(counted.increase(7200), None, "forward");
        counted.push(7201, 113.0, Life::Same);
        assert_eq!(counted.increase(7201).unwrap().amount, 1.0);
    }

    #[test]
    fn a_window_is_bounded_however_fast_samples_come() {
        let mut window = Window::<1, 0>::default();
        for millisecond in 0..5_000 {
            let now = at(0) + 1_000_000 * millisecond;
            window.push(&page(now), [Some(1.0)], []);
        }
        assert_eq!(window.rows.len(), ROWS_MAX);
    }

    /// Two counters that grow by one a second, of which some pages have only the first.
    fn with_gaps(lacking: impl Fn(i64) -> bool) -> Window<0, 2> {
        let mut window = Window::default();
        for second in 0..=100 {
            let other = (!lacking(second)).then_some(1.0);
            window.push(&page(at(second)), [], [Some(1.0), other]);
        }
        window
    }

    #[test]
    fn a_series_that_a_page_lacks_is_measured_between_the_pages_that_have_it() {
        let seconds = |seconds| Seconds::new(seconds).unwrap();
        for (lacking, elapsed) in [(40..=45, 54.0), (98..=100, 57.0), (60..=70, 60.0)] {
            let window = with_gaps(|second| lacking.contains(&second));
            let [whole, other] = window.pane(at(100), WINDOW).increases();
            assert_eq!(whole.unwrap().elapsed, seconds(60.0));
            assert_eq!(other.unwrap().elapsed, seconds(elapsed), "{lacking:?}");
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
        let (mut totals, mut window) = (Totals::default(), Window::<0, 2>::default());
        let columns = Columns { sum: 0, count: 1 };
        let mut observed = |second, sum, count| {
            let value = Histogram { sum, count, buckets: Vec::new() };
            let page = page(at(second));
            let (sum, count) = totals.grow(&page, Some(&value)).unwrap();
            window.push(&page, [], [Some(sum), Some(count)]);
            columns.mean(&window.pane(at(second), WINDOW).increases())
        };
        assert_eq!(observed(0, 4.0, 2.0), None);
        assert_eq!(observed(5, 4.0, 2.0), None);
        assert_eq!(observed(6, 7.0, 3.0), Some(3.0));
    }

    #[test]
    fn a_counter_that_was_away_for_less_than_a_window_goes_on() {
        let mut counter = Counter::default();
        let mut grown = |second, value| counter.grow(&page(at(second)), value);
        assert_eq!([grown(0, Some(5.0)), grown(1, None)], [Some(0.0), None]);
        assert_eq!(grown(59, Some(9.0)), Some(4.0));
    }

    #[test]
    fn a_counter_that_was_away_for_a_window_begins_anew() {
        let mut counter = Counter::default();
        let mut grown = |second, value| counter.grow(&page(at(second)), value);
        assert_eq!([grown(0, Some(5.0)), grown(30, None)], [Some(0.0), None]);
        assert_eq!([grown(60, Some(9.0)), grown(61, Some(10.0))], [Some(0.0), Some(1.0)]);
    }

    #[test]
    fn a_counter_that_a_new_life_first_lacks_has_counted_from_zero() {
        let (mut counter, mut totals) = (Counter::default(), Totals::default());
        let histogram = |sum, count| Histogram { sum, count, buckets: Vec::new() };
        for (second, value) in [(0, 100.0), (1, 110.0)] {
            counter.grow(&page(at(second)), Some(value));
            totals.grow(&page(at(second)), Some(&histogram(value, value)));
        }
        let restarted = Page { life: Life::New, ..page(at(2)) };
        assert_eq!(counter.grow(&restarted, None), None);
        assert_eq!(totals.grow(&restarted, None), None);
        assert_eq!(counter.grow(&page(at(3)), Some(150.0)), Some(150.0));
        let grown = totals.grow(&page(at(3)), Some(&histogram(300.0, 150.0)));
        assert_eq!(grown, Some((300.0, 150.0)));
    }

    #[test]
    fn a_sum_that_falls_in_its_last_digit_has_not_grown() {
        let mut totals = Totals::default();
        let mut grown = |second, sum, count| {
            let value = Histogram { sum, count, buckets: Vec::new() };
            totals.grow(&page(at(second)), Some(&value))
        };
        assert_eq!(grown(0, 0.1 + 0.2, 3.0), Some((0.0, 0.0)));
        assert_eq!(grown(1, 0.3, 3.0), Some((0.0, 0.0)));
        assert_eq!(grown(2, 0.25, 1.0), Some((0.25, 1.0)), "the count fell");
    }
}
