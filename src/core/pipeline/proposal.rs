//! The replicas that the load of one variant requires, before the guards and rules of scaling.

use crate::analyze::saturation::SaturationTarget;
use crate::decide::{Reason, Stage, Step};
use crate::fleet::VariantKey;
use crate::pipeline::limits::VariantShare;
use crate::pipeline::sizing::SizingProposal;
use crate::pipeline::sizing::bridged::BridgeTarget;
use crate::units::Replicas;

/// The replicas that the load requires.
pub(super) struct Proposal {
    /// The replicas that the scale target requests.
    pub(super) before: Replicas,
    /// The analysis, followed by the changes that limits, standby and a pool make to it.
    pub(super) steps: Vec<Step>,
}

// === impl Proposal ===

impl From<&SaturationTarget> for Proposal {
    fn from(target: &SaturationTarget) -> Self {
        Self::new(target.before, target.asked, Reason::from(target.outcome.clone()))
    }
}

impl From<&SizingProposal> for Proposal {
    fn from(asked: &SizingProposal) -> Self {
        let SizingProposal { before, after, why, shared, bridged } = asked;
        let mut all = Self::new(*before, *after, Reason::Sized(why.clone()));

        if let Some(VariantShare { after, why }) = shared {
            all.push(Stage::Share, *after, Reason::Limited(why.clone()));
        }
        if let Some(BridgeTarget { after, why }) = bridged.filter(|it| it.after > all.number()) {
            all.push(Stage::Bridge, after, Reason::Bridged(why));
        }
        all
    }
}

impl Proposal {
    /// The result of the analyzers on a variant. If they have none, saturation decides.
    pub(super) fn of(
        key: &VariantKey,
        sized: Option<&SizingProposal>,
        targets: &[SaturationTarget],
    ) -> Option<Self> {
        match sized {
            Some(sized) => Some(Self::from(sized)),
            None => targets.iter().find(|it| it.variant == *key).map(Self::from),
        }
    }

    /// Starts with the result of the analysis.
    fn new(before: Replicas, after: Replicas, reason: Reason) -> Self {
        Self { before, steps: vec![Step { stage: Stage::Analyze, before, after, reason }] }
    }

    /// Returns true if analyzers request at least the desired replicas in effect. Such a result is
    /// usable even while every replica is still starting.
    pub(super) fn holds(&self, in_force: Option<Replicas>) -> bool {
        let is_sized = self.steps.first().is_some_and(|it| matches!(it.reason, Reason::Sized(_)));
        is_sized && self.number() >= in_force.unwrap_or(self.before)
    }

    /// The requested replicas after the last step.
    pub(super) fn number(&self) -> Replicas {
        self.steps.last().map_or(self.before, |step| step.after)
    }

    pub(super) fn push(&mut self, stage: Stage, after: Replicas, reason: Reason) {
        let before = self.number();
        self.steps.push(Step { stage, before, after, reason });
    }
}
