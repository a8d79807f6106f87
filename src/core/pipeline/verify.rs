//! The last check: a set of decisions that breaks an invariant is not published.

use std::collections::BTreeMap;

use crate::decide::check::{self, Violation};
use crate::decide::{Basis, Decision, NoData, NoDecision, Reason, Stage, Step};
use crate::fleet::VariantKey;
use crate::pipeline::in_force::DecisionInForce;
use crate::pipeline::tick::Tick;

/// The decisions to publish.
#[derive(Debug)]
pub(crate) struct VerifiedDecisions {
    pub(crate) decisions: Vec<Decision>,
    /// The reason why a variant has no decision.
    pub(crate) undecided: BTreeMap<VariantKey, NoDecision>,
    /// The invariant that the decisions broke. If set, `decisions` repeats those in effect.
    pub(crate) violation: Option<Violation>,
}

/// Replaces a set of decisions that breaks an invariant with the desired replicas in effect.
pub(crate) fn run(
    tick: &Tick<'_>,
    mut decisions: Vec<Decision>,
    mut undecided: BTreeMap<VariantKey, NoDecision>,
) -> VerifiedDecisions {
    let checked = check::check(&decisions, &tick.inputs.fleet, |key| {
        tick.in_force.get(key).map(|in_force| in_force.desired)
    });
    let Err(violation) = checked else {
        return VerifiedDecisions { decisions, undecided, violation: None };
    };

    decisions.retain_mut(|decision| {
        let Some(in_force) = tick.in_force.get(&decision.variant) else {
            undecided.insert(decision.variant.clone(), NoDecision(NoData::Refused));
            return false;
        };
        refuse(decision, in_force, &violation);
        true
    });

    VerifiedDecisions { decisions, undecided, violation: Some(violation) }
}

fn refuse(decision: &mut Decision, in_force: &DecisionInForce, violation: &Violation) {
    let before = in_force.desired;
    let after = in_force.desired;
    let reason = Reason::Refused(violation.clone());
    decision.steps = vec![Step { stage: Stage::Check, before, after, reason }];
    decision.inputs_at = in_force.inputs_at;
    decision.basis = Basis::Held;
    decision.admissible = None;
    decision.sizing = None;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::analyze::saturation::{Thresholds, TransitionRule};
    use crate::decide::enforce::Behavior;
    use crate::fleet::{Fleet, VariantSpec};
    use crate::observe::Inputs;
    use crate::pipeline::group::FleetGroups;
    use crate::pipeline::in_force::{DecisionsInForce, DesiredReplicas};
    use crate::pipeline::limits::LimitPolicy;
    use crate::pipeline::policy::Policy;
    use crate::pipeline::zero::Zero;
    use crate::units::{Fraction, Replicas, Requests, Seconds};

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn policy() -> Policy {
        let minute = Seconds::literal(60);
        Policy {
            window: minute,
            stale_after: minute,
            stale_after_relayed: minute,
            thresholds: Thresholds {
                kv_cache: Fraction::ONE,
                queue_length: Requests::ZERO,
                kv_spare: Fraction::ZERO,
                queue_spare: Requests::ZERO,
            },
            overrides: BTreeMap::new(),
            transition: TransitionRule::PendingOnly,
            transition_patience: minute,
            behavior: Behavior { flap_budget: u32::MAX, ..Behavior::default() },
            sizing: None,
            zero: Zero::default(),
            pools: BTreeMap::new(),
            limits: LimitPolicy::default(),
        }
    }

    fn wild(variant: &str) -> Decision {
        let spec = VariantSpec::example(variant);
        let reason = Reason::BelowMin(n(99));
        Decision {
            variant: spec.key.clone(),
            model: spec.model_key(),
            current: None,
            bounds: spec.bounds,
            steps: vec![Step { stage: Stage::Bounds, before: n(3), after: n(99), reason }],
            inputs_at: Timestamp::UNIX_EPOCH,
            basis: Basis::Fresh,
            admissible: None,
            sizing: None,
        }
    }

    #[test]
    fn a_set_that_breaks_an_invariant_is_replaced_by_the_numbers_in_force_and_says_so() {
        let now = Timestamp::UNIX_EPOCH;
        let a = VariantSpec::example("a");
        let b = VariantSpec::example("b");
        let mut in_force = DecisionsInForce::default();
        let number = DesiredReplicas { desired: n(3), inputs_at: now, packed: None };
        in_force.restore(now, a.key.clone(), number);
        let fleet = Arc::new(Fleet::new([a, b.clone()]));
        let inputs = Inputs { fleet, ..Inputs::default() };
        let policy = policy();
        let observations = BTreeMap::new();
        let groups = FleetGroups::default();
        let tick = Tick::new(now, &inputs, &policy, &in_force, &observations, &groups);

        let found = run(&tick, vec![wild("a"), wild("b")], BTreeMap::new());
        let [kept] = found.decisions.as_slice() else { panic!("one number was in force") };
        assert_eq!((kept.desired(), kept.basis), (n(3), Basis::Held));
        assert!(
            kept.steps[0].to_string().starts_with("check: 3, not published: shop/a would get 99")
        );
        assert_eq!(found.undecided[&b.key].0, NoData::Refused);
        assert!(found.violation.is_some());
    }
}
