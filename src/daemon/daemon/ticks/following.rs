//! The series about autoscalers that exist.

use std::collections::BTreeSet;

/// The label values of the series about autoscalers.
#[derive(Debug, Default)]
pub(super) struct FollowingSeries {
    /// Namespace and name of each variant.
    pub(super) shown: BTreeSet<[String; 2]>,
    /// Namespace and name of each variant, with a problem.
    pub(super) problems: BTreeSet<[String; 3]>,
}
