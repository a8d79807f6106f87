//! Models that analyzers size, through the pipeline: numbers move as far as the load asks at once,
//! to the cheapest mix, and never down on what nobody has seen.

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::optimize::GrowthRule;
use plimsoll::decide::rank;
use plimsoll::decide::{Basis, NoData, Reason};
use plimsoll::fleet::{Role, VariantSpec};
use plimsoll::observe::{Scale, ScrapeFailure};
use plimsoll::pipeline::sizing::Sizing;
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{Fraction, Seconds};

use crate::foresight::quick;
use crate::pipeline::{
    BUSY, IDLE, KV_CAPACITY, World, at, desired, key, known, n, of, policy, spec,
};
use crate::working::{Engine, Work};

pub(crate) fn sized(analyzers: &[Analyzer]) -> Policy {
    let sizing = Sizing { analyzers: analyzers.to_vec(), ..Sizing::default() };
    Policy { sizing: Some(sizing), ..policy() }
}

fn world(specs: Vec<VariantSpec>) -> World {
    World::with(sized(&[Analyzer::Tokens]), specs)
}

/// What one replica carries at the default thresholds.
const CARRIES: f64 = KV_CAPACITY * 0.8;

/// The smallest count that is not below this.
fn whole(replicas: f64) -> u32 {
    (1..100).find(|count| f64::from(*count) >= replicas).unwrap()
}

#[test]
fn a_model_grows_at_once_to_what_its_load_needs() {
    let mut world = world(vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.98, 0.0));
    // 8 * 0.98 * 16,000 tokens, of which 85% of 12,800 may be used by each.
    assert_eq!(desired(&world.run(3), "a"), whole(8.0 * 0.98 * KV_CAPACITY / 0.85 / CARRIES));
    assert!(desired(&world.tick(), "a") > 9, "more than one replica more");
}

#[test]
fn what_is_coming_is_not_asked_for_twice_and_not_given_up() {
    let mut world = world(vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.98, 0.0));
    let asked = desired(&world.run(3), "a");
    // The new pods exist and do not answer; the load is as it was.
    world.variants.get_mut("a").unwrap().scale = known(asked, 8);
    for _ in 0..60 {
        assert_eq!(desired(&world.tick(), "a"), asked);
    }
}

#[test]
fn replicas_that_never_start_are_not_counted_on() {
    let mut world = world(vec![spec("a", 1.0, (1, 40))]);
    world.set("a", 8, (0.98, 0.0));
    let asked = desired(&world.run(3), "a");
    world.variants.get_mut("a").unwrap().scale = known(asked, 8);
    // Twice the patience of five minutes.
    let decisions = world.run(610);
    assert_eq!(desired(&decisions, "a"), asked + (asked - 8), "as many again");
    let said = of(&decisions, "a").steps[0].to_string();
    assert!(said.contains("are stuck in startup and do not count as capacity"), "{said}");
}

/// Ticks once a second while the first replicas of a variant sleep.
fn sleeping(world: &mut World, replicas: usize, seconds: i64) -> Decisions {
    let mut last = Decisions::default();
    for _ in 0..seconds {
        let mut inputs = world.inputs();
        for scrape in inputs.scrapes.iter_mut().take(replicas) {
            if let Ok(reading) = &mut scrape.outcome {
                reading.ranks[0].asleep = Some(true);
            }
        }
        last = world.pipeline.tick(at(world.second), &inputs);
        world.second += 1;
    }
    last
}

#[test]
fn replicas_that_sleep_have_no_load_and_no_capacity_and_stay_on_top() {
    let mut world = world(vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.1, 0.0));
    let needed = whole(4.0 * 0.1 * KV_CAPACITY / 0.70 / CARRIES);
    let waking = sleeping(&mut world, 4, 40);
    assert!(desired(&waking, "a") >= needed + 4, "{:?}", of(&waking, "a").steps);
    let dormant = sleeping(&mut world, 4, 40);
    assert_eq!(desired(&dormant, "a"), needed + 4, "{:?}", of(&dormant, "a").steps);
    let said = of(&dormant, "a").steps[0].to_string();
    assert!(said.contains("4 replicas sleep and do not count as capacity"), "{said}");

    world.variants.get_mut("a").unwrap().load = (0.98, 0.0);
    let busy = sleeping(&mut world, 4, 15);
    let needed = whole(4.0 * 0.98 * KV_CAPACITY / 0.85 / CARRIES);
    assert_eq!(desired(&busy, "a"), needed + 4, "{:?}", of(&busy, "a").steps);

    let awake = whole(8.0 * 0.98 * KV_CAPACITY / 0.85 / CARRIES);
    assert_eq!(desired(&world.run(15), "a"), awake, "all of them serve");
}

#[test]
fn under_saturation_a_replica_that_sleeps_blocks_nothing() {
    for (load, after) in [(IDLE, 3), (BUSY, 5)] {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
        world.set("a", 4, load);
        let decisions = sleeping(&mut world, 1, 80);
        assert_eq!(desired(&decisions, "a"), after, "{:?}", of(&decisions, "a").steps);
    }
}

#[test]
fn a_model_shrinks_to_what_its_load_needs_once_it_is_known() {
    let mut world = world(vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.1, 0.0));
    assert_eq!(desired(&world.run(5), "a"), 8, "not before a window has passed");
    let decisions = world.run(30);
    assert_eq!(desired(&decisions, "a"), whole(8.0 * 0.1 * KV_CAPACITY / 0.70 / CARRIES));
    let said = of(&decisions, "a").steps[0].to_string();
    assert!(said.contains("headroom, and all analyzers agree"), "{said}");
}

#[test]
fn the_cheapest_variant_that_carries_it_grows() {
    let mut world = world(vec![spec("dear", 10.0, (1, 20)), spec("cheap", 6.0, (1, 20))]);
    world.set("dear", 2, (0.75, 0.0));
    world.set("cheap", 2, (0.75, 0.0));
    let decisions = world.run(3);
    // 48,000 tokens in use need 56,471 at 85%: five replicas of 12,800.
    let (dear, cheap) = (desired(&decisions, "dear"), desired(&decisions, "cheap"));
    assert_eq!((dear, dear + cheap), (2, 6));
}

#[test]
fn a_role_at_its_maximum_does_not_keep_the_other_from_growing() {
    let role = |name: &str, role, max| VariantSpec { role, ..spec(name, 1.0, (1, max)) };
    let full = |roles: [(&str, Role, u32); 2]| {
        let mut world = world(roles.map(|(name, as_, max)| role(name, as_, max)).to_vec());
        for (name, ..) in roles {
            world.set(name, 8, (0.98, 0.0));
        }
        let decisions = world.run(3);
        roles.map(|(name, ..)| desired(&decisions, name))
    };
    let (free, needed) = (40, whole(8.0 * 0.98 * KV_CAPACITY / 0.85 / CARRIES));
    for (prefill, decode) in [(free, free), (free, 8), (8, free), (8, 8)] {
        let found = full([("p", Role::Prefill, prefill), ("d", Role::Decode, decode)]);
        assert_eq!(found, [needed.min(prefill), needed.min(decode)], "{prefill} and {decode}");
    }
}

#[test]
fn a_role_that_is_short_at_its_maximum_leaves_no_demand_of_the_other() {
    let role = |name: &str, role| VariantSpec { role, ..spec(name, 1.0, (1, 8)) };
    let mut world = world(vec![role("p", Role::Prefill), role("d", Role::Decode)]);
    world.set("p", 8, (0.98, 0.0));
    // 78% of what eight replicas carry: neither short nor spare.
    world.set("d", 8, (0.62, 0.0));
    let decisions = world.run(3);
    for (name, is_short, label) in [("p", true, "capacity_short"), ("d", false, "capacity_kept")] {
        let decision = of(&decisions, name);
        assert_eq!(decision.is_short_at_max(), Some(is_short), "{name}");
        let reason = &decision.steps[0].reason;
        assert_eq!(reason.label(), label);
        let said = reason.to_string();
        assert_eq!(said.contains("demand exceeds capacity at max"), is_short, "{said}");
    }
}

#[test]
fn by_rank_what_is_cheap_for_its_list_price_grows_and_the_decision_keeps_every_option() {
    let mut by_rank = sized(&[Analyzer::Tokens]);
    let Some(sizing) = &mut by_rank.sizing else { panic!() };
    sizing.optimizer.rule = GrowthRule::Ranked(rank::Policy::default());
    let mut spot = spec("spot", 4.0, (1, 20));
    spot.list_price = spec("listed", 10.0, (1, 20)).cost.into();
    let mut world = World::with(by_rank, vec![spec("whole", 10.0, (1, 20)), spot]);
    world.set("whole", 2, (0.75, 0.0));
    world.set("spot", 2, (0.75, 0.0));
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "whole"), desired(&decisions, "spot")), (2, 3));
    // 5,271 of 12,800 tokens are worth 5,271 / 12,800 * 10 at list price, and half of that is the
    // damper of one replica.
    let ratio = |cost: f64| (cost + 5.0) / (5_270.588 / CARRIES * 10.0 + 5.0);
    let sizing = of(&decisions, "spot").sizing.as_ref().unwrap();
    let rank = sizing.rank.as_ref().unwrap();
    let [round] = rank.rankings[0].residual.rounds.as_slice() else { panic!() };
    let scores: Vec<f64> = round.options.iter().map(|it| it.scored.unwrap().score).collect();
    for (score, expected) in scores.iter().zip([ratio(4.0), ratio(10.0)]) {
        assert!((score - expected).abs() < 1e-3, "{scores:?}, not {expected}");
    }
    let [spot, whole] = ["spot", "whole"].map(|it| of(&decisions, it).steps[0].to_string());
    assert!(
        spot.contains("added for the shortfall, ranked by price; ranked by price to serve \
                       5270.6 KV tokens: 1 replica for 4.00 per hour serves load worth 4.12: ratio 0.987"),
        "{spot}"
    );
    assert!(
        whole.contains("ranked by price for KV tokens and not chosen: 1 replica for 10.00"),
        "{whole}"
    );
    assert!(whole.ends_with(", against 0.987 of spot"), "{whole}");
}

#[test]
fn by_rank_what_is_scarce_and_not_needed_grows_last_and_the_decision_says_why() {
    let grown = |mismatch: f64| {
        let mut by_rank = sized(&[Analyzer::Tokens]);
        let Some(sizing) = &mut by_rank.sizing else { panic!() };
        sizing.optimizer.rule = GrowthRule::Ranked(rank::Policy::default());
        let mut large = spec("large", 4.0, (1, 20));
        large.mismatch = Fraction::new(mismatch).unwrap();
        let mut world = World::with(by_rank, vec![large, spec("small", 6.0, (1, 20))]);
        world.set("large", 2, (0.75, 0.0));
        world.set("small", 2, (0.75, 0.0));
        let decisions = world.run(3);
        let numbers = (desired(&decisions, "large"), desired(&decisions, "small"));
        (numbers, of(&decisions, "large").steps[0].to_string())
    };
    let ((large, small), said) = grown(1.0);
    assert_eq!((large, small), (3, 2));
    assert!(!said.contains("scarce"), "{said}");
    let ((large, small), said) = grown(3.0);
    assert_eq!((large, small), (2, 3));
    assert!(
        said.contains(" x 3.0 for a scarce accelerator that the model does not need, score "),
        "{said}"
    );
}

#[test]
fn what_is_replaced_by_something_cheaper_stays_until_that_carries_load() {
    let mut world = world(vec![spec("dear", 10.0, (0, 20)), spec("cheap", 1.0, (0, 20))]);
    world.set("dear", 4, (0.6, 0.0));
    world.set("cheap", 1, (0.6, 0.0));
    let decisions = world.run(30);
    let (dear, cheap) = (desired(&decisions, "dear"), desired(&decisions, "cheap"));
    assert_eq!(dear, 4, "still serving");
    assert!(cheap > 1, "{cheap}");
    let said = of(&decisions, "dear").steps[0].to_string();
    assert!(said.contains("once the replacements serve"), "{said}");
}

#[test]
fn what_is_replaced_is_replaced_once_however_long_that_takes() {
    let mut world = world(vec![spec("dear", 10.0, (0, 40)), spec("cheap", 1.0, (0, 40))]);
    world.set("dear", 4, (0.6, 0.0));
    world.set("cheap", 1, (0.6, 0.0));
    let decisions = world.run(30);
    let (dear, cheap) = (desired(&decisions, "dear"), desired(&decisions, "cheap"));
    assert!(dear == 4 && cheap > 1, "{dear} {cheap}");
    // It is asked for, and takes its time.
    world.variants.get_mut("cheap").unwrap().scale = known(cheap, 1);
    for _ in 0..120 {
        let decisions = world.tick();
        let now = (desired(&decisions, "dear"), desired(&decisions, "cheap"));
        assert_eq!(now, (4, cheap), "{:?}", of(&decisions, "cheap").steps);
    }
    // It serves, and what it replaces is let go, which takes its time as well.
    let each = 0.6 * 5.0 / f64::from(4 + cheap);
    world.set("dear", 4, (each, 0.0));
    world.set("cheap", cheap, (each, 0.0));
    for _ in 0..600 {
        let now = desired(&world.tick(), "cheap");
        // For a moment the load is seen on those that had it and on those that have it.
        assert!(now <= cheap + 1, "{now} for {cheap}");
    }
    assert_eq!(desired(&world.tick(), "dear"), 0);
}

#[test]
fn starting_replicas_without_a_remembered_reason_replace_nothing() {
    let mut world = world(vec![spec("dear", 10.0, (0, 40)), spec("cheap", 1.0, (0, 40))]);
    world.set("dear", 4, (0.6, 0.0));
    world.set("cheap", 1, (0.6, 0.0));
    // As after a restart in the middle of a replacement.
    world.variants.get_mut("cheap").unwrap().scale = known(5, 1);
    for _ in 0..60 {
        let decisions = world.tick();
        assert_eq!((desired(&decisions, "dear"), desired(&decisions, "cheap")), (4, 5));
    }
}

#[test]
fn without_data_the_number_stays_and_says_so() {
    let mut world = world(vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.98, 0.0));
    let asked = desired(&world.run(3), "a");
    for index in 0..8 {
        world.variants.get_mut("a").unwrap().failing.insert(index, ScrapeFailure::Timeout);
    }
    let decisions = world.run(600);
    let decision = of(&decisions, "a");
    assert_eq!((decision.desired(), decision.basis), (n(asked), Basis::Held));
    assert!(matches!(decision.steps[0].reason, Reason::NoData(NoData::NoFreshReplica)));
}

#[test]
fn while_no_analyzer_has_anything_to_say_saturation_moves_the_number_by_one() {
    let mut world = World::with(sized(&[Analyzer::Queueing]), vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.98, 9.0));
    let decisions = world.run(3);
    assert_eq!(desired(&decisions, "a"), 9);
    assert!(matches!(of(&decisions, "a").steps[0].reason, Reason::Load(_)));
}

#[test]
fn a_target_that_nothing_meets_is_forgotten_with_the_analyzer_that_found_it() {
    let mut strict = quick();
    if let Some(sizing) = &mut strict.sizing {
        sizing.foresight.itl = Seconds::new(0.001);
    }
    let is_unmeetable = |decisions: &Decisions| {
        let steps = &of(decisions, "a").steps;
        steps.iter().any(|step| matches!(step.reason, Reason::SloUnmeetable(_)))
    };

    for after in [policy(), sized(&[Analyzer::Tokens])] {
        let mut work = Work::with(strict.clone(), vec![spec("a", 1.0, (1, 20))], Engine::default());
        assert!(is_unmeetable(&work.run(4, 60.0, 200)));
        work.world.pipeline.set_policy(after);
        assert!(!is_unmeetable(&work.run(4, 60.0, 2)));
    }
}

#[test]
fn an_analyzer_that_knows_nothing_keeps_a_model_from_shrinking() {
    let both = sized(&[Analyzer::Tokens, Analyzer::Queueing]);
    let mut world = World::with(both, vec![spec("a", 1.0, (1, 20))]);
    // Nothing is finished on these pages, so nobody can learn what a request takes.
    world.set("a", 8, (0.1, 0.0));
    let decisions = world.run(60);
    assert_eq!(desired(&decisions, "a"), 8);
    let said = of(&decisions, "a").steps[0].to_string();
    assert!(said.contains("queueing has no recent data"), "{said}");
}

#[test]
fn a_variant_that_cannot_be_counted_keeps_the_others_from_shrinking() {
    let mut world = world(vec![spec("a", 1.0, (1, 20)), spec("b", 1.0, (1, 20))]);
    world.set("a", 8, (0.1, 0.0));
    world.set("b", 2, (0.1, 0.0));
    let unknown = plimsoll::observe::WhyScaleUnknown::Forbidden;
    world.variants.get_mut("b").unwrap().scale = Scale::Unknown(unknown);
    let decisions = world.run(60);
    assert_eq!(desired(&decisions, "a"), 8);
    assert!(decisions.undecided.contains_key(&key("b")));
}
