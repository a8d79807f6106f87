//! vLLM's names and labels, V0 and V1.
//!
//! One table serves all versions: names that were replaced are second spellings, and a page of
//! the one release in which both exist counts the new one. The label `engine` is the data-parallel
//! rank; V0 has none and is rank 0. `model_name` is the first served name, on every series.

use crate::observe::engine::draft::{Distribution, RankDraft, Value};
use crate::observe::engine::family::{Family, Place, Signal};
use crate::observe::engine::number::rank_label;
use crate::observe::engine::{Label, SampleError};

pub(super) const PREFIXES: [&str; 2] = ["vllm:", "vllm_"];

pub(super) const FAMILIES: &[Family] = &[
    Family::new("num_requests_running", Signal::Value(Value::Running)),
    Family::new("num_requests_waiting", Signal::Value(Value::Waiting)),
    Family::new("num_requests_waiting_by_reason", Signal::WaitingByReason),
    // Renamed in 0.9.2; both until 0.10.2, the old one on request in 0.11.
    Family::new("kv_cache_usage_perc", Signal::Value(Value::KvUsage)),
    Family::older("gpu_cache_usage_perc", Signal::Value(Value::KvUsage)),
    Family::new("cache_config_info", Signal::CacheConfig),
    Family::new("engine_sleep_state", Signal::SleepState),
    Family::new("prompt_tokens_total", Signal::Value(Value::PromptTokens)),
    Family::new("generation_tokens_total", Signal::Value(Value::GenerationTokens)),
    // Renamed in 0.9.2. The old names counted blocks up to 0.9.0, so that of those only the
    // quotient is meaningful.
    Family::new("prefix_cache_queries_total", Signal::Value(Value::PrefixQueries)),
    Family::older("gpu_prefix_cache_queries_total", Signal::Value(Value::PrefixQueries)),
    Family::new("prefix_cache_hits_total", Signal::Value(Value::PrefixHits)),
    Family::older("gpu_prefix_cache_hits_total", Signal::Value(Value::PrefixHits)),
    Family::new("num_preemptions_total", Signal::Value(Value::Preemptions)),
    Family::new("request_success_total", Signal::Finished),
    Family::new("admission_rejections_total", Signal::Rejected),
    Family::new("lora_requests_info", Signal::Lora),
    Family::new("time_to_first_token_seconds", Signal::Distribution(Distribution::Ttft)),
    // Renamed in 0.10.2; both until 0.11, the old one on request until 0.14.
    Family::new("inter_token_latency_seconds", Signal::Distribution(Distribution::Itl)),
    Family::older("time_per_output_token_seconds", Signal::Distribution(Distribution::Itl)),
    Family::new("e2e_request_latency_seconds", Signal::Distribution(Distribution::E2e)),
    Family::new("request_queue_time_seconds", Signal::Distribution(Distribution::QueueTime)),
    Family::new(
        "request_inference_time_seconds",
        Signal::Distribution(Distribution::InferenceTime),
    ),
    Family::new("request_prompt_tokens", Signal::Distribution(Distribution::PromptLength)),
    Family::new("request_generation_tokens", Signal::Distribution(Distribution::GenerationLength)),
    Family::new("request_params_n", Signal::Distribution(Distribution::CompletionsAsked)),
    // A histogram in spite of its name.
    Family::new("iteration_tokens_total", Signal::Distribution(Distribution::StepTokens)),
];

/// Where a sample belongs; `detail` is the label that its signal is split by.
pub(super) fn place<'a>(
    labels: &'a [Label<'_>],
    detail: Option<&'static str>,
) -> Result<Place<'a>, SampleError> {
    let mut place = Place { rank: 0, class: 0, shard: 0, model: None, detail: None };
    for label in labels {
        match &*label.name {
            b"engine" => place.rank = rank_label("engine", &label.value)?,
            b"model_name" => place.model = Some(&label.value),
            name if detail.is_some_and(|detail| detail.as_bytes() == name) => {
                place.detail = Some(&label.value);
            }
            _ => {}
        }
    }
    Ok(place)
}

/// Reads the size of the KV cache from the labels of `cache_config_info`. A label may be `None`,
/// which is as good as no label.
pub(super) fn take_cache_config(
    draft: &mut RankDraft,
    labels: &[Label<'_>],
) -> Result<(), SampleError> {
    // Padded pages are those of models with attention and state-space layers.
    let is_hybrid = Label::find(labels, b"mamba_page_size_padded")
        .is_some_and(|label| *label.value != *b"None");
    let blocks = if is_hybrid { None } else { Label::find(labels, b"num_gpu_blocks") };
    for (value, label) in [
        (Value::KvTokens, Label::find(labels, b"kv_cache_size_tokens")),
        (Value::KvBlocks, blocks),
        (Value::KvBlockSize, Label::find(labels, b"block_size")),
    ] {
        draft.set_from_label(value, label.map_or(b"", |label| &label.value))?;
    }
    Ok(())
}

/// The waiting requests that this reason stands for.
pub(super) fn waiting(reason: &[u8]) -> Option<Value> {
    match reason {
        b"capacity" => Some(Value::WaitingCapacity),
        b"deferred" => Some(Value::WaitingDeferred),
        _ => None,
    }
}

/// The state that this value stands for.
pub(super) fn sleep_state(state: &[u8]) -> Option<Value> {
    match state {
        b"awake" => Some(Value::Awake),
        b"weights_offloaded" => Some(Value::Offloaded),
        b"discard_all" => Some(Value::Discarded),
        _ => None,
    }
}

/// The finished requests that this reason stands for; `None` for reasons that came later.
pub(super) fn finished(reason: &[u8]) -> Option<Value> {
    match reason {
        b"stop" => Some(Value::FinishedStop),
        b"length" => Some(Value::FinishedLength),
        b"abort" => Some(Value::FinishedAbort),
        b"error" => Some(Value::FinishedError),
        _ => None,
    }
}
