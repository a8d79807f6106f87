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
//! `spec.idleReplicaCount`, `spec.fallback`, `spec.triggers`, `spec.advanced.scalingModifiers`; the
//! annotations [`PAUSED`], [`PAUSED_REPLICAS`], [`PAUSED_SCALE_IN`] and [`PAUSED_SCALE_OUT`].
//!
//! # Source
//!
//! KEDA 2.21, `apis/keda/v1alpha1/scaledobject_types.go`, and for errors
//! `pkg/scaling/executor/scale_scaledobjects.go`.

pub(crate) mod fault;
mod triggers;

use kube::api::DynamicObject;
use serde_json::Value;

use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::keda::fault::ScaledObjectFault;
use crate::collect::cluster::keda::triggers::{Trigger, is_false, triggers};
use crate::collect::cluster::target::{WantedTarget, group_of};
use plimsoll_core::fleet::{Bounds, VariantKey};
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
/// Keeps KEDA from scaling in, unless it is false.
const PAUSED_SCALE_IN: &str = "autoscaling.keda.sh/paused-scale-in";
/// Keeps KEDA from scaling out, unless it is false.
const PAUSED_SCALE_OUT: &str = "autoscaling.keda.sh/paused-scale-out";

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
    triggers: Vec<Trigger>,
    /// Its problems whatever its triggers are.
    faults: Vec<ScaledObjectFault>,
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
            triggers: triggers(spec),
            faults: faults(object, spec, min, max),
        })
    }

    /// Returns true if a trigger reads the desired replicas of this variant.
    pub(crate) fn reads(&self, variant: &VariantKey) -> bool {
        self.triggers.iter().any(|trigger| trigger.reads(variant))
    }

    /// Returns the problems that keep KEDA from following this variant's desired replicas; none if
    /// no trigger reads them.
    pub(crate) fn faults(&self, variant: &VariantKey) -> Vec<ScaledObjectFault> {
        let reading = self.triggers.iter().filter(|trigger| trigger.reads(variant));
        let mut faults: Vec<ScaledObjectFault> = reading.flat_map(Trigger::faults).collect();
        if self.reads(variant) {
            faults.extend(self.faults.iter().cloned());
        }

        faults
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
    spec.get(key).and_then(Value::as_u64).map(Replicas::capped)
}

fn paused(object: &DynamicObject) -> Option<ScaledObjectPause> {
    let annotations = object.metadata.annotations.as_ref()?;
    if let Some(count) = annotations.get(PAUSED_REPLICAS) {
        // If the count is not a number, KEDA ignores it but still pauses.
        let replicas = count.parse().ok().map(Replicas::saturating);
        return Some(replicas.map_or(ScaledObjectPause::AsItIs, ScaledObjectPause::At));
    }

    is_set(object, PAUSED).then_some(ScaledObjectPause::AsItIs)
}

/// Returns true if the object has an annotation whose value is not false.
fn is_set(object: &DynamicObject, annotation: &str) -> bool {
    let value = object.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
    value.is_some_and(|value| !is_false(value))
}

/// Returns the problems of an object whatever its triggers are.
fn faults(
    object: &DynamicObject,
    spec: &Value,
    min: Replicas,
    max: Replicas,
) -> Vec<ScaledObjectFault> {
    let of_errors = spec.get("fallback").and_then(|it| fallback(it, min, max));
    let modifiers = spec.pointer("/advanced/scalingModifiers/formula").and_then(Value::as_str);
    let modified = modifiers.filter(|formula| !formula.is_empty());

    [
        of_errors,
        modified.map(|_| ScaledObjectFault::ScalingModifiers),
        is_set(object, PAUSED_SCALE_IN).then_some(ScaledObjectFault::ScaleInPaused),
        is_set(object, PAUSED_SCALE_OUT).then_some(ScaledObjectFault::ScaleOutPaused),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the problem of a fallback, which an error of a trigger causes.
fn fallback(written: &Value, min: Replicas, max: Replicas) -> Option<ScaledObjectFault> {
    let replicas = count(written, "replicas").unwrap_or(Replicas::ZERO);
    if replicas == Replicas::ZERO && min == Replicas::ZERO {
        return Some(ScaledObjectFault::FallbackToZero);
    }

    let behavior = text(written, "behavior", "static");
    let lowers = match behavior.as_str() {
        "static" => replicas < max,
        "currentReplicasIfLower" => true,
        _ => false,
    };
    lowers.then_some(ScaledObjectFault::FallbackLowers { replicas, behavior })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

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

    /// The problems of a `ScaledObject` for the variant `shop/llama`.
    fn faults(spec: &Value, annotations: &Value) -> Vec<String> {
        let mut whole = json!({"scaleTargetRef": {"name": "llama"}, "minReplicaCount": 1});
        let entries = spec.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(entries);
        let object = read(&whole, annotations).unwrap();
        object.faults(&variant("llama")).iter().map(ToString::to_string).collect()
    }

    fn variant(name: &str) -> VariantKey {
        fixtures::variant(name).key
    }

    fn prometheus(change: impl FnOnce(&mut Value)) -> Value {
        let mut trigger = json!({"type": "prometheus", "metricType": "AverageValue", "metadata": {
            "query": "max(plimsoll_desired_replicas{namespace=\"shop\",variant=\"llama\"})",
            "threshold": "1", "ignoreNullValues": "false"}});
        change(&mut trigger);
        json!({"triggers": [{"type": "cron", "metadata": {}}, trigger]})
    }

    fn metrics_api(change: impl FnOnce(&mut Value)) -> Value {
        let mut trigger = json!({"type": "metrics-api", "metadata": {
            "url": "http://plimsoll-metrics:8080/api/v1/desired?namespace=shop&variant=llama",
            "valueLocation": "replicas", "targetValue": "1"}});
        change(&mut trigger);
        json!({"triggers": [trigger]})
    }

    fn external(change: impl FnOnce(&mut Value)) -> Value {
        let mut trigger = json!({"type": "external-push", "metadata": {
            "scalerAddress": "dns:///plimsoll-keda.scaling:6444", "variant": "llama"}});
        change(&mut trigger);
        json!({"triggers": [trigger]})
    }

    #[test]
    fn each_kind_of_trigger_that_reads_the_variant_is_recognized_and_others_are_not() {
        for (spec, reads) in [
            (prometheus(|_| ()), true),
            (metrics_api(|_| ()), true),
            (external(|_| ()), true),
            (external(|it| it["type"] = "external".into()), true),
            (prometheus(|it| it["metadata"]["query"] = "sum(http_requests)".into()), false),
            (
                prometheus(|it| {
                    it["metadata"]["query"] = "plimsoll_desired_replicas{variant=\"b\"}".into();
                }),
                false,
            ),
            (prometheus(|it| it["metadata"]["query"] = "sum(wva_desired_replicas)".into()), true),
            (metrics_api(|it| it["metadata"]["url"] = "http://queue/depth?a=b".into()), false),
            (
                metrics_api(|it| {
                    let url = "http://p/api/v1/desired?namespace=lab&variant=llama";
                    it["metadata"]["url"] = url.into();
                }),
                false,
            ),
            (external(|it| it["metadata"]["variant"] = "mistral".into()), false),
            (external(|it| it["type"] = "kafka".into()), false),
        ] {
            let mut whole = spec.clone();
            whole["scaleTargetRef"] = json!({"name": "llama"});
            let object = read(&whole, &json!({})).unwrap();
            assert_eq!(object.reads(&variant("llama")), reads, "{spec}");
            let fallback = json!({"failureThreshold": 3, "replicas": 0});
            whole["fallback"] = fallback;
            let faults = read(&whole, &json!({})).unwrap().faults(&variant("llama"));
            assert_eq!(!faults.is_empty(), reads, "only one that reads us is judged: {spec}");
        }
    }

    #[test]
    fn each_setting_that_keeps_keda_from_following_is_found_with_its_remedy() {
        let no = || json!({});
        for (spec, annotations, says) in [
            (prometheus(|_| ()), no(), ""),
            (metrics_api(|_| ()), no(), ""),
            (external(|_| ()), no(), ""),
            (
                prometheus(|it| it["metadata"]["ignoreNullValues"] = Value::Null),
                no(),
                "trigger 1 (prometheus) takes a query without a result for 0: set \
                 ignoreNullValues to \"false\"",
            ),
            (
                prometheus(|it| it["metadata"]["threshold"] = "5".into()),
                no(),
                "trigger 1 (prometheus) divides desired replicas by 5: set threshold",
            ),
            (
                metrics_api(|it| it["metadata"]["targetValue"] = Value::Null),
                no(),
                "trigger 0 (metrics-api) divides desired replicas by nothing: set targetValue",
            ),
            (
                metrics_api(|it| it["metadata"]["activationTargetValue"] = "1".into()),
                no(),
                "takes up to 1 desired replicas for inactivity",
            ),
            (
                metrics_api(|it| it["metadata"]["valueLocation"] = "age_seconds".into()),
                no(),
                "reads age_seconds: set valueLocation to \"replicas\"",
            ),
            (external(|it| it["metricType"] = "Value".into()), no(), "has the metric type Value"),
            (
                external(|it| it["metadata"]["metricType"] = "AverageValue".into()),
                no(),
                "below metadata, where KEDA ignores it",
            ),
            (
                external(|_| ()),
                json!({"autoscaling.keda.sh/paused-scale-in": "true"}),
                "keeps KEDA from scaling in",
            ),
            (
                external(|_| ()),
                json!({"autoscaling.keda.sh/paused-scale-out": ""}),
                "keeps KEDA from scaling out",
            ),
            (external(|_| ()), json!({"autoscaling.keda.sh/paused-scale-in": "false"}), ""),
        ] {
            let found = faults(&spec, &annotations);
            assert_eq!(found.len(), usize::from(!says.is_empty()), "{spec}: {found:?}");
            assert!(found.iter().all(|found| found.contains(says)), "{says}: {found:?}");
        }
    }

    #[test]
    fn a_fallback_that_can_remove_replicas_on_an_error_is_found() {
        let fallback = |min: u32, replicas: u32, behavior: &str| {
            let mut spec = external(|_| ());
            spec["minReplicaCount"] = min.into();
            spec["maxReplicaCount"] = 8.into();
            spec["fallback"] =
                json!({"failureThreshold": 3, "replicas": replicas, "behavior": behavior});
            faults(&spec, &json!({})).join("; ")
        };

        for behavior in ["static", "currentReplicas", "currentReplicasIfHigher"] {
            let found = fallback(0, 0, behavior);
            assert!(found.contains("scales the target to 0 on an error"), "{behavior}: {found}");
        }
        assert!(fallback(1, 2, "").contains("behavior static can remove replicas"));
        assert!(fallback(1, 2, "currentReplicasIfLower").contains("down to 2"));
        assert_eq!(fallback(1, 8, "static"), "", "as many as there may be");
        assert_eq!(fallback(0, 1, "currentReplicasIfHigher"), "");
        assert_eq!(fallback(1, 0, "currentReplicas"), "");

        let mut spec = external(|_| ());
        spec["advanced"] = json!({"scalingModifiers": {"formula": "a + b", "target": "1"}});
        assert!(faults(&spec, &json!({}))[0].contains("by a formula"));
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
