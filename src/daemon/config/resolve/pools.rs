//! Pools: variants whose replicas each serve several adapters.

use std::collections::BTreeMap;

use crate::collect::cluster::is_server;
use crate::collect::demand::{MetricsEndpoint, ReadSettings, SignalSource};
use crate::config::check::Checks;
use crate::config::effective::{VariantConfig, VariantTargets};
use crate::config::file::{AdapterKeys, CopyKeys, PackingKeys, PoolGatewayKeys, PoolKeys};
use crate::config::names;
use crate::config::resolve::scrape::{check_client, client, warn_of_client};
use crate::config::resolve::wake::page_scheme;
use plimsoll_core::decide::pools::packing::PackingPolicy;
use plimsoll_core::fleet::{Bounds, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::observe::engine::lora::Slots;
use plimsoll_core::pipeline::pools::{AdapterPool, AdapterRule, PoolSource};
use plimsoll_core::settings::problem::join;
use plimsoll_core::settings::{self, Setting, Written};
use plimsoll_core::units::{Replicas, Seconds};

const PATH: &str = "pools";

/// The section: the keys of each pool by its name.
type PoolSection = BTreeMap<String, Option<Written<PoolKeys>>>;

/// The pools of a policy.
#[derive(Default)]
pub(super) struct ResolvedPools {
    pub(super) pools: BTreeMap<VariantKey, AdapterPool>,
    /// The gateways of pools that have one.
    pub(super) gateways: BTreeMap<VariantKey, ReadSettings>,
}

/// Resolves the pools, and completes the section. Only variants in `known` can be pools; it is
/// `None` if more variants are discovered.
pub(crate) fn resolve(
    section: &mut Option<PoolSection>,
    known: Option<&[VariantConfig]>,
    window: Seconds,
    checks: &mut Checks<'_>,
) -> ResolvedPools {
    let mut resolved = ResolvedPools::default();
    for (name, written) in section.iter_mut().flatten() {
        let path = join(PATH, name);
        let Some(key) = key(name) else {
            let rule = "must be NAMESPACE/VARIANT, such as default/llama-lora";
            checks.problems.error_at(path, rule);
            continue;
        };
        if known.is_some_and(|known| known.iter().all(|variant| variant.spec.key != key)) {
            checks.problems.error_at(&path, "is not a variant of this configuration");
        }

        let was = written.clone();
        let (mut keys, pool) = pool(&path, was.as_ref(), checks);
        if let Some(gateway) = &mut keys.gateway
            && let Some(set) = was.as_ref().and_then(|it| it.gateway.as_ref())
        {
            let read = reads(&join(&path, "gateway"), set, gateway, checks);
            resolved.gateways.extend(read.map(|read| (key.clone(), read)));
        }
        *written = keys.written();
        if pool.idle_after < window {
            let rule =
                format!("must not be shorter than observe.window, which is {} s", window.seconds());
            checks.problems.error(join(&path, "idle_after"), rule, pool.idle_after.seconds());
        }

        if pool.source == PoolSource::Seldon {
            let variant = known.and_then(|known| known.iter().find(|it| it.spec.key == key));
            check_server(&path, variant, was.as_ref(), checks);
        }
        resolved.pools.insert(key, pool);
    }

    section.take_if(|section| section.is_empty());
    resolved
}

/// Checks that a pool of Seldon's models is a `Server`, and notes keys that are for adapters.
fn check_server(
    path: &str,
    variant: Option<&VariantConfig>,
    written: Option<&Written<PoolKeys>>,
    checks: &mut Checks<'_>,
) {
    let is_server = variant.is_none_or(|variant| match &variant.targets {
        VariantTargets::ScaleTarget(target) => is_server(&target.api_version, &target.kind),
        VariantTargets::Listed(_) | VariantTargets::Selector(_) | VariantTargets::Prometheus(_) => {
            false
        }
    });
    if !is_server {
        let rule = "needs a variant whose targets.scale_target is a Server of mlops.seldon.io";
        checks.problems.error_at(join(path, "source"), rule);
    }

    let Some(written) = written else { return };
    let others = [
        ("max_loras", written.max_loras.is_some()),
        ("copies", written.copies.is_some()),
        ("adapters", written.adapters.is_some()),
        ("gateway", written.gateway.is_some()),
        ("idle_after", written.idle_after.is_some()),
    ];
    checks.problems.unused(path, &others, "source is seldon");
}

/// The readings of a pool's gateway; `None` if its URL is not valid. Completes the keys.
fn reads(
    path: &str,
    written: &Written<PoolGatewayKeys>,
    keys: &mut PoolGatewayKeys,
    checks: &mut Checks<'_>,
) -> Option<ReadSettings> {
    let scheme = page_scheme(&join(path, "url"), written.url.as_ref()?, checks)?;
    check_client(path, written.tls.as_ref(), written.bearer_token_file.as_ref(), checks);
    let tls = keys.tls.get_or_insert_default();
    let client = client(tls, keys.bearer_token_file.as_ref());
    warn_of_client(path, scheme, &client, checks);

    let source = SignalSource::RoutedRequests(MetricsEndpoint { url: keys.url.clone(), client });
    Some(ReadSettings { name: path.to_owned(), source, interval: keys.interval })
}

fn key(name: &str) -> Option<VariantKey> {
    let (namespace, variant) = name.split_once('/')?;
    if !names::is_dns_label(namespace) || !names::is_variant_name(variant) {
        return None;
    }
    Some(VariantKey { namespace: Namespace::new(namespace)?, variant: VariantName::new(variant)? })
}

fn pool(
    path: &str,
    written: Option<&Written<PoolKeys>>,
    checks: &mut Checks<'_>,
) -> (PoolKeys, AdapterPool) {
    let mut keys: PoolKeys = settings::resolve(written, path, &mut checks.problems);
    let copies = bounds(&join(path, "copies"), keys.copies, checks);
    let mut wishes = BTreeMap::new();
    let path_of = join(path, "adapters");
    for (name, wish) in &mut keys.adapters {
        let path = join(&path_of, name);
        let text = checks.text(&path, Some(name), names::is_label_text, names::LABEL_TEXT);
        let Some(name) = text.and_then(ModelName::new) else { continue };
        let adapter = adapter(&path, wish.as_ref(), keys.copies, checks);
        *wish = adapter.written();
        wishes.insert(name, wish_of(&path, adapter, checks));
    }

    let section = written.and_then(|written| written.packing.as_ref());
    if !keys.packing.enabled {
        let section_path = join(path, "packing");
        let limits = [
            ("interval", section.is_some_and(|written| written.interval.is_some())),
            ("max_moved", section.is_some_and(|written| written.max_moved.is_some())),
        ];
        let because = format!("{section_path}.enabled is false");
        checks.problems.unused(&section_path, &limits, &because);
    }

    let PoolKeys {
        source,
        max_loras,
        idle_after,
        packing: PackingKeys { enabled, window, interval, max_moved },
        ..
    } = keys;
    let packing = PackingPolicy {
        window,
        interval: interval.filter(|_| enabled),
        moved_max: max_moved.unwrap_or_default(),
    };
    keys.packing.interval = packing.interval;
    keys.packing.max_moved = max_moved.filter(|_| enabled);
    let slots = max_loras.and_then(Slots::new);
    (keys, AdapterPool { source, slots, copies, adapters: wishes, idle_after, packing })
}

/// The keys of an adapter: either a number of copies, or bounds.
fn adapter(
    path: &str,
    written: Option<&Written<AdapterKeys>>,
    CopyKeys { min, max }: CopyKeys,
    checks: &mut Checks<'_>,
) -> AdapterKeys {
    let beneath = AdapterKeys { copies: None, min: Some(min), max };
    let keys = settings::resolve_over(written, &beneath, path, &mut checks.problems);
    if keys.copies.is_none() {
        return keys;
    }

    let has_min = written.is_some_and(|it| it.min.is_some());
    let has_max = written.is_some_and(|it| it.max.is_some());
    if has_min || has_max {
        let rule = "has no effect, because copies sets its number";
        checks.problems.warning(join(path, if has_min { "min" } else { "max" }), rule);
    }

    AdapterKeys { min: None, max: None, ..keys }
}

fn wish_of(path: &str, keys: AdapterKeys, checks: &mut Checks<'_>) -> AdapterRule {
    let AdapterKeys { copies: declared, min, max } = keys;
    let keys = CopyKeys { min: min.unwrap_or_default(), max };
    AdapterRule { bounds: bounds(path, keys, checks), declared }
}

fn bounds(path: &str, CopyKeys { min, max }: CopyKeys, checks: &mut Checks<'_>) -> Bounds {
    if let Some(max) = max.filter(|max| min > *max) {
        let rule = format!("must not be below {path}.min, which is {min}");
        checks.problems.error(join(path, "max"), rule, max);
    }
    let bounds = Bounds::new(Replicas::saturating(min), max.map(Replicas::saturating));
    bounds.unwrap_or_default()
}
