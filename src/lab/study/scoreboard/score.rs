//! The result of a policy on one workload: the means over all seeds.

use crate::study::results::{RunResult, mean};

/// The result of a policy on one workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Score {
    /// The share of requests within their SLO, from 0 to 1; `None` if no request was judged.
    pub(crate) within_slo: Option<f64>,
    /// The share of requests whose first token came in time.
    pub(crate) within_ttft: Option<f64>,
    /// The share of requests whose tokens followed each other in time.
    pub(crate) within_itl: Option<f64>,
    /// The share in the worst minute with any seed.
    pub(crate) worst_minute: Option<f64>,
    /// Hours of all replicas.
    pub(crate) replica_hours: f64,
    /// The cost of the replicas.
    pub(crate) cost: f64,
    /// Changes of the desired replicas.
    pub(crate) actions: f64,
    /// Requests that arrived.
    pub(crate) arrived: f64,
    /// True if no run was interrupted.
    pub(crate) complete: bool,
}

// === impl Score ===

impl Score {
    /// The score of runs that differ only in their seed; `None` without runs.
    pub(crate) fn of(runs: &[&RunResult]) -> Option<Self> {
        let arrived =
            runs.iter().map(|run| run.models.iter().map(|model| model.arrived as f64).sum());

        Some(Self {
            within_slo: mean(runs.iter().filter_map(|run| run.within_slo)),
            within_ttft: mean(runs.iter().filter_map(|run| run.within_ttft)),
            within_itl: mean(runs.iter().filter_map(|run| run.within_itl)),
            worst_minute: runs.iter().filter_map(|run| run.worst_minute()).reduce(f64::min),
            replica_hours: mean(runs.iter().map(|run| run.replica_hours))?,
            cost: mean(runs.iter().map(|run| run.cost))?,
            actions: mean(runs.iter().map(|run| f64::from(run.actions)))?,
            arrived: mean(arrived)?,
            complete: runs.iter().all(|run| run.complete),
        })
    }
}
