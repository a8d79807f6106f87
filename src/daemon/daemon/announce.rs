//! Says what changed as Kubernetes Events: on the HPA where one is known, else on the scale target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::collect::cluster::discovery::ObjectRef;
use crate::collect::cluster::discovery::ledger::{Cause, Objection};
use crate::collect::cluster::keda;
use crate::collect::cluster::{ClusterState, Finding, Ignored, Needs, Wanted, WantedTarget};
use crate::publish::Published;
use crate::publish::events::decisions::Herald;
use crate::publish::events::{Event, Reason, Recorder, Reference};
use plimsoll_core::fleet::VariantKey;

/// Who may speak about decisions. A replica that shows another's stays silent, and remembers. What
/// is wrong with objects is said by each, in Events of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// What is said is recorded.
    Heard,
    /// Nothing is said.
    Silent,
}

/// Makes events of what is published.
pub(crate) struct Announcer {
    recorder: Recorder,
    herald: Herald,
    needs: watch::Receiver<Arc<Needs>>,
    targets: BTreeMap<VariantKey, WantedTarget>,
}

impl Announcer {
    pub(crate) fn new(recorder: Recorder, needs: watch::Receiver<Arc<Needs>>) -> Self {
        let mut announcer =
            Self { recorder, herald: Herald::default(), needs, targets: BTreeMap::new() };
        announcer.index();
        announcer
    }

    fn index(&mut self) {
        let needs = self.needs.borrow_and_update().clone();
        let target = |want: &Wanted| (want.variant.clone(), want.target.clone());
        self.targets = needs.variants.iter().map(target).collect();
    }

    /// Says what a tick changed.
    pub(crate) fn decisions(
        &mut self,
        now: Duration,
        (before, after): (&Published, &Published),
        cluster: &ClusterState,
        voice: Voice,
    ) {
        if self.needs.has_changed().unwrap_or(false) {
            self.index();
        }
        let told = self.herald.tell(now, before, after);
        for told in told.into_iter().filter(|_| voice == Voice::Heard) {
            if let Some(discovered) = cluster.discovery.variants.get(&told.variant) {
                let on = reference(&discovered.object);
                self.recorder.record(Event { on, reason: told.reason, note: told.note });
                continue;
            }
            let hpa = cluster.variants.get(&told.variant).and_then(|state| state.autoscaler());
            self.record(&told.variant, hpa, told.reason, told.note);
        }
    }

    /// Says that an HPA leaves a number alone.
    pub(crate) fn ignored(&self, variant: &VariantKey, ignored: &Ignored) {
        let note = format!("{ignored}; set spec.behavior.*.tolerance to \"0\" in the HPA");
        self.record(variant, Some(&ignored.hpa), Reason::HpaIgnoresDesired, note);
    }

    /// Says what keeps an HPA from following the number. That the number is not read at all is no
    /// mistake where something else carries it to the HPA, so that is only logged.
    pub(crate) fn finding(&self, variant: &VariantKey, finding: &Finding) {
        match finding {
            Finding::WrongTargetType { hpa, .. } | Finding::WrongAverageValue { hpa, .. } => {
                self.record(variant, Some(hpa), Reason::HpaMisconfigured, finding.to_string());
            }
            Finding::Paused { scaled_object, .. } => {
                let on = Reference {
                    api_version: keda::API_VERSION.to_owned(),
                    kind: keda::KIND.to_owned(),
                    namespace: variant.namespace.as_str().to_owned(),
                    name: scaled_object.clone(),
                    uid: None,
                };
                let (reason, note) = (Reason::KedaPaused, finding.to_string());
                self.recorder.record(Event { on, reason, note });
            }
            Finding::NotRead { .. } => {}
        }
    }

    /// Says what keeps an object from declaring a variant.
    pub(crate) fn objection(&self, objection: &Objection) {
        let Objection { object, cause } = objection;
        let reason = match cause {
            Cause::Refused { .. } => Reason::AnnotationsRefused,
            Cause::Doubted { .. } => Reason::AnnotationsWithoutEffect,
            Cause::TargetTaken { .. } => Reason::ScaleTargetTaken,
            Cause::NameTaken { .. } => Reason::VariantNameTaken,
            Cause::TooMany { .. } => Reason::TooManyVariants,
        };
        self.recorder.record(Event { on: reference(object), reason, note: cause.to_string() });
    }

    /// Records on the HPA, else on the scale target. Pods that nothing scales have no object that
    /// anybody looks at.
    fn record(&self, variant: &VariantKey, hpa: Option<&str>, reason: Reason, note: String) {
        let (api_version, kind, name) = match (hpa, self.targets.get(variant)) {
            (Some(hpa), _) => ("autoscaling/v2", "HorizontalPodAutoscaler", hpa),
            (None, Some(WantedTarget::Scale { api_version, kind, name })) => {
                (api_version.as_str(), kind.as_str(), name.as_str())
            }
            (None, Some(WantedTarget::Selector(_) | WantedTarget::Elsewhere) | None) => return,
        };
        let on = Reference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: variant.namespace.as_str().to_owned(),
            name: name.to_owned(),
            uid: None,
        };
        self.recorder.record(Event { on, reason, note });
    }
}

fn reference(object: &ObjectRef) -> Reference {
    let ObjectRef { api_version, kind, namespace, name, uid } = object.clone();
    Reference { api_version, kind, namespace, name, uid }
}
