//! The scale subresource of a target, which is read and not watched.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1;

use plimsoll_core::units::Replicas;

/// The state of one target's scale subresource. It cannot be watched, so it is read again whenever
/// the object has changed. It is as old as the version of the object for which it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScaleEntry {
    pub(crate) answered: Option<(String, ScaleAnswer)>,
    /// The last known values. A later refusal does not discard them.
    pub(crate) facts: Option<ScaleFacts>,
    pub(crate) true_at: Option<Timestamp>,
}

/// The answer to a read of the scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScaleAnswer {
    Known(ScaleFacts),
    Forbidden,
    /// The object is gone, or its kind has no scale subresource.
    Absent,
}

/// The scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleFacts {
    pub(crate) wanted: Replicas,
    pub(crate) current: Replicas,
    /// Absent if the kind does not report a selector for its pods.
    pub(crate) selector: Option<String>,
}

// === impl ScaleEntry ===

impl ScaleEntry {
    /// Returns true if the scale has been read for this version of the object. A refusal is not an
    /// answer. The read is repeated until access is granted.
    pub(crate) fn is_read_for(&self, version: &str) -> bool {
        self.answered
            .as_ref()
            .is_some_and(|(read, answer)| read == version && *answer != ScaleAnswer::Forbidden)
    }
}

// === impl ScaleAnswer ===

impl ScaleAnswer {
    /// Reads the subresource. On the wire, a count of zero is omitted, so absent means zero.
    pub(crate) fn new(scale: v1::Scale) -> Self {
        let status = scale.status.unwrap_or_default();
        Self::Known(ScaleFacts {
            wanted: count(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0)),
            current: count(status.replicas),
            selector: status.selector.filter(|selector| !selector.is_empty()),
        })
    }
}

fn count(n: i32) -> Replicas {
    Replicas::saturating(u32::try_from(n).unwrap_or(0))
}
