//! The access that a review is about, and the answer to it.

use crate::publish::external_metrics::route::DescribedObject;

/// The metric that a user wants to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// The namespace.
    pub namespace: String,
    /// The name of the metric.
    pub metric: String,
    /// The object that the metric is of; `None` for an external metric.
    pub object: Option<DescribedObject>,
}

/// The scope of an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnswerScope {
    /// All external metrics in all namespaces.
    Everything,
    /// All metrics of all objects in all namespaces.
    EveryObject,
    /// One metric in one namespace.
    Metric(Access),
}

/// The answer of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReviewAnswer {
    Allowed,
    Denied(String),
}
