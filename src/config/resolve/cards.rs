//! Capacity cards: those in the configuration, and those in the files that it names.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::analyze::engine_args::{EngineArguments, Execution, Generation, Parallelism, Prefill};
use crate::analyze::foresight::card::{Card, Kind, Learned};
use crate::analyze::foresight::pace::Iteration;
use crate::config::check::Checks;
use crate::config::problem::{Problem, join};
use crate::config::resolve::variants::as_role;
use crate::config::yaml::lines::Lines;
use crate::config::{file, layers, names, yaml};
use crate::fleet::{Accelerator, ModelName, Namespace, Role, VariantKey, VariantName};
use crate::observe::engine::Engine;
use crate::pipeline::sizing::Sizing;
use crate::units::{Fraction, Gpus, Requests, Tokens};

/// The version of the shape of files.
pub(crate) const VERSION: u32 = 1;

/// The key of the files.
const FILES: &str = "capacity.card_files";

/// From the fastest iteration that there is by far, to the slowest.
const ALPHAS: RangeInclusive<f64> = 1e-5..=10.0;
/// Of a prompt token, and of a request in the batch.
const SLOPES: RangeInclusive<f64> = 1e-8..=1.0;
/// Longer than any context.
const LENGTHS: RangeInclusive<f64> = 1.0..=1e8;
const TOKENS: RangeInclusive<f64> = 0.0..=1e12;
const BATCHES: RangeInclusive<f64> = 0.0..=1e6;
const PARALLEL: RangeInclusive<u32> = 1..=100_000;

/// The cards of a section and of its files. Of two of one kind, the first counts.
pub(crate) fn resolve(section: &file::Capacity, checks: &mut Checks<'_>) -> Arc<[Arc<Card>]> {
    let mut cards: Vec<Arc<Card>> = Vec::new();
    let written = section.cards.as_deref().unwrap_or_default();
    list("capacity.cards", written, &mut cards, checks);
    for (at, path) in paths(section, checks).into_iter().enumerate() {
        let key = format!("{FILES}[{at}]");
        let Some(text) = path.as_ref().and_then(|path| checks.text_of(&key, path)) else {
            continue;
        };
        let shown = path.map(|path| path.display().to_string()).unwrap_or_default();
        read(&format!("{key} {shown}"), &text, &mut cards, checks);
    }
    cards.into()
}

/// The files, in their order; `None` for one that cannot be.
fn paths(section: &file::Capacity, checks: &mut Checks<'_>) -> Vec<Option<PathBuf>> {
    let written = section.card_files.as_deref().unwrap_or_default();
    let path = |(at, file): (usize, &Option<PathBuf>)| {
        checks.path(&format!("{FILES}[{at}]"), file.as_ref())
    };
    written.iter().enumerate().map(path).collect()
}

/// The files of a section, where there is any sizing for which it counts.
pub(crate) fn files(
    section: Option<&file::Capacity>,
    sizing: Option<&Sizing>,
    checks: &mut Checks<'_>,
) -> Vec<PathBuf> {
    let section = section.filter(|_| sizing.is_some());
    let files = section.map(|section| paths(section, checks)).unwrap_or_default();
    files.into_iter().flatten().collect()
}

/// Reads a file of cards. What is wrong is said with the place that it is in, after `origin`.
pub(crate) fn read(origin: &str, text: &str, cards: &mut Vec<Arc<Card>>, checks: &mut Checks<'_>) {
    let value = match yaml::read(text) {
        Ok(value) => value,
        Err(yaml::SyntaxError { line, column, message }) => {
            let place = [line, column].into_iter().flatten();
            let path = place.fold(origin.to_owned(), |path, number| format!("{path}:{number}"));
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
        // What another version means by its keys is not known.
        let rule = format!("must be {VERSION}, the version of capacity cards that is read here");
        checks.problems.error("version", rule, &value["version"]);
        return;
    }
    let file: file::CardFile = layers::read(value, &mut checks.problems);
    if file.version.is_none() {
        checks.problems.missing("version", format!("is required, and must be {VERSION}"));
    }
    list("cards", file.cards.as_deref().unwrap_or_default(), cards, checks);
}

fn list(
    path: &str,
    written: &[Option<file::Card>],
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

fn card(path: &str, written: &file::Card, checks: &mut Checks<'_>) -> Option<Card> {
    let at = |key: &str| join(path, key);
    let mut name = |key: &str, text: Option<&str>, accepts: fn(&str) -> bool, rule: &str| {
        if text.is_none() {
            checks.problems.missing(at(key), "is required");
        }
        checks.text(&at(key), text, accepts, rule).map(ToOwned::to_owned)
    };
    let model = name("model", written.model.as_deref(), names::is_model_name, names::MODEL_NAME);
    let rule = "must not be empty, nor have spaces at the ends or control characters";
    let accelerator =
        name("accelerator", written.accelerator.as_deref(), names::is_label_text, rule);
    let gpus = checks.number(&at("accelerators"), written.accelerators, &PARALLEL);
    let engine = written.engine.as_ref().map(|it| engine(&at("engine"), it, checks));
    if written.accelerators.is_some() && engine.is_some() {
        let rule = "has no effect, because engine says how many accelerators a replica takes";
        checks.problems.warning(at("accelerators"), rule);
    }
    let learned = learned(path, written, checks);
    let (from, learned_at) = source(path, written, checks);
    let kind = Kind {
        model: ModelName::new(&model?)?,
        accelerator: Accelerator::new(&accelerator?)?,
        gpus: gpus.map(Gpus::new).filter(|_| engine.is_none()),
        role: written.role.map_or(Role::Both, as_role),
        engine: engine.map(Arc::new),
    };
    Some(Card { kind, learned: learned?, from, at: learned_at })
}

/// Who taught it, and when.
fn source(
    path: &str,
    written: &file::Card,
    checks: &mut Checks<'_>,
) -> (Option<VariantKey>, Option<Timestamp>) {
    let from = written.learned_from.as_deref().and_then(|text| {
        let key = text.split_once('/').and_then(|(namespace, variant)| {
            let (namespace, variant) = (Namespace::new(namespace)?, VariantName::new(variant)?);
            Some(VariantKey { namespace, variant })
        });
        if key.is_none() {
            let rule = "must be NAMESPACE/VARIANT, such as default/llama-l4";
            checks.problems.error(join(path, "learned_from"), rule, format!("{text:?}"));
        }
        key
    });
    let at = written.learned_at.as_deref().and_then(|text| {
        let at = text.parse().ok();
        if at.is_none() {
            let rule = "must be an instant, such as 2026-11-21T09:30:00Z";
            checks.problems.error(join(path, "learned_at"), rule, format!("{text:?}"));
        }
        at
    });
    (from, at)
}

fn learned(path: &str, written: &file::Card, checks: &mut Checks<'_>) -> Option<Learned> {
    let file::CardIteration { alpha, beta, delta } = written.iteration.clone().unwrap_or_default();
    let file::CardRequests { prompt, output, held } = written.requests.clone().unwrap_or_default();
    for (key, written) in [
        ("iteration.alpha", alpha),
        ("iteration.beta", beta),
        ("iteration.delta", delta),
        ("requests.prompt", prompt),
        ("requests.output", output),
    ] {
        if written.is_none() {
            checks.problems.missing(format!("{path}.{key}"), "is required");
        }
    }
    let mut number = |key: &str, written: Option<f64>, range: &RangeInclusive<f64>| {
        checks.number(&format!("{path}.{key}"), written, range)
    };
    let alpha = number("iteration.alpha", alpha, &ALPHAS);
    let beta = number("iteration.beta", beta, &SLOPES);
    let delta = number("iteration.delta", delta, &SLOPES);
    let prompt = number("requests.prompt", prompt, &LENGTHS);
    let output = number("requests.output", output, &LENGTHS);
    let held = number("requests.held", held, &LENGTHS);
    let file::CardLessons { count, prompt: prompts, batch } =
        written.lessons.clone().unwrap_or_default();
    let prompts = number("lessons.prompt", prompts, &TOKENS);
    let batch = number("lessons.batch", batch, &BATCHES);
    let file::CardShown { most_running, full_at, busiest } =
        written.shown.clone().unwrap_or_default();
    let most_running = number("shown.most_running", most_running, &BATCHES);
    let full_at = number("shown.full_at", full_at, &BATCHES);
    let busiest = number("shown.busiest", busiest, &TOKENS);
    Some(Learned {
        iteration: Iteration { alpha: alpha?, beta: beta?, delta: delta? },
        lessons: count.unwrap_or(0),
        content: prompts.zip(batch).map(|(prompts, batch)| [prompts, batch]),
        prompt: Tokens::new(prompt?)?,
        output: Tokens::new(output?)?,
        held: held.and_then(Tokens::new),
        full_at: full_at.and_then(Requests::new),
        most_running: Requests::new(most_running.unwrap_or(0.0))?,
        busiest: Tokens::new(busiest.unwrap_or(0.0))?,
    })
}

fn engine(path: &str, written: &file::CardEngine, checks: &mut Checks<'_>) -> EngineArguments {
    let usual = EngineArguments::default_of(match written.name {
        Some(file::CardEngineName::Sglang) => Engine::Sglang,
        Some(file::CardEngineName::Vllm) | None => Engine::Vllm,
    });
    let at = |key: &str| join(path, key);
    let memory = checks.number(&at("gpu_memory"), written.gpu_memory, &(0.0..=1.0));
    let mut tokens =
        |key: &str, written| checks.number(&at(key), written, &TOKENS).and_then(Tokens::new);
    let block_size = tokens("block_size", written.block_size).unwrap_or(usual.block_size);
    let kv_tokens = tokens("kv_tokens", written.kv_tokens);
    let step_tokens = tokens("step_tokens", written.step_tokens);
    let context = tokens("context", written.context);
    let sequences = checks.number(&at("sequences"), written.sequences, &BATCHES);
    let mut parallel = |key: &str, written| {
        let count = checks.number(&at(key), written, &PARALLEL);
        count.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    };
    let parallel = Parallelism {
        tensor: parallel("tensor_parallel", written.tensor_parallel),
        pipeline: parallel("pipeline_parallel", written.pipeline_parallel),
        data: parallel("data_parallel", written.data_parallel),
    };
    let drafts = checks.number(&at("draft_tokens"), written.draft_tokens, &PARALLEL);
    let dtype = written.kv_dtype.as_deref();
    let rule = "must be the name of a type, such as auto or fp8";
    let dtype = checks.text(&at("kv_dtype"), dtype, names::is_label_text, rule);
    EngineArguments {
        generation: match written.generation {
            Some(file::CardGeneration::V0) => Generation::V0,
            Some(file::CardGeneration::V1) | None => Generation::V1,
        },
        gpu_memory: memory.and_then(Fraction::new).unwrap_or(usual.gpu_memory),
        block_size,
        kv_dtype: dtype.map_or(usual.kv_dtype, Arc::from),
        parallel,
        kv_blocks: written.kv_blocks.and_then(NonZeroU64::new),
        kv_tokens,
        step_tokens,
        sequences: sequences.and_then(Requests::new),
        context,
        execution: if written.eager == Some(true) { Execution::Eager } else { Execution::Graphs },
        prefill: match written.chunked_prefill {
            Some(true) => Prefill::Chunked,
            Some(false) => Prefill::Whole,
            None => usual.prefill,
        },
        draft_tokens: drafts.and_then(NonZeroU32::new),
        engine: usual.engine,
    }
}
