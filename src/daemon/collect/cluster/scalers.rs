//! Scalers of a target: HPAs, and KEDA's `ScaledObject`s with the HPAs that KEDA creates for them.

use std::collections::BTreeMap;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::hpa::{Finding, FollowedVariant, HpaFacts, HpaFollower};
use crate::collect::cluster::keda::ScaledObject;
use crate::collect::cluster::keys::TargetKey;
use crate::collect::cluster::target::group_of;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Replicas;

/// All scalers, by target.
#[derive(Debug, Default)]
pub(crate) struct Scalers<'a>(BTreeMap<ScalerTarget<'a>, TargetScalers<'a>>);

/// The target of a scaler. Versions of one API group are views of the same object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScalerTarget<'a> {
    namespace: &'a str,
    group: &'a str,
    kind: &'a str,
    name: &'a str,
}

/// The scalers of one target, with their names.
#[derive(Debug, Default)]
pub(crate) struct TargetScalers<'a> {
    hpas: Vec<(&'a str, &'a HpaFacts)>,
    /// The HPAs that KEDA created for `scaled_objects`.
    made: Vec<(&'a str, &'a HpaFacts)>,
    scaled_objects: Vec<(&'a str, &'a ScaledObject)>,
}

// === impl Scalers ===

impl<'a> Scalers<'a> {
    /// Groups scalers by their target.
    pub(crate) fn new(
        hpas: impl Iterator<Item = (&'a ObjectName, &'a HpaFacts)>,
        scaled_objects: impl Iterator<Item = (&'a ObjectName, &'a ScaledObject)>,
    ) -> Self {
        let mut all: BTreeMap<ScalerTarget<'a>, TargetScalers<'a>> = BTreeMap::new();
        for (ObjectName { namespace, name }, hpa) in hpas {
            let HpaFacts { group, kind, target, .. } = hpa;
            let scaled = ScalerTarget { namespace, group, kind, name: target };
            all.entry(scaled).or_default().hpas.push((name, hpa));
        }

        for (ObjectName { namespace, name }, object) in scaled_objects {
            let ScaledObject { group, kind, target, .. } = object;
            let scaled = ScalerTarget { namespace, group, kind, name: target };
            all.entry(scaled).or_default().scaled_objects.push((name, object));
        }

        for of in all.values_mut() {
            let TargetScalers { hpas, made, scaled_objects } = of;
            // An HPA from KEDA is not a second owner. If its `ScaledObject` is gone or not visible,
            // the HPA is the only known scaler.
            let all = std::mem::take(hpas);
            (*made, *hpas) = all.into_iter().partition(|(_, hpa)| {
                scaled_objects.iter().any(|(name, _)| hpa.made_for.as_deref() == Some(*name))
            });
        }

        Self(all)
    }

    /// Returns the scalers of this target.
    pub(crate) fn of<'s>(&'s self, target: &'s TargetKey) -> Option<&'s TargetScalers<'a>> {
        let TargetKey { namespace, api_version, kind, name } = target;
        let group = group_of(api_version);
        self.0.get(&ScalerTarget { namespace: namespace.as_str(), group, kind, name })
    }
}

// === impl TargetScalers ===

impl TargetScalers<'_> {
    /// Names each scaler with its kind.
    pub(crate) fn names(&self) -> Vec<String> {
        let hpas = self.hpas.iter().map(|(name, _)| format!("HPA {name}"));
        let objects = self.scaled_objects.iter().map(|(name, _)| format!("ScaledObject {name}"));
        objects.chain(hpas).collect()
    }

    /// Returns the bounds of a target with this many wanted replicas, if exactly one scaler exists
    /// and it does not contradict itself.
    pub(crate) fn bounds(&self, wanted: Replicas) -> Option<Bounds> {
        match (self.scaled_objects.as_slice(), self.hpas.as_slice()) {
            ([(_, object)], []) => object.bounds(wanted),
            ([], [(_, hpa)]) => hpa.bounds,
            _ => None,
        }
    }

    /// Returns the HPA that follows the variant's desired replicas, and the problems that keep them
    /// from being followed. Of several scalers, the winner is not known; [`TargetScalers::names`]
    /// exposes the conflict.
    pub(crate) fn follow(&self, of: FollowedVariant<'_>) -> (Option<HpaFollower>, Vec<Finding>) {
        match (self.scaled_objects.as_slice(), self.hpas.as_slice()) {
            ([], [(name, hpa)]) => hpa.follow(name, of),
            ([(name, object)], []) => {
                let (follower, mut findings) = match self.made.as_slice() {
                    [(name, hpa)] => hpa.follow(name, of),
                    _ => (None, Vec::new()),
                };
                // The `ScaledObject` says more exactly than its HPA whether they are read.
                if object.reads(of.variant) {
                    findings.retain(|finding| !matches!(finding, Finding::NotRead { .. }));
                }

                let scaled_object = (*name).to_owned();
                let faults = object.faults(of.variant).into_iter();
                findings.extend(faults.map(|fault| Finding::ScaledObject {
                    scaled_object: scaled_object.clone(),
                    fault,
                }));
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
        let hpa = HpaFacts::new(serde_json::from_value(object).unwrap());
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
