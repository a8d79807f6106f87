//! Dispersion: the difference in load between the replicas of a variant, which the router causes.
//!
//! A router that sends each request to a free replica turns all queues into one. A router that
//! picks at random gives each replica its own queue. So the room for bursts depends on the router.
//!
//! # Model
//!
//! `N` replicas have `x` requests each at the same time. The index of dispersion is the variance of
//! `x` over its mean: 0 if all have the same number, and 1 if chance decides. From its mean `D`
//! follows the number `m` of replicas that are as good as one queue:
//!
//! ```text
//! D = mean of  variance(x) / mean(x)       with an assumed 1/2 that weighs as two minutes
//! m = N ^ (1 - min(D, 1))
//! ```
//!
//! # Domain
//!
//! Times in which a replica has two requests or more on average. With fewer, chance decides behind
//! any router. Times in which more than a fifth of them wait do not count either. Scrapes are not
//! of the same instant, and a queue grows from one scrape to the next. Samples are forgotten to a
//! third in ten minutes.
//!
//! # Source
//!
//! The index of dispersion: Cox and Lewis (1966), *The Statistical Analysis of Series of Events*.
//! That `m` falls with it as a power is an assumption; both ends are exact.

use crate::analyze::foresight::routing::{BUSY, MEMORY};
use crate::analyze::foresight::strides::ReplicaStrides;
use crate::units::{Requests, Seconds};

/// Halfway between a router that finds a free replica and a router that picks at random.
const ASSUMED: f64 = 0.5;

/// The share of requests that may wait. If queues grow, scrapes of two instants differ by the
/// requests that came in between.
const QUEUE: f64 = 0.2;

/// Seconds of measurement that the assumption counts for.
const ASSUMED_FOR: f64 = 120.0;

/// The index of dispersion of requests over replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dispersion {
    /// Seconds of measurement, with recent ones weighted most.
    looked: f64,
    /// The index times seconds.
    sum: f64,
}

// === impl Dispersion ===

impl Dispersion {
    /// Takes in the replicas of a variant, after this much time.
    pub(super) fn look(&mut self, replicas: &[ReplicaStrides<'_>], elapsed: Seconds) {
        let requests: Vec<f64> = replicas.iter().filter_map(ReplicaStrides::in_flight).collect();
        let count = requests.len() as f64;
        let all: f64 = requests.iter().sum();
        let mean = all / count;

        let waiting: f64 =
            replicas.iter().filter_map(|it| it.waiting).map(Requests::requests).sum();
        if requests.len() < 2 || mean < BUSY || waiting > QUEUE * all {
            return;
        }

        let squares: f64 = requests.iter().map(|it| (it - mean).powi(2)).sum();
        let index = squares / (count - 1.0) / mean;

        let seconds = elapsed.seconds();
        let kept = (-seconds / MEMORY).exp();
        self.looked = kept * self.looked + seconds;
        self.sum = kept * self.sum + index * seconds;
    }

    /// The number of these replicas that are as good as one queue.
    pub(super) fn shared(&self, replicas: f64) -> f64 {
        let index = (self.sum + ASSUMED * ASSUMED_FOR) / (self.looked + ASSUMED_FOR);
        replicas.max(1.0).powf(1.0 - index.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{ReplicaKey, ReplicaName, VariantKey, VariantSpec};

    /// A minute of samples of replicas with these requests.
    fn looked_at(dispersion: &mut Dispersion, requests: &[f64]) {
        let variant: VariantKey = VariantSpec::example("a").key;
        let keys: Vec<ReplicaKey> = (0..requests.len())
            .map(|index| ReplicaKey {
                variant: variant.clone(),
                replica: ReplicaName::new(&format!("r{index}")).unwrap(),
                incarnation: None,
            })
            .collect();

        let replicas: Vec<ReplicaStrides<'_>> = keys
            .iter()
            .zip(requests)
            .map(|(replica, &running)| ReplicaStrides {
                replica,
                strides: &[],
                waiting: None,
                running: Requests::new(running),
            })
            .collect();
        (0..60).for_each(|_| dispersion.look(&replicas, Seconds::literal(1)));
    }

    #[test]
    fn replicas_with_equal_queues_share_one_and_replicas_that_differ_as_by_chance_share_none() {
        let mut even = Dispersion::default();
        let mut random = Dispersion::default();
        assert!((even.shared(16.0) - 4.0).abs() < 1e-9, "an assumption at first");

        for _ in 0..30 {
            looked_at(&mut even, &[10.0; 4]);
            // Variances of 10 around 10.
            looked_at(&mut random, &[7.0, 13.0, 8.0, 12.0, 10.0, 14.5, 5.5, 10.0]);
        }

        assert!(even.shared(16.0) > 10.0 && random.shared(16.0) < 1.5, "{even:?} {random:?}");
    }

    #[test]
    fn idle_replicas_and_single_ones_say_nothing() {
        let mut dispersion = Dispersion::default();
        looked_at(&mut dispersion, &[0.0, 3.0]);
        looked_at(&mut dispersion, &[30.0]);
        assert!((dispersion.shared(16.0) - 4.0).abs() < 1e-9, "{dispersion:?}");
    }
}
