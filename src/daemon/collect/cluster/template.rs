//! Pod templates: the parts of a scale target's template that Plimsoll keeps.
//!
//! A workload's object defines its pods in one of two places. Deployments, `StatefulSet`s and most
//! kinds with a scale subresource use `spec.template`. A `LeaderWorkerSet` uses
//! `spec.leaderWorkerTemplate`, with one template for a group's leader and one for its workers. An
//! object with a readable template in neither place is still a scale target, but has no template.
//!
//! Most workloads in a cluster are not engines. A template is kept only if it requests accelerators
//! or names an engine. Of a container's variables, only those that its command line refers to are
//! kept.
//!
//! If a command line needs `ConfigMap`s, [`ObjectTemplate`] lists them, and turns into a
//! [`PodTemplate`] once their contents are known.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::collect::cluster::config_maps::{ContainerTemplate, Texts};
use crate::collect::cluster::inventory::resource::{asked, product};
use plimsoll_core::fleet::{Accelerator, Resource};
use plimsoll_core::observe::engine::Engine;
use plimsoll_core::observe::inventory::{ReplicaUnit, UnitSource};
use plimsoll_core::observe::template::{Container, PodTemplate};
use plimsoll_core::units::Gpus;

/// The pod template of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectTemplate {
    /// The template without the contents of `ConfigMap`s.
    bare: Arc<PodTemplate>,
    /// Its containers, if some need `ConfigMap`s; otherwise empty.
    drafts: Vec<ContainerTemplate>,
    maps: BTreeSet<String>,
}

// === impl ObjectTemplate ===

impl ObjectTemplate {
    /// Reads the template of an object of any kind, if it is relevant.
    pub(crate) fn new(object: &DynamicObject) -> Option<Self> {
        let spec = object.data.get("spec")?;
        let group = spec.get("leaderWorkerTemplate");
        let written = group.or_else(|| spec.get("template"))?;
        let (unit, drafts) = match group {
            Some(group) => of_group(group)?,
            None => of_pods(&pod(written)?, None),
        };
        let containers = containers(&drafts, &|_| None);
        let bare = PodTemplate { unit, containers, revision: Some(revision(written)) };
        if !names_engine(&bare) {
            let has_unit = bare.unit.is_some();
            return has_unit.then(|| Self {
                bare: Arc::new(bare),
                drafts: Vec::new(),
                maps: BTreeSet::new(),
            });
        }

        let maps: BTreeSet<String> = drafts.iter().flat_map(ContainerTemplate::maps).collect();
        let kept = if maps.is_empty() { Vec::new() } else { drafts };
        Some(Self { bare: Arc::new(bare), drafts: kept, maps })
    }

    /// The accelerators of one replica, which do not depend on `ConfigMap`s.
    pub(crate) fn unit(&self) -> Option<&ReplicaUnit> {
        self.bare.unit.as_ref()
    }

    /// The `ConfigMap`s that its containers need.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &str> {
        self.maps.iter().map(String::as_str)
    }

    /// Returns the template, completed from these `ConfigMap`s.
    pub(crate) fn template<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Arc<PodTemplate> {
        if self.drafts.is_empty() {
            return Arc::clone(&self.bare);
        }
        let containers = containers(&self.drafts, of);
        Arc::new(PodTemplate { containers, ..PodTemplate::clone(&self.bare) })
    }
}

/// Returns the pod template of an object of any kind, without the contents of `ConfigMap`s. `None`
/// if it requests no accelerators and names no engine.
#[must_use]
pub fn pod_template(object: &DynamicObject) -> Option<Arc<PodTemplate>> {
    ObjectTemplate::new(object).map(|written| written.bare)
}

fn containers<'a>(
    drafts: &[ContainerTemplate],
    of: &dyn Fn(&str) -> Option<&'a Texts>,
) -> Vec<Container> {
    drafts.iter().map(|draft| draft.container(of)).collect()
}

/// Reads a replica that is one pod, or a group of a leader and this number of workers. Returns its
/// accelerators and the leader's containers, which serve the requests.
fn of_pods(
    leader: &core::PodSpec,
    workers: Option<(&core::PodSpec, u32)>,
) -> (Option<ReplicaUnit>, Vec<ContainerTemplate>) {
    let mut takes: BTreeMap<Resource, Gpus> = asked(leader);
    if let Some((worker, number)) = workers {
        for (resource, gpus) in asked(worker) {
            let all = Gpus::new(gpus.count().saturating_mul(number));
            *takes.entry(resource).or_default() += all;
        }
    }

    // A replica that requests several resources is counted by the first, as its pods are.
    let unit = takes.into_iter().find(|(_, gpus)| *gpus > Gpus::ZERO).map(|(resource, gpus)| {
        let product = chosen(&resource, leader).or_else(|| chosen(&resource, workers?.0));
        ReplicaUnit { resource, gpus, product, source: UnitSource::Template }
    });

    (
        unit,
        leader
            .containers
            .iter()
            .map(|container| ContainerTemplate::new(leader, container))
            .collect(),
    )
}

/// Returns the product that a pod's node selector requires.
fn chosen(resource: &Resource, pod: &core::PodSpec) -> Option<Accelerator> {
    product(resource.as_str(), pod.node_selector.as_ref().unwrap_or(&BTreeMap::new()))
}

/// Reads a group of a `LeaderWorkerSet`, whose size includes the leader. Without a template of its
/// own, the leader is like the workers.
fn of_group(group: &Value) -> Option<(Option<ReplicaUnit>, Vec<ContainerTemplate>)> {
    let workers = pod(group.get("workerTemplate")?)?;
    let written = group.get("leaderTemplate").filter(|template| !template.is_null());
    let leader = written.map_or_else(|| Some(workers.clone()), pod)?;
    let size = group.get("size").and_then(Value::as_u64).unwrap_or(1);
    let beside = u32::try_from(size.saturating_sub(1)).ok()?;
    Some(of_pods(&leader, Some((&workers, beside))))
}

/// Reads the pods of a template; `None` if a custom kind has another structure there.
fn pod(template: &Value) -> Option<core::PodSpec> {
    serde_json::from_value(template.get("spec")?.clone()).ok()
}

/// Returns a hash of all that is written in a template. It is the same in each process.
fn revision(template: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    hasher.finish()
}

fn names_engine(template: &PodTemplate) -> bool {
    let mut texts = template.containers.iter().flat_map(|container| {
        std::iter::once(&container.image).chain(&container.command).chain(&container.args)
    });
    texts.any(|text| {
        let lowercase = text.to_ascii_lowercase();
        Engine::ALL.iter().any(|engine| lowercase.contains(engine.label()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn engine(gpus: u32, more: &Value) -> Value {
        let mut container = json!({"name": "engine", "image": "vllm/vllm-openai:v0.11",
                                   "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": {"containers": [container]}})
    }

    /// Returns the template without any `ConfigMap`.
    fn template(object: &DynamicObject) -> Option<Arc<PodTemplate>> {
        ObjectTemplate::new(object).map(|written| written.template(&|_| None))
    }

    fn gpus(spec: &Value) -> Option<u32> {
        let written = ObjectTemplate::new(&object(spec))?;
        assert_eq!(written.unit(), written.template(&|_| None).unit.as_ref());
        written.unit().map(|unit| unit.gpus.count())
    }

    #[test]
    fn a_replica_takes_what_all_its_pods_ask_for() {
        assert_eq!(gpus(&json!({"template": engine(4, &json!({}))})), Some(4));

        let workers = engine(8, &json!({}));
        let alike = json!({"size": 4, "workerTemplate": workers});
        assert_eq!(gpus(&json!({"leaderWorkerTemplate": alike})), Some(32));
        let alone = json!({"workerTemplate": workers});
        assert_eq!(gpus(&json!({"leaderWorkerTemplate": alone})), Some(8));
        let led =
            json!({"size": 3, "workerTemplate": workers, "leaderTemplate": engine(2, &json!({}))});
        assert_eq!(gpus(&json!({"leaderWorkerTemplate": led})), Some(18));
        let idle_leader = json!({"size": 3, "workerTemplate": workers,
                                 "leaderTemplate": {"spec": {"containers": [{"name": "router"}]}}});
        assert_eq!(gpus(&json!({"leaderWorkerTemplate": idle_leader})), Some(16));
    }

    #[test]
    fn a_restart_of_the_rollout_is_another_revision_of_the_same_template() {
        let pod = engine(1, &json!({}));
        let mut restarted = pod.clone();
        restarted["metadata"] =
            json!({"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-11-27T10:00:00Z"}});
        let [before, same, after] = [&pod, &pod, &restarted]
            .map(|pod| template(&object(&json!({"template": pod, "replicas": 2}))).unwrap());
        assert_eq!(before, same);
        assert_ne!(before.revision, after.revision);
        assert_eq!(before.containers, after.containers);
    }

    #[test]
    fn a_partition_and_a_card_of_another_vendor_are_accelerators_too() {
        for resource in ["nvidia.com/mig-1g.10gb", "amd.com/gpu", "habana.ai/gaudi"] {
            let spec = json!({"template": {"spec": {"containers": [
                {"name": "e", "resources": {"requests": {resource: "2"}}}]}}});
            let found = template(&object(&spec)).unwrap();
            let unit = found.unit.as_ref().unwrap();
            assert_eq!((unit.resource.as_str(), unit.gpus.count()), (resource, 2));
        }
    }

    #[test]
    fn a_node_selector_names_the_product_that_a_replica_will_run_on() {
        let mut pod = engine(1, &json!({}));
        pod["spec"]["nodeSelector"] = json!({"nvidia.com/gpu.product": "NVIDIA-L4"});
        let found = template(&object(&json!({"template": pod}))).unwrap();
        assert_eq!(found.unit.as_ref().unwrap().product, Accelerator::new("NVIDIA-L4"));
    }

    #[test]
    fn what_is_no_engine_or_cannot_be_read_has_no_template() {
        let plain = json!({"spec": {"containers": [{"name": "web", "image": "nginx"}]}});
        for spec in [
            json!({"template": plain}),
            json!({"template": {"spec": {"containers": "none"}}}),
            json!({"template": "text"}),
            json!({"leaderWorkerTemplate": {"size": 2}}),
            json!({"leaderWorkerTemplate": {"workerTemplate": {}, "size": -1}}),
            json!({"replicas": 1}),
            json!(null),
        ] {
            assert_eq!(template(&object(&spec)), None, "{spec}");
        }

        let bare: DynamicObject = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert_eq!(template(&bare), None);
    }

    #[test]
    fn of_variables_only_those_are_kept_that_the_command_line_refers_to() {
        let more = json!({
            "command": ["sh", "-c", "vllm serve m --max-num-seqs ${SEQS} --port $PORT"],
            "args": ["--max-model-len", "$(CONTEXT)"],
            "env": [
                {"name": "BASE", "value": "40"},
                {"name": "SEQS", "value": "64"},
                {"name": "PORT", "value": "8000"},
                {"name": "CONTEXT", "value": "$(BASE)96"},
                {"name": "HF_TOKEN", "value": "secret"},
                {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "VLLM_USE_V1", "value": "0"},
            ],
        });

        let found = template(&object(&json!({"template": engine(1, &more)}))).unwrap();
        let kept: Vec<(&str, &str)> = found.containers[0]
            .environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let want = [("CONTEXT", "4096"), ("PORT", "8000"), ("SEQS", "64"), ("VLLM_USE_V1", "0")];
        assert_eq!(kept, want);
    }
}
