//! Reports the registration of the external metrics API in a metric and in the log.
//!
//! The API server reaches a new pod only after the kubelet's first readiness probe, and looks again
//! up to half a minute later. So a registration that is absent or unavailable is a warning only if
//! it lasts, or if it worked before.

use std::time::Duration;

use prometheus::GaugeVec;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::Registration;
use crate::publish::api::ApiServiceVitals;

/// Time for the API server to reach a new pod.
const FIRST_REACH_MAX: Duration = Duration::from_mins(1);

/// The registration of the served metrics, as the cluster reports it.
pub(crate) struct FollowedRegistration {
    /// The name of the `APIService`.
    pub(crate) name: &'static str,
    pub(crate) seen: watch::Receiver<Option<Registration>>,
}

/// The reported part of a registration's history.
#[derive(Debug)]
pub(crate) struct RegistrationReport {
    /// The time at which the process started to watch the registration.
    began: Duration,
    /// True if the registration has been anything other than absent or unavailable.
    was_settled: bool,
}

/// The way in which a registration is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportTime {
    Now,
    /// Only if it lasts for this time.
    After(Duration),
}

// === impl FollowedRegistration ===

impl FollowedRegistration {
    /// The facts that the status shows.
    pub(crate) fn vitals(&self) -> ApiServiceVitals {
        let Self { name, seen } = self;
        let (state, problem) = match seen.borrow().as_ref() {
            Some(registration) => (registration.label(), registration.problem()),
            None => ("unknown", Some("the cluster has not reported yet".to_owned())),
        };

        ApiServiceVitals { name, state, problem }
    }
}

// === impl RegistrationReport ===

impl RegistrationReport {
    pub(crate) const fn new(began: Duration) -> Self {
        Self { began, was_settled: false }
    }

    fn time(&mut self, now: Duration, registration: &Registration) -> ReportTime {
        match registration {
            Registration::Absent | Registration::Unavailable { .. } => {}
            Registration::Ours
            | Registration::ForeignService { .. }
            | Registration::ForeignCaBundle => self.was_settled = true,
        }

        let left = (self.began + FIRST_REACH_MAX).saturating_sub(now);
        if self.was_settled || left.is_zero() { ReportTime::Now } else { ReportTime::After(left) }
    }
}

/// Reports each change of the registration, until `stop`.
pub(crate) async fn report(
    object: &'static str,
    mut registration: watch::Receiver<Option<Registration>>,
    mut report: RegistrationReport,
    gauge: GaugeVec,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut waits = None;
    loop {
        let changed = async {
            match waits {
                Some(left) => tokio::time::timeout(left, registration.changed()).await.ok(),
                None => Some(registration.changed().await),
            }
        };
        match stop.run_until_cancelled(changed).await {
            None | Some(Some(Err(_))) => return,
            // A change, or the end of the time that the API server has.
            Some(Some(Ok(())) | None) => {}
        }

        let Some(now) = registration.borrow_and_update().clone() else { continue };
        for label in Registration::LABELS {
            let is = f64::from(u8::from(label == now.label()));
            gauge.with_label_values(&[label]).set(is);
        }

        let first = waits.is_none();
        waits = match report.time(clock.elapsed(), &now) {
            ReportTime::Now => {
                log(object, &now);
                None
            }
            ReportTime::After(left) => {
                if first {
                    info!("Waiting until the API server reaches the external metrics API");
                }
                Some(left)
            }
        };
    }
}

fn log(object: &str, registration: &Registration) {
    match registration {
        Registration::Ours => info!("The API server reaches the external metrics API"),
        Registration::Absent => {
            warn!("No APIService {object} is registered, so no HPA can read metrics");
        }
        Registration::ForeignService { namespace, name } => error!(
            namespace,
            service = name,
            "The APIService {object} belongs to another provider, and a cluster can have only \
             one: remove external_metrics from the configuration, and let the provider read the \
             gauge plimsoll_desired_replicas, such as KEDA with a prometheus trigger \
             (docs/keda.md), or serve Object metrics (docs/two-providers.md)"
        ),
        Registration::ForeignCaBundle => error!(
            "The caBundle of the APIService {object} is not the authority of Plimsoll's \
             certificate; KEDA's operator rewrites it unless it runs with \
             --enable-apiservice-patching=false"
        ),
        Registration::Unavailable { reason } => {
            warn!(reason, "The API server does not reach the external metrics API");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Duration = Duration::from_secs(1_000);

    fn after(seconds: u64) -> Duration {
        BEGAN + Duration::from_secs(seconds)
    }

    fn unavailable() -> Registration {
        Registration::Unavailable { reason: "MissingEndpoints".to_owned() }
    }

    #[test]
    fn a_new_pod_that_is_not_reached_yet_is_no_warning_for_a_minute() {
        let mut report = RegistrationReport::new(BEGAN);
        let left = |seconds| ReportTime::After(Duration::from_secs(seconds));
        assert_eq!(report.time(after(1), &Registration::Absent), left(59));
        assert_eq!(report.time(after(5), &unavailable()), left(55));
        assert_eq!(report.time(after(60), &unavailable()), ReportTime::Now);
    }

    #[test]
    fn a_pod_that_was_reached_once_reports_at_once_that_it_no_longer_is() {
        let mut report = RegistrationReport::new(BEGAN);
        assert_eq!(report.time(after(1), &Registration::Ours), ReportTime::Now);
        assert_eq!(report.time(after(2), &unavailable()), ReportTime::Now);
    }

    #[test]
    fn another_provider_is_reported_at_once() {
        let mut report = RegistrationReport::new(BEGAN);
        assert_eq!(report.time(after(1), &Registration::ForeignCaBundle), ReportTime::Now);
    }
}
