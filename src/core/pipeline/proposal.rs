//! The replicas that the load of one variant requires, before the guards and rules of scaling.

use std::sync::Arc;

use jiff::Timestamp;

use crate::decide::sized::{AdmissibleRate, SizingValues};
use crate::decide::{Reason, Stage, Step};
use crate::observe::MeasuredSince;
use crate::units::Replicas;

/// The replicas that the load of a variant requires.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proposal {
    /// The replicas that the scale target requests, without the surplus.
    pub(crate) before: Replicas,
    /// The analysis, followed by the changes that limits, standby and a pool make to it.
    pub(crate) steps: Vec<Step>,
    /// The data that it rests on.
    pub(crate) basis: ProposalBasis,
    /// The request rate that the serving replicas can take in time; `None` if unknown.
    pub(crate) admissible: Option<AdmissibleRate>,
    /// The result of the analyzers; `None` for every other analysis.
    pub(crate) sizing: Option<Arc<SizingValues>>,
}

/// The data behind a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProposalBasis {
    /// The highest load of the same replicas at one time.
    Peaks,
    /// The forecast demand, derived from the counters of any replicas.
    Need,
    /// The copies that objects of the cluster declare. No replica is measured.
    Copies,
}

/// The proposal for each variant, by place; `None` if no analyzer has one.
pub(crate) type Proposals = Vec<Option<Proposal>>;

// === impl Proposal ===

impl Proposal {
    /// Starts with the result of the analysis.
    pub(crate) fn new(
        before: Replicas,
        after: Replicas,
        reason: Reason,
        basis: ProposalBasis,
    ) -> Self {
        let steps = vec![Step { stage: Stage::Analyze, before, after, reason }];
        Self { before, steps, basis, admissible: None, sizing: None }
    }

    /// Returns true if analyzers request at least the desired replicas in effect. Such a result is
    /// usable even while every replica is still starting.
    pub(crate) fn holds(&self, in_force: Option<Replicas>) -> bool {
        self.sizing.is_some() && self.desired() >= in_force.unwrap_or(self.before)
    }

    /// The replicas after the last step.
    pub(crate) fn desired(&self) -> Replicas {
        self.steps.last().map_or(self.before, |step| step.after)
    }

    /// Adds a step.
    pub(crate) fn push(&mut self, stage: Stage, after: Replicas, reason: Reason) {
        let before = self.desired();
        self.steps.push(Step { stage, before, after, reason });
    }
}

// === impl ProposalBasis ===

impl ProposalBasis {
    /// The time since which the data has been measured.
    pub(crate) const fn since(self, measured: MeasuredSince) -> Timestamp {
        match self {
            Self::Peaks => measured.same,
            Self::Need | Self::Copies => measured.any,
        }
    }
}

/// The result of the analyzers on each variant. If they have none, saturation decides, such as
/// while foresight has learned nothing.
pub(crate) fn preferred(sized: Proposals, saturation: Proposals) -> Proposals {
    sized.into_iter().zip(saturation).map(|(sized, other)| sized.or(other)).collect()
}
