//! Invariants of every finished set of decisions.
//!
//! The earlier stages are meant to uphold these invariants. This stage does not rely on that. A set
//! that breaks an invariant is never published, and the last valid set stays in effect.

pub(super) mod violation;

use crate::decide::decision::{Basis, Decision};
use crate::fleet::{Fleet, VariantKey};
use crate::units::Replicas;

pub use crate::decide::check::violation::Violation;

/// Checks a set of decisions against its fleet and the desired replicas in effect.
///
/// # Errors
///
/// Returns the first broken invariant, in the order of the decisions.
pub fn check(
    decisions: &[Decision],
    fleet: &Fleet,
    in_force: impl Fn(&VariantKey) -> Option<Replicas>,
) -> Result<(), Violation> {
    let mut variants = fleet.variants().map(|spec| &spec.key);
    for (index, decision) in decisions.iter().enumerate() {
        let variant = &decision.variant;
        // Both are sorted by key, so a search is rarely needed.
        let known = variants.find(|key| *key >= variant) == Some(variant);
        if !known && fleet.get(variant).is_none() {
            return Err(Violation::NotInFleet(variant.clone()));
        }
        if decisions[..index].last().is_some_and(|before| before.variant >= *variant) {
            return Err(Violation::Twice(variant.clone()));
        }

        let broken = decision.steps.windows(2).any(|pair| pair[0].after != pair[1].before);
        if broken || decision.steps.is_empty() {
            return Err(Violation::BrokenChain(variant.clone()));
        }

        let desired = decision.desired();
        if decision.bounds.clamp(desired) != desired {
            return Err(Violation::OutOfBounds(variant.clone(), desired));
        }

        // A reduced maximum applies even without data.
        let capped = decision.bounds.max() == Some(desired);
        if decision.basis == Basis::Held
            && !capped
            && in_force(variant).is_some_and(|before| desired < before)
        {
            return Err(Violation::LoweredBlindly(variant.clone()));
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::decide::decision::{Stage, Step};
    use crate::decide::reason::{NoData, Reason};
    use crate::fleet::VariantSpec;

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn step(before: u32, after: u32) -> Step {
        Step {
            stage: Stage::Hold,
            before: n(before),
            after: n(after),
            reason: Reason::NoData(NoData::NoFreshReplica),
        }
    }

    fn fresh(variant: &str, steps: &[(u32, u32)]) -> Decision {
        decision(variant, steps, Basis::Fresh)
    }

    fn held(variant: &str, steps: &[(u32, u32)]) -> Decision {
        decision(variant, steps, Basis::Held)
    }

    fn decision(variant: &str, steps: &[(u32, u32)], basis: Basis) -> Decision {
        let spec = VariantSpec::example(variant);
        Decision {
            variant: spec.key.clone(),
            model: spec.model_key(),
            current: None,
            bounds: spec.bounds,
            steps: steps.iter().map(|&(before, after)| step(before, after)).collect(),
            inputs_at: Timestamp::UNIX_EPOCH,
            basis,
            admissible: None,
            sizing: None,
        }
    }

    #[test]
    fn a_set_that_breaks_an_invariant_is_named_and_a_sound_one_is_not() {
        let fleet = Fleet::new([VariantSpec::example("a"), VariantSpec::example("b")]);

        for (set, broken) in [
            (vec![fresh("a", &[(3, 2)]), fresh("b", &[(3, 4), (4, 5)])], None),
            (vec![held("a", &[(3, 3)]), held("b", &[(3, 5)])], None),
            (vec![fresh("a", &[(3, 6)])], Some("out_of_bounds")),
            (vec![fresh("a", &[(3, 0)])], Some("out_of_bounds")),
            (vec![fresh("c", &[(3, 3)])], Some("not_in_fleet")),
            (vec![fresh("a", &[(3, 3)]), fresh("a", &[(3, 4)])], Some("twice")),
            (vec![fresh("a", &[])], Some("broken_chain")),
            (vec![fresh("a", &[(3, 4), (3, 5)])], Some("broken_chain")),
            (vec![held("a", &[(3, 2)])], Some("lowered_blindly")),
        ] {
            let found = check(&set, &fleet, |_| Some(n(3)));
            assert_eq!(found.as_ref().err().map(Violation::label), broken, "{set:?}");
        }
    }

    #[test]
    fn a_maximum_that_was_lowered_applies_without_data() {
        let fleet = Fleet::new([VariantSpec::example("a")]);
        let capped = decision("a", &[(9, 5)], Basis::Held);
        assert_eq!(check(&[capped], &fleet, |_| Some(n(9))), Ok(()));
    }
}
