//! The keys of pools.

use std::collections::BTreeMap;

use crate::config::file::{AdapterKeys, CopyKeys, PackingKeys, PoolKeys};
use plimsoll_core::decide::pools::packing::PackingPolicy;
use plimsoll_core::fleet::{Bounds, VariantKey};
use plimsoll_core::observe::engine::lora::Slots;
use plimsoll_core::pipeline::pools::{AdapterWish, Pool};
use plimsoll_core::settings::{Setting, Written};
use plimsoll_core::units::Replicas;

pub(super) fn section(
    pools: &BTreeMap<VariantKey, Pool>,
) -> BTreeMap<String, Option<Written<PoolKeys>>> {
    pools.iter().map(|(key, pool)| (key.to_string(), one(pool).written())).collect()
}

fn one(pool: &Pool) -> PoolKeys {
    let Pool { slots, copies, adapters, idle_after, packing } = pool;
    let PackingPolicy { window, interval, moved_max } = *packing;
    let adapters = adapters.iter();
    PoolKeys {
        max_loras: slots.map(Slots::number),
        copies: counts(*copies),
        adapters: adapters
            .map(|(name, wish)| (name.to_string(), adapter(*wish).written()))
            .collect(),
        idle_after: *idle_after,
        packing: PackingKeys {
            enabled: interval.is_some(),
            window,
            interval,
            max_moved: interval.map(|_| moved_max),
        },
    }
}

fn adapter(wish: AdapterWish) -> AdapterKeys {
    let AdapterWish { bounds, declared } = wish;
    if declared.is_some() {
        return AdapterKeys { copies: declared, min: None, max: None };
    }
    let CopyKeys { min, max } = counts(bounds);
    AdapterKeys { copies: None, min: Some(min), max }
}

fn counts(bounds: Bounds) -> CopyKeys {
    CopyKeys { min: bounds.min().count(), max: bounds.max().map(Replicas::count) }
}
