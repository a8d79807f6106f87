//! Reports changes as Kubernetes Events: on the HPA if one is known, otherwise on the scale target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::collect::cluster::discovery::ObjectRef;
use crate::collect::cluster::discovery::ledger::{Objection, ObjectionCause};
use crate::collect::cluster::keda;
use crate::collect::cluster::{
    ClusterNeeds, ClusterState, Finding, IgnoredChange, ScaledObjectFault, WantedTarget,
};
use crate::publish::Published;
use crate::publish::events::decisions::EventSource;
use crate::publish::events::{EventReason, EventRecorder, EventSubject, ReportedEvent};
use plimsoll_core::fleet::VariantKey;

/// The right to record Events about decisions. A replica that shows another replica's decisions
/// records none, but still tracks them. Every replica records problems with objects, as Events of
/// one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventPermission {
    /// Events are recorded.
    Heard,
    /// Events are not recorded.
    Silent,
}

/// Creates Events from published changes.
pub(crate) struct Announcer {
    recorder: EventRecorder,
    herald: EventSource,
    needs: watch::Receiver<Arc<ClusterNeeds>>,
    targets: BTreeMap<VariantKey, WantedTarget>,
}

impl Announcer {
    pub(crate) fn new(recorder: EventRecorder, needs: watch::Receiver<Arc<ClusterNeeds>>) -> Self {
        let mut announcer =
            Self { recorder, herald: EventSource::default(), needs, targets: BTreeMap::new() };
        announcer.index();
        announcer
    }

    fn index(&mut self) {
        let needs = self.needs.borrow_and_update().clone();
        let wanted = needs.variants.iter();
        self.targets = wanted.map(|it| (it.variant.clone(), it.target.clone())).collect();
    }

    /// Records the changes of a tick.
    pub(crate) fn decisions(
        &mut self,
        now: Duration,
        before: &Published,
        after: &Published,
        cluster: &ClusterState,
        voice: EventPermission,
    ) {
        if self.needs.has_changed().unwrap_or(false) {
            self.index();
        }

        let told = self.herald.tell(now, before, after);
        for told in told.into_iter().filter(|_| voice == EventPermission::Heard) {
            if let Some(discovered) = cluster.discovery.variants.get(&told.variant) {
                let on = reference(&discovered.object);
                self.recorder.record(ReportedEvent { on, reason: told.reason, note: told.note });
                continue;
            }

            let hpa = cluster.variants.get(&told.variant).and_then(|state| state.autoscaler());
            self.record(&told.variant, hpa, told.reason, told.note);
        }
    }

    /// Records that an HPA ignores its desired replicas.
    pub(crate) fn ignored(&self, variant: &VariantKey, ignored: &IgnoredChange) {
        let note = format!("{ignored}; set spec.behavior.*.tolerance to \"0\" in the HPA");
        self.record(variant, Some(&ignored.hpa), EventReason::HpaIgnoresDesired, note);
    }

    /// Records a problem that keeps an HPA from following its desired replicas. An HPA that does
    /// not read them may get them from another provider, so that case is only logged.
    pub(crate) fn finding(&self, variant: &VariantKey, finding: &Finding) {
        match finding {
            Finding::WrongTargetType { hpa, .. }
            | Finding::WrongAverageValue { hpa, .. }
            | Finding::WrongSelector { hpa, .. }
            | Finding::SumsVariants { hpa, .. }
            | Finding::OtherMetrics { hpa, .. }
            | Finding::DirectionDisabled { hpa, .. }
            | Finding::SlowPolicies { hpa, .. } => {
                self.record(variant, Some(hpa), EventReason::HpaMisconfigured, finding.to_string());
            }
            Finding::ConditionFalse { hpa, .. } | Finding::ScalingDisabled { hpa } => {
                self.record(variant, Some(hpa), EventReason::HpaNotScaling, finding.to_string());
            }
            Finding::ScaledObject { scaled_object, fault } => {
                let reason = match fault {
                    ScaledObjectFault::ScaleInPaused | ScaledObjectFault::ScaleOutPaused => {
                        EventReason::KedaPaused
                    }
                    _ => EventReason::KedaMisconfigured,
                };
                self.record_on_keda(variant, scaled_object, reason, finding.to_string());
            }
            Finding::Paused { scaled_object, .. } => {
                let reason = EventReason::KedaPaused;
                self.record_on_keda(variant, scaled_object, reason, finding.to_string());
            }
            Finding::NotRead { .. } => {}
        }
    }

    fn record_on_keda(
        &self,
        variant: &VariantKey,
        scaled_object: &str,
        reason: EventReason,
        note: String,
    ) {
        let on = EventSubject {
            api_version: keda::API_VERSION.to_owned(),
            kind: keda::KIND.to_owned(),
            namespace: variant.namespace.as_str().to_owned(),
            name: scaled_object.to_owned(),
            uid: None,
        };
        self.recorder.record(ReportedEvent { on, reason, note });
    }

    /// Records a problem that keeps an object from declaring a variant.
    pub(crate) fn objection(&self, objection: &Objection) {
        let Objection { object, cause } = objection;
        let reason = match cause {
            ObjectionCause::Refused { .. } => EventReason::AnnotationsRefused,
            ObjectionCause::Doubted { .. } => EventReason::AnnotationsWithoutEffect,
            ObjectionCause::TargetTaken { .. } => EventReason::ScaleTargetTaken,
            ObjectionCause::NameTaken { .. } => EventReason::VariantNameTaken,
            ObjectionCause::TooMany { .. } => EventReason::TooManyVariants,
            ObjectionCause::CredentialsWithheld(_) => EventReason::CredentialsWithheld,
        };

        self.recorder.record(ReportedEvent {
            on: reference(object),
            reason,
            note: cause.to_string(),
        });
    }

    /// Records on the HPA, otherwise on the scale target. Pods without a scaler have no object that
    /// people look at.
    fn record(&self, variant: &VariantKey, hpa: Option<&str>, reason: EventReason, note: String) {
        let (api_version, kind, name) = match (hpa, self.targets.get(variant)) {
            (Some(hpa), _) => ("autoscaling/v2", "HorizontalPodAutoscaler", hpa),
            (None, Some(WantedTarget::Scale { api_version, kind, name })) => {
                (api_version.as_str(), kind.as_str(), name.as_str())
            }
            (None, Some(WantedTarget::Selector(_) | WantedTarget::Elsewhere) | None) => return,
        };

        let on = EventSubject {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: variant.namespace.as_str().to_owned(),
            name: name.to_owned(),
            uid: None,
        };

        self.recorder.record(ReportedEvent { on, reason, note });
    }
}

fn reference(object: &ObjectRef) -> EventSubject {
    let ObjectRef { api_version, kind, namespace, name, uid } = object.clone();
    EventSubject { api_version, kind, namespace, name, uid }
}
