//! The buckets of one histogram over a window.

use std::collections::VecDeque;

use crate::observe::histogram::{Histogram, ProcessLife};
use crate::observe::window::{HistogramTotals, ScrapeTime, starts_anew, within};

/// The snapshots that a window keeps. Quantiles then span between 15/16 of the window and all of
/// it, at a sixteenth of the memory of one snapshot per scrape.
const SNAPSHOTS: i64 = 16;

/// Snapshots by which the memory for counts grows. Slow scrapes fill a window with few snapshots.
const GROWTH: usize = 4;

/// Snapshots that are forgotten before their memory is reused, because reuse moves all others.
const FORGOTTEN_MAX: usize = 4;

/// Snapshots of one histogram in one life of its process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    /// The upper edges of the buckets, the same in every snapshot.
    edges: Vec<f64>,
    taken: VecDeque<SnapshotTotals>,
    /// The numbers of observations up to each edge, one snapshot after the other.
    counts: Vec<f64>,
    /// The leading counts that belong to forgotten snapshots.
    forgotten: usize,
}

/// A snapshot without its buckets.
#[derive(Clone, Copy, Debug)]
struct SnapshotTotals {
    /// Nanoseconds since the epoch.
    at: i64,
    sum: f64,
    count: f64,
}

// === impl Snapshots ===

impl Snapshots {
    /// Keeps the histogram of a scrape. Replaces the latest snapshot if that is close to the one
    /// before. `totals` is the histogram's state at the previous scrape.
    pub(crate) fn push(
        &mut self,
        page: &ScrapeTime,
        value: Option<&Histogram>,
        totals: &HistogramTotals,
    ) {
        let ScrapeTime { at, window, .. } = *page;
        let life = value.map_or(page.life, |value| totals.life(value, page.life));
        let is_gap = self.taken.back().is_some_and(|last| starts_anew(last.at, at, window));
        if life == ProcessLife::New || is_gap {
            self.clear();
        }

        let Some(value) = value else { return };
        self.keep_edges(value);
        let mut latest = self.taken.iter().rev().map(|taken| taken.at);
        let is_near = latest
            .next()
            .zip(latest.next())
            .is_some_and(|(last, before)| last.saturating_sub(before) < window / SNAPSHOTS);
        if is_near {
            self.taken.pop_back();
            self.counts.truncate(self.forgotten + self.taken.len() * self.edges.len());
        }

        let Histogram { sum, count, buckets } = value;
        self.taken.push_back(SnapshotTotals { at, sum: *sum, count: *count });
        if self.counts.len() + buckets.len() > self.counts.capacity() {
            self.counts.reserve_exact(GROWTH * buckets.len());
        }
        self.counts.extend(buckets.iter().map(|(_, count)| *count));
        while self.taken.get(1).is_some_and(|second| !within(at, second.at, window)) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        self.taken.pop_front();
        self.forgotten += self.edges.len();
        if self.forgotten >= FORGOTTEN_MAX * self.edges.len() {
            self.counts.drain(..self.forgotten);
            self.forgotten = 0;
        }
    }

    fn clear(&mut self) {
        self.taken.clear();
        self.counts.clear();
        self.forgotten = 0;
    }

    /// Restarts if the edges changed, because buckets then have no difference.
    fn keep_edges(&mut self, value: &Histogram) {
        // Edges are the same text in both scrapes, so they are the same bits.
        let mut pairs = self.edges.iter().zip(&value.buckets);
        if self.edges.len() == value.buckets.len()
            && pairs.all(|(one, (other, _))| one.to_bits() == other.to_bits())
        {
            return;
        }

        self.edges = value.buckets.iter().map(|(edge, _)| *edge).collect();
        self.clear();
        self.counts = Vec::new();
    }

    /// Adds the observations between the oldest and the latest snapshot to `all`.
    pub(crate) fn add_to(&self, all: &mut Option<Histogram>) {
        let (Some(first), Some(last)) = (self.taken.front(), self.taken.back()) else { return };
        let width = self.edges.len();
        let latest = &self.counts[self.counts.len() - width..];
        let counts = latest.iter().zip(&self.counts[self.forgotten..]);
        // A bucket that went down is a restart that nothing else has shown; see `Histogram::since`.
        let fell =
            last.count < first.count || counts.clone().any(|(later, earlier)| later < earlier);
        let growths = counts.map(|(later, earlier)| if fell { *later } else { later - earlier });
        let buckets = self.edges.iter().copied().zip(growths);

        let SnapshotTotals { sum, count, .. } = *last;
        let (sum, count) =
            if fell { (sum, count) } else { ((sum - first.sum).max(0.0), count - first.count) };
        match all {
            Some(all) => all.add(sum, count, buckets),
            None => *all = Some(Histogram { sum, count, buckets: buckets.collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The snapshots of a window, the one that it starts from, and the latest.
    const ROOM: usize = 18;

    /// A minute.
    const WINDOW: i64 = 60_000_000_000;

    fn at(second: i64) -> i64 {
        (1_795_000_000 + second) * 1_000_000_000
    }

    /// A histogram and its snapshots, as a rank has them.
    #[derive(Default)]
    struct Kept {
        totals: HistogramTotals,
        snapshots: Snapshots,
    }

    impl Kept {
        fn push(&mut self, second: i64, life: ProcessLife, value: Option<&Histogram>) {
            let page = ScrapeTime { at: at(second), life, window: WINDOW };
            self.snapshots.push(&page, value, &self.totals);
            self.totals.grow(&page, value);
        }

        fn difference(&self) -> Option<Histogram> {
            let mut all = None;
            self.snapshots.add_to(&mut all);
            all
        }
    }

    fn page(count: f64, edges: [f64; 2]) -> Histogram {
        let buckets = vec![(edges[0], count / 2.0), (edges[1], count)];
        Histogram { sum: count, count, buckets }
    }

    const EDGES: [f64; 2] = [0.5, f64::INFINITY];

    #[test]
    fn snapshots_stay_few() {
        let mut kept = Kept::default();
        for second in 0..600 {
            let count = f64::from(i32::try_from(second).unwrap());
            kept.push(second, ProcessLife::Same, Some(&page(count, EDGES)));
            let Snapshots { taken, counts, forgotten, .. } = &kept.snapshots;
            assert_eq!(counts.len(), forgotten + 2 * taken.len());
            assert!(counts.capacity() <= 2 * (ROOM + FORGOTTEN_MAX + GROWTH));
        }

        let taken = kept.snapshots.taken.len();
        assert!(taken <= ROOM, "{taken}");
        let seen = kept.difference().unwrap();
        assert!((56.0..=64.0).contains(&seen.count), "{seen:?}");
        assert_eq!(seen, page(seen.count, EDGES));
    }

    #[test]
    fn a_new_life_and_other_edges_begin_anew() {
        let mut kept = Kept::default();
        for second in 0..20 {
            kept.push(second, ProcessLife::Same, Some(&page(100.0, EDGES)));
        }

        kept.push(20, ProcessLife::New, Some(&page(300.0, EDGES)));
        assert_eq!(kept.difference(), Some(page(0.0, EDGES)));
        kept.push(30, ProcessLife::Same, Some(&page(304.0, EDGES)));
        assert_eq!(kept.difference(), Some(page(4.0, EDGES)));
        let other = [0.7, f64::INFINITY];
        kept.push(40, ProcessLife::Same, Some(&page(308.0, other)));
        assert_eq!(kept.difference(), Some(page(0.0, other)));
    }

    #[test]
    fn a_bucket_that_went_down_means_that_all_of_it_is_new() {
        let mut kept = Kept::default();
        kept.push(0, ProcessLife::Same, Some(&page(100.0, EDGES)));
        let mut later = page(200.0, EDGES);
        later.buckets[0].1 = 10.0;
        kept.push(10, ProcessLife::Same, Some(&later));
        assert_eq!(kept.difference(), Some(later));
    }

    #[test]
    fn a_histogram_that_a_new_life_first_lacks_has_nothing_of_the_old_one() {
        let mut kept = Kept::default();
        kept.push(0, ProcessLife::Same, Some(&page(100.0, EDGES)));
        kept.push(10, ProcessLife::New, None);
        kept.push(20, ProcessLife::Same, Some(&page(300.0, EDGES)));
        assert_eq!(kept.difference(), Some(page(0.0, EDGES)));
        kept.push(30, ProcessLife::Same, Some(&page(306.0, EDGES)));
        assert_eq!(kept.difference(), Some(page(6.0, EDGES)));
    }
}
