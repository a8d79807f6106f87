//! The record of one rank of a replica: by how much what it counts has grown.

use crate::observe::histogram::Histogram;
use crate::observe::record::snapshots::Snapshots;
use crate::observe::window::{Columns, Counter, Increase, Page, Totals, Window};
use crate::observe::{FinishedReading, RankReading};
use crate::units::{Requests, Tokens};

/// Columns of a rank's window. Requests finished are one column for all reasons, because nobody
/// asks for one of them.
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

/// By how much what ranks count has grown, in the order of the columns.
pub(crate) type Grown = [Option<Increase>; column::ALL];

#[derive(Clone, Debug, Default)]
pub(crate) struct RankRecord {
    pub(crate) rank: u32,
    pub(crate) window: Window<0, { column::ALL }>,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: [Counter; 5],
    asked: Counter,
    ttft: Totals,
    itl: Totals,
    pub(crate) ttft_buckets: Snapshots,
}

impl RankRecord {
    pub(crate) fn new(rank: u32) -> Self {
        Self { rank, ..Self::default() }
    }

    pub(crate) fn take(&mut self, page: &Page, rank: &RankReading) {
        self.ttft_buckets.push(page, rank.ttft.as_ref(), &self.ttft);
        let asked = rank.completions_asked.as_ref().map(|asked| asked.count);
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

    /// Requests finished, for whatever reason. A reason that a page lacks is made up for by the
    /// page that has it again.
    fn finish(&mut self, page: &Page, finished: FinishedReading) -> Option<f64> {
        let FinishedReading { stop, length, abort, error, other } = finished;
        let values = [stop, length, abort, error, other];
        let counters = self.finished.iter_mut().zip(values);
        let grown = counters
            .filter_map(|(counter, value)| counter.grow(page, value.map(Requests::requests)));
        grown.reduce(|all, more| all + more)
    }
}

// === helpers ===

pub(crate) fn grow(counter: &mut Counter, page: &Page, value: Option<Requests>) -> Option<f64> {
    counter.grow(page, value.map(Requests::requests))
}

pub(crate) fn grow_tokens(
    counter: &mut Counter,
    page: &Page,
    value: Option<Tokens>,
) -> Option<f64> {
    counter.grow(page, value.map(Tokens::tokens))
}

/// The growth of a histogram's sum and count.
pub(crate) fn grow_totals<const N: usize>(
    totals: &mut Totals,
    page: &Page,
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
    use crate::observe::histogram::Life;

    /// A minute.
    const WINDOW: i64 = 60_000_000_000;

    fn at(second: i64) -> i64 {
        (1_795_000_000 + second) * 1_000_000_000
    }

    /// What has finished in the last minute of these pages: `stop` by one a second, and `abort`.
    fn finished(seconds: i64, abort: impl Fn(i64) -> Option<f64>) -> f64 {
        let mut record = RankRecord::new(0);
        for second in 0..=seconds {
            let stop = Requests::new(f64::from(i32::try_from(second).unwrap()));
            let abort = abort(second).and_then(Requests::new);
            let finished = FinishedReading { stop, abort, ..FinishedReading::default() };
            let page = Page { at: at(second), life: Life::Same, window: WINDOW };
            record.take(&page, &RankReading { finished, ..RankReading::default() });
        }
        let [_, _, finished, ..] = record.window.pane(at(seconds), WINDOW).increases();
        finished.unwrap().amount
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of small whole numbers are exact")]
    fn a_reason_that_pages_lack_is_made_up_for_unless_it_was_away_for_a_window() {
        let grown = |second: i64| (second >= 100).then_some(7.0);
        assert_eq!(finished(100, |_| Some(2.0)), 60.0);
        assert_eq!(
            finished(100, |second| if second < 90 { Some(2.0) } else { grown(second) }),
            65.0
        );
        assert_eq!(
            finished(100, |second| if second < 30 { Some(2.0) } else { grown(second) }),
            60.0
        );
        assert_eq!(finished(100, grown), 60.0, "nobody has seen when it grew");
    }
}
