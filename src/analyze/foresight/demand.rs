//! How much must be carried when what is started now is ready.
//!
//! A replica that is asked for now carries load a start-up time later. So what counts is not the
//! present rate but what it will be then, as far as the past of the same load tells: how much it has
//! grown in that time before, whether it is on a ramp, how it bursts, and what has queued up
//! already. Each is a [`Term`], in requests a second.
//!
//! # Model
//!
//! With `a` the present rate, `a_k` those of strides of 15 s, `h` the horizon in strides:
//!
//! ```text
//! growth   = min(a + max(0, q90 of a_k - a_(k-h) over 15 min), max(peak of 15 min, 1.1 a))
//! ramp     = a + h * min(slope, 1.5 * slope of the second half), at most 2.5 a
//! spread   = 0.5 * rms of a_k less the mean of the three before
//! young    = 0.3 * sqrt(load in replicas), while less than three horizons are known
//! burst    = max over w of  E_w / (w + 1.2 s),    w = 1, 2, 4, 8, 15, 30, 60 s
//! backlog  = max(min(sum of (waiting - 4)+ / 30 s, a / 4),  sum of min(mu, waiting / 30 s))
//! need     = max((max(a, growth, ramp) + spread + young) / u, burst) + backlog
//! ```
//!
//! `E_w` is the number of requests in a window of `w` seconds that 95 % of requests do not exceed,
//! over five minutes. The second sum of `backlog` is over replicas with more than four waiting
//! requests: they are no capacity for what arrives now.
//!
//! A ramp is believed when the slope is more than 2.5 times its standard error, no single stride
//! makes half of the rise (that is a jump, which `growth` answers once and not again), and the
//! second half still rises.
//!
//! # Source
//!
//! Found and pruned by simulation over recorded and synthetic workloads; `docs/foresight.md` has
//! what each term is worth.

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::{Arrivals, STRIDE};

/// Strides over which growth, peak and spread are looked for: 15 minutes.
const LOOK_BACK: usize = 60;

/// The share of past growths that the expected one is not below.
const GROWTH_QUANTILE: f64 = 0.9;

/// How far above the present rate growth may go where the past has no higher peak.
const GROWTH_CAP: f64 = 1.1;

/// Standard errors that a slope must exceed to be a ramp.
const RAMP_SURE: f64 = 2.5;

/// The share of a rise that a single stride may make, in a ramp.
const JUMP: f64 = 0.5;

/// The share of the slope with which the second half must still rise.
const STILL_RISING: f64 = 0.3;

/// How much steeper than its second half a ramp is extrapolated at most.
const BEND: f64 = 1.5;

/// How far a ramp is extrapolated at most, as a multiple of the present rate.
const RAMP_CAP: f64 = 2.5;

/// The fewest strides that a slope is fitted to.
const RAMP_STRIDES: usize = 4;

/// Standard deviations of single strides that are held ready.
const SPREAD: f64 = 0.5;

/// What is held ready while little is known, in square roots of the load in replicas.
const YOUNG: f64 = 0.3;

/// Horizons of history below which little is known.
const YOUNG_HORIZONS: f64 = 3.0;

/// Windows in seconds in which bursts are looked for.
const WINDOWS: [i64; 7] = [1, 2, 4, 8, 15, 30, 60];

/// Seconds over which they are.
const BURSTS_OVER: i64 = 300;

/// The share of requests whose window is served in time.
const BURST_QUANTILE: f64 = 0.95;

/// Seconds that the first tokens of a burst may take beyond its own length.
const BURST_GRACE: f64 = 1.2;

/// Requests that wait at a replica as a matter of course, between two iterations.
const WAITING_USUAL: f64 = 4.0;

/// Seconds in which what waits should be worked off.
const DRAIN: f64 = 30.0;

/// The share of the present rate that working off a queue may ask for in addition: a queue is gone
/// by the time that many more replicas would be ready.
const DRAIN_CAP: f64 = 0.25;

/// A replica with a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    /// Requests that wait at it.
    pub waiting: f64,
    /// Requests a second that it carries.
    pub carries: f64,
}

/// What must be carried, in requests a second, and of what it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Need {
    /// What arrives now.
    pub arriving: f64,
    /// What it grows to by its own past.
    pub growth: f64,
    /// What it grows to if it goes on rising; `None` when it is on no ramp.
    pub ramp: Option<f64>,
    /// In addition, because strides differ.
    pub spread: f64,
    /// In addition, because little is known yet.
    pub young: f64,
    /// What bursts take, and the window in seconds in which they are the tightest; `None` where
    /// pages are too far apart to see any.
    pub burst: Option<(f64, i64)>,
    /// In addition, for what waits.
    pub backlog: f64,
    /// All together.
    pub total: f64,
}

/// Which part of a need decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// What arrives now.
    Arriving,
    /// Its growth.
    Growth,
    /// Its ramp.
    Ramp,
    /// Its bursts.
    Burst,
}

/// What a need depends on beside arrivals.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Up to when arrivals are known.
    pub through: Timestamp,
    /// Seconds until what is asked for now carries load.
    pub horizon: f64,
    /// Requests a second that a replica carries; the mean, where they differ.
    pub carries: f64,
    /// The share of it that may be used.
    pub used: f64,
    /// Replicas and what waits at them.
    pub queues: &'a [Queue],
}

impl Need {
    /// What must be carried; `None` while no arrivals are known.
    #[must_use]
    pub fn of(arrivals: &Arrivals, setting: &Setting<'_>) -> Option<Self> {
        let arriving = arrivals.rate(setting.through)?;
        let rates: Vec<f64> = arrivals.points().iter().map(|point| point.rate).collect();
        let ahead = strides(setting.horizon);
        let growth = growth(arriving, &rates, ahead);
        let ramp = ramp(arriving, &rates, ahead);
        let spread = SPREAD * roughness(&rates);
        let expected = arriving.max(growth).max(ramp.unwrap_or(0.0)) + spread;
        let known = arrivals.history(setting.through);
        let young = if known < YOUNG_HORIZONS * setting.horizon && setting.carries > 0.0 {
            YOUNG * (expected / setting.carries).sqrt() * setting.carries
        } else {
            0.0
        };
        let burst = burst(arrivals, setting.through);
        let backlog = backlog(arriving, setting.queues);
        let steady = (expected + young) / setting.used;
        let total = steady.max(burst.map_or(0.0, |(rate, _)| rate)) + backlog;
        Some(Self { arriving, growth, ramp, spread, young, burst, backlog, total })
    }

    /// What decides it.
    #[must_use]
    pub fn decided_by(&self) -> Term {
        let Self { arriving, growth, ramp, burst, .. } = *self;
        if burst.is_some_and(|(rate, _)| rate + self.backlog >= self.total) {
            Term::Burst
        } else if ramp.is_some_and(|ramp| ramp >= growth.max(arriving)) {
            Term::Ramp
        } else if growth > arriving {
            Term::Growth
        } else {
            Term::Arriving
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a horizon is some seconds, and is bounded before"
)]
fn strides(seconds: f64) -> usize {
    (seconds / STRIDE as f64).round().max(1.0) as usize
}

/// What the rate grows to, if it grows as it has done in as much time before.
fn growth(arriving: f64, rates: &[f64], ahead: usize) -> f64 {
    let recent = &rates[rates.len().saturating_sub(LOOK_BACK)..];
    let peak = recent.iter().copied().fold(0.0, f64::max);
    let from = rates.len().saturating_sub(LOOK_BACK).max(ahead);
    let mut growths: Vec<f64> = (from..rates.len()).map(|k| rates[k] - rates[k - ahead]).collect();
    growths.sort_by(f64::total_cmp);
    let likely = quantile(&growths, GROWTH_QUANTILE).unwrap_or(0.0).max(0.0);
    (arriving + likely).min(peak.max(GROWTH_CAP * arriving)).max(arriving)
}

/// What the rate grows to, if it goes on rising; `None` when it does not rise steadily.
fn ramp(arriving: f64, rates: &[f64], ahead: usize) -> Option<f64> {
    let count = ahead.max(RAMP_STRIDES);
    let recent = rates.get(rates.len().checked_sub(count)?..)?;
    let (slope, error) = slope(recent)?;
    if slope <= RAMP_SURE * error || slope <= 0.0 {
        return None;
    }
    let rise = recent.last()? - recent.first()?;
    let jump = recent.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    if jump >= JUMP * rise {
        return None;
    }
    let (late, _) = slope_of_half(recent)?;
    if late <= STILL_RISING * slope {
        return None;
    }
    let ahead = ahead as f64;
    Some((arriving + ahead * slope.min(BEND * late)).min(RAMP_CAP * arriving))
}

fn slope_of_half(rates: &[f64]) -> Option<(f64, f64)> {
    slope(&rates[rates.len() / 2..])
}

/// The slope of a line through values that are one apart, and its standard error.
fn slope(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let offsets =
        || values.iter().enumerate().map(|(at, value)| (at as f64 - middle, value - mean));
    let width: f64 = offsets().map(|(x, _)| x * x).sum();
    let slope = offsets().map(|(x, y)| x * y).sum::<f64>() / width;
    let left: f64 = offsets().map(|(x, y)| (y - slope * x).powi(2)).sum();
    let freedom = (count - 2.0).max(1.0);
    Some((slope, (left / freedom / width).sqrt()))
}

/// How far a stride is from those before it: the root of the mean square.
fn roughness(rates: &[f64]) -> f64 {
    let recent = &rates[rates.len().saturating_sub(LOOK_BACK + 3)..];
    let off = |four: &[f64]| four[3] - (four[0] + four[1] + four[2]) / 3.0;
    let squares: Vec<f64> = recent.windows(4).map(|four| off(four).powi(2)).collect();
    if squares.is_empty() {
        return 0.0;
    }
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// What bursts take, in the window in which they are the tightest.
fn burst(arrivals: &Arrivals, through: Timestamp) -> Option<(f64, i64)> {
    WINDOWS
        .into_iter()
        .filter_map(|window| {
            let mut counts = arrivals.windows(through, window, BURSTS_OVER);
            counts.sort_by(f64::total_cmp);
            let most = weighted_quantile(&counts, BURST_QUANTILE)?;
            Some((most / (window as f64 + BURST_GRACE), window))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
}

/// What a queue asks for.
fn backlog(arriving: f64, queues: &[Queue]) -> f64 {
    let beyond = |queue: &Queue| (queue.waiting - WAITING_USUAL).max(0.0);
    let drain = queues.iter().map(beyond).sum::<f64>() / DRAIN;
    let blocked = queues.iter().filter(|queue| queue.waiting > WAITING_USUAL);
    let lost: f64 = blocked.map(|queue| queue.carries.min(queue.waiting / DRAIN)).sum();
    drain.min(DRAIN_CAP * arriving).max(lost)
}

/// The quantile of ordered values, between ranks.
fn quantile(ordered: &[f64], share: f64) -> Option<f64> {
    let last = ordered.len().checked_sub(1)? as f64;
    let at = share * last;
    let value = |at: f64| ordered.get(index(at)).copied();
    let (low, high) = (value(at.floor())?, value(at.ceil())?);
    Some(low + (high - low) * (at - at.floor()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in a list")]
fn index(at: f64) -> usize {
    at as usize
}

/// The smallest of ordered counts so that no larger ones hold more than the rest of their sum.
fn weighted_quantile(ordered: &[f64], share: f64) -> Option<f64> {
    let all: f64 = ordered.iter().sum();
    let mut sum = 0.0;
    ordered.iter().copied().find(|count| {
        sum += count;
        sum >= share * all
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_steady_load_needs_what_arrives() {
        let rates = vec![10.0; 80];
        assert!((growth(10.0, &rates, 9) - 10.0).abs() < 1e-9);
        assert_eq!(ramp(10.0, &rates, 9), None);
        assert!(roughness(&rates) < 1e-12);
    }

    #[test]
    fn a_ramp_is_extrapolated_over_the_horizon() {
        let rates: Vec<f64> = (0..40).map(|k| 10.0 + 0.5 * f64::from(k)).collect();
        let now = rates[39];
        assert!((ramp(now, &rates, 9).unwrap() - (now + 4.5)).abs() < 1e-9);
    }

    #[test]
    fn a_jump_is_no_ramp_and_is_not_expected_again_beyond_its_peak() {
        let rates: Vec<f64> = (0..40).map(|k| if k < 35 { 10.0 } else { 40.0 }).collect();
        assert_eq!(ramp(40.0, &rates, 9), None);
        assert!(growth(40.0, &rates, 9) <= 44.0 + 1e-9);
    }

    #[test]
    fn a_ramp_that_has_ended_is_no_ramp() {
        let rates: Vec<f64> = (0..40).map(|k| 10.0 + f64::from((k - 30).clamp(0, 5))).collect();
        assert_eq!(ramp(15.0, &rates, 9), None);
    }

    #[test]
    fn a_queue_counts_as_lost_capacity_and_its_drain_is_capped() {
        let queue = |waiting| Queue { waiting, carries: 2.0 };
        assert!(backlog(10.0, &[queue(4.0), queue(0.0)]) < 1e-12);
        assert!((backlog(10.0, &[queue(64.0)]) - 2.0).abs() < 1e-9);
        assert!((backlog(10.0, &[queue(3000.0)]) - 2.5).abs() < 1e-9, "a quarter of what arrives");
    }

    #[test]
    fn the_weighted_quantile_is_that_of_requests_and_not_of_windows() {
        assert_eq!(weighted_quantile(&[0.0, 0.0, 0.0, 100.0], 0.95), Some(100.0));
        assert_eq!(weighted_quantile(&[1.0, 1.0, 1.0, 97.0], 0.03), Some(1.0));
    }

    #[test]
    fn one_stride_of_more_makes_a_jump_of_a_ramp_and_is_believed_less() {
        // Why more load may ask for less: a rise that one stride makes half of is no ramp.
        let rates: Vec<f64> = (0..60).map(|k| 10.0 + 0.5 * f64::from(k)).collect();
        let mut more = rates.clone();
        more[55] = 39.4;
        let now = rates[59];
        let expected = |rates: &[f64]| {
            growth(now, rates, 9).max(ramp(now, rates, 9).unwrap_or(0.0))
                + SPREAD * roughness(rates)
        };
        assert!(ramp(now, &rates, 9).is_some() && ramp(now, &more, 9).is_none());
        assert!(expected(&more) < expected(&rates), "{} {}", expected(&more), expected(&rates));
    }

    proptest! {
        #[test]
        fn a_load_that_is_larger_throughout_never_needs_less(
            rates in proptest::collection::vec(0.1_f64..20.0, 4..80),
            times in 1.0_f64..5.0,
            horizon in 15.0_f64..300.0,
            waiting in proptest::collection::vec(0.0_f64..40.0, 0..4),
        ) {
            let queues: Vec<Queue> =
                waiting.into_iter().map(|waiting| Queue { waiting, carries: 2.0 }).collect();
            let need = |times: f64| {
                let mut arrivals = Arrivals::default();
                let mut now = Timestamp::from_second(1_795_000_005).unwrap();
                for rate in &rates {
                    for _ in 0..STRIDE {
                        now += jiff::SignedDuration::from_secs(1);
                        arrivals.add(now, crate::units::Seconds::literal(1), rate * times);
                    }
                }
                arrivals.close(now);
                let through = now;
                let setting = Setting { through, horizon, carries: 2.0, used: 1.0, queues: &queues };
                Need::of(&arrivals, &setting).unwrap().total
            };
            let (less, more) = (need(1.0), need(times));
            prop_assert!(more >= less * (1.0 - 1e-9), "{less} {more}");
        }
    }
}
