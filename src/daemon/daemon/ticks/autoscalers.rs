//! Reports about HPAs that do not follow published desired replicas.

use std::collections::BTreeSet;

use tracing::warn;

use crate::collect::cluster::{ClusterState, Finding, IgnoredChange, VariantState};
use crate::daemon::pace;
use crate::daemon::ticks::Ticks;
use crate::daemon::ticks::following::FollowingSeries;
use crate::publish::Published;
use crate::telemetry::FollowingMetrics;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Scale;

impl Ticks {
    /// Reports when an HPA will not follow published desired replicas, and how to fix it.
    pub(super) fn judge_autoscalers(&mut self, published: &Published) {
        let Some(cluster) = self.parts.cluster.as_ref().map(|it| it.borrow().clone()) else {
            return;
        };
        self.show_following(&cluster);
        let gauge = self.parts.telemetry.following.ignores.clone();
        let mut followed = BTreeSet::new();
        for (key, state) in &cluster.variants {
            let desired = published
                .variants
                .get(key)
                .and_then(|variant| variant.decided.as_ref())
                .map(|decided| decided.decision.desired());
            let ignored = desired.and_then(|desired| state.ignored(desired));
            if let Some(follower) = &state.follower {
                let variant = [key.namespace.as_str(), key.variant.as_str()];
                let scaled_object = follower.scaled_object.as_deref().unwrap_or_default();
                let labels = [variant[0], variant[1], follower.hpa.as_str(), scaled_object];
                gauge.with_label_values(&labels).set(f64::from(u8::from(ignored.is_some())));
                followed.insert(labels.map(str::to_owned));
            }

            self.say_ignored(key, ignored);
            let findings: Vec<_> = self.problems(state).cloned().collect();
            if self.findings.get(key) != Some(&findings) {
                for finding in &findings {
                    let namespace = &key.namespace;
                    let variant = &key.variant;
                    warn!(%namespace, %variant, "{finding}");
                    if let Some(announcer) = &self.parts.announcer {
                        announcer.finding(key, finding);
                    }
                }

                self.findings.insert(key.clone(), findings);
            }
        }

        // Series of deleted HPAs are removed; the others are never absent in between.
        for gone in self.followed.difference(&followed) {
            let _gone = gauge.remove_label_values(&gone.each_ref().map(String::as_str));
        }

        self.followed = followed;
        self.findings.retain(|key, _| cluster.variants.contains_key(key));
        self.ignored.retain(|key, _| cluster.variants.contains_key(key));
    }

    /// The problems of a variant's autoscaler, except those that the configuration intends.
    pub(super) fn problems<'a>(
        &'a self,
        state: &'a VariantState,
    ) -> impl Iterator<Item = &'a Finding> {
        let policy = self.pipeline.policy();
        state.findings.iter().filter(|finding| !pace::is_intended(finding, policy))
    }

    /// Shows which variants an autoscaler follows, with the problems of those that it does not
    /// follow, and the age of the cluster's state.
    fn show_following(&mut self, cluster: &ClusterState) {
        let FollowingMetrics { follows, problems: shown_problems, cluster_age, .. } =
            &self.parts.telemetry.following;

        let newest = cluster.variants.values().map(|state| state.as_of).max();
        if let Some(newest) = newest {
            let age = self.parts.clock.now().duration_since(newest).as_secs_f64();
            cluster_age.with_label_values::<&str>(&[]).set(age.max(0.0));
        } else {
            let _absent_before = cluster_age.remove_label_values::<&str>(&[]);
        }

        let mut shown = BTreeSet::new();
        let mut problems = BTreeSet::new();
        for (key, state) in &cluster.variants {
            if matches!(state.scale, Scale::Unknown(_)) || state.is_selected {
                continue;
            }
            let variant = [key.namespace.as_str(), key.variant.as_str()];
            follows.with_label_values(&variant).set(f64::from(u8::from(state.follower.is_some())));
            shown.insert(variant.map(str::to_owned));

            for finding in self.problems(state) {
                let labels = [variant[0], variant[1], finding.label()];
                shown_problems.with_label_values(&labels).set(1.0);
                problems.insert(labels.map(str::to_owned));
            }
        }

        // Series that end are removed; the others are never absent in between.
        for gone in self.following.shown.difference(&shown) {
            let _gone = follows.remove_label_values(&gone.each_ref().map(String::as_str));
        }
        for gone in self.following.problems.difference(&problems) {
            let _gone = shown_problems.remove_label_values(&gone.each_ref().map(String::as_str));
        }
        self.following = FollowingSeries { shown, problems };
    }

    fn say_ignored(&mut self, key: &VariantKey, ignored: Option<IgnoredChange>) {
        let Some(ignored) = ignored else {
            self.ignored.remove(key);
            return;
        };
        if self.ignored.get(key) != Some(&ignored) {
            warn!(
                namespace = %key.namespace,
                variant = %key.variant,
                hpa = ignored.hpa,
                current = ignored.current.count(),
                desired = ignored.desired.count(),
                "The HPA ignores desired replicas within its tolerance. Add to the HPA:\n{}",
                ignored.remedy()
            );
            if let Some(announcer) = &self.parts.announcer {
                announcer.ignored(key, &ignored);
            }

            self.ignored.insert(key.clone(), ignored);
        }
    }
}
