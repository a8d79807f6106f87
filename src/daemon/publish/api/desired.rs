//! The desired replicas of one variant as JSON, for KEDA's `metrics-api` scaler.
//!
//! The scaler takes every response except 200 for an error and keeps the replicas. So a value that
//! the external metrics API refuses is refused here, with the same words, and never 0 or null.

use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::Published;
use crate::publish::api::context::ResponseContext;
use crate::publish::external_metrics::answer::{DesiredReading, before_first_tick, desired};
use plimsoll_core::fleet::VariantKey;

/// The desired replicas of one variant; a variant without usable ones is refused with 503.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Desired {
    /// Namespace of the variant.
    namespace: String,
    /// Name of the variant.
    variant: String,
    /// Desired replicas.
    replicas: u32,
    /// Age of the data behind the decision, in seconds.
    age_seconds: f64,
    /// `fresh`, or `hold` while the last decision is served because nothing newer exists.
    state: &'static str,
}

/// The reason that there are no desired replicas to answer with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DesiredError {
    #[error("there is no variant {0}; /api/v1/decisions lists all variants")]
    NoVariant(VariantKey),
    #[error("{0}")]
    Unavailable(String),
}

// === impl Desired ===

impl Desired {
    /// Returns the desired replicas of a variant.
    ///
    /// # Errors
    ///
    /// The variant does not exist, has no decision yet, or its decision is too old.
    pub(crate) fn new(asked: &ResponseContext<'_>, key: &VariantKey) -> Result<Self, DesiredError> {
        let published: &Published = asked.published;
        let reading = desired(asked.elapsed, published, asked.ages, key);
        let DesiredReading { state, replicas } = reading.ok_or_else(|| {
            before_first_tick(published)
                .map_or_else(|| DesiredError::NoVariant(key.clone()), DesiredError::Unavailable)
        })?;

        Ok(Self {
            namespace: key.namespace.to_string(),
            variant: key.variant.to_string(),
            replicas: replicas.map_err(DesiredError::Unavailable)?.count(),
            age_seconds: state.age().unwrap_or_default().as_secs_f64(),
            state: state.label(),
        })
    }
}
