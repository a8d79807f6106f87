//! The annotations of both vocabularies, the rules for them, and problems with them.

use std::fmt;
use std::ops::RangeInclusive;

use plimsoll_core::units::Gpus;

/// Prefix of all Plimsoll annotations.
pub(super) const PREFIX: &str = "plimsoll.dev/";

/// Marks an object for the workload variant autoscaler when it is `"true"`.
pub(super) const WVA_MANAGED: &str = "llm-d.ai/managed";
/// The annotation with the model in that autoscaler's vocabulary.
pub(super) const WVA_MODEL: &str = "llm-d.ai/model-id";
/// The annotation with the cost of a replica in that vocabulary.
pub(super) const WVA_COST: &str = "llm-d.ai/variant-cost";
/// The label with the accelerator in that vocabulary.
pub(super) const WVA_ACCELERATOR: &str = "inference.optimization/acceleratorName";
/// The pod label with the role in that vocabulary.
pub(crate) const WVA_ROLE: &str = "llm-d.ai/role";

/// Default cost of a replica, the same as in the configuration.
pub(super) const COST: f64 = 1.0;
/// Default cost of a replica in the workload variant autoscaler's vocabulary.
pub(super) const WVA_DEFAULT_COST: f64 = 10.0;
/// Accepted costs, the same as in the configuration.
pub(super) const COSTS: RangeInclusive<f64> = 0.0..=1e9;

/// The most accelerators per replica, the same as in the configuration.
pub(super) const GPUS_MAX: u32 = 4096;

/// Accepted mismatch factors, the same as in the configuration.
pub(super) const MISMATCHES: RangeInclusive<f64> = 1.0..=1000.0;

/// The operator's rules for annotations, whose authors may be anybody who can write a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotationRules {
    /// The vocabularies to accept.
    pub vocabulary: Vocabulary,
    /// The annotations that have an effect; `None` for all of them. That of the model always has.
    pub allowed: Option<Vec<Annotation>>,
    /// The most accelerators per replica that an annotation can claim.
    pub gpus_max: Gpus,
    /// The costs of a replica that an annotation can claim.
    pub costs: RangeInclusive<f64>,
}

/// The annotation vocabularies that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Plimsoll's only.
    Own,
    /// Plimsoll's, and the workload variant autoscaler's.
    WithWva,
}

/// An object's request that Plimsoll scrape its replicas. If a Prometheus is configured, it is the
/// default source. If none is configured, an object cannot request one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrapeRequest;

/// A problem with one annotation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnotationProblem {
    /// The annotation.
    pub annotation: String,
    /// The rule that it must satisfy.
    pub rule: String,
    /// The value that was found; `None` if there is none or the rule alone explains the problem.
    pub found: Option<String>,
}

macro_rules! annotations {
    ($($(#[$doc:meta])* $id:ident = $name:literal,)*) => {
        /// A Plimsoll annotation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Annotation {
            $($(#[$doc])* $id,)*
        }

        impl Annotation {
            /// All of them, in the order of their documentation.
            pub const ALL: &[Self] = &[$(Self::$id),*];

            /// The annotation's key on an object.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$id => concat!("plimsoll.dev/", $name),)*
                }
            }
        }
    };
}

annotations! {
    /// The model name that its engines report; marks the object as a variant.
    Model = "model",
    /// The variant's name.
    Variant = "variant",
    /// Other model names that its engines may report in their metrics.
    ModelAliases = "model-aliases",
    /// What one replica costs for an hour.
    Cost = "cost",
    /// Cost of one replica without a discount.
    ListPrice = "list-price",
    /// Factor on the variant's rank for a scarce resource that the model does not need.
    Mismatch = "mismatch",
    /// Time from requesting a replica until it serves.
    StartTime = "start-time",
    /// The kind of accelerator.
    Accelerator = "accelerator",
    /// The part of a request that the variant serves.
    Role = "role",
    /// The port of the metrics URL.
    Port = "port",
    /// The path of the metrics URL.
    Path = "path",
    /// The scheme of a page's URL.
    Scheme = "scheme",
    /// The source of the replicas' metrics.
    Source = "source",
    /// The lower bound of a workload.
    MinReplicas = "min-replicas",
    /// The upper bound of a workload.
    MaxReplicas = "max-replicas",
    /// Accelerators per replica.
    Gpus = "gpus",
    /// True if the model may have no replicas.
    ScaleToZero = "scale-to-zero",
    /// Time that the model must be idle before it is scaled to zero.
    ScaleToZeroAfter = "scale-to-zero-after",
    /// Replicas that are desired whatever the load is, and until when.
    Pin = "pin",
    /// The time until which desired replicas stay as they are.
    Pause = "pause",
}

// === impl AnnotationRules ===

impl AnnotationRules {
    /// The rules without restrictions.
    #[must_use]
    pub fn of(vocabulary: Vocabulary) -> Self {
        Self { vocabulary, allowed: None, gpus_max: Gpus::new(GPUS_MAX), costs: COSTS }
    }

    pub(super) fn allow(&self, annotation: Annotation) -> bool {
        let listed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&annotation));
        listed || annotation == Annotation::Model
    }
}

// === impl AnnotationProblem ===

impl fmt::Display for AnnotationProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { annotation, rule, found } = self;
        write!(f, "annotation {annotation} {rule}")?;
        match found {
            Some(found) => write!(f, "; found {found}"),
            None => Ok(()),
        }
    }
}

/// Returns the problem of an annotation without a value to show.
pub(super) fn missing(annotation: &str, rule: &str) -> AnnotationProblem {
    AnnotationProblem { annotation: annotation.to_owned(), rule: rule.to_owned(), found: None }
}
