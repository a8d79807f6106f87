//! A rate over time, and the arrivals that it means.

use std::f64::consts::TAU;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::scenario::SPANS;
use plimsoll_core::settings;
use plimsoll_core::settings::{hours, millis};

/// More than the whole world asks for.
pub const RATES: RangeInclusive<f64> = 0.0..=1e6;

/// What begins again must have gone on for a while.
pub const PERIODS: RangeInclusive<Duration> = millis(1)..=hours(24 * 366);

/// Points in which a wave is drawn: each is within a thousandth of the height of the curve.
const WAVE_POINTS: u32 = 96;

/// A rate that runs straight from point to point, over and over again where it has a period.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Seconds and requests per second, times ascending; two points of one time are a step.
    points: Vec<(f64, f64)>,
    /// Seconds after which the points begin again.
    period: Option<f64>,
    /// The burst that the points have already.
    burst: Option<Burst>,
}

settings! {
    /// More requests for a while.
    #[derive(Copy)]
    pub struct Burst {
        /// When it begins, from the start of each period.
        from as "at": Micros, in SPANS, required;

        /// How long it lasts.
        length: Micros, in PERIODS, required;

        /// How many more, in requests per second.
        extra as "rate": f64, in RATES, required;
    }
}

/// Why points are no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// There is no point.
    #[error("must have at least one point")]
    Empty,
    /// A time comes before the one before it.
    #[error("must have times that ascend")]
    Unsorted,
    /// A rate is negative or not a number.
    #[error("must have rates that are finite and not negative")]
    BadRate,
    /// The period is shorter than the points.
    #[error("must have a period that is longer than its last time")]
    Period,
}

impl Burst {
    /// When it ends, from the start of each period.
    #[must_use]
    pub fn end(&self) -> Micros {
        self.from + self.length
    }
}

impl Rate {
    /// The same rate for ever.
    ///
    /// # Errors
    ///
    /// It is negative or not a number.
    pub fn constant(rate: f64) -> Result<Self, RateError> {
        Self::through(vec![(0.0, rate)], None)
    }

    /// A rate through these points, in seconds and requests per second. Before the first and after
    /// the last it stays what it is there; with a period, it runs from the last to the first.
    ///
    /// # Errors
    ///
    /// The points are none, unsorted, or not numbers.
    pub fn through(points: Vec<(f64, f64)>, period: Option<f64>) -> Result<Self, RateError> {
        let (&(first, at_first), &(last, _)) =
            points.first().zip(points.last()).ok_or(RateError::Empty)?;
        if points.iter().any(|&(at, rate)| !rate.is_finite() || rate < 0.0 || !at.is_finite()) {
            return Err(RateError::BadRate);
        }
        if first < 0.0 || !points.is_sorted_by(|a, b| a.0 <= b.0) {
            return Err(RateError::Unsorted);
        }
        let mut points = points;
        if let Some(period) = period {
            if !(period.is_finite() && period > 0.0 && period >= last) {
                return Err(RateError::Period);
            }
            points.push((period, at_first));
        }
        if first > 0.0 {
            points.insert(0, (0.0, at_first));
        }
        Ok(Self { points, period, burst: None })
    }

    /// A cosine that starts in its trough.
    ///
    /// # Errors
    ///
    /// A rate is negative or not a number.
    pub fn wave(trough: f64, crest: f64, period: f64) -> Result<Self, RateError> {
        let point = |step: u32| {
            let turn = f64::from(step) / f64::from(WAVE_POINTS);
            (turn * period, trough + (crest - trough) * (1.0 - (TAU * turn).cos()) / 2.0)
        };
        Self::through((0..WAVE_POINTS).map(point).collect(), Some(period))
    }

    /// The same with a burst in each period.
    #[must_use]
    pub fn with_burst(self, burst: Burst) -> Self {
        let from = burst.from.seconds();
        let to = burst.end().seconds();
        let edges = [(from, self.at(from)), (to, self.at(to))];
        let [start, end] = edges.map(|(at, rate)| (at, rate + burst.extra));

        let before = self.points.iter().copied().filter(|(at, _)| *at < from);
        let during = self.points.iter().filter(|(at, _)| from < *at && *at < to);
        let after = self.points.iter().copied().filter(|(at, _)| to < *at);
        let raised = during.map(|(at, rate)| (*at, rate + burst.extra));
        let points = before
            .chain([edges[0], start])
            .chain(raised)
            .chain([end, edges[1]])
            .chain(after)
            .collect();
        Self { points, burst: Some(burst), ..self }
    }

    /// The rate at a time of its first period, in seconds.
    fn at(&self, time: f64) -> f64 {
        let after = self.points.partition_point(|(at, _)| *at < time);
        match (after.checked_sub(1).and_then(|at| self.points.get(at)), self.points.get(after)) {
            (Some(&(from, start)), Some(&(to, end))) => {
                start + (end - start) * (time - from) / (to - from)
            }
            (Some(&(_, rate)), None) | (None, Some(&(_, rate))) => rate,
            (None, None) => 0.0,
        }
    }

    /// The rate at a time, in seconds.
    #[must_use]
    pub fn of(&self, time: f64) -> f64 {
        self.at(self.period.map_or(time, |period| time % period))
    }

    /// The highest rate that there ever is.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// The time since its points last began.
    #[must_use]
    pub fn within(&self, at: Micros) -> Micros {
        let period = self.period.map(Micros::from_secs_f64).filter(|it| *it > Micros::ZERO);
        period.map_or(at, |period| Micros::new(at.micros() % period.micros()))
    }

    /// The same as a share of its period; 0 where nothing begins again.
    #[must_use]
    pub fn turn(&self, at: Micros) -> f64 {
        self.period.map_or(0.0, |period| self.within(at).seconds() / period)
    }

    /// Whether there is a burst at a time.
    #[must_use]
    pub fn bursts(&self, at: Micros) -> bool {
        let within = self.within(at);
        self.burst.is_some_and(|it| (it.from..it.end()).contains(&within))
    }

    /// Moves on by as many requests as `requests`, and returns the time at which they are due; `None`
    /// when there will never be so many.
    fn advance(&self, place: &mut Place, requests: f64) -> Option<f64> {
        let mut left = requests;
        let base = |round: f64| self.period.map_or(0.0, |period| round * period);
        // Behind a whole period without a request there are only others like it.
        let mut idle = 0;
        while idle <= self.points.len() {
            let (from, start) = *self.points.get(place.segment)?;
            let Some(&(to, end)) = self.points.get(place.segment + 1) else {
                if self.period.is_some() {
                    *place = Place { round: place.round + 1.0, segment: 0, within: 0.0 };
                    idle += 1;
                    continue;
                }
                place.within += left / start;
                return (start > 0.0).then_some(place.within);
            };
            let share = if to > from { (place.within - from) / (to - from) } else { 1.0 };
            let (rate, span) = (start + (end - start) * share, to - place.within);
            let due = f64::midpoint(rate, end) * span;
            if due > left {
                let slope = (end - rate) / span;
                let root = (rate * rate + 2.0 * slope * left).max(0.0).sqrt();
                place.within += 2.0 * left / (rate + root);
                return Some(base(place.round) + place.within);
            }
            idle = if due > 0.0 { 0 } else { idle + 1 };
            left -= due;
            place.segment += 1;
            place.within = to;
        }
        None
    }
}

/// A place on a rate.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Periods that are over.
    round: f64,
    /// The point before it.
    segment: usize,
    /// Seconds since the period began.
    within: f64,
}

/// Arrivals at a rate. Gaps are drawn where the rate is one, and stretched by it: with a variation of
/// 1 it is a Poisson process, with more it comes in bursts, with 0 it is a metronome.
#[derive(Clone, Debug)]
pub struct Renewals {
    rate: Rate,
    /// The shape of the gamma distribution of gaps; `None` for gaps that are all the same.
    shape: Option<f64>,
    place: Place,
    random: Pcg64,
}

impl Renewals {
    /// Arrivals whose gaps have this coefficient of variation.
    #[must_use]
    pub fn new(rate: Rate, variation: f64, random: Pcg64) -> Self {
        let shape = (variation > 0.0).then(|| 1.0 / (variation * variation));
        Self { rate, shape, place: Place::default(), random }
    }
}

impl Iterator for Renewals {
    type Item = Micros;

    fn next(&mut self) -> Option<Micros> {
        let gap = match self.shape {
            None => 1.0,
            Some(shape) if (shape - 1.0).abs() < 1e-9 => random::exponential(&mut self.random),
            Some(shape) => random::gamma(&mut self.random, shape) / shape,
        };
        let at = Micros::from_secs_f64(self.rate.advance(&mut self.place, gap)?);
        (at < Micros::new(u64::MAX)).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};

    fn count(rate: Rate, variation: f64, seconds: u64) -> usize {
        let renewals = Renewals::new(rate, variation, generator(3, Purpose::Times, 0));
        renewals.take_while(|at| *at < Micros::from_secs(seconds)).count()
    }

    #[test]
    fn as_many_arrive_as_the_rate_says() {
        let steps = vec![(0.0, 2.0), (100.0, 2.0), (100.0, 10.0), (200.0, 10.0), (200.0, 0.0)];
        // 2 for 100 s and 10 for 100 s, then none: 1200 with a standard deviation of 35.
        let got = count(Rate::through(steps.clone(), None).unwrap(), 1.0, 100_000);
        assert!((1060..=1340).contains(&got), "{got}");
        let metronome = count(Rate::through(steps, Some(300.0)).unwrap(), 0.0, 3_000);
        // The rate runs back from 0 to 2 in the last 100 s of each period.
        assert!((12_980..=13_020).contains(&metronome), "{metronome}");
        let wave = count(Rate::wave(1.0, 3.0, 60.0).unwrap(), 0.0, 600);
        assert!((1198..=1202).contains(&wave), "{wave}");
        // 2 a second, and 20 more for a tenth of each minute.
        let burst =
            Burst { from: Micros::from_secs(40), length: Micros::from_secs(6), extra: 20.0 };
        let bursty = count(Rate::wave(1.0, 3.0, 60.0).unwrap().with_burst(burst), 0.0, 600);
        assert!((2398..=2402).contains(&bursty), "{bursty}");
        assert_eq!(count(Rate::constant(0.0).unwrap(), 1.0, 1_000), 0);
        let silent = Rate::through(vec![(0.0, 0.0), (5.0, 0.0)], Some(10.0)).unwrap();
        assert_eq!(count(silent, 1.0, 1_000), 0);
    }

    #[test]
    fn a_ramp_runs_straight_and_bursts_have_the_variation_that_was_asked_for() {
        let ramp = || Rate::through(vec![(0.0, 0.0), (100.0, 10.0)], None).unwrap();
        assert!((498..=502).contains(&count(ramp(), 0.0, 100)));
        assert!((998..=1_002).contains(&count(ramp(), 0.0, 150)));
        let at: Vec<f64> =
            Renewals::new(Rate::constant(10.0).unwrap(), 3.0, generator(1, Purpose::Times, 0))
                .take(100_001)
                .map(Micros::seconds)
                .collect();
        let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 3.0).abs() < 0.15, "{}", variance.sqrt() / mean);
    }

    #[test]
    fn the_rate_runs_from_trough_to_crest_and_back_with_a_burst_on_top() {
        let from = Micros::from_secs(120);
        let burst = Burst { from, length: Micros::from_secs(10), extra: 20.0 };
        let wave = Rate::wave(2.0, 10.0, 180.0).unwrap().with_burst(burst);
        for (second, want) in [(0.0, 2.0), (45.0, 6.0), (90.0, 10.0), (135.0, 6.0), (180.0, 2.0)] {
            let got = wave.at(second);
            assert!((got - want).abs() < 1e-2, "{got} at second {second}");
        }
        // Under the burst there are its 20/s and 8/s of the wave.
        assert!((wave.peak() - 28.0).abs() < 0.1, "{}", wave.peak());
        assert!(!wave.bursts(Micros::new(119_999_999)) && wave.bursts(from));
        assert!(!wave.bursts(Micros::from_secs(130)) && wave.bursts(Micros::from_secs(309)));
        assert!((wave.turn(Micros::from_secs(225)) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn points_that_are_no_rate_are_refused() {
        for (points, period, why) in [
            (vec![], None, RateError::Empty),
            (vec![(0.0, f64::NAN)], None, RateError::BadRate),
            (vec![(0.0, -1.0)], None, RateError::BadRate),
            (vec![(5.0, 1.0), (1.0, 1.0)], None, RateError::Unsorted),
            (vec![(0.0, 1.0), (9.0, 1.0)], Some(5.0), RateError::Period),
        ] {
            assert_eq!(Rate::through(points, period), Err(why));
        }
    }
}
