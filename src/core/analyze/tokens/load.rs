//! The load of a model's variants and replicas, and the inputs of one variant's analysis.

use std::num::NonZeroU32;

use jiff::Timestamp;

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::RequestShape;
use crate::analyze::tokens::policy::TokenPolicy;
use crate::fleet::{Namespace, VariantSpec};
use crate::observe::GaugeSummary;
use crate::units::{Fraction, Replicas, Requests, TokenRate, Tokens};

/// The load of one replica, its data-parallel ranks together; an absent value is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenReplicaLoad {
    /// The share of the KV cache in use.
    pub kv_usage: Option<GaugeSummary<Fraction>>,
    /// The size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// Waiting requests.
    pub waiting: Option<GaugeSummary<Requests>>,
    /// Running requests.
    pub running: Option<GaugeSummary<Requests>>,
    /// Tokens generated per second.
    pub generation_rate: Option<TokenRate>,
    /// The shape of the requests.
    pub requests: RequestShape,
}

/// One variant and the load of its replicas.
#[derive(Clone, Debug)]
pub struct TokenVariantLoad<'a> {
    /// The variant.
    pub spec: &'a VariantSpec,
    /// Accelerators of one replica.
    pub gpus: Option<NonZeroU32>,
    /// Replicas that exist, ready or not.
    pub current: Replicas,
    /// Replicas that are not ready or have never responded to a scrape.
    pub pending: Replicas,
    /// Replicas that stay only until their replacements take load. They don't count as supply.
    pub leaving: Replicas,
    /// The arguments of its engines, if known.
    pub arguments: Option<&'a EngineArguments>,
    /// The measured replicas, in key order.
    pub replicas: &'a [TokenReplicaLoad],
}

/// The inputs of one variant's analysis.
pub(super) struct TokenContext<'a> {
    pub(super) now: Timestamp,
    pub(super) policy: &'a TokenPolicy,
    /// The mean request of the model.
    pub(super) requests: &'a RequestShape,
    pub(super) variant: &'a TokenVariantLoad<'a>,
}

// === impl TokenContext ===

impl TokenContext<'_> {
    /// The namespace whose variants share their measurements with this one; `None` for all.
    pub(super) fn sharing(&self) -> Option<&Namespace> {
        self.policy.sharing.within(&self.variant.spec.key.namespace)
    }
}
