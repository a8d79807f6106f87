//! Other minima and maxima.

use crate::advise::change::{ScenarioChange, Trial};
use crate::advise::scene::ModelScene;
use crate::backtest::fleet::following;
use crate::simulate::scenario::Variant;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::{NounCount, Replicas};

/// The share of the time at the maximum from which a higher one may matter.
const AT_MAX: f64 = 0.002;

/// The variant with other bounds.
pub(super) fn bounded(variant: &Variant, min: Replicas, max: Option<Replicas>) -> ScenarioChange {
    let mut changed = variant.clone();
    let bounds = Bounds::new(min, max).unwrap_or(variant.spec.bounds);
    changed.spec.bounds = bounds;
    changed.actuator = following(bounds);
    changed.initial = bounds.clamp(variant.initial);
    ScenarioChange::Variant(Box::new(changed))
}

/// Lower minima: one replica, and half.
pub(super) fn lower_minimum(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for variant in &scene.scenario.variants {
        let bounds = variant.spec.bounds;
        let min = bounds.min().count();
        let mut lower = vec![1, min / 2];
        lower.retain(|it| (1..min).contains(it));
        lower.dedup();
        for lower in lower {
            let change = bounded(variant, Replicas::saturating(lower), bounds.max());
            trials.push(minimum(lever, variant, lower, change));
        }
    }

    trials
}

/// A higher minimum, if too few requests are served in time.
pub(super) fn raise_minimum(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    if !scene.is_short() {
        return trials;
    }

    for variant in &scene.scenario.variants {
        let bounds = variant.spec.bounds;
        let min = bounds.min().count();
        let mut higher = vec![min + 1, min * 2];
        higher.retain(|it| bounds.max().is_none_or(|max| *it <= max.count()) && *it > min);
        higher.dedup();
        for higher in higher {
            let change = bounded(variant, Replicas::saturating(higher), bounds.max());
            trials.push(minimum(lever, variant, higher, change));
        }
    }

    trials
}

fn minimum(lever: &'static str, variant: &Variant, to: u32, change: ScenarioChange) -> Trial {
    let what = format!("minimum replicas {} -> {to}", variant.spec.bounds.min());
    Trial::new(lever, variant.spec.key.to_string(), what, vec![change])
}

/// Half as much again as a maximum that is reached, if too few requests are served in time.
pub(super) fn raise_maximum(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (variant, at_max) in scene.scenario.variants.iter().zip(&scene.today.at_max) {
        let bounds = variant.spec.bounds;
        let Some(max) = bounds.max().filter(|_| scene.is_short() && *at_max > AT_MAX) else {
            continue;
        };

        let higher = max.count() + max.count().div_ceil(2);
        let change = bounded(variant, bounds.min(), Some(Replicas::saturating(higher)));
        let what = format!("maximum replicas {max} -> {higher}");
        let subject = variant.spec.key.to_string();
        let trial = Trial::new(lever, subject, what, vec![change]);
        let more = NounCount(higher - max.count(), "more replica", "more replicas");
        trials.push(trial.assuming(format!("{more} can be had")));
    }

    trials
}
