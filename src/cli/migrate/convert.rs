//! HPAs and `ScaledObject`s of the three sources, turned into those that follow Plimsoll.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::cli::migrate::migration::{EngineWorkloads, Migration};
use crate::cli::migrate::object::{Manifest, TargetName, text};
use crate::cli::migrate::scaler::{
    METRIC, WVA_METRIC, follow_as_hpa, follow_as_scaled_object, model_in_metrics, reads_engine,
};
use plimsoll_core::analyze::engine_args::served_model;
use plimsoll_core::fleet::names::{is_model_name, is_variant_name};
use plimsoll_core::observe::engine::Engine;
use plimsoll_daemon::collect::cluster::pod_template;

/// The label of every object that KEDA creates for a `ScaledObject`.
const MADE_BY_KEDA: &str = "scaledobject.keda.sh/name";

/// The annotations of both vocabularies.
const MODEL: &str = "plimsoll.dev/model";
const VARIANT: &str = "plimsoll.dev/variant";
const COST: &str = "plimsoll.dev/cost";
const PORT: &str = "plimsoll.dev/port";
const WVA_MANAGED: &str = "llm-d.ai/managed";
const WVA_MODEL: &str = "llm-d.ai/model-id";

/// The default port of a replica's metrics.
const PORT_DEFAULT: u16 = 8000;

/// Returns the engines among these objects, with the models that they serve.
pub(super) fn workloads(objects: &[Manifest]) -> EngineWorkloads {
    let kinds = ["Deployment", "StatefulSet", "LeaderWorkerSet"];
    let mut workloads = EngineWorkloads::new();

    for object in objects.iter().filter(|object| kinds.contains(&object.kind())) {
        let read = serde_json::from_value::<DynamicObject>(object.value.clone()).ok();
        let template = read.as_ref().and_then(pod_template);
        let served = template.and_then(|template| served_model(&template.containers));
        workloads.extend(served.map(|served| (object.as_target(), served)));
    }

    workloads
}

/// Returns the objects of a kind that people wrote, and not KEDA.
fn scalers<'a>(objects: &'a [Manifest], kind: &'a str) -> impl Iterator<Item = &'a Manifest> {
    objects.iter().filter(move |it| it.kind() == kind && it.label(MADE_BY_KEDA).is_none())
}

fn is_managed(object: &Manifest) -> bool {
    object.annotation(WVA_MANAGED) == Some("true")
}

/// Returns the targets of all `ScaledObject`s, which precede HPAs.
fn scaled(objects: &[Manifest]) -> BTreeMap<TargetName, String> {
    let scaled = scalers(objects, "ScaledObject");
    scaled.filter_map(|it| Some((it.target()?, it.label_text()))).collect()
}

/// Migrates HPAs that read metrics of engines, or whose targets are engines.
pub(super) fn hpas(objects: &[Manifest], migration: &mut Migration) {
    convert(objects, "HorizontalPodAutoscaler", migration);
    migration.differs(
        "an HPA scales by the ratio of a metric to its target; Plimsoll's default analyzer, \
         foresight, learns the capacity of each variant and asks for the replicas that keep the \
         time to first token below 2 s and between tokens below 100 ms: set capacity.slo to yours",
    );

    migration.differs(
        "a cluster has one provider of external metrics: if another one, such as the \
         prometheus-adapter or KEDA, serves other HPAs, read docs/external-metrics.md first",
    );
}

/// Migrates `ScaledObject`s that read metrics of engines, or whose targets are engines.
pub(super) fn scaled_objects(objects: &[Manifest], migration: &mut Migration) {
    convert(objects, "ScaledObject", migration);
    migration.differs(
        "a trigger scales by the ratio of a metric to its threshold; Plimsoll's default analyzer, \
         foresight, learns the capacity of each variant and asks for the replicas that keep the \
         time to first token below 2 s and between tokens below 100 ms: set capacity.slo to yours",
    );

    migration.differs(
        "the triggers read the gauge plimsoll_desired_replicas: the Prometheus must scrape Plimsoll \
         with honorLabels: true (docs/keda.md)",
    );
}

fn convert(objects: &[Manifest], kind: &str, migration: &mut Migration) {
    let engines = workloads(objects);
    let owners = scaled(objects);
    let mut taken: BTreeMap<TargetName, String> = BTreeMap::new();

    for object in scalers(objects, kind) {
        let Some(target) = object.target() else {
            migration.skip(object, "has no spec.scaleTargetRef");
            continue;
        };
        let served = engines.get(&target);

        if is_managed(object) {
            migration.skip(object, "is managed by WVA: plimsoll migrate wva migrates it");
        } else if follows_already(object) {
            migration.skip(object, "follows Plimsoll already");
        } else if let Some(owner) = owners.get(&target).filter(|_| kind != "ScaledObject") {
            let why = format!("{owner} scales the same target: plimsoll migrate keda migrates it");
            migration.skip(object, why);
        } else if let Some(owner) = taken.get(&target) {
            migration.skip(object, format!("{owner} scales the same target already"));
        } else if served.is_none() && !reads_engine(object) {
            let why = format!(
                "reads no metric of an engine, and its target is not among the objects as a \
                 workload that runs {}",
                Engine::choice()
            );
            migration.skip(object, why);
        } else {
            taken.insert(target.clone(), object.label_text());
            let written = object.annotation(MODEL).map(str::to_owned);
            let model = written
                .or_else(|| served.and_then(|it| it.model.clone()))
                .or_else(|| model_in_metrics(object))
                .filter(|model| is_model_name(model));
            let Some(model) = model else {
                let why = format!(
                    "has no known model: annotate it with {MODEL}, or add its {} to the objects",
                    target.kind
                );
                migration.skip(object, why);
                continue;
            };

            let mut manifest = object.clone();
            annotate(&mut manifest.value, MODEL, &model);

            if let Some(port) = served.and_then(|it| it.port).filter(|port| *port != PORT_DEFAULT) {
                annotate(&mut manifest.value, PORT, &port.to_string());
            }
            let variant = object.annotation(VARIANT).unwrap_or(&target.name);
            follow(object, manifest, variant, &model, migration);
        }
    }
}

/// Points an object at the desired replicas of its variant.
fn follow(
    before: &Manifest,
    mut after: Manifest,
    variant: &str,
    model: &str,
    migration: &mut Migration,
) {
    if !is_variant_name(variant) {
        let why = format!("{variant} cannot name a variant: annotate it with {VARIANT}");

        return migration.skip(before, why);
    }

    if after.value.pointer("/metadata/ownerReferences").is_some() {
        migration.differs_in(before, "belongs to another object, which may write it again");
    }

    if after.kind() == "ScaledObject" {
        if let Err(why) = follow_as_scaled_object(&mut after, variant, migration) {
            return migration.skip(before, why);
        }
    } else {
        follow_as_hpa(&mut after, variant, migration);
    }
    migration.add(after, model);
}

/// Migrates the variants of the Workload Variant Autoscaler: annotated objects, and the
/// `VariantAutoscaling`s of its older releases.
pub(super) fn variants(objects: &[Manifest], migration: &mut Migration) {
    let owners = scaled(objects);
    let mut taken: BTreeSet<TargetName> = BTreeSet::new();

    for kind in ["ScaledObject", "HorizontalPodAutoscaler"] {
        for object in scalers(objects, kind).filter(|object| is_managed(object)) {
            let Some(target) = object.target() else { continue };

            if let Some(owner) = owners.get(&target).filter(|_| kind != "ScaledObject") {
                migration.skip(object, format!("{owner} scales the same target"));
                continue;
            }
            migration.wva = true;
            taken.insert(target);
            managed(object, migration);
        }
    }

    for older in objects.iter().filter(|object| object.kind() == "VariantAutoscaling") {
        if older.target().is_none_or(|target| taken.insert(target)) {
            variant_autoscaling(older, objects, migration);
        } else {
            migration.skip(older, "an annotated object declares the same target");
        }
    }
}

/// Migrates an annotated object. Its annotations stay, so that the way back is short.
fn managed(object: &Manifest, migration: &mut Migration) {
    let Some(model) = object.annotation(WVA_MODEL).filter(|model| is_model_name(model)) else {
        let why = format!("has no {WVA_MODEL} that names a model, and WVA also ignores it");

        return migration.skip(object, why);
    };

    if let Some(named) = selected(object).filter(|named| *named != object.name()) {
        let text = format!(
            "its metric selects variant_name {named}, but WVA names the variant {} after the \
             object: without another object of that name, WVA never set its replicas",
            object.name()
        );
        migration.differs_in(object, text);
    }

    if !reads_wva(object) {
        let text =
            "does not read wva_desired_replicas, so it did not follow WVA; now it follows Plimsoll";
        migration.differs_in(object, text);
    }
    let variant = object.annotation(VARIANT).unwrap_or(object.name());
    follow(object, object.clone(), variant, model, migration);
}

/// Migrates a `VariantAutoscaling`, with the HPA or `ScaledObject` that follows it. Without one,
/// the variant is in the configuration.
fn variant_autoscaling(older: &Manifest, objects: &[Manifest], migration: &mut Migration) {
    let Some(model) = text(&older.value, "/spec/modelID").filter(|model| is_model_name(model))
    else {
        return migration.skip(older, "has no spec.modelID that names a model");
    };
    let cost = text(&older.value, "/spec/variantCost").unwrap_or("10.0");
    let target = older.target();
    let follower = ["ScaledObject", "HorizontalPodAutoscaler"].iter().find_map(|kind| {
        let mut same = scalers(objects, kind).filter(|it| it.namespace == older.namespace);
        same.find(|it| {
            selected(it) == Some(older.name()) || (target.is_some() && it.target() == target)
        })
    });

    if let Some(follower) = follower {
        let mut manifest = follower.clone();

        for (name, value) in [(MODEL, model), (VARIANT, older.name()), (COST, cost)] {
            annotate(&mut manifest.value, name, value);
        }

        for field in ["minReplicas", "maxReplicas"] {
            let own = older.value.pointer(&format!("/spec/{field}"));
            let of_follower = follower.value.pointer(&format!("/spec/{field}"));

            if let Some(own) = own.filter(|own| Some(*own) != of_follower) {
                let text = format!(
                    "its {field} {own} no longer counts: the bounds are those of {}",
                    follower.label_text()
                );
                migration.differs_in(older, text);
            }
        }
        return follow(follower, manifest, older.name(), model, migration);
    }

    let Some(target) = target.filter(|_| is_variant_name(older.name())) else {
        let why = "has no spec.scaleTargetRef, and no HPA or ScaledObject follows it";

        return migration.skip(older, why);
    };
    migration.differs_in(
        older,
        format!(
            "no HPA or ScaledObject follows it: {} {} keeps its replicas until one does",
            target.kind, target.name
        ),
    );
    migration.models.insert((model.to_owned(), older.namespace.clone()));
    migration.variants.push(declared(older, model, cost, &target));
}

/// The variant of a `VariantAutoscaling` in the configuration.
fn declared(older: &Manifest, model: &str, cost: &str, target: &TargetName) -> Value {
    let version = text(&older.value, "/spec/scaleTargetRef/apiVersion");
    let default =
        if target.kind == "LeaderWorkerSet" { "leaderworkerset.x-k8s.io/v1" } else { "apps/v1" };
    let mut variant = json!({
        "name": older.name(),
        "namespace": older.namespace,
        "model": model,
        "cost": cost.parse::<f64>().unwrap_or(10.0),
    });

    if let Some(accelerator) = older.label("inference.optimization/acceleratorName") {
        variant["accelerator"] = json!(accelerator);
    }
    let bounds: Vec<(&str, &Value)> = [("min", "/spec/minReplicas"), ("max", "/spec/maxReplicas")]
        .into_iter()
        .filter_map(|(key, path)| Some((key, older.value.pointer(path)?)))
        .collect();
    for (key, bound) in bounds {
        variant["replicas"][key] = bound.clone();
    }
    variant["targets"] = json!({"scale_target": {
        "api_version": version.unwrap_or(default), "kind": target.kind, "name": target.name,
    }});
    variant
}

/// Returns the variant that an object's metric selects by WVA's label.
fn selected(object: &Manifest) -> Option<&str> {
    let metrics = object.value.pointer("/spec/metrics").and_then(Value::as_array);
    let labels = metrics
        .into_iter()
        .flatten()
        .find_map(|metric| text(metric, "/external/metric/selector/matchLabels/variant_name"));
    let triggers = object.value.pointer("/spec/triggers").and_then(Value::as_array);
    labels.or_else(|| {
        triggers.into_iter().flatten().find_map(|trigger| {
            let (_, after) = text(trigger, "/metadata/query")?.split_once("variant_name=\"")?;

            Some(after.split_once('"')?.0)
        })
    })
}

fn reads_wva(object: &Manifest) -> bool {
    names(object, WVA_METRIC)
}

fn follows_already(object: &Manifest) -> bool {
    names(object, METRIC)
}

/// Returns true if an object's metrics or triggers name this metric.
fn names(object: &Manifest, metric: &str) -> bool {
    let parts = ["/spec/metrics", "/spec/triggers"];
    parts.iter().any(|path| {
        object.value.pointer(path).is_some_and(|part| part.to_string().contains(metric))
    })
}

/// Sets an annotation.
fn annotate(object: &mut Value, name: &str, value: &str) {
    let annotations = &mut object["metadata"]["annotations"];

    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[name] = json!(value);
}
