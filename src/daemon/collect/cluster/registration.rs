//! The two objects that connect an aggregated API server to its cluster.
//!
//! `kube-system/extension-apiserver-authentication` lists the authorities that authenticate
//! requests from the API server. `v1beta1.external.metrics.k8s.io` registers the Service for the
//! API group, and only one can be registered. A second provider that is installed later replaces it
//! silently, and KEDA's operator rewrites its `caBundle` by name. In both cases HPAs no longer get
//! metrics, although nothing fails in Plimsoll's own process. Plimsoll therefore watches the
//! registration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span, warn};

use crate::collect::cluster::follow::{Selection, WatchChange, WatchFailure, WatchTiming, follow};
use crate::collect::replace;

const AUTHENTICATION_NAMESPACE: &str = "kube-system";
const AUTHENTICATION_NAME: &str = "extension-apiserver-authentication";
/// The object that registers the Service for external metrics.
pub const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";
/// The object that registers the Service for Object metrics.
pub const OBJECT_API_SERVICE: &str = "v1beta2.custom.metrics.k8s.io";

/// The interval at which a registration is judged again. Certificates are read as often.
const JUDGE_INTERVAL: Duration = Duration::from_secs(10);

/// The expected fields of the `APIService`. A field that is `None` is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServiceFields {
    /// Namespace and name of the Service.
    pub service: Option<(String, String)>,
    /// PEM of the authority that signed Plimsoll's serving certificate.
    pub ca_bundle: Option<Vec<u8>>,
}

/// The registration of `external.metrics.k8s.io`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Plimsoll is registered, and the API server reaches it.
    Ours,
    /// No Service is registered.
    Absent,
    /// Another Service is registered.
    ForeignService {
        /// Its namespace; empty if the API server itself serves the group.
        namespace: String,
        /// Its name; empty if the API server itself serves the group.
        name: String,
    },
    /// Plimsoll is registered with another authority's certificate, so every call fails.
    ForeignCaBundle,
    /// Plimsoll is registered, but the API server does not reach it.
    Unavailable {
        /// The reason that the API server reports.
        reason: String,
    },
}

impl Registration {
    /// The label values of all registrations.
    pub const LABELS: [&'static str; 5] =
        ["ours", "absent", "foreign_service", "foreign_ca_bundle", "unavailable"];

    /// The registration as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Absent => "absent",
            Self::ForeignService { .. } => "foreign_service",
            Self::ForeignCaBundle => "foreign_ca_bundle",
            Self::Unavailable { .. } => "unavailable",
        }
    }

    /// What is wrong, as a sentence; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Absent => {
                Some("no APIService is registered, so no HPA can read metrics".to_owned())
            }
            Self::ForeignService { namespace, name } => {
                Some(format!("it belongs to another provider, the Service {namespace}/{name}"))
            }
            Self::ForeignCaBundle => {
                Some("its caBundle is not the authority of Plimsoll's certificate".to_owned())
            }
            Self::Unavailable { reason } => {
                Some(format!("the API server does not reach Plimsoll: {reason}"))
            }
        }
    }

    /// Classifies the object, or its absence.
    #[must_use]
    pub fn judge(object: Option<&APIService>, expected: &ApiServiceFields) -> Self {
        let Some(object) = object else { return Self::Absent };
        let spec = object.spec.clone().unwrap_or_default();
        let service = spec.service.unwrap_or_default();
        let found = (service.namespace.unwrap_or_default(), service.name.unwrap_or_default());
        if expected.service.as_ref().is_some_and(|expected| *expected != found) {
            let (namespace, name) = found;
            return Self::ForeignService { namespace, name };
        }

        let checked = !spec.insecure_skip_tls_verify.unwrap_or(false);
        // During a rotation, a bundle may hold an old and a new authority.
        let trusted = certificates(&spec.ca_bundle.map(|pem| pem.0).unwrap_or_default());
        let ours = expected.ca_bundle.as_ref();
        if checked && ours.is_some_and(|ca| certificates(ca).is_disjoint(&trusted)) {
            return Self::ForeignCaBundle;
        }

        let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
        let available = conditions.and_then(|all| all.iter().find(|is| is.type_ == "Available"));
        match available {
            Some(condition) if condition.status == "True" => Self::Ours,
            Some(condition) => Self::Unavailable {
                reason: [condition.reason.as_deref(), condition.message.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(": "),
            },
            None => {
                Self::Unavailable { reason: "the API server has not checked it yet".to_owned() }
            }
        }
    }
}

/// The base64 bodies of the certificates in a PEM bundle, without their line breaks.
fn certificates(pem: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(pem);
    let blocks = text.split("-----BEGIN CERTIFICATE-----").skip(1);
    blocks
        .filter_map(|block| block.split_once("-----END CERTIFICATE-----"))
        .map(|(body, _)| body.split_whitespace().collect())
        .collect()
}

/// The registration of an API group as it was last seen.
struct SeenRegistration<E> {
    name: &'static str,
    /// Returns the expected fields. They change when certificates rotate.
    expected: E,
    /// The object, or its absence; `None` before the first list.
    object: Mutex<Option<SeenObject>>,
    shown: watch::Sender<Option<Registration>>,
}

struct SeenObject(Option<APIService>);

impl<E: Fn() -> ApiServiceFields> SeenRegistration<E> {
    fn note(&self, change: WatchChange<APIService>) {
        hand_over(self.name, change, |object| {
            *self.object.lock().unwrap_or_else(PoisonError::into_inner) = Some(SeenObject(object));
        });
        self.judge();
    }

    fn judge(&self) {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(SeenObject(object)) = &*object {
            let found = Registration::judge(object.as_ref(), &(self.expected)());
            replace(&self.shown, Some(found));
        }
    }
}

/// Watches the registration with this name, until `stop`; `None` until it is known. The last
/// known registration is kept while the watch is broken. It is judged after every change, and at an
/// interval: a mounted authority can arrive later than the registration that names it.
pub fn registration(
    client: Client,
    name: &'static str,
    expected: impl Fn() -> ApiServiceFields + Send + Sync + 'static,
    pace: WatchTiming,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<Registration>> {
    let (shown, receiver) = watch::channel(None);
    let seen = SeenRegistration { name, expected, object: Mutex::new(None), shown };
    let api: Api<APIService> = Api::all(client);

    let task = async move {
        let following = Box::pin(follow(api, named(name), pace, Some, |change| {
            seen.note(change);
            std::future::ready(())
        }));
        let judging = async {
            loop {
                sleep(JUDGE_INTERVAL).await;
                seen.judge();
            }
        };
        let both = async { tokio::join!(following, judging) };
        stop.run_until_cancelled(both).await;
    };
    tracker.spawn(task.instrument(info_span!("registration")));
    receiver
}

/// Watches the authorities that authenticate the API server's requests, until `stop`: the data of
/// `kube-system/extension-apiserver-authentication`; `None` until it is known.
///
/// The last known data is kept while the watch is broken and when the object is deleted. An API
/// server recreates the object. A server that forgot its trusted authorities in the meantime would
/// reject all requests.
pub fn authentication(
    client: Client,
    pace: WatchTiming,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<BTreeMap<String, String>>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<ConfigMap> = Api::namespaced(client, AUTHENTICATION_NAMESPACE);
    let following = follow(
        api,
        named(AUTHENTICATION_NAME),
        pace,
        |object: ConfigMap| Some(object.data.unwrap_or_default()),
        move |change| {
            note_authentication(&sender, change);
            std::future::ready(())
        },
    );

    let task = async move {
        stop.run_until_cancelled(following).await;
    };
    tracker.spawn(task.instrument(info_span!("authentication")));
    receiver
}

fn note_authentication(
    sender: &watch::Sender<Option<BTreeMap<String, String>>>,
    change: WatchChange<BTreeMap<String, String>>,
) {
    hand_over(AUTHENTICATION_NAME, change, |data| {
        if data.is_none() {
            warn!(object = AUTHENTICATION_NAME, "Object is missing: keeping the last known state");
        } else {
            replace(sender, data);
        }
    });
}

/// Passes on the object with this name, or its deletion, if the change is either of these.
fn hand_over<T>(name: &str, change: WatchChange<T>, take: impl FnOnce(Option<T>)) {
    match change {
        WatchChange::Synced(objects) => take(objects.into_values().next()),
        WatchChange::Applied(_, object) => take(Some(object)),
        WatchChange::Deleted(_) => take(None),
        WatchChange::Broken(failure) => log_broken(name, &failure),
        WatchChange::Alive | WatchChange::Resuming => {}
    }
}

/// Selects the object with this name. Roles that allow a single name deny lists without this
/// selector.
pub(crate) fn named(name: &str) -> Selection {
    Selection { fields: Some(format!("metadata.name={name}")) }
}

pub(crate) fn log_broken(object: &str, failure: &WatchFailure) {
    match failure {
        WatchFailure::Forbidden(error) => {
            warn!(object, %error, "Watch is forbidden: grant list and watch");
        }
        WatchFailure::Absent(error) | WatchFailure::Away(error) => {
            debug!(object, %error, "Watch is broken: keeping the last known state");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::collect::cluster::follow::ObjectName;

    const OURS: &str = "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n";
    const OTHER: &str = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n";

    fn object(service: &str, bundle: &str, available: Option<(&str, &str)>) -> APIService {
        let mut object: APIService = serde_json::from_value(json!({
            "metadata": {"name": API_SERVICE},
            "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1",
                     "groupPriorityMinimum": 100, "versionPriority": 100,
                     "service": {"namespace": "plimsoll", "name": service}},
            "status": {"conditions": available.map(|(status, reason)| json!([
                {"type": "Available", "status": status, "reason": reason, "message": "why"}
            ]))},
        }))
        .unwrap();
        if let Some(spec) = &mut object.spec {
            spec.ca_bundle = Some(k8s_openapi::ByteString(bundle.into()));
        }

        object
    }

    #[test]
    fn an_authority_that_arrives_after_the_registration_is_noticed() {
        let mounted = Mutex::new(OTHER);
        let (shown, receiver) = watch::channel(None);
        let expected = || ApiServiceFields {
            service: None,
            ca_bundle: Some(mounted.lock().unwrap().as_bytes().to_vec()),
        };
        let seen =
            SeenRegistration { name: API_SERVICE, expected, object: Mutex::new(None), shown };
        seen.judge();
        assert_eq!(*receiver.borrow(), None, "nothing is known yet");

        let object = object("metrics", OURS, Some(("True", "Passed")));
        let name = ObjectName { namespace: String::new(), name: API_SERVICE.to_owned() };
        seen.note(WatchChange::Applied(name, object));
        assert_eq!(*receiver.borrow(), Some(Registration::ForeignCaBundle));
        *mounted.lock().unwrap() = OURS;
        seen.judge();
        assert_eq!(*receiver.borrow(), Some(Registration::Ours));
    }

    #[test]
    fn a_registration_is_ours_only_when_service_authority_and_availability_agree() {
        let expected = ApiServiceFields {
            service: Some(("plimsoll".to_owned(), "metrics".to_owned())),
            ca_bundle: Some(OURS.into()),
        };
        let foreign = Registration::ForeignService {
            namespace: "plimsoll".to_owned(),
            name: "keda".to_owned(),
        };
        let unavailable =
            Registration::Unavailable { reason: "FailedDiscoveryCheck: why".to_owned() };

        let both = format!("{OTHER}{OURS}");
        let rewrapped = OURS.replace("AAAA\nBBBB", "AAAABBBB\r");
        for (object, registration) in [
            (Some(object("metrics", OURS, Some(("True", "Passed")))), Registration::Ours),
            (Some(object("metrics", &both, Some(("True", "Passed")))), Registration::Ours),
            (Some(object("metrics", &rewrapped, Some(("True", "Passed")))), Registration::Ours),
            (None, Registration::Absent),
            (Some(object("keda", OURS, Some(("True", "Passed")))), foreign),
            (
                Some(object("metrics", OTHER, Some(("True", "Passed")))),
                Registration::ForeignCaBundle,
            ),
            (Some(object("metrics", "", None)), Registration::ForeignCaBundle),
            (Some(object("metrics", OURS, Some(("False", "FailedDiscoveryCheck")))), unavailable),
        ] {
            assert_eq!(Registration::judge(object.as_ref(), &expected), registration, "{object:?}");
        }
    }

    #[test]
    fn what_is_not_expected_is_not_checked() {
        let object = object("keda", OTHER, Some(("True", "Passed")));
        assert_eq!(
            Registration::judge(Some(&object), &ApiServiceFields::default()),
            Registration::Ours
        );
    }
}
