//! Request lengths that change during a world.

use crate::study::file::DriftKeys;
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::numbers::{digits, seconds};
use crate::study::worlds::priors::{Aspect, DRIFT, DRIFT_FROM, DRIFT_MINUTES, DRIFTS, DriftKind};
use plimsoll_core::settings::Written;

/// Points of a drift at which a capacity is computed.
const POINTS: u32 = 16;

/// Lengths that change once, and then stay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LengthDrift {
    pub(crate) name: &'static str,
    /// Factors on lengths at its end.
    pub(crate) last: Factors,
    /// Its start, as a share of the duration.
    begins: f64,
    /// Its length in seconds.
    takes: f64,
}

/// Factors on the lengths of prompts and answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
}

/// A drift in a world of known length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftSpan {
    last: Factors,
    /// Seconds.
    begin: f64,
    end: f64,
}

// === impl LengthDrift ===

impl LengthDrift {
    pub(crate) fn draw(lot: Lot) -> Self {
        let mut random = lot.of(Aspect::Drift);
        let DrawnOption { name, value } = DRIFTS.draw(&mut random);
        let prompt = digits(DRIFT.draw(&mut random), 2);
        let output = digits(DRIFT.draw(&mut random), 2);
        let last = match value {
            DriftKind::None => Factors::NONE,
            DriftKind::Prompts => Factors { prompt, output: 1.0 },
            DriftKind::Answers => Factors { prompt: 1.0, output },
            DriftKind::Both => Factors { prompt, output },
        };

        let begins = DRIFT_FROM.draw(&mut random);
        let takes = (DRIFT_MINUTES.draw(&mut random) * 60.0).round();
        Self { name, last, begins, takes }
    }

    /// The drift in a world of `length` seconds; `None` without a drift.
    pub(crate) fn dated(&self, length: f64) -> Option<DriftSpan> {
        let begin = (length * self.begins).round();
        let dated = DriftSpan { last: self.last, begin, end: begin + self.takes };
        (self.last != Factors::NONE).then_some(dated)
    }
}

// === impl DriftSpan ===

impl DriftSpan {
    /// The factors at a time in seconds.
    pub(crate) fn at(&self, time: f64) -> Factors {
        let share = ((time - self.begin) / (self.end - self.begin)).clamp(0.0, 1.0);
        let Factors { prompt, output } = self.last;
        let [prompt, output] = [prompt, output].map(|last| 1.0 + (last - 1.0) * share);
        Factors { prompt, output }
    }

    /// Times in seconds between which the capacity is nearly linear.
    pub(crate) fn times(&self) -> impl Iterator<Item = f64> {
        let Self { begin, end, .. } = *self;
        (0..=POINTS).map(move |point| begin + (end - begin) * f64::from(point) / f64::from(POINTS))
    }

    /// The drift in the form of a scenario.
    pub(crate) fn written(&self) -> Vec<Option<Written<DriftKeys>>> {
        let points = [self.begin, self.end].map(|time| {
            let Factors { prompt, output } = self.at(time);
            Some(Written::<DriftKeys> {
                at: Some(seconds(time)),
                prompt: Some(prompt),
                output: Some(output),
            })
        });

        points.to_vec()
    }
}

// === impl Factors ===

impl Factors {
    /// Factors without a change.
    pub(crate) const NONE: Self = Self { prompt: 1.0, output: 1.0 };
}
