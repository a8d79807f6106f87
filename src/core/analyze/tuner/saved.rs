//! What a tuner says to whoever goes on with it.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::{Lengths, Shape};
use crate::analyze::tuner::{Apart, Filter, Latencies, OperatingPoint, Split, Tuner, Window};
use crate::units::{Fraction, RequestRate};

/// What a tuner says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedTuner {
    /// Its filter, once it has one.
    pub filter: Option<SavedFilter>,
    /// The points of its window, the oldest first. Without them the filter goes on as it is, and
    /// what starts it anew or tells prompts from answers needs new ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<SavedPoint>,
    /// Observations that it has accepted.
    pub accepted: u32,
    /// Observations in a row that it has rejected.
    pub rejected: u32,
}

/// A filter, in natural logarithms of seconds and of seconds per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFilter {
    /// `alpha`, `beta` and `gamma`.
    pub state: [f64; 3],
    /// Where they were when the filter began, around which they are bounded.
    pub began: [f64; 3],
    /// The covariance, row by row. It is symmetric but for its last digits, and those count, too.
    pub covariance: [[f64; 3]; 3],
    /// The coefficient of answers as a multiple of that of prompts, where they are apart.
    pub split: Option<f64>,
}

/// One operating point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPoint {
    /// Requests a second.
    pub arrival: RequestRate,
    /// Tokens of a prompt, and of an answer.
    pub lengths: Lengths,
    /// The standard deviation of the length of prompts, as a share of the mean.
    pub input_variation: Fraction,
    /// The places in the batch.
    pub batch: NonZeroU32,
    /// How long requests took.
    pub latencies: Latencies,
    /// How many observations it stands for.
    pub count: f64,
    /// Whether the filter has agreed with it.
    pub agreed: Agreed,
}

/// Whether the filter has agreed with a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreed {
    /// It has.
    Yes,
    /// It has not yet.
    NotYet,
}

impl Tuner {
    /// What it says.
    #[must_use]
    pub fn save(&self) -> SavedTuner {
        let Self { filter, window, apart, accepted, rejected } = self;
        let split = match apart {
            Apart::Together => None,
            Apart::Separate(split) => Some(split.decode_over_prefill),
        };
        SavedTuner {
            filter: filter.as_ref().map(|filter| filter.save(split)),
            points: window.save(),
            accepted: *accepted,
            rejected: *rejected,
        }
    }

    /// The tuner that says this; `None` where it cannot be one.
    #[must_use]
    pub fn restore(saved: &SavedTuner) -> Option<Self> {
        let SavedTuner { filter, points, accepted, rejected } = saved;
        let window = Window::restore(points)?;
        let split = filter.as_ref().and_then(|filter| filter.split);
        let apart = match split {
            Some(ratio) if ratio.is_finite() && ratio > 0.0 => {
                Apart::Separate(Split { decode_over_prefill: ratio })
            }
            Some(_) => return None,
            None => Apart::Together,
        };
        let filter = match filter {
            Some(saved) => Some(Filter::from_saved(saved, apart)?),
            None => None,
        };
        Some(Self { filter, window, apart, accepted: *accepted, rejected: *rejected })
    }
}

impl SavedPoint {
    pub(super) fn of(point: &OperatingPoint, count: f64, agreed: Agreed) -> Self {
        let OperatingPoint { arrival, shape, batch, latencies } = *point;
        let lengths = Lengths { input: shape.input(), output: shape.output() };
        let input_variation = shape.input_variation();
        Self { arrival, lengths, input_variation, batch, latencies, count, agreed }
    }

    pub(super) fn point(&self) -> Option<OperatingPoint> {
        let Self { arrival, lengths, input_variation, batch, latencies, count: _, agreed: _ } =
            *self;
        let shape = Shape::new(lengths)?.with_input_variation(input_variation);
        OperatingPoint::new(arrival, shape, batch, latencies)
    }
}
