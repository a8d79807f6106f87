//! The limits of an engine, and the targets that bound the capacity of a replica.

use crate::units::{Fraction, Seconds, Tokens};

/// The limits of an engine, per rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityLimits {
    /// The target for the mean time between tokens; `None` without a target.
    pub itl: Option<Seconds>,
    /// The target for the time to first token; `None` without a target.
    pub first: Option<FirstToken>,
    /// Requests in a batch.
    pub seats: f64,
    /// Tokens in the KV cache; `None` if the engine does not report them.
    pub kv: Option<Tokens>,
    /// Tokens in an iteration.
    pub budget: f64,
    /// The share of each limit that may be used.
    pub share: Fraction,
    /// The number of replicas that are as good as one queue.
    pub shared: f64,
}

/// The target for the time to first token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstToken {
    /// The time after the request.
    pub within: Seconds,
    /// Additional time per token of the prompt beyond `long`.
    pub per_token: Seconds,
    /// Tokens of a prompt from which it is long.
    pub long: Tokens,
}

// === impl FirstToken ===

impl FirstToken {
    /// Seconds that the first token may take after a prompt of this many tokens.
    pub(super) fn allowed(&self, prompt: f64) -> f64 {
        let longer = (prompt - self.long.tokens()).max(0.0);
        self.within.seconds() + self.per_token.seconds() * longer
    }
}
