//! What a run came to: how well requests were served, and what the replicas cost.

use crate::demo::scenario::{Scenario, Slo};
use crate::simulate::Micros;
use crate::simulate::replica::Finished;

/// How the requests of one model fared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Service {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were answered in full.
    pub finished: u64,
    /// Of those, the ones that met both objectives.
    pub good: u64,
    /// Requests without a first token although the objective for it has passed.
    pub stuck: u64,
    ttft: Vec<Micros>,
    itl: Vec<Micros>,
}

/// What a fleet came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Each model's requests, in the scenario's order.
    pub models: Vec<Service>,
    /// The time that replicas of each variant existed, starts and drains included.
    pub replica_time: Vec<Micros>,
}

// === impl Service ===

impl Service {
    pub(crate) fn count(&mut self, slo: Slo, finished: &Finished) {
        self.finished += 1;
        let itl = finished.itl_mean();
        let good = finished.first_ever <= slo.ttft && itl.is_none_or(|itl| itl <= slo.itl);
        self.good += u64::from(good);
        self.ttft.push(finished.first_ever);
        self.itl.extend(itl);
    }

    /// The share of judged requests that were served well; `None` when none is judged yet.
    ///
    /// A request is judged when it has finished, or when its first token is overdue. Those that are
    /// still being answered in time belong to neither side.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        let judged = self.finished + self.stuck;
        (judged > 0).then(|| self.good as f64 / judged as f64)
    }

    /// The time to first token that this share of finished requests did not exceed.
    #[must_use]
    pub fn ttft_quantile(&self, share: f64) -> Option<Micros> {
        quantile(&self.ttft, share)
    }

    /// The mean time between tokens that this share of finished requests did not exceed.
    #[must_use]
    pub fn itl_quantile(&self, share: f64) -> Option<Micros> {
        quantile(&self.itl, share)
    }
}

/// The nearest rank.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is a rank, and the cast saturates"
)]
fn quantile(values: &[Micros], share: f64) -> Option<Micros> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

// === impl Score ===

impl Score {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            models: vec![Service::default(); scenario.models.len()],
            replica_time: vec![Micros::ZERO; scenario.variants().count()],
        }
    }

    /// What all replicas cost.
    #[must_use]
    pub fn cost(&self, scenario: &Scenario) -> f64 {
        scenario
            .variants()
            .zip(&self.replica_time)
            .map(|((_, variant), time)| variant.cost.per_hour() * time.seconds() / 3600.0)
            .sum()
    }

    /// The share of all models' judged requests that were served well.
    #[must_use]
    pub fn attainment(&self) -> Option<f64> {
        let judged: u64 = self.models.iter().map(|model| model.finished + model.stuck).sum();
        let good: u64 = self.models.iter().map(|model| model.good).sum();
        (judged > 0).then(|| good as f64 / judged as f64)
    }

    /// Requests of all models that were answered in full.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.models.iter().map(|model| model.finished).sum()
    }
}
