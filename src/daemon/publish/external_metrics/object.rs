//! Object metrics: desired replicas as a metric of an object, in the API group
//! `custom.metrics.k8s.io`.
//!
//! An HPA can follow desired replicas by an Object metric just as by an External one. Where another
//! provider has the group for external metrics, its registration stays as it is. An Object metric is
//! of one variant: the one that the metric's selector matches or, without a selector, the one with
//! the name of the object.

use std::time::Duration;

use crate::publish::Published;
use crate::publish::external_metrics::answer::{self, MetricReading, MetricRequest, ServedValue};
use crate::publish::external_metrics::request::ObjectRequest;
use crate::publish::external_metrics::route::MetricScope;
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::external_metrics::wire::{ErrorResponse, FailureKind};

/// Returns the value of the variant that a request is for.
///
/// # Errors
///
/// No variant matches, several do, or the one that does has no value.
pub(crate) fn value(
    now: Duration,
    published: &Published,
    ages: DecisionAges,
    asked: ObjectRequest<'_>,
) -> Result<ServedValue, ErrorResponse> {
    let ObjectRequest { namespace, object, metric, selector } = asked;
    let metrics = [metric];
    let scope = MetricScope::Namespace(namespace.clone());
    let question = MetricRequest { scope: &scope, metrics: &metrics, selector };
    let mut readings = answer::readings(now, published, ages, question);
    if selector.keys().next().is_none() {
        readings.retain(|reading| reading.variant.as_str() == object.name);
    }

    match readings.as_slice() {
        [MetricReading { value: Ok(value), .. }] => Ok(*value),
        [MetricReading { value: Err(why), .. }] => {
            Err(ErrorResponse::new(FailureKind::Unavailable, why))
        }
        [] => {
            if let Some(why) = answer::before_first_tick(published) {
                return Err(ErrorResponse::new(FailureKind::Unavailable, why));
            }

            let mut message = answer::unmatched(published, &scope, selector);
            if selector.keys().next().is_none() {
                message =
                    format!("no variant has the name of the object, {}: {message}", object.name);
            }
            Err(ErrorResponse::new(FailureKind::NotFound, message))
        }
        several => {
            let message = format!(
                "the selector {:?} matches {} variants, but an Object metric has one value: add \
                 matchLabels with the variant",
                selector.to_string(),
                several.len()
            );
            Err(ErrorResponse::new(FailureKind::BadRequest, message))
        }
    }
}
