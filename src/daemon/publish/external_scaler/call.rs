//! The calls of KEDA's protocol for external scalers.

/// A call of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalerCall {
    /// Should the target have replicas?
    IsActive,
    /// The same, as it changes.
    StreamIsActive,
    /// The metric that the HPA reads, with its target value.
    GetMetricSpec,
    /// The metric's value.
    GetMetrics,
    /// The metric as it changes, which it never does.
    StreamMetricSpec,
}

// === impl ScalerCall ===

impl ScalerCall {
    const ALL: [Self; 5] = [
        Self::IsActive,
        Self::StreamIsActive,
        Self::GetMetricSpec,
        Self::GetMetrics,
        Self::StreamMetricSpec,
    ];

    /// Returns the call that a path names.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let name = path.strip_prefix("/externalscaler.ExternalScaler/")?;
        Self::ALL.into_iter().find(|call| call.label() == name)
    }

    /// The name of the call in the protocol and in metrics.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::IsActive => "IsActive",
            Self::StreamIsActive => "StreamIsActive",
            Self::GetMetricSpec => "GetMetricSpec",
            Self::GetMetrics => "GetMetrics",
            Self::StreamMetricSpec => "StreamMetricSpec",
        }
    }
}
