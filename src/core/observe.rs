//! Inputs, and the observation of a variant at one instant.
//!
//! [`Inputs`] contains everything that one tick may read: the fleet, the replicas of each variant,
//! the state of each scale target, and recent scrapes. The windows in [`window`] turn the scrapes
//! into an [`Observation`] of each variant.
//!
//! A field that was not reported is `None`. An engine that does not report the usage of its cache
//! does not have an empty cache.

pub mod adapters;
pub mod arrivals;
pub mod engine;
mod exact;
pub mod histogram;
pub mod hosting;
pub mod inventory;
pub mod overrides;
pub mod policy;
mod reading;
pub mod record;
pub mod routed;
pub mod stride;
pub mod template;
pub(crate) mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, Fleet, ModelKey, ReplicaKey, VariantKey};
use crate::observe::histogram::Histogram;
use crate::observe::hosting::HostedModels;
use crate::observe::inventory::Inventory;
use crate::observe::overrides::Override;
use crate::observe::routed::RoutedCounts;
use crate::observe::stride::IntervalDelta;
use crate::observe::template::Templates;
use crate::units::{Fraction, Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};

pub use crate::observe::reading::{FinishedReading, HttpReading, RankReading, Reading};

/// Everything that one tick may read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The variants that are configured or discovered.
    pub fleet: Arc<Fleet>,
    /// The replicas of each variant. A variant without an entry has not been listed yet.
    #[serde(with = "crate::fleet::entries")]
    pub listings: BTreeMap<VariantKey, ReplicaListing>,
    /// The cluster's accelerators.
    pub inventory: Arc<Inventory>,
    /// The scrapes since the last tick, failed ones included, each replica's in order of time.
    pub scrapes: Vec<Scrape>,
    /// The autoscalers that actuate the published desired replicas, if known.
    #[serde(with = "crate::fleet::entries")]
    pub autoscalers: BTreeMap<VariantKey, AutoscalerWindows>,
    /// Requests in front of the replicas of models, from wake signals. A model has an entry for
    /// each of its signals, whether read or not.
    #[serde(with = "crate::fleet::entries")]
    pub demand: BTreeMap<ModelKey, Vec<DemandSignal>>,
    /// Creation and ready times of the replicas that an orchestrator knows, including those without
    /// an address. Empty if no orchestrator reports them.
    #[serde(with = "crate::fleet::entries")]
    pub starts: BTreeMap<ReplicaKey, ReplicaStart>,
    /// The pod templates of the scale targets that have one.
    #[serde(with = "crate::fleet::entries")]
    pub templates: Templates,
    /// The models of multi-model servers. A server without an entry has not been listed yet.
    #[serde(default, with = "crate::fleet::entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub hosting: BTreeMap<VariantKey, HostedModels>,
    /// The requests that gateways have counted for pools. A pool with a gateway has an entry,
    /// which is `None` until the gateway is read.
    #[serde(default, with = "crate::fleet::entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub routed: BTreeMap<VariantKey, Option<RoutedCounts>>,
    /// Pins and pauses, whether they have ended or not.
    #[serde(default, with = "crate::fleet::entries", skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<VariantKey, Override>,
}

/// The stabilization windows that an autoscaler applies on its own before it actuates a variant's
/// desired replicas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoscalerWindows {
    /// Its name.
    pub name: String,
    /// Its stabilization window before it adds replicas.
    pub scale_up: Seconds,
    /// Its stabilization window before it removes replicas.
    pub scale_down: Seconds,
}

/// The start of a replica, as its orchestrator reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStart {
    /// The creation time.
    pub created: Timestamp,
    /// The time since which it is ready; `None` while it is not.
    pub ready: Option<Timestamp>,
    /// The time since which its scheduler finds no node for it. `None` if it has a node, or none
    /// was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unschedulable: Option<Timestamp>,
}

impl ReplicaStart {
    /// The time from its creation until it was ready; `None` while it is not, or if it was ready
    /// before. It is longer than the start if the replica was unready in between.
    #[must_use]
    pub fn took(&self) -> Option<Seconds> {
        Seconds::from_span(self.ready?.duration_since(self.created))
    }
}

/// One signal's count of the requests that no replica has yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandSignal {
    /// The name of the signal in messages.
    pub signal: String,
    /// Its last value.
    pub seen: SignalValue,
    /// The quantity that it counts.
    pub counts: SignalQuantity,
    /// The relation of the signal to the model.
    pub naming: Naming,
}

impl DemandSignal {
    /// The age from which a signal's value is ignored. Signals are read every ten seconds or more
    /// often, so this is three missing reads.
    pub const STALE: Seconds = Seconds::literal(30);
}

/// The last value of a signal for the requests of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalValue {
    /// Never read, which does not mean zero.
    #[default]
    Never,
    /// Read at this time without a number for the model, which does not mean zero either.
    NoNumber(Timestamp),
    /// The number of requests and the time of the read.
    Number(Requests, Timestamp),
}

/// The relation of a signal to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// The signal is configured for the model, or its last value names the model.
    Named,
    /// The signal may be for any model and does not name this one. As far as known, none of its
    /// requests queue for this model.
    Unnamed,
}

/// The quantity that a signal counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalQuantity {
    /// Any value that is above 0 while requests wait, such as a rate.
    #[default]
    Something,
    /// The waiting requests.
    Requests,
    /// The requests that were rejected so far: a counter.
    Rejected,
}

impl SignalValue {
    /// The number of requests and the time of the read; `None` if not known.
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
pub struct ReplicaListing {
    /// Replicas that should answer a scrape.
    pub replicas: Vec<ReplicaKey>,
    /// The listed replicas that the orchestrator reports as not ready. They may answer, but count
    /// neither as load nor as capacity.
    pub unready: Vec<ReplicaKey>,
    /// The scale target's state as the orchestrator reports it.
    pub scale: Scale,
    /// The way by which their scrapes arrive.
    pub way: ScrapeRoute,
    /// The time when this listing was last known to be true.
    pub as_of: Timestamp,
}

/// The way by which scrapes of replicas arrive. It decides the age from which they are stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrapeRoute {
    /// Plimsoll scrapes the replicas.
    #[default]
    Scraped,
    /// Another server scrapes the replicas. Plimsoll queries that server, so the data is older.
    Relayed,
}

/// The state of a scale target as an orchestrator reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// There is no orchestrator: the replicas are the listed targets that answer.
    Targets,
    /// The scale target and its pods.
    Known(ScaleState),
    /// There is an orchestrator, but it has not reported yet, or the target does not exist.
    Unknown(WhyScaleUnknown),
}

/// A scale target and its pods.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleState {
    /// Replicas that the target requests from its controller (`spec.replicas` of the scale
    /// subresource).
    pub wanted: Replicas,
    /// Replicas that exist, ready or not (`status.replicas` of the scale subresource).
    pub current: Replicas,
    /// Ready pods.
    pub ready: Replicas,
    /// Pods that exist and are not ready yet, and requested replicas that do not exist yet.
    pub pending: Replicas,
    /// The bounds that the target's autoscaler imposes, if there is one.
    pub bounds: Option<Bounds>,
}

/// The reason why the state of a scale target is not known.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyScaleUnknown {
    /// The cluster's state has not arrived yet.
    #[display("the cluster's state has not arrived yet")]
    NotListed,
    /// There is no such object.
    #[display("the scale target does not exist")]
    NoSuchTarget,
    /// The API server denies access.
    #[display("the API server denies access to the scale target")]
    Forbidden,
    /// Two autoscalers, or two variants, claim the target; each is named.
    #[display("the scale target has more than one owner: {}", _0.join(", "))]
    DuplicateOwners(Vec<String>),
}

impl WhyScaleUnknown {
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

/// Seconds between two ticks from which the process must have paused or the clock jumped. Ticks
/// come at least once per minute.
pub(crate) const PAUSE_MAX: f64 = 120.0;

/// One attempt to scrape a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scrape {
    /// The scraped replica.
    pub replica: ReplicaKey,
    /// The time of the request.
    pub at: Timestamp,
    /// The reading, or the reason why there is none.
    pub outcome: Result<Reading, ScrapeFailure>,
}

/// The reason why a scrape failed. None of these means that a replica is idle.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrapeFailure {
    /// Nothing listens: the engine is starting, has stopped, or is gone.
    #[display("the connection was refused")]
    Refused,
    /// No response within the time limit.
    #[display("the request timed out")]
    Timeout,
    /// The name could not be resolved, the connection broke, or TLS failed.
    #[display("the connection failed")]
    Connection,
    /// The server responded with a status other than success.
    #[display("the server returned an error")]
    Status,
    /// The body was larger than allowed.
    #[display("the response is too large")]
    TooLarge,
    /// The body ends in the middle of a line or without the format's end mark.
    #[display("the response is truncated")]
    Truncated,
    /// The body is not in the exposition format, or has broken lines.
    #[display("the response is malformed")]
    Malformed,
    /// The response is well-formed but has no metrics of a known engine.
    #[display("the response has no metrics of a known engine")]
    UnknownEngine,
    /// The response belongs to another model.
    #[display("the response is of another model")]
    WrongModel,
    /// The server that scrapes for Plimsoll could not reach the replica.
    #[display("Prometheus could not reach it")]
    Down,
    /// The server that scrapes for Plimsoll has samples of several engines with the same labels.
    #[display("Prometheus has several engines with its labels")]
    Ambiguous,
}

impl ScrapeFailure {
    /// Every failure, in the order of the documentation.
    pub const ALL: [Self; 11] = [
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
        Self::Ambiguous,
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
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// One variant at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Replicas that the scale target requests; `None` when unknown.
    pub wanted: Option<Replicas>,
    /// Replicas that exist, ready or not; `None` when unknown.
    pub current: Option<Replicas>,
    /// Replicas that are ready; without an orchestrator, those that answer.
    pub ready: Option<Replicas>,
    /// Replicas that exist or are requested, and are not ready yet or have never reported.
    pub pending: Replicas,
    /// The pending replicas that are ready and have never answered. `decide/unheard.rs` has the
    /// other words for absent data.
    pub unheard: Replicas,
    /// The bounds that apply: the autoscaler's if there is one, otherwise the configured ones.
    pub bounds: Bounds,
    /// Each listed replica, in the order of their keys.
    pub replicas: Vec<ReplicaObservation>,
    /// Distribution of the time to first token over the window, of all replicas with fresh data.
    pub ttft: Option<Histogram>,
    /// The reason why the scale target's state is unknown, if it is.
    pub scale_unknown: Option<WhyScaleUnknown>,
    /// The time when the listing was last known to be true; `None` when there is no listing.
    pub listed_at: Option<Timestamp>,
    /// The time since which replicas have been measured without a gap; `None` when none is.
    pub measured_since: Option<MeasuredSince>,
    /// The way in which its replicas start.
    pub startup: Startup,
}

/// The time since which replicas of a variant have been measured without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredSince {
    /// For any of its replicas.
    pub any: Timestamp,
    /// For the same set of replicas.
    pub same: Timestamp,
}

/// Statistics about the starts of one variant's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Startup {
    /// Replicas that take too long to start and do not count as supply.
    pub stuck: Replicas,
    /// Starting replicas without a node, because none has room for them.
    pub unschedulable: Replicas,
    /// Observed starts.
    pub starts: u32,
    /// From created to ready; `None` while no start was observed.
    pub to_ready: Option<StartQuantiles>,
    /// From created to the first readable scrape of a ready replica.
    pub to_serving: Option<StartQuantiles>,
}

/// The times that half of the starts and nine in ten starts did not exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartQuantiles {
    /// The median.
    pub p50: Seconds,
    /// The 90th percentile.
    pub p90: Seconds,
}

/// One replica at one instant, its ranks combined.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaObservation {
    /// The replica's key.
    pub replica: ReplicaKey,
    /// The age of its last scrape, or the reason why there is none.
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
    /// Requests that arrived per unit of time: finished ones and the growth of those in flight.
    pub arrivals: Option<RequestRate>,
    /// Requests that finished per unit of time.
    pub completions: Option<RequestRate>,
    /// Prompt tokens processed per unit of time.
    pub prompt_rate: Option<TokenRate>,
    /// Tokens generated per unit of time.
    pub generation_rate: Option<TokenRate>,
    /// Mean time to first token over the window.
    pub ttft_mean: Option<Seconds>,
    /// Mean time between tokens over the window.
    pub itl_mean: Option<Seconds>,
    /// Statistics about its requests; `None` unless requested.
    pub work: Option<ReplicaWork>,
    /// Its counts from scrape to scrape since the previous tick; empty unless requested.
    pub strides: Vec<IntervalDelta>,
    /// True if the engine sleeps.
    pub asleep: bool,
    /// True if the orchestrator reports it as not ready.
    pub unready: bool,
    /// True if it has refused connections for so long that it counts as stopped rather than lost.
    pub stopped: bool,
}

/// The cache, prompts and answers of one replica's requests, its ranks combined. Absent means
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaWork {
    /// The start time of the engine's process.
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

/// The age class of a replica's data. Unknown, stale and fresh are different, and none of them
/// means zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Freshness {
    /// The last scrape is recent enough to act on.
    Fresh {
        /// Its age.
        age: Seconds,
    },
    /// There was a scrape, but it is too old to act on.
    Stale {
        /// Its age.
        age: Seconds,
        /// The failure of the attempts since.
        why: Option<ScrapeFailure>,
    },
    /// There has never been a successful scrape.
    Never {
        /// The failure of the attempts, if there were any.
        why: Option<ScrapeFailure>,
    },
}

impl Freshness {
    /// Returns true if the data is recent enough to act on.
    #[must_use]
    pub const fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh { .. })
    }

    /// The age of the data if it is fresh.
    #[must_use]
    pub const fn fresh_age(self) -> Option<Seconds> {
        match self {
            Self::Fresh { age } => Some(age),
            Self::Stale { .. } | Self::Never { .. } => None,
        }
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
