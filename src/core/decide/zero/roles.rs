//! Which variants wake a model that is served in parts.
//!
//! A variant that serves whole requests can answer alone. One that only computes prompts cannot
//! answer without one that generates, so such a model wakes with one of each. Of all sets that can
//! answer the cheapest is woken, where what is awake already costs nothing.

use crate::decide::zero::{InFront, Wake};
use crate::fleet::{Bounds, Role, VariantKey};
use crate::units::{CostPerHour, Replicas, Requests};

/// A variant that may have to be woken.
#[derive(Clone, Debug, PartialEq)]
pub struct Sleeper {
    /// The variant.
    pub variant: VariantKey,
    /// What part of a request it serves.
    pub role: Role,
    /// What a replica costs.
    pub cost: CostPerHour,
    /// Replicas that are asked for; `None` when nobody can say.
    pub current: Option<Replicas>,
    /// Of these, those that do not start.
    pub stuck: Replicas,
    /// What it may have.
    pub bounds: Bounds,
}

impl Sleeper {
    /// Whether it serves or is about to. What nobody can say of is not without replicas.
    fn is_awake(&self) -> bool {
        self.current.is_none_or(|current| current > self.stuck)
    }

    fn may_wake(&self) -> bool {
        self.current == Some(Replicas::ZERO) && self.bounds.allow_up(Replicas::ZERO)
    }
}

/// Which variants to wake, so that the model can answer.
pub fn wake_whole(in_front: InFront, sleepers: &[Sleeper]) -> Wake {
    let InFront::Queued(queued) = in_front else { return Wake::Asleep(in_front) };
    if queued == Requests::ZERO {
        return Wake::Asleep(in_front);
    }
    let mut best: Option<(CostPerHour, Vec<&Sleeper>)> = None;
    for set in serving_sets(sleepers) {
        let missing = || set.iter().filter(|role| awake(sleepers, **role).is_none());
        if missing().next().is_none() {
            let awake = set.first().and_then(|role| awake(sleepers, *role));
            let Some(Sleeper { variant, current, .. }) = awake else { continue };
            let replicas = current.unwrap_or(Replicas::ONE);
            return Wake::Awake { variant: variant.clone(), replicas };
        }
        let Some(woken) = missing().map(|role| cheapest(sleepers, *role)).collect() else {
            continue;
        };
        let woken: Vec<&Sleeper> = woken;
        let cost = woken.iter().map(|it| it.cost.per_hour()).sum();
        let cost = CostPerHour::new(cost).unwrap_or_default();
        if best.as_ref().is_none_or(|(known, _)| cost < *known) {
            best = Some((cost, woken));
        }
    }
    match best {
        Some((_, woken)) => {
            let variants = woken.into_iter().map(|it| it.variant.clone()).collect();
            Wake::Woken { variants, queued }
        }
        None => Wake::NoneAllowed(queued),
    }
}

/// The sets of roles that can answer: whole requests, and both parts of one. A part whose other half
/// is not here is served elsewhere, and can answer where nothing serves whole requests.
#[must_use]
pub(crate) fn serving_sets(sleepers: &[Sleeper]) -> Vec<Vec<Role>> {
    let has = |role: Role| sleepers.iter().any(|it| it.role == role);
    let parts: Vec<Role> =
        [Role::Prefill, Role::Decode].into_iter().filter(|role| has(*role)).collect();
    let mut sets = Vec::new();
    if has(Role::Both) {
        sets.push(vec![Role::Both]);
    }
    if parts.len() == 2 || (parts.len() == 1 && sets.is_empty()) {
        sets.push(parts);
    }
    sets
}

fn awake(sleepers: &[Sleeper], role: Role) -> Option<&Sleeper> {
    sleepers.iter().find(|it| it.role == role && it.is_awake())
}

/// The cheapest variant of a role that may have a replica; of two that cost the same the one whose
/// name comes first.
fn cheapest(sleepers: &[Sleeper], role: Role) -> Option<&Sleeper> {
    let wakeable = sleepers.iter().filter(|it| it.role == role && it.may_wake());
    wakeable.min_by(|a, b| a.cost.compare(b.cost).then_with(|| a.variant.cmp(&b.variant)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::VariantSpec;

    fn sleeper(name: &str, role: Role, cost: f64, current: u32) -> Sleeper {
        Sleeper {
            variant: VariantSpec::example(name).key,
            role,
            cost: CostPerHour::new(cost).unwrap(),
            current: Replicas::new(current),
            stuck: Replicas::ZERO,
            bounds: Bounds::new(Replicas::ZERO, Replicas::new(4)).unwrap(),
        }
    }

    fn woken(sleepers: &[Sleeper]) -> Vec<String> {
        let queued = InFront::Queued(Requests::new(3.0).unwrap());
        match wake_whole(queued, sleepers) {
            Wake::Woken { variants, .. } => {
                variants.iter().map(|key| key.variant.to_string()).collect()
            }
            Wake::Asleep(_) | Wake::Awake { .. } | Wake::NoneAllowed(_) => Vec::new(),
        }
    }

    #[test]
    fn the_cheapest_variant_that_may_serve_wakes_and_no_other_beside_it() {
        let queued = InFront::Queued(Requests::new(3.0).unwrap());
        let closed = Sleeper {
            bounds: Bounds::new(Replicas::ZERO, Some(Replicas::ZERO)).unwrap(),
            ..sleeper("closed", Role::Both, 0.5, 0)
        };

        let dear = sleeper("dear", Role::Both, 9.0, 0);
        let asleep = [dear, closed.clone(), sleeper("cheap", Role::Both, 1.0, 0)];
        assert_eq!(wake_whole(queued, &asleep).to_string(), "shop/cheap woken: 3 requests queue");

        let starting = [sleeper("dear", Role::Both, 9.0, 1), sleeper("cheap", Role::Both, 1.0, 0)];
        assert_eq!(
            wake_whole(queued, &starting).to_string(),
            "awake: shop/dear is asked for 1 replicas"
        );

        let none = wake_whole(queued, &[closed]);
        assert_eq!(none, Wake::NoneAllowed(Requests::new(3.0).unwrap()));
    }

    #[test]
    fn both_parts_of_a_model_wake_and_of_each_the_cheapest() {
        let parts = [
            sleeper("p-dear", Role::Prefill, 9.0, 0),
            sleeper("p", Role::Prefill, 2.0, 0),
            sleeper("d", Role::Decode, 3.0, 0),
        ];
        assert_eq!(woken(&parts), ["p", "d"]);
    }

    #[test]
    fn what_answers_alone_is_woken_where_it_costs_less_than_both_parts() {
        let fleet = |whole| {
            [
                sleeper("whole", Role::Both, whole, 0),
                sleeper("p", Role::Prefill, 2.0, 0),
                sleeper("d", Role::Decode, 3.0, 0),
            ]
        };
        assert_eq!(woken(&fleet(4.0)), ["whole"]);
        assert_eq!(woken(&fleet(6.0)), ["p", "d"]);
        let mut half_awake = fleet(4.0);
        half_awake[1].current = Some(Replicas::ONE);
        assert_eq!(woken(&half_awake), ["d"], "what is awake costs nothing");
    }

    #[test]
    fn a_variant_that_does_not_start_or_has_no_room_is_passed_over() {
        let mut fleet = [sleeper("cheap", Role::Both, 1.0, 0), sleeper("dear", Role::Both, 9.0, 0)];
        assert_eq!(woken(&fleet), ["cheap"]);
        fleet[0].current = Some(Replicas::ONE);
        assert_eq!(woken(&fleet), Vec::<String>::new(), "it is starting");
        fleet[0].stuck = Replicas::ONE;
        assert_eq!(woken(&fleet), ["dear"]);
        fleet[0] = sleeper("cheap", Role::Both, 1.0, 0);
        fleet[0].bounds = Bounds::new(Replicas::ZERO, Some(Replicas::ZERO)).unwrap();
        assert_eq!(woken(&fleet), ["dear"]);
    }

    #[test]
    fn nothing_wakes_on_what_nobody_can_say() {
        let fleet = [sleeper("a", Role::Both, 1.0, 0)];
        for in_front in [InFront::NoQueue, InFront::Unknown, InFront::Queued(Requests::ZERO)] {
            assert_eq!(wake_whole(in_front, &fleet), Wake::Asleep(in_front));
        }
        assert_eq!(
            wake_whole(InFront::Unknown, &fleet).to_string(),
            "asleep: the queue could not be read"
        );
    }
}
