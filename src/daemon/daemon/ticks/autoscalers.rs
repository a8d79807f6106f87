//! Reports about HPAs that do not follow published desired replicas.

use std::collections::BTreeSet;

use tracing::warn;

use crate::collect::cluster::IgnoredChange;
use crate::daemon::pace;
use crate::daemon::ticks::Ticks;
use crate::publish::Published;
use plimsoll_core::fleet::VariantKey;

impl Ticks {
    /// Reports when an HPA will not follow published desired replicas, and how to fix it.
    pub(super) fn judge_autoscalers(&mut self, published: &Published) {
        let Some(cluster) = self.parts.cluster.as_ref().map(|it| it.borrow().clone()) else {
            return;
        };
        let gauge = self.parts.telemetry.hpa_ignores.clone();
        let mut followed = BTreeSet::new();
        for (key, state) in &cluster.variants {
            let desired = published
                .variants
                .get(key)
                .and_then(|variant| variant.decided.as_ref())
                .map(|decided| decided.decision.desired());
            let ignored = desired.and_then(|desired| state.ignored(desired));
            if let Some(follower) = &state.follower {
                let labels = [key.namespace.as_str(), key.variant.as_str(), follower.hpa.as_str()];
                gauge.with_label_values(&labels).set(f64::from(u8::from(ignored.is_some())));
                followed.insert(labels.map(str::to_owned));
            }

            self.say_ignored(key, ignored);
            let mut findings = state.findings.clone();
            findings.retain(|finding| !pace::is_intended(finding, self.pipeline.policy()));
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
                "The HPA ignores the desired number, which is within its tolerance. Add to it:\n{}",
                ignored.remedy()
            );
            if let Some(announcer) = &self.parts.announcer {
                announcer.ignored(key, &ignored);
            }

            self.ignored.insert(key.clone(), ignored);
        }
    }
}
