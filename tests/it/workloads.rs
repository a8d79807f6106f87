//! What pod templates say, through the pipeline: what a replica takes where none runs, and how
//! engines are started.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::workload::{EngineReport, GpusSource};
use plimsoll::fleet::{Accelerator, VariantSpec};
use plimsoll::observe::Inputs;
use plimsoll::observe::template::{Container, PodTemplate, Templates};
use plimsoll::pipeline::Decisions;

use crate::pipeline::{KV_CAPACITY, World, at, desired, key, of, spec};
use crate::sizing::sized;

fn started(words: &[&str]) -> Arc<PodTemplate> {
    let container = Container {
        image: "vllm/vllm-openai:v0.11".to_owned(),
        args: words.iter().map(|word| (*word).to_owned()).collect(),
        ..Container::default()
    };
    Arc::new(PodTemplate { containers: vec![container], ..PodTemplate::default() })
}

fn tick(world: &mut World, templates: &Templates) -> Decisions {
    let inputs = Inputs { templates: templates.clone(), ..world.inputs() };
    let decisions = world.pipeline.tick(at(world.second), &inputs);
    world.second += 1;
    decisions
}

fn on_h100(variant: &str) -> VariantSpec {
    VariantSpec { accelerator: Accelerator::new("H100"), ..spec(variant, 1.0, (0, 20)) }
}

/// A model with a variant that runs and a cheaper one that has never run.
fn half_asleep() -> World {
    let cheap =
        VariantSpec { cost: plimsoll::units::CostPerHour::new(0.5).unwrap(), ..on_h100("b") };
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![on_h100("a"), cheap]);
    world.set("a", 2, (0.9, 0.0));
    world.set("b", 0, (0.0, 0.0));
    world
}

#[test]
fn a_variant_that_has_never_run_grows_where_one_that_is_started_alike_is_known() {
    let alike = |other: &[&str]| {
        let templates = BTreeMap::from([
            (key("a"), started(&["--max-num-seqs", "64"])),
            (key("b"), started(other)),
        ]);
        let mut world = half_asleep();
        let mut last = tick(&mut world, &templates);
        for _ in 0..4 {
            last = tick(&mut world, &templates);
        }
        (desired(&last, "a"), desired(&last, "b"))
    };
    let (a, b) = alike(&["--max-num-seqs", "64"]);
    assert!(b > 0, "the cheaper one carries what is missing, {a} and {b}");
    let (_, b) = alike(&["--kv-cache-dtype", "fp8"]);
    assert_eq!(b, 0, "another engine, of which nobody knows what it carries");
}

#[test]
fn how_an_engine_is_started_is_said_and_what_cannot_be_read_changes_nothing() {
    let mut world = half_asleep();
    let without = tick(&mut world.clone(), &Templates::new());
    assert_eq!(without.workloads[&key("a")].engine, None);
    let state = |decisions: &Decisions| {
        decisions.workloads[&key("a")].engine.as_ref().map(EngineReport::label)
    };
    for (words, want) in [
        (vec!["--max-num-seqs", "64"], "read"),
        (vec!["--max-num-seqs", "$(SEQS)"], "elsewhere"),
        (vec!["--num-gpu-blocks-override", "1000"], "read"),
        (vec!["--num-gpu-blocks-override", "500"], "contradicted"),
    ] {
        let templates = BTreeMap::from([(key("a"), started(&words))]);
        let decisions = tick(&mut world, &templates);
        assert_eq!(state(&decisions), Some(want), "{words:?}");
        // A template that is out of sight has not changed.
        let decisions = tick(&mut world, &Templates::new());
        assert_eq!(state(&decisions), Some(want), "{words:?}");
    }
    let said = world.pipeline.clone().tick(at(world.second), &world.inputs());
    let engine = said.workloads[&key("a")].engine.as_ref().unwrap();
    assert!(engine.is_doubtful());
    assert_eq!(
        engine.to_string(),
        format!(
            "the pod template implies 8000 KV tokens per replica, but the engine reports {KV_CAPACITY}, which is used"
        )
    );
    let unread = BTreeMap::from([(key("a"), started(&["--max-num-seqs", "$(SEQS)"]))]);
    let (mut told, mut untold) = (half_asleep(), half_asleep());
    for _ in 0..5 {
        let (told, untold) = (tick(&mut told, &unread), tick(&mut untold, &Templates::new()));
        assert_eq!(of(&told, "a"), of(&untold, "a"));
    }
}

#[test]
fn without_anybody_who_says_what_a_replica_takes_it_counts_with_one() {
    let mut world = half_asleep();
    let decisions = world.tick();
    let report = &decisions.workloads[&key("b")];
    assert_eq!((report.gpus.count(), report.said_by), (1, GpusSource::Assumed));
}
