//! The command line of an engine: its flags, and the constants behind them.

use crate::observe::template::Container;

/// The command line of one engine. Each engine has a constant of this type in its file.
pub(super) struct EngineSyntax {
    /// Returns true if a container with these words runs the engine.
    pub(super) is_named: fn(&Container, &[String]) -> bool,
    /// Returns true if the container selects the oldest generation of the engine.
    pub(super) is_oldest: fn(&Container) -> bool,
    /// The setting of a flag, given without its dashes and with `-` in place of `_`.
    pub(super) setting: fn(&str) -> Option<FlagSetting>,
    /// Tokens in a block of the KV cache by default.
    pub(super) block_size: f64,
    /// True if a step computes at most one chunk, whatever a batch of prompts may hold.
    pub(super) steps_by_chunk: bool,
}

/// The setting behind a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagSetting {
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

impl FlagSetting {
    /// Returns true if the flag takes no value.
    pub(super) const fn is_switch(self) -> bool {
        matches!(
            self,
            Self::DataAttention | Self::Eager | Self::ChunkedPrefill | Self::NoChunkedPrefill
        )
    }
}
