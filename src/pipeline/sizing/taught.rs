//! What the tuner has been taught of each variant.

use jiff::Timestamp;

use crate::analyze::queueing;
use crate::analyze::tuner::{Latencies, OperatingPoint, Tuner};
use crate::observe::ReplicaObservation;
use crate::pipeline::sizing::loads::queue_shape;
use crate::pipeline::sizing::{Moment, Sizable};
use crate::units::Seconds;

/// A tuner, and when it last learned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taught {
    pub(crate) tuner: Tuner,
    pub(crate) at: Option<Timestamp>,
}

impl Taught {
    /// Learns from what the replicas did, once in half a window: what is seen a second later is
    /// nearly the same, and would count as if it were not.
    pub(crate) fn learn(&mut self, moment: Moment<'_>, member: &Sizable<'_>) {
        let Moment { now, window, .. } = moment;
        let since = self.at.and_then(|at| Seconds::from_span(now.duration_since(at)));
        if since.is_some_and(|since| since.seconds() < window.seconds() / 2.0) {
            return;
        }
        let mut learned = false;
        for replica in member.measured() {
            let Some(point) = operating_point(replica) else { continue };
            let started = replica.work.and_then(|work| work.started);
            let served = started.and_then(|at| Seconds::from_span(now.duration_since(at)));
            let _lesson = self.tuner.learn(served, &point);
            learned = true;
        }
        if learned {
            self.at = Some(now);
        }
    }
}

fn operating_point(replica: &ReplicaObservation) -> Option<OperatingPoint> {
    let latencies = Latencies { ttft: replica.ttft_mean?, itl: replica.itl_mean? };
    let shape = queue_shape(replica)?;
    OperatingPoint::new(replica.arrivals?, shape, queueing::BATCH_DEFAULT, latencies)
}
