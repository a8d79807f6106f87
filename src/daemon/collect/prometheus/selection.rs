//! The series to query for each variant: the labels to match, and the replicas found.

use std::collections::BTreeMap;

use jiff::Timestamp;

use plimsoll_core::fleet::names::{PROMETHEUS_LABEL, is_prometheus_label};
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};
use plimsoll_core::settings;
use plimsoll_core::settings::{TextRule, text};

settings! {
    /// The labels by which replicas are found.
    // The defaults are the names that the Prometheus Operator gives.
    #[derive(Eq)]
    pub struct LabelNames {
        /// The namespace of a pod.
        namespace: String = "namespace", in LABELS;

        /// The name of a pod.
        pod: String = "pod", in LABELS;

        /// The address that was scraped.
        instance: String = "instance", in LABELS;
    }
}

/// Label names that are valid in series selectors.
const LABELS: TextRule = text(is_prometheus_label, PROMETHEUS_LABEL);

/// A variant whose replicas are queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantQuery {
    /// The variant.
    pub variant: VariantKey,
    /// The names that its metrics may give its model; if empty, any name is accepted.
    pub models: Vec<ModelName>,
    /// Selects the series of its replicas.
    pub which: SeriesSelection,
}

/// Selects the series of a variant's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesSelection {
    /// The series of these pods, in the variant's namespace.
    Pods(Vec<ReplicaKey>),
    /// The series of these instances.
    Instances(Vec<ReplicaKey>),
    /// The series with these labels. Each instance among them is a replica.
    Match(BTreeMap<String, String>),
}

/// The replicas that a label match found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceList {
    /// The replicas, in order.
    pub replicas: Vec<ReplicaKey>,
    /// The time at which Prometheus last confirmed them.
    pub as_of: Timestamp,
}

/// The replicas of each variant that is matched by labels. Variants without any match have no
/// entry.
pub type Instances = BTreeMap<VariantKey, InstanceList>;
