//! One tick: everything that its stages may read.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decide::Reason;
use crate::decide::enforce;
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::{Inputs, Observation, Scale};
use crate::pipeline::group::{FleetGroups, Member, VariantGroup, members};
use crate::pipeline::in_force::{DecisionInForce, DecisionsInForce};
use crate::pipeline::policy::Policy;
use crate::pipeline::proposal::ProposalBasis;
use crate::units::{Replicas, Seconds};

/// The inputs of every stage of a tick.
pub(crate) struct Tick<'a> {
    pub(crate) now: Timestamp,
    pub(crate) inputs: &'a Inputs,
    pub(crate) policy: &'a Policy,
    /// The decisions that were in effect before this tick.
    pub(crate) in_force: &'a DecisionsInForce,
    /// Every variant. The index is its [place](Member::place).
    pub(crate) members: Vec<Member<'a>>,
    /// The same variants by model and role.
    pub(crate) groups: Vec<VariantGroup<'a>>,
}

// === impl Tick ===

impl<'a> Tick<'a> {
    pub(crate) fn new(
        now: Timestamp,
        inputs: &'a Inputs,
        policy: &'a Policy,
        in_force: &'a DecisionsInForce,
        observations: &'a BTreeMap<VariantKey, Observation>,
        groups: &'a FleetGroups,
    ) -> Self {
        let members = members(&inputs.fleet, observations);
        let groups = groups.of(&members);
        Self { now, inputs, policy, in_force, members, groups }
    }

    /// The groups of each model.
    pub(crate) fn models(&self) -> impl Iterator<Item = (&ModelKey, &[VariantGroup<'a>])> {
        self.groups
            .chunk_by(|a, b| a.model == b.model)
            .filter_map(|groups| Some((groups.first()?.model, groups)))
    }

    /// The decision in effect of a variant.
    pub(crate) fn in_force(&self, member: &Member<'_>) -> Option<&'a DecisionInForce> {
        self.in_force.get_at(member.place, &member.spec.key)
    }

    /// The desired replicas in effect of a variant.
    pub(crate) fn desired(&self, member: &Member<'_>) -> Option<Replicas> {
        self.in_force(member).map(|in_force| in_force.desired)
    }

    /// Returns true if no orchestrator counts the replicas of a variant, so that their answers do.
    pub(crate) fn is_counted_by_answers(&self, member: &Member<'_>) -> bool {
        let listing = self.inputs.listings.get(&member.spec.key);
        listing.is_some_and(|listing| listing.scale == Scale::Targets)
    }

    /// The replicas among these pending ones that are starting. A listed target that has never
    /// answered may be no replica, and nothing shows that it starts.
    pub(crate) fn starting(&self, member: &Member<'_>, pending: Replicas) -> Replicas {
        if self.is_counted_by_answers(member) { Replicas::ZERO } else { pending }
    }

    /// The reason why the group has not been measured for long enough to scale down; `None` if it
    /// has.
    ///
    /// Peaks must come from the same replicas. Forecast demand is known even if replicas come and
    /// go all the time, as they do on spot nodes.
    pub(crate) fn settling(
        &self,
        group: &VariantGroup<'_>,
        basis: ProposalBasis,
    ) -> Option<Reason> {
        group
            .with_replicas()
            .filter_map(|member| member.observation.measured_since)
            .filter_map(|it| enforce::remaining(self.now, basis.since(it), self.policy.window))
            .reduce(Seconds::max)
            .map(|remaining| Reason::Settling { remaining })
    }
}
