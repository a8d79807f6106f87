//! The sections of the configuration file, except those that a stage declares itself.
//!
//! Every key of a section as written is optional, so that a file with errors can still be read to
//! find all of them. Names, ranges and defaults are here. `config/resolve` checks keys that must
//! fit together, name files or depend on each other.

mod address;
mod capacity;
mod cards;
mod external_scaler;
mod limits;
mod pools;
mod scrape;
mod targets;
mod trace;
mod variants;
mod zero;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collect::prometheus::{BasicAuth, LabelNames, Method};
use crate::config::file::address::any;
use crate::config::names::{self, is_dns_label, is_label_text, is_object_name};
use plimsoll_core::analyze::saturation::Saturation;
use plimsoll_core::decide::enforce::Behavior;
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::settings;
use plimsoll_core::settings::values::Bytes;
use plimsoll_core::settings::{Written, hours, millis, minutes, secs, text};
use plimsoll_core::units::{CostPerHour, Gpus};

pub use crate::config::file::capacity::START_TIMES;
pub use crate::config::file::capacity::{Analysis, CapacityKeys, Optimizer, SloKeys};
pub use crate::config::file::cards::{
    CardEngineKeys, CardFileKeys, CardIterationKeys, CardKeys, CardLessonKeys, CardRequestKeys,
    CardShownKeys,
};
pub use crate::config::file::external_scaler::{ExternalScalerKeys, ScalerTlsKeys};
pub use crate::config::file::limits::{LimitKeys, NamespaceLimitKeys};
pub use crate::config::file::pools::{
    AdapterKeys, CopyKeys, PackingKeys, PoolGatewayKeys, PoolKeys,
};
pub use crate::config::file::scrape::{ClientTlsKeys, ScrapeKeys, VariantScrapeKeys};
pub use crate::config::file::targets::{
    DnsTargetKeys, FileTargetKeys, PrometheusTargetKeys, ScaleTarget, TargetKeys,
};
pub use crate::config::file::trace::{ShadowKeys, Trace};
pub use crate::config::file::variants::{ReadBy, ReplicaBoundKeys, VariantKeys};
pub use crate::config::file::zero::WAKE_INTERVALS;
pub use crate::config::file::zero::{ScaleToZeroKeys, WakeSignalKeys, ZeroKeys};

/// The configuration file as written.
pub(crate) type ConfigFile = Written<FileKeys>;

/// Three periods of the HPA's loop, 15 s each.
pub const EXTERNAL_METRICS_FRESH: Duration = secs(45);
/// The HPA's default stabilization of scaling down: a shorter outage must have no effect.
pub const EXTERNAL_METRICS_HOLD: Duration = minutes(5);
const AGES: RangeInclusive<Duration> = secs(1)..=hours(24);
const SHUTDOWNS: RangeInclusive<Duration> = Duration::ZERO..=hours(1);
const YEAR: Duration = hours(24 * 365);
/// With a shorter lifetime, a certificate would expire while the API server is briefly unreachable.
const LIFETIMES: RangeInclusive<Duration> = minutes(1)..=YEAR.saturating_mul(100);
const ELECTION_PERIODS: RangeInclusive<Duration> = millis(100)..=minutes(5);

settings! {
    /// Outside optional sections, only the name, the model and the targets of each variant are
    /// required.
    pub struct FileKeys {
        /// Time between two decisions.
        // Decisions are cheap, and an overload is detected in time at one per second. The metrics
        // of replicas change at most ten times per second.
        tick_interval: Duration = secs(1), in millis(100)..=minutes(1);

        /// The plain HTTP server: metrics, probes, status page, JSON API and admin endpoints.
        server: ServerKeys;

        /// The Kubernetes external metrics API, served over TLS. Not served without this section.
        external_metrics: Option<ExternalMetrics>, needs restart;

        /// The gRPC server for KEDA's external and external-push scalers. Not served without this
        /// section.
        external_scaler: Option<ExternalScalerKeys>, needs restart;

        /// End of the process.
        shutdown: Shutdown, needs restart;

        /// The connection to a cluster.
        kubernetes: Kubernetes;

        /// Names that other programs use.
        compatibility: CompatibilityKeys;

        /// File in which the last decisions survive a restart. Without it they are lost, unless
        /// leader election shares them.
        state_file: Option<PathBuf>;

        /// Inputs and decisions of the pipeline, written for `plimsoll backtest`. Off without this
        /// section.
        trace: Option<Trace>, needs restart;

        /// Windows and ages of observed values.
        observe: Observe;

        /// Saturation thresholds of replicas, and the headroom that a model keeps.
        saturation: Saturation;

        /// Method that decides the number of replicas of a model: `capacity`, unless `saturation`
        /// has a key or `compatibility.wva_config` is set.
        analysis: Option<Analysis>;

        /// Analyzers that size a model, and their parameters; used with `analysis: capacity`.
        capacity: Option<CapacityKeys>;

        /// Speed of changes to published numbers.
        enforce: Behavior;

        /// Models that may have no replicas, and when.
        scale_to_zero: ScaleToZeroKeys;

        /// Variants whose replicas each serve several adapters or models, by `NAMESPACE/VARIANT`.
        pools: Option<BTreeMap<String, Option<Written<PoolKeys>>>>;

        /// Limits of all variants together.
        limits: LimitKeys;

        /// Policies that are evaluated alongside the one in effect, and only shown. Their wake
        /// signals and gateways of pools have no effect.
        shadow: Option<Vec<ShadowKeys>>;

        /// Scrapes of replicas.
        scrape: ScrapeKeys;

        /// A Prometheus, or a server with its API, that has scraped the replicas already.
        prometheus: Option<PrometheusKeys>, needs restart;

        /// The variants: scalable workloads, each serving one model. May be empty only if
        /// `kubernetes.discovery` finds them.
        variants: Option<Vec<VariantKeys>>;
    }

    /// The plain HTTP server.
    pub struct ServerKeys {
        /// Address and port to listen on.
        listen: SocketAddr = any(8080), needs restart;

        /// Lets `POST /-/reload`, `PUT /-/log` and `/-/override` change the daemon over its
        /// loopback address, without a proxy, or with the token of `admin_token_file`.
        admin_enabled: bool = true, needs restart;

        /// File with a bearer token that permits these changes from other hosts. Read again at each
        /// of them.
        admin_token_file: Option<PathBuf>, needs restart;

        /// Host names under which browsers may use the port, and any client may change something,
        /// such as that of an Ingress. Addresses, `localhost`, names without a dot and names of
        /// Services (`*.svc`) are always allowed.
        allowed_hosts: Vec<String>, in text(
            names::is_dns_name,
            "must be a host name without a port, such as plimsoll.example.com",
        ), needs restart;
    }

    /// The Kubernetes external metrics API.
    #[derive(Eq)]
    pub struct ExternalMetrics {
        /// Serves the API.
        enabled: bool = true;

        /// Address and port to listen on.
        listen: SocketAddr = any(6443);

        /// The certificate that the server presents. Required.
        tls: ServerTls;

        /// Authorization of requests.
        authorization: Authorization = Authorization::SubjectAccessReview;

        /// Age up to which a decision is served as it is.
        fresh: Duration = EXTERNAL_METRICS_FRESH, in AGES;

        /// Age up to which a decision is still served while nothing newer exists; beyond it
        /// requests get an error, and the HPA keeps its replicas.
        hold: Duration = EXTERNAL_METRICS_HOLD, in AGES;

        /// Also serves desired replicas as Object metrics, in `custom.metrics.k8s.io`, for clusters
        /// where another provider has the group for external metrics.
        object_metrics: bool = false;
    }

    /// A server's certificate.
    #[derive(Eq)]
    pub struct ServerTls {
        /// PEM certificate chain, read again as it rotates.
        cert_file: Option<PathBuf>;

        /// PEM key, read again as it rotates.
        key_file: Option<PathBuf>;

        /// PEM bundle of the authorities that signed the certificate. With it, a foreign `caBundle`
        /// in the `APIService` is noticed.
        ca_file: Option<PathBuf>;

        /// A certificate that Plimsoll makes and renews itself, instead of files.
        #[serde(skip_serializing_if = "Option::is_none")]
        self_managed: Option<SelfManaged>;
    }

    /// A certificate that Plimsoll makes and renews itself, with an authority of its own. It is
    /// kept in a Secret, and the authority is written into the `APIService`.
    #[derive(Eq)]
    pub struct SelfManaged {
        /// The Secret, which may be empty.
        secret: String, in text(is_object_name, "must be the name of a Secret"),
            required "is missing";

        /// The Service that the API server calls.
        service: String, in text(is_dns_label, "must be the name of a Service"),
            required "is missing";

        /// Namespace of both; without it, that of the pod.
        namespace: Option<String>, in text(is_dns_label, "must be the name of a namespace");

        /// Lifetime of a certificate. It is renewed after two thirds of that.
        // The lifetime that public authorities used for a long time; renewal is automatic.
        leaf_lifetime: Duration = YEAR, in LIFETIMES;

        /// Lifetime of an authority. It is replaced after two thirds of that.
        ca_lifetime: Duration = YEAR.saturating_mul(10), in LIFETIMES;
    }

    /// End of the process.
    #[derive(Copy, Eq)]
    pub struct Shutdown {
        /// Time to go on serving after the signal, until load balancers have noticed. None without
        /// a cluster and servers for autoscalers.
        delay: Duration = secs(5), in SHUTDOWNS;

        /// Time that open requests have to finish.
        // Together with the delay it stays below the 30 s that Kubernetes waits before killing.
        drain: Duration = secs(20), in SHUTDOWNS;
    }

    /// The connection to a cluster.
    pub struct Kubernetes {
        /// Connects to a cluster.
        enabled: bool = false, needs restart;

        /// The kubeconfig file; without it, the default kubeconfig, otherwise the pod's service
        /// account.
        kubeconfig: Option<PathBuf>, needs restart;

        /// The context in the kubeconfig; without it, its current context.
        context: Option<String>, in text(is_label_text, "must be the name of a context"),
            needs restart;

        /// Writes Kubernetes Events, such as changes of decisions.
        events: bool = true, needs restart;

        /// Variants by the annotations of HPAs, `ScaledObject`s and workloads.
        discovery: Discovery;

        /// Several replicas, of which one decides.
        leader_election: LeaderElection, needs restart;
    }

    /// Variants by the annotations of HPAs, `ScaledObject`s and workloads.
    pub struct Discovery {
        /// Searches the cluster for annotations.
        enabled: bool = false;

        /// The namespaces to search. An empty list is all of them.
        namespaces: Vec<String>, in text(is_dns_label, names::DNS_LABEL);

        /// A label selector; objects that it does not match are left alone.
        selector: Option<String>, in text(
            names::is_selector,
            "must be a label selector, such as \"team=chat,tier in (gold, silver)\"",
        );

        /// A label selector for namespaces, with which only those are searched that it matches.
        /// For an empty `namespaces`; a list decides alone.
        namespace_selector: Option<String>, in text(
            names::is_selector,
            "must be a label selector, such as \"team=chat,tier in (gold, silver)\"",
        );

        /// The annotations that have an effect, such as `plimsoll.dev/port`; without it, all of
        /// them. `plimsoll.dev/model` always has.
        annotations: Option<Vec<String>>, in text(
            names::is_annotation,
            "must be an annotation of Plimsoll, such as plimsoll.dev/port",
        );

        /// The most accelerators per replica that an annotation can claim; more count as these. At
        /// least those of the pod template always count.
        // Eight nodes of eight, the largest replicas that are common.
        gpus_max: Gpus = 64, in 1..=4096;

        /// The least cost of a replica that an annotation can claim; less counts as this.
        cost_min: CostPerHour = 0.0, in 0.0..=1e9;

        /// The largest cost of a replica that an annotation can claim; more counts as this.
        cost_max: CostPerHour = 1e9, in 0.0..=1e9;

        /// Counts annotations for the workload variant autoscaler as well.
        wva: bool = true;
    }

    /// Several replicas, of which one decides; see docs/high-availability.md.
    #[derive(Eq)]
    pub struct LeaderElection {
        /// Lets several replicas run.
        enabled: bool = false;

        /// Namespace of the Lease and the shared decisions; without it, the pod's own namespace.
        namespace: Option<String>, in text(is_dns_label, "must be the name of a namespace");

        /// Name of the Lease; that of the shared decisions is NAME-decisions.
        name: String = "plimsoll", in text(
            names::is_lease_name,
            "must be the name of a Lease, with room for `-decisions` behind it",
        );

        /// Name of this replica; without it, that of its pod or machine. A random part is added.
        identity: Option<String>,
            in text(is_label_text, "must be a text without spaces at its ends");

        /// Time that the others wait for a leader that does not report.
        // This value and the next two are the defaults of Kubernetes' own controllers. A Lease is
        // written in whole seconds, and decisions that are not renewed for longer are not fresh.
        lease_duration: Duration = secs(15), in secs(1)..=minutes(5);

        /// Time that a leader that cannot renew the Lease goes on.
        renew_deadline: Duration = secs(10), in ELECTION_PERIODS;

        /// Time between two renewals of the Lease. The others wait up to a fifth longer between two
        /// looks.
        retry_period: Duration = secs(2), in ELECTION_PERIODS;
    }

    /// Names that other programs use.
    pub struct CompatibilityKeys {
        /// Publishes the gauges of the workload variant autoscaler as well.
        wva_metrics: bool = false, needs restart;

        /// Folder in which its `ConfigMap` with the saturation thresholds is mounted. `saturation`
        /// takes precedence over its entry `default`, and `saturation.overrides` over the others.
        wva_config: Option<PathBuf>;
    }
}

settings! {
    /// A Prometheus, or a server with its API, that has scraped the replicas already.
    pub struct PrometheusKeys {
        /// The URL below which `/api/v1/query` is.
        url: String, required "is missing, such as http://prometheus:9090";

        /// Method of sending queries.
        method: Method = Method::Post;

        /// Time between two rounds of queries.
        // Prometheus scrapes every 15 s to 60 s; querying much more often returns the same samples.
        interval: Duration = secs(10), in millis(100)..=minutes(5);

        /// Time after which a query is given up.
        // A server that needs longer is overloaded, and the next round should not wait for it.
        timeout: Duration = secs(10), in millis(100)..=minutes(2);

        /// Largest age of samples that are asked for, and the time for which an instance that is
        /// found by its labels counts as there without samples.
        // Above the window, so that a start sees all of it, and above the delay of remote write.
        lookback: Duration = minutes(5), in minutes(1)..=hours(1);

        /// Age from which data from Prometheus is too old to act on.
        // Four samples at the usual interval of 15 s, each of which can be late by the query
        // interval.
        stale_after: Duration = minutes(1), in secs(1)..=hours(1);

        /// The most series that one answer may have.
        // Two thousand replicas: a vLLM replica has about 140 buckets and 40 other series.
        series_limit: usize = 300_000, in 100..=10_000_000;

        /// Largest answer that is read, after decompression.
        // A series with all its labels has about 400 bytes, and 25 more per sample.
        body_limit: Bytes = 128 << 20, in (1 << 10)..=(2 << 30);

        /// Headers of every query, such as the tenant.
        headers: BTreeMap<String, Option<String>>;

        /// Headers of every query whose values are in files, read again for each.
        header_files: BTreeMap<String, Option<PathBuf>>;

        /// A user and the file with the password.
        basic_auth: Option<BasicAuth>;

        /// File with a bearer token, read again as it rotates.
        bearer_token_file: Option<PathBuf>;

        /// TLS; needs a URL with `https`.
        tls: ClientTlsKeys;

        /// Parameters of every query, such as `dedup`.
        parameters: BTreeMap<String, Option<String>>;

        /// Labels that all series of replicas must have, such as those of a cluster at a global
        /// server.
        matched as "match": BTreeMap<String, Option<String>>;

        /// The labels by which replicas are found.
        labels: LabelNames;
    }
}

/// Who may ask for external metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authorization {
    /// Whom the cluster's API server allows, asked by a `SubjectAccessReview`.
    SubjectAccessReview,
    /// Everyone whom the cluster's front proxy has let through.
    TrustFrontProxy,
}

settings! { plain: Authorization; }

// === impl Kubernetes ===

impl Kubernetes {
    /// The discovery settings; `None` if discovery is off.
    #[must_use]
    pub fn discovery(&self) -> Option<&Discovery> {
        Some(&self.discovery).filter(|it| self.enabled && it.enabled)
    }

    /// The leader election settings; `None` if there is only one replica.
    #[must_use]
    pub fn leader_election(&self) -> Option<&LeaderElection> {
        Some(&self.leader_election).filter(|it| self.enabled && it.enabled)
    }
}
