//! The directory: what there is to scrape, put together from the configuration, the lists outside
//! Kubernetes and the watched cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::cluster::{ClusterState, Wanted, WantedTarget};
use crate::collect::scrape::Target;
use crate::collect::targets::{Listed, Lister, Metrics, NameServer, Source};
use crate::config::{Config, Targets, Variant};
use crate::fleet::{Fleet, ModelName, VariantKey};
use crate::observe::{Listing, Scale, WhyUnknown};

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
}

/// The variants of the configuration and where their replicas are listed.
pub(crate) struct Directory {
    fleet: Arc<Fleet>,
    entries: BTreeMap<VariantKey, Entry>,
}

struct Entry {
    variant: Variant,
    /// `None` for replicas that the cluster lists.
    list: Option<List>,
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
        let mut directory = Self { fleet: Arc::default(), entries: BTreeMap::new() };
        directory.replace(config, surroundings);
        directory
    }

    /// Goes on with another configuration; lists whose source stays the same go on undisturbed.
    pub(crate) fn replace(&mut self, config: &Config, surroundings: &Surroundings) {
        let mut old = std::mem::take(&mut self.entries);
        self.fleet = Arc::new(Fleet::new(config.variants.iter().map(|it| it.spec.clone())));
        for variant in &config.variants {
            let known = old.remove(&variant.spec.key).and_then(|entry| entry.list);
            let list = match &variant.targets {
                Targets::Listed(source) => Some(
                    known
                        .filter(|list| list.source == *source)
                        .unwrap_or_else(|| List::start(source, surroundings)),
                ),
                Targets::ScaleTarget(_) | Targets::Selector(_) => None,
            };
            let entry = Entry { variant: variant.clone(), list };
            self.entries.insert(variant.spec.key.clone(), entry);
        }
    }

    /// What there is to scrape now.
    pub(crate) fn look(&self, now: Timestamp, cluster: Option<&ClusterState>) -> Seen {
        let mut seen =
            Seen { fleet: Arc::clone(&self.fleet), listings: BTreeMap::new(), targets: Vec::new() };
        for (key, Entry { variant, list }) in &self.entries {
            let names = names(variant);
            let (listing, targets) = if let Some(list) = list {
                let listed = list.listed.borrow().clone();
                let Some(listed) = listed else { continue };
                let targets = listed.targets(key, &variant.endpoint, &names, &variant.scrape);
                let replicas = targets.iter().map(|target| target.replica.clone()).collect();
                let listing = Listing {
                    replicas,
                    unready: Vec::new(),
                    scale: Scale::Targets,
                    as_of: listed.as_of,
                };
                (listing, targets)
            } else {
                from_cluster(now, variant, &names, cluster)
            };
            seen.listings.insert(key.clone(), listing);
            seen.targets.extend(targets);
        }
        seen
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
        let listing = Listing { replicas: Vec::new(), unready: Vec::new(), scale, as_of: now };
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
    (state.listing(key), targets)
}

/// What is to be watched in the cluster.
pub(crate) fn wanted(config: &Config) -> Vec<Wanted> {
    let wanted = |variant: &Variant| {
        let target = match &variant.targets {
            Targets::Listed(_) => return None,
            Targets::ScaleTarget(target) => WantedTarget::Scale {
                api_version: target.api_version.clone(),
                kind: target.kind.clone(),
                name: target.name.clone(),
            },
            Targets::Selector(selector) => WantedTarget::Selector(selector.clone()),
        };
        Some(Wanted { variant: variant.spec.key.clone(), target })
    };
    config.variants.iter().filter_map(wanted).collect()
}
