//! Engines that could serve a model: those of the trace, and those of capacity cards.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;

use crate::backtest::fleet::whole;
use crate::simulate::replica::settings::{Admission, BLOCK_SIZE, SEATS, Settings, StepTime};
use crate::simulate::scenario::Scenario;
use plimsoll_core::analyze::engine_args::EngineArguments;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::fleet::{Accelerator, ModelName, Role};
use plimsoll_core::units::{CostPerHour, Gpus, Tokens};
use plimsoll_daemon::config;

/// The largest file of cards.
const FILE_MAX: u64 = 16 << 20;

/// The most engines that are considered.
const ENGINES_MAX: usize = 64;

/// An engine of known speed.
#[derive(Clone, Debug)]
pub(crate) struct KnownEngine {
    /// The model that it serves.
    pub(crate) model: ModelName,
    /// The accelerator that it runs on.
    pub(crate) accelerator: Accelerator,
    /// Accelerators per replica.
    pub(crate) gpus: Option<Gpus>,
    /// Its limits and speed.
    pub(crate) settings: Settings,
    /// The price of a replica; `None` if not known.
    pub(crate) cost: Option<CostPerHour>,
    /// The variant or the card that it is known by.
    pub(crate) source: String,
    /// What is assumed about it.
    pub(crate) assumes: Option<String>,
}

/// Reads files with capacity cards.
///
/// # Errors
///
/// A file cannot be read or is not valid.
pub(crate) fn read_cards(paths: &[PathBuf]) -> anyhow::Result<Vec<Arc<Card>>> {
    let mut cards = Vec::new();
    for path in paths {
        let shown = path.display().to_string();
        let length = std::fs::metadata(path).with_context(|| cannot(&shown))?.len();
        anyhow::ensure!(length <= FILE_MAX, "{shown} is larger than {FILE_MAX} bytes");
        let text = std::fs::read_to_string(path).with_context(|| cannot(&shown))?;
        let (read, _warnings) = config::read_cards(&shown, &text)?;
        cards.extend(read);
    }

    Ok(cards)
}

fn cannot(path: &str) -> String {
    format!("cannot read {path}")
}

/// The engines of a scenario, and of cards for accelerators that it does not have.
pub(crate) fn known(
    scenario: &Scenario,
    cards: &[Arc<Card>],
    prices: &[(String, f64)],
) -> Vec<KnownEngine> {
    let own = scenario.variants.iter().filter_map(|variant| {
        let spec = &variant.spec;
        Some(KnownEngine {
            model: spec.model.clone(),
            accelerator: spec.accelerator.clone().filter(|_| spec.role == Role::Both)?,
            gpus: spec.gpus,
            settings: variant.engine,
            cost: Some(spec.cost),
            source: spec.key.to_string(),
            assumes: None,
        })
    });

    let mut engines: Vec<KnownEngine> = own.collect();
    for card in cards.iter().filter(|card| card.kind.role == Role::Both) {
        let is_known = |it: &KnownEngine| {
            it.model == card.kind.model && it.accelerator == card.kind.accelerator
        };
        if engines.len() < ENGINES_MAX && !engines.iter().any(is_known) {
            engines.push(of_card(card, scenario, prices));
        }
    }

    for engine in &mut engines {
        if let Some(price) = stated(&engine.accelerator, engine.gpus, prices) {
            engine.cost = Some(price);
        }
    }
    engines
}

fn of_card(card: &Card, scenario: &Scenario, prices: &[(String, f64)]) -> KnownEngine {
    let kind = &card.kind;
    let learned = &card.learned;
    let arguments = kind.engine.as_deref();
    let same = scenario.variants.iter().find(|it| it.spec.model == kind.model);
    let told = arguments.and_then(EngineArguments::kv_capacity).map(Tokens::tokens);
    let usual = same.map_or(400_000.0, |it| f64::from(it.engine.kv_blocks * BLOCK_SIZE));
    let kv = told.unwrap_or(usual);
    let sequences = arguments.and_then(|it| it.sequences).or(learned.full_at);
    let seats = sequences.map_or(SEATS, |it| whole(it.requests())).max(1);
    let step = learned.iteration;
    let gpus = kind.gpus.or_else(|| {
        let parallel = arguments?.parallel;
        Some(Gpus::new(parallel.tensor.get() * parallel.pipeline.get() * parallel.data.get()))
    });

    KnownEngine {
        model: kind.model.clone(),
        accelerator: kind.accelerator.clone(),
        gpus,
        settings: Settings {
            step: StepTime::dense(step.alpha * 1e6, step.beta * 1e6, step.delta * 1e6, 0.0),
            max_num_seqs: seats,
            max_num_batched_tokens: whole(learned.busiest.tokens()).max(8192).max(seats),
            block_size: BLOCK_SIZE,
            kv_blocks: (whole(kv) / BLOCK_SIZE).max(1),
            admission: Admission::WholePrompt,
        },
        cost: stated(&kind.accelerator, gpus, prices)
            .or_else(|| elsewhere(&kind.accelerator, gpus, scenario)),
        source: format!("the card {card}"),
        assumes: told.is_none().then(|| {
            format!(
                "its KV cache is assumed to hold {kv:.0} tokens; the card doesn't \
                state it"
            )
        }),
    }
}

/// The price on the command line.
fn stated(
    accelerator: &Accelerator,
    gpus: Option<Gpus>,
    prices: &[(String, f64)],
) -> Option<CostPerHour> {
    let (_, price) = prices.iter().find(|(name, _)| name == accelerator.as_str())?;
    CostPerHour::new(price * gpus.map_or(1.0, |it| f64::from(it.count().max(1))))
}

/// The price of the same accelerators in another variant.
fn elsewhere(
    accelerator: &Accelerator,
    gpus: Option<Gpus>,
    scenario: &Scenario,
) -> Option<CostPerHour> {
    let mut same = scenario.variants.iter().map(|it| &it.spec);
    let spec = same.find(|it| it.accelerator.as_ref() == Some(accelerator))?;
    let count = |gpus: Option<Gpus>| gpus.map_or(1.0, |it| f64::from(it.count().max(1)));
    CostPerHour::new(spec.cost.per_hour() * count(gpus) / count(spec.gpus))
}
