//! Arrivals over time: the shape of a rate, and whether what it needs is smooth or jumps.

use std::f64::consts::TAU;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::workload::rate::Rate;
use crate::study::file::Kind;
use crate::study::worlds::capacity::Capacity;
use crate::study::worlds::priors::{
    COMPRESSION, DAY_HOURS, FLASH, FLASH_EVERY_MINUTES, FLASH_MINUTES, HALF_MINUTES, NIGHT, RAMP,
    RAMP_MINUTES, STEP, Shape,
};
use crate::study::worlds::recorded::Recording;

/// Points of a day.
const DAY_POINTS: u32 = 48;

/// Steps of a world with steps.
const STEPS: std::ops::RangeInclusive<u32> = 1..=3;

/// Instants at which a mean and a peak are taken.
const INSTANTS: u32 = 4000;

/// Seconds between two instants at which a rise is looked for.
const LOOK: f64 = 10.0;

/// What a need may rise by within one start for a world to be smooth.
const RISE: f64 = 1.25;

/// A relative rate over time.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Seconds and rates; two points of one time are a step.
    pub(crate) points: Vec<(f64, f64)>,
    /// Seconds after which the points begin again.
    pub(crate) period: Option<f64>,
}

/// A need over time, in replicas.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    /// Rates of requests, each with the capacity of a replica that serves no others.
    parts: Vec<(Rate, Capacity)>,
    /// Seconds.
    length: f64,
}

impl Course {
    /// Draws the course of a shape over so many seconds.
    pub(crate) fn draw(shape: Shape, length: f64, random: &mut Pcg64) -> Self {
        match shape {
            Shape::Recorded(recording) => Self::recorded(recording, random),
            Shape::Diurnal => Self::diurnal(random),
            Shape::Flat => Self { points: vec![(0.0, 1.0)], period: None },
            Shape::Ramp => Self::ramp(length, random),
            Shape::Steps => Self::steps(length, random),
            Shape::Square => Self::square(random),
            Shape::Flash => Self::flash(random),
        }
    }

    /// A recording from any of its numbers on, over and over again.
    fn recorded(recording: &Recording, random: &mut Pcg64) -> Self {
        let mut rates = recording.rates();
        let first = random.random_range(0..rates.len());
        rates.rotate_left(first);

        let faster = if recording.compressed { COMPRESSION.draw(random) } else { 1.0 };
        let step = whole(recording.step / faster);
        let points = (0_u32..).zip(rates).map(|(at, rate)| (f64::from(at) * step, rate));
        let points: Vec<(f64, f64)> = points.collect();
        let period = step * points.len() as f64;
        Self { points, period: Some(period) }
    }

    /// A cosine from any time of the day on.
    fn diurnal(random: &mut Pcg64) -> Self {
        let crest = NIGHT.draw(random);
        let step = whole(DAY_HOURS.draw(random) * 3600.0 / f64::from(DAY_POINTS));
        let begin = random.random::<f64>();
        let point = |at: u32| {
            let turn = f64::from(at) / f64::from(DAY_POINTS) + begin;
            (f64::from(at) * step, 1.0 + (crest - 1.0) * (1.0 - (TAU * turn).cos()) / 2.0)
        };
        let points = (0..DAY_POINTS).map(point).collect();
        Self { points, period: Some(step * f64::from(DAY_POINTS)) }
    }

    /// A launch: from one rate to a higher one, which stays.
    fn ramp(length: f64, random: &mut Pcg64) -> Self {
        let (higher, minutes) = (RAMP.draw(random), RAMP_MINUTES.draw(random));
        let begin = whole(length * (0.1 + 0.3 * random.random::<f64>()));
        let end = begin + whole(minutes * 60.0);
        Self { points: vec![(0.0, 1.0), (begin, 1.0), (end, higher)], period: None }
    }

    /// Rates that hold until the next, each a multiple of the first.
    fn steps(length: f64, random: &mut Pcg64) -> Self {
        let count = random.random_range(STEPS);
        let mut points = vec![(0.0, 1.0)];
        for step in 1..=count {
            let at = whole(length * f64::from(step) / f64::from(count + 1));
            let before = points.last().map_or(1.0, |(_, rate)| *rate);
            points.extend([(at, before), (at, STEP.draw(random))]);
        }
        Self { points, period: None }
    }

    fn square(random: &mut Pcg64) -> Self {
        let higher = STEP.draw(random);
        let half = whole(HALF_MINUTES.draw(random) * 60.0);
        let points = vec![(0.0, 1.0), (half, 1.0), (half, higher), (2.0 * half, higher)];
        Self { points, period: Some(2.0 * half) }
    }

    fn flash(random: &mut Pcg64) -> Self {
        let higher = FLASH.draw(random);
        let lasts = whole(FLASH_MINUTES.draw(random) * 60.0);
        let period = whole(FLASH_EVERY_MINUTES.draw(random) * 60.0);
        let begin = period - lasts;
        let points = vec![(0.0, 1.0), (begin, 1.0), (begin, higher), (period, higher)];
        Self { points, period: Some(period) }
    }

    /// The same course times a factor, to four digits.
    pub(crate) fn times(&self, factor: f64) -> Self {
        let point = |&(at, rate): &(f64, f64)| (at, digits(rate * factor, 4));
        Self { points: self.points.iter().map(point).collect(), ..*self }
    }

    /// The same without the points after so many seconds.
    pub(crate) fn until(&self, length: f64) -> Self {
        let longer = self.period.is_some_and(|period| period > length);
        if !longer {
            return self.clone();
        }
        let before = self.points.iter().copied().filter(|(at, _)| *at < length);
        let end = (length, digits(self.rate().of(length), 4));
        Self { points: before.chain([end]).collect(), period: None }
    }

    pub(crate) fn rate(&self) -> Rate {
        let Self { points, period } = self.clone();
        Rate::through(points, period).expect("points of a course ascend and end with its period")
    }
}

impl Need {
    pub(crate) fn new(course: &Course, capacity: Capacity, length: f64) -> Self {
        Self { parts: vec![(course.rate(), capacity)], length }
    }

    /// The same with more requests.
    pub(crate) fn and(mut self, course: &Course, capacity: Capacity) -> Self {
        self.parts.push((course.rate(), capacity));
        self
    }

    /// The replicas that it takes at a time in seconds.
    pub(crate) fn at(&self, time: f64) -> f64 {
        self.parts.iter().map(|(rate, capacity)| rate.of(time) / capacity.at(time)).sum()
    }

    /// The mean and the highest.
    pub(crate) fn mean_and_peak(&self) -> (f64, f64) {
        let time = |step: u32| (f64::from(step) + 0.5) / f64::from(INSTANTS) * self.length;
        let needs = || (0..INSTANTS).map(|step| self.at(time(step)));
        (needs().sum::<f64>() / f64::from(INSTANTS), needs().fold(0.0, f64::max))
    }

    /// Requests a second that arrive at a time in seconds.
    pub(crate) fn rate_at(&self, time: f64) -> f64 {
        self.parts.iter().map(|(rate, _)| rate.of(time)).sum()
    }

    /// The capacity of one replica at a time in seconds, in requests per second of those that arrive
    /// then; `None` while none do.
    pub(crate) fn capacity_at(&self, time: f64) -> Option<f64> {
        let need = self.at(time);
        (need > 0.0).then(|| self.rate_at(time) / need)
    }

    /// Smooth where the need never rises by more than a quarter within one start. What is below one
    /// replica is one.
    pub(crate) fn kind(&self, startup: f64) -> Kind {
        let each = |time: f64| {
            (0_u32..).map(|step| f64::from(step) * LOOK).take_while(move |it| *it < time)
        };
        let needs: Vec<f64> = each(self.length).map(|time| self.at(time).max(1.0)).collect();
        let within = each(startup).count() + 1;

        let jumps = needs.windows(within.min(needs.len()).max(1)).any(|window| {
            let mut lowest = f64::INFINITY;
            window.iter().any(|need| {
                lowest = lowest.min(*need);
                *need > lowest * RISE
            })
        });
        if jumps { Kind::Jumps } else { Kind::Smooth }
    }
}

/// Whole seconds, at least one.
fn whole(seconds: f64) -> f64 {
    seconds.round().max(1.0)
}

/// A number with so many significant digits.
pub(crate) fn digits(value: f64, count: u32) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let places = f64::from(count) - 1.0 - value.log10().floor();
    let factor = 10_f64.powf(places.abs());
    if places >= 0.0 {
        (value * factor).round() / factor
    } else {
        (value / factor).round() * factor
    }
}
