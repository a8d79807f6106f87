//! The guards against scaling down on incomplete data, and the decision on each proposal.
//!
//! Desired replicas are not lowered while a ready replica is silent ([`Member::missing`]), while
//! the list of replicas is missing or too old, while a wake signal is unreported, or before a whole
//! window was measured.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decide::{Basis, Decision, NoData, NoDecision, Reason, Stage, Step};
use crate::fleet::{ModelKey, VariantKey};
use crate::observe::hosting::HostedModels;
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::in_force::DecisionInForce;
use crate::pipeline::policy::LISTING_STALE;
use crate::pipeline::pools;
use crate::pipeline::pools::policy::PoolSource;
use crate::pipeline::proposal::{Proposal, ProposalBasis, Proposals};
use crate::pipeline::sizing::Sizer;
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, Seconds};

/// The decisions after the guards.
#[derive(Debug)]
pub(crate) struct GuardedDecisions {
    /// In the order of the variants.
    pub(crate) decisions: Vec<Decision>,
    /// The reason why a variant has no decision.
    pub(crate) undecided: BTreeMap<VariantKey, NoDecision>,
}

/// The guards of one group.
struct GroupGuards {
    inputs_at: Timestamp,
    /// The reason why data is incomplete.
    incomplete: Option<Reason>,
    /// The reason why the queue in front of the replicas is unknown.
    unreported: Option<Reason>,
    /// The reason why peaks have not been measured for long enough.
    settling_peaks: Option<Reason>,
    /// The reason why demand has not been measured for long enough.
    settling_need: Option<Reason>,
}

/// Decides on the proposal of each variant. Guards block scale-downs on incomplete data.
pub(crate) fn run(tick: &Tick<'_>, sizer: &Sizer, mut proposals: Proposals) -> GuardedDecisions {
    let mut decisions = vec![None; tick.members.len()];
    let mut undecided = BTreeMap::new();
    for group in &tick.groups {
        let guards = GroupGuards::of(tick, sizer, group);
        for member in &group.members {
            let proposal = proposals[member.place].take();
            match decide(tick, group.model, &guards, member, proposal) {
                Ok(decision) => decisions[member.place] = Some(decision),
                Err(why) => {
                    undecided.insert(member.spec.key.clone(), NoDecision(why));
                }
            }
        }
    }

    GuardedDecisions { decisions: decisions.into_iter().flatten().collect(), undecided }
}

/// The reason why the group must not scale down because its data is incomplete, if there is one.
pub(crate) fn incomplete(now: Timestamp, group: &VariantGroup<'_>) -> Option<Reason> {
    if let Some(member) = group.members.iter().find(|member| member.is_unlisted()) {
        return Some(Reason::Unlisted { variant: member.spec.key.variant.clone() });
    }

    let age = group
        .with_replicas()
        .filter_map(|member| member.observation.listed_at)
        .filter_map(|at| Seconds::from_span(now.duration_since(at)))
        .fold(Seconds::ZERO, Seconds::max);
    if age.seconds() > LISTING_STALE {
        return Some(Reason::Outdated { age });
    }

    let missing: Replicas = group.with_replicas().map(Member::missing).sum();
    (missing > Replicas::ZERO).then_some(Reason::Incomplete { missing })
}

// === impl GroupGuards ===

impl GroupGuards {
    fn of(tick: &Tick<'_>, sizer: &Sizer, group: &VariantGroup<'_>) -> Self {
        Self {
            inputs_at: group.inputs_at(tick.now),
            incomplete: incomplete(tick.now, group),
            unreported: sizer.unreported(tick, group),
            settling_peaks: tick.settling(group, ProposalBasis::Peaks),
            settling_need: tick.settling(group, ProposalBasis::Need),
        }
    }

    /// The reasons that block a scale-down to a proposal, entirely or in part.
    fn reasons(&self, basis: ProposalBasis) -> impl Iterator<Item = &Reason> {
        let of_basis = match basis {
            ProposalBasis::Peaks => [&self.incomplete, &self.unreported, &self.settling_peaks],
            ProposalBasis::Need => [&self.incomplete, &self.unreported, &self.settling_need],
            ProposalBasis::Copies => [&None; 3],
        };

        of_basis.into_iter().flatten()
    }
}

/// The replicas that a guard keeps; `None` if it keeps all in effect. If the proposal rests on
/// forecast demand, replicas that are not reporting are kept in addition to it. All others may go.
fn kept(proposal: &Proposal, reason: &Reason, silent: Replicas) -> Option<Replicas> {
    let is_need = proposal.basis == ProposalBasis::Need;
    let is_incomplete = matches!(reason, Reason::Incomplete { .. });
    (is_need && is_incomplete).then(|| proposal.desired() + silent)
}

/// Decides on the replicas that the load requires. Without usable data, holds the desired replicas
/// in effect.
fn decide(
    tick: &Tick<'_>,
    model: &ModelKey,
    guards: &GroupGuards,
    member: &Member<'_>,
    proposal: Option<Proposal>,
) -> Result<Decision, NoData> {
    let in_force = tick.in_force(member);
    let models = models_of(tick, member);
    let usable = match models {
        MemberModels::NotHosted => usable(member, in_force, proposal),
        MemberModels::Unknown => Err(member.unseen().unwrap_or(NoData::NoModels)),
        MemberModels::Known(_) => {
            let known = proposal.ok_or(NoData::NoModels);
            member.unseen().map_or(known, Err)
        }
    };
    let fresh_at = match models {
        MemberModels::Known(known) => known.as_of,
        MemberModels::NotHosted | MemberModels::Unknown => guards.inputs_at,
    };

    let admissible = usable.as_ref().ok().and_then(|proposal| proposal.admissible);
    let sizing = usable.as_ref().ok().and_then(|proposal| proposal.sizing.clone());
    let (steps, inputs_at, basis) = match (usable, in_force) {
        (Ok(proposal), in_force) => {
            let steps = guarded(guards, member, in_force, proposal);
            (steps, fresh_at, Basis::Fresh)
        }
        (Err(why), Some(in_force)) => {
            (vec![hold(member, in_force, why)], in_force.inputs_at, Basis::Held)
        }
        (Err(why), None) => return Err(why),
    };

    Ok(Decision {
        variant: member.spec.key.clone(),
        model: model.clone(),
        current: member.observation.current,
        bounds: member.bounds(in_force.map(|in_force| in_force.desired)),
        steps,
        inputs_at,
        basis,
        admissible,
        sizing,
    })
}

/// The models of a member, if it is a multi-model server.
#[derive(Clone, Copy)]
enum MemberModels<'a> {
    /// It is none.
    NotHosted,
    /// They are not known, or not recent.
    Unknown,
    /// They are known.
    Known(&'a HostedModels),
}

/// Returns the models of a member. Nothing of a multi-model server is measured.
fn models_of<'a>(tick: &'a Tick<'_>, member: &Member<'_>) -> MemberModels<'a> {
    let key = &member.spec.key;
    if tick.policy.pools.get(key).is_none_or(|pool| pool.source != PoolSource::Seldon) {
        return MemberModels::NotHosted;
    }

    let models = pools::hosted::recent(tick.now, tick.inputs.hosting.get(key));
    models.map_or(MemberModels::Unknown, MemberModels::Known)
}

/// The proposal, if there is data to decide on.
fn usable(
    member: &Member<'_>,
    in_force: Option<&DecisionInForce>,
    proposal: Option<Proposal>,
) -> Result<Proposal, NoData> {
    match member.blind() {
        Some(NoData::NoFreshReplica) if member.missing() == Replicas::ZERO => {
            let least = in_force.map(|in_force| in_force.desired);
            proposal.filter(|it| it.holds(least)).ok_or(NoData::NoFreshReplica)
        }
        Some(why) => Err(why),
        None if in_force.is_none() && !member.observation.all_tried() => Err(NoData::NotTried),
        None => proposal.ok_or(NoData::NoFreshReplica),
    }
}

/// The steps of a proposal, with one for each guard that blocks its scale-down.
fn guarded(
    guards: &GroupGuards,
    member: &Member<'_>,
    in_force: Option<&DecisionInForce>,
    mut proposal: Proposal,
) -> Vec<Step> {
    let desired = in_force.map_or(proposal.before, |in_force| in_force.desired);
    for reason in guards.reasons(proposal.basis) {
        let least =
            kept(&proposal, reason, member.missing()).map_or(desired, |kept| kept.min(desired));
        if proposal.desired() < least {
            proposal.push(Stage::Guard, least, reason.clone());
        }
    }

    proposal.steps
}

/// Holds the desired replicas in effect.
fn hold(member: &Member<'_>, in_force: &DecisionInForce, why: NoData) -> Step {
    let before = in_force.desired;
    // When another actor brings a variant back from zero, the scale target's count applies. The
    // published 0 must not remove these replicas while they start.
    let wanted = member.observation.wanted.filter(|_| in_force.at_zero).unwrap_or_default();
    let after = before.max(wanted);
    let reason = Reason::NoData(match (in_force.restored, after > before) {
        (Some(_), _) => NoData::Restored,
        (None, true) => NoData::BroughtBack,
        (None, false) => why,
    });

    Step { stage: Stage::Hold, before, after, reason }
}
