//! The derivation of a variant's capacity and demand, in numbers that display as a sentence.

use std::fmt;

use derive_more::Display;

use crate::analyze::capacity::Confidence;
use crate::units::{NounCount, Replicas, Requests, Tokens};

/// The source of a capacity per replica.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum CapacitySource {
    /// The size of the KV cache; no tighter bound is known.
    #[display("from the KV-cache size")]
    Memory,
    /// The tokens in use at this moment, while requests wait.
    #[display("from the tokens in use while requests wait")]
    Observed,
    /// The tokens that were in use while compute was the limit.
    #[display("from the tokens in use when compute was the limit")]
    Learned,
    /// The engine's arguments and the shape of its requests.
    #[display("from the engine's arguments and its requests' lengths")]
    Derived,
    /// The capacity from the time when the variant had replicas.
    #[display("from the time of its last replicas")]
    Remembered,
    /// The engine's arguments and the capacity of a variant with equivalent arguments.
    #[display("from the engine's arguments")]
    Declared,
    /// No source.
    Unknown(MissingCapacity),
}

/// The reason why the capacity per replica is unknown.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum MissingCapacity {
    /// No replica has ever been measured, neither of the variant nor of a variant with similar
    /// arguments.
    #[display("no replica has ever been measured")]
    NeverMeasured,
}

/// The bounds and the demand of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaTokens {
    /// The size of the KV cache.
    pub kv_capacity: Tokens,
    /// The tokens that fit below the KV cache threshold (k1).
    pub memory: Tokens,
    /// The tokens that are resident when compute is the limit (k2), if known.
    pub compute: Option<Tokens>,
    /// The source of the capacity.
    pub source: CapacitySource,
    /// Tokens in use.
    pub in_use: Tokens,
    /// Tokens that the replica's waiting requests will hold; `None` if their length is unknown.
    pub waiting: Option<Tokens>,
}

impl ReplicaTokens {
    /// The capacity: the smaller of both bounds.
    #[must_use]
    pub fn capacity(&self) -> Tokens {
        self.compute.map_or(self.memory, |compute| self.memory.min(compute))
    }

    /// The demand: the tokens in use, plus the tokens of waiting requests with a known length.
    #[must_use]
    pub fn demand(&self) -> Tokens {
        self.in_use + self.waiting.unwrap_or_default()
    }
}

/// The capacity and the demand of one variant.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct VariantTokens {
    /// Each measured replica.
    pub replicas: Vec<ReplicaTokens>,
    /// The capacity per replica; `None` if unknown.
    pub capacity: Option<Tokens>,
    /// The source of the capacity.
    pub source: CapacitySource,
    /// The reliability of the capacity.
    pub confidence: Confidence,
    /// Replicas that take load. Replicas that are not reporting are included if at least one
    /// replica is.
    pub carrying: Replicas,
    /// Ready replicas that are not reporting.
    pub silent: Replicas,
    /// Pending replicas.
    pub pending: Replicas,
    /// Replicas, ready or pending, that stay only until their replacements take load. They don't
    /// count as supply.
    pub leaving: Replicas,
    /// Requests that wait on the variant's replicas.
    pub waiting: Requests,
    /// The demand on all replicas that take load.
    pub demand: Tokens,
}

impl fmt::Display for VariantTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, capacity, source, carrying, silent, pending, waiting, demand, .. } =
            self;
        match capacity {
            Some(capacity) => write!(f, "capacity per replica {capacity:.0} KV tokens, {source}")?,
            None => write!(f, "capacity per replica unknown: {source}")?,
        }

        if !replicas.is_empty() {
            let in_use: Tokens = replicas.iter().map(|replica| replica.in_use).sum();
            let asked: Option<Tokens> = replicas.iter().map(|replica| replica.waiting).sum();
            write!(f, "; {in_use:.0} in use")?;
            if *waiting > Requests::ZERO {
                write!(f, " and {waiting:.0} requests wait")?;
                match asked {
                    Some(asked) => write!(f, " for {asked:.0}")?,
                    None => f.write_str(" with unknown lengths")?,
                }
            }

            write!(f, ", so the demand on {} is {demand:.0}", carrying.counted())?;
        }

        if *silent > Replicas::ZERO && !replicas.is_empty() {
            write!(f, "; {silent} of them are not reporting and count like the others")?;
        } else if *silent > Replicas::ZERO {
            write!(
                f,
                "; {} not reporting, so neither load nor capacity is counted",
                silent.counted()
            )?;
        }

        if *pending > Replicas::ZERO {
            write!(f, "; {}", NounCount(pending.count(), "more is pending", "more are pending"))?;
        }

        Ok(())
    }
}

/// The demand of requests that wait in front of the replicas.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "{requests:.0} queued requests need {prompt:.0} KV tokens for prompts and {output:.0} for \
     output"
)]
pub struct QueueDemand {
    /// The number of waiting requests.
    pub requests: Requests,
    /// KV tokens that their prompts will hold.
    pub prompt: Tokens,
    /// KV tokens that their outputs will hold.
    pub output: Tokens,
}
