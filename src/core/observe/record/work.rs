//! The record of what the requests of one replica look like.

use crate::observe::record::ranks::{grow_tokens, grow_totals};
use crate::observe::window::{Columns, Counter, Increase, Page, Totals, Window};
use crate::observe::{RankReading, Work};
use crate::units::{Fraction, Tokens};

/// Columns of a rank's window.
mod column {
    use crate::observe::window::Columns;

    pub(super) const PROMPT: Columns = Columns { sum: 0, count: 1 };
    pub(super) const GENERATION: Columns = Columns { sum: 2, count: 3 };
    pub(super) const PREFIX_QUERIES: usize = 4;
    pub(super) const PREFIX_HITS: usize = 5;
    pub(super) const ALL: usize = 6;
}

/// What its ranks count of lengths and of the prefix cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkRecord {
    kv_capacity: Option<Tokens>,
    /// Each rank's, in the order of the page.
    ranks: Vec<RankWork>,
}

#[derive(Clone, Debug, Default)]
struct RankWork {
    rank: u32,
    window: Window<0, { column::ALL }>,
    prompt_length: Totals,
    generation_length: Totals,
    prefix_queries: Counter,
    prefix_hits: Counter,
}

impl WorkRecord {
    pub(crate) fn take(&mut self, page: &Page, ranks: &[RankReading]) {
        // One rank that does not say it leaves the size of the whole unknown.
        self.kv_capacity = ranks.iter().map(|rank| rank.kv_capacity).sum();
        self.ranks.retain(|known| ranks.iter().any(|rank| rank.rank == known.rank));
        for rank in ranks {
            let at_rank = self.ranks.iter().position(|known| known.rank == rank.rank);
            let index = at_rank.unwrap_or_else(|| {
                self.ranks.push(RankWork { rank: rank.rank, ..RankWork::default() });
                self.ranks.len() - 1
            });
            self.ranks[index].take(page, rank);
        }
    }

    /// What the requests of the window look like; times are in nanoseconds.
    pub(crate) fn look(&self, now: i64, window: i64) -> Work {
        let ranks = self.ranks.iter().map(|rank| rank.window.pane(now, window).increases());
        let grown = Increase::added(ranks);
        let amount = |column: usize| grown[column].map(|grown| grown.amount);
        let queries = amount(column::PREFIX_QUERIES).filter(|queries| *queries > 0.0);
        let share = queries.zip(amount(column::PREFIX_HITS));
        let mean = |columns: Columns| Tokens::new(columns.mean(&grown)?);
        Work {
            started: None,
            kv_capacity: self.kv_capacity,
            prompt_length: mean(column::PROMPT),
            generation_length: mean(column::GENERATION),
            prefix_hits: share.and_then(|(queries, hits)| Fraction::new((hits / queries).min(1.0))),
        }
    }
}

impl RankWork {
    fn take(&mut self, page: &Page, rank: &RankReading) {
        let mut growths = [None; column::ALL];
        let (prompt, generation) = (rank.prompt_length.as_ref(), rank.generation_length.as_ref());
        grow_totals(&mut self.prompt_length, page, prompt, &mut growths, column::PROMPT);
        grow_totals(
            &mut self.generation_length,
            page,
            generation,
            &mut growths,
            column::GENERATION,
        );
        growths[column::PREFIX_QUERIES] =
            grow_tokens(&mut self.prefix_queries, page, rank.prefix_queries);
        growths[column::PREFIX_HITS] = grow_tokens(&mut self.prefix_hits, page, rank.prefix_hits);
        self.window.push(page, [], growths);
    }
}
