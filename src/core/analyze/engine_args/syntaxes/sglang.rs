//! `SGLang`'s command line.
//!
//! The names are those of `SGLang` 0.5 (`sglang/srt/server_args.py`), with the older names that it
//! still accepts.

use crate::analyze::engine_args::syntax::{EngineSyntax, FlagSetting};
use crate::observe::template::Container;

pub(super) const SYNTAX: EngineSyntax =
    EngineSyntax { is_named, is_oldest: |_| false, setting, block_size: 1.0, steps_by_chunk: true };

fn is_named(container: &Container, words: &[String]) -> bool {
    container.image.to_ascii_lowercase().contains("sglang")
        || words.iter().any(|word| word == "sglang.launch_server" || word == "sglang serve")
        || words.windows(2).any(|pair| pair[0] == "sglang" && pair[1] == "serve")
}

fn setting(flag: &str) -> Option<FlagSetting> {
    Some(match flag {
        "mem-fraction-static" => FlagSetting::GpuMemory,
        "page-size" => FlagSetting::BlockSize,
        "kv-cache-dtype" => FlagSetting::KvDtype,
        "tensor-parallel-size" | "tp-size" | "tp" => FlagSetting::Tensor,
        "pipeline-parallel-size" | "pp-size" | "pp" => FlagSetting::Pipeline,
        "data-parallel-size" | "dp-size" | "dp" => FlagSetting::Data,
        "enable-dp-attention" => FlagSetting::DataAttention,
        "max-running-requests" => FlagSetting::Sequences,
        "chunked-prefill-size" => FlagSetting::ChunkSize,
        "max-prefill-tokens" => FlagSetting::PrefillTokens,
        "context-length" => FlagSetting::Context,
        "max-total-tokens" => FlagSetting::KvTokens,
        "disable-cuda-graph" => FlagSetting::Eager,
        "speculative-num-draft-tokens" => FlagSetting::DraftTokens,
        "config" => FlagSetting::File,
        _ => return None,
    })
}
