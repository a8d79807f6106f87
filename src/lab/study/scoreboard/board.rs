//! The data of the scoreboard: workloads with their runs, and the scores of policies on them.

use crate::study::ablation::AblationChange;
use crate::study::file::Kind;
use crate::study::recorded::Trace;
use crate::study::results::{LeftOut, RunResult, mean};
use crate::study::scoreboard::score::Score;

/// The simulated workloads, policies and changes.
pub(super) struct Scoreboard {
    pub(super) policies: Vec<String>,
    pub(super) workloads: Vec<Workload>,
    /// The changes of Plimsoll's own policy, one at a time.
    pub(super) changes: Vec<AblationChange>,
    /// Scenarios that were left out, each with the reason.
    pub(super) left_out: Vec<(String, String)>,
    /// The number of seeds per scenario.
    pub(super) seeds: u32,
}

/// One scenario with one combination of its sweep's values.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) kind: Option<Kind>,
    pub(super) traces: Vec<Trace>,
    pub(super) length: f64,
    /// The runs of all policies, with all seeds.
    pub(super) runs: Vec<RunResult>,
    /// The runs that are impossible.
    pub(super) left_out: Vec<LeftOut>,
    /// The runs of Plimsoll with each of the changes, with all seeds.
    pub(super) changed: Vec<RunResult>,
}

// === impl Workload ===

impl Workload {
    /// The score of a policy; `None` if it was interrupted before it began, or if a run with one of
    /// the seeds is impossible.
    pub(super) fn of(&self, policy: &str) -> Option<Score> {
        if self.left_out.iter().any(|run| run.policy == policy) {
            return None;
        }
        let runs: Vec<_> = self.runs.iter().filter(|run| run.policy == policy).collect();
        Score::of(&runs)
    }

    /// The score of a change; `None` if it was interrupted before it began.
    pub(super) fn with(&self, change: &AblationChange) -> Option<Score> {
        let runs: Vec<_> = self.changed.iter().filter(|run| change.is_of(run)).collect();
        Score::of(&runs)
    }

    /// The cost as a multiple of the cost of the clairvoyant schedule.
    pub(super) fn ratio(&self, score: Option<&Score>) -> Option<f64> {
        self.ratio_to("oracle", score)
    }

    /// The cost as a multiple of another policy's cost.
    pub(super) fn ratio_to(&self, other: &str, score: Option<&Score>) -> Option<f64> {
        let base = self.of(other).filter(|it| it.complete && it.cost > 0.0)?;
        score.filter(|it| it.complete).map(|it| it.cost / base.cost)
    }
}

// === impl Scoreboard ===

impl Scoreboard {
    /// Returns true if a policy is compared.
    pub(super) fn plays(&self, policy: &str) -> bool {
        self.policies.iter().any(|it| it == policy)
    }

    /// The means of the cost ratio and of the share of good requests over all workloads.
    pub(super) fn means(
        &self,
        of: impl Fn(&Workload) -> Option<Score>,
    ) -> (Option<f64>, Option<f64>) {
        let ratios = self.workloads.iter().filter_map(|it| it.ratio(of(it).as_ref()));
        let shares = self.workloads.iter().filter_map(|it| of(it)?.within_slo);
        (mean(ratios), mean(shares))
    }
}
