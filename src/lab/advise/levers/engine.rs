//! Other accelerators, other mixes of variants, and other engine arguments.

use std::sync::Arc;

use crate::advise::change::{ScenarioChange, Trial};
use crate::advise::engines::KnownEngine;
use crate::advise::scene::ModelScene;
use crate::backtest::fleet::following;
use crate::simulate::Micros;
use crate::simulate::scenario::{Transfer, Variant};
use plimsoll_core::analyze::foresight::card::{Card, EngineKind, EngineProfile};
use plimsoll_core::analyze::foresight::pace::IterationCost;
use plimsoll_core::fleet::{Bounds, Role, VariantName};
use plimsoll_core::pipeline::Policy;
use plimsoll_core::units::{Replicas, Requests, Tokens};

/// The most other accelerators that are tried for one model.
const ENGINES_MAX: usize = 3;

/// Lessons of an engine whose speed is known.
const LESSONS: u32 = 1000;

/// The share of its seats that an engine must have used for more seats to matter.
const FULL: f64 = 0.95;

/// The fewest and the most seats that are tried.
const SEATS: std::ops::RangeInclusive<u32> = 8..=2048;

/// The way of a prompt's cache from one replica to another, if the command line does not state it:
/// 128 KiB per token at 50 GB/s.
const TRANSFER: Transfer = Transfer { latency: Micros::new(5_000), per_token: 2.6 };

/// Each variant of a model with several is left out once. Another one has its replicas at the start.
pub(super) fn drop_variant(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for variant in &scene.scenario.variants {
        let spec = &variant.spec;
        let mut same = scene
            .variants_of(variant.model)
            .filter(|it| it.spec.role == spec.role && it.spec.key != spec.key);
        let Some(other) = same.next().filter(|_| scene.fleet.recorded_cost(variant) > 0.0) else {
            continue;
        };

        let mut heir = other.clone();
        heir.initial = other.spec.bounds.clamp(other.initial + variant.initial);
        let what = format!("without {}", spec.key.variant);
        let changes = vec![
            ScenarioChange::Without(spec.key.clone()),
            ScenarioChange::Variant(Box::new(heir)),
        ];
        trials.push(Trial::new(lever, spec.key.to_string(), what, changes));
    }

    trials
}

/// Other accelerators of known speed and price: instead of the present ones, and next to them.
pub(super) fn accelerator(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for model in 0..scene.scenario.models.len() {
        let Some(main) = scene.main_variant(model) else { continue };
        if scene.scenario.is_disaggregated(model) {
            continue;
        }

        for engine in others(scene, model) {
            let Some(added) = on(engine, main, scene, model) else { continue };
            let name = engine.accelerator.as_str();
            let count = engine.gpus.map_or(String::new(), |it| format!("{} ", it.count()));
            let whole =
                scene.variants_of(model).map(|it| ScenarioChange::Without(it.spec.key.clone()));
            let instead = format!("{count}{name} instead of the present accelerators");
            let beside = format!("{count}{name} next to the present accelerators");
            let policy =
                ScenarioChange::Policy(Box::new(knowing(&scene.scenario.control.policy, &added.1)));

            for (what, removed) in [(instead, whole.collect()), (beside, Vec::new())] {
                let mut changes: Vec<ScenarioChange> = removed;
                let mut variant = added.0.clone();
                if changes.is_empty() {
                    variant.spec.bounds = Bounds::new(Replicas::ZERO, None).unwrap_or_default();
                    variant.initial = Replicas::ZERO;
                    variant.actuator = following(variant.spec.bounds);
                }
                changes.extend([ScenarioChange::Variant(Box::new(variant)), policy.clone()]);
                let mut trial = Trial::new(lever, main.spec.key.to_string(), what, changes)
                    .assuming(format!(
                        "its speed is that of {}, at {:.2} per hour",
                        engine.source,
                        added.0.spec.cost.per_hour()
                    ));
                trial.assumes.extend(engine.assumes.clone());
                trials.push(trial);
            }
        }
    }

    trials
}

/// The engines for a model on accelerators that none of its variants has.
fn others<'a>(scene: &ModelScene<'a>, model: usize) -> Vec<&'a KnownEngine> {
    let name = &scene.scenario.models[model].key.model;
    let has = |engine: &KnownEngine| {
        let mut own = scene.variants_of(model).map(|it| it.spec.accelerator.as_ref());
        own.any(|it| it == Some(&engine.accelerator))
    };
    let engines = scene.fleet.engines.iter();
    let fitting = engines.filter(|it| it.model == *name && it.cost.is_some() && !has(it));

    fitting.take(ENGINES_MAX).collect()
}

/// A variant like another one on another engine, and the card of that engine.
fn on(
    engine: &KnownEngine,
    main: &Variant,
    scene: &ModelScene<'_>,
    model: usize,
) -> Option<(Variant, Card)> {
    let load = scene.load(model)?;
    let mut variant = main.clone();
    let name = format!("{}-{}", main.spec.key.variant, engine.accelerator.as_str().to_lowercase());
    variant.spec.key.variant = VariantName::new(&name)?;
    variant.spec.accelerator = Some(engine.accelerator.clone());
    variant.spec.gpus = engine.gpus;
    variant.spec.cost = engine.cost?;
    variant.spec.list_price = None;
    variant.engine = engine.settings;
    // A lower minimum would be another change.
    variant.spec.bounds = Bounds::new(main.spec.bounds.min(), None)?;
    variant.initial = main.initial.max(Replicas::ONE);
    variant.actuator = following(variant.spec.bounds);

    let step = engine.settings.step;
    let learned = EngineProfile {
        iteration: IterationCost {
            alpha: step.alpha / 1e6,
            beta: step.beta / 1e6,
            delta: step.delta / 1e6,
        },
        lessons: LESSONS,
        content: None,
        prompt: Tokens::new(load.prompts.mean()?)?,
        output: Tokens::new(load.answers.mean()?)?,
        held: None,
        full_at: None,
        most_running: Requests::new(f64::from(engine.settings.max_num_seqs))?,
        busiest: Tokens::new(f64::from(engine.settings.max_num_batched_tokens))?,
    };
    let kind = EngineKind::of(&variant.spec, None)?;
    Some((variant, Card { kind, learned, from: None, at: None }))
}

/// The policy that also has a card.
fn knowing(policy: &Policy, card: &Card) -> Policy {
    let mut policy = policy.clone();
    if let Some(sizing) = &mut policy.sizing {
        let cards = sizing.cards.iter().cloned().chain([Arc::new(card.clone())]);
        sizing.cards = cards.collect();
    }
    policy
}

/// Twice as many seats for engines that were full, and half as many for others.
pub(super) fn seats(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for variant in &scene.scenario.variants {
        let Some(crew) = scene.fleet.crew(variant) else { continue };
        let seats = variant.engine.max_num_seqs;
        let is_full = crew.running >= FULL * f64::from(seats);
        let other = if is_full { seats.saturating_mul(2) } else { seats / 2 };
        let matters = is_full || crew.running > f64::from(other);
        if !matters || !SEATS.contains(&other) || variant.spec.role == Role::Prefill {
            continue;
        }

        let mut reseated = variant.clone();
        reseated.engine.max_num_seqs = other;
        reseated.engine.max_num_batched_tokens = reseated.engine.max_num_batched_tokens.max(other);
        let what = format!("--max-num-seqs {seats} -> {other}");
        let changes = vec![ScenarioChange::Variant(Box::new(reseated))];
        let mut trial = Trial::new(lever, variant.spec.key.to_string(), what, changes);
        if crew.sequences.is_none() {
            trial = trial.assuming(format!(
                "engines are assumed to run {seats} requests at once today; their arguments don't \
                 show it"
            ));
        }
        if is_full {
            trial = trial.assuming(format!(
                "the time of iterations with more than {:.0} requests is extrapolated from \
                 smaller ones",
                crew.running
            ));
        }
        trials.push(trial);
    }

    trials
}

/// Separate replicas for prompts and for answers, for models with a single variant.
pub(super) fn separate_roles(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (model, described) in scene.scenario.models.iter().enumerate() {
        let variants: Vec<&Variant> = scene.variants_of(model).collect();
        let [main] = variants[..] else { continue };
        if main.spec.role != Role::Both || main.spec.bounds.min() == Replicas::ZERO {
            continue;
        }

        let part = |role: Role| {
            let mut variant = main.clone();
            let name = format!("{}-{}", main.spec.key.variant, role.label());
            variant.spec.key.variant = VariantName::new(&name)?;
            variant.spec.role = role;
            // Together they keep the minimum, because a lower one would be another change.
            let half = |it: Replicas| Replicas::saturating(it.count().div_ceil(2).max(1));
            variant.spec.bounds =
                Bounds::new(half(main.spec.bounds.min()), main.spec.bounds.max())?;
            variant.initial = half(main.initial);
            variant.actuator = following(variant.spec.bounds);
            Some(ScenarioChange::Variant(Box::new(variant)))
        };
        let Some((prefill, decode)) = part(Role::Prefill).zip(part(Role::Decode)) else { continue };
        let mut changes = vec![ScenarioChange::Without(main.spec.key.clone()), prefill, decode];
        let given = scene.args.assumptions.transfer_time;
        if given.is_none() {
            changes.push(ScenarioChange::Transfer(TRANSFER));
        }
        let what = "separate replicas for prefill and decode".to_owned();
        let trial = Trial::new(lever, described.key.to_string(), what, changes);
        trials.push(trial.assuming(match given {
            Some(_) => "caches move in the time of --transfer-time".to_owned(),
            None => "caches move in 5 ms and 2.6 us per prompt token".to_owned(),
        }));
    }

    trials
}
