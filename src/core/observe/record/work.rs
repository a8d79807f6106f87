//! The record of one replica's requests: their lengths, and the prefix cache.

use crate::observe::record::ranks::{grow_tokens, grow_totals};
use crate::observe::window::{Counter, HistogramTotals, Increase, ScrapeTime, ScrapeWindow};
use crate::observe::{RankReading, ReplicaWork};
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

/// The ranks' counts of lengths and of the prefix cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkRecord {
    kv_capacity: Option<Tokens>,
    /// The record of each rank, in the order of the scrape.
    ranks: Vec<RankWork>,
}

#[derive(Clone, Debug, Default)]
struct RankWork {
    rank: u32,
    window: ScrapeWindow<0, { column::ALL }>,
    prompt_length: HistogramTotals,
    generation_length: HistogramTotals,
    prefix_queries: Counter,
    prefix_hits: Counter,
}

impl WorkRecord {
    pub(crate) fn take(&mut self, page: &ScrapeTime, ranks: &[RankReading]) {
        // If one rank does not report its size, the total is unknown.
        self.kv_capacity = ranks.iter().map(|rank| rank.kv_capacity).sum();
        self.ranks.retain(|known| ranks.iter().any(|rank| rank.rank == known.rank));

        self.ranks.reserve_exact(ranks.len().saturating_sub(self.ranks.len()));
        for rank in ranks {
            let at_rank = self.ranks.iter().position(|known| known.rank == rank.rank);
            let index = at_rank.unwrap_or_else(|| {
                self.ranks.push(RankWork { rank: rank.rank, ..RankWork::default() });
                self.ranks.len() - 1
            });
            self.ranks[index].take(page, rank);
        }
    }

    /// Statistics about the requests of the window; times are in nanoseconds.
    pub(crate) fn look(&self, now: i64, window: i64) -> ReplicaWork {
        let ranks = self.ranks.iter().map(|rank| rank.window.pane(now, window).increases());
        let grown = Increase::added(ranks);
        let queries = grown[column::PREFIX_QUERIES].filter(|it| it.amount > 0.0);
        let hits = grown[column::PREFIX_HITS];
        let share = queries.zip(hits).map(|(queries, hits)| hits.amount / queries.amount);

        ReplicaWork {
            started: None,
            kv_capacity: self.kv_capacity,
            prompt_length: column::PROMPT.mean(&grown).and_then(Tokens::new),
            generation_length: column::GENERATION.mean(&grown).and_then(Tokens::new),
            prefix_hits: share.and_then(|share| Fraction::new(share.min(1.0))),
        }
    }
}

impl RankWork {
    fn take(&mut self, page: &ScrapeTime, rank: &RankReading) {
        let mut growths = [None; column::ALL];
        let prompt = rank.prompt_length.as_ref();
        let generation = rank.generation_length.as_ref();
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
