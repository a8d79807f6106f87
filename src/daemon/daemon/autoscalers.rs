//! The reaction of a variant's autoscaler to its number, for explanations.

use std::time::Duration;

use crate::collect::cluster::{ChangeTime, ClusterState, HpaReaction, VariantState};
use crate::publish::explanation::autoscaler::{Autoscaler, ComingChange, Reaction};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::units::{Replicas, Seconds};

/// The reaction of a variant's autoscaler, with these problems, to desired replicas that have asked
/// for the same change for some time.
pub(super) fn reaction(
    cluster: &ClusterState,
    key: &VariantKey,
    desired: Option<Replicas>,
    asked_for: Option<Duration>,
    problems: Vec<String>,
) -> Autoscaler {
    let Some(state) = cluster.variants.get(key) else {
        let text = "the variant has no scale target in the cluster, so no HPA follows it";
        return Autoscaler::still(None, Reaction::NotFollowed, text.to_owned());
    };

    let (found, remedy) = of_state(state, desired, asked_for);
    found.with(problems, remedy)
}

fn of_state(
    state: &VariantState,
    desired: Option<Replicas>,
    asked_for: Option<Duration>,
) -> (Autoscaler, Option<String>) {
    let still = |hpa: &str, reaction, text: String| {
        (Autoscaler::still(Some(hpa.to_owned()), reaction, text), None)
    };
    let Some(follower) = &state.follower else {
        let text = "no HPA follows the desired replicas exactly; see the problems".to_owned();
        let hpa = state.autoscaler().map(str::to_owned);
        return (Autoscaler::still(hpa, Reaction::NotFollowed, text), None);
    };

    let hpa = follower.hpa.as_str();
    let Some((desired, reaction)) = desired.and_then(|it| Some((it, state.reaction(it)?))) else {
        let text = format!(
            "HPA {hpa} follows the desired replicas, but desired or existing replicas are unknown"
        );
        return still(hpa, Reaction::Unknown, text);
    };

    match reaction {
        HpaReaction::Keeps => {
            let text = format!("HPA {hpa} keeps {}, as desired", desired.counted());
            still(hpa, Reaction::Keeps, text)
        }
        HpaReaction::Ignores(ignored) => {
            let (line, _) = still(hpa, Reaction::Ignores, ignored.to_string());
            (line, Some(ignored.remedy()))
        }
        HpaReaction::NeverScales(direction) => {
            let text = format!("HPA {hpa} never scales {}", direction.label());
            still(hpa, Reaction::Disabled, text)
        }
        HpaReaction::Changes(ChangeTime { window, steps }) => {
            let change = ComingChange {
                hpa: hpa.to_owned(),
                counts: [state.existing().unwrap_or(desired).count(), desired.count()],
                window: window.seconds(),
                asked_for: asked_for.map(|time| time.as_secs_f64()),
                steps: steps.map(Seconds::seconds),
            };
            (Autoscaler::changing(&change), None)
        }
    }
}
