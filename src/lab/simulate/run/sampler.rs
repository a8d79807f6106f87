//! The series of a run so far.

use crate::simulate::score::{FleetSample, QuantileHistogram};

/// The series so far.
pub(crate) struct Sampler {
    pub(crate) samples: Vec<FleetSample>,
    /// The outcome of each model's requests at the last sample.
    pub(super) models: Vec<Then>,
}

#[derive(Clone, Default)]
pub(super) struct Then {
    pub(super) arrived: u64,
    pub(super) judged: u64,
    pub(super) good: u64,
    pub(super) ttft: QuantileHistogram,
    pub(super) itl: QuantileHistogram,
}

// === impl Sampler ===

impl Sampler {
    pub(crate) fn new(models: usize) -> Self {
        Self { samples: Vec::new(), models: vec![Then::default(); models] }
    }
}
