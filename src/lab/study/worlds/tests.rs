use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::study::file::Kind;
use crate::study::resolve;
use crate::study::worlds::course::{Course, Need};
use crate::study::worlds::documented::{Prior, table};
use crate::study::worlds::draw::{World, draw};
use crate::study::worlds::lot::{Choice, Lot, Spread};
use crate::study::worlds::play;
use crate::study::worlds::priors::{
    Aspect, BUDGET, CLIENTS, DELAYS, FAILURES, FOLLOWERS, GATEWAYS, HITS, LOSSES, NODES, ROLLOUTS,
    ROUTERS, SCRAPES, SEATS, SHAPES, TASKS, UNAVAILABLE, VARIANTS,
};
use crate::study::worlds::written;
use plimsoll_daemon::config::yaml;

const COUNT: u32 = 300;

fn worlds() -> Vec<World> {
    (1..=COUNT).map(|number| draw(Lot { seed: 1, number })).collect()
}

#[test]
fn a_world_depends_on_its_seed_and_number_alone() {
    let text = |seed, number| play::text(&draw(Lot { seed, number }));
    assert_eq!(text(1, 7), text(1, 7));
    assert_ne!(text(1, 7), text(1, 8));
    assert_ne!(text(1, 7), text(2, 7));
    assert_eq!(Lot::parse("1:7").map(|lot| lot.to_string()).as_deref(), Some("1:7"));
    for wrong in ["", "1", "1:", ":7", "-1:7", "1:7:2", "a:b"] {
        assert!(Lot::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn every_world_is_a_scenario_without_a_problem_or_a_warning() {
    for world in worlds() {
        let text = play::text(&world);
        let value = yaml::read(&text).unwrap();
        assert_eq!(value, written::value(&world.file), "what is printed is what is played");
        let resolved = resolve::resolve(value, Path::new(""));
        let resolved = resolved.unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        assert!(resolved.warnings.is_empty(), "{:?}\n{text}", resolved.warnings);
    }
}

#[test]
fn worlds_are_drawn_as_often_as_the_priors_say() {
    let worlds = worlds();
    let drawn = |aspect: Aspect, value: &str| {
        worlds.iter().filter(|world| world.fact(aspect) == value).count() as f64
    };
    let mut expected: Vec<(Aspect, &str, u32)> = Vec::new();
    let mut expect = |aspect, weights: Vec<(u32, &'static str)>| {
        expected.extend(weights.into_iter().map(|(weight, name)| (aspect, name, weight)));
    };
    expect(Aspect::Router, weights(&ROUTERS));
    expect(Aspect::Clients, weights(&CLIENTS));
    expect(Aspect::Nodes, weights(&NODES));
    expect(Aspect::Failures, weights(&FAILURES));
    expect(Aspect::Rollout, weights(&ROLLOUTS));
    expect(Aspect::Scrape, weights(&SCRAPES));
    expect(Aspect::ScrapeLoss, weights(&LOSSES));
    expect(Aspect::Autoscaler, weights(&FOLLOWERS));
    expect(Aspect::AutoscalerDelay, weights(&DELAYS));
    expect(Aspect::Gateway, weights(&GATEWAYS));
    expect(Aspect::Shape, weights(&SHAPES));
    expect(Aspect::Lengths, weights(&TASKS));
    for (aspect, value, percent) in expected {
        let share = f64::from(percent) / 100.0;
        let mean = share * f64::from(COUNT);
        // Four standard deviations of a binomial distribution.
        let most = 4.0 * (mean * (1.0 - share)).sqrt();
        let count = drawn(aspect, value);
        assert!((count - mean).abs() <= most, "{} {value}: {count} of {mean}", aspect.name());
    }

    let smooth = worlds.iter().filter(|world| world.kind == Kind::Smooth).count();
    assert!((60..=240).contains(&smooth), "both classes are there: {smooth}");
}

#[test]
fn the_weights_of_a_choice_are_percentages() {
    let sums = [
        sum(&SEATS),
        sum(&BUDGET),
        sum(&HITS),
        sum(&TASKS),
        sum(&SHAPES),
        sum(&NODES),
        sum(&FAILURES),
        sum(&ROLLOUTS),
        sum(&UNAVAILABLE),
        sum(&VARIANTS),
        sum(&ROUTERS),
        sum(&CLIENTS),
        sum(&SCRAPES),
        sum(&LOSSES),
        sum(&FOLLOWERS),
        sum(&DELAYS),
        sum(&GATEWAYS),
    ];
    assert_eq!(sums, [100; 17]);
}

#[test]
fn a_spread_stays_within_its_bounds() {
    let mut random = Lot { seed: 1, number: 1 }.of(Aspect::Fleet);
    for spread in [
        Spread::Uniform { low: 2.0, high: 8.0 },
        Spread::LogUniform { low: 2.0, high: 8.0 },
        Spread::Lognormal { median: 4.0, sigma: 1.0, low: 2.0, high: 8.0 },
    ] {
        let mut values: Vec<f64> = (0..10_001).map(|_| spread.draw(&mut random)).collect();
        values.sort_by(f64::total_cmp);
        assert!(values[0] >= 2.0 && values[10_000] <= 8.0, "{spread}");
        let median = if matches!(spread, Spread::Uniform { .. }) { 5.0 } else { 4.0 };
        assert!((values[5_000] - median).abs() < 0.2, "{spread}: {}", values[5_000]);
    }
}

#[test]
fn a_need_that_rises_by_more_than_a_quarter_within_a_start_jumps() {
    let kind = |points: &[(f64, f64)], startup| {
        let course = Course { points: points.to_vec(), period: None };
        Need::new(&course, 10.0, 3600.0).kind(startup)
    };
    // From 4 to 8 replicas in 40 minutes.
    let ramp = [(0.0, 40.0), (2400.0, 80.0)];
    assert_eq!(kind(&ramp, 120.0), Kind::Smooth);
    assert_eq!(kind(&ramp, 1200.0), Kind::Jumps);
    let step = |to| [(0.0, 40.0), (1800.0, 40.0), (1800.0, to)];
    assert_eq!(kind(&step(49.0), 30.0), Kind::Smooth);
    assert_eq!(kind(&step(51.0), 30.0), Kind::Jumps);
    let fall = [(0.0, 80.0), (1800.0, 80.0), (1800.0, 10.0)];
    assert_eq!(kind(&fall, 600.0), Kind::Smooth);
    let below_one = [(0.0, 1.0), (1800.0, 1.0), (1800.0, 9.0)];
    assert_eq!(kind(&below_one, 600.0), Kind::Smooth);
}

#[test]
fn the_document_has_the_priors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/worlds.md");
    let document = fs::read_to_string(path).unwrap();
    let row = |Prior { aspect, drawn, source }: Prior| {
        format!("| {} | {drawn} | {source} |\n", aspect.name())
    };
    let rows: String = table().into_iter().map(row).collect();
    assert!(document.contains(&rows), "docs/worlds.md must have these rows:\n{rows}");

    let mut named: BTreeMap<&str, u32> = BTreeMap::new();
    for prior in table() {
        *named.entry(prior.aspect.name()).or_default() += 1;
    }
    for fact in draw(Lot { seed: 1, number: 1 }).facts {
        assert_eq!(named.get(fact.aspect.name()), Some(&1), "{}", fact.aspect.name());
    }
}

/// The weights and names of a choice.
fn weights<T: Copy>(choice: &Choice<T>) -> Vec<(u32, &'static str)> {
    choice.0.iter().map(|&(weight, name, _)| (weight, name)).collect()
}

fn sum<T: Copy>(choice: &Choice<T>) -> u32 {
    weights(choice).iter().map(|(weight, _)| weight).sum()
}
