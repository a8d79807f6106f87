//! The serving certificate: read from files that another program renews, or issued and renewed by
//! Plimsoll.
//!
//! [`crate::server::certificates`] plans self-issued certificates without IO. This module does the
//! IO: it reads the Secret and the `APIService`, plans, writes, and serves with the content of the
//! Secret. Every write names the version that was read. When two replicas write at once, one write
//! is rejected and that replica reads again. While the API server is not reachable, the last valid
//! certificate stays.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, error, info, info_span, warn};

use crate::clock::Clock;
use crate::collect::cluster::{API_SERVICE, ApiServiceFields, OBJECT_API_SERVICE};
use crate::config::{ExternalMetrics, SelfManaged, ServerTls};
use crate::daemon::context::DaemonContext;
use crate::daemon::kubernetes::Cluster;
use crate::publish::external_metrics::metrics::ApiMetrics;
use crate::server::certificates::{
    self, ApiServiceState, CertificatePlan, CertificatePolicy, CertificateSecret, IssueError,
    SecretChange, SecretError,
};
use crate::server::tls::{self, CertificateError, CertificateReload, ServingCertificate};
use crate::telemetry::CertificateMetrics;

/// The longest time between two checks; the same as for files.
const LOOK_MAX: Duration = tls::RELOAD_INTERVAL;

/// After a write the next check comes soon, because the next step may follow at once. The pause
/// also limits the rate at which two programs can undo each other's writes.
const SOON: Duration = Duration::from_millis(500);

/// The API server answers within a second, or not at all.
const CALL_MAX: Duration = Duration::from_secs(10);

/// The status of a write that names an outdated version.
const CONFLICT: u16 = 409;

/// The kinds of changes, as label values.
const CHANGES: [&str; 5] = [
    SecretChange::Everything.label(),
    SecretChange::Authority.label(),
    SecretChange::Leaf.label(),
    SecretChange::Retirement.label(),
    CA_BUNDLE,
];
const CA_BUNDLE: &str = "ca_bundle";

/// The operations that can fail, as label values.
const OPERATIONS: [&str; 7] = [
    Operation::ReadSecret.label(),
    Operation::WriteSecret.label(),
    Operation::ReadApiService.label(),
    Operation::WriteApiService.label(),
    USE_SECRET,
    ISSUE,
    SERVE,
];
const USE_SECRET: &str = "use_secret";
const ISSUE: &str = "issue";
const SERVE: &str = "serve";

/// The serving certificate, which is renewed while it is in use.
pub(crate) struct ManagedCertificate {
    pub(crate) certificate: Arc<ServingCertificate>,
    /// Returns the expected state of the `APIService`.
    pub(crate) expected: Box<dyn Fn() -> ApiServiceFields + Send + Sync>,
}

/// Loads the serving certificate and follows it, or starts to issue one.
///
/// # Errors
///
/// The files hold no usable certificate. A Secret that cannot be read is not an error: until it can
/// be read, every handshake fails.
pub(crate) async fn follow(
    settings: &ExternalMetrics,
    common: &DaemonContext,
    cluster: Option<&Cluster>,
    metrics: &ApiMetrics,
    telemetry: &CertificateMetrics,
) -> anyhow::Result<ManagedCertificate> {
    let ServerTls { cert_file, key_file, ca_file, self_managed } = settings.tls.clone();
    let Some(own) = self_managed else {
        let files = cert_file.zip(key_file);
        let (cert_file, key_file) = files.context("external_metrics.tls has no certificate")?;
        return follow_files(tls::TlsSettings { cert_file, key_file }, ca_file, common, metrics)
            .await;
    };

    let missing = "external_metrics.tls.self_managed needs kubernetes.enabled";
    let client = cluster.context(missing)?.client();
    let mut upkeep = Upkeep::new(own, client, common, metrics, telemetry);
    if settings.object_metrics {
        upkeep.registrations.push(OBJECT_API_SERVICE);
    }

    Ok(upkeep.start(common))
}

async fn follow_files(
    files: tls::TlsSettings,
    ca_file: Option<PathBuf>,
    common: &DaemonContext,
    metrics: &ApiMetrics,
) -> anyhow::Result<ManagedCertificate> {
    let DaemonContext { clock, stop, tasks, .. } = common;
    let loaded = ServingCertificate::load(clock.now(), files).await;
    let certificate = Arc::new(loaded.context("external_metrics.tls")?);
    metrics.certificate.expires(certificate.not_after());

    let stop = stop.clone();
    let clock = *clock;
    let followed = Arc::clone(&certificate);
    let metrics = metrics.clone();
    tasks.spawn(async move {
        let following = followed.follow(clock, tls::RELOAD_INTERVAL, stop, |outcome| {
            metrics.certificate.reloaded(outcome, followed.not_after());
        });
        following.await;
    });

    let named = Arc::clone(&certificate);
    let expected = Box::new(move || ApiServiceFields {
        service: service(&named.dns_names()),
        ca_bundle: ca_file.as_ref().and_then(|file| std::fs::read(file).ok()),
    });
    Ok(ManagedCertificate { certificate, expected })
}

/// Namespace and name of the Service that a certificate with these names is for. An API server
/// calls `SERVICE.NAMESPACE.svc`, so that name is among them.
fn service(dns_names: &[String]) -> Option<(String, String)> {
    dns_names.iter().find_map(|name| {
        let (service, namespace) = name.strip_suffix(".svc")?.split_once('.')?;
        Some((namespace.to_owned(), service.to_owned()))
    })
}

/// Maintains a self-issued certificate.
struct Upkeep {
    policy: CertificatePolicy,
    secret: String,
    secrets: Api<Secret>,
    api_services: Api<APIService>,
    /// The `APIService`s that may register the Service.
    registrations: Vec<&'static str>,
    certificate: Arc<ServingCertificate>,
    authorities: watch::Sender<Option<Vec<u8>>>,
    clock: Clock,
    metrics: ApiMetrics,
    telemetry: CertificateMetrics,
    /// The authority whose presence in the `caBundle` is timed, and since when, by the monotonic
    /// clock.
    trusted_since: Option<(Vec<u8>, Duration)>,
}

/// The result of a check.
enum CheckOutcome {
    /// Nothing needs to change.
    Settled,
    /// Plimsoll or another program has written something.
    Changed,
}

/// The reason that maintaining the certificate failed. The certificate in use stays.
#[derive(Debug, thiserror::Error)]
enum UpkeepError {
    #[error("cannot {} {object}", operation.what())]
    Call {
        operation: Operation,
        object: String,
        #[source]
        source: Box<kube::Error>,
    },
    // The status contains its message several times.
    #[error("cannot {} {object}: {message}", operation.what())]
    Refused { operation: Operation, object: String, code: u16, message: String },
    #[error("cannot {} {object}: no response in {} s", operation.what(), CALL_MAX.as_secs())]
    Silence { operation: Operation, object: String },
    #[error("the Secret {name} cannot be used")]
    Secret {
        name: String,
        #[source]
        source: SecretError,
    },
    #[error("cannot create the Secret's content")]
    Issue(#[source] IssueError),
    #[error("the certificate of the Secret {name} cannot be served")]
    Serve {
        name: String,
        #[source]
        source: CertificateError,
    },
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    ReadSecret,
    WriteSecret,
    ReadApiService,
    WriteApiService,
}

// === impl Upkeep ===

impl Upkeep {
    fn new(
        own: SelfManaged,
        client: Client,
        common: &DaemonContext,
        metrics: &ApiMetrics,
        telemetry: &CertificateMetrics,
    ) -> Self {
        let SelfManaged { secret, service, namespace: given, leaf_lifetime, ca_lifetime } = own;
        let namespace = given.unwrap_or_else(|| client.default_namespace().to_owned());
        telemetry.start(&CHANGES, &OPERATIONS);

        let parts = tls::TlsSettings {
            cert_file: format!("tls.crt of the Secret {namespace}/{secret}").into(),
            key_file: format!("tls.key of the Secret {namespace}/{secret}").into(),
        };

        Self {
            secrets: Api::namespaced(client.clone(), &namespace),
            api_services: Api::all(client),
            registrations: vec![API_SERVICE],
            certificate: Arc::new(ServingCertificate::awaited(parts)),
            authorities: watch::Sender::new(None),
            clock: common.clock,
            metrics: metrics.clone(),
            telemetry: telemetry.clone(),
            trusted_since: None,
            policy: CertificatePolicy { service, namespace, leaf_lifetime, ca_lifetime },
            secret,
        }
    }

    fn start(self, common: &DaemonContext) -> ManagedCertificate {
        let certificate = Arc::clone(&self.certificate);
        let authorities = self.authorities.subscribe();
        let policy = self.policy.clone();
        let expected = Box::new(move || ApiServiceFields {
            service: Some((policy.namespace.clone(), policy.service.clone())),
            ca_bundle: authorities.borrow().clone(),
        });

        let run = self.run(common.stop.clone());
        common.tasks.spawn(run.instrument(info_span!("certificate")));
        ManagedCertificate { certificate, expected }
    }

    async fn run(mut self, stop: CancellationToken) {
        // Several checks within the time that clients and replicas get to see a change.
        let interval = LOOK_MAX.min(self.policy.settle() / 2);
        let mut last = None;
        loop {
            let look = stop.run_until_cancelled(self.look()).await;
            let pause = match look {
                None => return,
                Some(Ok(CheckOutcome::Changed)) => SOON,
                Some(Ok(CheckOutcome::Settled)) => {
                    last = None;
                    interval
                }
                Some(Err(problem)) => {
                    self.telemetry.failures.with_label_values(&[problem.label()]).inc();
                    let text = format!("{:#}", anyhow::Error::new(problem));
                    // An error that persists for hours is logged once; the metric counts every one.
                    if last.as_ref() != Some(&text) {
                        self.say(&text);
                    }

                    last = Some(text);
                    interval
                }
            };

            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    fn say(&self, problem: &str) {
        if let Some(not_after) = self.certificate.not_after() {
            let text = "The serving certificate cannot be maintained; the current one stays in use";
            warn!(error = problem, %not_after, "{text}");
        } else {
            let text =
                "There is no serving certificate, so the external metrics API is unavailable";
            error!(error = problem, "{text}");
        }
    }

    /// Reads, plans, writes, and serves with the content of the Secret.
    async fn look(&mut self) -> Result<CheckOutcome, UpkeepError> {
        let stored = self.read_secret().await?;
        let values = stored.as_ref().and_then(|secret| secret.data.as_ref());
        let held =
            held(values).map_err(|source| UpkeepError::Secret { name: self.name(), source })?;
        // The certificate is renewed even while the registered `APIService` is not known.
        let (registered, unknown) = match self.read_api_service(held.as_ref()).await {
            Ok(object) => (object, None),
            Err(problem) => (None, Some(problem)),
        };
        let now = self.clock.now();
        let state = self.state(held.as_ref(), registered.as_ref(), unknown.is_some());
        let CertificatePlan { secret, bundle } =
            certificates::plan(now, &self.policy, held.as_ref(), &state);
        // The certificate in the Secret is served even if the writes below fail, because the other
        // replicas also serve it. An expired certificate is rejected here, and replaced below.
        let served = held.as_ref().map_or(Ok(()), |held| self.serve(held));
        let mut changed = false;
        if let (Some(bundle), Some(object)) = (bundle, &registered) {
            self.write_bundle(bundle, object).await?;
            changed = true;
        }

        if let Some(change) = secret {
            self.write_secret(change, held.as_ref(), stored).await?;
            changed = true;
        } else {
            served?;
        }
        match (changed, unknown) {
            (true, _) => Ok(CheckOutcome::Changed),
            (false, Some(problem)) => Err(problem),
            (false, None) => Ok(CheckOutcome::Settled),
        }
    }

    /// The state of the `APIService` for Plimsoll's Service, and for how long it has had it.
    fn state(
        &mut self,
        held: Option<&CertificateSecret>,
        object: Option<&APIService>,
        unknown: bool,
    ) -> ApiServiceState {
        if unknown {
            // A failed read does not prove that the object is gone.
            return ApiServiceState::Unknown;
        }

        let Some(object) = object.filter(|object| self.is_ours(object)) else {
            return ApiServiceState::Elsewhere;
        };
        let bundle = trusted_bundle(object);
        let newest = held.filter(|held| held.is_trusted_by(&bundle)).map(CertificateSecret::newest);
        let elapsed = self.clock.elapsed();
        self.trusted_since = newest.map(|newest| match self.trusted_since.take() {
            Some((same, since)) if same == newest => (same, since),
            Some(_) | None => (newest, elapsed),
        });
        let trusted_for =
            self.trusted_since.as_ref().map(|(_, since)| elapsed.saturating_sub(*since));
        ApiServiceState::Here { bundle, trusted_for }
    }

    fn serve(&self, held: &CertificateSecret) -> Result<(), UpkeepError> {
        self.authorities.send_replace(Some(held.bundle()));
        if let Some(not_after) = held.authority_not_after() {
            let gauge = self.telemetry.authority_not_after.with_label_values::<&str>(&[]);
            gauge.set(not_after.as_second() as f64);
        }

        let outcome = self.certificate.replace(self.clock.now(), held.certificate(), held.key());
        self.metrics.certificate.reloaded(&outcome, self.certificate.not_after());
        match outcome {
            Ok(CertificateReload::Unchanged) => Ok(()),
            Ok(CertificateReload::Replaced) => {
                let not_after = self.certificate.not_after().map(tracing::field::display);
                info!(not_after, "The serving certificate was replaced");
                Ok(())
            }
            Err(source) => Err(UpkeepError::Serve { name: self.name(), source }),
        }
    }

    async fn read_secret(&self) -> Result<Option<Secret>, UpkeepError> {
        self.call(Operation::ReadSecret, self.secrets.get_opt(&self.secret)).await
    }

    /// Reads the `APIService`s for Plimsoll's Service, and returns the one that needs a change most:
    /// the next look finds the others. `None` if none is for it.
    async fn read_api_service(
        &self,
        held: Option<&CertificateSecret>,
    ) -> Result<Option<APIService>, UpkeepError> {
        let mut ours = Vec::new();
        for name in &self.registrations {
            let reading = self.api_services.get_opt(name);
            let object = self.call(Operation::ReadApiService, reading).await?;
            ours.extend(object.filter(|object| self.is_ours(object)));
        }

        Ok(ours.into_iter().min_by_key(|object| {
            let bundle = trusted_bundle(object);
            let trusted = held.is_some_and(|held| held.is_trusted_by(&bundle));
            (trusted, held.is_some_and(|held| held.bundle() == bundle))
        }))
    }

    /// Returns true if an `APIService` is for Plimsoll's Service.
    fn is_ours(&self, object: &APIService) -> bool {
        let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
        service.is_some_and(|service| {
            service.namespace.as_deref() == Some(&*self.policy.namespace)
                && service.name.as_deref() == Some(&*self.policy.service)
        })
    }

    async fn write_secret(
        &self,
        change: SecretChange,
        held: Option<&CertificateSecret>,
        stored: Option<Secret>,
    ) -> Result<(), UpkeepError> {
        let next = certificates::issue(self.clock.now(), &self.policy, change, held)
            .map_err(UpkeepError::Issue)?;
        let data = next.write().into_iter().map(|(key, value)| (key, ByteString(value))).collect();

        let params = PostParams::default();
        let written = if let Some(mut secret) = stored {
            // The object has the version that was read.
            secret.data = Some(data);
            let replace = self.secrets.replace(&self.secret, &params, &secret);
            self.call(Operation::WriteSecret, replace).await
        } else {
            let mut secret = Secret { data: Some(data), ..Secret::default() };
            secret.metadata.name = Some(self.secret.clone());
            self.call(Operation::WriteSecret, self.secrets.create(&params, &secret)).await
        };

        self.written(written.map(drop), change.label())
    }

    async fn write_bundle(&self, bundle: Vec<u8>, object: &APIService) -> Result<(), UpkeepError> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"caBundle": ByteString(bundle), "insecureSkipTLSVerify": false},
        }));

        let name = object.metadata.name.as_deref().unwrap_or(API_SERVICE);
        let params = PatchParams::default();
        let writing = self.api_services.patch(name, &params, &patch);
        let written = self.call(Operation::WriteApiService, writing).await;
        self.written(written.map(drop), CA_BUNDLE)
    }

    /// A conflicting write by another replica is not a failure: its result is read next.
    fn written(&self, outcome: Result<(), UpkeepError>, change: &str) -> Result<(), UpkeepError> {
        match outcome {
            Ok(()) => {
                self.telemetry.changes.with_label_values(&[change]).inc();
                info!(change, secret = self.name(), "The self-managed certificate was changed");
                Ok(())
            }
            Err(UpkeepError::Refused { code: CONFLICT, .. }) => {
                debug!(change, "Another replica wrote it first");
                Ok(())
            }
            Err(problem) => Err(problem),
        }
    }

    async fn call<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, UpkeepError> {
        match tokio::time::timeout(CALL_MAX, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => {
                let kube::core::Status { code, message, .. } = *status;
                let object = self.object(operation);
                Err(UpkeepError::Refused { operation, object, code, message })
            }
            Ok(Err(source)) => {
                let object = self.object(operation);
                Err(UpkeepError::Call { operation, object, source: Box::new(source) })
            }
            Err(_) => Err(UpkeepError::Silence { operation, object: self.object(operation) }),
        }
    }

    /// The object of an operation, as messages name it.
    fn object(&self, operation: Operation) -> String {
        match operation {
            Operation::ReadSecret | Operation::WriteSecret => {
                format!("the Secret {}", self.name())
            }
            Operation::ReadApiService | Operation::WriteApiService => {
                format!("the APIService {}", self.registrations.join(" or "))
            }
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.policy.namespace, self.secret)
    }
}

// === impl UpkeepError ===

impl UpkeepError {
    const fn label(&self) -> &'static str {
        match self {
            Self::Call { operation, .. }
            | Self::Refused { operation, .. }
            | Self::Silence { operation, .. } => operation.label(),
            Self::Secret { .. } => USE_SECRET,
            Self::Issue(_) => ISSUE,
            Self::Serve { .. } => SERVE,
        }
    }
}

// === impl Operation ===

impl Operation {
    const fn label(self) -> &'static str {
        match self {
            Self::ReadSecret => "read_secret",
            Self::WriteSecret => "write_secret",
            Self::ReadApiService => "read_apiservice",
            Self::WriteApiService => "write_apiservice",
        }
    }

    const fn what(self) -> &'static str {
        match self {
            Self::ReadSecret | Self::ReadApiService => "read",
            Self::WriteSecret | Self::WriteApiService => "write",
        }
    }
}

/// The authorities that an `APIService` trusts, as PEM.
fn trusted_bundle(object: &APIService) -> Vec<u8> {
    let spec = object.spec.as_ref();
    spec.and_then(|spec| spec.ca_bundle.as_ref()).map(|it| it.0.clone()).unwrap_or_default()
}

fn held(
    values: Option<&BTreeMap<String, ByteString>>,
) -> Result<Option<CertificateSecret>, SecretError> {
    let Some(values) = values else { return Ok(None) };
    let bytes = values.iter().map(|(key, value)| (key.clone(), &value.0)).collect();
    CertificateSecret::read(&bytes)
}
