//! `SGLang`'s names and labels.
//!
//! The label `dp_rank` is the data-parallel rank. Tensor-, pipeline- and expert-parallel ranks of
//! one data-parallel rank repeat the same numbers when all schedulers report, so only the lowest of
//! them counts. With priority scheduling, the series with an empty `priority` is the total, and the
//! others are parts of it. Request metrics are split by `is_streaming`, and the parts are added up.

use crate::observe::engine::dialect::{CountingRanks, Dialect};
use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::family::{MetricFamily, SamplePosition};
use crate::observe::engine::label::Label;
use crate::observe::engine::number::rank_label;
use crate::observe::engine::signal::{Distribution, RankValue};
use crate::observe::engine::unreadable::SampleError;
use crate::observe::reading::RankReading;
use crate::units::Requests;

pub(super) const DIALECT: Dialect = Dialect {
    prefixes: ["sglang:", "sglang_"],
    families: FAMILIES,
    place,
    complete: add_queues,
    counting_ranks: CountingRanks::First,
};

const FAMILIES: &[MetricFamily] = &[
    MetricFamily::value("num_running_reqs", RankValue::Running),
    MetricFamily::value("num_queue_reqs", RankValue::WaitingCapacity),
    MetricFamily::value("num_grammar_queue_reqs", RankValue::QueueGrammar),
    MetricFamily::value("num_prefill_bootstrap_queue_reqs", RankValue::QueueBootstrap),
    MetricFamily::value("num_decode_prealloc_queue_reqs", RankValue::QueuePrealloc),
    MetricFamily::value("num_decode_transfer_queue_reqs", RankValue::QueueTransfer),
    MetricFamily::value("token_usage", RankValue::KvUsage),
    MetricFamily::value("max_total_num_tokens", RankValue::KvTokens),
    MetricFamily::value("prompt_tokens_total", RankValue::PromptTokens),
    MetricFamily::value("generation_tokens_total", RankValue::GenerationTokens),
    MetricFamily::value("num_requests_total", RankValue::FinishedAny),
    MetricFamily::value("num_aborted_requests_total", RankValue::FinishedAbort),
    MetricFamily::distribution("time_to_first_token_seconds", Distribution::Ttft),
    MetricFamily::distribution("inter_token_latency_seconds", Distribution::Itl),
    MetricFamily::distribution("time_per_output_token_seconds", Distribution::Itl).older(),
    MetricFamily::distribution("e2e_request_latency_seconds", Distribution::E2e),
    MetricFamily::distribution("queue_time_seconds", Distribution::QueueTime),
    MetricFamily::distribution("prompt_tokens_histogram", Distribution::PromptLength),
    MetricFamily::distribution("generation_tokens_histogram", Distribution::GenerationLength),
];

/// The place of a sample; `None` for a series that is part of another.
fn place<'a>(
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
fn add_queues(draft: &RankDraft, reading: &mut RankReading) {
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
