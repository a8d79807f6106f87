//! Pod templates: what is kept of a scale target's.
//!
//! A workload's object has the pods that it will make in one of two places: `spec.template`, as
//! Deployments, `StatefulSet`s and most kinds with a scale subresource do, or
//! `spec.leaderWorkerTemplate`, where a `LeaderWorkerSet` has a template for the leader of a group
//! and one for its workers. Whatever is in neither place, or cannot be read there, has no template,
//! and is a target as before.
//!
//! Most workloads of a cluster are no engines. Of those that neither take accelerators nor name an
//! engine nothing is kept, and of a container's variables only those that its command line refers
//! to: the others are none of our business.
//!
//! Where a command line needs `ConfigMap`s to be read, [`Written`] says which, and is made a
//! [`Template`] with what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::collect::cluster::config_maps::{Draft, Texts};
use crate::collect::cluster::inventory::{asked, product};
use crate::collect::cluster::{ClusterState, VariantState};
use plimsoll_core::fleet::{Resource, VariantKey};
use plimsoll_core::observe::inventory::{Inventory, ReplicaUnit, UnitSource};
use plimsoll_core::observe::template::{Container, Template, Templates};
use plimsoll_core::units::Gpus;

/// What names an engine in an image or on a command line.
const ENGINES: [&str; 2] = ["vllm", "sglang"];

/// What an object says of the pods that it makes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    /// The template without what `ConfigMap`s say.
    bare: Arc<Template>,
    /// Its containers, where some need `ConfigMap`s; none otherwise.
    drafts: Vec<Draft>,
    maps: BTreeSet<String>,
}

// === impl Written ===

impl Written {
    /// What an object of any kind says, if it matters.
    pub(crate) fn new(object: &DynamicObject) -> Option<Self> {
        let spec = object.data.get("spec")?;
        let (unit, drafts) = match spec.get("leaderWorkerTemplate") {
            Some(group) => of_group(group)?,
            None => of_pods(&pod(spec.get("template")?)?, None),
        };
        let bare = Template { unit, containers: containers(&drafts, &|_| None) };
        if !names_engine(&bare) {
            let drafts = Vec::new();
            let (bare, maps) = (Arc::new(bare), BTreeSet::new());
            return bare.unit.is_some().then_some(Self { bare, drafts, maps });
        }
        let maps: BTreeSet<String> = drafts.iter().flat_map(Draft::maps).collect();
        let drafts = if maps.is_empty() { Vec::new() } else { drafts };
        Some(Self { bare: Arc::new(bare), drafts, maps })
    }

    /// What a replica takes, which no `ConfigMap` says.
    pub(crate) fn unit(&self) -> Option<&ReplicaUnit> {
        self.bare.unit.as_ref()
    }

    /// The `ConfigMap`s that its containers need.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &str> {
        self.maps.iter().map(String::as_str)
    }

    /// The template with what these `ConfigMap`s say.
    pub(crate) fn template<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Texts>) -> Arc<Template> {
        if self.drafts.is_empty() {
            return Arc::clone(&self.bare);
        }
        let unit = self.bare.unit.clone();
        Arc::new(Template { unit, containers: containers(&self.drafts, of) })
    }
}

fn containers<'a>(drafts: &[Draft], of: &dyn Fn(&str) -> Option<&'a Texts>) -> Vec<Container> {
    drafts.iter().map(|draft| draft.container(of)).collect()
}

/// A replica that is one pod, or a group with as many workers beside the leader: what it takes, and
/// the containers of the pod that answers.
fn of_pods(
    leader: &core::PodSpec,
    workers: Option<(&core::PodSpec, u32)>,
) -> (Option<ReplicaUnit>, Vec<Draft>) {
    let mut takes: BTreeMap<Resource, Gpus> = asked(leader);
    if let Some((worker, number)) = workers {
        for (resource, gpus) in asked(worker) {
            let all = Gpus::new(gpus.count().saturating_mul(number));
            *takes.entry(resource).or_default() += all;
        }
    }
    // A replica that asks for several resources is counted by the first, as its pods are.
    let unit = takes.into_iter().find(|(_, gpus)| *gpus > Gpus::ZERO).map(|(resource, gpus)| {
        let chosen = |pod: &core::PodSpec| {
            product(resource.as_str(), pod.node_selector.as_ref().unwrap_or(&BTreeMap::new()))
        };
        let product = chosen(leader).or_else(|| chosen(workers?.0));
        ReplicaUnit { resource, gpus, product, source: UnitSource::Template }
    });
    (unit, leader.containers.iter().map(|container| Draft::new(leader, container)).collect())
}

/// A group of a `LeaderWorkerSet`, whose size counts the leader; without a template of its own the
/// leader is like the workers.
fn of_group(group: &Value) -> Option<(Option<ReplicaUnit>, Vec<Draft>)> {
    let workers = pod(group.get("workerTemplate")?)?;
    let leader = group.get("leaderTemplate").filter(|template| !template.is_null());
    let leader = leader.map_or_else(|| Some(workers.clone()), pod)?;
    let size = group.get("size").and_then(Value::as_u64).unwrap_or(1);
    let beside = u32::try_from(size.saturating_sub(1)).ok()?;
    Some(of_pods(&leader, Some((&workers, beside))))
}

/// The pods of a template; `None` where a kind of its own has something else in that place.
fn pod(template: &Value) -> Option<core::PodSpec> {
    serde_json::from_value(template.get("spec")?.clone()).ok()
}

fn names_engine(template: &Template) -> bool {
    let mut texts = template.containers.iter().flat_map(|container| {
        std::iter::once(&container.image).chain(&container.command).chain(&container.args)
    });
    texts.any(|text| {
        let text = text.to_ascii_lowercase();
        ENGINES.iter().any(|engine| text.contains(engine))
    })
}

// === what follows for the variants ===

impl ClusterState {
    /// What the pod templates of the variants say, of those that have one.
    #[must_use]
    pub fn templates(&self) -> Templates {
        let template = |(key, state): (&VariantKey, &VariantState)| {
            Some((key.clone(), state.template.clone()?))
        };
        self.variants.iter().filter_map(template).collect()
    }

    /// Takes in what replicas take: what the templates say before what pods were seen to take,
    /// which is what replicas took that may not be made any more.
    pub(crate) fn take_inventory(&mut self, seen: &Arc<Inventory>) {
        self.inventory = Arc::clone(seen);
        for (key, state) in &self.variants {
            let Some(unit) = state.unit.clone() else { continue };
            let units = &mut Arc::make_mut(&mut self.inventory).units;
            let product = units.get(key).and_then(|seen| seen.product.clone());
            let unit = ReplicaUnit { product: unit.product.or(product), ..unit };
            units.insert(key.clone(), unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use plimsoll_core::fleet::Accelerator;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn engine(gpus: u32, more: &Value) -> Value {
        let mut container = json!({"name": "engine", "image": "vllm/vllm-openai:v0.11",
                                   "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": {"containers": [container]}})
    }

    /// The template without any `ConfigMap`.
    fn template(object: &DynamicObject) -> Option<Arc<Template>> {
        Written::new(object).map(|written| written.template(&|_| None))
    }

    fn gpus(spec: &Value) -> Option<u32> {
        let written = Written::new(&object(spec))?;
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
