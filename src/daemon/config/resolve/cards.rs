//! Capacity cards in the configuration, and in the files that it names.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::config::check::Checks;
use crate::config::file::{
    CapacityKeys, CardEngineKeys, CardFileKeys, CardIterationKeys, CardKeys, CardLessonKeys,
    CardRequestKeys, CardShownKeys,
};
use crate::config::layers;
use crate::config::yaml::lines::Lines;
use crate::config::yaml::{self, FilePosition};
use plimsoll_core::analyze::engine_args::{EngineArguments, Execution, Parallelism, Prefill};
use plimsoll_core::analyze::foresight::card::{Card, EngineKind, EngineProfile};
use plimsoll_core::analyze::foresight::pace::IterationCost;
use plimsoll_core::fleet::{Accelerator, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::settings::problem::{Problem, Problems, join};
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Gpus;

/// The version of the file format.
pub(crate) const VERSION: u32 = 1;

/// The configuration key of the files.
const FILES: &str = "capacity.card_files";

/// The cards of a section and of its files. If two cards are of the same kind, the first is used.
pub(crate) fn resolve(
    section: &Written<CapacityKeys>,
    checks: &mut Checks<'_>,
) -> Arc<[Arc<Card>]> {
    let mut cards: Vec<Arc<Card>> = Vec::new();
    let written = section.cards.as_deref().unwrap_or_default();
    list("capacity.cards", written, &mut cards, checks);
    for (at, file) in section.card_files.iter().flatten().enumerate() {
        let key = format!("{FILES}[{at}]");
        let Some(file) = checks.path(&key, file.as_ref()) else { continue };
        let Some(text) = checks.text_of(&key, &file) else { continue };
        read(&format!("{key} {}", file.display()), &text, &mut cards, checks);
    }

    cards.into()
}

/// Reads a card file. Problems are noted with `origin` and their place in the file.
pub(crate) fn read(origin: &str, text: &str, cards: &mut Vec<Arc<Card>>, checks: &mut Checks<'_>) {
    let value = match yaml::read(text) {
        Ok(read) => read,
        Err(yaml::SyntaxError { line, column, message }) => {
            let path = format!("{origin}{}", FilePosition(line, column));
            checks.problems.error_at(path, format!("is not YAML: {message}"));
            return;
        }
    };

    let mut own = checks.beside();
    if value.is_object() {
        document(value, cards, &mut own);
    } else {
        own.problems.error_at("", "must be a mapping with version and cards");
    }

    let (errors, warnings) = own.problems.split();
    let lines = Lines::of(text);
    for problem in errors.into_iter().chain(warnings) {
        let line = lines.get(&problem.path).unwrap_or(1);
        let path = format!("{origin}:{line} {}", problem.path);
        checks.problems.take_over(Problem { path: path.trim_end().to_owned(), ..problem });
    }
}

fn document(value: Value, cards: &mut Vec<Arc<Card>>, checks: &mut Checks<'_>) {
    let version = value.get("version").and_then(Value::as_u64);
    if version.is_some_and(|version| version != u64::from(VERSION)) {
        // The meaning of another version's keys is not known.
        let rule = format!("must be {VERSION}, the supported version of capacity cards");
        checks.problems.error("version", rule, &value["version"]);
        return;
    }

    let file: Written<CardFileKeys> = layers::read(value, &mut checks.problems);
    if file.version.is_none() {
        checks.problems.missing("version", format!("is required, and must be {VERSION}"));
    }

    list("cards", file.cards.as_deref().unwrap_or_default(), cards, checks);
}

fn list(
    path: &str,
    written: &[Option<Written<CardKeys>>],
    cards: &mut Vec<Arc<Card>>,
    checks: &mut Checks<'_>,
) {
    for (at, written) in written.iter().enumerate() {
        let Some(written) = written else { continue };
        let path = format!("{path}[{at}]");
        let Some(card) = card(&path, written, checks) else { continue };

        match cards.iter().find(|known| known.kind == card.kind) {
            None => cards.push(Arc::new(card)),
            Some(known) if **known == card => {}
            Some(known) => {
                let rule = format!("has no effect: {known} is of the same kind, and comes first");
                checks.problems.warning(&path, rule);
            }
        }
    }
}

fn card(path: &str, written: &Written<CardKeys>, checks: &mut Checks<'_>) -> Option<Card> {
    let required =
        [("model", written.model.is_none()), ("accelerator", written.accelerator.is_none())];
    for (key, _) in required.iter().filter(|(_, missing)| *missing) {
        checks.problems.missing(join(path, key), "is required");
    }

    let CardKeys { model, accelerator, accelerators: gpus, role, engine: arguments, .. } =
        settings::resolve(Some(written), path, &mut checks.problems);
    let engine = arguments.map(engine_of);
    if written.accelerators.is_some() && engine.is_some() {
        let rule = "has no effect, because engine sets the accelerators per replica";
        checks.problems.warning(join(path, "accelerators"), rule);
    }

    let learned = learned(path, written, checks);
    let (from, learned_at) = source(path, written, checks);
    let kind = EngineKind {
        model: ModelName::new(&model?)?,
        accelerator: Accelerator::new(&accelerator?)?,
        gpus: gpus.map(Gpus::new).filter(|_| engine.is_none()),
        role: role.unwrap_or_default(),
        engine: engine.map(Arc::new),
    };

    Some(Card { kind, learned: learned?, from, at: learned_at })
}

/// The variant that taught the card, and the time.
fn source(
    path: &str,
    written: &Written<CardKeys>,
    checks: &mut Checks<'_>,
) -> (Option<VariantKey>, Option<Timestamp>) {
    let from = written.learned_from.as_deref().and_then(|text| {
        let key = text.split_once('/').and_then(|(namespace, variant)| {
            Some(VariantKey {
                namespace: Namespace::new(namespace)?,
                variant: VariantName::new(variant)?,
            })
        });
        if key.is_none() {
            let rule = "must be NAMESPACE/VARIANT, such as default/llama-l4";
            checks.problems.error(join(path, "learned_from"), rule, format!("{text:?}"));
        }

        key
    });

    let at = written.learned_at.as_deref().and_then(|text| {
        let instant = text.parse().ok();
        if instant.is_none() {
            let rule = "must be an instant, such as 2026-11-21T09:30:00Z";
            checks.problems.error(join(path, "learned_at"), rule, format!("{text:?}"));
        }
        instant
    });

    (from, at)
}

fn learned(
    path: &str,
    written: &Written<CardKeys>,
    checks: &mut Checks<'_>,
) -> Option<EngineProfile> {
    let iteration = written.iteration.clone().unwrap_or_default();
    let requests = written.requests.clone().unwrap_or_default();
    for (key, missing) in [
        ("iteration.alpha", iteration.alpha.is_none()),
        ("iteration.beta", iteration.beta.is_none()),
        ("iteration.delta", iteration.delta.is_none()),
        ("requests.prompt", requests.prompt.is_none()),
        ("requests.output", requests.output.is_none()),
    ] {
        if missing {
            checks.problems.missing(format!("{path}.{key}"), "is required");
        }
    }

    // The problems of the card have been noted already.
    let keys: CardKeys = settings::resolve(Some(written), path, &mut Problems::default());
    let CardIterationKeys { alpha, beta, delta } = keys.iteration.unwrap_or_default();
    let CardRequestKeys { prompt, output, held } = keys.requests.unwrap_or_default();
    let CardLessonKeys { count, prompt: prompts, batch } = keys.lessons.unwrap_or_default();
    let CardShownKeys { most_running, full_at, busiest } = keys.shown.unwrap_or_default();
    Some(EngineProfile {
        iteration: IterationCost { alpha: alpha?, beta: beta?, delta: delta? },
        lessons: count.unwrap_or(0),
        content: prompts.zip(batch).map(|(prompts, batch)| [prompts, batch]),
        prompt: prompt?,
        output: output?,
        held,
        full_at,
        most_running: most_running.unwrap_or_default(),
        busiest: busiest.unwrap_or_default(),
    })
}

fn engine_of(keys: CardEngineKeys) -> EngineArguments {
    let usual = EngineArguments::default_of(keys.name);

    EngineArguments {
        engine: usual.engine,
        generation: keys.generation,
        gpu_memory: keys.gpu_memory.unwrap_or(usual.gpu_memory),
        block_size: keys.block_size.unwrap_or(usual.block_size),
        kv_dtype: keys.kv_dtype.map_or(usual.kv_dtype, Arc::from),
        parallel: Parallelism {
            tensor: parallel(keys.tensor_parallel),
            pipeline: parallel(keys.pipeline_parallel),
            data: parallel(keys.data_parallel),
        },
        kv_blocks: keys.kv_blocks.and_then(NonZeroU64::new),
        kv_tokens: keys.kv_tokens,
        step_tokens: keys.step_tokens,
        sequences: keys.sequences,
        context: keys.context,
        execution: if keys.eager { Execution::Eager } else { Execution::Graphs },
        prefill: match keys.chunked_prefill {
            Some(true) => Prefill::Chunked,
            Some(false) => Prefill::Whole,
            None => usual.prefill,
        },
        draft_tokens: keys.draft_tokens.and_then(NonZeroU32::new),
    }
}

fn parallel(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}
