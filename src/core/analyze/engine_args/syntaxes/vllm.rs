//! vLLM's command line.
//!
//! The names are those of vLLM 0.33 (`vllm/engine/arg_utils.py`), with the older names that it
//! still accepts.

use crate::analyze::engine_args::syntax::{EngineSyntax, FlagSetting};
use crate::observe::template::{Container, VLLM_GENERATION};

pub(super) const SYNTAX: EngineSyntax =
    EngineSyntax { is_named, is_oldest: is_v0, setting, block_size: 16.0, steps_by_chunk: false };

fn is_named(container: &Container, words: &[String]) -> bool {
    container.image.to_ascii_lowercase().contains("vllm")
        || words.iter().any(|word| word == "vllm" || word.starts_with("vllm."))
}

/// Returns true if the environment selects vLLM's V0 engine.
fn is_v0(container: &Container) -> bool {
    container.environment.get(VLLM_GENERATION).is_some_and(|value| value == "0")
}

fn setting(flag: &str) -> Option<FlagSetting> {
    Some(match flag {
        "gpu-memory-utilization" => FlagSetting::GpuMemory,
        "block-size" => FlagSetting::BlockSize,
        "kv-cache-dtype" => FlagSetting::KvDtype,
        "tensor-parallel-size" | "tp" => FlagSetting::Tensor,
        "pipeline-parallel-size" | "pp" => FlagSetting::Pipeline,
        "data-parallel-size" | "dp" => FlagSetting::Data,
        "data-parallel-size-local" | "dpl" => FlagSetting::DataLocal,
        "data-parallel-rank" | "dpn" => FlagSetting::DataRank,
        "max-num-seqs" => FlagSetting::Sequences,
        "max-num-batched-tokens" => FlagSetting::StepTokens,
        "max-model-len" => FlagSetting::Context,
        "num-gpu-blocks-override" => FlagSetting::KvBlocks,
        "enforce-eager" => FlagSetting::Eager,
        "enable-chunked-prefill" => FlagSetting::ChunkedPrefill,
        "no-enable-chunked-prefill" => FlagSetting::NoChunkedPrefill,
        "num-speculative-tokens" | "speculative-config.num-speculative-tokens" => {
            FlagSetting::DraftTokens
        }
        "speculative-config" => FlagSetting::Speculative,
        "config" => FlagSetting::File,
        _ => return None,
    })
}
