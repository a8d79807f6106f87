//! Cards: their immediate benefit, their replacement by evidence, and their limits.

use super::*;
use crate::analyze::foresight::card::{Card, EngineKind, EngineProfile};
use crate::analyze::foresight::pace::SETTLED;
use crate::analyze::sharing::CardSharing;
use crate::fleet::{Accelerator, Namespace, VariantName};

fn on_l4(mut spec: VariantSpec) -> VariantSpec {
    spec.accelerator = Accelerator::new("L4");
    spec
}

/// Requests per second at which none of four replicas gets enough for a lesson in two minutes.
const NOTHING_LEARNED: f64 = 0.01;

fn tokens(count: f64) -> Tokens {
    Tokens::new(count).unwrap()
}

/// The truth, off by a factor.
fn card(off: f64) -> Arc<Card> {
    let IterationCost { alpha, beta, delta } = TRUTH;

    Arc::new(Card {
        kind: EngineKind::of(&on_l4(VariantSpec::example("a")), None).unwrap(),
        learned: EngineProfile {
            iteration: IterationCost { alpha: alpha * off, beta: beta * off, delta: delta * off },
            lessons: 40,
            content: None,
            prompt: tokens(PROMPT),
            output: tokens(OUTPUT),
            held: Tokens::new(PROMPT + OUTPUT / 2.0),
            full_at: None,
            most_running: Requests::ZERO,
            busiest: Tokens::ZERO,
        },
        from: None,
        at: None,
    })
}

impl World {
    pub(super) fn with_card(replicas: u32, off: f64) -> Self {
        let mut world = Self::new(replicas);
        world.spec = on_l4(world.spec);
        world.foresight.import(&Arc::from([card(off)]));
        world
    }

    fn goes_by_card(&self) -> bool {
        self.foresight.card(&self.spec.key).is_some()
    }

    fn of(&self, variant: &str) -> VariantSpec {
        let mut spec = self.spec.clone();
        spec.key.variant = VariantName::new(variant).unwrap();
        spec
    }
}

#[test]
fn with_a_card_the_first_page_says_what_a_replica_carries_and_without_one_nothing_does() {
    let mut without = World::new(1);
    without.spec = on_l4(without.spec);
    assert_eq!(without.tick(10.0).report.variants[0].per_replica, None);

    let mut with = World::with_card(1, 1.0);
    let found = with.tick(10.0);
    assert!((carries(&found) / truth() - 1.0).abs() < 0.02, "{} of {}", carries(&found), truth());
    assert_eq!(found.report.variants[0].confidence, Confidence::Assumed);
}

#[test]
fn a_card_that_is_wrong_by_two_is_overcome_within_a_minute() {
    for off in [0.5, 2.0] {
        // Three replicas, each with a lesson every 15 s, and a load that fills them by half.
        let mut world = World::with_card(3, off);
        // Only the time between tokens binds.
        (world.policy.budget, world.policy.seats) = (1e6, requests(1e6).unwrap());
        let rate = 1.5 * truth();
        let first = carries(&world.tick(rate));
        assert!(first / truth() < 0.6 || first / truth() > 1.7, "{off}: {first} of {}", truth());

        let minute = carries(&world.run(59, rate));
        assert!((minute / truth() - 1.0).abs() < 0.35, "{off}: {minute} of {}", truth());
        assert!(!world.goes_by_card(), "{off}: its own lessons count");
    }
}

#[test]
fn a_card_that_is_wrong_by_ten_is_put_aside_by_the_first_lesson() {
    for off in [0.1, 10.0] {
        let mut world = World::with_card(3, off);
        let rate = 1.5 * truth();
        let _ = world.run(20, rate);
        assert!(!world.goes_by_card(), "{off}");
        let found = carries(&world.run(100, rate));
        let without = carries(&World::new(3).run(120, rate));
        assert!((found / without - 1.0).abs() < 0.05, "{off}: {found}, and {without} without");
    }

    // A target that only a card makes unreachable is no floor.
    let mut world = World::with_card(3, 10.0);
    let found = world.tick(1.0);
    assert_eq!((found.report.variants[0].per_replica, found.floors.len()), (None, 0));
}

#[test]
fn what_a_card_says_is_never_spare_however_much_it_promises() {
    let mut world = World::with_card(8, 0.1);
    for _ in 0..600 {
        let found = world.tick(NOTHING_LEARNED);
        let by_card = world.goes_by_card();
        assert!(!by_card || found.report.total.spare == Amount::ZERO, "{found:?}");
    }
}

#[test]
fn a_card_that_nothing_confirms_is_put_aside_when_something_could_be_spare() {
    let mut world = World::with_card(4, 3.0);
    let found = world.run(60, NOTHING_LEARNED);
    assert!(world.goes_by_card() && found.report.variants[0].per_replica.is_some());
    let found = world.run(100, NOTHING_LEARNED);
    assert!(!world.goes_by_card());
    assert_eq!(found.report.variants[0].per_replica, None, "as if there were none");
}

#[test]
fn a_card_of_replicas_that_are_said_to_start_slowly_has_two_of_those_starts_to_be_confirmed() {
    let mut world = World::with_card(4, 3.0);
    world.spec.start_time = Some(Seconds::literal(600));
    let _ = world.run(1190, NOTHING_LEARNED);
    assert!(world.goes_by_card());
    let _ = world.run(20, NOTHING_LEARNED);
    assert!(!world.goes_by_card());
}

#[test]
fn a_card_is_for_requests_of_its_own_lengths_alone() {
    let mut world = World::with_card(1, 1.0);
    world.prompt = 4.0 * PROMPT;
    // At first too slow for lessons. Then fast enough to show that the mix is different.
    let _ = world.run(10, 0.2);
    assert!(world.goes_by_card());
    let _ = world.run(60, 2.0);
    assert!(!world.goes_by_card());

    // A card that is imported later meets known lengths of the model.
    let mut world = World::new(1);
    world.spec = on_l4(world.spec);
    world.prompt = 4.0 * PROMPT;
    let _ = world.run(14, 3.0);
    world.foresight.import(&Arc::from([card(1.0)]));
    let _ = world.tick(3.0);
    assert!(!world.goes_by_card());
}

#[test]
fn a_variant_beside_one_of_the_same_kind_begins_from_what_that_has_learned() {
    let mut world = World::new(2);
    world.spec = on_l4(world.spec);
    let before = carries(&world.run(300, truth()));

    let beside = world.of("b");
    world.spec = beside;
    let after = world.tick(truth());
    assert!((carries(&after) / before - 1.0).abs() < 0.05, "{} {before}", carries(&after));
    let said = after.cards[&world.spec.key].to_string();
    assert!(said.starts_with("the card of m on L4 that shop/a taught at 20"), "{said}");
    assert!(said.ends_with("for requests of 1000 + 200 tokens"), "{said}");

    // A variant of another kind has no card.
    let mut other = world.of("c");
    other.accelerator = Accelerator::new("H100");
    world.spec = other;
    assert_eq!(world.tick(truth()).report.variants[0].per_replica, None);
}

#[test]
fn what_was_measured_here_and_what_was_saved_count_before_a_card() {
    let mut known = World::new(2);
    known.spec = on_l4(known.spec);
    let before = carries(&known.run(300, truth()));
    let model = known.spec.model_key();
    let key = known.spec.key.clone();
    let saved = known.foresight.save(&model, &key).unwrap();

    // The card is used first, and the saved state replaces it.
    let mut world = World::with_card(2, 2.0);
    world.now = known.now;
    let _ = world.tick(truth());
    assert!(world.goes_by_card());
    world.foresight.recall(&model, &key, &saved);
    let recalled = carries(&world.tick(truth()));
    assert!(!world.goes_by_card());
    assert!((recalled / before - 1.0).abs() < 0.02, "{recalled} {before}");

    // Known coefficients stay.
    known.foresight.import(&Arc::from([card(2.0)]));
    let _ = known.tick(truth());
    assert!(!known.goes_by_card());
}

#[test]
fn what_a_card_says_is_not_saved_as_what_was_measured() {
    let mut world = World::with_card(1, 1.0);
    let _ = world.run(20, 10.0);
    assert!(world.goes_by_card());
    let saved = world.foresight.save(&world.spec.model_key(), &world.spec.key).unwrap();
    assert_eq!(saved.seen, None);
    assert_eq!(world.foresight.cards().count(), 0, "nor shown as what was learned");
}

fn near(one: Tokens, other: f64) -> bool {
    (one.tokens() / other - 1.0).abs() < 0.05
}

#[test]
fn a_card_says_what_was_learned_and_from_what() {
    let mut world = World::new(2);
    world.spec = on_l4(world.spec);
    let _ = world.run(300, 1.5 * truth());
    let cards: Vec<_> = world.foresight.cards().cloned().collect();
    let [card] = cards.as_slice() else { panic!("{cards:?}") };
    let EngineProfile { lessons, content, prompt, output, held, .. } = card.learned;
    assert!(near(prompt, PROMPT) && near(output, OUTPUT));
    assert!(near(held.unwrap(), PROMPT + OUTPUT / 2.0));
    assert!(lessons >= SETTLED && content.unwrap()[1] > 4.0, "{card:?}");
    assert_eq!(card.from.as_ref(), Some(&world.spec.key));

    // The card outlives its variant, for a week.
    world.foresight.retain(at(world.now), &BTreeSet::new(), &BTreeSet::new());
    assert_eq!(world.foresight.cards().count(), 1);
    let later = at(world.now + 8 * 24 * 3600);
    world.foresight.retain(later, &BTreeSet::new(), &BTreeSet::new());
    assert_eq!(world.foresight.cards().count(), 0);
}

#[test]
fn a_card_does_not_cross_namespaces_unless_the_operator_allows_it() {
    let other = Namespace::new("other").unwrap();
    for (sharing, crosses) in [(CardSharing::Namespace, false), (CardSharing::Cluster, true)] {
        let mut world = World::new(3);
        world.spec = on_l4(world.spec);
        world.policy.share_cards = sharing;
        let _ = world.run(120, 1.5 * truth());
        let taught = world.foresight.cards().next().cloned().unwrap();
        assert_eq!(taught.from.as_ref(), Some(&world.spec.key));

        let mut same = World::new(1);
        same.policy.share_cards = sharing;
        same.spec = world.of("b");
        same.foresight.shelf = world.foresight.shelf.clone();
        let _ = same.tick(10.0);
        assert!(same.goes_by_card(), "{sharing:?}: of its own namespace");

        let mut foreign = World::new(1);
        foreign.policy.share_cards = sharing;
        foreign.spec = world.of("b");
        foreign.spec.key.namespace = other.clone();
        foreign.foresight.shelf = world.foresight.shelf.clone();
        let _ = foreign.tick(10.0);
        assert_eq!(foreign.goes_by_card(), crosses, "{sharing:?}: of another namespace");

        // Cards of the configuration are for all namespaces.
        foreign.foresight.import(&Arc::from([card(1.0)]));
        let _ = foreign.tick(10.0);
        assert!(foreign.goes_by_card(), "{sharing:?}: of the configuration");
    }
}
