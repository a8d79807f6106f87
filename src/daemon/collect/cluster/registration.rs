//! The two objects that tie an aggregated API server to the cluster that it serves.
//!
//! `kube-system/extension-apiserver-authentication` says whom to believe when a request claims to
//! come from the API server. `v1beta1.external.metrics.k8s.io` says who answers for the group, and
//! there can be only one. A second provider that is installed later takes it over without a word,
//! and KEDA's operator rewrites its `caBundle` by name; in both cases HPAs stop getting numbers and
//! nothing in our own process fails, so it is watched.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span, warn};

use crate::collect::cluster::follow::{Change, Failure, Pace, Selection, follow};
use crate::collect::replace;

const AUTHENTICATION_NAMESPACE: &str = "kube-system";
const AUTHENTICATION_NAME: &str = "extension-apiserver-authentication";
/// The one object that says who answers for external metrics.
pub const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// What the `APIService` should say. What is `None` is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Namespace and name of the Service that should answer.
    pub service: Option<(String, String)>,
    /// PEM of the authority that signed the certificate that we serve with.
    pub ca_bundle: Option<Vec<u8>>,
}

/// Who answers for `external.metrics.k8s.io`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// We do, and the API server reaches us.
    Ours,
    /// Nobody is registered.
    Absent,
    /// Another Service is registered.
    ForeignService {
        /// Its namespace; empty when the API server itself is meant to answer.
        namespace: String,
        /// Its name; empty when the API server itself is meant to answer.
        name: String,
    },
    /// We are registered, but with another authority's certificate, so that every call fails.
    ForeignCaBundle,
    /// We are registered, and the API server does not reach us.
    Unavailable {
        /// What the API server says.
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

    /// What the object, or its absence, means.
    #[must_use]
    pub fn judge(object: Option<&APIService>, expected: &Expected) -> Self {
        let Some(object) = object else { return Self::Absent };
        let spec = object.spec.clone().unwrap_or_default();
        let service = spec.service.unwrap_or_default();
        let found = (service.namespace.unwrap_or_default(), service.name.unwrap_or_default());
        if expected.service.as_ref().is_some_and(|expected| *expected != found) {
            let (namespace, name) = found;
            return Self::ForeignService { namespace, name };
        }
        let bundle = spec.ca_bundle.map(|bundle| bundle.0).unwrap_or_default();
        let checked = !spec.insecure_skip_tls_verify.unwrap_or(false);
        // A bundle may hold an old and a new authority while they are being rotated.
        let trusted = |ca: &Vec<u8>| !certificates(ca).is_disjoint(&certificates(&bundle));
        if checked && expected.ca_bundle.as_ref().is_some_and(|ca| !trusted(ca)) {
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
            None => Self::Unavailable { reason: "the API server has not looked yet".to_owned() },
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

/// Watches who answers for the external metrics, until `stop`; `None` until it is known. What was
/// last known stays while the watch is broken. What is expected is asked for anew each time,
/// because certificates rotate.
pub fn registration(
    client: Client,
    expected: impl Fn() -> Expected + Send + 'static,
    pace: Pace,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<Registration>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<APIService> = Api::all(client);
    let tell = move |change| {
        note_registration(&sender, &expected(), change);
        std::future::ready(())
    };
    let task = async move {
        stop.run_until_cancelled(follow(api, named(API_SERVICE), pace, Some, tell)).await;
    };
    tracker.spawn(task.instrument(info_span!("registration")));
    receiver
}

/// Watches whom the API server's requests are to be authenticated by, until `stop`: the data of
/// `kube-system/extension-apiserver-authentication`; `None` until it is known.
///
/// What was last known stays when the watch breaks, and when the object is deleted: an API server
/// writes it again, and a server that forgets whom to trust in the meantime serves nobody.
pub fn authentication(
    client: Client,
    pace: Pace,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<BTreeMap<String, String>>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<ConfigMap> = Api::namespaced(client, AUTHENTICATION_NAMESPACE);
    let tell = move |change| {
        note_authentication(&sender, change);
        std::future::ready(())
    };
    let facts = |object: ConfigMap| Some(object.data.unwrap_or_default());
    let task = async move {
        stop.run_until_cancelled(follow(api, named(AUTHENTICATION_NAME), pace, facts, tell)).await;
    };
    tracker.spawn(task.instrument(info_span!("authentication")));
    receiver
}

fn note_registration(
    sender: &watch::Sender<Option<Registration>>,
    expected: &Expected,
    change: Change<APIService>,
) {
    hand_over(API_SERVICE, change, |object| {
        replace(sender, Some(Registration::judge(object.as_ref(), expected)));
    });
}

fn note_authentication(
    sender: &watch::Sender<Option<BTreeMap<String, String>>>,
    change: Change<BTreeMap<String, String>>,
) {
    hand_over(AUTHENTICATION_NAME, change, |data| {
        if data.is_none() {
            warn!(object = AUTHENTICATION_NAME, "Object is missing: keeping the last known state");
        } else {
            replace(sender, data);
        }
    });
}

/// Hands over the one object of this name, or that it is gone, if a change is of either.
fn hand_over<T>(name: &str, change: Change<T>, take: impl FnOnce(Option<T>)) {
    match change {
        Change::Synced(objects) => take(objects.into_values().next()),
        Change::Applied(_, object) => take(Some(object)),
        Change::Deleted(_) => take(None),
        Change::Broken(failure) => log_broken(name, &failure),
        Change::Alive | Change::Resuming => {}
    }
}

/// The one object of this name. Roles that allow one name allow no list without this selector.
pub(crate) fn named(name: &str) -> Selection {
    Selection { labels: None, fields: Some(format!("metadata.name={name}")) }
}

pub(crate) fn log_broken(object: &str, failure: &Failure) {
    match failure {
        Failure::Forbidden(error) => {
            warn!(object, %error, "Watch is forbidden: grant list and watch");
        }
        Failure::Absent(error) | Failure::Away(error) => {
            debug!(object, %error, "Watch is broken: keeping the last known state");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn a_registration_is_ours_only_when_service_authority_and_availability_agree() {
        let expected = Expected {
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
        assert_eq!(Registration::judge(Some(&object), &Expected::default()), Registration::Ours);
    }
}
