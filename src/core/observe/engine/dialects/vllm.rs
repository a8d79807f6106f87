//! vLLM's names and labels, V0 and V1.
//!
//! One table serves all versions. Replaced names are second spellings. The one release that reports
//! both counts by the new one. The label `engine` is the data-parallel rank; V0 has none and is
//! rank 0. `model_name` is the first served name, on every series.

use crate::observe::engine::dialect::{CountingRanks, Dialect};
use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::family::{MetricFamily, SamplePosition};
use crate::observe::engine::label::Label;
use crate::observe::engine::number::rank_label;
use crate::observe::engine::signal::{Distribution, EngineSignal, RankValue};
use crate::observe::engine::unreadable::SampleError;

pub(super) const DIALECT: Dialect = Dialect {
    prefixes: ["vllm:", "vllm_"],
    families: FAMILIES,
    place,
    complete: |_, reading| reading.fill_unserved(),
    counting_ranks: CountingRanks::Each,
};

const FAMILIES: &[MetricFamily] = &[
    MetricFamily::value("num_requests_running", RankValue::Running),
    MetricFamily::value("num_requests_waiting", RankValue::Waiting),
    MetricFamily::new("num_requests_waiting_by_reason", EngineSignal::WaitingByReason),
    // Renamed in 0.9.2; both until 0.10.2, the old one by option in 0.11.
    MetricFamily::value("kv_cache_usage_perc", RankValue::KvUsage),
    MetricFamily::value("gpu_cache_usage_perc", RankValue::KvUsage).older(),
    MetricFamily::new("cache_config_info", EngineSignal::CacheConfig),
    MetricFamily::new("engine_sleep_state", EngineSignal::SleepState),
    MetricFamily::value("prompt_tokens_total", RankValue::PromptTokens),
    MetricFamily::value("generation_tokens_total", RankValue::GenerationTokens),
    // Renamed in 0.9.2. The old names counted blocks up to 0.9.0, so only the quotient is
    // meaningful.
    MetricFamily::value("prefix_cache_queries_total", RankValue::PrefixQueries),
    MetricFamily::value("gpu_prefix_cache_queries_total", RankValue::PrefixQueries).older(),
    MetricFamily::value("prefix_cache_hits_total", RankValue::PrefixHits),
    MetricFamily::value("gpu_prefix_cache_hits_total", RankValue::PrefixHits).older(),
    MetricFamily::value("num_preemptions_total", RankValue::Preemptions),
    MetricFamily::new("request_success_total", EngineSignal::Finished),
    MetricFamily::new("admission_rejections_total", EngineSignal::Rejected),
    MetricFamily::new("lora_requests_info", EngineSignal::Lora),
    MetricFamily::distribution("time_to_first_token_seconds", Distribution::Ttft),
    // Renamed in 0.10.2; both until 0.11, the old one by option until 0.14.
    MetricFamily::distribution("inter_token_latency_seconds", Distribution::Itl),
    MetricFamily::distribution("time_per_output_token_seconds", Distribution::Itl).older(),
    MetricFamily::distribution("e2e_request_latency_seconds", Distribution::E2e),
    MetricFamily::distribution("request_queue_time_seconds", Distribution::QueueTime),
    MetricFamily::distribution("request_inference_time_seconds", Distribution::InferenceTime),
    MetricFamily::distribution("request_prefill_time_seconds", Distribution::PrefillTime),
    MetricFamily::distribution("request_prompt_tokens", Distribution::PromptLength),
    MetricFamily::distribution("request_prefill_kv_computed_tokens", Distribution::ComputedLength),
    MetricFamily::distribution("request_generation_tokens", Distribution::GenerationLength),
    MetricFamily::distribution("request_params_n", Distribution::CompletionsAsked),
    // A histogram in spite of its name.
    MetricFamily::distribution("iteration_tokens_total", Distribution::StepTokens),
];

/// The place of a sample; `detail` is the label that its signal is split by.
fn place<'a>(
    labels: &'a [Label<'_>],
    detail: Option<&'static str>,
) -> Result<Option<SamplePosition<'a>>, SampleError> {
    let mut place = SamplePosition { rank: 0, class: 0, shard: 0, model: None, detail: None };
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

    Ok(Some(place))
}

/// Reads the size of the KV cache from the labels of `cache_config_info`. A label with the value
/// `None` counts as missing.
pub(crate) fn take_cache_config(
    draft: &mut RankDraft,
    labels: &[Label<'_>],
) -> Result<(), SampleError> {
    // Padded pages are those of models with attention and state-space layers.
    let is_hybrid = Label::find(labels, b"mamba_page_size_padded")
        .is_some_and(|label| *label.value != *b"None");
    let blocks = if is_hybrid { None } else { Label::find(labels, b"num_gpu_blocks") };
    for (value, label) in [
        (RankValue::KvTokens, Label::find(labels, b"kv_cache_size_tokens")),
        (RankValue::KvBlocks, blocks),
        (RankValue::KvBlockSize, Label::find(labels, b"block_size")),
    ] {
        draft.set_from_label(value, label.map_or(b"", |label| &label.value))?;
    }

    Ok(())
}

/// The value that a waiting reason maps to.
pub(crate) fn waiting(reason: &[u8]) -> Option<RankValue> {
    match reason {
        b"capacity" => Some(RankValue::WaitingCapacity),
        b"deferred" => Some(RankValue::WaitingDeferred),
        _ => None,
    }
}

/// The value that a sleep state maps to.
pub(crate) fn sleep_state(state: &[u8]) -> Option<RankValue> {
    match state {
        b"awake" => Some(RankValue::Awake),
        b"weights_offloaded" => Some(RankValue::Offloaded),
        b"discard_all" => Some(RankValue::Discarded),
        _ => None,
    }
}

/// The value that a finish reason maps to; `None` for reasons of later versions.
pub(crate) fn finished(reason: &[u8]) -> Option<RankValue> {
    match reason {
        b"stop" => Some(RankValue::FinishedStop),
        b"length" => Some(RankValue::FinishedLength),
        b"abort" => Some(RankValue::FinishedAbort),
        b"error" => Some(RankValue::FinishedError),
        _ => None,
    }
}
