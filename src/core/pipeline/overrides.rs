//! Overrides: pins and pauses of single variants.
//!
//! They apply after every rule for the load and its speed, and before bounds and limits. So a
//! pinned variant still keeps to its minimum, its maximum, and every quota. While data is missing,
//! a pin may raise desired replicas and never lowers them, and the number expires as usual.
//!
//! The load scales an overridden variant only as far as the override lets it ([`bounds`]). So the
//! other variants of its role provide the rest, and limits give nothing to replicas that a pin
//! discards. Without such variants and without limits, a variant is analyzed as if it had no
//! override. Its steps then show the replicas that the load asks for.
//!
//! Nothing else changes: windows go on remembering the recommendations of the analysis. Once an
//! override has ended, the number follows the load again by the usual rules.

use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Bounds, VariantKey};
use crate::observe::overrides::{Order, Override};
use crate::pipeline::group::Member;
use crate::pipeline::tick::Tick;

/// Applies the override of each variant that has one.
pub(crate) fn run(tick: &Tick<'_>, decisions: Vec<Decision>) -> Vec<Decision> {
    decisions.into_iter().map(|decision| overridden(tick, decision)).collect()
}

/// The bounds between which the load may scale a variant. An override narrows them if that matters
/// to others: if another variant of its role can provide the rest, or if models share limits.
pub(crate) fn bounds(tick: &Tick<'_>, member: &Member<'_>) -> Bounds {
    let narrow = narrowed(tick, member).filter(|_| concerns_others(tick, member));
    narrow.unwrap_or(member.observation.bounds)
}

/// The bounds of a variant with an override; `None` without an override.
///
/// No more replicas are planned than the override leaves. The replicas among them that the scale
/// target already asks for stay. Those that it does not ask for yet are no minimum, because a limit
/// may refuse them.
pub(crate) fn narrowed(tick: &Tick<'_>, member: &Member<'_>) -> Option<Bounds> {
    let replicas = match in_effect(tick, &member.spec.key)?.order {
        Order::Pin(replicas) => replicas,
        Order::Pause => tick.desired(member)?,
    };

    let bounds = member.observation.bounds;
    let most = bounds.clamp(replicas);
    let there = member.observation.wanted.unwrap_or_default();
    Bounds::new(bounds.min().max(most.min(there)), Some(most))
}

/// Returns true if models share limits, or if a variant of the same role has no override.
fn concerns_others(tick: &Tick<'_>, member: &Member<'_>) -> bool {
    if tick.policy.limits.is_limited() {
        return true;
    }

    let mut groups = tick.groups.iter();
    let own = groups.find(|group| group.members.iter().any(|it| it.place == member.place));
    let mut members = own.into_iter().flat_map(|group| &group.members);
    members.any(|it| it.has_target() && in_effect(tick, &it.spec.key).is_none())
}

/// The override of a variant, if it has one that is in effect.
fn in_effect(tick: &Tick<'_>, variant: &VariantKey) -> Option<Override> {
    let known = tick.inputs.overrides.get(variant).copied();
    known.filter(|known| known.is_in_effect(tick.now))
}

fn overridden(tick: &Tick<'_>, mut decision: Decision) -> Decision {
    let Some(Override { order, until, by }) = in_effect(tick, &decision.variant) else {
        return decision;
    };

    let before = decision.desired();
    let in_force = tick.in_force.get(&decision.variant).map(|it| it.desired);
    let (after, reason) = match order {
        Order::Pin(replicas) => {
            let least = in_force.filter(|_| decision.basis == Basis::Held).unwrap_or_default();
            (replicas.max(least), Reason::Pinned { replicas, until, by })
        }
        Order::Pause => (in_force.unwrap_or(before), Reason::Paused { until, by }),
    };

    decision.steps.push(Step { stage: Stage::Override, before, after, reason });
    decision
}
