//! A rate over time, and arrivals at this rate.

use std::f64::consts::TAU;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::scenario::ranges::SPANS;
use plimsoll_core::settings;
use plimsoll_core::settings::{hours, millis};

/// Rates in requests/s. The maximum is more than the whole world needs.
pub const RATES: RangeInclusive<f64> = 0.0..=1e6;

/// Periods after which something repeats; they must not be zero.
pub const PERIODS: RangeInclusive<Duration> = millis(1)..=hours(24 * 366);

/// Points that approximate a wave; each is within a thousandth of the curve's height.
const WAVE_POINTS: u32 = 96;

/// A rate that is linear between points, and repeats if it has a period.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Seconds and requests per second, in ascending order of time; two points at one time are a
    /// step.
    points: Vec<(f64, f64)>,
    /// Seconds after which the points repeat.
    period: Option<f64>,
    /// The burst that the points already include.
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

/// The reason why points do not form a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// There is no point.
    #[error("must have at least one point")]
    Empty,
    /// A time is before the previous one.
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
    /// The end of the burst, from the start of each period.
    #[must_use]
    pub fn end(&self) -> Micros {
        self.from + self.length
    }
}

impl Rate {
    /// A constant rate.
    ///
    /// # Errors
    ///
    /// The rate is negative or not a number.
    pub fn constant(rate: f64) -> Result<Self, RateError> {
        Self::through(vec![(0.0, rate)], None)
    }

    /// A rate through these points, in seconds and requests per second. It is constant before the
    /// first point and after the last. With a period, it is linear from the last point to the next
    /// first one.
    ///
    /// # Errors
    ///
    /// There are no points, or they are unsorted or not numbers.
    pub fn through(mut points: Vec<(f64, f64)>, period: Option<f64>) -> Result<Self, RateError> {
        let (&(first, at_first), &(last, _)) =
            points.first().zip(points.last()).ok_or(RateError::Empty)?;
        if points.iter().any(|&(at, rate)| !rate.is_finite() || rate < 0.0 || !at.is_finite()) {
            return Err(RateError::BadRate);
        }
        if first < 0.0 || !points.is_sorted_by(|a, b| a.0 <= b.0) {
            return Err(RateError::Unsorted);
        }

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
        let mut points = Vec::new();
        for step in 0..WAVE_POINTS {
            let turn = f64::from(step) / f64::from(WAVE_POINTS);
            let rate = trough + (crest - trough) * (1.0 - (TAU * turn).cos()) / 2.0;
            points.push((turn * period, rate));
        }

        Self::through(points, Some(period))
    }

    /// The same rate with a burst in each period.
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

    /// The rate at a time in its first period, in seconds.
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

    /// The highest rate at any time.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// The time since the start of the current period.
    #[must_use]
    pub fn within(&self, at: Micros) -> Micros {
        let period = self.period.map(Micros::from_secs_f64).filter(|it| *it > Micros::ZERO);
        period.map_or(at, |period| Micros::new(at.micros() % period.micros()))
    }

    /// The same as a share of its period; 0 without a period.
    #[must_use]
    pub fn turn(&self, at: Micros) -> f64 {
        self.period.map_or(0.0, |period| self.within(at).seconds() / period)
    }

    /// Returns true if a burst is active at a time.
    #[must_use]
    pub fn bursts(&self, at: Micros) -> bool {
        let within = self.within(at);
        self.burst.is_some_and(|it| (it.from..it.end()).contains(&within))
    }

    /// Advances `place` by this many requests and returns the time at which they are due. Returns
    /// `None` if that many requests never come.
    fn advance(&self, place: &mut RatePosition, requests: f64) -> Option<f64> {
        let mut left = requests;
        // After a whole period without a request, all later periods are the same.
        let mut idle = 0;
        while idle <= self.points.len() {
            let (from, start) = *self.points.get(place.segment)?;
            let Some(&(to, end)) = self.points.get(place.segment + 1) else {
                if self.period.is_some() {
                    *place = RatePosition { round: place.round + 1.0, segment: 0, within: 0.0 };
                    idle += 1;
                    continue;
                }

                place.within += left / start;
                return (start > 0.0).then_some(place.within);
            };

            let share = if to > from { (place.within - from) / (to - from) } else { 1.0 };
            let rate = start + (end - start) * share;
            let span = to - place.within;
            let due = f64::midpoint(rate, end) * span;
            if due > left {
                let slope = (end - rate) / span;
                let root = (rate * rate + 2.0 * slope * left).max(0.0).sqrt();
                place.within += 2.0 * left / (rate + root);
                let base = self.period.map_or(0.0, |period| place.round * period);
                return Some(base + place.within);
            }

            idle = if due > 0.0 { 0 } else { idle + 1 };
            left -= due;
            place.segment += 1;
            place.within = to;
        }

        None
    }
}

/// A position on a rate's time axis.
#[derive(Clone, Copy, Debug, Default)]
struct RatePosition {
    /// Completed periods.
    round: f64,
    /// The index of the point before the position.
    segment: usize,
    /// Seconds since the start of the period.
    within: f64,
}

/// Arrivals at a rate. Gaps are drawn for a rate of one and then scaled by the actual rate. A
/// variation of 1 gives a Poisson process, a larger one gives bursts, and 0 gives regular arrivals.
/// They were going on before, so the first gap is the rest of a gap, unless gaps are equal.
#[derive(Clone, Debug)]
pub struct Renewals {
    rate: Rate,
    gaps: RenewalGaps,
    /// True once an arrival was drawn.
    begun: bool,
    place: RatePosition,
    random: Pcg64,
}

/// The distribution of the gaps at a rate of one.
#[derive(Clone, Copy, Debug)]
enum RenewalGaps {
    /// All gaps are equal.
    Equal,
    /// The exponential distribution.
    Exponential,
    /// The gamma distribution of this shape.
    Gamma(f64),
}

// === impl RenewalGaps ===

impl RenewalGaps {
    /// The gaps with this coefficient of variation.
    fn of(variation: f64) -> Self {
        let shape = 1.0 / (variation * variation);

        if variation <= 0.0 {
            Self::Equal
        } else if (shape - 1.0).abs() < 1e-9 {
            Self::Exponential
        } else {
            Self::Gamma(shape)
        }
    }

    fn draw(self, random: &mut Pcg64) -> f64 {
        match self {
            Self::Equal => 1.0,
            Self::Exponential => random::exponential(random),
            Self::Gamma(shape) => random::gamma(random, shape) / shape,
        }
    }

    /// The rest of a gap at any time. A time is in a gap with a probability that grows with the
    /// gap's length (Cox, Renewal Theory, 1962), and anywhere within it.
    fn draw_rest(self, random: &mut Pcg64) -> f64 {
        match self {
            Self::Gamma(shape) => {
                random::uniform(random) * random::gamma(random, shape + 1.0) / shape
            }
            Self::Equal | Self::Exponential => self.draw(random),
        }
    }
}

// === impl Renewals ===

impl Renewals {
    /// Arrivals whose gaps have this coefficient of variation.
    #[must_use]
    pub fn new(rate: Rate, variation: f64, random: Pcg64) -> Self {
        let gaps = RenewalGaps::of(variation);
        Self { rate, gaps, begun: false, place: RatePosition::default(), random }
    }
}

impl Iterator for Renewals {
    type Item = Micros;

    fn next(&mut self) -> Option<Micros> {
        let gap = if self.begun {
            self.gaps.draw(&mut self.random)
        } else {
            self.gaps.draw_rest(&mut self.random)
        };

        self.begun = true;
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
        // 2/s for 100 s and 10/s for 100 s, then none: 1200 with a standard deviation of 35.
        let got = count(Rate::through(steps.clone(), None).unwrap(), 1.0, 100_000);
        assert!((1060..=1340).contains(&got), "{got}");

        let metronome = count(Rate::through(steps, Some(300.0)).unwrap(), 0.0, 3_000);
        // The rate goes from 0 back to 2 in the last 100 s of each period.
        assert!((12_980..=13_020).contains(&metronome), "{metronome}");

        let wave = count(Rate::wave(1.0, 3.0, 60.0).unwrap(), 0.0, 600);
        assert!((1198..=1202).contains(&wave), "{wave}");

        // 2/s, and 20/s more for a tenth of each minute.
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
        let ramp = Rate::through(vec![(0.0, 0.0), (100.0, 10.0)], None).unwrap();
        assert!((498..=502).contains(&count(ramp.clone(), 0.0, 100)));
        assert!((998..=1_002).contains(&count(ramp, 0.0, 150)));

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
    fn bursts_are_as_likely_in_the_first_second_as_later() {
        let rate = Rate::constant(1.0).unwrap();
        let mut early = 0;

        for index in 0..20_000 {
            let random = generator(1, Purpose::Times, index);

            let renewals = Renewals::new(rate.clone(), 4.0, random);
            early += renewals.take_while(|at| *at < Micros::from_secs(1)).count();
        }

        // One per second, with a standard error of 0.02. If the first gap were like the others, there
        // would be five.
        let mean = early as f64 / 20_000.0;
        assert!((mean - 1.0).abs() < 0.08, "{mean}");
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

        // During the burst, the rate is its 20/s plus 8/s of the wave.
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
