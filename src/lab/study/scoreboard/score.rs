//! What a policy came to on one workload: the means over all seeds.

use crate::study::results::{RunResult, mean};

/// What a policy came to on one workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// The share of requests within their SLO, from 0 to 1; `None` where no request was judged.
    pub(crate) within_slo: Option<f64>,
    /// That of requests whose first token came in time.
    pub(crate) within_ttft: Option<f64>,
    /// That of requests whose tokens followed each other in time.
    pub(crate) within_itl: Option<f64>,
    /// That of the worst minute with any seed.
    pub(crate) worst_minute: Option<f64>,
    /// Hours of all replicas.
    pub(crate) replica_hours: f64,
    /// What they cost.
    pub(crate) cost: f64,
    /// Changes of the number that is asked for.
    pub(crate) actions: f64,
    /// Requests that arrived.
    pub(crate) arrived: f64,
    /// Whether no run was interrupted.
    pub(crate) complete: bool,
}

// === impl Score ===

impl Score {
    /// What runs that differ in their seed came to; `None` where there are none.
    pub(crate) fn of(runs: &[&RunResult]) -> Option<Self> {
        let arrived = |run: &&RunResult| run.models.iter().map(|model| model.arrived as f64).sum();
        let each = || runs.iter();
        Some(Self {
            within_slo: mean(each().filter_map(|run| run.within_slo)),
            within_ttft: mean(each().filter_map(|run| run.within_ttft)),
            within_itl: mean(each().filter_map(|run| run.within_itl)),
            worst_minute: each().filter_map(|run| run.worst_minute()).reduce(f64::min),
            replica_hours: mean(each().map(|run| run.replica_hours))?,
            cost: mean(each().map(|run| run.cost))?,
            actions: mean(each().map(|run| f64::from(run.actions)))?,
            arrived: mean(each().map(arrived))?,
            complete: each().all(|run| run.complete),
        })
    }
}
