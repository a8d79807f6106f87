//! The objects that the daemon watches in the cluster, by its configuration.

use std::collections::BTreeSet;

use crate::collect::cluster::discovery::{
    Annotation, AnnotationRules, DiscoveryScope, Filter, Vocabulary,
};
use crate::collect::cluster::{Accelerators, ClusterNeeds, WantedTarget, WatchedVariant};
use crate::config::{self, Config, VariantConfig, VariantTargets};
use crate::publish::selector::Selector;
use plimsoll_core::fleet::{Namespace, VariantKey};
use plimsoll_core::pipeline::limits::LimitSwitch;
use plimsoll_core::pipeline::pools::PoolSource;

/// The objects to watch in the cluster.
#[must_use]
pub fn of(config: &Config) -> ClusterNeeds {
    let discovery = config.keys.kubernetes.discovery();
    ClusterNeeds {
        variants: config.variants.iter().map(wanted).collect(),
        hosts: hosts(config),
        discover: discovery.map(discover),
        accelerators: Accelerators {
            nodes: config.policy.limits.nodes == LimitSwitch::On,
            quotas: config.policy.limits.quotas == LimitSwitch::On,
        },
    }
}

/// The variants that are servers with several models, whose replicas are not scraped.
pub(crate) fn hosts(config: &Config) -> BTreeSet<VariantKey> {
    let pools = config.policy.pools.iter().filter(|(_, pool)| pool.source == PoolSource::Seldon);
    pools.map(|(key, _)| key.clone()).collect()
}

fn wanted(variant: &VariantConfig) -> WatchedVariant {
    let target = match &variant.targets {
        VariantTargets::Listed(_) | VariantTargets::Prometheus(_) => WantedTarget::Elsewhere,
        VariantTargets::ScaleTarget(scaled) => WantedTarget::Scale {
            api_version: scaled.api_version.clone(),
            kind: scaled.kind.clone(),
            name: scaled.name.clone(),
        },
        VariantTargets::Selector(selector) => WantedTarget::Selector(selector.clone()),
    };

    WatchedVariant { variant: variant.spec.key.clone(), target }
}

fn discover(discovery: &config::Discovery) -> DiscoveryScope {
    let config::Discovery {
        enabled: _,
        namespaces,
        selector,
        namespace_selector,
        annotations,
        gpus_max,
        cost_min,
        cost_max,
        wva,
    } = discovery;

    let allowed = annotations.as_ref().map(|listed| {
        let all = Annotation::ALL.iter().copied();
        all.filter(|one| listed.iter().any(|name| name == one.name())).collect()
    });

    let vocabulary = if *wva { Vocabulary::WithWva } else { Vocabulary::Own };
    DiscoveryScope {
        namespaces: namespaces.iter().filter_map(|name| Namespace::new(name)).collect(),
        namespace_filter: filter(namespace_selector.as_deref()),
        filter: filter(selector.as_deref()),
        rules: AnnotationRules {
            allowed,
            gpus_max: *gpus_max,
            costs: cost_min.per_hour()..=cost_max.per_hour(),
            ..AnnotationRules::of(vocabulary)
        },
    }
}

/// The filter of a label selector; without one, everything is accepted.
fn filter(selector: Option<&str>) -> Filter {
    let Some(text) = selector else { return Filter::all() };
    let parsed: Option<Selector> = text.parse().ok();
    Filter::new(text, move |labels| {
        let pairs = labels.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        parsed.as_ref().is_some_and(|selector| selector.matches(&pairs))
    })
}
