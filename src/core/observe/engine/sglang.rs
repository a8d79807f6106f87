//! `SGLang`'s names and labels.
//!
//! The label `dp_rank` is the data-parallel rank. Tensor-, pipeline- and expert-parallel ranks of
//! one data-parallel rank repeat the same numbers when all schedulers report, so the lowest of
//! them counts and the others are passed over. With priority scheduling the total is the series
//! whose `priority` is empty, and the others are parts of it. Request metrics are split by
//! `is_streaming`, and the parts are added up.

use crate::observe::RankReading;
use crate::observe::engine::draft::{Distribution, RankDraft, Value};
use crate::observe::engine::family::{Family, Place, Signal};
use crate::observe::engine::number::rank_label;
use crate::observe::engine::{Label, SampleError};
use crate::units::Requests;

pub(super) const PREFIXES: [&str; 2] = ["sglang:", "sglang_"];

pub(super) const FAMILIES: &[Family] = &[
    Family::new("num_running_reqs", Signal::Value(Value::Running)),
    Family::new("num_queue_reqs", Signal::Value(Value::WaitingCapacity)),
    Family::new("num_grammar_queue_reqs", Signal::Value(Value::QueueGrammar)),
    Family::new("num_prefill_bootstrap_queue_reqs", Signal::Value(Value::QueueBootstrap)),
    Family::new("num_decode_prealloc_queue_reqs", Signal::Value(Value::QueuePrealloc)),
    Family::new("num_decode_transfer_queue_reqs", Signal::Value(Value::QueueTransfer)),
    Family::new("token_usage", Signal::Value(Value::KvUsage)),
    Family::new("max_total_num_tokens", Signal::Value(Value::KvTokens)),
    Family::new("prompt_tokens_total", Signal::Value(Value::PromptTokens)),
    Family::new("generation_tokens_total", Signal::Value(Value::GenerationTokens)),
    Family::new("num_requests_total", Signal::Value(Value::FinishedAny)),
    Family::new("num_aborted_requests_total", Signal::Value(Value::FinishedAbort)),
    Family::new("time_to_first_token_seconds", Signal::Distribution(Distribution::Ttft)),
    Family::new("inter_token_latency_seconds", Signal::Distribution(Distribution::Itl)),
    Family::older("time_per_output_token_seconds", Signal::Distribution(Distribution::Itl)),
    Family::new("e2e_request_latency_seconds", Signal::Distribution(Distribution::E2e)),
    Family::new("queue_time_seconds", Signal::Distribution(Distribution::QueueTime)),
    Family::new("prompt_tokens_histogram", Signal::Distribution(Distribution::PromptLength)),
    Family::new(
        "generation_tokens_histogram",
        Signal::Distribution(Distribution::GenerationLength),
    ),
];

/// Where a sample belongs; `None` for a series that is part of another.
pub(super) fn place<'a>(
    labels: &'a [Label<'_>],
    detail: Option<&'static str>,
) -> Result<Option<Place<'a>>, SampleError> {
    let mut place = Place { rank: 0, class: 0, shard: 0, model: None, detail: None };
    let (mut pipeline, mut tensor, mut expert) = (0, 0, 0);
    for label in labels {
        let rank = |name| match &*label.value {
            b"" => Ok(0),
            value => rank_label(name, value),
        };
        match &*label.name {
            b"dp_rank" => place.rank = rank("dp_rank")?,
            b"pp_rank" => pipeline = rank("pp_rank")?,
            b"tp_rank" => tensor = rank("tp_rank")?,
            b"moe_ep_rank" => expert = rank("moe_ep_rank")?,
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

/// Adds up the queues. `SGLang` has a queue for each thing that a request can wait for; what vLLM
/// calls waiting is all of them, and the main one is the one that more capacity shortens.
pub(super) fn add_queues(draft: &RankDraft, reading: &mut RankReading) {
    let queues =
        [Value::QueueGrammar, Value::QueueBootstrap, Value::QueuePrealloc, Value::QueueTransfer];
    let mut present = queues.into_iter().filter(|&queue| draft.has(queue)).peekable();
    if present.peek().is_none() {
        reading.waiting = reading.waiting_capacity;
        return;
    }
    // A queue that is on the page and means nothing must not read as an empty one.
    let deferred = present.map(|queue| draft.value(queue)).sum::<Option<f64>>();
    reading.waiting_deferred = deferred.and_then(Requests::new);
    reading.waiting =
        reading.waiting_capacity.zip(reading.waiting_deferred).map(|(main, rest)| main + rest);
}
