//! The sections of pools, from what is used.

use std::collections::BTreeMap;

use crate::config::file;
use crate::config::print::written;
use crate::decide::pools::packing::PackingPolicy;
use crate::fleet::{Bounds, VariantKey};
use crate::observe::engine::lora::Slots;
use crate::pipeline::pools::{AdapterWish, Pool};
use crate::units::Replicas;

pub(super) fn section(pools: &BTreeMap<VariantKey, Pool>) -> BTreeMap<String, Option<file::Pool>> {
    pools.iter().map(|(key, pool)| (key.to_string(), Some(one(pool)))).collect()
}

fn one(pool: &Pool) -> file::Pool {
    let Pool { slots, copies, adapters, idle_after, packing } = pool;
    let (min, max) = counts(*copies);
    let adapters = adapters.iter().map(|(name, wish)| (name.to_string(), Some(adapter(*wish))));
    let PackingPolicy { window, interval, moved_max } = *packing;
    file::Pool {
        max_loras: slots.map(Slots::number),
        copies: Some(file::Copies { min, max }),
        adapters: Some(adapters.collect()),
        idle_after: Some(written(*idle_after)),
        packing: Some(file::Packing {
            enabled: Some(interval.is_some()),
            window: Some(written(window)),
            interval: interval.map(written),
            max_moved: interval.map(|_| moved_max.count()),
        }),
    }
}

fn adapter(wish: AdapterWish) -> file::Adapter {
    match wish {
        AdapterWish { declared: Some(declared), .. } => {
            file::Adapter { copies: Some(declared.count()), min: None, max: None }
        }
        AdapterWish { declared: None, bounds } => {
            let (min, max) = counts(bounds);
            file::Adapter { copies: None, min, max }
        }
    }
}

fn counts(bounds: Bounds) -> (Option<u32>, Option<u32>) {
    (Some(bounds.min().count()), bounds.max().map(Replicas::count))
}
