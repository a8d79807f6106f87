//! Problems of a `ScaledObject` that reads desired replicas.

use std::fmt;

use plimsoll_core::units::Replicas;

/// A part of a `ScaledObject` that keeps KEDA from following desired replicas, or scales on errors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScaledObjectFault {
    /// A prometheus trigger takes a query without a result for 0.
    NullIsZero {
        /// The trigger, by its place.
        trigger: String,
    },
    /// A trigger divides desired replicas by a value other than 1.
    WrongThreshold {
        /// The trigger, by its place.
        trigger: String,
        /// The key with the value.
        key: &'static str,
        /// The value; empty if there is none.
        found: String,
    },
    /// A trigger with an activation threshold takes few replicas for inactivity.
    ActivationAboveZero {
        /// The trigger, by its place.
        trigger: String,
        /// The key with the value.
        key: &'static str,
        /// The value.
        found: String,
    },
    /// A trigger's metric type is not `AverageValue`.
    WrongMetricType {
        /// The trigger, by its place.
        trigger: String,
        /// The type.
        found: String,
    },
    /// The metric type is below `metadata`, where KEDA ignores it.
    MisplacedMetricType {
        /// The trigger, by its place.
        trigger: String,
    },
    /// A `metrics-api` trigger reads another field of the response.
    WrongValueLocation {
        /// The trigger, by its place.
        trigger: String,
        /// The field; empty if there is none.
        found: String,
    },
    /// An error of the trigger scales the target to 0.
    FallbackToZero,
    /// An error of the trigger can remove replicas.
    FallbackLowers {
        /// The replicas of the fallback.
        replicas: Replicas,
        /// The behavior of the fallback.
        behavior: String,
    },
    /// A formula computes replicas from the triggers.
    ScalingModifiers,
    /// An annotation keeps KEDA from removing the last replicas.
    ScaleInPaused,
    /// An annotation keeps KEDA from starting the first replica.
    ScaleOutPaused,
}

impl fmt::Display for ScaledObjectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NullIsZero { trigger } => write!(
                f,
                "{trigger} takes a query without a result for 0: set ignoreNullValues to \"false\""
            ),
            Self::WrongThreshold { trigger, key, found } => {
                write!(
                    f,
                    "{trigger} divides desired replicas by {}: set {key} to \"1\" to get their \
                     number",
                    or_nothing(found)
                )
            }
            Self::ActivationAboveZero { trigger, key, found } => write!(
                f,
                "{trigger} takes up to {found} desired replicas for inactivity, which scales the \
                 target to its minimum or idle count: remove {key}"
            ),
            Self::WrongMetricType { trigger, found } => write!(
                f,
                "{trigger} has the metric type {found}, which multiplies desired replicas by the \
                 replicas that exist: set metricType to AverageValue"
            ),
            Self::MisplacedMetricType { trigger } => write!(
                f,
                "{trigger} has metricType below metadata, where KEDA ignores it: move it to the \
                 level of metadata"
            ),
            Self::WrongValueLocation { trigger, found } => {
                let field = or_nothing(found);
                write!(f, "{trigger} reads {field}: set valueLocation to \"replicas\"")
            }
            Self::FallbackToZero => f.write_str(
                "fallback.replicas is 0 and minReplicaCount is 0, so KEDA scales the target to 0 \
                 on an error: set fallback.replicas to at least 1",
            ),
            Self::FallbackLowers { replicas, behavior } => write!(
                f,
                "fallback with the behavior {behavior} can remove replicas on an error, down to \
                 {replicas}: set fallback.behavior to currentReplicasIfHigher"
            ),
            Self::ScalingModifiers => f.write_str(
                "advanced.scalingModifiers computes replicas by a formula, so they may differ from \
                 the desired replicas: remove it",
            ),
            Self::ScaleInPaused => f.write_str(
                "the annotation autoscaling.keda.sh/paused-scale-in keeps KEDA from scaling in",
            ),
            Self::ScaleOutPaused => f.write_str(
                "the annotation autoscaling.keda.sh/paused-scale-out keeps KEDA from scaling out",
            ),
        }
    }
}

/// Returns a value for people, which may be absent.
const fn or_nothing(found: &str) -> &str {
    if found.is_empty() { "nothing" } else { found }
}
