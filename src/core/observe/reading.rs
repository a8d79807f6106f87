//! The reading of a /metrics response: its values, independent of the engine that wrote it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::ModelName;
use crate::observe::engine::kind::Engine;
use crate::observe::engine::lora::LoraPage;
use crate::observe::histogram::Histogram;
use crate::units::{Fraction, Requests, Tokens};

/// The values of one /metrics response, independent of the engine. Cumulative values are as the
/// engine reports them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The engine that wrote the response.
    pub engine: Engine,
    /// The samples that were read from the response.
    pub samples: usize,
    /// The start time of the engine's process, if reported.
    pub started: Option<Timestamp>,
    /// The model names in the response, sorted.
    pub models: Vec<ModelName>,
    /// Requests that the HTTP server has answered since it started.
    pub http: HttpReading,
    /// Requests that admission control has rejected since the process started.
    pub rejected: Option<Requests>,
    /// The reported `LoRA` adapters; `None` if not reported.
    pub lora: Option<Box<LoraPage>>,
    /// One entry for each data-parallel rank, in order of rank; a single engine has rank 0.
    pub ranks: Vec<RankReading>,
}

/// POST requests that an engine's HTTP server has answered, by class of status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpReading {
    /// Answers with a 2xx status.
    pub success: Option<Requests>,
    /// The series that count them, one for each path that was asked; `None` if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_series: Option<u32>,
    /// Answers with a 4xx status.
    pub client_error: Option<Requests>,
    /// Answers with a 5xx status.
    pub server_error: Option<Requests>,
}

/// The values that one data-parallel rank reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReading {
    /// The rank (the `engine` label of vLLM, `dp_rank` of `SGLang`).
    pub rank: u32,
    /// Requests in the batch.
    pub running: Option<Requests>,
    /// Requests that wait to be scheduled.
    pub waiting: Option<Requests>,
    /// The waiting requests that wait for room in the batch or the cache.
    pub waiting_capacity: Option<Requests>,
    /// The waiting requests that wait for something else: an adapter slot, a transfer.
    pub waiting_deferred: Option<Requests>,
    /// Share of the KV cache that is in use.
    pub kv_usage: Option<Fraction>,
    /// Size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// True if the engine sleeps: it answers, but serves no requests.
    pub asleep: Option<bool>,
    /// Prompt tokens processed since the process started.
    pub prompt_tokens: Option<Tokens>,
    /// Tokens generated since the process started.
    pub generation_tokens: Option<Tokens>,
    /// Prompt tokens looked up in the prefix cache since the process started.
    pub prefix_queries: Option<Tokens>,
    /// Prompt tokens found in the prefix cache since the process started.
    pub prefix_hits: Option<Tokens>,
    /// Preemptions since the process started.
    pub preemptions: Option<Requests>,
    /// Requests finished since the process started, by reason.
    pub finished: FinishedReading,
    /// Time to first token.
    pub ttft: Option<Histogram>,
    /// Time between tokens.
    pub itl: Option<Histogram>,
    /// Time from arrival to the last token, of finished requests.
    pub e2e: Option<Histogram>,
    /// Time in the waiting queue, of finished requests.
    pub queue_time: Option<Histogram>,
    /// Time from the first iteration to the last, of finished requests.
    pub inference_time: Option<Histogram>,
    /// Time from the start of the first iteration to the first token, of finished requests.
    #[serde(default)]
    pub prefill_time: Option<Histogram>,
    /// Prompt tokens of finished requests.
    pub prompt_length: Option<Histogram>,
    /// Prompt tokens of finished requests that the engine computed, without those from a cache.
    #[serde(default)]
    pub computed_length: Option<Histogram>,
    /// Generated tokens of finished requests.
    pub generation_length: Option<Histogram>,
    /// Completions that finished requests have asked for (`n`). Its count is of requests, whereas
    /// [`RankReading::finished`] counts completions.
    pub completions_asked: Option<Histogram>,
    /// Tokens computed in each engine step.
    pub step_tokens: Option<Histogram>,
}

impl RankReading {
    /// Fills in the gauges of a vLLM rank that has served no request. With several processes, vLLM
    /// reports no gauges before the first request. A count of 0 prompt tokens proves that there was
    /// none.
    pub fn fill_unserved(&mut self) {
        let Self { running, waiting, kv_usage, prompt_tokens, .. } = self;
        let shows_gauges = running.is_some() || waiting.is_some() || kv_usage.is_some();
        if shows_gauges || *prompt_tokens != Some(Tokens::ZERO) {
            return;
        }

        *running = Some(Requests::ZERO);
        *waiting = Some(Requests::ZERO);
        *kv_usage = Some(Fraction::ZERO);
    }
}

/// Requests that a rank has finished, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinishedReading {
    /// A stop token or stop string.
    pub stop: Option<Requests>,
    /// The length limit.
    pub length: Option<Requests>,
    /// The client disconnected. vLLM 0.11 to 0.32 never counts these.
    pub abort: Option<Requests>,
    /// An error.
    pub error: Option<Requests>,
    /// Any other reason.
    pub other: Option<Requests>,
}
