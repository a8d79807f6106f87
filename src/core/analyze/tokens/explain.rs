//! How the capacity and demand of a variant come about, in numbers that make a sentence.

use std::fmt;

use derive_more::Display;

use crate::analyze::capacity::{Confidence, Counted};
use crate::units::{Replicas, Requests, Tokens};

/// What says how much a replica carries.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum CapacitySource {
    /// The size of its KV cache; nothing is known to bind earlier.
    #[display("by the size of the KV cache")]
    Memory,
    /// What is in use at this moment, while requests wait.
    #[display("by what is in use while requests wait")]
    Observed,
    /// What was in use while compute was the limit.
    #[display("by what was in use while compute was the limit")]
    Learned,
    /// How its engine is started, and what its requests look like.
    #[display("by the engine's arguments and the length of its requests")]
    Derived,
    /// What it carried when it had replicas.
    #[display("as it was when there were replicas")]
    Remembered,
    /// How its engine is started, and what a variant started alike carries.
    #[display("by the engine's arguments")]
    Declared,
    /// Nothing.
    Unknown(WhyUnknown),
}

/// Why nobody can say how much a replica carries.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum WhyUnknown {
    /// No replica has ever been measured, neither of the variant nor of one that is started alike.
    #[display("no replica has ever been measured")]
    NeverMeasured,
}

/// One replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaTokens {
    /// The size of its KV cache.
    pub kv_capacity: Tokens,
    /// Tokens that fit before it is too full (k1).
    pub memory: Tokens,
    /// Tokens that are resident when compute is the limit (k2), if anything says so.
    pub compute: Option<Tokens>,
    /// What says how much it carries.
    pub source: CapacitySource,
    /// Tokens in use.
    pub in_use: Tokens,
    /// Tokens that its waiting requests will hold; `None` when their length is unknown.
    pub waiting: Option<Tokens>,
}

impl ReplicaTokens {
    /// What it carries: the smaller of both bounds.
    #[must_use]
    pub fn capacity(&self) -> Tokens {
        self.compute.map_or(self.memory, |compute| self.memory.min(compute))
    }

    /// What is asked of it: what is in use, and what waits as far as its length is known.
    #[must_use]
    pub fn demand(&self) -> Tokens {
        self.in_use + self.waiting.unwrap_or_default()
    }
}

/// One variant.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct VariantTokens {
    /// Each replica that was measured.
    pub replicas: Vec<ReplicaTokens>,
    /// What one replica carries; `None` when nobody can say.
    pub capacity: Option<Tokens>,
    /// What says so.
    pub source: CapacitySource,
    /// How far it can be trusted.
    pub confidence: Confidence,
    /// Replicas that carry load, those that say nothing included where others speak for them.
    pub carrying: Replicas,
    /// Replicas that are ready and say nothing.
    pub silent: Replicas,
    /// Replicas that are coming.
    pub pending: Replicas,
    /// Those of all of them that stay only until others carry load, and are no supply.
    pub leaving: Replicas,
    /// Requests that wait at its replicas.
    pub waiting: Requests,
    /// What is asked of all replicas that carry load.
    pub demand: Tokens,
}

impl fmt::Display for VariantTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, capacity, source, carrying, silent, pending, waiting, demand, .. } =
            self;
        match capacity {
            Some(capacity) => write!(f, "a replica carries {capacity:.0} KV tokens, {source}")?,
            None => write!(f, "nobody can say what a replica carries: {source}")?,
        }
        if !replicas.is_empty() {
            let in_use: Tokens = replicas.iter().map(|replica| replica.in_use).sum();
            let asked: Option<Tokens> = replicas.iter().map(|replica| replica.waiting).sum();
            write!(f, "; {in_use:.0} are in use")?;
            if *waiting > Requests::ZERO {
                write!(f, " and {waiting:.0} requests wait")?;
                match asked {
                    Some(asked) => write!(f, " for {asked:.0}")?,
                    None => f.write_str(", whose length nobody knows")?,
                }
            }
            write!(f, ", so {demand:.0} are asked of {}", Counted(*carrying))?;
        }
        if *silent > Replicas::ZERO && !replicas.is_empty() {
            write!(f, "; {silent} of them say nothing and count like the others")?;
        } else if *silent > Replicas::ZERO {
            write!(
                f,
                "; nothing is heard of {}, so no load and no room is counted",
                Counted(*silent)
            )?;
        }
        if *pending > Replicas::ZERO {
            write!(f, "; {pending} more are coming")?;
        }
        Ok(())
    }
}

/// What waits before any replica.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
#[display(
    "{requests:.0} requests wait before the replicas for {prompt:.0} KV tokens of prompts and \
     {output:.0} of output"
)]
pub struct QueueDemand {
    /// Requests.
    pub requests: Requests,
    /// KV tokens that their prompts will hold.
    pub prompt: Tokens,
    /// KV tokens that their outputs will hold.
    pub output: Tokens,
}
