//! The measured pace of replicas.

use crate::analyze::tokens::capacity::RequestShape;
use crate::fleet::VariantSpec;
use crate::units::{Fraction, Replicas, RequestRate, Seconds, TokenRate, Tokens};

/// The measured pace of one replica; an absent value is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaPace {
    /// The share of the KV cache in use.
    pub kv_usage: Option<Fraction>,
    /// The size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// The mean time between tokens.
    pub itl: Option<Seconds>,
    /// The shape of the requests.
    pub requests: RequestShape,
    /// Requests that arrive per second.
    pub arrivals: Option<RequestRate>,
    /// Requests that finish per second.
    pub completions: Option<RequestRate>,
    /// Tokens generated per second.
    pub generation: Option<TokenRate>,
}

/// One variant and the pace of its replicas.
#[derive(Clone, Debug)]
pub struct VariantPace<'a> {
    /// The variant.
    pub spec: &'a VariantSpec,
    /// Replicas that exist, ready or not.
    pub current: Replicas,
    /// Replicas that are not ready or have never responded to a scrape.
    pub pending: Replicas,
    /// Replicas that stay only until their replacements take load. They don't count as supply.
    pub leaving: Replicas,
    /// The measured replicas, in key order.
    pub replicas: &'a [ReplicaPace],
}
