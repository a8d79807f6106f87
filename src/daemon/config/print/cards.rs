//! Capacity cards in the form of a file.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::config::file::{
    CardEngineKeys, CardFileKeys, CardIterationKeys, CardKeys, CardLessonKeys, CardRequestKeys,
    CardShownKeys,
};
use crate::config::resolve::cards::VERSION;
use crate::config::yaml;
use plimsoll_core::analyze::engine_args::{EngineArguments, Execution, Parallelism, Prefill};
use plimsoll_core::analyze::foresight::card::{Card, EngineKind, EngineProfile};
use plimsoll_core::analyze::foresight::pace::IterationCost;
use plimsoll_core::settings::{Setting, Written};
use plimsoll_core::units::Gpus;

/// The file with these cards, without unknown values.
pub(crate) fn value<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> Value {
    let keys = cards.into_iter().map(|card| one(card)).collect();
    let file = CardFileKeys { version: Some(VERSION), cards: Some(keys) }.written();
    let value = serde_json::to_value(file).expect("a file has text keys and finite numbers");
    without_holes(value)
}

/// The text of the file.
pub(crate) fn text<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> String {
    yaml::write(&value(cards)).expect("writing to memory does not fail")
}

fn without_holes(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let known = map.into_iter().filter(|(_, value)| !value.is_null());
            known.map(|(key, value)| (key, without_holes(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_holes).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// The JSON Schema of the file.
pub(crate) fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema =
        settings.into_generator().into_root_schema_for::<Written<CardFileKeys>>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "Capacity cards of Plimsoll".into());
        root.insert("required".to_owned(), json!(["version", "cards"]));
    }

    schema
}

/// The configuration's list with these cards; `None` if there are no cards.
pub(crate) fn list(cards: &[Arc<Card>]) -> Option<Vec<CardKeys>> {
    (!cards.is_empty()).then(|| cards.iter().map(|card| one(card)).collect())
}

fn one(card: &Card) -> CardKeys {
    let Card { kind, learned, from, at } = card;
    let EngineKind { model, accelerator, gpus, role, engine } = kind;
    let EngineProfile {
        iteration: IterationCost { alpha, beta, delta },
        lessons,
        content,
        prompt,
        output,
        held,
        full_at,
        most_running,
        busiest,
    } = *learned;
    let [alpha, beta, delta] = [alpha, beta, delta].map(Some);
    let [prompts, batch] = content.map_or([None, None], |content| content.map(Some));

    CardKeys {
        model: Some(model.to_string()),
        accelerator: Some(accelerator.to_string()),
        accelerators: gpus.map(Gpus::count),
        role: Some(*role),
        engine: engine.as_deref().map(arguments),
        iteration: Some(CardIterationKeys { alpha, beta, delta }),
        requests: Some(CardRequestKeys { prompt: Some(prompt), output: Some(output), held }),
        lessons: Some(CardLessonKeys { count: Some(lessons), prompt: prompts, batch }),
        shown: Some(CardShownKeys {
            most_running: Some(most_running),
            full_at,
            busiest: Some(busiest),
        }),
        learned_from: from.as_ref().map(ToString::to_string),
        learned_at: at.map(|at| at.to_string()),
    }
}

fn arguments(engine: &EngineArguments) -> CardEngineKeys {
    let EngineArguments {
        engine,
        generation,
        gpu_memory,
        block_size,
        kv_dtype,
        parallel: Parallelism { tensor, pipeline, data },
        kv_blocks,
        kv_tokens,
        step_tokens,
        sequences,
        context,
        execution,
        prefill,
        draft_tokens,
    } = engine;

    CardEngineKeys {
        name: *engine,
        generation: *generation,
        gpu_memory: Some(*gpu_memory),
        block_size: Some(*block_size),
        kv_dtype: Some(kv_dtype.to_string()),
        tensor_parallel: tensor.get(),
        pipeline_parallel: pipeline.get(),
        data_parallel: data.get(),
        kv_blocks: kv_blocks.map(NonZeroU64::get),
        kv_tokens: *kv_tokens,
        step_tokens: *step_tokens,
        sequences: *sequences,
        context: *context,
        eager: *execution == Execution::Eager,
        chunked_prefill: Some(*prefill == Prefill::Chunked),
        draft_tokens: draft_tokens.map(NonZeroU32::get),
    }
}
