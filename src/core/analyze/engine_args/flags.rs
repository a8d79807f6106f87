//! The flags of both engines: their names, and what their values set.
//!
//! Names are those of vLLM 0.33 (`vllm/engine/arg_utils.py`) and of `SGLang` 0.5
//! (`sglang/srt/server_args.py`), with the older names that those still take.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::analyze::engine_args::{EngineArguments, Execution, Prefill, words};
use crate::observe::engine::Engine;
use crate::units::{Fraction, Requests, Tokens};

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    GpuMemory,
    BlockSize,
    KvDtype,
    Tensor,
    Pipeline,
    Data,
    DataLocal,
    DataRank,
    DataAttention,
    Sequences,
    StepTokens,
    ChunkSize,
    PrefillTokens,
    Context,
    KvBlocks,
    KvTokens,
    Eager,
    ChunkedPrefill,
    NoChunkedPrefill,
    DraftTokens,
    Speculative,
    File,
}

impl Setting {
    /// The setting of a flag without its dashes, with `-` for `_`.
    fn of(engine: Engine, name: &str) -> Option<Self> {
        match engine {
            Engine::Vllm => Self::of_vllm(name),
            Engine::Sglang => Self::of_sglang(name),
        }
    }

    fn of_vllm(name: &str) -> Option<Self> {
        Some(match name {
            "gpu-memory-utilization" => Self::GpuMemory,
            "block-size" => Self::BlockSize,
            "kv-cache-dtype" => Self::KvDtype,
            "tensor-parallel-size" | "tp" => Self::Tensor,
            "pipeline-parallel-size" | "pp" => Self::Pipeline,
            "data-parallel-size" | "dp" => Self::Data,
            "data-parallel-size-local" | "dpl" => Self::DataLocal,
            "data-parallel-rank" | "dpn" => Self::DataRank,
            "max-num-seqs" => Self::Sequences,
            "max-num-batched-tokens" => Self::StepTokens,
            "max-model-len" => Self::Context,
            "num-gpu-blocks-override" => Self::KvBlocks,
            "enforce-eager" => Self::Eager,
            "enable-chunked-prefill" => Self::ChunkedPrefill,
            "no-enable-chunked-prefill" => Self::NoChunkedPrefill,
            "num-speculative-tokens" | "speculative-config.num-speculative-tokens" => {
                Self::DraftTokens
            }
            "speculative-config" => Self::Speculative,
            "config" => Self::File,
            _ => return None,
        })
    }

    fn of_sglang(name: &str) -> Option<Self> {
        Some(match name {
            "mem-fraction-static" => Self::GpuMemory,
            "page-size" => Self::BlockSize,
            "kv-cache-dtype" => Self::KvDtype,
            "tensor-parallel-size" | "tp-size" | "tp" => Self::Tensor,
            "pipeline-parallel-size" | "pp-size" | "pp" => Self::Pipeline,
            "data-parallel-size" | "dp-size" | "dp" => Self::Data,
            "enable-dp-attention" => Self::DataAttention,
            "max-running-requests" => Self::Sequences,
            "chunked-prefill-size" => Self::ChunkSize,
            "max-prefill-tokens" => Self::PrefillTokens,
            "context-length" => Self::Context,
            "max-total-tokens" => Self::KvTokens,
            "disable-cuda-graph" => Self::Eager,
            "speculative-num-draft-tokens" => Self::DraftTokens,
            "config" => Self::File,
            _ => return None,
        })
    }

    /// Whether the flag stands alone.
    const fn is_switch(self) -> bool {
        matches!(
            self,
            Self::DataAttention | Self::Eager | Self::ChunkedPrefill | Self::NoChunkedPrefill
        )
    }
}

/// What the flags say that does not go into the arguments as it is.
#[derive(Default)]
pub(super) struct Flags {
    data_local: Option<NonZeroU32>,
    shares_attention: bool,
    chunk_size: Option<i64>,
    prefill_tokens: Option<Tokens>,
    /// Files that nobody could read, and values that nobody can know before they run.
    pub(super) unread: Vec<String>,
}

impl Flags {
    /// Takes each flag among these words into the arguments; of several, the last holds.
    pub(super) fn take(
        &mut self,
        arguments: &mut EngineArguments,
        files: &BTreeMap<String, String>,
        words: &[String],
    ) {
        // The command line wins over the file that it names, wherever it names it.
        for (setting, path) in settings(arguments.engine, words) {
            if let (Setting::File, Some(path)) = (setting, path) {
                match files.get(path.strip_prefix("./").unwrap_or(path)) {
                    Some(text) => {
                        let words = words::file_words(text);
                        let settings = settings(arguments.engine, &words);
                        self.take_all(arguments, &settings);
                    }
                    None => self.unread.push(path.to_owned()),
                }
            }
        }
        let settings = settings(arguments.engine, words);
        self.take_all(arguments, &settings);
    }

    fn take_all(&mut self, to: &mut EngineArguments, settings: &[(Setting, Option<&str>)]) {
        for (setting, value) in settings {
            if setting.is_switch() {
                self.switch(to, *setting, *value);
            } else if let Some(value) = value {
                // What a shell or Kubernetes would put in its place is not known here.
                if *setting != Setting::File && value.contains(['$', '`']) {
                    self.unread.push((*value).to_owned());
                }
                self.set(to, *setting, value);
            }
        }
    }

    /// A switch is on where it stands alone.
    fn switch(&mut self, to: &mut EngineArguments, setting: Setting, value: Option<&str>) {
        let on = value.is_none_or(|value| !is_false(value));
        match (setting, on) {
            (Setting::Eager, true) => to.execution = Execution::Eager,
            (Setting::Eager, false) => to.execution = Execution::Graphs,
            (Setting::ChunkedPrefill, true) | (Setting::NoChunkedPrefill, false) => {
                to.prefill = Prefill::Chunked;
            }
            (Setting::ChunkedPrefill, false) | (Setting::NoChunkedPrefill, true) => {
                to.prefill = Prefill::Whole;
            }
            (Setting::DataAttention, on) => self.shares_attention = on,
            _ => {}
        }
    }

    fn set(&mut self, to: &mut EngineArguments, setting: Setting, value: &str) {
        let number = whole(value);
        let positive = || number.and_then(|number| u32::try_from(number).ok()?.try_into().ok());
        // A number that is not above zero takes back an earlier one; a text that is none does not.
        let tokens = |slot: &mut Option<Tokens>| {
            if let Some(number) = number {
                *slot = Tokens::new(number as f64).filter(|tokens| *tokens > Tokens::ZERO);
            }
        };
        match setting {
            Setting::GpuMemory => {
                let share = value.parse().ok().and_then(Fraction::new);
                to.gpu_memory = share.unwrap_or(to.gpu_memory);
            }
            Setting::BlockSize => {
                let size = number.and_then(|size| Tokens::new(size as f64));
                to.block_size = size.filter(|size| *size > Tokens::ZERO).unwrap_or(to.block_size);
            }
            Setting::KvDtype => to.kv_dtype = Arc::from(value),
            Setting::Tensor => to.parallel.tensor = positive().unwrap_or(to.parallel.tensor),
            Setting::Pipeline => to.parallel.pipeline = positive().unwrap_or(to.parallel.pipeline),
            Setting::Data => to.parallel.data = positive().unwrap_or(to.parallel.data),
            Setting::DataLocal => self.data_local = positive().or(self.data_local),
            // Its engine is one of the ranks, and the others are replicas of their own.
            Setting::DataRank => self.data_local = Some(NonZeroU32::MIN),
            Setting::Sequences => {
                let sequences = number.and_then(|number| Requests::new(number as f64));
                to.sequences = sequences.or(to.sequences);
            }
            Setting::StepTokens => tokens(&mut to.step_tokens),
            Setting::ChunkSize => self.chunk_size = number.or(self.chunk_size),
            Setting::PrefillTokens => tokens(&mut self.prefill_tokens),
            Setting::Context => tokens(&mut to.context),
            Setting::KvBlocks => {
                if let Some(number) = number {
                    to.kv_blocks = u64::try_from(number).ok().and_then(NonZeroU64::new);
                }
            }
            Setting::KvTokens => tokens(&mut to.kv_tokens),
            Setting::DraftTokens => to.draft_tokens = positive().or(to.draft_tokens),
            Setting::Speculative => to.draft_tokens = draft_tokens(value).or(to.draft_tokens),
            Setting::File
            | Setting::DataAttention
            | Setting::Eager
            | Setting::ChunkedPrefill
            | Setting::NoChunkedPrefill => {}
        }
    }

    /// Takes in what can only be said when every flag is known.
    pub(super) fn conclude(&self, arguments: &mut EngineArguments) {
        if let Some(size) = self.chunk_size {
            arguments.prefill = if size > 0 { Prefill::Chunked } else { Prefill::Whole };
        }
        if arguments.engine == Engine::Sglang {
            let chunk = self.chunk_size.and_then(|size| Tokens::new(size as f64));
            let chunk = chunk.filter(|size| *size > Tokens::ZERO);
            // `SGLang` computes no more than a chunk in a step, whatever a batch of prompts may hold.
            arguments.step_tokens = chunk.or(self.prefill_tokens);
        }
        let parallel = &mut arguments.parallel;
        if let Some(local) = self.data_local {
            parallel.data = local;
        }
        if self.shares_attention {
            // The ranks divide the tensor-parallel GPUs among them instead of adding their own.
            let each = parallel.tensor.get() / parallel.data.get();
            parallel.tensor = NonZeroU32::new(each).unwrap_or(NonZeroU32::MIN);
        }
    }
}

/// The flags among these words, with their values.
fn settings(engine: Engine, words: &[String]) -> Vec<(Setting, Option<&str>)> {
    let mut settings = Vec::new();
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let dashed = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        let Some(flag) = dashed else { continue };
        let (name, attached) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let Some(setting) = Setting::of(engine, &name.replace('_', "-")) else { continue };
        let value = if setting.is_switch() {
            attached
        } else {
            attached.or_else(|| words.next_if(|next| !next.starts_with("--")))
        };
        settings.push((setting, value));
    }
    settings
}

/// A whole number, in digits or with the suffix that vLLM takes: `8k` is 8,000 and `8K` 8,192.
fn whole(value: &str) -> Option<i64> {
    if let Ok(number) = value.parse() {
        return Some(number);
    }
    let suffix = value.chars().next_back()?;
    let digits = &value[..value.len() - suffix.len_utf8()];
    let (decimal, power) = match suffix {
        'k' => (true, 1),
        'm' => (true, 2),
        'g' => (true, 3),
        'K' => (false, 1),
        'M' => (false, 2),
        'G' => (false, 3),
        _ => return None,
    };
    if decimal {
        let number: f64 = digits.parse().ok().filter(|number: &f64| *number >= 0.0)?;
        let number = (number * 1000_f64.powi(power)).round();
        #[expect(clippy::cast_possible_truncation, reason = "it is whole, and far below 2^63")]
        (number < 1e15).then_some(number as i64)
    } else {
        digits.parse::<i64>().ok()?.checked_mul(1024_i64.checked_pow(power.unsigned_abs())?)
    }
}

/// Draft tokens in vLLM's `--speculative-config`, which is JSON: `"num_speculative_tokens": 3`.
fn draft_tokens(json: &str) -> Option<NonZeroU32> {
    let (_, after) = json.split_once("\"num_speculative_tokens\"")?;
    let value = after.trim_start().strip_prefix(':')?.trim_start();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    value[..digits].parse().ok()
}

fn is_false(value: &str) -> bool {
    ["false", "no", "0"].iter().any(|no| value.eq_ignore_ascii_case(no))
}
