//! The access that a review is about, and the answer to it.

/// The metric that a user wants to read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// The namespace.
    pub namespace: String,
    /// The name of the metric.
    pub metric: String,
}

/// The scope of an answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnswerScope {
    /// All metrics in all namespaces.
    Everything,
    /// One metric in one namespace.
    Metric(Access),
}

/// The answer of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReviewAnswer {
    Allowed,
    Denied(String),
}
