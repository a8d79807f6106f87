//! WVA's parser of engine arguments.
//!
//! A script is split at blanks, the flags of all containers count, a switch has no value, and of
//! `SGLang`'s two sizes of a step the one for prefill counts.

use plimsoll::analyze::engine_args::{Container, EngineArguments, Execution, Generation, Prefill};
use plimsoll::observe::engine::Engine;
use plimsoll::units::{Fraction, Requests, Tokens};

/// The arguments of the engine among these containers; without any, the defaults of vLLM.
pub(crate) fn parse(containers: &[Container]) -> EngineArguments {
    let words: Vec<Vec<String>> = containers.iter().map(words).collect();
    let is_sglang = containers.iter().zip(&words).any(|(container, words)| {
        container.image.to_ascii_lowercase().contains("sglang")
            || words.iter().any(|word| word == "sglang.launch_server" || word == "sglang serve")
            || words.windows(2).any(|pair| pair[0] == "sglang" && pair[1] == "serve")
    });
    let engine = if is_sglang { Engine::Sglang } else { Engine::Vllm };

    let mut flags = Flags {
        arguments: EngineArguments::default_of(engine),
        chunk_size: None,
        prefill_tokens: None,
    };
    for (container, words) in containers.iter().zip(&words) {
        let is_v0 = container.environment.get("VLLM_USE_V1").is_some_and(|value| value == "0");
        if engine == Engine::Vllm && is_v0 {
            flags.arguments.generation = Generation::V0;
            flags.arguments.prefill = Prefill::Whole;
        }
        flags.take(words);
    }
    flags.conclude()
}

/// The words of a container's command line.
fn words(container: &Container) -> Vec<String> {
    let words: Vec<String> = container.command.iter().chain(&container.args).cloned().collect();
    match script(&words) {
        Some(script) => split_at_blanks(script),
        None => words,
    }
}

/// The script that a shell is given, if a shell runs.
fn script(words: &[String]) -> Option<&str> {
    let shell = words.iter().position(|word| {
        let program = word.rsplit('/').next().unwrap_or(word);
        ["sh", "bash"].contains(&program)
    })?;
    let flag = words[shell..].iter().position(|word| word == "-c")?;
    words.get(shell + flag + 1).map(String::as_str)
}

/// Words between blanks, where quotes keep blanks together; other white space is part of a word.
fn split_at_blanks(script: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for character in script.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            (None, ' ') => words.push(String::new()),
            (None | Some(_), other) => words.last_mut().unwrap().push(other),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The flags of an engine on their way into its arguments.
struct Flags {
    arguments: EngineArguments,
    chunk_size: Option<i64>,
    prefill_tokens: Option<Tokens>,
}

impl Flags {
    /// Takes each flag among these words; of several, the last holds.
    fn take(&mut self, words: &[String]) {
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, attached) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let name = name.replace('_', "-");
            if self.switch(&name) || !self.is_known(&name) {
                continue;
            }
            let value = attached.or_else(|| words.next_if(|next| !next.starts_with("--")));
            if let Some(value) = value {
                self.set(&name, value);
            }
        }
    }

    /// Takes a flag without a value; whether it was one.
    fn switch(&mut self, name: &str) -> bool {
        match (self.arguments.engine, name) {
            (Engine::Vllm, "enforce-eager") | (Engine::Sglang, "disable-cuda-graph") => {
                self.arguments.execution = Execution::Eager;
            }
            (Engine::Vllm, "enable-chunked-prefill") => {
                self.arguments.prefill = Prefill::Chunked;
            }
            _ => return false,
        }
        true
    }

    fn is_known(&self, name: &str) -> bool {
        let known: &[&str] = if self.arguments.engine == Engine::Sglang {
            &[
                "mem-fraction-static",
                "page-size",
                "kv-cache-dtype",
                "tensor-parallel-size",
                "tp-size",
                "tp",
                "max-running-requests",
                "chunked-prefill-size",
                "max-prefill-tokens",
                "context-length",
                "max-total-tokens",
            ]
        } else {
            &[
                "gpu-memory-utilization",
                "block-size",
                "kv-cache-dtype",
                "tensor-parallel-size",
                "tp",
                "max-num-seqs",
                "max-num-batched-tokens",
                "max-model-len",
                "num-gpu-blocks-override",
            ]
        };
        known.contains(&name)
    }

    fn set(&mut self, name: &str, value: &str) {
        let to = &mut self.arguments;
        let number: Option<i64> = value.parse().ok();
        // A number that is not above zero takes back an earlier one; a text that is none does not.
        let tokens = |slot: &mut Option<Tokens>| {
            if let Some(number) = number {
                *slot = Tokens::new(number as f64).filter(|tokens| *tokens > Tokens::ZERO);
            }
        };
        match name {
            "gpu-memory-utilization" | "mem-fraction-static" => {
                let share = value.parse().ok().and_then(Fraction::new);
                to.gpu_memory = share.unwrap_or(to.gpu_memory);
            }
            "block-size" | "page-size" => {
                let size = number.and_then(|size| Tokens::new(size as f64));
                to.block_size = size.filter(|size| *size > Tokens::ZERO).unwrap_or(to.block_size);
            }
            "kv-cache-dtype" => to.kv_dtype = value.into(),
            "tensor-parallel-size" | "tp-size" | "tp" => {
                let size = number.and_then(|number| u32::try_from(number).ok()?.try_into().ok());
                to.parallel.tensor = size.unwrap_or(to.parallel.tensor);
            }
            "max-num-seqs" | "max-running-requests" => {
                let sequences = number.and_then(|number| Requests::new(number as f64));
                to.sequences = sequences.or(to.sequences);
            }
            "max-num-batched-tokens" => tokens(&mut to.step_tokens),
            "max-model-len" | "context-length" => tokens(&mut to.context),
            "max-total-tokens" => tokens(&mut to.kv_tokens),
            "max-prefill-tokens" => tokens(&mut self.prefill_tokens),
            "chunked-prefill-size" => self.chunk_size = number.or(self.chunk_size),
            "num-gpu-blocks-override" => {
                if let Some(number) = number {
                    to.kv_blocks = u64::try_from(number).ok().and_then(|it| it.try_into().ok());
                }
            }
            other => unreachable!("{other} is not known"),
        }
    }

    /// The arguments, once every flag is known.
    fn conclude(self) -> EngineArguments {
        let Self { mut arguments, chunk_size, prefill_tokens } = self;
        if let Some(size) = chunk_size {
            arguments.prefill = if size > 0 { Prefill::Chunked } else { Prefill::Whole };
        }
        if arguments.engine == Engine::Sglang {
            let chunk = chunk_size.and_then(|size| Tokens::new(size as f64));
            let chunk = chunk.filter(|size| *size > Tokens::ZERO);
            arguments.step_tokens = prefill_tokens.or(chunk);
        }
        arguments
    }
}
