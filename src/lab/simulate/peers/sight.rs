//! The observations of a variant that an autoscaler decides by.

use crate::simulate::Micros;
use crate::simulate::replica::settings::Settings;
use crate::simulate::scaler::ScaleCounts;
use crate::simulate::scenario::slo::Slo;
use crate::simulate::score::Service;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Replicas;

/// The facts about its variant that a rule gets at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The bounds of the replica count.
    pub(crate) bounds: Bounds,
    /// The objectives of requests.
    pub(crate) slo: Slo,
    /// The engine, for rules that use its profile.
    pub(crate) engine: Settings,
}

/// The state of a variant at one instant, as a rule sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    /// The time of the observation.
    pub(crate) now: Micros,
    /// The desired and the existing replicas.
    pub(crate) scale: ScaleCounts,
    /// The serving replicas.
    pub(crate) replicas: &'a [ReplicaSight],
    /// Requests sent to the variant so far.
    pub(crate) sent: u64,
    /// The outcome of the model's requests so far.
    pub(crate) service: &'a Service,
}

/// The state of one replica, as a rule sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReplicaSight {
    /// Requests in its batch.
    pub(crate) running: f64,
    /// Requests in its queue.
    pub(crate) waiting: f64,
    /// The share of its KV cache in use.
    pub(crate) kv_usage: f64,
    /// Tokens in its KV cache.
    pub(crate) kv_tokens: f64,
    /// Prompt tokens of the waiting requests.
    pub(crate) queued_tokens: f64,
    /// Prompt tokens computed since the replica's start.
    pub(crate) prefill_tokens: u64,
    /// Steps since the replica's start.
    pub(crate) steps: u64,
}

/// Rounds a computed replica count up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and takes NaN and negatives to zero"
)]
pub(crate) fn whole(value: f64) -> Replicas {
    Replicas::saturating(value.ceil() as u32)
}
