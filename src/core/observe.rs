//! What arrives, and what it says about a variant at one instant.
//!
//! [`Inputs`] is everything that one tick may look at: the fleet, the replicas that are listed for
//! each variant, the state of each scale target, and the scrapes since the last tick. The windows
//! in [`window`] turn the scrapes into an [`Observation`] of each variant. A field that nobody
//! reported is `None`: an engine that does not say how full its cache is, is not an empty engine.

pub mod adapters;
pub mod engine;
mod exact;
pub mod histogram;
pub mod inventory;
pub mod policy;
pub mod record;
pub mod stride;
pub mod template;
pub(crate) mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, Fleet, ModelKey, ModelName, ReplicaKey, VariantKey};
use crate::observe::histogram::Histogram;
use crate::observe::inventory::Inventory;
use crate::observe::stride::Stride;
use crate::observe::template::Templates;
use crate::units::{Fraction, Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};

/// Everything that one tick may look at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The variants that are configured or discovered.
    pub fleet: Arc<Fleet>,
    /// The replicas of each variant. A variant without an entry has not been listed yet.
    #[serde(with = "crate::fleet::entries")]
    pub listings: BTreeMap<VariantKey, Listing>,
    /// What the cluster has of accelerators.
    pub inventory: Arc<Inventory>,
    /// The scrapes since the last tick, failed ones included, each replica's in order of time.
    pub scrapes: Vec<Scrape>,
    /// The autoscalers that carry out the published numbers, where they are known.
    #[serde(with = "crate::fleet::entries")]
    pub autoscalers: BTreeMap<VariantKey, Autoscaler>,
    /// What stands in front of the replicas of models, as signals from elsewhere say: every signal
    /// that there is for a model, read or not.
    #[serde(with = "crate::fleet::entries")]
    pub demand: BTreeMap<ModelKey, Vec<Demand>>,
    /// When the replicas that an orchestrator knows were created and became ready, those included
    /// that have no address yet. Empty where nobody says.
    #[serde(with = "crate::fleet::entries")]
    pub starts: BTreeMap<ReplicaKey, Start>,
    /// What the pod templates of the scale targets say, of those that have one.
    #[serde(with = "crate::fleet::entries")]
    pub templates: Templates,
}

/// What an autoscaler that carries out a variant's number waits by itself before it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Autoscaler {
    /// Its name.
    pub name: String,
    /// Its stabilisation window before it adds replicas.
    pub scale_up: Seconds,
    /// Its stabilisation window before it removes replicas.
    pub scale_down: Seconds,
}

/// When a replica started, as its orchestrator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// When it was created.
    pub created: Timestamp,
    /// Since when it is ready; `None` while it is not.
    pub ready: Option<Timestamp>,
    /// Since when its scheduler finds no node for it; `None` where it has one, or none was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<Timestamp>,
}

/// What one signal says of the requests that no replica has yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// What messages call the signal.
    pub signal: String,
    /// What it last said.
    pub seen: Seen,
    /// What it counts.
    pub counts: Counts,
    /// Whether it speaks of the model.
    pub naming: Naming,
}

impl Demand {
    /// The age from which what a signal has said is as if it had said nothing. Signals are read every
    /// ten seconds or more often, so this is three that are missing.
    pub const STALE: Seconds = Seconds::literal(30);
}

/// What a signal last said of the requests of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// It was never read, which is not nothing.
    #[default]
    Never,
    /// It was read then, and no number of the model was in it, which is not nothing either.
    NoNumber(Timestamp),
    /// How much there was, and when.
    Number(Requests, Timestamp),
}

/// Whether a signal speaks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// It is for the model by the configuration, or what it last said names the model.
    Named,
    /// It may be for any model, and does not name this one: nothing of it queues there, as far as
    /// that can be said.
    Unnamed,
}

/// What a signal counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// Something that is above 0 while requests wait, such as a rate.
    #[default]
    Something,
    /// The requests that wait.
    Requests,
    /// The requests that were rejected so far: a counter.
    Rejected,
}

impl Seen {
    /// How much there was, and when; `None` where nobody can say.
    #[must_use]
    pub const fn number(self) -> Option<(Requests, Timestamp)> {
        match self {
            Self::Number(requests, at) => Some((requests, at)),
            Self::Never | Self::NoNumber(_) => None,
        }
    }
}

/// The replicas of one variant, as discovery last saw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Replicas that should answer when they are scraped.
    pub replicas: Vec<ReplicaKey>,
    /// Those of them that the orchestrator says are not ready. They may answer, but what they
    /// carry is neither load nor room.
    pub unready: Vec<ReplicaKey>,
    /// What the orchestrator says about the scale target.
    pub scale: Scale,
    /// Which way their pages come.
    pub way: Way,
    /// When this listing was last known to be true.
    pub as_of: Timestamp,
}

/// Which way the pages of replicas come. It decides what is old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// They are scraped here.
    #[default]
    Scraped,
    /// Another server scrapes them, and is asked for what it has, which is older.
    Relayed,
}

/// What an orchestrator says about a scale target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// There is no orchestrator: the replicas are the listed targets that answer.
    Targets,
    /// The scale target and its pods.
    Known(ScaleState),
    /// There is an orchestrator, but it has not said, or the target does not exist.
    Unknown(WhyUnknown),
}

/// A scale target and its pods.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleState {
    /// Replicas that the target asks its controller for (`spec.replicas` of the scale subresource).
    pub wanted: Replicas,
    /// Replicas that exist, ready or not (`status.replicas` of the scale subresource).
    pub current: Replicas,
    /// Pods that are ready.
    pub ready: Replicas,
    /// Pods that exist and are not ready yet, and replicas that are asked for and do not exist yet.
    pub pending: Replicas,
    /// The bounds that the target's autoscaler imposes, where there is one.
    pub bounds: Option<Bounds>,
}

/// Why nothing is known of a scale target.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyUnknown {
    /// The cluster's state has not arrived yet.
    #[display("the cluster's state has not arrived yet")]
    NotListed,
    /// There is no such object.
    #[display("the scale target does not exist")]
    NoSuchTarget,
    /// The API server refuses to tell.
    #[display("the API server refuses to show the scale target")]
    Forbidden,
    /// Two autoscalers, or two variants, claim the target; each is named.
    #[display("the scale target has more than one owner: {}", _0.join(", "))]
    DuplicateOwners(Vec<String>),
}

impl WhyUnknown {
    /// The reason as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotListed => "not_listed",
            Self::NoSuchTarget => "no_such_target",
            Self::Forbidden => "forbidden",
            Self::DuplicateOwners(_) => "duplicate_owners",
        }
    }
}

/// One attempt to read one replica's page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scrape {
    /// Whose page it is.
    pub replica: ReplicaKey,
    /// When the page was asked for.
    pub at: Timestamp,
    /// What the page says, or why there is nothing to read.
    pub outcome: Result<Reading, ScrapeFailure>,
}

/// Why a scrape gave nothing. None of these means that a replica is idle.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrapeFailure {
    /// Nothing listens: the engine is starting, has stopped, or is gone.
    #[display("the connection was refused")]
    Refused,
    /// The answer did not come in time.
    #[display("there was no answer in time")]
    Timeout,
    /// The name could not be resolved, the connection broke, or TLS failed.
    #[display("the connection failed")]
    Connection,
    /// The server answered with something other than success.
    #[display("the server answered with an error")]
    Status,
    /// The body was larger than allowed.
    #[display("the page is larger than allowed")]
    TooLarge,
    /// The body ends in the middle of a line or without the format's end mark.
    #[display("the page is cut off")]
    Truncated,
    /// The body is not an exposition page, or is one with broken lines.
    #[display("the page cannot be read")]
    Malformed,
    /// The page is sound but no known engine's metrics are on it.
    #[display("no known engine's metrics are on the page")]
    UnknownEngine,
    /// The page is another model's.
    #[display("the page is another model's")]
    WrongModel,
    /// Whoever scrapes for us could not reach the replica.
    #[display("its scraper could not reach it")]
    Down,
}

impl ScrapeFailure {
    /// Every failure, in the order in which they are documented.
    pub const ALL: [Self; 10] = [
        Self::Refused,
        Self::Timeout,
        Self::Connection,
        Self::Status,
        Self::TooLarge,
        Self::Truncated,
        Self::Malformed,
        Self::UnknownEngine,
        Self::WrongModel,
        Self::Down,
    ];

    /// The failure as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Status => "status",
            Self::TooLarge => "too_large",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
            Self::UnknownEngine => "unknown_engine",
            Self::WrongModel => "wrong_model",
            Self::Down => "down",
        }
    }
}

/// What one page says, in our words. Cumulative values are as the engine reports them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Which engine wrote the page.
    pub engine: engine::Engine,
    /// How many of the page's samples were read.
    pub samples: usize,
    /// When the engine's process started, if the page says so.
    pub started: Option<Timestamp>,
    /// The model names on the page, sorted.
    pub models: Vec<ModelName>,
    /// Requests that the HTTP server has answered since it started.
    pub http: HttpReading,
    /// Requests that admission control has turned away since the process started.
    pub rejected: Option<Requests>,
    /// What the page says of `LoRA` adapters; `None` where it says nothing.
    pub lora: Option<Box<engine::lora::LoraPage>>,
    /// One entry for each data-parallel rank, in order of rank; a single engine has rank 0.
    pub ranks: Vec<RankReading>,
}

/// POST requests that an engine's HTTP server has answered, by class of status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpReading {
    /// Answers with a 2xx status.
    pub success: Option<Requests>,
    /// Answers with a 4xx status.
    pub client_error: Option<Requests>,
    /// Answers with a 5xx status.
    pub server_error: Option<Requests>,
}

/// What one data-parallel rank reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReading {
    /// The rank (the `engine` label of vLLM, `dp_rank` of `SGLang`).
    pub rank: u32,
    /// Requests in the batch.
    pub running: Option<Requests>,
    /// Requests that wait to be scheduled.
    pub waiting: Option<Requests>,
    /// Of the waiting, those that wait for room in the batch or the cache.
    pub waiting_capacity: Option<Requests>,
    /// Of the waiting, those that wait for something else: an adapter slot, a transfer.
    pub waiting_deferred: Option<Requests>,
    /// Share of the KV cache that is in use.
    pub kv_usage: Option<Fraction>,
    /// Size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// Whether the engine sleeps: it answers, but serves nothing.
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
    /// Prompt tokens of finished requests.
    pub prompt_length: Option<Histogram>,
    /// Generated tokens of finished requests.
    pub generation_length: Option<Histogram>,
    /// Completions that finished requests have asked for (`n`); its count is of requests, where
    /// [`RankReading::finished`] counts completions.
    pub completions_asked: Option<Histogram>,
    /// Tokens computed in each engine step.
    pub step_tokens: Option<Histogram>,
}

impl RankReading {
    /// Fills in the gauges of a vLLM rank that has served nothing. With several processes it shows none
    /// before the first request, and its count of prompt tokens, 0, proves that there was none.
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
    /// The client went away. vLLM 0.11 to 0.32 never counts these.
    pub abort: Option<Requests>,
    /// An error.
    pub error: Option<Requests>,
    /// Any other reason.
    pub other: Option<Requests>,
}

/// One variant at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Replicas that the scale target asks for; `None` when unknown.
    pub wanted: Option<Replicas>,
    /// Replicas that exist, ready or not; `None` when unknown.
    pub current: Option<Replicas>,
    /// Replicas that are ready; without an orchestrator, those that answer.
    pub ready: Option<Replicas>,
    /// Replicas that exist or are asked for and are not ready yet.
    pub pending: Replicas,
    /// Of the pending, those that are ready and have never answered.
    pub unheard: Replicas,
    /// The bounds that hold: the autoscaler's where there is one, else the configured ones.
    pub bounds: Bounds,
    /// Each listed replica, in the order of their keys.
    pub replicas: Vec<ReplicaObservation>,
    /// Distribution of the time to first token over the window, of all replicas with fresh data.
    pub ttft: Option<Histogram>,
    /// Why the scale target's state is unknown, if it is.
    pub scale_unknown: Option<WhyUnknown>,
    /// When the listing was last known to be true; `None` when there is no listing.
    pub listed_at: Option<Timestamp>,
    /// Since when replicas have been measured without a gap; `None` when none is.
    pub measured_since: Option<MeasuredSince>,
    /// How its replicas start.
    pub startup: Startup,
}

/// Since when replicas of a variant have been measured without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredSince {
    /// Any of them.
    pub any: Timestamp,
    /// The same ones.
    pub same: Timestamp,
}

/// How the replicas of one variant start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Startup {
    /// Replicas that take too long to start, and are not counted on.
    pub stuck: Replicas,
    /// Replicas that start and have no node, because none has room for them.
    pub unschedulable: Replicas,
    /// Starts that were seen.
    pub starts: u32,
    /// From created to ready; `None` while no start was seen.
    pub to_ready: Option<Quantiles>,
    /// From created to the first page that could be read of a ready replica.
    pub to_serving: Option<Quantiles>,
}

/// What half of the starts and nine in ten did not exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantiles {
    /// The median.
    pub p50: Seconds,
    /// The 90th percentile.
    pub p90: Seconds,
}

/// One replica at one instant, its ranks put together.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaObservation {
    /// Which replica.
    pub replica: ReplicaKey,
    /// How old its last page is, or why there is none.
    pub freshness: Freshness,
    /// Share of the KV cache in use: the mean of its ranks.
    pub kv_usage: Option<GaugeSummary<Fraction>>,
    /// Share of the KV cache in use on its fullest rank.
    pub kv_hottest: Option<GaugeSummary<Fraction>>,
    /// Requests waiting, all ranks together.
    pub waiting: Option<GaugeSummary<Requests>>,
    /// Requests waiting on its longest queue.
    pub waiting_hottest: Option<GaugeSummary<Requests>>,
    /// Requests running, all ranks together.
    pub running: Option<GaugeSummary<Requests>>,
    /// Requests that arrived in a unit of time: finished ones and the growth of those in flight.
    pub arrivals: Option<RequestRate>,
    /// Requests that finished in a unit of time.
    pub completions: Option<RequestRate>,
    /// Prompt tokens processed in a unit of time.
    pub prompt_rate: Option<TokenRate>,
    /// Tokens generated in a unit of time.
    pub generation_rate: Option<TokenRate>,
    /// Mean time to first token over the window.
    pub ttft_mean: Option<Seconds>,
    /// Mean time between tokens over the window.
    pub itl_mean: Option<Seconds>,
    /// What its requests look like; `None` where that is not asked for.
    pub work: Option<Work>,
    /// What it counted from page to page since the tick before; empty where that is not asked for.
    pub strides: Vec<Stride>,
    /// Whether the engine sleeps.
    pub asleep: bool,
    /// Whether the orchestrator says that it is not ready.
    pub unready: bool,
    /// Whether it has refused connections for so long that it has stopped rather than been lost.
    pub stopped: bool,
}

/// What one replica holds and computes for its requests, its ranks together; absent is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Since when the engine's process has run.
    pub started: Option<Timestamp>,
    /// Size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// Mean length of the prompts of the requests that finished in the window.
    pub prompt_length: Option<Tokens>,
    /// Mean length of their answers.
    pub generation_length: Option<Tokens>,
    /// Share of the prompt tokens that were found in the prefix cache in the window.
    pub prefix_hits: Option<Fraction>,
}

/// How recent a replica's data is. Unknown, stale and fresh are different things, and none is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Freshness {
    /// The last page is recent enough to act on.
    Fresh {
        /// Its age.
        age: Seconds,
    },
    /// There was a page, but it is too old to act on.
    Stale {
        /// Its age.
        age: Seconds,
        /// What has happened to the attempts since.
        why: Option<ScrapeFailure>,
    },
    /// There has never been a page.
    Never {
        /// What happened to the attempts, if there were any.
        why: Option<ScrapeFailure>,
    },
}

impl Freshness {
    /// Whether the data is recent enough to act on.
    #[must_use]
    pub const fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh { .. })
    }
}

/// A gauge over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaugeSummary<Q> {
    /// The latest value.
    pub last: Q,
    /// The mean of the samples in the window.
    pub mean: Q,
    /// The largest value in the window.
    pub peak: Q,
    /// The age of the latest value.
    pub age: Seconds,
}
