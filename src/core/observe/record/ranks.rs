//! The record of one rank of a replica: the growth of its counters.

use crate::observe::histogram::Histogram;
use crate::observe::record::snapshots::Snapshots;
use crate::observe::window::{
    Columns, Counter, HistogramTotals, Increase, ScrapeTime, ScrapeWindow,
};
use crate::observe::{FinishedReading, RankReading};
use crate::units::{Requests, Tokens};

/// Columns of a rank's window. Finished requests are one column for all reasons, because no reader
/// needs a single reason.
pub(crate) mod column {
    use crate::observe::window::Columns;

    pub(crate) const PROMPT_TOKENS: usize = 0;
    pub(crate) const GENERATION_TOKENS: usize = 1;
    pub(crate) const FINISHED: usize = 2;
    pub(crate) const ASKED: usize = 3;
    pub(crate) const TTFT: Columns = Columns { sum: 4, count: 5 };
    pub(crate) const ITL: Columns = Columns { sum: 6, count: 7 };
    pub(crate) const ALL: usize = 8;
}

/// The growth of ranks' counters, in the order of the columns.
pub(crate) type CounterIncreases = [Option<Increase>; column::ALL];

#[derive(Clone, Debug, Default)]
pub(crate) struct RankCounters {
    pub(crate) rank: u32,
    pub(crate) window: ScrapeWindow<0, { column::ALL }>,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: [Counter; 5],
    asked: Counter,
    ttft: HistogramTotals,
    itl: HistogramTotals,
    pub(crate) ttft_buckets: Snapshots,
}

impl RankCounters {
    pub(crate) fn new(rank: u32) -> Self {
        Self { rank, ..Self::default() }
    }

    pub(crate) fn take(&mut self, page: &ScrapeTime, rank: &RankReading) {
        self.ttft_buckets.push(page, rank.ttft.as_ref(), &self.ttft);
        let asked = rank.completions_asked.as_ref().map(|it| it.count);

        let mut growths = [None; column::ALL];
        growths[column::PROMPT_TOKENS] =
            grow_tokens(&mut self.prompt_tokens, page, rank.prompt_tokens);
        growths[column::GENERATION_TOKENS] =
            grow_tokens(&mut self.generation_tokens, page, rank.generation_tokens);
        growths[column::FINISHED] = self.finish(page, rank.finished);
        growths[column::ASKED] = self.asked.grow(page, asked);
        grow_totals(&mut self.ttft, page, rank.ttft.as_ref(), &mut growths, column::TTFT);
        grow_totals(&mut self.itl, page, rank.itl.as_ref(), &mut growths, column::ITL);
        self.window.push(page, [], growths);
    }

    /// The growth of the counters in the window; times are in nanoseconds.
    pub(crate) fn grown(&self, at: i64, window: i64) -> CounterIncreases {
        self.window.pane(at, window).increases()
    }

    /// Requests finished, for any reason. If a scrape lacks a reason, the next scrape with that
    /// reason makes up for it.
    fn finish(&mut self, page: &ScrapeTime, finished: FinishedReading) -> Option<f64> {
        let FinishedReading { stop, length, abort, error, other } = finished;
        let values = [stop, length, abort, error, other];
        let counters = self.finished.iter_mut().zip(values);
        let grown = counters
            .filter_map(|(counter, value)| counter.grow(page, value.map(Requests::requests)));
        grown.reduce(|all, more| all + more)
    }
}

// === helpers ===

pub(crate) fn grow(
    counter: &mut Counter,
    page: &ScrapeTime,
    value: Option<Requests>,
) -> Option<f64> {
    counter.grow(page, value.map(Requests::requests))
}

pub(crate) fn grow_tokens(
    counter: &mut Counter,
    page: &ScrapeTime,
    value: Option<Tokens>,
) -> Option<f64> {
    counter.grow(page, value.map(Tokens::tokens))
}

/// The growth of a histogram's sum and count.
pub(crate) fn grow_totals<const N: usize>(
    totals: &mut HistogramTotals,
    page: &ScrapeTime,
    value: Option<&Histogram>,
    growths: &mut [Option<f64>; N],
    columns: Columns,
) {
    if let Some((sum, count)) = totals.grow(page, value) {
        growths[columns.sum] = Some(sum);
        growths[columns.count] = Some(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::histogram::ProcessLife;

    /// A minute.
    const WINDOW: i64 = 60_000_000_000;

    fn at(second: i64) -> i64 {
        (1_795_000_000 + second) * 1_000_000_000
    }

    /// Finished requests in the last minute of these scrapes: `stop` by one per second, and
    /// `abort`.
    fn finished(seconds: i64, abort: impl Fn(i64) -> Option<f64>) -> f64 {
        let mut record = RankCounters::new(0);
        for second in 0..=seconds {
            let stop = Requests::new(f64::from(i32::try_from(second).unwrap()));
            let abort = abort(second).and_then(Requests::new);
            let finished = FinishedReading { stop, abort, ..FinishedReading::default() };
            let page = ScrapeTime { at: at(second), life: ProcessLife::Same, window: WINDOW };
            record.take(&page, &RankReading { finished, ..RankReading::default() });
        }

        let [_, _, finished, ..] = record.window.pane(at(seconds), WINDOW).increases();
        finished.unwrap().amount
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
    fn a_reason_that_pages_lack_is_made_up_for_unless_it_was_away_for_a_window() {
        assert_eq!(finished(100, |_| Some(2.0)), 60.0);
        assert_eq!(finished(100, |second| away_from(90, second)), 65.0);
        assert_eq!(finished(100, |second| away_from(30, second)), 60.0);
        assert_eq!(finished(100, |second| away_from(0, second)), 60.0, "nobody saw when it grew");
    }

    /// A count of 2 that is away from a second on, and is back as 7 at second 100.
    fn away_from(from: i64, second: i64) -> Option<f64> {
        match second {
            100.. => Some(7.0),
            _ if second < from => Some(2.0),
            _ => None,
        }
    }
}
