//! Checks of the way from an HPA to the metrics API: registration, Service, front proxy, answers.

use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::Value;
use x509_parser::pem::Pem;

use crate::cli::doctor::evidence::{ClusterEvidence, EndpointCounts, Evidence, PathAnswer};
use crate::cli::doctor::permission::registration_name;
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen};
use plimsoll_core::fleet::VariantKey;
use plimsoll_daemon::collect::cluster::{API_SERVICE, ApiServiceFields, Registration};
use plimsoll_daemon::config::{ExternalMetrics, counted};
use plimsoll_daemon::server::auth::TrustAnchor;

/// An authority that is valid for less is about to expire. It is renewed by hand or by another
/// program, which may have to be told.
const VALID_MIN: i64 = 14 * 24 * 3600;

/// The condition of a namespace that cannot be deleted while an API does not answer.
const DELETION: &str = "NamespaceDeletionDiscoveryFailure";

/// The suffix of the groups that Plimsoll can serve.
const GROUPS: &str = ".metrics.k8s.io";

/// A registration, and the daemon's judgement of it.
struct RegistrationView<'a> {
    cluster: &'a ClusterEvidence,
    name: &'static str,
    object: Option<&'a APIService>,
    judged: Registration,
}

// === impl RegistrationView ===

impl<'a> RegistrationView<'a> {
    /// Classifies the registration as the daemon does.
    fn new(evidence: &'a Evidence) -> Result<Self, Unseen> {
        let cluster = evidence.cluster()?;
        let served = served(evidence)?;
        let object = cluster.registration.read()?.as_ref();

        let own = served.and_then(|served| served.tls.self_managed.as_ref());
        let names = &cluster.names;
        let service = match own {
            Some(own) => {
                (own.namespace.clone().unwrap_or_else(|| names.namespace.clone()), &own.service)
            }
            None => (names.namespace.clone(), &names.name),
        };
        let expected =
            ApiServiceFields { service: Some((service.0, service.1.clone())), ca_bundle: None };

        let name = served.map_or(API_SERVICE, registration_name);
        let judged = Registration::judge(object, &expected);
        Ok(Self { cluster, name, object, judged })
    }

    /// The registration, if it leads to Plimsoll.
    fn ours(evidence: &'a Evidence) -> Result<Self, Unseen> {
        let registered = Self::new(evidence)?;
        match registered.judged {
            Registration::Absent | Registration::ForeignService { .. } => {
                Err(Unseen::NotApplicable("the check registration has a problem".to_owned()))
            }
            Registration::Ours
            | Registration::ForeignCaBundle
            | Registration::Unavailable { .. } => Ok(registered),
        }
    }
}

/// The settings of the metrics API; `None` without a configuration.
fn served(evidence: &Evidence) -> Result<Option<&ExternalMetrics>, Unseen> {
    let Ok(config) = evidence.config() else { return Ok(None) };
    match config.config.keys.external_metrics.as_ref().filter(|served| served.enabled) {
        Some(served) => Ok(Some(served)),
        None => Err(Unseen::NotApplicable("the configuration has no external_metrics".to_owned())),
    }
}

pub(super) fn registered(evidence: &Evidence) -> Findings {
    let RegistrationView { name, judged, .. } = RegistrationView::new(evidence)?;
    let says = |registration: &Registration| registration.problem().unwrap_or_default();

    Ok(vec![match &judged {
        Registration::Absent | Registration::ForeignService { .. } => {
            Symptom::failure(says(&judged)).of(format!("APIService {name}"))
        }
        Registration::Ours | Registration::ForeignCaBundle | Registration::Unavailable { .. } => {
            Symptom::ok(format!("APIService {name}"))
        }
    }])
}

pub(super) fn available(evidence: &Evidence) -> Findings {
    let RegistrationView { name, judged, .. } = RegistrationView::ours(evidence)?;
    Ok(vec![match judged.problem() {
        None => Symptom::ok("the condition Available is True"),
        Some(problem) => Symptom::failure(problem)
            .of(format!("APIService {name}"))
            .fix(format!("kubectl describe apiservice {name}; see docs/external-metrics.md")),
    }])
}

pub(super) fn ca_bundle(evidence: &Evidence) -> Findings {
    let RegistrationView { object, judged, .. } = RegistrationView::ours(evidence)?;
    let spec = object.and_then(|object| object.spec.clone()).unwrap_or_default();
    if spec.insecure_skip_tls_verify.unwrap_or(false) {
        let text = "spec.insecureSkipTLSVerify is true: the API server believes any server";
        return Ok(vec![Symptom::warning(text)]);
    }
    if is_foreign(evidence) {
        let text = "the daemon reports that caBundle is not the authority of its certificate";
        return Ok(vec![Symptom::failure(text)]);
    }
    if let Registration::Unavailable { reason } = &judged
        && (reason.contains("x509") || reason.contains("certificate"))
    {
        return Ok(vec![Symptom::failure(reason)]);
    }

    let bundle = spec.ca_bundle.map(|pem| pem.0).unwrap_or_default();
    let now = evidence.now.as_second();
    let mut valid = None;
    let mut all = 0;
    for pem in Pem::iter_from_buffer(&bundle) {
        let read = pem.map_err(|error| error.to_string());
        let until = read.and_then(|pem| {
            let certificate = pem.parse_x509().map_err(|error| error.to_string())?;
            Ok(certificate.validity().not_after.timestamp())
        });
        match until {
            Ok(until) => valid = valid.max(Some(until)),
            Err(error) => return Ok(vec![Symptom::failure(format!("spec.caBundle: {error}"))]),
        }
        all += 1;
    }

    let Some(until) = valid else {
        return Ok(vec![Symptom::failure("spec.caBundle has no certificate")]);
    };
    let left = until - now;
    let text = format!("the newest of {all} is valid for {}", days(left as f64));
    Ok(vec![if left <= 0 {
        Symptom::failure(format!("all {all} authorities in spec.caBundle have expired"))
    } else if left < VALID_MIN {
        Symptom::warning(text)
    } else {
        Symptom::ok(text)
    }])
}

/// Returns true if the daemon finds another authority than its own in the registration.
fn is_foreign(evidence: &Evidence) -> bool {
    let status = evidence.daemon.read().and_then(|daemon| daemon.status.read());
    status
        .is_ok_and(|status| status["api_service"]["state"] == Registration::ForeignCaBundle.label())
}

/// Seconds in words.
pub(super) fn days(seconds: f64) -> String {
    let hours = (seconds / 3600.0).floor();
    if hours >= 48.0 {
        format!("{} days", (hours / 24.0).floor())
    } else {
        format!("{hours} hours")
    }
}

pub(super) fn service(evidence: &Evidence) -> Findings {
    let registered = RegistrationView::new(evidence)?;
    let cluster = registered.cluster;
    let spec = registered.object.and_then(|object| object.spec.clone()).unwrap_or_default();
    let named = spec.service.unwrap_or_default();
    let label = format!(
        "Service {}/{}",
        named.namespace.as_deref().unwrap_or_default(),
        named.name.as_deref().unwrap_or_default()
    );

    let Some(service) = cluster.service.read()? else {
        return Ok(vec![Symptom::failure("it does not exist").of(label)]);
    };
    let port = named.port.unwrap_or(443);
    if !has_port(service, port) {
        let text = format!("it has no port {port}, which the APIService calls");
        return Ok(vec![Symptom::failure(text).of(label)]);
    }
    if let Some(name) = service.spec.as_ref().and_then(|spec| spec.external_name.as_ref()) {
        return Ok(vec![Symptom::ok(format!("{label} is an alias of {name}"))]);
    }

    let EndpointCounts { all, ready } = cluster.endpoints.read()?;
    let text = format!("{ready} of {all} endpoints are ready");
    Ok(vec![if *ready == 0 {
        Symptom::failure(text).of(label)
    } else {
        Symptom::ok(format!("{label}: {text}"))
    }])
}

fn has_port(service: &Service, port: i32) -> bool {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref());
    ports.into_iter().flatten().any(|it| it.port == port)
}

pub(super) fn front_proxy(evidence: &Evidence) -> Findings {
    served(evidence)?;
    let Some(data) = evidence.cluster()?.trust.read()? else {
        return Ok(vec![Symptom::failure("it does not exist")]);
    };

    Ok(vec![match TrustAnchor::from_config_map(data) {
        Ok(_) => Symptom::ok("they are valid certificates"),
        Err(error) => Symptom::failure(error.to_string()),
    }])
}

pub(super) fn headers(evidence: &Evidence) -> Findings {
    served(evidence)?;
    let data = evidence.cluster()?.trust.read()?.as_ref();
    let anchor = data.and_then(|data| TrustAnchor::from_config_map(data).ok());
    let Some(anchor) = anchor else {
        return Err(Unseen::NotApplicable("the check front-proxy has a problem".to_owned()));
    };

    let smuggled = anchor.smuggled_headers();
    if smuggled.is_empty() {
        return Ok(vec![Symptom::ok("they have their usual names")]);
    }
    let text = format!("a user can send {} through the API server", smuggled.join(", "));
    Ok(vec![Symptom::failure(text)])
}

pub(super) fn path(evidence: &Evidence) -> Findings {
    let PathAnswer { status, text } = RegistrationView::ours(evidence)?.cluster.path.read()?;
    Ok(vec![match status {
        200 => Symptom::ok("200"),
        // The metrics API lets everyone read this path, so the API server refused.
        403 => Symptom::unknown(format!("you may not read it: {}", message(text))),
        _ => Symptom::failure(format!("the API server returned {status}: {}", message(text))),
    }])
}

/// The message of a Kubernetes status, or the text itself.
fn message(text: &str) -> String {
    let read: Value = serde_json::from_str(text).unwrap_or_default();
    let shown = read["message"].as_str().unwrap_or(text).trim();
    shown.chars().take(400).collect()
}

pub(super) fn numbers(evidence: &Evidence) -> Findings {
    let registered = RegistrationView::ours(evidence)?;
    if registered.name != API_SERVICE {
        return Err(Unseen::NotApplicable("Object metrics are not enabled".to_owned()));
    }

    let cluster = registered.cluster;
    let all = cluster.state.read()?.variants.len();
    let mut served = 0;
    let mut symptoms = Vec::new();
    for (key, answer) in &cluster.numbers {
        match answer.read() {
            Ok(PathAnswer { status: 403, text }) => {
                let reason = format!("you may not get its metric: {}", message(text));
                symptoms.push(Symptom::unknown(reason).of(key));
            }
            Ok(answer) => match problem(answer) {
                None => served += 1,
                Some(problem) => symptoms.push(number_of(key, problem)),
            },
            Err(Unseen::Unknown(reason) | Unseen::NotApplicable(reason)) => {
                symptoms.push(Symptom::unknown(reason).of(key));
            }
        }
    }

    if all == 0 {
        return Err(Unseen::NotApplicable("there are no variants".to_owned()));
    }
    if served > 0 {
        let asked = cluster.numbers.len();
        let sampled = if asked < all { format!("{asked} asked, of ") } else { String::new() };
        let variants = counted(all, "variant");
        symptoms.push(Symptom::ok(format!("desired replicas for {served} of {sampled}{variants}")));
    }
    Ok(symptoms)
}

fn number_of(key: &VariantKey, problem: String) -> Symptom {
    Symptom::failure(problem).of(key).fix(format!("plimsoll explain {key}"))
}

/// The problem of an answer that should have one number.
fn problem(answer: &PathAnswer) -> Option<String> {
    let PathAnswer { status, text } = answer;
    if *status != 200 {
        return Some(format!("the API server returned {status}: {}", message(text)));
    }

    let read: Value = serde_json::from_str(text).unwrap_or_default();
    match read["items"].as_array().map(Vec::len) {
        Some(1) => None,
        Some(items) => Some(format!("the response has {items} values")),
        None => Some("the response is not a list of metrics".to_owned()),
    }
}

pub(super) fn deletion(evidence: &Evidence) -> Findings {
    let namespaces = evidence.cluster()?.namespaces.read()?;
    let waiting: Vec<Symptom> = namespaces.iter().filter_map(stuck).collect();
    if waiting.is_empty() {
        let text = counted(namespaces.len(), "namespace");
        return Ok(vec![Symptom::ok(text)]);
    }
    Ok(waiting)
}

fn stuck(namespace: &Namespace) -> Option<Symptom> {
    let conditions = namespace.status.as_ref()?.conditions.as_ref()?;
    let failing = conditions.iter().find(|it| it.type_ == DELETION && it.status == "True")?;
    let message = failing.message.as_deref().unwrap_or_default();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    message.contains(GROUPS).then(|| Symptom::failure(message).of(format!("namespace {name}")))
}
