//! The saved state of a tuner.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::{MeanLengths, MeanRequest};
use crate::analyze::tuner::point::{Latencies, OperatingPoint};
use crate::units::{Fraction, RequestRate};

/// The saved state of a tuner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedTuner {
    /// The filter, once there is one.
    pub filter: Option<SavedFilter>,
    /// The points of the window, oldest first. Without them the filter continues as it is. A
    /// restart of the filter, or the separation of prompts and answers, then needs new points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<SavedPoint>,
    /// The number of accepted observations.
    pub accepted: u32,
    /// The number of rejected observations in a row.
    pub rejected: u32,
}

/// A filter, in natural logarithms of seconds and of seconds per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedFilter {
    /// `alpha`, `beta` and `gamma`.
    pub state: [f64; 3],
    /// Their values when the filter started, around which they are bounded.
    pub began: [f64; 3],
    /// The covariance, row by row. It is symmetric except for its last digits, which also count.
    pub covariance: [[f64; 3]; 3],
    /// The coefficient of answers as a multiple of the coefficient of prompts, if they are
    /// separate.
    pub split: Option<f64>,
}

/// One operating point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPoint {
    /// Requests per second.
    pub arrival: RequestRate,
    /// Tokens of a prompt, and of an answer.
    pub lengths: MeanLengths,
    /// The standard deviation of prompt lengths, as a share of the mean.
    pub input_variation: Fraction,
    /// The places in the batch.
    pub batch: NonZeroU32,
    /// The mean latencies.
    pub latencies: Latencies,
    /// The number of observations that the point represents.
    pub count: f64,
    /// The filter's agreement with the point.
    pub agreed: FilterAgreement,
}

/// The filter's agreement with a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterAgreement {
    /// The filter has accepted an observation since the point was added.
    Yes,
    /// The filter has not accepted an observation since the point was added.
    NotYet,
}

impl SavedPoint {
    pub(super) fn of(point: &OperatingPoint, count: f64, agreed: FilterAgreement) -> Self {
        let OperatingPoint { arrival, shape, batch, latencies } = *point;
        let lengths = MeanLengths { input: shape.input(), output: shape.output() };
        let input_variation = shape.input_variation();
        Self { arrival, lengths, input_variation, batch, latencies, count, agreed }
    }

    pub(super) fn point(&self) -> Option<OperatingPoint> {
        let Self { arrival, lengths, input_variation, batch, latencies, count: _, agreed: _ } =
            *self;
        let shape = MeanRequest::new(lengths)?.with_input_variation(input_variation);
        OperatingPoint::new(arrival, shape, batch, latencies)
    }
}
