//! `SGLang`'s names and labels.
//!
//! The label `dp_rank` is the data-parallel rank. Tensor-, pipeline- and expert-parallel ranks of
//! one data-parallel rank repeat the same numbers when all schedulers report, so only the lowest of
//! them counts. With priority scheduling, the series with an empty `priority` is the total, and the
//! others are parts of it. Request metrics are split by `is_streaming`, and the parts are added up.

use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::family::{MetricFamily, SamplePosition};
use crate::observe::engine::label::Label;
use crate::observe::engine::number::rank_label;
use crate::observe::engine::signal::{Distribution, EngineSignal, RankValue};
use crate::observe::engine::unreadable::SampleError;
use crate::observe::reading::RankReading;
use crate::units::Requests;

pub(super) const PREFIXES: [&str; 2] = ["sglang:", "sglang_"];

pub(super) const FAMILIES: &[MetricFamily] = &[
    MetricFamily::new("num_running_reqs", EngineSignal::Value(RankValue::Running)),
    MetricFamily::new("num_queue_reqs", EngineSignal::Value(RankValue::WaitingCapacity)),
    MetricFamily::new("num_grammar_queue_reqs", EngineSignal::Value(RankValue::QueueGrammar)),
    MetricFamily::new(
        "num_prefill_bootstrap_queue_reqs",
        EngineSignal::Value(RankValue::QueueBootstrap),
    ),
    MetricFamily::new(
        "num_decode_prealloc_queue_reqs",
        EngineSignal::Value(RankValue::QueuePrealloc),
    ),
    MetricFamily::new(
        "num_decode_transfer_queue_reqs",
        EngineSignal::Value(RankValue::QueueTransfer),
    ),
    MetricFamily::new("token_usage", EngineSignal::Value(RankValue::KvUsage)),
    MetricFamily::new("max_total_num_tokens", EngineSignal::Value(RankValue::KvTokens)),
    MetricFamily::new("prompt_tokens_total", EngineSignal::Value(RankValue::PromptTokens)),
    MetricFamily::new("generation_tokens_total", EngineSignal::Value(RankValue::GenerationTokens)),
    MetricFamily::new("num_requests_total", EngineSignal::Value(RankValue::FinishedAny)),
    MetricFamily::new("num_aborted_requests_total", EngineSignal::Value(RankValue::FinishedAbort)),
    MetricFamily::new(
        "time_to_first_token_seconds",
        EngineSignal::Distribution(Distribution::Ttft),
    ),
    MetricFamily::new("inter_token_latency_seconds", EngineSignal::Distribution(Distribution::Itl)),
    MetricFamily::older(
        "time_per_output_token_seconds",
        EngineSignal::Distribution(Distribution::Itl),
    ),
    MetricFamily::new("e2e_request_latency_seconds", EngineSignal::Distribution(Distribution::E2e)),
    MetricFamily::new("queue_time_seconds", EngineSignal::Distribution(Distribution::QueueTime)),
    MetricFamily::new(
        "prompt_tokens_histogram",
        EngineSignal::Distribution(Distribution::PromptLength),
    ),
    MetricFamily::new(
        "generation_tokens_histogram",
        EngineSignal::Distribution(Distribution::GenerationLength),
    ),
];

/// The place of a sample; `None` for a series that is part of another.
pub(super) fn place<'a>(
    labels: &'a [Label<'_>],
    detail: Option<&'static str>,
) -> Result<Option<SamplePosition<'a>>, SampleError> {
    let mut place = SamplePosition { rank: 0, class: 0, shard: 0, model: None, detail: None };
    let mut pipeline = 0;
    let mut tensor = 0;
    let mut expert = 0;
    for label in labels {
        match &*label.name {
            b"dp_rank" => place.rank = rank_or_zero("dp_rank", &label.value)?,
            b"pp_rank" => pipeline = rank_or_zero("pp_rank", &label.value)?,
            b"tp_rank" => tensor = rank_or_zero("tp_rank", &label.value)?,
            b"moe_ep_rank" => expert = rank_or_zero("moe_ep_rank", &label.value)?,
            b"model_name" => place.model = Some(&label.value),
            b"is_streaming" => place.class = streaming(&label.value)?,
            b"priority" if !label.value.is_empty() => return Ok(None),
            name if detail.is_some_and(|detail| detail.as_bytes() == name) => {
                place.detail = Some(&label.value);
            }
            _ => {}
        }
    }

    place.shard = shard(pipeline, tensor, expert);
    Ok(Some(place))
}

/// The rank in a label; 0 if the value is empty.
fn rank_or_zero(label: &'static str, value: &[u8]) -> Result<u32, SampleError> {
    if value.is_empty() { Ok(0) } else { rank_label(label, value) }
}

/// The parallel ranks as one number that orders them.
fn shard(pipeline: u32, tensor: u32, expert: u32) -> u64 {
    /// Far above any group's size; larger ranks all count as this one.
    const LAST: u32 = (1 << 20) - 1;
    [pipeline, tensor, expert]
        .into_iter()
        .fold(0, |shard, rank| (shard << 20) | u64::from(rank.min(LAST)))
}

fn streaming(value: &[u8]) -> Result<u8, SampleError> {
    match value {
        b"" => Ok(0),
        b"true" | b"True" => Ok(1),
        b"false" | b"False" => Ok(2),
        _ => Err(SampleError::bad_label("is_streaming", value, "\"true\" or \"false\"")),
    }
}

/// Adds up the queues. `SGLang` has a queue for each reason to wait; vLLM's waiting requests
/// include all of them. More capacity shortens the main queue.
pub(super) fn add_queues(draft: &RankDraft, reading: &mut RankReading) {
    let queues = [
        RankValue::QueueGrammar,
        RankValue::QueueBootstrap,
        RankValue::QueuePrealloc,
        RankValue::QueueTransfer,
    ];
    let mut present = queues.into_iter().filter(|&queue| draft.has(queue)).peekable();
    if present.peek().is_none() {
        reading.waiting = reading.waiting_capacity;
        return;
    }

    // A queue with an unusable value must not read as an empty one.
    let deferred = present.map(|queue| draft.value(queue)).sum::<Option<f64>>();
    reading.waiting_deferred = deferred.and_then(Requests::new);
    reading.waiting =
        reading.waiting_capacity.zip(reading.waiting_deferred).map(|(main, rest)| main + rest);
}
