//! The record of what the requests of one replica look like.

use jiff::{SignedDuration, Timestamp};

use crate::observe::histogram::{Histogram, Life};
use crate::observe::record::ranks::push_tokens;
use crate::observe::window::{Counter, Totals};
use crate::observe::{RankReading, Work};
use crate::units::{Fraction, Tokens};

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
    prompt_length: Totals,
    generation_length: Totals,
    prefix_queries: Counter,
    prefix_hits: Counter,
}

impl WorkRecord {
    pub(crate) fn take(
        &mut self,
        at: Timestamp,
        ranks: &[RankReading],
        life: Life,
        window: SignedDuration,
    ) {
        // One rank that does not say it leaves the size of the whole unknown.
        self.kv_capacity = ranks.iter().map(|rank| rank.kv_capacity).sum();
        self.ranks.retain(|known| ranks.iter().any(|rank| rank.rank == known.rank));
        for rank in ranks {
            let at_rank = self.ranks.iter().position(|known| known.rank == rank.rank);
            let index = at_rank.unwrap_or_else(|| {
                self.ranks.push(RankWork { rank: rank.rank, ..RankWork::default() });
                self.ranks.len() - 1
            });
            self.ranks[index].take(at, rank, life, window);
        }
    }

    /// What the requests of the window look like.
    pub(crate) fn look(&self, now: Timestamp, window: SignedDuration) -> Work {
        let queries = self.increase(now, window, |rank| &rank.prefix_queries);
        let hits = self.increase(now, window, |rank| &rank.prefix_hits);
        let share = queries.filter(|queries| *queries > 0.0).zip(hits);
        Work {
            started: None,
            kv_capacity: self.kv_capacity,
            prompt_length: self.mean(now, window, |rank| &rank.prompt_length),
            generation_length: self.mean(now, window, |rank| &rank.generation_length),
            prefix_hits: share.and_then(|(queries, hits)| Fraction::new((hits / queries).min(1.0))),
        }
    }

    fn increase(
        &self,
        now: Timestamp,
        window: SignedDuration,
        counter: impl Fn(&RankWork) -> &Counter,
    ) -> Option<f64> {
        let grown = self.ranks.iter().filter_map(|rank| counter(rank).increase(now, window));
        grown.map(|grown| grown.amount).reduce(|a, b| a + b)
    }

    /// The mean over all ranks: sums over counts, so that an idle rank does not weigh.
    fn mean(
        &self,
        now: Timestamp,
        window: SignedDuration,
        totals: impl Fn(&RankWork) -> &Totals,
    ) -> Option<Tokens> {
        let (mut sum, mut count) = (0.0, 0.0);
        for rank in &self.ranks {
            let Some((grown, more)) = totals(rank).increase(now, window) else { continue };
            sum += grown;
            count += more;
        }
        if count > 0.0 { Tokens::new(sum / count) } else { None }
    }
}

impl RankWork {
    fn take(&mut self, at: Timestamp, rank: &RankReading, life: Life, window: SignedDuration) {
        let push = |totals: &mut Totals, histogram: &Option<Histogram>| {
            if let Some(histogram) = histogram {
                totals.push(at, histogram, life, window);
            }
        };
        push(&mut self.prompt_length, &rank.prompt_length);
        push(&mut self.generation_length, &rank.generation_length);
        push_tokens(&mut self.prefix_queries, at, rank.prefix_queries, life, window);
        push_tokens(&mut self.prefix_hits, at, rank.prefix_hits, life, window);
    }
}
