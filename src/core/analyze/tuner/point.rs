//! Operating points: the load and the latencies of a replica over a period.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::{Coefficients, MeanRequest, QueueingModel, ReplicaRoom};
use crate::units::{RequestRate, Requests, Seconds};

/// The share of batch places in use from which a point can't be learned from. TTFT is then
/// dominated by the queue, which no stationary model predicts.
const FULL_SHARE: f64 = 0.9;

/// The queue length in the model of an observation, per place in the batch.
pub(super) const QUEUE_PER_PLACE: u32 = 10;

/// The load and the latencies of one replica over a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingPoint {
    pub(super) arrival: RequestRate,
    pub(super) shape: MeanRequest,
    pub(super) batch: NonZeroU32,
    pub(super) latencies: Latencies,
}

/// The latencies of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// The mean time to first token.
    pub ttft: Seconds,
    /// The mean time between tokens.
    pub itl: Seconds,
}

// === impl OperatingPoint ===

impl OperatingPoint {
    /// A point with arrivals and nonzero latencies. `None` without them, because such a point
    /// contains no information.
    #[must_use]
    pub fn new(
        arrival: RequestRate,
        shape: MeanRequest,
        batch: NonZeroU32,
        latencies: Latencies,
    ) -> Option<Self> {
        let Latencies { ttft, itl } = latencies;
        (arrival > RequestRate::ZERO
            && shape.input().tokens() > 0.0
            && ttft > Seconds::ZERO
            && itl > Seconds::ZERO)
            .then_some(Self { arrival, shape, batch, latencies })
    }

    /// The requests that shared an iteration, by Little's law: arrivals times the time that each
    /// request was present. Waiting requests are included.
    #[must_use]
    pub fn present(&self) -> Requests {
        let Latencies { ttft, itl } = self.latencies;
        let there = ttft.seconds() + self.shape.output().tokens() * itl.seconds();
        Requests::new(self.arrival.requests_per_second() * there).unwrap_or_default()
    }

    /// The latencies that the queueing model predicts at this point with these coefficients.
    pub(super) fn predict(&self, coefficients: Coefficients) -> Option<Latencies> {
        let queue = self.batch.get().saturating_mul(QUEUE_PER_PLACE);
        let room = ReplicaRoom { batch: self.batch, queue };
        let at = QueueingModel::new(coefficients, self.shape, room).at(self.arrival).ok()?;
        Some(Latencies { ttft: at.ttft, itl: at.itl })
    }

    pub(super) fn is_full(&self) -> bool {
        self.present().requests() >= FULL_SHARE * f64::from(self.batch.get())
    }
}
