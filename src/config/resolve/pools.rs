//! Pools: variants whose replicas each serve several adapters.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::Variant;
use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::names;
use crate::config::problem::join;
use crate::decide::pools::packing::PackingPolicy;
use crate::fleet::{Bounds, ModelName, Namespace, VariantKey, VariantName};
use crate::observe::engine::lora::Slots;
use crate::pipeline::pools::{AdapterWish, Pool};
use crate::units::{Replicas, Seconds};

const PATH: &str = "pools";

/// More than vLLM allows (`--max-loras` up to a few hundred on the largest cards).
const SLOTS: RangeInclusive<u32> = 1..=4096;
/// Long enough for an adapter that is asked for a few times an hour.
const IDLE_AFTER: f64 = 600.0;
const DAY: Duration = Duration::from_hours(24);
const IDLES: Durations = Duration::from_secs(1)..=DAY;
const WINDOWS: Durations = Duration::from_secs(1)..=Duration::from_hours(1);
const INTERVALS: Durations = Duration::from_secs(1)..=DAY;
const MOVED: RangeInclusive<u32> = 1..=10_000;

/// Resolves the pools. Only variants that are `known` can be pools; where more are discovered, all
/// of them are `None`.
pub(crate) fn resolve(
    written: Option<&BTreeMap<String, Option<file::Pool>>>,
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
        let pool = pool(&path, &section.clone().unwrap_or_default(), checks);
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

fn pool(path: &str, written: &file::Pool, checks: &mut Checks<'_>) -> Pool {
    let file::Pool { max_loras, copies, adapters, idle_after, packing } = written;
    let file::Copies { min, max } = copies.clone().unwrap_or_default();
    let copies = bounds(&join(path, "copies"), (min, max), checks);
    let slots = checks.number(&join(path, "max_loras"), *max_loras, &SLOTS).and_then(Slots::new);
    let idle = checks.duration(&join(path, "idle_after"), *idle_after, &IDLES);
    let idle_after = idle.map_or(Seconds::new(IDLE_AFTER), |it| Seconds::new(it.as_secs_f64()));
    let mut wishes = BTreeMap::new();
    let path_of = join(path, "adapters");
    for (name, wish) in adapters.iter().flatten() {
        let path = join(&path_of, name);
        let rule = "must not be empty, nor have spaces at the ends or control characters";
        let text = checks.text(&path, Some(name), names::is_label_text, rule);
        if let Some(name) = text.and_then(ModelName::new) {
            let wish = wish.clone().unwrap_or_default();
            wishes.insert(name, adapter(&path, &wish, copies, checks));
        }
    }
    let packing = resolve_packing(&join(path, "packing"), packing.as_ref(), checks);
    let idle_after = idle_after.unwrap_or_default();
    Pool { slots, copies, adapters: wishes, idle_after, packing }
}

fn adapter(
    path: &str,
    written: &file::Adapter,
    usual: Bounds,
    checks: &mut Checks<'_>,
) -> AdapterWish {
    let file::Adapter { copies, min, max } = *written;
    let limit = Replicas::LIMIT.count();
    let declared = checks.number(&join(path, "copies"), copies, &(0..=limit));
    if declared.is_some() && (min.is_some() || max.is_some()) {
        let rule = "has no effect, because copies says how many it wants";
        let key = if min.is_some() { "min" } else { "max" };
        checks.problems.warning(join(path, key), rule);
    }
    if let Some(declared) = declared.map(Replicas::saturating) {
        let bounds = Bounds::new(Replicas::ZERO, None).unwrap_or_default();
        return AdapterWish { bounds, declared: Some(declared) };
    }
    let min = min.or_else(|| Some(usual.min().count()));
    let max = max.or_else(|| usual.max().map(Replicas::count));
    AdapterWish { bounds: bounds(path, (min, max), checks), declared: None }
}

fn bounds(path: &str, (min, max): (Option<u32>, Option<u32>), checks: &mut Checks<'_>) -> Bounds {
    let limit = Replicas::LIMIT.count();
    let min = checks.number(&join(path, "min"), min, &(0..=limit)).unwrap_or(0);
    let max = checks.number(&join(path, "max"), max, &(1..=limit));
    if let Some(max) = max.filter(|max| min > *max) {
        let rule = format!("must not be below {path}.min, which is {min}");
        checks.problems.error(join(path, "max"), rule, max);
    }
    let bounds = Bounds::new(Replicas::saturating(min), max.map(Replicas::saturating));
    bounds.unwrap_or_default()
}

fn resolve_packing(
    path: &str,
    written: Option<&file::Packing>,
    checks: &mut Checks<'_>,
) -> PackingPolicy {
    let file::Packing { enabled, window, interval, max_moved } =
        written.cloned().unwrap_or_default();
    let usual = PackingPolicy::default();
    let off = enabled == Some(false);
    let seconds = |duration: Duration| Seconds::new(duration.as_secs_f64());
    let window = checks.duration(&join(path, "window"), window, &WINDOWS).and_then(seconds);
    for (key, written) in [("interval", interval.is_some()), ("max_moved", max_moved.is_some())] {
        if off && written {
            let rule = format!("has no effect, because {path}.enabled is false");
            checks.problems.warning(join(path, key), rule);
        }
    }
    let interval = checks.duration(&join(path, "interval"), interval, &INTERVALS);
    let moved = checks.number(&join(path, "max_moved"), max_moved, &MOVED);
    PackingPolicy {
        window: window.unwrap_or(usual.window),
        interval: interval.and_then(seconds).or(usual.interval).filter(|_| !off),
        moved_max: moved.map_or(usual.moved_max, Replicas::saturating),
    }
}
