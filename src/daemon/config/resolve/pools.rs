//! Pools: variants whose replicas each serve several adapters.

use std::collections::BTreeMap;

use crate::config::Variant;
use crate::config::check::Checks;
use crate::config::file::{AdapterKeys, CopyKeys, PoolKeys};
use crate::config::names;
use crate::config::problem::join;
use plimsoll_core::decide::pools::packing::PackingPolicy;
use plimsoll_core::fleet::{Bounds, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::observe::engine::lora::Slots;
use plimsoll_core::pipeline::pools::{AdapterWish, Pool};
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::{Replicas, Seconds};

const PATH: &str = "pools";

/// Resolves the pools. Only variants that are `known` can be pools; where more are discovered, all
/// of them are `None`.
pub(crate) fn resolve(
    written: Option<&BTreeMap<String, Option<Written<PoolKeys>>>>,
    known: Option<&[Variant]>,
    window: Seconds,
    checks: &mut Checks<'_>,
) -> BTreeMap<VariantKey, Pool> {
    let mut pools = BTreeMap::new();
    for (name, section) in written.into_iter().flatten() {
        let path = join(PATH, name);
        let Some(key) = key(name) else {
            let rule = "must be NAMESPACE/VARIANT, such as default/llama-lora";
            checks.problems.error_at(path, rule);
            continue;
        };
        if known.is_some_and(|known| known.iter().all(|variant| variant.spec.key != key)) {
            checks.problems.error_at(&path, "is no variant of this configuration");
        }
        let pool = pool(&path, section.as_ref(), checks);
        if pool.idle_after < window {
            let rule =
                format!("must not be shorter than observe.window, which is {} s", window.seconds());
            checks.problems.error(join(&path, "idle_after"), rule, pool.idle_after.seconds());
        }
        pools.insert(key, pool);
    }
    pools
}

fn key(name: &str) -> Option<VariantKey> {
    let (namespace, variant) = name.split_once('/')?;
    if !names::is_dns_label(namespace) || !names::is_variant_name(variant) {
        return None;
    }
    let (namespace, variant) = (Namespace::new(namespace)?, VariantName::new(variant)?);
    Some(VariantKey { namespace, variant })
}

fn pool(path: &str, written: Option<&Written<PoolKeys>>, checks: &mut Checks<'_>) -> Pool {
    let PoolKeys { max_loras, copies, adapters, idle_after, packing } =
        settings::resolve(written, path, &mut checks.problems);
    let copies = bounds(&join(path, "copies"), copies, checks);
    let mut wishes = BTreeMap::new();
    let path_of = join(path, "adapters");
    for (name, wish) in adapters {
        let path = join(&path_of, &name);
        let text = checks.text(&path, Some(&name), names::is_label_text, names::LABEL_TEXT);
        if let Some(name) = text.and_then(ModelName::new) {
            wishes.insert(name, adapter(&path, wish.as_ref(), copies, checks));
        }
    }

    let off = !packing.enabled;
    let written = written.and_then(|written| written.packing.as_ref());
    for (key, written) in [
        ("interval", written.is_some_and(|written| written.interval.is_some())),
        ("max_moved", written.is_some_and(|written| written.max_moved.is_some())),
    ] {
        if off && written {
            let path = join(path, "packing");
            let rule = format!("has no effect, because {path}.enabled is false");
            checks.problems.warning(join(&path, key), rule);
        }
    }
    let packing = PackingPolicy {
        window: packing.window,
        interval: packing.interval.filter(|_| !off),
        moved_max: packing.max_moved.unwrap_or_default(),
    };
    Pool { slots: max_loras.and_then(Slots::new), copies, adapters: wishes, idle_after, packing }
}

fn adapter(
    path: &str,
    written: Option<&Written<AdapterKeys>>,
    usual: Bounds,
    checks: &mut Checks<'_>,
) -> AdapterWish {
    let beneath = AdapterKeys {
        copies: None,
        min: Some(usual.min().count()),
        max: usual.max().map(Replicas::count),
    };
    let keys = settings::resolve_over(written, &beneath, path, &mut checks.problems);
    let AdapterKeys { copies, min, max } = keys;
    if let Some(declared) = copies {
        let is_written = |key: fn(&Written<AdapterKeys>) -> bool| written.is_some_and(key);
        let (has_min, has_max) =
            (is_written(|it| it.min.is_some()), is_written(|it| it.max.is_some()));
        if has_min || has_max {
            let rule = "has no effect, because copies says how many it wants";
            checks.problems.warning(join(path, if has_min { "min" } else { "max" }), rule);
        }
        let bounds = Bounds::new(Replicas::ZERO, None).unwrap_or_default();
        return AdapterWish { bounds, declared: Some(declared) };
    }
    let keys = CopyKeys { min: min.unwrap_or_default(), max };
    AdapterWish { bounds: bounds(path, keys, checks), declared: None }
}

fn bounds(path: &str, CopyKeys { min, max }: CopyKeys, checks: &mut Checks<'_>) -> Bounds {
    if let Some(max) = max.filter(|max| min > *max) {
        let rule = format!("must not be below {path}.min, which is {min}");
        checks.problems.error(join(path, "max"), rule, max);
    }
    let bounds = Bounds::new(Replicas::saturating(min), max.map(Replicas::saturating));
    bounds.unwrap_or_default()
}
