//! Jumps: a rate that rose within the last seconds, before the mean of a stride shows all of it.
//!
//! # Model
//!
//! If the load jumped `w` seconds ago, for each `w` up to a stride, `c` requests came since. `m`
//! requests came in the minute `B` before that stride. Without a jump, both came at the rate
//! `l = (c + m) / (w + B)`. Twice the logarithm of the likelihood ratio is
//!
//! ```text
//! r = 2 (c ln (c / (l w)) + m ln (m / (l B))) / phi      for c / w > m / B
//! ```
//!
//! A jump is certain if `r > z^2`, with `z` standard deviations. In addition, no window of `w`
//! seconds in the five minutes before may have had as many requests, because clumps come again. The
//! `w` with the largest `r` is then the likeliest, and the rate is `c / w`.
//!
//! `phi` is the variance of counts in windows of `w` seconds over that of a Poisson process.
//! Requests that come in clumps have a large one. It is half of the mean square of the difference
//! between consecutive windows over their mean, so a slow rise does not count as variation. A
//! longer window varies at least as much as a shorter one, which has more counts.
//!
//! # Units
//!
//! Requests per second, requests, seconds.
//!
//! # Source
//!
//! The generalized likelihood ratio test: Basseville and Nikiforov, *Detection of Abrupt Changes*
//! (1993), section 2.4.3. The quasi-likelihood for counts that vary more: `McCullagh` and Nelder,
//! *Generalized Linear Models* (1989), section 9.2. The differences: von Neumann, *Distribution of
//! the ratio of the mean square successive difference to the variance* (1941).

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::{ArrivalHistory, STRIDE};
use crate::analyze::foresight::policy::Jump;

/// Seconds over which the rate before a jump is measured.
const BASELINE: i64 = 60;

/// Seconds in which the variation of counts is measured.
const VARIATION: i64 = 300;

/// Requests that a minute without any is assumed to have had. Without them, the first few requests
/// after it would be an infinite surprise.
const UNSEEN: f64 = 1.0;

/// The rate after a jump within the last stride; `None` if none is certain.
pub(super) fn jump(arrivals: &ArrivalHistory, through: Timestamp, policy: Jump) -> Option<f64> {
    let before = arrivals.counted(through, STRIDE, STRIDE + BASELINE)? + UNSEEN;
    let threshold = policy.certainty.fraction().powi(2);

    let mut variation: f64 = 1.0;
    let mut likeliest: Option<Rise> = None;
    for window in arrivals.finest()..=STRIDE {
        let count = arrivals.counted(through, 0, window)?;
        let ratio = likelihood_ratio(count, window as f64, before);
        if ratio <= threshold {
            continue;
        }

        let past = counts_before(arrivals, through, window);
        variation = variation.max(variation_of(&past));
        let rise = Rise { window, count, ratio: ratio / variation };
        let is_unseen = past.iter().all(|before| *before < count);
        if is_unseen && rise.ratio > threshold && likeliest.is_none_or(|it| it.ratio < rise.ratio) {
            likeliest = Some(rise);
        }
    }

    likeliest.map(|rise| rise.count / rise.window as f64)
}

/// A rise within the last stride.
#[derive(Clone, Copy, Debug)]
struct Rise {
    /// The length of the window, in seconds.
    window: i64,
    /// Requests in the window.
    count: f64,
    /// Twice the logarithm of the likelihood ratio.
    ratio: f64,
}

/// Twice the logarithm of the likelihood ratio of a jump, given the counts of a window and of the
/// minute before.
fn likelihood_ratio(count: f64, window: f64, before: f64) -> f64 {
    let rate = (count + before) / (window + BASELINE as f64);
    let expected = rate * window;
    let expected_before = rate * BASELINE as f64;
    if count <= expected {
        return 0.0;
    }
    2.0 * (count * (count / expected).ln() + before * (before / expected_before).ln())
}

/// Requests in windows of this length before the last stride.
fn counts_before(arrivals: &ArrivalHistory, through: Timestamp, window: i64) -> Vec<f64> {
    let ends = (STRIDE..VARIATION).step_by(usize::try_from(window).unwrap_or(1));
    ends.map_while(|end| arrivals.counted(through, end, end + window)).collect()
}

/// The variance of counts over that of a Poisson process.
fn variation_of(counts: &[f64]) -> f64 {
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    if counts.len() < 2 || mean <= 0.0 {
        return 1.0;
    }

    let differences = counts.windows(2).map(|pair| (pair[1] - pair[0]).powi(2));
    let variance = differences.sum::<f64>() / (2 * (counts.len() - 1)) as f64;
    variance / mean
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::units::Seconds;

    const BEGIN: i64 = 1_795_000_000;

    /// The rate after a jump, if one is certain, at each of these seconds.
    fn watch(seconds: impl Iterator<Item = f64>) -> Vec<Option<f64>> {
        let mut arrivals = ArrivalHistory::default();
        let mut found = Vec::new();
        for (second, requests) in (BEGIN..).zip(seconds) {
            let now = Timestamp::from_second(second).unwrap();
            arrivals.add(now, Seconds::literal(1), requests);
            arrivals.close(now);
            found.push(jump(&arrivals, now, Jump::default()));
        }

        found
    }

    /// Requests per second, from clients that send `clump` requests at a time, independently of
    /// each other.
    fn poisson(
        seed: u64,
        clump: f64,
        rates: impl Iterator<Item = f64>,
    ) -> impl Iterator<Item = f64> {
        let mut random = Pcg64::seed_from_u64(seed);
        rates.map(move |rate| {
            let mut count = 0.0;
            let mut passed = -random.random::<f64>().max(1e-12).ln() * clump / rate;
            while passed < 1.0 {
                count += clump;
                passed -= random.random::<f64>().max(1e-12).ln() * clump / rate;
            }

            count
        })
    }

    /// Requests per second whose gaps have this coefficient of variation: short and long ones, each
    /// exponential, which take as much time in total.
    fn irregular(seed: u64, variation: f64, rate: f64) -> impl Iterator<Item = f64> {
        let mut random = Pcg64::seed_from_u64(seed);
        let square = variation.powi(2);
        let short = f64::midpoint(1.0, ((square - 1.0) / (square + 1.0)).sqrt());
        let mut next = 0.0;
        std::iter::repeat_with(move || {
            let mut count = 0.0;
            while next < 1.0 {
                count += 1.0;
                let kind = if random.random::<f64>() < short { short } else { 1.0 - short };
                next -= random.random::<f64>().max(1e-12).ln() / (2.0 * kind * rate);
            }

            next -= 1.0;
            count
        })
    }

    /// A rate for five minutes, and another for a minute.
    fn stepping(before: f64, after: f64) -> impl Iterator<Item = f64> {
        (0..360).map(move |second| if second < 300 { before } else { after })
    }

    #[test]
    fn a_jump_is_certain_within_seconds_and_its_rate_is_off_by_chance_alone() {
        for (before, after, within) in
            [(3.0, 30.0, 3), (60.0, 200.0, 2), (12.0, 84.0, 2), (2.0, 8.0, 8)]
        {
            let mut slowest = 0;
            for seed in 0..50 {
                let found = watch(poisson(seed, 1.0, stepping(before, after)));
                let certain =
                    found[300..].iter().position(|rate| rate.is_some_and(|it| it > 0.7 * after));
                slowest = slowest.max(certain.expect("every jump is found") + 1);
                let highest = found.iter().flatten().copied().fold(0.0, f64::max);
                // Chance alone exceeds five deviations in no second of these hours.
                assert!(highest < after + 5.0 * after.sqrt(), "{highest} of {after}");
            }

            assert!(slowest <= 2 * within, "{before} -> {after} took {slowest} s");
        }
    }

    /// Jumps in a watched load.
    fn jumps(found: &[Option<f64>]) -> usize {
        found.windows(2).filter(|pair| pair[0].is_none() && pair[1].is_some()).count()
    }

    #[test]
    fn a_steady_load_has_no_jumps_however_its_requests_clump() {
        for (rate, clump) in [(0.3, 1.0), (3.0, 1.0), (60.0, 1.0), (20.0, 5.0), (60.0, 20.0)] {
            let steady = std::iter::repeat_n(rate, 4 * 3600);
            let count = jumps(&watch(poisson(7, clump, steady)));
            assert!(count <= 1, "{count} jumps in 4 hours of {rate} in clumps of {clump}");
        }

        for (rate, variation) in [(0.3, 2.0), (3.0, 1.4), (3.0, 4.0), (30.0, 2.0)] {
            let seconds = irregular(7, variation, rate).take(10 * 3600);
            let count = jumps(&watch(seconds));
            assert!(count <= 1, "{count} jumps in 10 hours of {rate} that vary by {variation}");
        }
    }

    #[test]
    fn a_slow_rise_is_no_jump() {
        let rising = (0..600).map(|second| 10.0 + f64::from(second) / 60.0);
        assert!(watch(rising).iter().all(Option::is_none));
    }

    #[test]
    fn scrapes_that_are_far_apart_show_no_jump_within_their_distance() {
        let mut arrivals = ArrivalHistory::default();
        for step in 0..40_i64 {
            let now = Timestamp::from_second(BEGIN + 30 * step).unwrap();
            let rate = if step < 38 { 3.0 } else { 30.0 };

            arrivals.add(now, Seconds::literal(30), 30.0 * rate);
            arrivals.close(now);
            assert_eq!(jump(&arrivals, now, Jump::default()), None);
        }
    }
}
