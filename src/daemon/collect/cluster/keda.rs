//! KEDA's `ScaledObject`s: their bounds, and their pauses.
//!
//! KEDA creates an HPA for each `ScaledObject`. The HPA's bounds differ: its minimum is 1 if the
//! `ScaledObject`'s is 0, because KEDA's operator itself scales between 0 and 1. Plimsoll therefore
//! reads the `ScaledObject`'s bounds and ignores its HPA's.
//!
//! # Shape
//!
//! `keda.sh/v1alpha1`: `spec.scaleTargetRef` (`apiVersion` default `apps/v1`, `kind` default
//! `Deployment`, `name`), `spec.minReplicaCount` (default 0), `spec.maxReplicaCount` (default 100),
//! `spec.idleReplicaCount`; the annotations [`PAUSED`] and [`PAUSED_REPLICAS`].
//!
//! # Source
//!
//! KEDA 2.21, `apis/keda/v1alpha1/scaledobject_types.go`.

use kube::api::DynamicObject;
use serde_json::Value;

use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::target::{WantedTarget, group_of};
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Replicas;

/// The API version of `ScaledObject`s.
pub(crate) const API_VERSION: &str = "keda.sh/v1alpha1";
/// The kind of `ScaledObject`s.
pub(crate) const KIND: &str = "ScaledObject";

/// The label, on every object that KEDA creates for a `ScaledObject`, with the latter's name.
pub(crate) const MADE_FOR: &str = "scaledobject.keda.sh/name";

/// Pauses scaling at the current replicas, unless it is false.
const PAUSED: &str = "autoscaling.keda.sh/paused";
/// Scales to this many replicas and pauses there.
const PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";

/// KEDA's defaults.
const MIN: u32 = 0;
const MAX: u32 = 100;

/// The relevant parts of a `ScaledObject`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScaledObject {
    /// The group of the object that it scales.
    pub(crate) group: String,
    /// The kind of the object that it scales.
    pub(crate) kind: String,
    /// The name of the object that it scales.
    pub(crate) target: String,
    /// The pause in effect, if any.
    pub(crate) paused: Option<ScaledObjectPause>,
    /// Its annotations, if it may declare a variant.
    pub(crate) marked: Option<AnnotatedObject>,
    bounds: Option<Bounds>,
    idle: Option<Replicas>,
}

/// The kind of a `ScaledObject`'s pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScaledObjectPause {
    /// At the current replicas.
    AsItIs,
    /// At these replicas.
    At(Replicas),
}

// === impl ScaledObject ===

impl ScaledObject {
    /// Reads the object; `None` if it has no scale target, which the API server does not accept.
    pub(crate) fn new(object: &DynamicObject) -> Option<Self> {
        let spec = object.data.get("spec")?;
        let reference = spec.get("scaleTargetRef")?;
        let api_version = text(reference, "apiVersion", "apps/v1");
        let kind = text(reference, "kind", "Deployment");
        let target = reference.get("name").and_then(Value::as_str)?.to_owned();
        let min = count(spec, "minReplicaCount").unwrap_or(Replicas::saturating(MIN));
        let max = count(spec, "maxReplicaCount").unwrap_or(Replicas::saturating(MAX));

        let wanted = WantedTarget::Scale {
            api_version: api_version.clone(),
            kind: kind.clone(),
            name: target.clone(),
        };
        let reference = ObjectRef::of(API_VERSION, KIND, &object.metadata);

        Some(Self {
            group: group_of(&api_version).to_owned(),
            kind,
            target,
            paused: paused(object),
            marked: AnnotatedObject::new(
                reference,
                ObjectRole::ScaledObject,
                wanted,
                &object.metadata,
            ),
            bounds: Bounds::new(min, Some(max)),
            idle: count(spec, "idleReplicaCount"),
        })
    }

    /// Returns the bounds for a target with this many wanted replicas; `None` if the object
    /// contradicts itself.
    ///
    /// A `ScaledObject` with an idle count scales to it, below its minimum, while no trigger is
    /// active. At that count the minimum does not apply. Otherwise it alone would raise the desired
    /// replicas and wake the target.
    pub(crate) fn bounds(&self, wanted: Replicas) -> Option<Bounds> {
        let bounds = self.bounds?;
        match self.idle {
            Some(idle) if wanted <= idle => Bounds::new(idle.min(bounds.min()), bounds.max()),
            Some(_) | None => Some(bounds),
        }
    }
}

fn text(reference: &Value, key: &str, default: &str) -> String {
    let written = reference.get(key).and_then(Value::as_str);
    written.filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
}

fn count(spec: &Value, key: &str) -> Option<Replicas> {
    let written = spec.get(key).and_then(Value::as_u64)?;
    Some(Replicas::saturating(u32::try_from(written).unwrap_or(u32::MAX)))
}

fn paused(object: &DynamicObject) -> Option<ScaledObjectPause> {
    let annotations = object.metadata.annotations.as_ref()?;
    if let Some(count) = annotations.get(PAUSED_REPLICAS) {
        // If the count is not a number, KEDA ignores it but still pauses.
        let replicas = count.parse().ok().map(Replicas::saturating);
        return Some(replicas.map_or(ScaledObjectPause::AsItIs, ScaledObjectPause::At));
    }

    let paused = annotations.get(PAUSED)?;
    (!matches!(paused.as_str(), "0" | "f" | "F" | "false" | "False" | "FALSE"))
        .then_some(ScaledObjectPause::AsItIs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: &Value, annotations: &Value) -> Option<ScaledObject> {
        let object = json!({
            "apiVersion": API_VERSION, "kind": KIND,
            "metadata": {"name": "llama", "namespace": "shop", "annotations": annotations},
            "spec": spec,
        });
        ScaledObject::new(&serde_json::from_value(object).unwrap())
    }

    fn bounds(min: u32, max: u32) -> Option<Bounds> {
        Bounds::new(Replicas::saturating(min), Some(Replicas::saturating(max)))
    }

    #[test]
    fn what_is_not_written_is_what_keda_takes() {
        let object = read(&json!({"scaleTargetRef": {"name": "llama"}}), &json!({})).unwrap();
        assert_eq!((object.group.as_str(), object.kind.as_str()), ("apps", "Deployment"));
        assert_eq!(object.bounds(Replicas::ONE), bounds(0, 100));
        assert_eq!((object.paused, object.marked), (None, None));
        assert_eq!(read(&json!({}), &json!({})), None);
    }

    #[test]
    fn the_minimum_holds_unless_the_target_is_idle() {
        for (spec, wanted, held) in [
            (json!({"minReplicaCount": 2, "maxReplicaCount": 8}), 0, bounds(2, 8)),
            (json!({"minReplicaCount": 2, "maxReplicaCount": 8}), 5, bounds(2, 8)),
            (json!({"minReplicaCount": 2, "idleReplicaCount": 0}), 0, bounds(0, 100)),
            (json!({"minReplicaCount": 2, "idleReplicaCount": 0}), 1, bounds(2, 100)),
            (json!({"minReplicaCount": 9, "maxReplicaCount": 8}), 1, None),
        ] {
            let mut whole = spec.clone();
            whole["scaleTargetRef"] = json!({"name": "llama"});
            let object = read(&whole, &json!({})).unwrap();
            assert_eq!(object.bounds(Replicas::saturating(wanted)), held, "{spec} at {wanted}");
        }
    }

    #[test]
    fn a_paused_object_is_known() {
        for (annotations, paused) in [
            (json!({}), None),
            (json!({"autoscaling.keda.sh/paused": "true"}), Some(ScaledObjectPause::AsItIs)),
            (json!({"autoscaling.keda.sh/paused": "false"}), None),
            (
                json!({"autoscaling.keda.sh/paused-replicas": "3"}),
                Some(ScaledObjectPause::At(Replicas::saturating(3))),
            ),
            (
                json!({"autoscaling.keda.sh/paused-replicas": "0",
                       "autoscaling.keda.sh/paused": "false"}),
                Some(ScaledObjectPause::At(Replicas::ZERO)),
            ),
        ] {
            let spec = json!({"scaleTargetRef": {"name": "llama"}});
            assert_eq!(read(&spec, &annotations).unwrap().paused, paused, "{annotations}");
        }
    }
}
