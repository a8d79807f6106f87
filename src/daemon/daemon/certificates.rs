//! The serving certificate: from files that somebody else renews, or made and renewed here.
//!
//! What is made here is planned by [`crate::server::certificates`], which does no IO. This is the
//! IO: read the Secret and the `APIService`, plan, write, and serve with what the Secret holds.
//! Every write names the version that was read, so of two replicas that write at once one is
//! refused and reads again. While the API server is away, the last good certificate stays.

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
use crate::collect::cluster::{API_SERVICE, Expected};
use crate::config::{ExternalMetrics, SelfManaged, ServerTls};
use crate::daemon::Common;
use crate::daemon::kubernetes::Cluster;
use crate::publish::external_metrics::metrics::Metrics;
use crate::server::certificates::{
    self, Change, Held, IssueError, Plan, Policy, Registered, SecretError,
};
use crate::server::tls::{self, CertificateError, Reload, ServingCertificate};
use crate::telemetry::Certificates;

/// The longest time between two looks: as for files.
const LOOK_MAX: Duration = tls::RELOAD_INTERVAL;

/// What was written is looked at again soon, because the next step may follow at once. It also
/// bounds how often two programs that undo each other's work can do so.
const SOON: Duration = Duration::from_millis(500);

/// The API server answers within a second, or not at all.
const CALL_MAX: Duration = Duration::from_secs(10);

/// The status of a write that names a version which is not the newest.
const CONFLICT: u16 = 409;

/// What is written, as label values.
const CHANGES: [&str; 5] = [
    Change::Everything.label(),
    Change::Authority.label(),
    Change::Leaf.label(),
    Change::Retirement.label(),
    CA_BUNDLE,
];
const CA_BUNDLE: &str = "ca_bundle";

/// What can fail, as label values.
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

/// The serving certificate as it is followed.
pub(crate) struct Followed {
    pub(crate) certificate: Arc<ServingCertificate>,
    /// What the `APIService` should say.
    pub(crate) expected: Box<dyn Fn() -> Expected + Send>,
}

/// Loads the serving certificate and follows it, or begins to make one.
///
/// # Errors
///
/// The files hold no certificate that can be used. A Secret that cannot be read is no error: until
/// it can, no handshake succeeds.
pub(crate) async fn follow(
    settings: &ExternalMetrics,
    common: &Common,
    cluster: Option<&Cluster>,
    metrics: &Metrics,
    telemetry: &Certificates,
) -> anyhow::Result<Followed> {
    let ServerTls { cert_file, key_file, ca_file, self_managed } = settings.tls.clone();
    let Some(own) = self_managed else {
        let files = cert_file.zip(key_file);
        let (cert_file, key_file) = files.context("external_metrics.tls has no certificate")?;
        return follow_files(tls::Settings { cert_file, key_file }, ca_file, common, metrics).await;
    };
    let cluster = cluster.context("external_metrics.tls.self_managed needs kubernetes.enabled")?;
    Ok(Upkeep::new(own, cluster.client(), common, metrics, telemetry).start(common))
}

async fn follow_files(
    files: tls::Settings,
    ca_file: Option<PathBuf>,
    common: &Common,
    metrics: &Metrics,
) -> anyhow::Result<Followed> {
    let Common { clock, stop, tasks, .. } = common;
    let certificate = ServingCertificate::load(clock.now(), files).await;
    let certificate = Arc::new(certificate.context("external_metrics.tls")?);
    metrics.certificate(certificate.not_after());
    let (stop, clock, followed, metrics) =
        (stop.clone(), *clock, Arc::clone(&certificate), metrics.clone());
    tasks.spawn(async move {
        let report = |outcome: &_| metrics.reload(outcome, followed.not_after());
        followed.follow(clock, tls::RELOAD_INTERVAL, stop, report).await;
    });
    let names = Arc::clone(&certificate);
    let expected = move || {
        // An API server calls SERVICE.NAMESPACE.svc, so that name is among them.
        let service = names.dns_names().iter().find_map(|name| {
            let (service, namespace) = name.strip_suffix(".svc")?.split_once('.')?;
            Some((namespace.to_owned(), service.to_owned()))
        });
        let ca_bundle = ca_file.as_ref().and_then(|file| std::fs::read(file).ok());
        Expected { service, ca_bundle }
    };
    Ok(Followed { certificate, expected: Box::new(expected) })
}

/// Looks after a certificate of one's own.
struct Upkeep {
    policy: Policy,
    secret: String,
    secrets: Api<Secret>,
    api_services: Api<APIService>,
    certificate: Arc<ServingCertificate>,
    authorities: watch::Sender<Option<Vec<u8>>>,
    clock: Clock,
    metrics: Metrics,
    telemetry: Certificates,
    /// Since when the newest authority has been seen in the `caBundle`, by the monotonic clock.
    trusted_since: Option<(Vec<u8>, Duration)>,
}

/// What a look has come to.
enum Look {
    /// All is as it should be.
    Settled,
    /// Something was written, here or elsewhere.
    Changed,
}

/// Why looking after the certificate failed. The one in use stays.
#[derive(Debug, thiserror::Error)]
enum UpkeepError {
    #[error("cannot {} {object}", operation.what())]
    Call {
        operation: Operation,
        object: String,
        #[source]
        source: Box<kube::Error>,
    },
    // The status has the message in it several times.
    #[error("cannot {} {object}: {message}", operation.what())]
    Refused { operation: Operation, object: String, code: u16, message: String },
    #[error("cannot {} {object}: no answer in {} s", operation.what(), CALL_MAX.as_secs())]
    Silence { operation: Operation, object: String },
    #[error("the Secret {name} cannot be used")]
    Secret {
        name: String,
        #[source]
        source: SecretError,
    },
    #[error("cannot make what the Secret is to hold")]
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
        common: &Common,
        metrics: &Metrics,
        telemetry: &Certificates,
    ) -> Self {
        let SelfManaged { secret, service, namespace, leaf_lifetime, ca_lifetime } = own;
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        telemetry.start(&CHANGES, &OPERATIONS);
        let part = |key: &str| PathBuf::from(format!("{key} of the Secret {namespace}/{secret}"));
        let parts = tls::Settings { cert_file: part("tls.crt"), key_file: part("tls.key") };
        Self {
            secrets: Api::namespaced(client.clone(), &namespace),
            api_services: Api::all(client),
            certificate: Arc::new(ServingCertificate::awaited(parts)),
            authorities: watch::Sender::new(None),
            clock: common.clock,
            metrics: metrics.clone(),
            telemetry: telemetry.clone(),
            trusted_since: None,
            policy: Policy { service, namespace, leaf_lifetime, ca_lifetime },
            secret,
        }
    }

    fn start(self, common: &Common) -> Followed {
        let certificate = Arc::clone(&self.certificate);
        let (authorities, policy) = (self.authorities.subscribe(), self.policy.clone());
        let expected = move || Expected {
            service: Some((policy.namespace.clone(), policy.service.clone())),
            ca_bundle: authorities.borrow().clone(),
        };
        let run = self.run(common.stop.clone());
        common.tasks.spawn(run.instrument(info_span!("certificate")));
        Followed { certificate, expected: Box::new(expected) }
    }

    async fn run(mut self, stop: CancellationToken) {
        // Several looks in the time that others are given to see a change.
        let interval = LOOK_MAX.min(self.policy.settle() / 2);
        let mut last = None;
        loop {
            let look = stop.run_until_cancelled(self.look()).await;
            let pause = match look {
                None => return,
                Some(Ok(Look::Changed)) => SOON,
                Some(Ok(Look::Settled)) => {
                    last = None;
                    interval
                }
                Some(Err(problem)) => {
                    self.telemetry.failures.with_label_values(&[problem.label()]).inc();
                    let text = format!("{:#}", anyhow::Error::new(problem));
                    // The same for hours is one line; all of it is in the metric.
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
            let text = "The serving certificate cannot be looked after; the one in use stays";
            warn!(error = problem, %not_after, "{text}");
        } else {
            let text =
                "There is no serving certificate, so the external metrics API is out of reach";
            error!(error = problem, "{text}");
        }
    }

    /// Reads, plans, writes, and serves with what the Secret holds.
    async fn look(&mut self) -> Result<Look, UpkeepError> {
        let stored = self.read_secret().await?;
        let values = stored.as_ref().and_then(|secret| secret.data.as_ref());
        let held =
            held(values).map_err(|source| UpkeepError::Secret { name: self.name(), source })?;
        // The certificate is renewed even while it is not known who is registered.
        let (registered, unknown) = match self.read_api_service().await {
            Ok(object) => (object, None),
            Err(problem) => (None, Some(problem)),
        };
        let now = self.clock.now();
        let state = self.state(held.as_ref(), registered.as_ref(), unknown.is_some());
        let Plan { secret, bundle } = certificates::plan(now, &self.policy, held.as_ref(), &state);
        // What the Secret holds is served whatever becomes of the writes below; the other replicas
        // serve it, too. What is no longer valid is refused here, and replaced below.
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
            (true, _) => Ok(Look::Changed),
            (false, Some(problem)) => Err(problem),
            (false, None) => Ok(Look::Settled),
        }
    }

    /// What the `APIService` says of us, and for how long.
    fn state(
        &mut self,
        held: Option<&Held>,
        object: Option<&APIService>,
        unknown: bool,
    ) -> Registered {
        if unknown {
            // Nobody has said that it is gone.
            return Registered::Unknown;
        }
        let spec = object.and_then(|object| object.spec.as_ref());
        let ours = spec.and_then(|spec| spec.service.as_ref()).is_some_and(|service| {
            service.namespace.as_deref() == Some(&*self.policy.namespace)
                && service.name.as_deref() == Some(&*self.policy.service)
        });
        let (Some(spec), true) = (spec, ours) else { return Registered::Elsewhere };
        let bundle = spec.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default();
        let newest = held.filter(|held| held.is_trusted_by(&bundle)).map(Held::newest);
        let elapsed = self.clock.elapsed();
        self.trusted_since = newest.map(|newest| match self.trusted_since.take() {
            Some((same, since)) if same == newest => (same, since),
            Some(_) | None => (newest, elapsed),
        });
        let trusted_for =
            self.trusted_since.as_ref().map(|(_, since)| elapsed.saturating_sub(*since));
        Registered::Here { bundle, trusted_for }
    }

    fn serve(&self, held: &Held) -> Result<(), UpkeepError> {
        self.authorities.send_replace(Some(held.bundle()));
        if let Some(not_after) = held.authority_not_after() {
            let gauge = self.telemetry.authority_not_after.with_label_values::<&str>(&[]);
            gauge.set(not_after.as_second() as f64);
        }
        let outcome = self.certificate.replace(self.clock.now(), held.certificate(), held.key());
        self.metrics.reload(&outcome, self.certificate.not_after());
        match outcome {
            Ok(Reload::Unchanged) => Ok(()),
            Ok(Reload::Replaced) => {
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

    async fn read_api_service(&self) -> Result<Option<APIService>, UpkeepError> {
        self.call(Operation::ReadApiService, self.api_services.get_opt(API_SERVICE)).await
    }

    async fn write_secret(
        &self,
        change: Change,
        held: Option<&Held>,
        stored: Option<Secret>,
    ) -> Result<(), UpkeepError> {
        let next = certificates::issue(self.clock.now(), &self.policy, change, held)
            .map_err(UpkeepError::Issue)?;
        let data = next.write().into_iter().map(|(key, value)| (key, ByteString(value))).collect();
        let params = PostParams::default();
        let written = if let Some(mut secret) = stored {
            // It carries the version that was read.
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
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "spec": {"caBundle": ByteString(bundle), "insecureSkipTLSVerify": false},
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = self.api_services.patch(API_SERVICE, &params, &patch);
        let written = self.call(Operation::WriteApiService, written).await;
        self.written(written.map(drop), CA_BUNDLE)
    }

    /// Somebody else who has written first is no failure: what they wrote is read next.
    fn written(&self, outcome: Result<(), UpkeepError>, change: &str) -> Result<(), UpkeepError> {
        match outcome {
            Ok(()) => {
                self.telemetry.changes.with_label_values(&[change]).inc();
                info!(change, secret = self.name(), "The self-managed certificate was changed");
                Ok(())
            }
            Err(UpkeepError::Refused { code: CONFLICT, .. }) => {
                debug!(change, "Another replica has written first");
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
        let object = || match operation {
            Operation::ReadSecret | Operation::WriteSecret => {
                format!("the Secret {}", self.name())
            }
            Operation::ReadApiService | Operation::WriteApiService => {
                format!("the APIService {API_SERVICE}")
            }
        };
        match tokio::time::timeout(CALL_MAX, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => {
                let kube::core::Status { code, message, .. } = *status;
                Err(UpkeepError::Refused { operation, object: object(), code, message })
            }
            Ok(Err(source)) => {
                Err(UpkeepError::Call { operation, object: object(), source: Box::new(source) })
            }
            Err(_) => Err(UpkeepError::Silence { operation, object: object() }),
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

fn held(values: Option<&BTreeMap<String, ByteString>>) -> Result<Option<Held>, SecretError> {
    let Some(values) = values else { return Ok(None) };
    let values = values.iter().map(|(key, value)| (key.clone(), &value.0)).collect();
    Held::read(&values)
}
