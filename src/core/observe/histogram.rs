//! Cumulative histograms: their difference, sum, mean and quantiles.
//!
//! The unit of an observation is that of the family (seconds or tokens), so the numbers here are
//! bare. Callers that know the family convert a mean or a quantile to [`crate::units::Seconds`] or
//! [`crate::units::Tokens`], which reject values that are not finite.
//!
//! Prefer means. The first edge of vLLM's time between tokens is 10 ms and the second 25 ms. On a
//! fast accelerator this bucket holds the whole distribution, and a quantile is only an
//! interpolation inside it.

mod written;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::units::Fraction;

/// A cumulative histogram as an engine reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Sum of all observations.
    #[serde(with = "crate::observe::exact")]
    pub sum: f64,
    /// Number of observations.
    #[serde(with = "crate::observe::exact")]
    pub count: f64,
    /// Upper edge and number of observations up to it, edges ascending; the last edge is `+Inf`.
    /// Empty when a relabeling rule drops the buckets.
    #[serde(with = "written")]
    pub buckets: Vec<(f64, f64)>,
}

/// The result of comparing the process lives of two scrapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessLife {
    /// Nothing shows that the process has restarted.
    Same,
    /// The process has restarted: all values of the later scrape were counted since.
    New,
}

impl ProcessLife {
    /// Compares the start times of two scrapes. Scrapes without a start time count as the same
    /// life, because then only a count that goes down can show a restart.
    #[must_use]
    pub fn between(earlier: Option<Timestamp>, later: Option<Timestamp>) -> Self {
        match (earlier, later) {
            (Some(earlier), Some(later)) if earlier != later => Self::New,
            _ => Self::Same,
        }
    }
}

impl Histogram {
    /// The observations since `earlier`: the difference of sum, count and every bucket.
    ///
    /// After a restart it is this histogram itself, because a new process counts from zero
    /// (Prometheus' rule for counters). A restart is a new [`ProcessLife`], or a count or a bucket
    /// that went down; counts are whole numbers, so this cannot be rounding. The sum is no
    /// evidence: processes that share a /metrics response are added up in no fixed order, and the
    /// last digit may fall.
    ///
    /// Two histograms with different edges have no difference by bucket. Their sum and count still
    /// do, so only the buckets are left out. Negative differences of the sum become zero.
    #[must_use]
    pub fn since(&self, earlier: &Self, life: ProcessLife) -> Self {
        let comparable = self.has_edges_of(earlier);
        let fell = self.count < earlier.count
            || comparable && self.pairs(earlier).any(|(_, later, earlier)| later < earlier);
        if life == ProcessLife::New || fell {
            return self.clone();
        }

        let buckets = if comparable {
            self.pairs(earlier).map(|(edge, later, earlier)| (edge, later - earlier)).collect()
        } else {
            Vec::new()
        };
        Self { sum: (self.sum - earlier.sum).max(0.0), count: self.count - earlier.count, buckets }
    }

    /// The observations of both, such as those of two ranks. Sums and counts add up, and so do
    /// buckets with the same edges. If the edges differ, the buckets are left out.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let buckets = if self.has_edges_of(other) {
            self.pairs(other).map(|(edge, one, other)| (edge, one + other)).collect()
        } else {
            Vec::new()
        };
        Self { sum: self.sum + other.sum, count: self.count + other.count, buckets }
    }

    /// Adds another histogram with these buckets, by the rule of [`Histogram::plus`] and without a
    /// copy.
    pub(crate) fn add(
        &mut self,
        sum: f64,
        count: f64,
        buckets: impl ExactSizeIterator<Item = (f64, f64)> + Clone,
    ) {
        self.sum += sum;
        self.count += count;
        // Edges are the same text in both scrapes, so they are the same bits.
        let mut pairs = self.buckets.iter().zip(buckets.clone());
        let is_same = self.buckets.len() == buckets.len()
            && pairs.all(|((edge, _), (other, _))| edge.to_bits() == other.to_bits());
        if !is_same {
            self.buckets.clear();
            return;
        }

        for ((_, all), (_, more)) in self.buckets.iter_mut().zip(buckets) {
            *all += more;
        }
    }

    /// The mean observation, `sum / count`; `None` when nothing was observed.
    ///
    /// For two scrapes, take the mean of [`Histogram::since`]. An engine that was idle in between
    /// has no mean latency, rather than one of zero.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count).filter(|mean| mean.is_finite())
    }

    /// The value below which a share `q` of the observations lies, by linear interpolation inside
    /// its bucket. With rank `q * total`, the bucket is the first that reaches the rank. If it
    /// spans `low` to `high` and holds `inside` observations after `below` earlier ones, the value
    /// is `low + (high - low) * (rank - below) / inside`.
    ///
    /// This is `histogram_quantile` of Prometheus for classic histograms, including its edge cases.
    /// The first bucket starts at 0 when its edge is positive. A quantile in the `+Inf` bucket is
    /// the last finite edge. Buckets that are not monotonic are made so. `None` when nothing was
    /// observed, when there is no finite edge or no `+Inf` bucket, and for `q` above 1.
    #[must_use]
    pub fn quantile(&self, q: Fraction) -> Option<f64> {
        let (&(last_edge, last_count), finite) = self.buckets.split_last()?;
        let last_finite = finite.last()?.0;
        if last_edge < f64::INFINITY || q > Fraction::ONE {
            return None;
        }

        let total = finite.iter().fold(last_count, |most, &(_, count)| most.max(count));
        if total <= 0.0 {
            return None;
        }

        let rank = q.fraction() * total;
        let mut low = 0.0;
        let mut below = 0.0_f64;
        for (index, &(high, written)) in finite.iter().enumerate() {
            let count = written.max(below);
            if count >= rank {
                if index == 0 && high <= 0.0 {
                    return Some(high);
                }
                let inside = count - below;
                let share = if inside > 0.0 { (rank - below) / inside } else { 0.0 };
                return Some(low + (high - low) * share);
            }

            (low, below) = (high, count);
        }

        Some(last_finite)
    }

    /// The sums of the observations and of their squares, estimated from the buckets. Each
    /// observation counts as the geometric mean of its bucket's edges. In the first bucket it
    /// counts as the upper edge, and beyond the last finite edge as that edge.
    ///
    /// Only the ratio of the two is meaningful, because an edge is far from the values in its
    /// bucket. `None` without a finite edge.
    #[must_use]
    pub fn moments(&self) -> Option<[f64; 2]> {
        let [_, sum, squares] = self.moments_above(0.0)?;
        Some([sum, squares])
    }

    /// The number of the observations above an edge, and [the same sums](Self::moments) of them.
    #[must_use]
    pub fn moments_above(&self, edge: f64) -> Option<[f64; 3]> {
        let (&(_, all), finite) = self.buckets.split_last()?;
        let last_edge = finite.last()?.0;

        let mut sums = [0.0; 3];
        let mut low = 0.0;
        let mut below = 0.0_f64;
        let beyond = std::iter::once((last_edge, all));
        for (high, count) in finite.iter().copied().chain(beyond) {
            let inside = (count - below).max(0.0);
            let square: f64 = if low > 0.0 { low * high } else { high * high };
            if low >= edge {
                sums[0] += inside;
                sums[1] += inside * square.sqrt();
                sums[2] += inside * square;
            }
            (low, below) = (high, below.max(count));
        }

        Some(sums)
    }

    /// The share of the observations above a value, by linear interpolation inside its bucket, the
    /// inverse of [`Histogram::quantile`]. `None` when nothing was observed, and when there is no
    /// finite edge or no `+Inf` bucket. Also `None` for a value beyond the last finite edge,
    /// because the distribution there is not known.
    #[must_use]
    pub fn share_above(&self, value: f64) -> Option<f64> {
        let (&(last_edge, last_count), finite) = self.buckets.split_last()?;
        if last_edge < f64::INFINITY || value > finite.last()?.0 {
            return None;
        }

        let total = finite.iter().fold(last_count, |most, &(_, count)| most.max(count));
        if total <= 0.0 {
            return None;
        }

        let mut low = 0.0;
        let mut below = 0.0_f64;
        for &(high, written) in finite {
            let count = written.max(below);
            if high >= value {
                let width = high - low;
                let share = if width > 0.0 { ((value - low) / width).clamp(0.0, 1.0) } else { 1.0 };
                return Some(1.0 - (below + (count - below) * share) / total);
            }

            (low, below) = (high, count);
        }

        None
    }

    /// Returns true if both have the same edges.
    fn has_edges_of(&self, other: &Self) -> bool {
        self.buckets.len() == other.buckets.len()
            && self.pairs(other).zip(&other.buckets).all(|((edge, ..), (other, _))| {
                // Edges are the same text in both scrapes, so they are the same bits.
                edge.total_cmp(other).is_eq()
            })
    }

    /// Edge, this count and the other's count of each bucket; meaningful for equal edges.
    fn pairs<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (f64, f64, f64)> + 'a {
        let counts = other.buckets.iter().map(|&(_, count)| count);
        self.buckets.iter().zip(counts).map(|(&(edge, one), other)| (edge, one, other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EDGES: [f64; 4] = [0.1, 0.5, 1.0, f64::INFINITY];

    fn histogram(sum: f64, counts: [f64; 4]) -> Histogram {
        Histogram { sum, count: counts[3], buckets: EDGES.into_iter().zip(counts).collect() }
    }

    fn q(share: f64) -> Fraction {
        Fraction::new(share).unwrap()
    }

    fn close(left: f64, right: f64) -> bool {
        // Both sides are a handful of operations on numbers of this size.
        (left - right).abs() <= 1e-9 * right.abs().max(1.0)
    }

    #[test]
    fn a_difference_subtracts_sum_count_and_buckets() {
        let later = histogram(9.0, [2.0, 6.0, 8.0, 10.0]);
        let earlier = histogram(4.0, [1.0, 3.0, 3.0, 4.0]);
        assert_eq!(later.since(&earlier, ProcessLife::Same), histogram(5.0, [1.0, 3.0, 5.0, 6.0]));
    }

    #[test]
    fn after_a_restart_everything_on_the_page_is_new() {
        let before = histogram(9.0, [2.0, 6.0, 8.0, 10.0]);
        let after = histogram(1.0, [1.0, 2.0, 2.0, 2.0]);
        assert_eq!(after.since(&before, ProcessLife::Same), after, "the count went down");
        let grown = histogram(30.0, [1.0, 9.0, 20.0, 30.0]);
        assert_eq!(grown.since(&before, ProcessLife::Same), grown, "the first bucket went down");
        let hidden = histogram(30.0, [5.0, 9.0, 20.0, 30.0]);
        assert_eq!(hidden.since(&before, ProcessLife::New), hidden, "the start time changed");
    }

    #[test]
    fn a_changed_start_time_is_a_new_life_and_an_unknown_one_is_not() {
        let [first, second] = [1, 2].map(|second| Timestamp::from_second(second).ok());
        assert_eq!(ProcessLife::between(first, second), ProcessLife::New);
        assert_eq!(ProcessLife::between(first, first), ProcessLife::Same);
        assert_eq!(ProcessLife::between(None, first), ProcessLife::Same);
        assert_eq!(ProcessLife::between(first, None), ProcessLife::Same);
    }

    #[test]
    fn a_sum_that_falls_in_its_last_digit_is_no_restart() {
        let earlier = histogram(0.1 + 0.2, [1.0, 1.0, 1.0, 1.0]);
        let later = histogram(0.3, [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(later.since(&earlier, ProcessLife::Same), histogram(0.0, [0.0; 4]));
    }

    #[test]
    fn different_edges_leave_sum_and_count_only() {
        let one = histogram(9.0, [2.0, 6.0, 8.0, 10.0]);
        let mut other = histogram(4.0, [1.0, 3.0, 3.0, 4.0]);
        other.buckets[0].0 = 0.2;
        let expected = Histogram { sum: 5.0, count: 6.0, buckets: Vec::new() };
        assert_eq!(one.since(&other, ProcessLife::Same), expected);
        let expected = Histogram { sum: 13.0, count: 14.0, buckets: Vec::new() };
        assert_eq!(one.plus(&other), expected);
    }

    #[test]
    fn nothing_observed_has_no_mean_and_no_quantile() {
        let empty = histogram(0.0, [0.0; 4]);
        assert_eq!(empty.mean(), None);
        assert_eq!(empty.quantile(q(0.5)), None);
        assert_eq!(Histogram { sum: 2.0, count: 4.0, buckets: Vec::new() }.quantile(q(0.5)), None);
        assert_eq!(Histogram { sum: 2.0, count: 4.0, buckets: Vec::new() }.mean(), Some(0.5));
    }

    #[test]
    fn moments_tell_equal_values_from_different_ones() {
        let [sum, squares] = histogram(0.0, [0.0, 40.0, 40.0, 40.0]).moments().unwrap();
        assert!(close(40.0 * squares, sum * sum), "all in one bucket");
        let [sum, squares] = histogram(0.0, [10.0, 20.0, 30.0, 40.0]).moments().unwrap();
        assert!(close(sum, 10.0 * (0.1 + 0.05_f64.sqrt() + 0.5_f64.sqrt() + 1.0)), "{sum}");
        assert!(close(squares, 10.0 * (0.01 + 0.05 + 0.5 + 1.0)), "{squares}");
        assert_eq!(Histogram { sum: 2.0, count: 4.0, buckets: Vec::new() }.moments(), None);

        let [count, sum, squares] =
            histogram(0.0, [10.0, 20.0, 30.0, 40.0]).moments_above(0.1).unwrap();
        assert!(close(count, 30.0), "{count}");
        assert!(close(sum, 10.0 * (0.05_f64.sqrt() + 0.5_f64.sqrt() + 1.0)), "{sum}");
        assert!(close(squares, 10.0 * (0.05 + 0.5 + 1.0)), "{squares}");
    }

    #[test]
    fn quantiles_are_those_of_prometheus() {
        // Worked by the rule in Prometheus' documentation of histogram_quantile.
        let counts = histogram(0.0, [10.0, 30.0, 40.0, 50.0]);
        for (share, want) in [
            (0.0, 0.0),
            (0.1, 0.05),
            (0.2, 0.1),
            (0.5, 0.1 + 0.4 * 15.0 / 20.0),
            (0.8, 1.0),
            (0.9, 1.0),
            (1.0, 1.0),
        ] {
            let got = counts.quantile(q(share)).unwrap();
            assert!(close(got, want), "quantile {share}: {got}, not {want}");
        }

        assert_eq!(counts.quantile(q(1.5)), None);
        let all_above = histogram(0.0, [0.0, 0.0, 0.0, 7.0]);
        assert_eq!(all_above.quantile(q(0.5)), Some(1.0), "the last finite edge");
        let negative = Histogram {
            sum: 0.0,
            count: 4.0,
            buckets: vec![(-1.0, 4.0), (1.0, 4.0), (f64::INFINITY, 4.0)],
        };
        assert_eq!(negative.quantile(q(0.5)), Some(-1.0), "an edge that is not positive");
        let headless = Histogram { sum: 1.0, count: 4.0, buckets: vec![(1.0, 4.0), (2.0, 4.0)] };
        assert_eq!(headless.quantile(q(0.5)), None, "without +Inf the total is unknown");
    }

    #[test]
    fn the_share_above_a_quantile_is_what_the_quantile_leaves() {
        let counts = histogram(0.0, [10.0, 30.0, 40.0, 50.0]);
        for share in [0.1, 0.2, 0.3, 0.5, 0.7, 0.8] {
            let value = counts.quantile(q(share)).unwrap();
            assert!(close(counts.share_above(value).unwrap(), 1.0 - share), "{share} at {value}");
        }
        assert_eq!(counts.share_above(1.0), Some(1.0 - 40.0 / 50.0), "at the last finite edge");
        assert_eq!(counts.share_above(1.1), None, "nobody knows beyond");
        assert_eq!(histogram(0.0, [0.0; 4]).share_above(0.3), None);
        assert_eq!(Histogram { sum: 2.0, count: 4.0, buckets: Vec::new() }.share_above(0.3), None);
    }

    #[test]
    fn buckets_that_go_down_are_read_as_flat() {
        let dented = histogram(0.0, [10.0, 8.0, 20.0, 20.0]);
        let flat = histogram(0.0, [10.0, 10.0, 20.0, 20.0]);
        for share in [0.1, 0.5, 0.75, 1.0] {
            assert_eq!(dented.quantile(q(share)), flat.quantile(q(share)), "{share}");
        }
    }

    prop_compose! {
        fn histograms()(steps in prop::array::uniform4(0_u32..1000), sum in 0.0..1e6) -> Histogram {
            let mut total = 0.0;
            histogram(sum, steps.map(|step| { total += f64::from(step); total }))
        }
    }

    proptest! {
        #[test]
        fn a_difference_undoes_a_sum(one in histograms(), other in histograms()) {
            let both = one.plus(&other);
            let back = both.since(&other, ProcessLife::Same);
            prop_assert_eq!(back.count.to_bits(), one.count.to_bits());
            prop_assert_eq!(&back.buckets, &one.buckets);
            prop_assert!(close(back.sum, one.sum));
        }

        #[test]
        fn quantiles_rise_and_stay_between_zero_and_the_last_finite_edge(
            it in histograms(), one in 0.0..=1.0_f64, other in 0.0..=1.0_f64,
        ) {
            match (it.quantile(q(one.min(other))), it.quantile(q(one.max(other)))) {
                (Some(low), Some(high)) => {
                    prop_assert!(0.0 <= low && low <= high + 1e-9 && high <= 1.0 + 1e-9);
                }
                (None, None) => prop_assert!(it.count <= 0.0),
                mixed => prop_assert!(false, "{:?}", mixed),
            }
        }
    }
}
