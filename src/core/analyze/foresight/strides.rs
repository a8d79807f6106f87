//! The counters of a model's replicas since the last call.

use std::sync::Arc;

use crate::analyze::engine_args::EngineArguments;
use crate::fleet::{ReplicaKey, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::stride::IntervalDelta;
use crate::units::{Gpus, Replicas, Requests, Seconds, Tokens};

/// The counters of one replica since the last call.
#[derive(Clone, Debug)]
pub struct ReplicaStrides<'a> {
    /// The key of the replica.
    pub replica: &'a ReplicaKey,
    /// The differences between consecutive scrapes, in order of time.
    pub strides: &'a [IntervalDelta],
    /// Requests that wait at the replica; `None` if that is not known.
    pub waiting: Option<Requests>,
    /// Requests that the replica runs.
    pub running: Option<Requests>,
}

/// One variant and the counters of its replicas.
#[derive(Clone, Debug)]
pub struct VariantStrides<'a> {
    /// The variant's specification.
    pub spec: &'a VariantSpec,
    /// Accelerators per replica, if they are known.
    pub gpus: Option<Gpus>,
    /// Replicas that exist or are requested.
    pub current: Replicas,
    /// Replicas among them that do not serve yet.
    pub pending: Replicas,
    /// Replicas that stay only until others serve, and do not count as supply.
    pub leaving: Replicas,
    /// Replicas that serve and do not report their load.
    pub silent: Replicas,
    /// The least replicas that it may have.
    pub min: Replicas,
    /// Replicas that the variant may have in addition, and that can be relied on to start.
    pub room: Replicas,
    /// The measured start-up time of its replicas; `None` while none was measured.
    pub startup: Option<Seconds>,
    /// The longest time that a start has taken, or has taken so far, beyond the measured time.
    pub slowest_start: Option<Seconds>,
    /// Expected losses per hour for each replica.
    pub losses: f64,
    /// The limits that its engines are configured with.
    pub told: EngineLimits,
    /// The complete arguments of its engines, if known. They distinguish kinds of engines.
    pub arguments: Option<&'a Arc<EngineArguments>>,
    /// Times to first token, over about a minute.
    pub ttft: Option<&'a Histogram>,
    /// Its measured replicas, in the order of their keys.
    pub replicas: Vec<ReplicaStrides<'a>>,
    /// Counters of replicas that are not ready, and may still get requests.
    pub unready: Vec<&'a [IntervalDelta]>,
}

/// The configured limits of engines that bound their capacity, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLimits {
    /// Requests in a batch.
    pub seats: Option<Requests>,
    /// Tokens in an iteration. An engine without this setting on a large accelerator may compute
    /// more, which its counters show.
    pub budget: Option<Tokens>,
}

// === impl ReplicaStrides ===

impl ReplicaStrides<'_> {
    /// Requests that it runs and that wait at it; `None` while it does not report the running ones.
    pub(super) fn in_flight(&self) -> Option<f64> {
        Some(self.running?.requests() + self.waiting.map_or(0.0, Requests::requests))
    }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// The number of its measured replicas.
    pub(super) fn measured(&self) -> f64 {
        self.replicas.len() as f64
    }

    /// The number of its replicas that exist or are requested.
    pub(super) fn count(&self) -> f64 {
        f64::from(self.current.count())
    }

    /// Replicas that exist or are requested, without the leaving ones.
    pub(super) fn staying(&self) -> Replicas {
        self.current.beyond(self.leaving)
    }
}
