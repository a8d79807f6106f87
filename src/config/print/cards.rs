//! Capacity cards as a file has them.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::analyze::engine_args::{EngineArguments, Execution, Generation, Parallelism, Prefill};
use crate::analyze::foresight::card::{Card, Kind, Learned};
use crate::analyze::foresight::pace::Iteration;
use crate::config::file;
use crate::config::resolve::cards::VERSION;
use crate::config::yaml;
use crate::fleet::Role;
use crate::observe::engine::Engine;
use crate::units::{Gpus, Requests, Tokens};

/// The file that has these cards, without what is not known.
pub(crate) fn value<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> Value {
    let cards = cards.into_iter().map(|card| Some(one(card))).collect();
    let file = file::CardFile { version: Some(VERSION), cards: Some(cards) };
    let value = serde_json::to_value(file).expect("a file has text keys and finite numbers");
    without_holes(value)
}

/// Its text.
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

/// The JSON Schema of such a file.
pub(crate) fn schema() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<file::CardFile>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "Capacity cards of Plimsoll".into());
        root.insert("required".to_owned(), json!(["version", "cards"]));
    }
    schema
}

/// The list of a configuration that has these cards; `None` without any.
pub(super) fn list(cards: &[Arc<Card>]) -> Option<file::Items<file::Card>> {
    (!cards.is_empty()).then(|| cards.iter().map(|card| Some(one(card))).collect())
}

/// The list of a configuration that names these files; `None` without any.
pub(super) fn files(files: &[PathBuf]) -> Option<file::Items<PathBuf>> {
    (!files.is_empty()).then(|| files.iter().cloned().map(Some).collect())
}

fn one(card: &Card) -> file::Card {
    let Card { kind, learned, from, at } = card;
    let Kind { model, accelerator, gpus, role, engine } = kind;
    let Learned {
        iteration: Iteration { alpha, beta, delta },
        lessons,
        content,
        prompt,
        output,
        held,
        full_at,
        most_running,
        busiest,
    } = *learned;
    let [prompts, batch] = content.map_or([None, None], |content| content.map(Some));
    file::Card {
        model: Some(model.to_string()),
        accelerator: Some(accelerator.to_string()),
        accelerators: gpus.map(Gpus::count),
        role: Some(self::role(*role)),
        engine: engine.as_deref().map(arguments),
        iteration: Some(file::CardIteration {
            alpha: Some(alpha),
            beta: Some(beta),
            delta: Some(delta),
        }),
        requests: Some(file::CardRequests {
            prompt: Some(prompt.tokens()),
            output: Some(output.tokens()),
            held: held.map(Tokens::tokens),
        }),
        lessons: Some(file::CardLessons { count: Some(lessons), prompt: prompts, batch }),
        shown: Some(file::CardShown {
            most_running: Some(most_running.requests()),
            full_at: full_at.map(Requests::requests),
            busiest: Some(busiest.tokens()),
        }),
        learned_from: from.as_ref().map(ToString::to_string),
        learned_at: at.map(|at| at.to_string()),
    }
}

fn arguments(engine: &EngineArguments) -> file::CardEngine {
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
    file::CardEngine {
        name: Some(match engine {
            Engine::Vllm => file::CardEngineName::Vllm,
            Engine::Sglang => file::CardEngineName::Sglang,
        }),
        generation: Some(match generation {
            Generation::V0 => file::CardGeneration::V0,
            Generation::V1 => file::CardGeneration::V1,
        }),
        gpu_memory: Some(gpu_memory.fraction()),
        block_size: Some(block_size.tokens()),
        kv_dtype: Some(kv_dtype.to_string()),
        tensor_parallel: Some(tensor.get()),
        pipeline_parallel: Some(pipeline.get()),
        data_parallel: Some(data.get()),
        kv_blocks: kv_blocks.map(std::num::NonZeroU64::get),
        kv_tokens: kv_tokens.map(Tokens::tokens),
        step_tokens: step_tokens.map(Tokens::tokens),
        sequences: sequences.map(Requests::requests),
        context: context.map(Tokens::tokens),
        eager: Some(*execution == Execution::Eager),
        chunked_prefill: Some(*prefill == Prefill::Chunked),
        draft_tokens: draft_tokens.map(std::num::NonZeroU32::get),
    }
}

pub(super) const fn role(role: Role) -> file::Role {
    match role {
        Role::Both => file::Role::Both,
        Role::Prefill => file::Role::Prefill,
        Role::Decode => file::Role::Decode,
    }
}
