//! The effect of flags on the arguments.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use crate::analyze::engine_args::arguments::{EngineArguments, Execution, Prefill};
use crate::analyze::engine_args::syntax::FlagSetting;
use crate::analyze::engine_args::words;
use crate::observe::engine::Engine;
use crate::units::{Fraction, Requests, Tokens};

/// Flag values that [`conclude`](Self::conclude) combines into the arguments.
#[derive(Default)]
pub(super) struct Flags {
    data_local: Option<NonZeroU32>,
    shares_attention: bool,
    chunk_size: Option<i64>,
    prefill_tokens: Option<Tokens>,
    /// Paths of unreadable files, and values that are only known at run time.
    pub(super) unread: Vec<String>,
}

impl Flags {
    /// Applies each flag among these words to the arguments. If a flag is repeated, the last one
    /// wins.
    pub(super) fn take(
        &mut self,
        arguments: &mut EngineArguments,
        files: &BTreeMap<String, String>,
        words: &[String],
    ) {
        // The command line wins over the file that it names, at any position of the file's flag.
        for (setting, path) in settings(arguments.engine, words) {
            if let (FlagSetting::File, Some(path)) = (setting, path) {
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

    fn take_all(&mut self, to: &mut EngineArguments, settings: &[(FlagSetting, Option<&str>)]) {
        for (setting, value) in settings {
            if setting.is_switch() {
                self.switch(to, *setting, *value);
            } else if let Some(value) = value {
                // The value that a shell or Kubernetes would substitute is not known here.
                if *setting != FlagSetting::File && value.contains(['$', '`']) {
                    self.unread.push((*value).to_owned());
                }
                self.set(to, *setting, value);
            }
        }
    }

    /// Applies a switch, which is on if it has no value.
    fn switch(&mut self, to: &mut EngineArguments, setting: FlagSetting, value: Option<&str>) {
        let on = value.is_none_or(|value| !is_false(value));

        match (setting, on) {
            (FlagSetting::Eager, true) => to.execution = Execution::Eager,
            (FlagSetting::Eager, false) => to.execution = Execution::Graphs,
            (FlagSetting::ChunkedPrefill, true) | (FlagSetting::NoChunkedPrefill, false) => {
                to.prefill = Prefill::Chunked;
            }
            (FlagSetting::ChunkedPrefill, false) | (FlagSetting::NoChunkedPrefill, true) => {
                to.prefill = Prefill::Whole;
            }
            (FlagSetting::DataAttention, on) => self.shares_attention = on,
            _ => {}
        }
    }

    fn set(&mut self, to: &mut EngineArguments, setting: FlagSetting, value: &str) {
        let number = whole(value);
        let positive = number.and_then(|number| NonZeroU32::new(u32::try_from(number).ok()?));

        match setting {
            FlagSetting::GpuMemory => {
                let share = value.parse().ok().and_then(Fraction::new);
                to.gpu_memory = share.unwrap_or(to.gpu_memory);
            }
            FlagSetting::BlockSize => {
                let size = number.and_then(|number| Tokens::new(number as f64));
                to.block_size = size.filter(|size| *size > Tokens::ZERO).unwrap_or(to.block_size);
            }
            FlagSetting::KvDtype => to.kv_dtype = Arc::from(value),
            FlagSetting::Tensor => to.parallel.tensor = positive.unwrap_or(to.parallel.tensor),
            FlagSetting::Pipeline => {
                to.parallel.pipeline = positive.unwrap_or(to.parallel.pipeline);
            }
            FlagSetting::Data => to.parallel.data = positive.unwrap_or(to.parallel.data),
            FlagSetting::DataLocal => self.data_local = positive.or(self.data_local),
            // The container's engine is one rank, and the other ranks are separate replicas.
            FlagSetting::DataRank => self.data_local = Some(NonZeroU32::MIN),
            FlagSetting::Sequences => {
                let sequences = number.and_then(|number| Requests::new(number as f64));
                to.sequences = sequences.or(to.sequences);
            }
            FlagSetting::StepTokens => set_tokens(&mut to.step_tokens, number),
            FlagSetting::ChunkSize => self.chunk_size = number.or(self.chunk_size),
            FlagSetting::PrefillTokens => set_tokens(&mut self.prefill_tokens, number),
            FlagSetting::Context => set_tokens(&mut to.context, number),
            FlagSetting::KvBlocks => {
                if let Some(number) = number {
                    to.kv_blocks = u64::try_from(number).ok().and_then(NonZeroU64::new);
                }
            }
            FlagSetting::KvTokens => set_tokens(&mut to.kv_tokens, number),
            FlagSetting::DraftTokens => to.draft_tokens = positive.or(to.draft_tokens),
            FlagSetting::Speculative => to.draft_tokens = draft_tokens(value).or(to.draft_tokens),
            FlagSetting::File
            | FlagSetting::DataAttention
            | FlagSetting::Eager
            | FlagSetting::ChunkedPrefill
            | FlagSetting::NoChunkedPrefill => {}
        }
    }

    /// Applies the flags whose effect depends on other flags.
    pub(super) fn conclude(&self, arguments: &mut EngineArguments) {
        if let Some(size) = self.chunk_size {
            arguments.prefill = if size > 0 { Prefill::Chunked } else { Prefill::Whole };
        }
        if arguments.engine.syntax().steps_by_chunk {
            // Without a written size, the engine has a default chunk.
            arguments.step_tokens = match self.chunk_size {
                Some(size) if size > 0 => Tokens::new(size as f64),
                Some(_) => self.prefill_tokens,
                None => None,
            };
        }

        let parallel = &mut arguments.parallel;
        if let Some(local) = self.data_local {
            parallel.data = local;
        }
        if self.shares_attention {
            // The ranks divide the tensor-parallel GPUs instead of adding their own.
            let ranks = parallel.data.get();
            let each = parallel.tensor.get() / ranks;
            parallel.tensor = NonZeroU32::new(each).unwrap_or(NonZeroU32::MIN);
            self.divide(arguments, ranks);
        }
    }

    /// Divides the sequences and the chunk of all ranks among them. The tokens of whole prompts are
    /// for each rank.
    fn divide(&self, arguments: &mut EngineArguments, ranks: u32) {
        let EngineArguments { sequences, step_tokens, .. } = arguments;
        *sequences = sequences.and_then(|all| Requests::new(share(all.requests(), ranks)));

        if self.chunk_size.is_some_and(|size| size > 0) {
            *step_tokens = step_tokens.and_then(|all| Tokens::new(share(all.tokens(), ranks)));
        }
    }
}

/// The part of one rank, rounded down to at least one.
fn share(all: f64, ranks: u32) -> f64 {
    (all / f64::from(ranks)).floor().max(1.0)
}

/// Sets a number of tokens. A number that is not above zero clears an earlier one; text that is not
/// a number does not.
fn set_tokens(slot: &mut Option<Tokens>, number: Option<i64>) {
    if let Some(number) = number {
        *slot = Tokens::new(number as f64).filter(|tokens| *tokens > Tokens::ZERO);
    }
}

/// The flags among these words, with their values.
fn settings(engine: Engine, words: &[String]) -> Vec<(FlagSetting, Option<&str>)> {
    let mut settings = Vec::new();
    let mut rest = words.iter().map(String::as_str).peekable();
    while let Some(word) = rest.next() {
        let dashed = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        let Some(flag) = dashed else { continue };
        let (name, attached) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let Some(setting) = (engine.syntax().setting)(&name.replace('_', "-")) else { continue };

        let value = if setting.is_switch() {
            attached
        } else {
            attached.or_else(|| rest.next_if(|next| !next.starts_with("--")))
        };

        settings.push((setting, value));
    }

    settings
}

/// Parses a whole number, in digits or with a vLLM suffix: `8k` is 8,000 and `8K` is 8,192.
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
        let factor = digits.parse::<f64>().ok().filter(|number| *number >= 0.0)?;
        let number = (factor * 1000_f64.powi(power)).round();
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
