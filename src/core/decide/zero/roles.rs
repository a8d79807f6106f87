//! The variants that wake a model that is served in parts.
//!
//! A variant that serves whole requests can answer alone. A prefill variant cannot answer without a
//! decode variant, so such a model wakes with one of each. Of all sets that can answer, the
//! cheapest is woken. A set whose variants together have room in every limit comes first, and then
//! the set that has been woken before. Variants that are awake already cost nothing.
//!
//! The sets of a model with hundreds of variants are too many for each tick. Of variants that take
//! the same from every limit, only the first can be in the best set. So only these are combined, as
//! far as they have room alone, and at most [`WAKEABLE_MAX`] of each role.

use std::cmp::Ordering;
use std::fmt;

use crate::decide::zero::idleness::FrontQueue;
use crate::fleet::{Bounds, Role, VariantKey};
use crate::units::{CostPerHour, Replicas, Requests};

/// The most variants of a role that are combined with others into sets.
const WAKEABLE_MAX: usize = 32;

/// The limits, as a wake-up asks them.
#[derive(Clone, Copy)]
pub struct WakeRoom<'a> {
    /// Returns true if every limit has room for one more replica of each of these variants together.
    pub fits: &'a dyn Fn(&[&VariantKey]) -> bool,
    /// Returns true if a replica of either variant takes the same from every limit, except for its
    /// cost.
    pub alike: &'a dyn Fn(&VariantKey, &VariantKey) -> bool,
}

/// A variant that may have to be woken.
#[derive(Clone, Debug, PartialEq)]
pub struct WakeCandidate {
    /// The variant.
    pub variant: VariantKey,
    /// The part of a request that it serves.
    pub role: Role,
    /// Cost per replica.
    pub cost: CostPerHour,
    /// Replicas that are asked for; `None` if unknown.
    pub current: Option<Replicas>,
    /// The replicas among them that do not start.
    pub stuck: Replicas,
    /// The bounds of its replicas.
    pub bounds: Bounds,
    /// True if it has been woken, which may not have been actuated yet.
    pub woken: bool,
}

/// The reaction to requests that queue in front of a model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    /// Nothing queues, or the queue is unknown.
    Asleep(FrontQueue),
    /// Requests queue, and a variant has replicas or is about to.
    Awake {
        /// The variant.
        variant: VariantKey,
        /// Replicas that are asked for.
        replicas: Replicas,
    },
    /// These variants should have one replica each.
    Woken {
        /// The variants, the cheapest first.
        variants: Vec<VariantKey>,
        /// The requests that queue.
        queued: Requests,
    },
    /// Requests queue, and no variant may have a replica.
    NoneAllowed(Requests),
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asleep(FrontQueue::NoQueue) => {
                f.write_str("asleep: there is no queue to wake it")
            }
            Self::Asleep(FrontQueue::Unknown) => f.write_str("asleep: the queue could not be read"),
            Self::Asleep(FrontQueue::Queued(_)) => f.write_str("asleep: nothing queues"),
            Self::Awake { variant, replicas } => {
                write!(f, "awake: {variant} has {replicas} desired replicas")
            }
            Self::Woken { variants, queued } => {
                let names: Vec<String> = variants.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "{} woken: requests in the queue: {}",
                    names.join(", "),
                    queued.requests()
                )
            }
            Self::NoneAllowed(queued) => {
                write!(
                    f,
                    "requests in the queue: {}, but no variant may have a replica",
                    queued.requests()
                )
            }
        }
    }
}

impl WakeCandidate {
    /// Returns true if the variant serves or is about to. A variant with an unknown replica count
    /// counts as awake.
    fn is_awake(&self) -> bool {
        self.current.is_none_or(|current| current > self.stuck)
    }

    fn may_wake(&self) -> bool {
        self.current == Some(Replicas::ZERO) && self.bounds.allow_up(Replicas::ZERO)
    }

    /// Sorts a woken variant first, and then the cheaper one.
    fn compare(&self, other: &Self) -> Ordering {
        let by_woken = other.woken.cmp(&self.woken);
        let by_cost = by_woken.then_with(|| self.cost.compare(other.cost));
        by_cost.then_with(|| self.variant.cmp(&other.variant))
    }
}

/// Variants that can answer once they are woken together, one of each role that is not awake.
#[derive(Default)]
struct WakeSet<'a>(Vec<&'a WakeCandidate>);

impl<'a> WakeSet<'a> {
    /// The same set with one more variant.
    fn with(&self, sleeper: &'a WakeCandidate) -> Self {
        Self(self.0.iter().copied().chain([sleeper]).collect())
    }

    fn keys(&self) -> Vec<&'a VariantKey> {
        self.0.iter().map(|it| &it.variant).collect()
    }

    /// Sorts the set with more woken variants first, and then the cheaper set. Of equal sets, whole
    /// requests come first, and then the first names.
    fn compare(&self, other: &Self) -> Ordering {
        let by_woken = other.woken().cmp(&self.woken());
        let by_cost = by_woken.then_with(|| self.cost().compare(other.cost()));
        by_cost.then_with(|| self.names().cmp(other.names()))
    }

    fn names(&self) -> impl Iterator<Item = (Role, &'a VariantKey)> {
        self.0.iter().map(|it| (it.role, &it.variant))
    }

    fn woken(&self) -> usize {
        self.0.iter().filter(|it| it.woken).count()
    }

    fn cost(&self) -> CostPerHour {
        self.0.iter().map(|it| it.cost).sum()
    }
}

/// Returns the variants to wake, so that the model can answer. If no set fits, one is returned
/// anyway, so that its decisions show the limit.
pub fn wake_whole(in_front: FrontQueue, sleepers: &[WakeCandidate], room: WakeRoom<'_>) -> Wake {
    let FrontQueue::Queued(queued) = in_front else { return Wake::Asleep(in_front) };
    if queued == Requests::ZERO {
        return Wake::Asleep(in_front);
    }

    let mut sets: Vec<WakeSet<'_>> = Vec::new();
    for roles in serving_sets(sleepers) {
        let missing: Vec<Role> =
            roles.iter().copied().filter(|role| awake(sleepers, *role).is_none()).collect();
        if missing.is_empty() {
            let awake = roles.first().and_then(|role| awake(sleepers, *role));
            let Some(WakeCandidate { variant, current, .. }) = awake else { continue };
            let replicas = current.unwrap_or(Replicas::ONE);
            return Wake::Awake { variant: variant.clone(), replicas };
        }

        sets.extend(wakeable_sets(sleepers, &missing, room));
    }

    sets.sort_by(WakeSet::compare);
    let best = sets.iter().find(|set| (room.fits)(&set.keys())).or(sets.first());
    match best {
        Some(set) => Wake::Woken { variants: set.keys().into_iter().cloned().collect(), queued },
        None => Wake::NoneAllowed(queued),
    }
}

/// Returns the sets of roles that can answer: whole requests, and both parts of a request. A part
/// whose other half is not listed is served elsewhere, and can answer if no variant serves whole
/// requests.
#[must_use]
pub(crate) fn serving_sets(sleepers: &[WakeCandidate]) -> Vec<Vec<Role>> {
    let parts: Vec<Role> = [Role::Prefill, Role::Decode]
        .into_iter()
        .filter(|role| is_listed(sleepers, *role))
        .collect();

    let mut sets = Vec::new();
    if is_listed(sleepers, Role::Both) {
        sets.push(vec![Role::Both]);
    }
    if parts.len() == 2 || (parts.len() == 1 && sets.is_empty()) {
        sets.push(parts);
    }

    sets
}

fn is_listed(sleepers: &[WakeCandidate], role: Role) -> bool {
    sleepers.iter().any(|it| it.role == role)
}

fn awake(sleepers: &[WakeCandidate], role: Role) -> Option<&WakeCandidate> {
    sleepers.iter().find(|it| it.role == role && it.is_awake())
}

/// Returns the sets with one variant of each of these roles.
fn wakeable_sets<'a>(
    sleepers: &'a [WakeCandidate],
    roles: &[Role],
    room: WakeRoom<'_>,
) -> Vec<WakeSet<'a>> {
    let mut sets = vec![WakeSet::default()];
    for role in roles {
        let variants = wakeable(sleepers, *role, room);
        sets = sets
            .iter()
            .flat_map(|set| variants.iter().copied().map(move |it| set.with(it)))
            .collect();
    }

    sets
}

/// Returns the variants of a role that may have a replica and have room alone, or the first one if
/// none has room. Of several that take the same from every limit, returns the first that has been
/// woken, and the first of the others.
fn wakeable<'a>(
    sleepers: &'a [WakeCandidate],
    role: Role,
    room: WakeRoom<'_>,
) -> Vec<&'a WakeCandidate> {
    let mut sorted: Vec<&WakeCandidate> =
        sleepers.iter().filter(|it| it.role == role && it.may_wake()).collect();
    sorted.sort_by(|a, b| a.compare(b));

    let mut first: Vec<&WakeCandidate> = Vec::new();
    for &sleeper in &sorted {
        let is_behind = first
            .iter()
            .any(|it| it.woken == sleeper.woken && (room.alike)(&it.variant, &sleeper.variant));
        if !is_behind && (room.fits)(&[&sleeper.variant]) {
            first.push(sleeper);
        }
        if first.len() == WAKEABLE_MAX {
            break;
        }
    }

    if first.is_empty() {
        first.extend(sorted.first().copied());
    }

    first
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::fleet::VariantSpec;

    fn sleeper(name: &str, role: Role, cost: f64, current: u32) -> WakeCandidate {
        WakeCandidate {
            variant: VariantSpec::example(name).key,
            role,
            cost: CostPerHour::new(cost).unwrap(),
            current: Replicas::new(current),
            stuck: Replicas::ZERO,
            bounds: Bounds::new(Replicas::ZERO, Replicas::new(4)).unwrap(),
            woken: false,
        }
    }

    /// A variant for whole requests at this cost, and one for each part.
    fn fleet(whole: f64) -> [WakeCandidate; 3] {
        [
            sleeper("whole", Role::Both, whole, 0),
            sleeper("p", Role::Prefill, 2.0, 0),
            sleeper("d", Role::Decode, 3.0, 0),
        ]
    }

    fn woken(sleepers: &[WakeCandidate]) -> Vec<String> {
        woken_within(sleepers, &|_| true)
    }

    /// The reaction without limits.
    fn wake(in_front: FrontQueue, sleepers: &[WakeCandidate]) -> Wake {
        wake_whole(in_front, sleepers, WakeRoom { fits: &|_| true, alike: &|_, _| true })
    }

    /// The variants that are woken if limits have no room for some of them.
    fn woken_without(sleepers: &[WakeCandidate], full: &[&str]) -> Vec<String> {
        woken_within(sleepers, &|set| set.iter().all(|key| !full.contains(&key.variant.as_str())))
    }

    fn woken_within(
        sleepers: &[WakeCandidate],
        fits: &dyn Fn(&[&VariantKey]) -> bool,
    ) -> Vec<String> {
        let queued = FrontQueue::Queued(Requests::new(3.0).unwrap());
        let room = WakeRoom { fits, alike: &|one, other| one == other };
        woken_by(&wake_whole(queued, sleepers, room))
    }

    fn woken_by(wake: &Wake) -> Vec<String> {
        match wake {
            Wake::Woken { variants, .. } => {
                variants.iter().map(|key| key.variant.to_string()).collect()
            }
            Wake::Asleep(_) | Wake::Awake { .. } | Wake::NoneAllowed(_) => Vec::new(),
        }
    }

    #[test]
    fn the_cheapest_variant_that_may_serve_wakes_and_no_other_beside_it() {
        let queued = FrontQueue::Queued(Requests::new(3.0).unwrap());
        let closed = WakeCandidate {
            bounds: Bounds::new(Replicas::ZERO, Some(Replicas::ZERO)).unwrap(),
            ..sleeper("closed", Role::Both, 0.5, 0)
        };

        let dear = sleeper("dear", Role::Both, 9.0, 0);
        let asleep = [dear, closed.clone(), sleeper("cheap", Role::Both, 1.0, 0)];
        assert_eq!(wake(queued, &asleep).to_string(), "shop/cheap woken: requests in the queue: 3");

        let starting = [sleeper("dear", Role::Both, 9.0, 1), sleeper("cheap", Role::Both, 1.0, 0)];
        assert_eq!(wake(queued, &starting).to_string(), "awake: shop/dear has 1 desired replicas");

        let none = wake(queued, &[closed]);
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
        assert_eq!(woken(&fleet(4.0)), ["whole"]);
        assert_eq!(woken(&fleet(6.0)), ["p", "d"]);

        let mut half_awake = fleet(4.0);
        half_awake[1].current = Some(Replicas::ONE);
        assert_eq!(woken(&half_awake), ["d"], "what is awake costs nothing");
    }

    #[test]
    fn of_two_ways_that_cost_the_same_whole_requests_are_served() {
        assert_eq!(woken(&fleet(5.0)), ["whole"]);
    }

    #[test]
    fn only_listed_roles_answer_and_one_part_alone_only_without_whole_requests() {
        let of = |roles: &[Role]| {
            let sleepers: Vec<WakeCandidate> =
                roles.iter().map(|role| sleeper("a", *role, 1.0, 0)).collect();
            serving_sets(&sleepers)
        };
        let (whole, parts) = (vec![Role::Both], vec![Role::Prefill, Role::Decode]);
        assert_eq!(of(&[]), Vec::<Vec<Role>>::new());
        assert_eq!(of(&[Role::Both]), std::slice::from_ref(&whole));
        assert_eq!(of(&[Role::Decode]), [vec![Role::Decode]]);
        assert_eq!(of(&[Role::Decode, Role::Prefill]), std::slice::from_ref(&parts));
        assert_eq!(of(&[Role::Both, Role::Prefill]), std::slice::from_ref(&whole));
        assert_eq!(of(&[Role::Both, Role::Prefill, Role::Decode]), [whole, parts]);
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

        fleet[0] = sleeper("cheap", Role::Both, 1.0, 0);
        assert_eq!(woken_without(&fleet, &["cheap"]), ["dear"]);
        assert_eq!(woken_without(&fleet, &["cheap", "dear"]), ["cheap"], "no variant has room");

        fleet = [sleeper("cheap", Role::Both, 1.0, 0), sleeper("dear", Role::Both, 2.0, 0)];
        fleet[1].woken = true;
        assert_eq!(woken(&fleet), ["dear"], "its scaler may not have acted yet");
        assert_eq!(woken_without(&fleet, &["dear"]), ["cheap"]);
    }

    #[test]
    fn variants_with_room_wake_before_a_cheaper_set_without() {
        let fleet = fleet(4.0);
        assert_eq!(woken_without(&fleet, &["whole"]), ["p", "d"]);
        assert_eq!(woken_without(&fleet, &["whole", "p"]), ["whole"], "neither set has room");
    }

    #[test]
    fn variants_that_fit_alone_and_not_together_do_not_wake_before_a_set_that_fits() {
        let mut fleet = fleet(6.0);
        assert_eq!(woken_within(&fleet, &|set| set.len() == 1), ["whole"]);
        assert_eq!(woken_within(&fleet, &|_| false), ["p", "d"], "no set fits");

        for part in &mut fleet[1..] {
            part.woken = true;
        }

        assert_eq!(woken_within(&fleet, &|set| set.len() == 1), ["whole"]);
        assert_eq!(woken_within(&fleet, &|_| false), ["p", "d"]);
        fleet[1].current = Some(Replicas::ONE);
        assert_eq!(woken_within(&fleet, &|set| set.len() == 1), ["d"], "the other half is awake");
    }

    #[test]
    fn of_the_pairs_that_fit_together_the_cheapest_wakes() {
        let parts = [
            sleeper("p-dear", Role::Prefill, 9.0, 0),
            sleeper("p", Role::Prefill, 2.0, 0),
            sleeper("d-dear", Role::Decode, 8.0, 0),
            sleeper("d", Role::Decode, 3.0, 0),
        ];

        // The two cheap ones share an accelerator, and so do the two dear ones.
        let same = |key: &VariantKey| key.variant.as_str().ends_with("dear");
        let found = woken_within(&parts, &|set| set.len() == 1 || same(set[0]) != same(set[1]));
        assert_eq!(found, ["p", "d-dear"]);
    }

    #[test]
    fn hundreds_of_variants_of_both_parts_are_compared_in_few_steps() {
        let mut parts: Vec<WakeCandidate> = [("p", Role::Prefill), ("d", Role::Decode)]
            .into_iter()
            .flat_map(|(name, role)| {
                let costs = 0_u32..300;
                costs.map(move |cost| sleeper(&format!("{name}{cost}"), role, f64::from(cost), 0))
            })
            .collect();

        let asked = Cell::new(0_u32);
        let found = woken_within(&parts, &|set| {
            asked.set(asked.get() + 1);
            set.len() == 1
        });

        assert_eq!(found, ["p0", "d0"], "no pair has room");
        assert!(asked.get() < 2_000, "{} questions", asked.get());

        let full: Vec<String> = (0..200).map(|cost| format!("p{cost}")).collect();
        let full_names: Vec<&str> = full.iter().map(String::as_str).collect();
        assert_eq!(woken_without(&parts, &full_names), ["p200", "d0"]);

        parts[299].woken = true;
        assert_eq!(woken(&parts), ["p299", "d0"], "its scaler may not have acted yet");
    }

    #[test]
    fn a_pair_that_fits_is_found_behind_many_variants_on_one_accelerator() {
        let mut parts: Vec<WakeCandidate> = [("p", Role::Prefill), ("d", Role::Decode)]
            .into_iter()
            .flat_map(|(name, role)| {
                let costs = 0_u32..100;
                costs.map(move |cost| sleeper(&format!("{name}{cost}"), role, f64::from(cost), 0))
            })
            .collect();
        parts.push(sleeper("p-other", Role::Prefill, 200.0, 0));
        parts.push(sleeper("d-other", Role::Decode, 300.0, 0));

        // One replica fits on either accelerator.
        let asked = Cell::new(0_u32);
        let is_other = |key: &VariantKey| key.variant.as_str().ends_with("other");
        let fits = |set: &[&VariantKey]| {
            asked.set(asked.get() + 1);
            set.len() == 1 || is_other(set[0]) != is_other(set[1])
        };
        let alike = |one: &VariantKey, other: &VariantKey| is_other(one) == is_other(other);
        let room = WakeRoom { fits: &fits, alike: &alike };
        let queued = FrontQueue::Queued(Requests::new(3.0).unwrap());
        assert_eq!(woken_by(&wake_whole(queued, &parts, room)), ["p-other", "d0"]);
        assert!(asked.get() < 10, "{} questions", asked.get());

        // Of variants that are alike, a woken one comes first if it fits.
        parts[99].woken = true;
        assert_eq!(woken_by(&wake_whole(queued, &parts, room)), ["p99", "d-other"]);
    }

    #[test]
    fn a_half_that_was_woken_wakes_with_a_new_other_half() {
        let mut parts = [
            sleeper("p", Role::Prefill, 2.0, 0),
            sleeper("d", Role::Decode, 3.0, 0),
            sleeper("d-dear", Role::Decode, 8.0, 0),
        ];

        parts[2].woken = true;
        assert_eq!(woken(&parts), ["p", "d-dear"]);
    }

    #[test]
    fn nothing_wakes_on_an_unknown_signal() {
        let fleet = [sleeper("a", Role::Both, 1.0, 0)];
        for in_front in
            [FrontQueue::NoQueue, FrontQueue::Unknown, FrontQueue::Queued(Requests::ZERO)]
        {
            assert_eq!(wake(in_front, &fleet), Wake::Asleep(in_front));
        }

        assert_eq!(
            wake(FrontQueue::Unknown, &fleet).to_string(),
            "asleep: the queue could not be read"
        );
    }
}
