//! HPAs: the bounds that they impose, and the desired replicas that they will not follow.
//!
//! A stock HPA that reads the desired replicas as an External metric with `AverageValue` 1 proposes
//! exactly that count, but only outside its tolerance band. Ten replicas and a desired count of 11
//! are a ratio of 1.1. The default tolerance of 10% hides it: the HPA does nothing and reports
//! nothing. No encoding of the metric avoids the band, because the same value determines the ratio
//! and the result. This module therefore computes the band as the HPA does, and reports the gap.
//!
//! Of an HPA's `behavior`, the tolerances and the stabilization windows have an effect. Decisions
//! subtract the windows from Plimsoll's own (`decide/enforce.rs` in the core). Policies, conditions,
//! selectors and other metrics are only judged: a [`Finding`] names the effect on the HPA.

mod behavior;
mod finding;
mod metrics;
mod pace;
mod quantity;
mod status;

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::hpa::behavior::Obstacle;
use crate::collect::cluster::hpa::metrics::HpaMetrics;
use crate::collect::cluster::hpa::status::FalseCondition;
use crate::collect::cluster::keda::MADE_FOR;
use crate::collect::cluster::target::{WantedTarget, group_of};
use plimsoll_core::fleet::{Bounds, VariantKey};
use plimsoll_core::units::{Fraction, Replicas};

pub use crate::collect::cluster::hpa::behavior::{ChangeTime, HpaPace, Tolerances, Windows};
pub use crate::collect::cluster::hpa::finding::{Direction, Finding, HpaCondition};
pub use crate::collect::cluster::hpa::pace::{BoundsChange, HpaPolicy, PolicyAmount, PolicyChoice};

/// The relevant parts of an HPA.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HpaFacts {
    /// The group of the object that it scales.
    pub(crate) group: String,
    /// The kind of the object that it scales.
    pub(crate) kind: String,
    /// The name of the object that it scales.
    pub(crate) target: String,
    /// Its replica bounds; `None` if they contradict each other.
    pub(crate) bounds: Option<Bounds>,
    /// The `ScaledObject` for which KEDA created it, if any.
    pub(crate) made_for: Option<String>,
    /// Its annotations, if it may declare a variant.
    pub(crate) marked: Option<AnnotatedObject>,
    tolerances: Tolerances,
    windows: Windows,
    pace: HpaPace,
    metrics: HpaMetrics,
    obstacles: Vec<Obstacle>,
    conditions: Vec<FalseCondition>,
}

/// The variant for which an HPA is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedVariant<'a> {
    /// The variant.
    pub(crate) variant: &'a VariantKey,
    /// All variants of its namespace.
    pub(crate) neighbors: &'a BTreeSet<&'a str>,
    /// The replicas in its target's spec, if known.
    pub(crate) wanted: Option<Replicas>,
}

/// An HPA that reads a variant's desired replicas and follows them exactly, except for its
/// tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct HpaFollower {
    /// The HPA's name.
    pub hpa: String,
    /// The `ScaledObject` for which KEDA created it, if any. It then asks KEDA for its metrics.
    pub scaled_object: Option<String>,
    /// Its tolerances.
    pub tolerances: Tolerances,
    /// Its stabilization windows.
    pub windows: Windows,
    /// Its windows and policies as the controller applies them.
    pub pace: HpaPace,
}

/// The reaction of an HPA to desired replicas.
#[derive(Clone, Debug, PartialEq)]
pub enum HpaReaction {
    /// The replicas that exist are the desired ones.
    Keeps,
    /// Its tolerance hides the change.
    Ignores(IgnoredChange),
    /// It never scales in this direction.
    NeverScales(Direction),
    /// It changes the replicas, and takes this long.
    Changes(ChangeTime),
}

/// A change of desired replicas that an HPA does not act on.
#[derive(Clone, Debug, PartialEq)]
pub struct IgnoredChange {
    /// The HPA's name.
    pub hpa: String,
    /// The replicas that exist.
    pub current: Replicas,
    /// The desired replicas that the HPA ignores.
    pub desired: Replicas,
    /// The direction of the ignored change.
    pub direction: Direction,
    /// The tolerance that hides the change.
    pub tolerance: Fraction,
}

// === impl HpaFacts ===

impl HpaFacts {
    /// Reads the object.
    pub(crate) fn new(object: HorizontalPodAutoscaler) -> Self {
        let HorizontalPodAutoscaler { metadata, spec: written, status } = object;
        let spec = written.unwrap_or_default();
        let api_version = spec.scale_target_ref.api_version.as_deref().unwrap_or_default();
        let labels = metadata.labels.as_ref();
        let made_for = labels.and_then(|labels| labels.get(MADE_FOR)).cloned();
        // KEDA copies the annotations of a `ScaledObject` to the HPA that it creates for it.
        let marked = if made_for.is_some() { None } else { marked(&metadata, &spec) };

        let bounds = bounds(&spec);

        Self {
            group: group_of(api_version).to_owned(),
            kind: spec.scale_target_ref.kind.clone(),
            target: spec.scale_target_ref.name.clone(),
            bounds,
            made_for,
            marked,
            tolerances: behavior::tolerances(&spec),
            windows: behavior::windows(&spec),
            pace: behavior::pace(&spec),
            obstacles: behavior::obstacles(&spec, bounds),
            conditions: status::conditions(status),
            metrics: HpaMetrics::new(spec),
        }
    }

    /// Returns the follower if this HPA follows the variant's desired replicas, and the problems
    /// that keep it from following them.
    pub(crate) fn follow(
        &self,
        name: &str,
        of: FollowedVariant<'_>,
    ) -> (Option<HpaFollower>, Vec<Finding>) {
        let FollowedVariant { variant, neighbors, wanted } = of;
        let ours = self.metrics.of(variant);
        if ours.is_empty() {
            return (None, vec![Finding::NotRead { hpa: Some(name.to_owned()) }]);
        }

        let mut is_exact = false;
        let mut findings = Vec::new();
        for metric in ours {
            let misread = metric.misread(name);
            let summed = metric.summed(name, variant, neighbors);
            let is_alone = match &summed {
                Some(Finding::SumsVariants { others, .. }) => others.is_empty(),
                Some(_) | None => true,
            };
            is_exact |= misread.is_none() && is_alone;
            findings.extend(misread.into_iter().chain(summed));
        }

        let others = self.metrics.besides(variant);
        if !others.is_empty() {
            findings.push(Finding::OtherMetrics { hpa: name.to_owned(), others });
        }
        findings.extend(self.obstacles.iter().map(|obstacle| obstacle.finding(name)));
        findings.extend(self.stopped(name, wanted));

        let follower = is_exact.then(|| HpaFollower {
            hpa: name.to_owned(),
            scaled_object: self.made_for.clone(),
            tolerances: self.tolerances,
            windows: self.windows,
            pace: self.pace.clone(),
        });
        (follower, findings)
    }

    /// Returns the conditions for which the HPA scales nothing.
    fn stopped(&self, name: &str, wanted: Option<Replicas>) -> Vec<Finding> {
        let failing = self.conditions.iter().filter(|condition| !condition.is_switched_off());
        let mut stopped: Vec<Finding> = failing.map(|condition| condition.finding(name)).collect();
        if self.is_switched_off(wanted) {
            stopped.push(Finding::ScalingDisabled { hpa: name.to_owned() });
        }

        stopped
    }

    /// Returns true if the HPA is switched off, because its target has no replicas although its
    /// minimum is above 0. KEDA itself starts the first replica, and needs no HPA for that.
    fn is_switched_off(&self, wanted: Option<Replicas>) -> bool {
        if self.made_for.is_some() {
            return false;
        }

        match (wanted, self.bounds) {
            (Some(wanted), Some(bounds)) => {
                wanted == Replicas::ZERO && bounds.min() > Replicas::ZERO
            }
            _ => self.conditions.iter().any(FalseCondition::is_switched_off),
        }
    }
}

fn marked(metadata: &ObjectMeta, spec: &HorizontalPodAutoscalerSpec) -> Option<AnnotatedObject> {
    let object = ObjectRef::of("autoscaling/v2", "HorizontalPodAutoscaler", metadata);
    let reference = &spec.scale_target_ref;
    let target = WantedTarget::Scale {
        api_version: reference.api_version.clone().unwrap_or_default(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
    };

    AnnotatedObject::new(object, ObjectRole::Hpa, target, metadata)
}

fn bounds(spec: &HorizontalPodAutoscalerSpec) -> Option<Bounds> {
    // The API server's default minimum is 1.
    Bounds::new(count(spec.min_replicas.unwrap_or(1))?, Some(count(spec.max_replicas)?))
}

fn count(n: i32) -> Option<Replicas> {
    u32::try_from(n).ok().map(Replicas::saturating)
}

// === impl HpaFollower ===

impl HpaFollower {
    /// Returns the reaction of the HPA to desired replicas while `current` replicas exist.
    #[must_use]
    pub fn reaction(&self, current: Replicas, desired: Replicas) -> HpaReaction {
        if current == desired {
            return HpaReaction::Keeps;
        }
        if let Some(ignored) = self.ignored(current, desired) {
            return HpaReaction::Ignores(ignored);
        }

        let direction = if desired > current { Direction::Up } else { Direction::Down };
        self.pace
            .time(BoundsChange { first: current.count(), last: desired.count() })
            .map_or(HpaReaction::NeverScales(direction), HpaReaction::Changes)
    }

    /// Returns the ignored change if the HPA will keep `current` replicas although `desired`
    /// differs.
    ///
    /// # Model
    ///
    /// `ratio = desired / current`; the HPA proposes `current` while `1 - down <= ratio <= 1 + up`,
    /// both ends included, and `desired` otherwise. With `current` at 0, the ratio is infinite or
    /// undefined, and both are outside the band.
    ///
    /// # Source
    ///
    /// Kubernetes 1.33 and later, `pkg/controller/podautoscaler/replica_calculator.go`. Older
    /// releases compare `|1 - ratio| <= tolerance`, which differs only on the boundary.
    #[must_use]
    pub fn ignored(&self, current: Replicas, desired: Replicas) -> Option<IgnoredChange> {
        if current == desired || current == Replicas::ZERO {
            return None;
        }

        let Tolerances { up, down } = self.tolerances;
        let ratio = f64::from(desired.count()) / f64::from(current.count());
        let within = (1.0 - down.fraction()..=1.0 + up.fraction()).contains(&ratio);
        let (direction, tolerance) =
            if desired > current { (Direction::Up, up) } else { (Direction::Down, down) };
        within.then(|| IgnoredChange {
            hpa: self.hpa.clone(),
            current,
            desired,
            direction,
            tolerance,
        })
    }
}

// === impl IgnoredChange ===

impl IgnoredChange {
    /// The lines to merge into the HPA's manifest so that it follows desired replicas exactly.
    ///
    /// They set both directions, because replicas that scale up by one also scale down by one.
    #[must_use]
    pub fn remedy(&self) -> String {
        "spec:\n  behavior:\n    scaleUp:\n      tolerance: \"0\"\n    scaleDown:\n      tolerance: \"0\"\n"
            .to_owned()
    }
}

impl fmt::Display for IgnoredChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hpa, current, desired, direction, tolerance } = self;
        write!(
            f,
            "HPA {hpa} keeps {current} replicas although {desired} are desired: the difference is \
             within its {} tolerance of {:.1}%",
            direction.label(),
            tolerance.fraction() * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::collect::cluster::hpa::metrics::KEDA_LABEL;
    use crate::fixtures;

    fn hpa(target: &Value, behavior: &Value) -> HpaFacts {
        let object = json!({
            "spec": {
                "maxReplicas": 64,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "metrics": [{"type": "External", "external": {
                    "metric": {"name": "plimsoll_desired_replicas",
                               "selector": {"matchLabels": {"variant": "llama"}}},
                    "target": target,
                }}],
                "behavior": behavior,
            }
        });

        HpaFacts::new(serde_json::from_value(object).unwrap())
    }

    fn average(value: &str) -> Value {
        json!({"type": "AverageValue", "averageValue": value})
    }

    fn variant(name: &str) -> VariantKey {
        fixtures::variant(name).key
    }

    /// Follows the HPA for this variant, while there is another one.
    fn follow(hpa: &HpaFacts, name: &str, of: &str) -> (Option<HpaFollower>, Vec<Finding>) {
        let neighbors = BTreeSet::from(["llama", "other"]);
        let wanted = Some(Replicas::ONE);
        hpa.follow(name, FollowedVariant { variant: &variant(of), neighbors: &neighbors, wanted })
    }

    fn replicas(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    #[test]
    fn a_window_counts_only_if_it_is_stated() {
        let stated = json!({"scaleUp": {"stabilizationWindowSeconds": 30},
            "scaleDown": {"stabilizationWindowSeconds": 120}});
        for (behavior, want) in [
            (json!(null), (0.0, 0.0)),
            (stated, (30.0, 120.0)),
            (json!({"scaleDown": {"tolerance": "0"}}), (0.0, 0.0)),
        ] {
            let (follower, _) = follow(&hpa(&average("1"), &behavior), "llama", "llama");
            let Windows { up, down } = follower.unwrap().windows;
            assert_eq!((up.seconds(), down.seconds()), want, "{behavior}");
        }
    }

    /// Follows the HPA that KEDA creates for a trigger with this metric.
    fn keda(name: &str, label: &str, average: &str) -> (Option<HpaFollower>, Vec<Finding>) {
        let object = json!({"spec": {
            "maxReplicas": 9,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": name, "selector": {"matchLabels": {label: "llama"}}},
                "target": {"type": "AverageValue", "averageValue": average},
            }}],
        }});

        let hpa = HpaFacts::new(serde_json::from_value(object).unwrap());
        follow(&hpa, "keda-hpa-llama", "llama")
    }

    #[test]
    fn the_hpa_of_a_prometheus_trigger_of_keda_follows_where_its_threshold_is_1() {
        let (follower, findings) = keda("s0-prometheus", KEDA_LABEL, "1");
        assert_eq!(follower.unwrap().hpa, "keda-hpa-llama");
        assert_eq!(findings, []);

        for (name, label, average) in [
            ("s0-prometheus", KEDA_LABEL, "50"),
            ("s0-kafka-lag", KEDA_LABEL, "1"),
            ("s0-prometheus", "app", "1"),
            ("some-prometheus", KEDA_LABEL, "1"),
        ] {
            let (follower, findings) = keda(name, label, average);
            assert_eq!(follower, None, "{name} {label} {average}");
            assert_eq!(findings, [Finding::NotRead { hpa: Some("keda-hpa-llama".to_owned()) }]);
        }
    }

    #[test]
    fn an_hpa_that_keda_made_is_known_by_its_label_and_not_by_its_name() {
        let labels = [json!({}), json!({MADE_FOR: "llama"})];
        let made_for = labels.map(|labels| {
            let object = json!({"metadata": {"labels": labels}, "spec": {
                "maxReplicas": 9,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "metrics": [{"type": "External", "external": {
                    "metric": {"name": "s0-prometheus",
                               "selector": {"matchLabels": {KEDA_LABEL: "llama"}}},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                }}],
            }});

            let hpa = HpaFacts::new(serde_json::from_value(object).unwrap());
            follow(&hpa, "custom", "llama").0.unwrap().scaled_object
        });

        assert_eq!(made_for, [None, Some("llama".to_owned())]);
    }

    #[test]
    fn a_number_inside_the_band_is_ignored_and_outside_it_is_not() {
        for (behavior, current, desired, ignored) in [
            // The default of 10%, both ends included.
            (json!({}), 10, 11, true),
            (json!({}), 10, 9, true),
            (json!({}), 10, 12, false),
            (json!({}), 9, 10, false),
            (json!({}), 20, 22, true),
            (json!({}), 20, 23, false),
            (json!({}), 10, 10, false),
            (json!({}), 0, 3, false),
            (json!({}), 3, 0, false),
            // Each direction has its own tolerance.
            (json!({"scaleUp": {"tolerance": "0"}}), 10, 11, false),
            (json!({"scaleUp": {"tolerance": "0"}}), 10, 9, true),
            (json!({"scaleDown": {"tolerance": "0"}}), 10, 9, false),
            (json!({"scaleDown": {"tolerance": "0"}}), 10, 11, true),
            (json!({"scaleUp": {"tolerance": "50m"}}), 10, 11, false),
            (json!({"scaleUp": {"tolerance": "500m"}}), 10, 15, true),
        ] {
            let (follower, findings) = follow(&hpa(&average("1"), &behavior), "llama", "llama");
            assert_eq!(findings, []);
            let found = follower.unwrap().ignored(replicas(current), replicas(desired));
            assert_eq!(found.is_some(), ignored, "{behavior} {current} -> {desired}: {found:?}");
        }
    }

    #[test]
    fn the_remedy_makes_the_hpa_follow_what_it_ignored() {
        let (follower, _) = follow(&hpa(&average("1"), &json!({})), "llama", "llama");
        let ignored = follower.unwrap().ignored(replicas(10), replicas(11)).unwrap();
        assert_eq!(
            ignored.to_string(),
            "HPA llama keeps 10 replicas although 11 are desired: the difference is within its \
             scaleUp tolerance of 10.0%"
        );
        assert_eq!(
            ignored.remedy(),
            "spec:\n  behavior:\n    scaleUp:\n      tolerance: \"0\"\n    scaleDown:\n      \
             tolerance: \"0\"\n"
        );

        let remedied = json!({"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "0"}});
        let (follower, _) = follow(&hpa(&average("1"), &remedied), "llama", "llama");
        assert_eq!(follower.unwrap().ignored(replicas(10), replicas(11)), None);
    }

    #[test]
    fn what_keeps_an_hpa_from_following_is_found() {
        let hpa_name = "llama".to_owned();
        let metric = "plimsoll_desired_replicas".to_owned();
        let wrong_type = Finding::WrongTargetType {
            hpa: hpa_name.clone(),
            metric: metric.clone(),
            found: "Value".to_owned(),
        };
        let wrong_value =
            Finding::WrongAverageValue { hpa: hpa_name.clone(), metric, found: "2".to_owned() };

        for (target, findings) in [
            (average("1"), vec![]),
            (average("1000m"), vec![]),
            // An average value wins over the type.
            (json!({"type": "Value", "averageValue": "1"}), vec![]),
            (json!({"type": "Value", "value": "1"}), vec![wrong_type]),
            (average("2"), vec![wrong_value]),
        ] {
            let found = follow(&hpa(&target, &json!({})), "llama", "llama");
            assert_eq!(found.1, findings, "{target}");
            assert_eq!(found.0.is_some(), findings.is_empty(), "{target}");
        }
    }

    #[test]
    fn an_object_metric_is_read_as_an_external_one_and_names_its_variant_by_the_object() {
        let hpa = |name: &str, selector: &Value, target: &Value| {
            let object = json!({"spec": {
                "maxReplicas": 8,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "metrics": [{"type": "Object", "object": {
                    "describedObject":
                        {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "metric": {"name": "plimsoll_desired_replicas", "selector": selector},
                    "target": target,
                }}],
            }});
            HpaFacts::new(serde_json::from_value(object).unwrap())
        };

        let labels = json!({"matchLabels": {"variant": "llama"}});
        for (name, selector, target, reads, findings) in [
            ("llama", Value::Null, average("1"), true, 0),
            ("web", labels.clone(), average("1"), true, 0),
            ("web", Value::Null, average("1"), false, 1),
            ("llama", Value::Null, json!({"type": "Value", "value": "1"}), false, 1),
        ] {
            let (follower, found) = follow(&hpa(name, &selector, &target), "llama", "llama");
            assert_eq!(follower.is_some(), reads, "{name} {selector} {target}");
            assert_eq!(found.len(), findings, "{name} {selector} {target}: {found:?}");
        }
    }

    #[test]
    fn an_hpa_that_reads_another_variants_number_does_not_read_this_one() {
        let hpa = hpa(&average("1"), &json!({}));
        let (follower, findings) = follow(&hpa, "llama", "other");
        assert_eq!(follower, None);
        assert_eq!(findings, [Finding::NotRead { hpa: Some("llama".to_owned()) }]);
    }

    #[test]
    fn a_missing_minimum_is_one() {
        let hpa = hpa(&average("1"), &json!({}));
        assert_eq!(hpa.bounds, Bounds::new(Replicas::ONE, Some(replicas(64))));
    }
}
