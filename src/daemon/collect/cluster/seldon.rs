//! Seldon Core 2's `Server` and `Model` objects: which models a server hosts, and in how many
//! copies.
//!
//! # Shape
//!
//! `mlops.seldon.io/v1alpha1`. Of a `Server`: `spec.minReplicas`, `spec.maxReplicas`,
//! `spec.capabilities`, which take precedence, and `spec.extraCapabilities`, which are added to
//! those of its `spec.serverConfig`. Of a `Model`: `spec.server`, `spec.requirements`,
//! `spec.modelType`, which is one more requirement, `spec.replicas` and `spec.minReplicas`. A model
//! without `spec.server` is hosted by a server of its namespace with all capabilities that it
//! requires.
//!
//! The capabilities of a `ServerConfig` are not read. A server that takes its capabilities from
//! there can host any model, as far as is known.
//!
//! # Source
//!
//! The documentation of Seldon Core 2: "Servers", "Models" and "Autoscaling Servers".

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::target::group_of;
use plimsoll_core::fleet::{Bounds, ModelName};
use plimsoll_core::observe::hosting::{HostedModel, HostedModels, ModelAssignment};
use plimsoll_core::units::Replicas;

/// The group of both kinds.
pub(crate) const GROUP: &str = "mlops.seldon.io";
/// The API version of `Model`s.
pub(crate) const API_VERSION: &str = "mlops.seldon.io/v1alpha1";
/// The kind of `Model`s.
pub(crate) const MODEL: &str = "Model";
/// The kind of `Server`s.
pub(crate) const SERVER: &str = "Server";

/// The most capabilities and requirements that are kept of one object.
const WORDS_MAX: usize = 64;

/// The relevant parts of a `Server`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerFacts {
    /// All its capabilities; `None` if some come from its `ServerConfig`.
    capabilities: Option<BTreeSet<String>>,
    bounds: Option<Bounds>,
}

/// The relevant parts of a `Model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelFacts {
    server: Option<String>,
    requirements: BTreeSet<String>,
    copies: Replicas,
}

/// Returns true for the kind of `Server`s, in any version.
#[must_use]
pub fn is_server(api_version: &str, kind: &str) -> bool {
    group_of(api_version) == GROUP && kind == SERVER
}

// === impl ServerFacts ===

impl ServerFacts {
    /// Reads the object, if it is a `Server`.
    pub(crate) fn new(api_version: &str, kind: &str, object: &DynamicObject) -> Option<Self> {
        let spec = object.data.get("spec").filter(|_| is_server(api_version, kind))?;
        let own = words(spec.get("capabilities"));
        let min = count(spec, "minReplicas").unwrap_or_default();
        let max = count(spec, "maxReplicas").filter(|max| *max > Replicas::ZERO);

        Some(Self {
            capabilities: Some(own).filter(|own| !own.is_empty()),
            bounds: Bounds::new(min, max),
        })
    }

    /// Returns true if this server may host a model with these requirements.
    fn accepts(&self, requirements: &BTreeSet<String>) -> bool {
        self.capabilities.as_ref().is_none_or(|known| requirements.is_subset(known))
    }
}

// === impl ModelFacts ===

impl ModelFacts {
    /// Reads the object.
    pub(crate) fn new(object: &DynamicObject) -> Option<Self> {
        let spec = object.data.get("spec")?;
        let mut requirements = words(spec.get("requirements"));
        requirements.extend(word(spec, "modelType"));

        let min = count(spec, "minReplicas").unwrap_or_default();
        let written = count(spec, "replicas");
        let copies = written.unwrap_or(Replicas::ONE).max(min);

        Some(Self { server: word(spec, "server"), requirements, copies })
    }
}

/// Returns the models of a server, given all servers and models of its namespace.
pub(crate) fn hosted(
    server: &str,
    servers: &BTreeMap<&str, &ServerFacts>,
    models: &BTreeMap<&ObjectName, &ModelFacts>,
    as_of: Timestamp,
) -> HostedModels {
    let hosted = models.iter().filter_map(|(name, model)| {
        let assignment = assignment(server, servers, model)?;
        let name = ModelName::new(&name.name)?;

        Some(HostedModel { name, copies: model.copies, assignment })
    });

    HostedModels {
        models: hosted.collect(),
        bounds: servers.get(server).and_then(|facts| facts.bounds),
        as_of,
    }
}

/// Returns the certainty that a server hosts a model; `None` if it cannot.
fn assignment(
    server: &str,
    servers: &BTreeMap<&str, &ServerFacts>,
    model: &ModelFacts,
) -> Option<ModelAssignment> {
    if let Some(named) = &model.server {
        return (named == server).then_some(ModelAssignment::Certain);
    }

    let mut accepting = servers.iter().filter(|(_, facts)| facts.accepts(&model.requirements));
    let is_possible = accepting.clone().any(|(name, _)| *name == server);
    let is_certain = accepting.all(|(name, _)| *name == server);
    let assignment = if is_certain { ModelAssignment::Certain } else { ModelAssignment::Possible };
    is_possible.then_some(assignment)
}

fn words(list: Option<&Value>) -> BTreeSet<String> {
    let words = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let trimmed = words.map(str::trim).filter(|word| !word.is_empty());
    trimmed.take(WORDS_MAX).map(str::to_owned).collect()
}

fn word(spec: &Value, key: &str) -> Option<String> {
    spec.get(key).and_then(Value::as_str).filter(|word| !word.is_empty()).map(str::to_owned)
}

fn count(spec: &Value, key: &str) -> Option<Replicas> {
    spec.get(key).and_then(Value::as_u64).map(Replicas::capped)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn server(spec: &Value) -> ServerFacts {
        ServerFacts::new(API_VERSION, SERVER, &object(spec)).unwrap()
    }

    fn model(spec: &Value) -> ModelFacts {
        ModelFacts::new(&object(spec)).unwrap()
    }

    #[test]
    fn copies_are_as_seldon_normalizes_them() {
        for (spec, copies) in [
            (json!({}), 1),
            (json!({"replicas": 2, "minReplicas": 1, "maxReplicas": 3}), 2),
            (json!({"replicas": 0}), 0),
            (json!({"minReplicas": 2}), 2),
            (json!({"minReplicas": 0}), 1),
            (json!({"replicas": -1}), 1),
        ] {
            assert_eq!(model(&spec).copies, Replicas::saturating(copies), "{spec}");
        }
    }

    #[test]
    fn a_model_is_on_the_server_that_it_names_or_on_one_that_can_host_it() {
        let sklearn = server(&json!({"capabilities": ["sklearn", " xgboost "], "minReplicas": 1,
                                     "maxReplicas": 4}));
        let triton = server(&json!({"capabilities": ["pytorch"]}));
        let any = server(&json!({"serverConfig": "mlserver", "extraCapabilities": ["x"]}));
        let named = model(&json!({"server": "b"}));
        let on_sklearn = model(&json!({"requirements": ["sklearn"], "modelType": "xgboost"}));
        let on_nothing = model(&json!({"requirements": ["other"]}));

        let certain = Some(ModelAssignment::Certain);
        let possible = Some(ModelAssignment::Possible);
        let apart = BTreeMap::from([("a", &sklearn), ("b", &triton)]);
        assert_eq!(assignment("a", &apart, &named), None);
        assert_eq!(assignment("b", &apart, &named), certain);
        assert_eq!(assignment("a", &apart, &on_sklearn), certain);
        assert_eq!(assignment("b", &apart, &on_sklearn), None);
        assert_eq!(assignment("a", &apart, &on_nothing), None);

        let open = BTreeMap::from([("a", &sklearn), ("b", &any)]);
        assert_eq!(assignment("a", &open, &on_sklearn), possible);
        assert_eq!(assignment("b", &open, &on_sklearn), possible);
        assert_eq!(assignment("b", &open, &on_nothing), certain);
        let bounds = Bounds::new(Replicas::ONE, Some(Replicas::saturating(4)));
        let hosted = hosted("a", &apart, &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(hosted.bounds, bounds);
    }
}
