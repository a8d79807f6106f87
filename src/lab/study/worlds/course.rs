//! Arrivals over time: the shape of a rate, and the class of its need: smooth or with jumps.

use std::f64::consts::TAU;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::workload::rate::Rate;
use crate::study::file::Kind;
use crate::study::worlds::capacity::Capacity;
use crate::study::worlds::numbers::digits;
use crate::study::worlds::priors::{
    ArrivalShape, COMPRESSION, DAY_HOURS, FLASH, FLASH_EVERY_MINUTES, FLASH_MINUTES, HALF_MINUTES,
    NIGHT, RAMP, RAMP_MINUTES, STEP,
};
use crate::study::worlds::recorded::Recording;

/// Points per day.
const DAY_POINTS: u32 = 48;

/// The number of steps in a world with steps.
const STEPS: std::ops::RangeInclusive<u32> = 1..=3;

/// The number of instants over which a mean and a peak are computed.
const INSTANTS: u32 = 4000;

/// Seconds between two instants that are checked for a rise.
const LOOK: f64 = 10.0;

/// The factor by which the need of a smooth world may rise within one start.
const RISE: f64 = 1.25;

/// A relative rate over time.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Seconds and rates; two points of one time are a step.
    pub(crate) points: Vec<(f64, f64)>,
    /// Seconds after which the points repeat.
    pub(crate) period: Option<f64>,
}

/// A need over time, in replicas.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    /// Rates of requests, each with the capacity of a replica that serves only these requests.
    parts: Vec<(Rate, Capacity)>,
    /// Seconds.
    length: f64,
}

impl Course {
    /// Draws the course of a shape over `length` seconds.
    pub(crate) fn draw(shape: ArrivalShape, length: f64, random: &mut Pcg64) -> Self {
        match shape {
            ArrivalShape::Recorded(recording) => Self::recorded(recording, random),
            ArrivalShape::Diurnal => Self::diurnal(random),
            ArrivalShape::Flat => Self { points: vec![(0.0, 1.0)], period: None },
            ArrivalShape::Ramp => Self::ramp(length, random),
            ArrivalShape::Steps => Self::steps(length, random),
            ArrivalShape::Square => Self::square(random),
            ArrivalShape::Flash => Self::flash(random),
        }
    }

    /// A recording that starts at a random point and repeats.
    fn recorded(recording: &Recording, random: &mut Pcg64) -> Self {
        let mut rates = recording.rates();
        let first = random.random_range(0..rates.len());
        rates.rotate_left(first);

        let faster = if recording.compressed { COMPRESSION.draw(random) } else { 1.0 };
        let step = whole(recording.step / faster);
        let points: Vec<(f64, f64)> =
            (0_u32..).zip(rates).map(|(at, rate)| (f64::from(at) * step, rate)).collect();
        let period = step * points.len() as f64;
        Self { points, period: Some(period) }
    }

    /// A cosine that starts at a random time of the day.
    fn diurnal(random: &mut Pcg64) -> Self {
        let crest = NIGHT.draw(random);
        let step = whole(DAY_HOURS.draw(random) * 3600.0 / f64::from(DAY_POINTS));
        let begin = random.random::<f64>();
        let points = (0..DAY_POINTS).map(|at| {
            let turn = f64::from(at) / f64::from(DAY_POINTS) + begin;
            (f64::from(at) * step, 1.0 + (crest - 1.0) * (1.0 - (TAU * turn).cos()) / 2.0)
        });

        Self { points: points.collect(), period: Some(step * f64::from(DAY_POINTS)) }
    }

    /// A launch: from one rate to a higher one, which stays.
    fn ramp(length: f64, random: &mut Pcg64) -> Self {
        let higher = RAMP.draw(random);
        let minutes = RAMP_MINUTES.draw(random);
        let begin = whole(length * (0.1 + 0.3 * random.random::<f64>()));
        let end = begin + whole(minutes * 60.0);
        Self { points: vec![(0.0, 1.0), (begin, 1.0), (end, higher)], period: None }
    }

    /// A step function of rates, each a multiple of the first.
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
        let points = self.points.iter().map(|(at, rate)| (*at, digits(rate * factor, 4)));
        Self { points: points.collect(), ..*self }
    }

    /// The same course without the points after `length` seconds.
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

    /// Adds more requests to the need.
    pub(crate) fn and(mut self, course: &Course, capacity: Capacity) -> Self {
        self.parts.push((course.rate(), capacity));
        self
    }

    /// The needed replicas at a time in seconds.
    pub(crate) fn at(&self, time: f64) -> f64 {
        self.parts.iter().map(|(rate, capacity)| rate.of(time) / capacity.at(time)).sum()
    }

    /// The mean need and the highest need.
    pub(crate) fn mean_and_peak(&self) -> (f64, f64) {
        let needs: Vec<f64> = (0..INSTANTS)
            .map(|step| self.at((f64::from(step) + 0.5) / f64::from(INSTANTS) * self.length))
            .collect();
        let mean = needs.iter().sum::<f64>() / f64::from(INSTANTS);
        (mean, needs.into_iter().fold(0.0, f64::max))
    }

    /// Requests per second that arrive at a time in seconds.
    pub(crate) fn rate_at(&self, time: f64) -> f64 {
        self.parts.iter().map(|(rate, _)| rate.of(time)).sum()
    }

    /// The capacity of one replica at a time in seconds, in requests per second of the mix that
    /// arrives then; `None` without arrivals.
    pub(crate) fn capacity_at(&self, time: f64) -> Option<f64> {
        let need = self.at(time);
        (need > 0.0).then(|| self.rate_at(time) / need)
    }

    /// Smooth if the need never rises by more than a quarter within one start. A need below one
    /// replica counts as one.
    pub(crate) fn kind(&self, startup: f64) -> Kind {
        let needs: Vec<f64> = looks(self.length).map(|time| self.at(time).max(1.0)).collect();
        let within = looks(startup).count() + 1;

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

/// The times from 0 on at which a need is looked at, before the end.
fn looks(end: f64) -> impl Iterator<Item = f64> {
    (0_u32..).map(|step| f64::from(step) * LOOK).take_while(move |it| *it < end)
}

/// Whole seconds, at least one.
fn whole(seconds: f64) -> f64 {
    seconds.round().max(1.0)
}
