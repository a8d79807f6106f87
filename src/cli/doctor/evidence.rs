//! The evidence for the checks: the configuration, the cluster and the daemon.
//!
//! A part that could not be read says why. A check that needs it is then unknown, and never passes.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::cli::doctor::permission::{Permission, ReleaseNames};
use crate::cli::doctor::verdict::Unseen;
use plimsoll_core::fleet::VariantKey;
use plimsoll_daemon::collect::cluster::ClusterState;
use plimsoll_daemon::collect::exposition::samples::ExpositionSample;
use plimsoll_daemon::config::Config;

/// Something that was read, or the reason that it was not.
#[derive(Clone, Debug)]
pub enum Gathered<T> {
    /// It was read.
    Read(T),
    /// It could not be read.
    Unread(String),
    /// There is no such thing to read.
    Absent(String),
}

/// Everything that checks look at.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The time of this machine.
    pub now: Timestamp,
    /// The version of this program.
    pub version: String,
    /// The configuration of the daemon; the inner error lists the problems of an invalid one.
    pub config: Gathered<Result<ConfigEvidence, String>>,
    /// The cluster.
    pub cluster: Gathered<ClusterEvidence>,
    /// The running daemon.
    pub daemon: Gathered<DaemonEvidence>,
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct ConfigEvidence {
    /// The file or the `ConfigMap`.
    pub origin: String,
    /// The configuration.
    pub config: Config,
    /// Problems that do not keep it from being used.
    pub warnings: Vec<String>,
}

/// The API server's version and clock.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiServerVersion {
    /// The version, such as `v1.36.0`.
    pub version: String,
    /// The minor version; `None` if it is no number.
    pub minor: Option<u32>,
    /// The seconds by which the clock of this machine is ahead of the API server's; negative if it
    /// is behind. `None` without a `Date` header.
    pub ahead_seconds: Option<f64>,
}

/// The answer to a request of one path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathAnswer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub text: String,
}

/// The endpoints of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointCounts {
    /// All of them.
    pub all: usize,
    /// Those that are ready.
    pub ready: usize,
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct ClusterEvidence {
    /// The names of Plimsoll's objects.
    pub names: ReleaseNames,
    /// The API server.
    pub api_server: Gathered<ApiServerVersion>,
    /// The registration that the configuration needs.
    pub registration: Gathered<Option<APIService>>,
    /// The Service of the registration.
    pub service: Gathered<Option<Service>>,
    /// The endpoints of that Service.
    pub endpoints: Gathered<EndpointCounts>,
    /// The authorities of the front proxy.
    pub trust: Gathered<Option<BTreeMap<String, String>>>,
    /// The discovery document of the registered API, asked through the API server.
    pub path: Gathered<PathAnswer>,
    /// The number of each variant, asked through the API server.
    pub numbers: BTreeMap<VariantKey, Gathered<PathAnswer>>,
    /// The permissions of the daemon and of the HPA controller.
    pub permissions: BTreeMap<Permission, Gathered<bool>>,
    /// All flow schemas.
    pub flow_schemas: Gathered<Vec<FlowSchema>>,
    /// The variants, their targets, pods and scalers, as the daemon sees them.
    pub state: Gathered<ClusterState>,
    /// The kinds that this user cannot list, by namespace.
    pub hidden: BTreeMap<String, Vec<String>>,
    /// All `ScaledObject`s.
    pub scaled_objects: Gathered<Vec<DynamicObject>>,
    /// All namespaces.
    pub namespaces: Gathered<Vec<Namespace>>,
    /// The Deployment of Plimsoll.
    pub deployment: Gathered<Option<Deployment>>,
    /// The Lease of the leader.
    pub lease: Gathered<Option<Lease>>,
    /// The decisions that replicas of Plimsoll share.
    pub document: Gathered<Option<ConfigMap>>,
}

/// A running daemon.
#[derive(Clone, Debug)]
pub struct DaemonEvidence {
    /// The URL of its plain HTTP port.
    pub url: String,
    /// True if the user gave the URL.
    pub is_named: bool,
    /// The seconds by which the clock of this machine is ahead of the daemon's; negative if it is
    /// behind. `None` if the daemon shows no time.
    pub ahead_seconds: Option<f64>,
    /// The status.
    pub status: Gathered<Value>,
    /// The decisions.
    pub decisions: Gathered<Value>,
    /// The metrics.
    pub metrics: Gathered<Vec<ExpositionSample>>,
}

// === impl Gathered ===

impl<T> Gathered<T> {
    /// Returns the value.
    ///
    /// # Errors
    ///
    /// It was not read, or there is no such thing.
    pub fn read(&self) -> Result<&T, Unseen> {
        match self {
            Self::Read(value) => Ok(value),
            Self::Unread(reason) => Err(Unseen::Unknown(reason.clone())),
            Self::Absent(reason) => Err(Unseen::NotApplicable(reason.clone())),
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Gathered<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Read(value),
            Err(error) => Self::Unread(error.to_string()),
        }
    }
}

// === impl Evidence ===

impl Evidence {
    /// The configuration.
    ///
    /// # Errors
    ///
    /// There is none, it could not be read, or it is invalid.
    pub fn config(&self) -> Result<&ConfigEvidence, Unseen> {
        let loaded = self.config.read()?;
        let invalid = |_: &String| Unseen::Unknown("the configuration is invalid".to_owned());
        loaded.as_ref().map_err(invalid)
    }

    /// The cluster, if its API server answers.
    ///
    /// # Errors
    ///
    /// There is none, or it does not answer.
    pub fn cluster(&self) -> Result<&ClusterEvidence, Unseen> {
        let cluster = self.cluster.read()?;
        cluster.api_server.read()?;
        Ok(cluster)
    }
}

// === impl ClusterEvidence ===

impl ClusterEvidence {
    /// Evidence of a cluster of which nothing was read, for this reason.
    #[must_use]
    pub fn unread(names: ReleaseNames, reason: &str) -> Self {
        Self {
            names,
            api_server: Gathered::Unread(reason.to_owned()),
            registration: Gathered::Unread(reason.to_owned()),
            service: Gathered::Unread(reason.to_owned()),
            endpoints: Gathered::Unread(reason.to_owned()),
            trust: Gathered::Unread(reason.to_owned()),
            path: Gathered::Unread(reason.to_owned()),
            numbers: BTreeMap::new(),
            permissions: BTreeMap::new(),
            flow_schemas: Gathered::Unread(reason.to_owned()),
            state: Gathered::Unread(reason.to_owned()),
            hidden: BTreeMap::new(),
            scaled_objects: Gathered::Unread(reason.to_owned()),
            namespaces: Gathered::Unread(reason.to_owned()),
            deployment: Gathered::Unread(reason.to_owned()),
            lease: Gathered::Unread(reason.to_owned()),
            document: Gathered::Unread(reason.to_owned()),
        }
    }
}

// === impl DaemonEvidence ===

impl DaemonEvidence {
    /// The samples of a metric.
    ///
    /// # Errors
    ///
    /// The metrics could not be read.
    pub fn samples(&self, name: &str) -> Result<Vec<&ExpositionSample>, Unseen> {
        let metrics = self.metrics.read()?;
        Ok(metrics.iter().filter(|sample| sample.name == name).collect())
    }

    /// The value of a metric without labels; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The metrics could not be read.
    pub fn value(&self, name: &str) -> Result<Option<f64>, Unseen> {
        Ok(self.samples(name)?.first().map(|sample| sample.value))
    }
}
