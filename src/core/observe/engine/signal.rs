//! The signals that a response reports.

use crate::observe::engine::number::{cumulative, gauge};
use crate::observe::engine::unreadable::SampleError;

/// The signal that a family reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineSignal {
    /// The start time of the process.
    Started,
    /// HTTP answers by handler, method and status.
    Http,
    /// Requests that admission control rejected, by reason.
    Rejected,
    /// Labels with the adapters that have requests; the value is their time.
    Lora,
    /// Labels with the size of the KV cache.
    CacheConfig,
    /// Sleep states, one of them 1.
    SleepState,
    /// Waiting requests by reason.
    WaitingByReason,
    /// Finished requests by reason.
    Finished,
    /// One number per rank.
    Value(RankValue),
    /// One histogram per rank.
    Distribution(Distribution),
}

/// One number of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankValue {
    Running,
    Waiting,
    WaitingCapacity,
    WaitingDeferred,
    /// Requests of `SGLang` that wait for a grammar to be compiled.
    QueueGrammar,
    /// Requests of `SGLang` that a prefill server has not yet connected to a decode server.
    QueueBootstrap,
    /// Requests of `SGLang` that a decode server has no room for yet.
    QueuePrealloc,
    /// Requests of `SGLang` whose KV cache is on its way to a decode server.
    QueueTransfer,
    KvUsage,
    KvTokens,
    KvBlocks,
    KvBlockSize,
    Awake,
    Offloaded,
    Discarded,
    PromptTokens,
    GenerationTokens,
    PrefixQueries,
    PrefixHits,
    Preemptions,
    FinishedStop,
    FinishedLength,
    FinishedAbort,
    FinishedError,
    /// Finished for a reason that the engine does not report.
    FinishedAny,
}

impl RankValue {
    /// The value to store; `None` for an unusable gauge.
    pub(super) fn accept(self, value: f64) -> Result<Option<f64>, SampleError> {
        if self.is_cumulative() { cumulative(value).map(Some) } else { Ok(gauge(value)) }
    }

    /// Returns true if the number only grows during the life of the process.
    pub(super) const fn is_cumulative(self) -> bool {
        match self {
            Self::PromptTokens
            | Self::GenerationTokens
            | Self::PrefixQueries
            | Self::PrefixHits
            | Self::Preemptions
            | Self::FinishedStop
            | Self::FinishedLength
            | Self::FinishedAbort
            | Self::FinishedError
            | Self::FinishedAny => true,
            Self::Running
            | Self::Waiting
            | Self::WaitingCapacity
            | Self::WaitingDeferred
            | Self::QueueGrammar
            | Self::QueueBootstrap
            | Self::QueuePrealloc
            | Self::QueueTransfer
            | Self::KvUsage
            | Self::KvTokens
            | Self::KvBlocks
            | Self::KvBlockSize
            | Self::Awake
            | Self::Offloaded
            | Self::Discarded => false,
        }
    }
}

/// One histogram of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    Ttft,
    Itl,
    E2e,
    QueueTime,
    InferenceTime,
    PrefillTime,
    PromptLength,
    ComputedLength,
    GenerationLength,
    CompletionsAsked,
    StepTokens,
}
