//! Objects of the cluster whose annotations may declare a variant.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::collect::cluster::discovery::annotation::{
    Annotation, PREFIX, Vocabulary, WVA_COST, WVA_MANAGED, WVA_MODEL,
};
use crate::collect::cluster::target::WantedTarget;

/// An object of the cluster, as events refer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its API version, such as `autoscaling/v2`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, which differs from that of another object with the same name; `None` until the API
    /// server has assigned one.
    pub uid: Option<String>,
}

/// The role of an object for a variant. If two objects share one target, the lesser value is in
/// effect. Scalers come before workloads because they define the bounds, and a `ScaledObject` comes
/// before the HPA that KEDA creates for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectRole {
    /// A KEDA `ScaledObject`, which scales the target.
    ScaledObject,
    /// An HPA, which scales the target.
    Hpa,
    /// The target itself.
    Workload,
}

/// An object with annotations that may declare a variant.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedObject {
    /// Reference to the object.
    pub object: ObjectRef,
    /// Its role for the variant.
    pub source: ObjectRole,
    /// Its creation time.
    pub created: Option<Timestamp>,
    /// The scale target.
    pub target: WantedTarget,
    /// Its annotations in either vocabulary.
    pub annotations: BTreeMap<String, String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Bytes of an annotation that are kept. No valid value is as long, so a cut one is refused.
const VALUE_MAX: usize = 64 << 10;

// === impl ObjectRef ===

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version: _, kind, namespace, name, uid: _ } = self;
        write!(f, "{kind} {namespace}/{name}")
    }
}

impl ObjectRef {
    /// Returns the reference of an object of this kind.
    pub(crate) fn of(api_version: &str, kind: &str, metadata: &ObjectMeta) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
        }
    }
}

// === impl AnnotatedObject ===

impl AnnotatedObject {
    /// Extracts the relevant parts of an object with annotations in any vocabulary. Returns `None`
    /// for all other objects, which are the bulk of a cluster and are not kept.
    pub(crate) fn new(
        object: ObjectRef,
        source: ObjectRole,
        target: WantedTarget,
        metadata: &ObjectMeta,
    ) -> Option<Self> {
        let written = metadata.annotations.iter().flatten();
        let annotations: BTreeMap<String, String> = written
            .filter(|(key, _)| {
                key.starts_with(PREFIX)
                    || [WVA_MANAGED, WVA_MODEL, WVA_COST].contains(&key.as_str())
            })
            .map(|(key, value)| {
                (key.clone(), value[..value.floor_char_boundary(VALUE_MAX)].to_owned())
            })
            .collect();

        let ours = Annotation::ALL.iter().any(|one| annotations.contains_key(one.name()));
        (ours || annotations.contains_key(WVA_MANAGED)).then(|| Self {
            object,
            source,
            created: metadata.creation_timestamp.as_ref().map(|at| at.0),
            target,
            annotations,
            labels: metadata.labels.clone().unwrap_or_default(),
        })
    }

    /// Returns the vocabulary in which the object declares a variant, even if its annotations are
    /// invalid.
    pub(super) fn speaks(&self, understood: Vocabulary) -> Option<Vocabulary> {
        if self.annotations.contains_key(Annotation::Model.name()) {
            return Some(Vocabulary::Own);
        }
        let managed = self.annotations.get(WVA_MANAGED).is_some_and(|value| value == "true");
        let scaler = self.source != ObjectRole::Workload;
        (understood == Vocabulary::WithWva && managed && scaler).then_some(Vocabulary::WithWva)
    }

    /// Returns true if the object must be read: it declares a variant, or has a Plimsoll
    /// annotation.
    pub(crate) fn concerns(&self, understood: Vocabulary) -> bool {
        let ours = Annotation::ALL.iter().any(|one| self.annotations.contains_key(one.name()));
        ours || self.speaks(understood).is_some()
    }

    /// Returns true if the object intends to declare a variant. Removing the annotation that marks
    /// it withdraws the declaration, which is not an error.
    pub(crate) fn declares(&self, understood: Vocabulary) -> bool {
        self.speaks(understood).is_some()
    }
}
