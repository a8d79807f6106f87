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

// docs/annotations.md is generated from these comments: meaning, value and default.
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
    ///
    /// Value: up to 512 characters, without `#`, control characters or spaces at the ends.
    /// Default: none.
    Model = "model",
    /// The variant's name.
    ///
    /// Value: up to 63 lower-case letters, digits, `-` or `.`, with a letter or digit at the ends and
    /// next to dots.
    /// Default: the name of the scale target.
    Variant = "variant",
    /// Other model names that its engines may report in their metrics.
    ///
    /// Value: up to 32 names separated by commas.
    /// Default: none.
    ModelAliases = "model-aliases",
    /// The cost of one replica per hour.
    ///
    /// Value: number from 0 to 1e9, moved into `cost_min` to `cost_max` of the configuration.
    /// Default: `1`.
    Cost = "cost",
    /// The cost of one replica per hour without a discount, such as that of spot nodes.
    ///
    /// Value: number from 0 to 1e9, moved into the same range.
    /// Default: the cost.
    ListPrice = "list-price",
    /// The factor on the variant's rank for a scarce resource that the model does not need.
    ///
    /// Value: number from 1 to 1000.
    /// Default: `1`.
    Mismatch = "mismatch",
    /// The time from requesting a replica until it serves, before starts were measured.
    ///
    /// Value: duration from `1s` to `1h`.
    /// Default: `capacity.start_time` of the configuration.
    StartTime = "start-time",
    /// The kind of accelerator.
    ///
    /// Value: text such as `H100`, up to 1024 bytes, without control characters or spaces at the ends.
    /// Default: for limits, the product of its nodes.
    Accelerator = "accelerator",
    /// The part of a request that the variant serves.
    ///
    /// Value: `both`, `prefill` or `decode`.
    /// Default: the label `llm-d.ai/role` of its pods, or `both`.
    Role = "role",
    /// The port of the metrics URL.
    ///
    /// Value: number from 1 to 65535.
    /// Default: `scrape.port` of the configuration.
    Port = "port",
    /// The path of the metrics URL.
    ///
    /// Value: path that starts with `/`, without spaces or `#`.
    /// Default: `scrape.path` of the configuration.
    Path = "path",
    /// The scheme of the metrics URL.
    ///
    /// Value: `http` or `https`.
    /// Default: `scrape.scheme` of the configuration.
    Scheme = "scheme",
    /// The source of the replicas' metrics.
    ///
    /// Value: `scrape`.
    /// Default: Prometheus if the configuration has one, otherwise `scrape`.
    Source = "source",
    /// The lower bound of a workload without an HPA or `ScaledObject`.
    ///
    /// Value: number from 0.
    /// Default: `1`.
    MinReplicas = "min-replicas",
    /// The upper bound of a workload without an HPA or `ScaledObject`.
    ///
    /// Value: number from 1, not below the minimum.
    /// Default: no limit.
    MaxReplicas = "max-replicas",
    /// Accelerators per replica; those of the pod template count if they are more.
    ///
    /// Value: number from 0 to 4096.
    /// Default: those of the pod template.
    Gpus = "gpus",
    /// True if the model may have no replicas.
    ///
    /// Value: `true` or `false`.
    /// Default: `scale_to_zero` of the configuration.
    ScaleToZero = "scale-to-zero",
    /// The time that the model must be idle before it is scaled to zero.
    ///
    /// Value: duration from `10s` to `168h`.
    /// Default: `scale_to_zero.after` of the configuration.
    ScaleToZeroAfter = "scale-to-zero-after",
    /// Replicas that are desired whatever the load is, and until when. It begins to have an effect 7
    /// days before that.
    ///
    /// Value: replicas and an instant, such as `6 until 2026-11-27T06:00:00Z`.
    /// Default: the load decides.
    Pin = "pin",
    /// The time until which desired replicas stay as they are. It begins to have an effect 7 days
    /// before that.
    ///
    /// Value: an instant, such as `until 2026-11-27T06:00:00Z`.
    /// Default: the load decides.
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
