//! Readers of WVA's token-based saturation analyzer (V2), for single replicas and for models.

use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::capacity::{Totals, Utilization};
use plimsoll::analyze::engine_args::{
    EngineArguments, Execution, Generation, Parallelism, Prefill,
};
use plimsoll::analyze::sharing::CardSharing;
use plimsoll::analyze::tokens::capacity::{RequestShape, SchedulerQueue};
use plimsoll::analyze::tokens::knowledge::{
    CapacityRecord, Knowledge, RecordSource, SavedKnowledge,
};
use plimsoll::analyze::tokens::{
    CapacitySource, ReplicaTokens, TokenAnalysis, TokenPolicy, TokenReplicaLoad, TokenRules,
    TokenVariantLoad, analyze,
};
use plimsoll::fleet::{
    Accelerator, Bounds, ModelKey, ModelName, Namespace, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll::observe::GaugeSummary;
use plimsoll::observe::engine::Engine;
use plimsoll::units::{CostPerHour, Fraction, Replicas, Requests, Seconds, Tokens};
use serde_json::Value;

use super::Outcome;

/// WVA adds in the order of a map, so the last digits of its sums move.
const TOLERANCE: f64 = 1e-9;

pub(super) const STRANGERS: &str = "replicas of an unknown variant say nothing of the model";

/// `saturation_v2_replica`: replicas that are put to one analyzer one after the other.
pub(super) fn replica(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut knowledge = knowledge(input);
    let model = model(input);
    for (index, row) in list(input, "replicas_in_order").iter().enumerate() {
        let spec = spec(input, &text(row, "variant"), row);
        let load = [load(row)];
        let variant = variant(&spec, row, &load, [1, 0]);
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(index).unwrap());
        let analysis = analyze(now, &policy(input), &model, &[variant], None, &mut knowledge);
        let ours = analysis.variants[0].replicas.first();
        if let Err(why) = same_replica(ours, &expected[index]) {
            return Outcome::Failed(format!("replica {index}: {why}"));
        }
    }
    Outcome::Passed
}

/// `saturation_v2_model`: one analyzer over several cycles.
pub(super) fn cycles(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut knowledge = knowledge(input);
    for (index, cycle) in list(input, "cycles").iter().enumerate() {
        let now =
            Timestamp::UNIX_EPOCH + SignedDuration::from_secs(15 * i64::try_from(index).unwrap());
        if has_strangers(cycle) {
            return Outcome::Differs(STRANGERS);
        }
        let analysis = analyzed(now, &policy(input), input, cycle, &mut knowledge);
        let answers = std::iter::once(&expected[index])
            .chain(list(case, "alternatives").iter().map(|other| &other[index]));
        let compared: Vec<_> = answers.map(|expected| same_analysis(&analysis, expected)).collect();
        if compared.iter().all(Result::is_err) {
            let why = compared[0].as_ref().unwrap_err();
            return Outcome::Failed(format!("cycle {index}: {why}"));
        }
    }
    Outcome::Passed
}

/// Whether some replica belongs to no variant of the model.
pub(super) fn has_strangers(cycle: &Value) -> bool {
    let states = list(cycle, "states");
    let mut rows = list(cycle, "replicas").iter();
    rows.any(|row| states.iter().all(|state| state["variant"] != row["variant"]))
}

/// The analysis of a model in one cycle.
pub(super) fn analyzed(
    now: Timestamp,
    policy: &TokenPolicy,
    named: &Value,
    cycle: &Value,
    knowledge: &mut Knowledge,
) -> TokenAnalysis {
    let states = list(cycle, "states");
    let rows = list(cycle, "replicas");
    let identities: Vec<(VariantSpec, Vec<TokenReplicaLoad>)> = states
        .iter()
        .map(|state| {
            let identity = rows_of(rows, state).next().unwrap_or(&Value::Null);
            let mut spec = spec(named, &text(state, "variant"), identity);
            spec.role = role(state);
            (spec, rows_of(rows, state).map(load).collect())
        })
        .collect();
    let variants: Vec<TokenVariantLoad<'_>> = identities
        .iter()
        .zip(states)
        .map(|((spec, loads), state)| {
            let counts = [whole(&state["current"]), whole(&state["pending"])];
            variant(spec, state, loads, counts)
        })
        .collect();
    let queue = cycle.get("scheduler_queue").map(|queue| SchedulerQueue {
        requests: requests(&queue["queue_reqs"]),
        // Four bytes of English text make a token.
        prompt: Tokens::new(number(queue, "queue_bytes") / 4.0).unwrap(),
    });
    analyze(now, policy, &model(named), &variants, queue, knowledge)
}

fn rows_of<'a>(rows: &'a [Value], state: &'a Value) -> impl Iterator<Item = &'a Value> {
    rows.iter().filter(|row| row["variant"] == state["variant"])
}

fn same_replica(ours: Option<&ReplicaTokens>, expected: &Value) -> Result<(), String> {
    let Some(ours) = ours else {
        return if expected.is_null() { Ok(()) } else { Err("dropped".to_owned()) };
    };
    if expected.is_null() {
        return Err(format!("not dropped: {ours:?}"));
    }
    let fields = [
        ("k1_memory_bound_tokens", ours.memory),
        ("k2_compute_bound_tokens", ours.compute.unwrap()),
        ("effective_tokens", ours.capacity()),
        ("demand_tokens", ours.demand()),
        ("kv_capacity_tokens", ours.kv_capacity),
    ];
    for (name, value) in fields {
        if !close(value.tokens(), number(expected, name)) {
            return Err(format!("{name} {}, not {}", value.tokens(), expected[name]));
        }
    }
    if label(ours.source) != text(expected, "k2_source") {
        return Err(format!("{:?}, not {}", ours.source, expected["k2_source"]));
    }
    let saturated = ours.demand() >= ours.capacity();
    if saturated != (expected["is_saturated"] == true) {
        return Err(format!("saturated: {saturated}"));
    }
    Ok(())
}

fn same_analysis(ours: &TokenAnalysis, expected: &Value) -> Result<(), String> {
    let variants = list(expected, "variants");
    if ours.variants.len() != variants.len() {
        return Err(format!("{} variants, not {}", ours.variants.len(), variants.len()));
    }
    for ((capacity, tokens), expected) in
        ours.report.variants.iter().zip(&ours.variants).zip(variants)
    {
        let per_replica = capacity.per_replica.unwrap_or_default().amount();
        let fields = [
            ("replicas", f64::from(capacity.replicas.count())),
            ("pending", f64::from(capacity.pending.count())),
            ("per_replica_cap", per_replica),
            ("total_cap", per_replica * f64::from(capacity.replicas.count())),
            ("demand", capacity.demand.amount()),
        ];
        for (name, value) in fields {
            if !close(value, number(expected, name)) {
                let key = &capacity.key;
                return Err(format!("{key}: {name} {value}, not {}", expected[name]));
            }
        }
        let reason = text(expected, "reason");
        if label(tokens.source) != reason {
            return Err(format!("{}: {:?}, not {reason}", capacity.key, tokens.source));
        }
    }
    same_totals(&ours.report.total, expected)?;
    let roles = expected.get("roles").and_then(Value::as_object);
    if ours.report.roles.len() != roles.map_or(0, serde_json::Map::len) {
        return Err(format!("roles {:?}", ours.report.roles));
    }
    for (role, totals) in &ours.report.roles {
        same_totals(totals, &expected["roles"][role.label()])
            .map_err(|why| format!("{}: {why}", role.label()))?;
    }
    Ok(())
}

pub(super) fn same_totals(ours: &Totals, expected: &Value) -> Result<(), String> {
    let fields = [
        ("supply", ours.supply),
        ("anticipated_supply", ours.anticipated),
        ("demand", ours.demand),
        ("required", ours.required),
        ("spare", ours.spare),
    ];
    for (name, value) in fields {
        if !close(value.amount(), number(expected, name)) {
            return Err(format!("{name} {}, not {}", value.amount(), expected[name]));
        }
    }
    Ok(())
}

/// WVA's name for a source.
fn label(source: CapacitySource) -> &'static str {
    match source {
        CapacitySource::Memory => "P4-k1",
        CapacitySource::Observed => "P1-obs",
        CapacitySource::Learned => "P2-hist",
        CapacitySource::Derived => "P3-k2",
        CapacitySource::Remembered | CapacitySource::Declared => "P0-store",
        CapacitySource::Unknown(_) => "no-data",
    }
}

pub(super) fn policy(input: &Value) -> TokenPolicy {
    let config = &input["config"];
    TokenPolicy {
        kv_threshold: fraction(&config["kv_threshold_frac"]).unwrap(),
        queue_threshold: requests(&config["queue_threshold_reqs"]),
        utilization: Utilization {
            grow: fraction(&config["scale_up_ratio"]).unwrap(),
            shrink: fraction(&config["scale_down_ratio"]).unwrap(),
        },
        sharing: CardSharing::Cluster,
        rules: TokenRules::Wva,
    }
}

pub(super) fn model(input: &Value) -> ModelKey {
    ModelKey {
        namespace: Namespace::new(&text(input, "namespace")).unwrap(),
        model: ModelName::new(&text(input, "model")).unwrap(),
    }
}

pub(super) fn key(namespace: &str, variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(namespace).unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}

pub(super) fn spec(input: &Value, variant: &str, row: &Value) -> VariantSpec {
    VariantSpec {
        key: key(&text(input, "namespace"), variant),
        model: model(input).model,
        accelerator: Accelerator::new(&text(row, "accelerator")),
        gpus: None,
        role: role(row),
        cost: CostPerHour::new(number(row, "cost")).unwrap(),
        list_price: None,
        start_time: None,
        mismatch: Fraction::ONE,
        bounds: Bounds::default(),
    }
}

fn variant<'a>(
    spec: &'a VariantSpec,
    row: &Value,
    replicas: &'a [TokenReplicaLoad],
    [current, pending]: [u32; 2],
) -> TokenVariantLoad<'a> {
    TokenVariantLoad {
        spec,
        gpus: NonZeroU32::new(whole(&row["gpus"])),
        current: Replicas::saturating(current),
        pending: Replicas::saturating(pending),
        leaving: Replicas::ZERO,
        arguments: None,
        replicas,
    }
}

fn load(row: &Value) -> TokenReplicaLoad {
    let constant = |value: Fraction| GaugeSummary {
        last: value,
        mean: value,
        peak: value,
        age: Seconds::ZERO,
    };
    let queue = requests(&row["queue_reqs"]);
    TokenReplicaLoad {
        kv_usage: fraction(&row["kv_usage_frac"]).map(constant),
        kv_capacity: tokens(&row["kv_capacity_tokens"]).filter(|size| *size > Tokens::ZERO),
        waiting: Some(GaugeSummary { last: queue, mean: queue, peak: queue, age: Seconds::ZERO }),
        running: None,
        generation_rate: None,
        requests: RequestShape {
            prompt: tokens(&row["in_tokens"]),
            output: tokens(&row["out_tokens"]),
            prefix_hits: fraction(&row["prefix_hit_frac"]),
        },
    }
}

pub(super) fn knowledge(input: &Value) -> Knowledge {
    let mut knowledge = Knowledge::default();
    for record in list(input, "records") {
        let now = Timestamp::UNIX_EPOCH;
        let key = key(&text(record, "namespace"), &text(record, "variant"));
        let model = ModelName::new(&text(record, "model")).unwrap();
        let record = CapacityRecord {
            accelerator: Accelerator::new(&text(record, "accelerator")),
            gpus: NonZeroU32::new(whole(&record["gpu_count"])),
            arguments: record.get("engine_params").map(arguments),
            kv_capacity: tokens(&record["kv_capacity_tokens"]).filter(|size| *size > Tokens::ZERO),
            capacity: tokens(&record["effective_tokens"]),
            source: match record["learned_from"].as_str().unwrap() {
                "live" => RecordSource::Measured(now),
                "deployment" => RecordSource::Declared(now),
                other => panic!("a record learned from {other}"),
            },
        };
        let saved = SavedKnowledge { record: Some(record), limits: Vec::new() };
        knowledge.recall(&model, &key, &saved);
    }
    knowledge
}

/// The engine arguments as WVA has parsed them; what is not above 0 is not set.
pub(super) fn arguments(from: &Value) -> EngineArguments {
    let set = |name: &str| tokens(&from[name]).filter(|value| *value > Tokens::ZERO);
    let set_true = |name: &str| from[name] == true;
    let count = |name: &str| from[name].as_u64().unwrap_or(0);
    EngineArguments {
        engine: match from["engine"].as_str().unwrap() {
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            other => panic!("an engine {other}"),
        },
        generation: if from["is_v1_engine"] == true { Generation::V1 } else { Generation::V0 },
        gpu_memory: fraction(&from["gpu_mem_frac"]).unwrap(),
        block_size: tokens(&from["block_size_tokens"]).unwrap_or_default(),
        kv_dtype: Arc::from(from["kv_cache_dtype"].as_str().unwrap()),
        parallel: Parallelism {
            tensor: NonZeroU32::new(whole(&from["tensor_parallel_size"])).unwrap(),
            ..Parallelism::default()
        },
        kv_blocks: count("num_gpu_blocks_override").try_into().ok(),
        kv_tokens: set("total_kv_tokens_override"),
        step_tokens: set("max_num_batched_tokens"),
        sequences: Some(requests(&from["max_num_seqs"])),
        context: set("max_model_len_tokens"),
        execution: if set_true("enforce_eager") { Execution::Eager } else { Execution::Graphs },
        prefill: if set_true("chunked_prefill_enabled") {
            Prefill::Chunked
        } else {
            Prefill::Whole
        },
        draft_tokens: None,
    }
}

/// A role that WVA does not know counts as both.
pub(super) fn role(from: &Value) -> Role {
    match from["role"].as_str() {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Both,
    }
}

/// A number that may be infinite or no number; absent is 0.
pub(super) fn float(value: &Value) -> f64 {
    match value {
        Value::Null => 0.0,
        Value::String(text) => match text.as_str() {
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => f64::NAN,
        },
        other => other.as_f64().unwrap(),
    }
}

pub(super) fn tokens(value: &Value) -> Option<Tokens> {
    Tokens::new(float(value))
}

pub(super) fn fraction(value: &Value) -> Option<Fraction> {
    Fraction::new(float(value))
}

/// WVA treats a negative queue as an empty one.
fn requests(value: &Value) -> Requests {
    Requests::new(float(value)).unwrap_or_default()
}

pub(super) fn list<'a>(from: &'a Value, name: &str) -> &'a [Value] {
    from.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text(from: &Value, name: &str) -> String {
    from[name].as_str().unwrap_or("").to_owned()
}

pub(super) fn number(from: &Value, name: &str) -> f64 {
    float(&from[name])
}

pub(super) fn whole(value: &Value) -> u32 {
    value.as_u64().map_or(0, |number| u32::try_from(number).unwrap())
}

pub(super) fn close(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= TOLERANCE * theirs.abs().max(1.0)
}
