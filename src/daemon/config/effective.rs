//! The effective configuration: values that are valid by construction.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::collect::demand::{ReadSettings, SignalSettings};
use crate::collect::prometheus::PrometheusSettings;
use crate::collect::scrape::ScrapeSettings;
use crate::collect::targets::{Endpoint, TargetSource};
use crate::config::file::{FileKeys, ReadBy, ScaleTarget};
use plimsoll_core::fleet::{ModelName, VariantKey, VariantSpec};
use plimsoll_core::pipeline::Policy;

/// A valid configuration, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Every key with its effective value, from which the configuration is printed.
    pub keys: Box<FileKeys>,
    /// All inputs of decisions other than observations.
    pub policy: Policy,
    /// Shadow policies, which are evaluated and only shown.
    pub shadows: Vec<ShadowPolicy>,
    /// The variants in the order of the file; empty only if they are discovered.
    pub variants: Vec<VariantConfig>,
    /// The default scrape settings of variants.
    pub scrape: ScrapeDefaults,
    /// The settings of the Prometheus client; `None` without a Prometheus.
    pub prometheus: Option<PrometheusSettings>,
    /// The signals that the policy needs.
    pub signals: PolicySignals,
}

/// The signals that a policy needs from outside the replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySignals {
    /// Signals that wake models without replicas.
    pub wake: Vec<SignalSettings>,
    /// The gateways that count the requests for the adapters of pools.
    pub gateways: BTreeMap<VariantKey, ReadSettings>,
}

// === impl PolicySignals ===

impl PolicySignals {
    /// The readings of all signals.
    #[must_use]
    pub fn reads(&self) -> Vec<ReadSettings> {
        let wake = self.wake.iter().map(|signal| &signal.read);
        wake.chain(self.gateways.values()).cloned().collect()
    }
}

/// A policy that is evaluated in addition to the policy in effect, and only shown.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowPolicy {
    /// Its name in metrics and on the status page.
    pub name: String,
    /// The policy.
    pub policy: Policy,
}

/// One variant: its specification, the source of its replicas, and its scrape settings.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantConfig {
    /// Its properties that do not depend on its load.
    pub spec: VariantSpec,
    /// Other names of the model in its engines' metrics.
    pub aliases: Vec<ModelName>,
    /// The source of its replica list.
    pub targets: VariantTargets,
    /// The parts that turn an address into a scrape URL.
    pub endpoint: Endpoint,
    /// The scrape settings of its replicas.
    pub scrape: Arc<ScrapeSettings>,
    /// The reader of its replicas' metrics.
    pub read_by: ReadBy,
}

/// The source of a variant's replica list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VariantTargets {
    /// Outside Kubernetes. Addresses in [`TargetSource::Static`] all have a port.
    Listed(TargetSource),
    /// The pods of an object with a scale subresource, in the variant's namespace.
    ScaleTarget(ScaleTarget),
    /// The pods that a label selector matches, in the variant's namespace.
    Selector(String),
    /// The instances that Prometheus scrapes with these labels.
    Prometheus(BTreeMap<String, String>),
}

/// The default scrape settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeDefaults {
    /// The parts that turn an address into a scrape URL.
    pub endpoint: Endpoint,
    /// Interval, timeout, size limit and credentials.
    pub settings: Arc<ScrapeSettings>,
}
