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
//! Windows go on remembering recommendations. While an override bounds the plan, these are the
//! bounded replicas, so a scale-down after it waits for a whole window. Once an override has ended,
//! desired replicas follow the load again by the usual rules.

use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::fleet::{Bounds, ModelKey, VariantKey, VariantSpec};
use crate::observe::overrides::{Order, Override};
use crate::pipeline::group::{Member, VariantGroup};
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
/// Exactly the replicas that the override leaves are planned. Where limits apply, only the replicas
/// among them that the scale target already asks for are a minimum. A limit may refuse the others.
pub(crate) fn narrowed(tick: &Tick<'_>, member: &Member<'_>) -> Option<Bounds> {
    let order = in_effect(tick, &member.spec.key)?.order;
    let in_force = tick.desired(member);
    let replicas = match order {
        // Without data, a pin does not lower the desired replicas.
        Order::Pin(replicas) => {
            let kept = in_force.filter(|_| member.blind().is_some());
            replicas.max(kept.unwrap_or_default())
        }
        Order::Pause => in_force?,
    };

    let bounds = member.observation.bounds;
    let most = bounds.clamp(replicas);
    let there = member.observation.wanted.unwrap_or_default();
    let sure = if tick.policy.limits.is_limited() { most.min(there) } else { most };
    Bounds::new(bounds.min().max(sure), Some(most))
}

/// Returns true if models share limits, or if a variant of the same role has no override.
fn concerns_others(tick: &Tick<'_>, member: &Member<'_>) -> bool {
    if tick.policy.limits.is_limited() {
        return true;
    }

    let mut members = group_of(tick, member).into_iter().flat_map(|group| &group.members);
    members.any(|it| it.has_target() && in_effect(tick, &it.spec.key).is_none())
}

/// The group of a variant. Groups are in the order of model and role.
fn group_of<'t, 'a>(tick: &'t Tick<'a>, member: &Member<'_>) -> Option<&'t VariantGroup<'a>> {
    let VariantSpec { key, model, role, .. } = member.spec;
    let place = tick.groups.binary_search_by(|group| {
        let ModelKey { namespace, model: known } = group.model;
        (namespace, known, group.role).cmp(&(&key.namespace, model, *role))
    });

    tick.groups.get(place.ok()?)
}

/// The override of a variant, if it has one that is in effect.
fn in_effect(tick: &Tick<'_>, variant: &VariantKey) -> Option<Override> {
    let known = tick.inputs.overrides.get(variant).copied();
    known.filter(|known| known.is_in_effect(tick.now))
}

/// Returns true if no replica of a variant shows its load. Variants are in the order of their keys.
fn is_blind(tick: &Tick<'_>, variant: &VariantKey) -> bool {
    let place = tick.members.binary_search_by(|member| member.spec.key.cmp(variant));
    place.is_ok_and(|place| tick.members[place].blind().is_some())
}

fn overridden(tick: &Tick<'_>, mut decision: Decision) -> Decision {
    let Some(Override { order, until, by }) = in_effect(tick, &decision.variant) else {
        return decision;
    };

    let before = decision.desired();
    let in_force = tick.in_force.get(&decision.variant).map(|it| it.desired);
    let (after, reason) = match order {
        Order::Pin(replicas) => {
            let is_unsure = decision.basis == Basis::Held || is_blind(tick, &decision.variant);
            let least = in_force.filter(|_| is_unsure).unwrap_or_default();
            (replicas.max(least), Reason::Pinned { replicas, until, by })
        }
        Order::Pause => (in_force.unwrap_or(before), Reason::Paused { until, by }),
    };

    decision.steps.push(Step { stage: Stage::Override, before, after, reason });
    decision
}
