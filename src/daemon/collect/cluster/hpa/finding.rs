//! Problems that keep an HPA from following desired replicas.

use std::fmt;

use crate::collect::cluster::hpa::pace::{BoundsChange, is_slower};
use crate::collect::cluster::keda::ScaledObjectPause;
use crate::collect::cluster::keda::fault::ScaledObjectFault;

/// The maximum names in a message.
pub(super) const NAMES_MAX: usize = 5;

/// The direction of a change of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// More replicas.
    Up,
    /// Fewer replicas.
    Down,
}

/// A condition of an HPA that is true while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HpaCondition {
    /// It computes replicas from its metrics.
    ScalingActive,
    /// It can read and write its target's scale.
    AbleToScale,
}

/// A problem that keeps an HPA from following a variant's desired replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The HPA compares the metric by a target type other than `AverageValue`.
    WrongTargetType {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The type that it uses.
        found: String,
    },
    /// The HPA divides the metric by a value other than 1.
    WrongAverageValue {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The divisor that it uses.
        found: String,
    },
    /// The metric's selector is invalid.
    WrongSelector {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The mistake.
        found: String,
    },
    /// The metric's selector is not limited to one variant, and an HPA adds up all that it matches.
    SumsVariants {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The selector; empty if there is none.
        selector: String,
        /// Other variants that it certainly matches; at most one more than a message names.
        others: Vec<String>,
        /// The variant that it is meant for.
        variant: String,
    },
    /// The HPA has other metrics as well, and it takes the largest proposal.
    OtherMetrics {
        /// The HPA's name.
        hpa: String,
        /// The other metrics.
        others: Vec<String>,
    },
    /// The HPA never scales in one direction.
    DirectionDisabled {
        /// The HPA's name.
        hpa: String,
        /// The direction.
        direction: Direction,
    },
    /// The HPA's policies delay changes.
    SlowPolicies {
        /// The HPA's name.
        hpa: String,
        /// The direction of the policies.
        direction: Direction,
        /// The seconds for a change from one of its bounds to the other; `None` if it takes longer
        /// than an hour.
        takes: Option<u32>,
        /// That change.
        change: BoundsChange,
    },
    /// Kubernetes reports that the HPA does not work.
    ConditionFalse {
        /// The HPA's name.
        hpa: String,
        /// The condition that is false.
        condition: HpaCondition,
        /// The reason that Kubernetes gives; empty if it gives none.
        reason: String,
    },
    /// The target has no replicas and the HPA's minimum is above 0, which switches the HPA off.
    ScalingDisabled {
        /// The HPA's name.
        hpa: String,
    },
    /// No HPA acts on the desired replicas: the target's HPA does not read them, or there is none.
    NotRead {
        /// The scale target's HPA, if there is one.
        hpa: Option<String>,
    },
    /// The `ScaledObject` keeps KEDA from following the desired replicas, or scales on errors.
    ScaledObject {
        /// The `ScaledObject`'s name.
        scaled_object: String,
        /// The problem.
        fault: ScaledObjectFault,
    },
    /// KEDA is paused, so it leaves the replicas alone.
    Paused {
        /// The `ScaledObject`'s name.
        scaled_object: String,
        /// The kind of pause.
        how: ScaledObjectPause,
    },
}

impl Direction {
    /// The direction, named as the HPA's fields name it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Up => "scaleUp",
            Self::Down => "scaleDown",
        }
    }
}

impl HpaCondition {
    /// Returns the condition of this type, if an HPA needs it to be true.
    pub(super) fn of(label: &str) -> Option<Self> {
        [Self::ScalingActive, Self::AbleToScale].into_iter().find(|it| it.label() == label)
    }

    /// The type of the condition.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ScalingActive => "ScalingActive",
            Self::AbleToScale => "AbleToScale",
        }
    }
}

// === impl Finding ===

impl Finding {
    /// The problem as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::WrongTargetType { .. } => "target_type",
            Self::WrongAverageValue { .. } => "average_value",
            Self::WrongSelector { .. } => "selector",
            Self::SumsVariants { .. } => "sums_variants",
            Self::OtherMetrics { .. } => "other_metrics",
            Self::DirectionDisabled { .. } => "direction_disabled",
            Self::SlowPolicies { .. } => "slow_policies",
            Self::ConditionFalse { .. } => "condition_false",
            Self::ScalingDisabled { .. } => "scaling_disabled",
            Self::NotRead { .. } => "not_read",
            Self::ScaledObject { .. } => "scaled_object",
            Self::Paused { .. } => "paused",
        }
    }

    /// The HPA's name, if there is one.
    #[must_use]
    pub fn hpa(&self) -> Option<&str> {
        match self {
            Self::WrongTargetType { hpa, .. }
            | Self::WrongAverageValue { hpa, .. }
            | Self::WrongSelector { hpa, .. }
            | Self::SumsVariants { hpa, .. }
            | Self::OtherMetrics { hpa, .. }
            | Self::DirectionDisabled { hpa, .. }
            | Self::SlowPolicies { hpa, .. }
            | Self::ConditionFalse { hpa, .. }
            | Self::ScalingDisabled { hpa } => Some(hpa),
            Self::NotRead { hpa } => hpa.as_deref(),
            Self::ScaledObject { .. } | Self::Paused { .. } => None,
        }
    }
}

impl Finding {
    /// Returns true if it is that policies delay changes, but hardly longer than the limits by
    /// which the change takes this many seconds; `None` if it takes longer than an hour.
    #[must_use]
    pub fn is_as_slow_as(&self, own: Option<u32>) -> bool {
        matches!(self, Self::SlowPolicies { takes, .. } if !is_slower(*takes, own))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongTargetType { hpa, metric, found } => write!(
                f,
                "HPA {hpa} reads {metric} with target type {found}, which multiplies it by the \
                 ready pods: use type AverageValue with averageValue \"1\""
            ),
            Self::WrongAverageValue { hpa, metric, found } => write!(
                f,
                "HPA {hpa} divides {metric} by {found}: set averageValue to \"1\" to get the \
                 desired replicas"
            ),
            Self::WrongSelector { hpa, metric, found } => write!(
                f,
                "HPA {hpa} reads {metric} with an invalid selector: {found}; correct \
                 metric.selector"
            ),
            Self::SumsVariants { hpa, metric, selector, others, variant } => {
                write!(f, "HPA {hpa} reads {metric} ")?;
                match selector.as_str() {
                    "" => f.write_str("without a selector")?,
                    selector => write!(f, "with the selector {selector}")?,
                }
                match others.as_slice() {
                    [] => f.write_str(", which adds up all variants once others exist")?,
                    others => write!(f, ", which also adds the variants {}", VariantList(others))?,
                }
                write!(f, ": add matchLabels {{variant: {variant}}} to metric.selector")
            }
            Self::OtherMetrics { hpa, others } => write!(
                f,
                "HPA {hpa} also reads {}, and follows the metric with the most replicas: remove \
                 the other metrics to get the desired replicas",
                VariantList(others)
            ),
            Self::DirectionDisabled { hpa, direction } => write!(
                f,
                "HPA {hpa} never scales in one direction: behavior.{}.selectPolicy is Disabled; \
                 set it to Max",
                direction.label()
            ),
            Self::SlowPolicies { hpa, direction, takes, .. } => slow(f, hpa, *direction, *takes),
            Self::ConditionFalse { hpa, condition, reason } => {
                condition_is_false(f, hpa, *condition, reason)
            }
            Self::ScalingDisabled { hpa } => write!(
                f,
                "HPA {hpa} is switched off, because its target is scaled to 0 replicas and its \
                 minimum is above 0: scale the target to 1 replica to switch it on"
            ),
            Self::NotRead { hpa: Some(hpa) } => {
                write!(f, "HPA {hpa} scales the target but does not read the desired replicas")
            }
            Self::NotRead { hpa: None } => f.write_str("no HPA scales the target"),
            Self::ScaledObject { scaled_object, fault } => {
                write!(f, "ScaledObject {scaled_object}: {fault}")
            }
            Self::Paused { scaled_object, how: ScaledObjectPause::AsItIs } => {
                write!(f, "KEDA is paused by an annotation of ScaledObject {scaled_object}")
            }
            Self::Paused { scaled_object, how: ScaledObjectPause::At(replicas) } => write!(
                f,
                "KEDA is paused at {} by an annotation of ScaledObject {scaled_object}",
                replicas.counted()
            ),
        }
    }
}

fn slow(
    f: &mut fmt::Formatter<'_>,
    hpa: &str,
    direction: Direction,
    takes: Option<u32>,
) -> fmt::Result {
    write!(f, "HPA {hpa} takes ")?;
    match takes {
        Some(seconds) => write!(f, "{seconds} s")?,
        None => f.write_str("more than an hour")?,
    }

    let label = direction.label();
    write!(
        f,
        " from one of its bounds to the other by its {label} policies, much longer than without \
         any: widen behavior.{label}.policies"
    )
}

fn condition_is_false(
    f: &mut fmt::Formatter<'_>,
    hpa: &str,
    condition: HpaCondition,
    reason: &str,
) -> fmt::Result {
    let effect = match condition {
        HpaCondition::ScalingActive => "computes no replicas",
        HpaCondition::AbleToScale => "cannot scale its target",
    };
    let given = if reason.is_empty() { "no reason given" } else { reason };

    write!(
        f,
        "HPA {hpa} {effect}: its condition {} is False ({given}); kubectl describe hpa {hpa} \
         shows the message",
        condition.label()
    )
}

/// A list of names, of which the first few are written.
struct VariantList<'a>(&'a [String]);

impl fmt::Display for VariantList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(names) = self;
        f.write_str(&names[..names.len().min(NAMES_MAX)].join(", "))?;
        if names.len() > NAMES_MAX { f.write_str(" and others") } else { Ok(()) }
    }
}
