//! A request for the metric of an object.

use crate::publish::external_metrics::answer::ServedMetric;
use crate::publish::external_metrics::route::DescribedObject;
use crate::publish::selector::Selector;
use plimsoll_core::fleet::Namespace;

/// A request for the metric of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectRequest<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) object: &'a DescribedObject,
    pub(crate) metric: ServedMetric,
    pub(crate) selector: &'a Selector,
}
