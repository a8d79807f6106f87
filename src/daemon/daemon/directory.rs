//! The directory: what there is to scrape, put together from the configuration, the lists outside
//! Kubernetes and the watched cluster.
//!
//! Variants are declared in the configuration or discovered in the cluster. They are put together
//! anew whenever either changes, so a reload keeps what is discovered, and a discovery what is
//! declared.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::cluster::discovery::{Discover, Discovered, Filter, Scraped, Vocabulary};
use crate::collect::cluster::{Accelerators, ClusterState, Discovery, Needs, Wanted, WantedTarget};
use crate::collect::prometheus::{Found, Instances, Wanted as InPrometheus, Which};
use crate::collect::scrape::Target;
use crate::collect::targets::{Endpoint, Listed, Lister, Metrics, NameServer, Source};
use crate::config::{self, Config, ReadBy, Scrape, Targets, Variant};
use crate::publish::selector::Selector;
use plimsoll_core::fleet::{
    Fleet, ModelKey, ModelName, Namespace, ReplicaKey, Role, VariantKey, VariantSpec,
};
use plimsoll_core::observe::{Listing, Scale, Way, WhyUnknown};
use plimsoll_core::pipeline::limits::Watched;
use plimsoll_core::units::Fraction;

/// What listers need beside their source.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// What there is to scrape at one moment.
pub(crate) struct Seen {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) listings: BTreeMap<VariantKey, Listing>,
    pub(crate) targets: Vec<Target>,
    /// What is not scraped, because Prometheus does.
    pub(crate) in_prometheus: Vec<InPrometheus>,
}

/// What others say at one moment about what there is.
#[derive(Clone, Copy)]
pub(crate) struct Said<'a> {
    pub(crate) cluster: Option<&'a ClusterState>,
    pub(crate) instances: Option<&'a Instances>,
}

/// The variants and where their replicas are listed.
pub(crate) struct Directory {
    fleet: Arc<Fleet>,
    entries: BTreeMap<VariantKey, Entry>,
    /// How replicas of discovered variants are scraped where nothing else is said.
    scrape: Scrape,
    /// Who reads them where nothing else is said.
    read_by: ReadBy,
    discovery: Arc<Discovery>,
    /// What the pods of discovered variants have said of their roles; without a pod nothing says it.
    roles: BTreeMap<VariantKey, Role>,
}

struct Entry {
    variant: Variant,
    /// `None` for replicas that the cluster lists.
    list: Option<List>,
    origin: Origin,
}

/// Where a variant is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The configuration.
    Declared,
    /// The cluster.
    Discovered,
}

/// A running lister; dropping it ends it.
struct List {
    source: Source,
    listed: watch::Receiver<Option<Arc<Listed>>>,
    _stop: DropGuard,
}

impl Directory {
    /// Starts to list every variant that is listed outside Kubernetes.
    pub(crate) fn new(config: &Config, surroundings: &Surroundings) -> Self {
        let mut directory = Self {
            fleet: Arc::default(),
            entries: BTreeMap::new(),
            scrape: config.scrape.clone(),
            read_by: ReadBy::Scrape,
            discovery: Arc::default(),
            roles: BTreeMap::new(),
        };
        directory.replace(config, surroundings);
        directory
    }

    /// Goes on with another configuration; lists whose source stays the same go on undisturbed.
    pub(crate) fn replace(&mut self, config: &Config, surroundings: &Surroundings) {
        let mut old = std::mem::take(&mut self.entries);
        self.scrape = config.scrape.clone();
        self.read_by = match config.prometheus {
            Some(_) => ReadBy::Prometheus,
            None => ReadBy::Scrape,
        };
        for variant in &config.variants {
            let known = old.remove(&variant.spec.key).and_then(|entry| entry.list);
            let list = match &variant.targets {
                Targets::Listed(source) => Some(
                    known
                        .filter(|list| list.source == *source)
                        .unwrap_or_else(|| List::start(source, surroundings)),
                ),
                Targets::ScaleTarget(_) | Targets::Selector(_) | Targets::Prometheus(_) => None,
            };
            let entry = Entry { variant: variant.clone(), list, origin: Origin::Declared };
            self.entries.insert(variant.spec.key.clone(), entry);
        }
        self.put_together();
    }

    /// Takes in what is discovered now.
    pub(crate) fn discover(&mut self, cluster: &ClusterState) {
        let mut changed = !Arc::ptr_eq(&self.discovery, &cluster.discovery);
        self.discovery = Arc::clone(&cluster.discovery);
        self.roles.retain(|key, _| cluster.discovery.variants.contains_key(key));
        for key in cluster.discovery.variants.keys() {
            let said = cluster.variants.get(key).and_then(|state| state.role);
            let Some(said) = said else { continue };
            changed |= self.roles.insert(key.clone(), said) != Some(said);
        }
        if changed {
            self.put_together();
        }
    }

    /// All variants, declared and discovered.
    pub(crate) fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// What is discovered.
    pub(crate) fn discovery(&self) -> &Arc<Discovery> {
        &self.discovery
    }

    /// Puts the discovered variants beside the declared ones, which come first: one that has just
    /// been declared may be discovered for a moment longer.
    fn put_together(&mut self) {
        self.entries.retain(|_, entry| entry.origin == Origin::Declared);
        for (key, discovered) in &self.discovery.variants {
            if self.entries.contains_key(key) {
                continue;
            }
            let role = discovered.role.or_else(|| self.roles.get(key).copied());
            let role = role.unwrap_or_default();
            let read_by = discovered.scraped.map_or(self.read_by, |Scraped| ReadBy::Scrape);
            let variant = variant(discovered, role, read_by, &self.scrape);
            let entry = Entry { variant, list: None, origin: Origin::Discovered };
            self.entries.insert(key.clone(), entry);
        }
        let fleet = Fleet::new(self.entries.values().map(|entry| entry.variant.spec.clone()));
        let is_discovered = |key| {
            self.entries.get(key).is_some_and(|entry: &Entry| entry.origin == Origin::Discovered)
        };
        let wishes = self.discovery.variants.iter().filter(|(key, _)| is_discovered(*key));
        let wishes = wishes.map(|(key, one)| {
            let (namespace, model) = (key.namespace.clone(), one.model.clone());
            (ModelKey { namespace, model }, one.zero)
        });
        self.fleet = Arc::new(fleet.wishing(wishes));
    }

    /// What there is to scrape now, and what Prometheus is asked for instead.
    pub(crate) fn look(&self, now: Timestamp, said: Said<'_>) -> Seen {
        let mut seen = Seen {
            fleet: Arc::clone(&self.fleet),
            listings: BTreeMap::new(),
            targets: Vec::new(),
            in_prometheus: Vec::new(),
        };
        for (key, entry) in &self.entries {
            let variant = &entry.variant;
            let names = names(variant);
            let listed = entry.listed(now, &names, said);
            if variant.read_by == ReadBy::Prometheus {
                let replicas = listed.as_ref().map(|(listing, _)| listing.replicas.clone());
                let which = which(variant, replicas.unwrap_or_default());
                let wanted = InPrometheus { variant: key.clone(), models: names, which };
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

/// A discovered variant as if it were declared.
fn variant(discovered: &Discovered, role: Role, read_by: ReadBy, scrape: &Scrape) -> Variant {
    let Discovered {
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
        scheme,
        port,
        path,
        scraped: _,
        doubts: _,
    } = discovered.clone();
    let Scrape { endpoint, settings } = scrape;
    let endpoint = Endpoint {
        scheme: scheme.unwrap_or(endpoint.scheme),
        port: port.unwrap_or(endpoint.port),
        path: path.unwrap_or_else(|| endpoint.path.clone()),
    };
    let targets = match target {
        WantedTarget::Scale { api_version, kind, name } => {
            Targets::ScaleTarget(config::ScaleTarget { api_version, kind, name })
        }
        WantedTarget::Selector(selector) => Targets::Selector(selector),
        WantedTarget::Elsewhere => Targets::Selector(String::new()),
    };
    let mismatch = mismatch.unwrap_or(Fraction::ONE);
    let spec = VariantSpec {
        key,
        model,
        accelerator,
        gpus,
        role,
        cost,
        list_price,
        mismatch,
        start_time,
        bounds,
    };
    Variant { spec, aliases, targets, read_by, endpoint, scrape: Arc::clone(settings) }
}

impl Entry {
    /// The variant's replicas and where their pages are; `None` while nobody has listed them.
    fn listed(
        &self,
        now: Timestamp,
        names: &[ModelName],
        said: Said<'_>,
    ) -> Option<(Listing, Vec<Target>)> {
        let Self { variant, list, origin: _ } = self;
        let key = &variant.spec.key;
        let outside = |replicas: Vec<ReplicaKey>, as_of| Listing {
            replicas,
            unready: Vec::new(),
            scale: Scale::Targets,
            way: way(variant),
            as_of,
        };
        if let Targets::Prometheus(_) = variant.targets {
            let Found { replicas, as_of } = said.instances?.get(key)?.clone();
            return Some((outside(replicas, as_of), Vec::new()));
        }
        let Some(list) = list else {
            return Some(from_cluster(now, variant, names, said.cluster));
        };
        let listed = list.listed.borrow().clone()?;
        let targets = listed.targets(key, &variant.endpoint, names, &variant.scrape);
        let replicas = targets.iter().map(|target| target.replica.clone()).collect();
        Some((outside(replicas, listed.as_of), targets))
    }
}

/// Which way the pages of a variant's replicas come.
const fn way(variant: &Variant) -> Way {
    match variant.read_by {
        ReadBy::Scrape => Way::Scraped,
        ReadBy::Prometheus => Way::Relayed,
    }
}

/// By what the series of a variant's replicas are found in Prometheus.
fn which(variant: &Variant, replicas: Vec<ReplicaKey>) -> Which {
    match &variant.targets {
        Targets::Prometheus(labels) => Which::Match(labels.clone()),
        Targets::ScaleTarget(_) | Targets::Selector(_) => Which::Pods(replicas),
        Targets::Listed(_) => Which::Instances(replicas),
    }
}

impl List {
    fn start(source: &Source, surroundings: &Surroundings) -> Self {
        let Surroundings { clock, metrics, tracker, stop } = surroundings;
        let reading = Lister::new(source.clone(), NameServer::System, *clock, metrics.clone());
        let (list, listed) = watch::channel(None);
        let stop = stop.child_token();
        tracker.spawn(reading.run(list, stop.clone()));
        Self { source: source.clone(), listed, _stop: stop.drop_guard() }
    }
}

/// The names under which the variant's pages may speak of its model.
fn names(variant: &Variant) -> Vec<ModelName> {
    std::iter::once(&variant.spec.model).chain(&variant.aliases).cloned().collect()
}

fn from_cluster(
    now: Timestamp,
    variant: &Variant,
    names: &[ModelName],
    cluster: Option<&ClusterState>,
) -> (Listing, Vec<Target>) {
    let key = &variant.spec.key;
    let Some(state) = cluster.and_then(|cluster| cluster.variants.get(key)) else {
        let scale = Scale::Unknown(WhyUnknown::NotListed);
        let (replicas, unready, way) = (Vec::new(), Vec::new(), way(variant));
        let listing = Listing { replicas, unready, scale, way, as_of: now };
        return (listing, Vec::new());
    };
    let target = |(replica, ip)| {
        let address = SocketAddr::new(ip, variant.endpoint.port);
        let (scheme, path) = (variant.endpoint.scheme.label(), &variant.endpoint.path);
        Target {
            replica,
            url: format!("{scheme}://{address}{path}"),
            models: names.to_vec(),
            settings: Arc::clone(&variant.scrape),
        }
    };
    let targets = state.addresses(key).into_iter().map(target).collect();
    (state.listing(key, way(variant)), targets)
}

/// What is to be watched in the cluster.
pub(crate) fn needs(config: &Config) -> Needs {
    let wanted = |variant: &Variant| {
        let target = match &variant.targets {
            Targets::Listed(_) | Targets::Prometheus(_) => WantedTarget::Elsewhere,
            Targets::ScaleTarget(target) => WantedTarget::Scale {
                api_version: target.api_version.clone(),
                kind: target.kind.clone(),
                name: target.name.clone(),
            },
            Targets::Selector(selector) => WantedTarget::Selector(selector.clone()),
        };
        Wanted { variant: variant.spec.key.clone(), target }
    };
    let discovery = config.keys.kubernetes.discovery();
    Needs {
        variants: config.variants.iter().map(wanted).collect(),
        discover: discovery.map(discover),
        accelerators: Accelerators {
            nodes: config.policy.limits.nodes == Watched::On,
            quotas: config.policy.limits.quotas == Watched::On,
        },
    }
}

fn discover(discovery: &config::Discovery) -> Discover {
    let config::Discovery { enabled: _, namespaces, selector, wva } = discovery;
    let filter = selector.as_deref().map_or_else(Filter::all, |text| {
        let selector: Option<Selector> = text.parse().ok();
        Filter::new(text, move |labels| {
            let labels = labels.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
            selector.as_ref().is_some_and(|selector| selector.matches(&labels))
        })
    });
    Discover {
        namespaces: namespaces.iter().filter_map(|name| Namespace::new(name)).collect(),
        filter,
        wva: if *wva { Vocabulary::WithWva } else { Vocabulary::Own },
    }
}
