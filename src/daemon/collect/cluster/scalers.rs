//! What scales a target: HPAs, and KEDA's `ScaledObject`s with the HPAs that they make.

use std::collections::BTreeMap;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::hpa::{Finding, Follower, Hpa, group_of};
use crate::collect::cluster::keda::ScaledObject;
use crate::collect::cluster::keys::TargetKey;
use plimsoll_core::fleet::{Bounds, VariantName};
use plimsoll_core::units::Replicas;

/// Everything that scales something, by what it scales.
#[derive(Debug, Default)]
pub(crate) struct Scalers<'a>(BTreeMap<Scaled<'a>, Of<'a>>);

/// What is scaled; versions of one group are views of one object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scaled<'a> {
    namespace: &'a str,
    group: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// What scales one target, by name.
#[derive(Debug, Default)]
pub(crate) struct Of<'a> {
    hpas: Vec<(&'a str, &'a Hpa)>,
    /// The HPAs that KEDA has made for the `ScaledObject`s that are here.
    made: Vec<(&'a str, &'a Hpa)>,
    scaled_objects: Vec<(&'a str, &'a ScaledObject)>,
}

// === impl Scalers ===

impl<'a> Scalers<'a> {
    /// Sorts these by what they scale.
    pub(crate) fn new(
        hpas: impl Iterator<Item = (&'a ObjectName, &'a Hpa)>,
        scaled_objects: impl Iterator<Item = (&'a ObjectName, &'a ScaledObject)>,
    ) -> Self {
        let mut all: BTreeMap<Scaled<'a>, Of<'a>> = BTreeMap::new();
        for (ObjectName { namespace, name }, hpa) in hpas {
            let Hpa { group, kind, target, .. } = hpa;
            let scaled = Scaled { namespace, group, kind, name: target };
            all.entry(scaled).or_default().hpas.push((name, hpa));
        }
        for (ObjectName { namespace, name }, object) in scaled_objects {
            let ScaledObject { group, kind, target, .. } = object;
            let scaled = Scaled { namespace, group, kind, name: target };
            all.entry(scaled).or_default().scaled_objects.push((name, object));
        }
        for of in all.values_mut() {
            let Of { hpas, made, scaled_objects } = of;
            // What KEDA makes is not a second owner. It may have been made for an object that is
            // gone or cannot be seen; then it is all that there is.
            let all = std::mem::take(hpas);
            (*made, *hpas) = all.into_iter().partition(|(_, hpa)| {
                scaled_objects.iter().any(|(name, _)| hpa.made_for.as_deref() == Some(*name))
            });
        }
        Self(all)
    }

    /// What scales this target.
    pub(crate) fn of<'s>(&'s self, target: &'s TargetKey) -> Option<&'s Of<'a>> {
        let TargetKey { namespace, api_version, kind, name } = target;
        let group = group_of(api_version);
        self.0.get(&Scaled { namespace: namespace.as_str(), group, kind, name })
    }
}

// === impl Of ===

impl Of<'_> {
    /// Each by its kind and name.
    pub(crate) fn names(&self) -> Vec<String> {
        let hpas = self.hpas.iter().map(|(name, _)| format!("HPA {name}"));
        let objects = self.scaled_objects.iter().map(|(name, _)| format!("ScaledObject {name}"));
        objects.chain(hpas).collect()
    }

    /// Between which counts a target is scaled that is wanted to have so many replicas, where only
    /// one thing scales it and does not contradict itself.
    pub(crate) fn bounds(&self, wanted: Replicas) -> Option<Bounds> {
        match (self.scaled_objects.as_slice(), self.hpas.as_slice()) {
            ([(_, object)], []) => object.bounds(wanted),
            ([], [(_, hpa)]) => hpa.bounds,
            _ => None,
        }
    }

    /// Who follows the variant's number, and what keeps it from being followed. Which of several
    /// would win cannot be said; that there are several is said elsewhere.
    pub(crate) fn follow(&self, variant: &VariantName) -> (Option<Follower>, Vec<Finding>) {
        match (self.scaled_objects.as_slice(), self.hpas.as_slice()) {
            ([], [(name, hpa)]) => hpa.follow(name, variant),
            ([(name, object)], []) => {
                let (follower, mut findings) = match self.made.as_slice() {
                    [(name, hpa)] => hpa.follow(name, variant),
                    _ => (None, Vec::new()),
                };
                let scaled_object = (*name).to_owned();
                findings.extend(object.paused.map(|how| Finding::Paused { scaled_object, how }));
                (follower, findings)
            }
            _ => (None, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use plimsoll_core::fleet::Namespace;

    #[test]
    fn versions_of_one_group_are_one_target_and_groups_and_namespaces_are_not() {
        let object = json!({"spec": {"maxReplicas": 8, "scaleTargetRef": {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"}}});
        let hpa = Hpa::new(serde_json::from_value(object).unwrap());
        let name = ObjectName { namespace: "shop".to_owned(), name: "llama".to_owned() };
        let scalers = Scalers::new(std::iter::once((&name, &hpa)), std::iter::empty());
        for (namespace, api_version, scaled) in [
            ("shop", "apps/v1", true),
            ("shop", "apps/v1beta2", true),
            ("shop", "example.org/v1", false),
            ("lab", "apps/v1", false),
        ] {
            let key = TargetKey {
                namespace: Namespace::new(namespace).unwrap(),
                api_version: api_version.to_owned(),
                kind: "Deployment".to_owned(),
                name: "llama".to_owned(),
            };
            assert_eq!(scalers.of(&key).is_some(), scaled, "{namespace} {api_version}");
        }
    }
}
