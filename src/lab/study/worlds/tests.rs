use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::simulate::Micros;
use crate::simulate::peers::profile::{self, MeanSize};
use crate::simulate::replica::settings::{Admission, Options, Settings, StepTime};
use crate::simulate::replica::speculation::Speculation;
use crate::simulate::run;
use crate::study::file::Kind;
use crate::study::resolve;
use crate::study::worlds::capacity::Capacity;
use crate::study::worlds::course::{Course, Need};
use crate::study::worlds::distribution::{Choice, PriorDistribution};
use crate::study::worlds::documented::{Prior, table};
use crate::study::worlds::draw::{WorldScenario, draw};
use crate::study::worlds::drift::Factors;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::play;
use crate::study::worlds::priors::{
    API_SERVERS, ARGUMENTS, Aspect, BATCHES, BUDGET, CLIENTS, DELAYS, DRIFTS, FAILED_STARTS,
    FAILURES, FOLLOWERS, GATEWAYS, HITS, LOSSES, NODES, NOISES, ROLLOUTS, ROUTERS, SCRAPES, SEATS,
    SHAPES, SILENCES, SLOWDOWNS, SPECULATIONS, STAGES, TASKS, UNAVAILABLE, VARIANTS,
};
use crate::study::worlds::requests::{LengthPrior, Requests};
use crate::study::worlds::written;
use plimsoll_daemon::config::yaml;

const COUNT: u32 = 300;

fn worlds() -> Vec<WorldScenario> {
    (1..=COUNT).map(|number| draw(Lot { seed: 1, number })).collect()
}

#[test]
fn a_world_depends_on_its_seed_and_number_alone() {
    let [one, same, next, other] = [(1, 7), (1, 7), (1, 8), (2, 7)]
        .map(|(seed, number)| play::text(&draw(Lot { seed, number })));
    assert_eq!(one, same);
    assert_ne!(one, next);
    assert_ne!(one, other);

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
        let resolved = resolve::resolve(value, Path::new(""))
            .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        assert!(resolved.warnings.is_empty(), "{:?}\n{text}", resolved.warnings);
    }
}

#[test]
fn worlds_are_drawn_as_often_as_the_priors_say() {
    let worlds = worlds();
    for (aspect, weights) in [
        (Aspect::Router, weights(&ROUTERS)),
        (Aspect::Clients, weights(&CLIENTS)),
        (Aspect::Nodes, weights(&NODES)),
        (Aspect::Failures, weights(&FAILURES)),
        (Aspect::Rollout, weights(&ROLLOUTS)),
        (Aspect::Scrape, weights(&SCRAPES)),
        (Aspect::ScrapeLoss, weights(&LOSSES)),
        (Aspect::Autoscaler, weights(&FOLLOWERS)),
        (Aspect::AutoscalerDelay, weights(&DELAYS)),
        (Aspect::Gateway, weights(&GATEWAYS)),
        (Aspect::Shape, weights(&SHAPES)),
        (Aspect::Lengths, weights(&TASKS)),
        (Aspect::ApiServers, weights(&API_SERVERS)),
        (Aspect::Arguments, weights(&ARGUMENTS)),
        (Aspect::Pipeline, weights(&STAGES)),
        (Aspect::Speculation, weights(&SPECULATIONS)),
        (Aspect::Noise, weights(&NOISES)),
        (Aspect::Slowdown, weights(&SLOWDOWNS)),
        (Aspect::Drift, weights(&DRIFTS)),
        (Aspect::Batch, weights(&BATCHES)),
        (Aspect::Silence, weights(&SILENCES)),
        (Aspect::FailedStarts, weights(&FAILED_STARTS)),
    ] {
        for (percent, value) in weights {
            let share = f64::from(percent) / 100.0;
            let mean = share * f64::from(COUNT);
            // Four standard deviations of a binomial distribution.
            let most = 4.0 * (mean * (1.0 - share)).sqrt();
            let count = worlds.iter().filter(|world| world.fact(aspect) == value).count() as f64;
            assert!((count - mean).abs() <= most, "{} {value}: {count} of {mean}", aspect.name());
        }
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
        sum(&API_SERVERS),
        sum(&ARGUMENTS),
        sum(&STAGES),
        sum(&SPECULATIONS),
        sum(&NOISES),
        sum(&SLOWDOWNS),
        sum(&DRIFTS),
        sum(&BATCHES),
        sum(&SILENCES),
        sum(&FAILED_STARTS),
    ];

    assert_eq!(sums, [100; 27]);
}

#[test]
fn a_spread_stays_within_its_bounds() {
    let mut random = Lot { seed: 1, number: 1 }.of(Aspect::Fleet);
    for spread in [
        PriorDistribution::Uniform { low: 2.0, high: 8.0 },
        PriorDistribution::LogUniform { low: 2.0, high: 8.0 },
        PriorDistribution::Lognormal { median: 4.0, sigma: 1.0, low: 2.0, high: 8.0 },
    ] {
        let mut values: Vec<f64> = (0..10_001).map(|_| spread.draw(&mut random)).collect();
        values.sort_by(f64::total_cmp);
        assert!(values[0] >= 2.0 && values[10_000] <= 8.0, "{spread}");
        let median = if matches!(spread, PriorDistribution::Uniform { .. }) { 5.0 } else { 4.0 };
        assert!((values[5_000] - median).abs() < 0.2, "{spread}: {}", values[5_000]);
    }
}

fn kind(points: &[(f64, f64)], startup: f64) -> Kind {
    let course = Course { points: points.to_vec(), period: None };
    Need::new(&course, Capacity::constant(10.0), 3600.0).kind(startup)
}

#[test]
fn a_need_that_rises_by_more_than_a_quarter_within_a_start_jumps() {
    // From 4 to 8 replicas in 40 minutes.
    let ramp = [(0.0, 40.0), (2400.0, 80.0)];
    assert_eq!(kind(&ramp, 120.0), Kind::Smooth);
    assert_eq!(kind(&ramp, 1200.0), Kind::Jumps);
    let small_step = [(0.0, 40.0), (1800.0, 40.0), (1800.0, 49.0)];
    assert_eq!(kind(&small_step, 30.0), Kind::Smooth);
    let step = [(0.0, 40.0), (1800.0, 40.0), (1800.0, 51.0)];
    assert_eq!(kind(&step, 30.0), Kind::Jumps);

    let fall = [(0.0, 80.0), (1800.0, 80.0), (1800.0, 10.0)];
    assert_eq!(kind(&fall, 600.0), Kind::Smooth);
    let below_one = [(0.0, 1.0), (1800.0, 1.0), (1800.0, 9.0)];
    assert_eq!(kind(&below_one, 600.0), Kind::Smooth);
}

#[test]
fn the_document_has_the_priors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/worlds.md");
    let document = fs::read_to_string(path).unwrap();
    let mut rows = Vec::new();
    for Prior { aspect, drawn, source } in table() {
        rows.push(format!("| {} | {drawn} | {source} |\n", aspect.name()));
    }

    let text = rows.concat();
    assert!(document.contains(&text), "docs/worlds.md must have these rows:\n{text}");

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

/// The mean time between tokens of requests at a rate, in seconds.
fn itl_at(rate: f64, engine: &str) -> f64 {
    let text = format!(
        "length: 20m
models:
- name: m
  slo: {{ttft: 10s, itl: 60ms}}
  workload: {{drawn: {{rate: {rate}, prompt: {{fixed: 500}}, output: {{fixed: 200}}}}}}
variants:
- name: v
  replicas: {{max: 1}}
  autoscaler: {{kind: none}}
  engine: {{alpha: 10ms, beta: 20us, delta: 100us, gamma: 50ns, kv_tokens: 1000000, seats: 1024, \
         batch_tokens: 8192{engine}}}
"
    );

    let resolved = resolve::resolve(yaml::read(&text).unwrap(), Path::new("")).unwrap();
    let outcome = run::run(&resolved.scenario, 1, &mut |_: Micros| true).unwrap();
    outcome.models[0].itl.mean().unwrap().seconds()
}

#[test]
fn an_engine_meets_its_objective_with_what_it_sustains_and_with_half_as_much_again_does_not() {
    let size = MeanSize { prompt: 500.0, output: 200.0, context: 600.0 };
    let engine = Settings {
        step: StepTime::dense(10_000.0, 20.0, 100.0, 0.05),
        max_num_seqs: 1024,
        max_num_batched_tokens: 8192,
        block_size: 16,
        kv_blocks: 62_500,
        admission: Admission::WholePrompt,
    };

    let speculation = Some(Speculation::with_mean(3, 2.5));
    for (stages, speculation, keys) in [
        (1, None, ""),
        (2, None, ", pipeline_stages: 2"),
        (4, None, ", pipeline_stages: 4"),
        (1, speculation, ", speculation: {drafts: 3, tokens: 2.5}"),
        (2, speculation, ", pipeline_stages: 2, speculation: {drafts: 3, tokens: 2.5}"),
    ] {
        let options = Options { stages, speculation, ..Options::default() };
        let itl = if speculation.is_some() { 0.01 } else { 0.025 };
        let rate = profile::sustained_by(&engine, &options, 0.0, itl, size);
        let [enough, much] = [1.0, 1.5].map(|times| itl_at(times * rate, keys) / itl);
        assert!(enough < 1.15 && much > 1.0, "{keys}: {enough}, then {much} at {rate}/s");
    }
}

#[test]
fn answers_of_many_lengths_take_more_of_the_cache_than_answers_of_their_mean_length() {
    let engine = Settings {
        step: StepTime::dense(10_000.0, 20.0, 30.0, 0.05),
        max_num_seqs: 1024,
        max_num_batched_tokens: 8192,
        block_size: 16,
        kv_blocks: 6_250,
        admission: Admission::WholePrompt,
    };
    let requests = Requests {
        task: "chat",
        prompt: LengthPrior { median: 500.0, sigma: 0.0, max: 50_000.0 },
        output: LengthPrior { median: 500.0, sigma: 1.2, max: 25_000.0 },
        hits: 0.0,
    };

    let size = requests.mean(Factors::NONE);
    let means = MeanSize { context: size.prompt + size.output / 2.0, ..size };
    let doubled = requests.mean(Factors { prompt: 1.0, output: 2.0 });
    for (size, capacity) in [(means, 5.0..5.2), (size, 2.4..2.5), (doubled, 0.8..0.85)] {
        let rate = profile::sustained_by(&engine, &Options::default(), 0.0, 0.06, size);
        assert!(capacity.contains(&rate), "{rate} for {size:?}");
    }

    let fixed = Requests { output: LengthPrior { sigma: 0.0, ..requests.output }, ..requests };
    assert!((fixed.mean(Factors::NONE).context - 750.0).abs() < 1e-9);
}

#[test]
fn bounds_are_far_above_the_peak_where_lengths_drift_and_engines_slow_down() {
    let mut changed = 0;
    let mut drifted = 0;
    for world in worlds() {
        let variant = json!(world.file)["variants"][0].clone();
        let drifts = world.fact(Aspect::Drift) != "none";
        let slows = world.fact(Aspect::Slowdown) == "all";
        changed += u32::from(drifts || slows);
        let (_, peak) = world.need.mean_and_peak();
        let max = variant["replicas"]["max"].as_f64().unwrap();
        assert!(max >= 4.0 * peak, "{}: {max} for {peak}", world.lot);
        let capacities = [0.0, 1e6].map(|time| world.need.capacity_at(time));
        let [Some(first), Some(last)] = capacities else { continue };
        assert!(first > 0.0 && last > 0.0, "{}: {first}, then {last}", world.lot);
        if world.fact(Aspect::Batch) != "none" {
            continue;
        }

        let differs = (last / first - 1.0).abs() > 0.01;
        assert!(drifts || !differs, "{}: {first}, then {last}", world.lot);
        drifted += u32::from(differs);
    }

    assert!(changed > 60 && drifted > 60, "{changed} and {drifted} of {COUNT}");
}

#[test]
fn every_policy_that_is_compared_can_play_every_world() {
    let peers = super::peers(&[]).unwrap();
    for world in worlds() {
        let ready = play::prepare(&world, &play::as_they_are(&peers)).unwrap();
        assert_eq!(ready.len(), peers.len(), "{}", world.lot);
    }
}
