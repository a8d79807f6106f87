//! What an analyzer says: how much a model's variants carry, and how much is asked of them.
//!
//! Analyzers measure in different things: tokens in the KV cache, tokens a second, requests a
//! second. A [`CapacityReport`] names its [`Unit`], and amounts of two units never meet: what is
//! compared between analyzers are numbers of replicas, or shares of their own supply.

use std::collections::BTreeMap;

use crate::fleet::{Role, VariantKey};
use crate::units::{Amount, CostPerHour, Replicas};

/// What an analyzer measures capacity in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Tokens that are resident in the KV cache.
    KvTokens,
    /// Tokens generated a second.
    OutputTokensPerSecond,
    /// Requests a second.
    RequestsPerSecond,
}

impl Unit {
    /// The unit as it stands behind a number in a sentence.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::KvTokens => "KV tokens",
            Self::OutputTokensPerSecond => "tokens/s",
            Self::RequestsPerSecond => "requests/s",
        }
    }
}

/// How far a capacity can be trusted, from the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Derived from how the engine was started, or from another variant.
    Assumed,
    /// Learned under other conditions than those that hold.
    Remembered,
    /// Measured under the conditions that hold.
    Measured,
}

/// What one variant carries.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantCapacity {
    /// The variant.
    pub key: VariantKey,
    /// What part of a request it serves.
    pub role: Role,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// Replicas that carry load.
    pub replicas: Replicas,
    /// Replicas that are coming and will carry load.
    pub pending: Replicas,
    /// What one replica carries; `None` when nobody can say.
    pub per_replica: Option<Amount>,
    /// What is asked of the variant's replicas.
    pub demand: Amount,
    /// How far `per_replica` can be trusted.
    pub confidence: Confidence,
}

/// Sums over variants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// What the replicas that are there carry.
    pub supply: Amount,
    /// The same, with those that are coming.
    pub anticipated: Amount,
    /// What is asked of them.
    pub demand: Amount,
    /// How much supply is missing, those that are coming counted; zero when none is.
    pub required: Amount,
    /// How much supply can go; zero when none can.
    pub spare: Amount,
}

/// What one analyzer found of one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityReport {
    /// What all amounts are measured in.
    pub unit: Unit,
    /// Each variant, in the order of their keys.
    pub variants: Vec<VariantCapacity>,
    /// The sums over the model.
    pub total: Totals,
    /// The sums over the variants of each role, for a model that serves prefill and decode apart.
    pub roles: BTreeMap<Role, Totals>,
}
