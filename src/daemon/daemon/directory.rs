//! The directory: all scrape targets, from the configuration, the lists outside of Kubernetes and
//! the watched cluster.
//!
//! Variants are declared in the configuration or discovered in the cluster. Both kinds are merged
//! again whenever either changes, so a reload keeps the discovered variants, and a discovery keeps
//! the declared variants.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::cluster::discovery::credentials::{CredentialScope, TrustedNamespaces};
use crate::collect::cluster::discovery::ledger::{Objection, ObjectionCause};
use crate::collect::cluster::discovery::{
    Annotation, AnnotationProblem, DiscoveredVariant, ScrapeRequest,
};
use crate::collect::cluster::{ClusterState, Discovery, WantedTarget};
use crate::collect::prometheus::{InstanceList, Instances, SeriesSelection, VariantQuery};
use crate::collect::scrape::{ScrapeSettings, Target};
use crate::collect::targets::{
    Endpoint, Lister, NameServer, TargetList, TargetMetrics, TargetSource,
};
use crate::config::{self, Config, ReadBy, ScrapeDefaults, VariantConfig, VariantTargets};
use crate::daemon::needs::hosts;
use plimsoll_core::fleet::{
    Accelerator, Fleet, ModelKey, ModelName, Namespace, ReplicaKey, Role, VariantKey, VariantSpec,
};
use plimsoll_core::observe::inventory::ReplicaUnit;
use plimsoll_core::observe::{ReplicaListing, Scale, ScrapeRoute, WhyScaleUnknown};
use plimsoll_core::pipeline::limits::LimitPolicy;
use plimsoll_core::units::{Fraction, Gpus};

/// The dependencies of listers other than their source.
#[derive(Clone)]
pub(crate) struct ListerContext {
    pub(crate) clock: Clock,
    pub(crate) metrics: TargetMetrics,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// The variants, listings and scrape targets at one moment.
pub(crate) struct DirectorySnapshot {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) listings: BTreeMap<VariantKey, ReplicaListing>,
    pub(crate) targets: Vec<Target>,
    /// The variants that are not scraped, because Prometheus scrapes them.
    pub(crate) in_prometheus: Vec<VariantQuery>,
}

/// The latest state from the cluster and from Prometheus.
#[derive(Clone, Copy)]
pub(crate) struct DirectoryInputs<'a> {
    pub(crate) cluster: Option<&'a ClusterState>,
    pub(crate) instances: Option<&'a Instances>,
}

/// The variants and the sources of their replica lists.
pub(crate) struct Directory {
    fleet: Arc<Fleet>,
    entries: BTreeMap<VariantKey, DirectoryEntry>,
    /// The variants whose replicas are not scraped, because they host several models.
    hosts: BTreeSet<VariantKey>,
    /// The default scrape settings for replicas of discovered variants.
    scrape: ScrapeDefaults,
    /// The discovered variants that may be scraped with the credentials.
    credentials: CredentialScope,
    /// The accelerators that the pods of discovered variants take, as far as they are known.
    units: BTreeMap<VariantKey, ReplicaUnit>,
    /// The limits, which name accelerators.
    limits: LimitPolicy,
    /// The objects of variants that are not used as their annotations say.
    objections: Arc<[Objection]>,
    /// The default reader of their metrics: Plimsoll's scraper or Prometheus.
    read_by: ReadBy,
    discovery: Arc<Discovery>,
    /// The roles that the pods of discovered variants have shown; kept because without a pod the
    /// role is unknown.
    roles: BTreeMap<VariantKey, Role>,
}

struct DirectoryEntry {
    variant: VariantConfig,
    /// `None` for replicas that the cluster lists.
    list: Option<RunningLister>,
    origin: VariantOrigin,
}

/// The origin of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariantOrigin {
    /// The configuration.
    Declared,
    /// The cluster.
    Discovered,
}

/// A running lister; dropping it stops the lister.
struct RunningLister {
    source: TargetSource,
    listed: watch::Receiver<Option<Arc<TargetList>>>,
    _stop: DropGuard,
}

impl Directory {
    /// Starts a lister for every variant whose replicas are listed outside of Kubernetes.
    pub(crate) fn new(config: &Config, surroundings: &ListerContext) -> Self {
        let mut directory = Self {
            fleet: Arc::default(),
            entries: BTreeMap::new(),
            hosts: hosts(config),
            scrape: config.scrape.clone(),
            credentials: credentials(config),
            units: BTreeMap::new(),
            limits: LimitPolicy::default(),
            objections: Arc::default(),
            read_by: ReadBy::Scrape,
            discovery: Arc::default(),
            roles: BTreeMap::new(),
        };

        directory.replace(config, surroundings);
        directory
    }

    /// Continues with another configuration; lists with an unchanged source keep running.
    pub(crate) fn replace(&mut self, config: &Config, surroundings: &ListerContext) {
        let mut old = std::mem::take(&mut self.entries);
        self.scrape = config.scrape.clone();
        self.hosts = hosts(config);
        self.credentials = credentials(config);
        self.limits.clone_from(&config.policy.limits);
        self.read_by = match config.prometheus {
            Some(_) => ReadBy::Prometheus,
            None => ReadBy::Scrape,
        };
        for variant in &config.variants {
            let known = old.remove(&variant.spec.key).and_then(|entry| entry.list);
            let list = match &variant.targets {
                VariantTargets::Listed(source) => Some(
                    known
                        .filter(|it| it.source == *source)
                        .unwrap_or_else(|| RunningLister::start(source, surroundings)),
                ),
                VariantTargets::ScaleTarget(_)
                | VariantTargets::Selector(_)
                | VariantTargets::Prometheus(_) => None,
            };

            let entry =
                DirectoryEntry { variant: variant.clone(), list, origin: VariantOrigin::Declared };
            self.entries.insert(variant.spec.key.clone(), entry);
        }

        self.put_together();
    }

    /// Takes over the newly discovered variants. Returns true if the variants may have changed.
    pub(crate) fn discover(&mut self, cluster: &ClusterState) -> bool {
        let mut changed = !Arc::ptr_eq(&self.discovery, &cluster.discovery);
        self.discovery = Arc::clone(&cluster.discovery);
        self.roles.retain(|key, _| cluster.discovery.variants.contains_key(key));
        for key in cluster.discovery.variants.keys() {
            let said = cluster.variants.get(key).and_then(|state| state.role);
            let Some(said) = said else { continue };
            changed |= self.roles.insert(key.clone(), said) != Some(said);
        }

        let units = units(cluster);
        changed |= units != self.units;
        if changed {
            self.units = units;
            self.put_together();
        }

        changed
    }

    /// All variants, declared and discovered.
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The current discovery.
    pub(crate) fn discovery(&self) -> &Arc<Discovery> {
        &self.discovery
    }

    /// The objects of variants that are not used as their annotations say.
    pub(crate) fn objections(&self) -> &Arc<[Objection]> {
        &self.objections
    }

    /// Adds the discovered variants to the declared ones. A declared variant takes precedence: one
    /// that has just been declared can stay discovered for a moment.
    fn put_together(&mut self) {
        self.entries.retain(|_, entry| entry.origin == VariantOrigin::Declared);
        let mut objections = Vec::new();
        for (key, discovered) in &self.discovery.variants {
            if self.entries.contains_key(key) {
                continue;
            }

            let known_role = discovered.role.or_else(|| self.roles.get(key).copied());
            let role = known_role.unwrap_or_default();
            let read_by = discovered.scraped.map_or(self.read_by, |ScrapeRequest| ReadBy::Scrape);
            let endpoint = endpoint(discovered, &self.scrape.endpoint);
            let (settings, refusal) = self.credentials.settings(&key.namespace, &endpoint);
            if let Some(refusal) = refusal.filter(|_| read_by == ReadBy::Scrape) {
                let object = discovered.object.clone();
                let cause = ObjectionCause::CredentialsWithheld(refusal);
                objections.push(Objection { object, cause });
            }

            let scrape = ScrapeDefaults { endpoint, settings: Arc::clone(settings) };
            let mut variant = variant(discovered, role, read_by, scrape);
            let unit = self.units.get(key);
            let taken = unit.map(|unit| unit.gpus).unwrap_or_default();
            if let Some(claimed) = variant.spec.gpus.filter(|claimed| *claimed < taken) {
                variant.spec.gpus = Some(taken);
                let object = discovered.object.clone();
                objections.push(Objection { object, cause: fewer(claimed, taken) });
            }

            let product = unit.and_then(|unit| unit.product.as_ref());
            if let Some((claimed, product)) = variant.spec.accelerator.as_ref().zip(product)
                && self.limits.named(claimed) != self.limits.named(product)
            {
                let object = discovered.object.clone();
                objections.push(Objection { object, cause: another(claimed, product) });
                variant.spec.accelerator = Some(self.limits.named(product));
            }

            let entry = DirectoryEntry { variant, list: None, origin: VariantOrigin::Discovered };
            self.entries.insert(key.clone(), entry);
        }

        if *self.objections != *objections {
            self.objections = objections.into();
        }

        let fleet = Fleet::new(self.entries.values().map(|entry| entry.variant.spec.clone()));
        let mut wishes = Vec::new();
        for (key, discovered) in &self.discovery.variants {
            let entry = self.entries.get(key);
            if entry.is_some_and(|entry| entry.origin == VariantOrigin::Discovered) {
                let namespace = key.namespace.clone();
                let model = discovered.model.clone();
                wishes.push((ModelKey { namespace, model }, discovered.zero));
            }
        }

        self.fleet = Arc::new(fleet.wishing(wishes));
    }

    /// Returns the current scrape targets, and the variants that are read from Prometheus instead.
    pub(crate) fn look(&self, now: Timestamp, said: DirectoryInputs<'_>) -> DirectorySnapshot {
        let mut seen = DirectorySnapshot {
            fleet: Arc::clone(&self.fleet),
            listings: BTreeMap::new(),
            targets: Vec::new(),
            in_prometheus: Vec::new(),
        };

        for (key, entry) in &self.entries {
            let variant = &entry.variant;
            let names = names(variant);
            let listed = entry.listed(now, &names, said);
            if self.hosts.contains(key) {
                let unscraped = listed.map(|(listing, _)| without_replicas(listing));
                seen.listings.extend(unscraped.map(|listing| (key.clone(), listing)));
                continue;
            }
            if variant.read_by == ReadBy::Prometheus {
                let replicas = listed.as_ref().map(|(listing, _)| listing.replicas.clone());
                let which = which(variant, replicas.unwrap_or_default());
                let wanted = VariantQuery { variant: key.clone(), models: names, which };
                seen.in_prometheus.push(wanted);
            }

            let Some((listing, targets)) = listed else { continue };
            seen.listings.insert(key.clone(), listing);
            if variant.read_by == ReadBy::Scrape {
                seen.targets.extend(targets);
            }
        }

        seen
    }
}

/// The listing of a variant whose replicas are not scraped: its scale target alone.
fn without_replicas(listing: ReplicaListing) -> ReplicaListing {
    ReplicaListing { replicas: Vec::new(), unready: Vec::new(), ..listing }
}

/// The scope of the credentials in a configuration. Without a list, a namespace is trusted if the
/// configuration itself sends the same credentials to pods in it.
fn credentials(config: &Config) -> CredentialScope {
    let ScrapeDefaults { endpoint, settings } = &config.scrape;
    let namespaces = match &config.keys.scrape.credentials_for {
        Some(listed) if listed.iter().any(|name| name == config::names::ALL_NAMESPACES) => {
            TrustedNamespaces::All
        }
        Some(listed) => TrustedNamespaces::Listed(
            listed.iter().filter_map(|name| Namespace::new(name)).collect(),
        ),
        None => {
            let trusted = config.variants.iter().filter(|it| sends_credentials(it, settings));
            let namespaces = trusted.map(|variant| variant.spec.key.namespace.clone());
            TrustedNamespaces::Listed(namespaces.collect())
        }
    };

    let more_ports = config.keys.scrape.credentials_ports.iter().copied();
    CredentialScope::new(settings, endpoint, namespaces, more_ports)
}

/// Returns true if pods in the variant's namespace receive the credentials of these settings.
fn sends_credentials(variant: &VariantConfig, settings: &ScrapeSettings) -> bool {
    let to_pods = match &variant.targets {
        VariantTargets::ScaleTarget(_) | VariantTargets::Selector(_) => true,
        VariantTargets::Listed(_) | VariantTargets::Prometheus(_) => false,
    };
    let own = &variant.scrape.client;
    let usual = &settings.client;

    to_pods
        && variant.read_by == ReadBy::Scrape
        && own.bearer_token_file == usual.bearer_token_file
        && own.identity == usual.identity
}

/// The accelerators of one replica of each discovered variant that claims a number or a kind of its
/// own.
fn units(cluster: &ClusterState) -> BTreeMap<VariantKey, ReplicaUnit> {
    let discovered = cluster.discovery.variants.iter();
    let claims =
        discovered.filter(|(_, variant)| variant.gpus.is_some() || variant.accelerator.is_some());
    let units = claims.filter_map(|(key, _)| Some((key, cluster.inventory.units.get(key)?)));
    units.map(|(key, unit)| (key.clone(), unit.clone())).collect()
}

/// The objection to an annotation that claims fewer accelerators than the pods take. Pods take
/// their requests regardless of annotations, so the claim would only escape limits.
fn fewer(claimed: Gpus, taken: Gpus) -> ObjectionCause {
    let annotation = Annotation::Gpus.name().to_owned();
    let rule = format!("counts as {taken}, as requested in the pod template");
    let found = Some(claimed.to_string());
    ObjectionCause::Doubted { problems: vec![AnnotationProblem { annotation, rule, found }] }
}

/// The objection to an annotation that names another accelerator than the pods run on. Limits count
/// by kind, so the claim would only escape the limit of the real one.
fn another(claimed: &Accelerator, product: &Accelerator) -> ObjectionCause {
    let annotation = Annotation::Accelerator.name().to_owned();
    let rule = format!(
        "counts as {product}, from the pod template's node selector or the pods' nodes; \
         limits.names maps product names"
    );
    let found = Some(claimed.to_string());
    ObjectionCause::Doubted { problems: vec![AnnotationProblem { annotation, rule, found }] }
}

/// The endpoint of a discovered variant: as annotated, otherwise as configured.
fn endpoint(discovered: &DiscoveredVariant, usual: &Endpoint) -> Endpoint {
    Endpoint {
        scheme: discovered.scheme.unwrap_or(usual.scheme),
        port: discovered.port.unwrap_or(usual.port),
        path: discovered.path.clone().unwrap_or_else(|| usual.path.clone()),
    }
}

/// Converts a discovered variant to a declared one.
fn variant(
    discovered: &DiscoveredVariant,
    role: Role,
    read_by: ReadBy,
    scrape: ScrapeDefaults,
) -> VariantConfig {
    let DiscoveredVariant {
        object: _,
        key,
        target,
        model,
        aliases,
        accelerator,
        gpus,
        zero: _,
        role: _,
        cost,
        list_price,
        mismatch,
        start_time,
        bounds,
        scheme: _,
        port: _,
        path: _,
        scraped: _,
        overridden: _,
        doubts: _,
    } = discovered.clone();

    let ScrapeDefaults { endpoint, settings } = scrape;
    let targets = match target {
        WantedTarget::Scale { api_version, kind, name } => {
            VariantTargets::ScaleTarget(config::ScaleTarget { api_version, kind, name })
        }
        WantedTarget::Selector(selector) => VariantTargets::Selector(selector),
        WantedTarget::Elsewhere => VariantTargets::Selector(String::new()),
    };

    let spec = VariantSpec {
        key,
        model,
        accelerator,
        gpus,
        role,
        cost,
        list_price,
        mismatch: mismatch.unwrap_or(Fraction::ONE),
        start_time,
        bounds,
    };

    VariantConfig { spec, aliases, targets, read_by, endpoint, scrape: settings }
}

impl DirectoryEntry {
    /// The variant's replicas and their scrape targets; `None` until the replicas are listed.
    fn listed(
        &self,
        now: Timestamp,
        names: &[ModelName],
        said: DirectoryInputs<'_>,
    ) -> Option<(ReplicaListing, Vec<Target>)> {
        let Self { variant, list, origin: _ } = self;
        let key = &variant.spec.key;
        if let VariantTargets::Prometheus(_) = variant.targets {
            let InstanceList { replicas, as_of } = said.instances?.get(key)?.clone();
            return Some((outside(variant, replicas, as_of), Vec::new()));
        }

        let Some(list) = list else {
            return Some(from_cluster(now, variant, names, said.cluster));
        };

        let listed = list.listed.borrow().clone()?;
        let targets = listed.targets(key, &variant.endpoint, names, &variant.scrape);
        let replicas = targets.iter().map(|target| target.replica.clone()).collect();
        Some((outside(variant, replicas, listed.as_of), targets))
    }
}

/// The listing of replicas that are listed outside of Kubernetes.
fn outside(variant: &VariantConfig, replicas: Vec<ReplicaKey>, as_of: Timestamp) -> ReplicaListing {
    let way = way(variant);
    ReplicaListing { replicas, unready: Vec::new(), scale: Scale::Targets, way, as_of }
}

/// The way in which Plimsoll gets the metrics of a variant's replicas.
const fn way(variant: &VariantConfig) -> ScrapeRoute {
    match variant.read_by {
        ReadBy::Scrape => ScrapeRoute::Scraped,
        ReadBy::Prometheus => ScrapeRoute::Relayed,
    }
}

/// The selector for the series of a variant's replicas in Prometheus.
fn which(variant: &VariantConfig, replicas: Vec<ReplicaKey>) -> SeriesSelection {
    match &variant.targets {
        VariantTargets::Prometheus(labels) => SeriesSelection::Match(labels.clone()),
        VariantTargets::ScaleTarget(_) | VariantTargets::Selector(_) => {
            SeriesSelection::Pods(replicas)
        }
        VariantTargets::Listed(_) => SeriesSelection::Instances(replicas),
    }
}

impl RunningLister {
    fn start(source: &TargetSource, surroundings: &ListerContext) -> Self {
        let ListerContext { clock, metrics, tracker, stop } = surroundings;
        let reading = Lister::new(source.clone(), NameServer::System, *clock, metrics.clone());
        let (list, listed) = watch::channel(None);
        let own_stop = stop.child_token();
        tracker.spawn(reading.run(list, own_stop.clone()));
        Self { source: source.clone(), listed, _stop: own_stop.drop_guard() }
    }
}

/// The names of the variant's model that its metrics may use.
fn names(variant: &VariantConfig) -> Vec<ModelName> {
    std::iter::once(&variant.spec.model).chain(&variant.aliases).cloned().collect()
}

fn from_cluster(
    now: Timestamp,
    variant: &VariantConfig,
    names: &[ModelName],
    cluster: Option<&ClusterState>,
) -> (ReplicaListing, Vec<Target>) {
    let key = &variant.spec.key;
    let Some(state) = cluster.and_then(|cluster| cluster.variants.get(key)) else {
        let scale = Scale::Unknown(WhyScaleUnknown::NotListed);
        let replicas = Vec::new();
        let unready = Vec::new();
        let way = way(variant);
        let listing = ReplicaListing { replicas, unready, scale, way, as_of: now };
        return (listing, Vec::new());
    };

    let mut targets = Vec::new();
    for (replica, ip) in state.addresses(key) {
        let address = SocketAddr::new(ip, variant.endpoint.port);
        let scheme = variant.endpoint.scheme.label();
        let path = &variant.endpoint.path;
        targets.push(Target {
            replica,
            url: format!("{scheme}://{address}{path}"),
            models: names.to_vec(),
            settings: Arc::clone(&variant.scrape),
        });
    }

    (state.listing(key, way(variant)), targets)
}
