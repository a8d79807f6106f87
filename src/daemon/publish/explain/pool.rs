//! The copies that the adapters of a pool need, and their placement, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use plimsoll_core::decide::pools::adapters::{PoolNeed, SlotNeed};
use plimsoll_core::decide::pools::plan::{RemovalCandidate, ReplicaPlan};
use plimsoll_core::decide::pools::pooled as found;
use plimsoll_core::decide::pools::pooled::PoolReport;
use plimsoll_core::fleet::{ModelName, ReplicaName};
use plimsoll_core::observe::engine::lora::Slots;
use plimsoll_core::units::{Replicas, RequestRate};

/// What the adapters of a variant need, and where they should be.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Pool<'a> {
    /// Adapters that a replica serves in one step; null if unknown.
    slots: Option<u32>,
    /// Copies that all adapters want together.
    copies: u32,
    /// Replicas that the adapter with the most copies needs, one for each copy.
    needed_for_copies: u32,
    /// Replicas that have slots for all copies; null if the slots are unknown, and of a Seldon
    /// server.
    needed_for_slots: Option<u32>,
    /// Replicas that the load needs, whatever the adapters are; null if unknown, and 0 of a Seldon
    /// server.
    needed_for_load: Option<u32>,
    /// Replicas that are needed beyond the maximum.
    unmet: u32,
    /// Every adapter that wants a copy or is configured, by name.
    adapters: Vec<PoolAdapter<'a>>,
    /// Every listed replica and the adapters on it, by name; empty of a Seldon server.
    replicas: Vec<PoolReplica<'a>>,
    /// Copies that the plan has to load.
    plan_loads: u32,
    /// Copies that find no slot in the plan.
    plan_unmet: u32,
    /// Which copy should be where when the variant has its desired replicas; empty while the slots
    /// are unknown.
    plan: Vec<PoolPlace<'a>>,
    /// In which order replicas should go when there are to be fewer; empty while the slots are
    /// unknown, and where their ordinals decide it, as those of a `StatefulSet` do.
    departures: Vec<PoolDeparture<'a>>,
}

/// One adapter of a pool.
#[derive(Serialize, JsonSchema)]
struct PoolAdapter<'a> {
    /// The adapter, by the name that requests ask for.
    adapter: &'a str,
    /// Copies that it wants.
    copies: u32,
    /// Why, as a sentence.
    why: String,
    /// Requests/s that arrive for it at the gateway: the highest rate within `idle_after`; null
    /// without a gateway or while its count is unknown.
    arriving: Option<f64>,
    /// Replicas on which it has had a request in the window; 0 of a Seldon server.
    replicas: u32,
    /// Those of them on which it has waited for a slot for all of the window.
    starved: u32,
}

/// One replica of a pool and its adapters.
#[derive(Serialize, JsonSchema)]
struct PoolReplica<'a> {
    /// The replica: a pod's name, or the address of a target.
    replica: &'a str,
    /// False for a ready replica whose adapters are unknown.
    known: bool,
    /// Adapters that it serves in one step; null if it does not report them.
    slots: Option<u32>,
    /// Adapters with a request that runs.
    running: Vec<&'a str>,
    /// Adapters with a request that waits.
    waiting: Vec<&'a str>,
    /// Adapters that count as loaded: the last used, up to its slots.
    loaded: Vec<&'a str>,
}

/// What one replica should do.
#[derive(Serialize, JsonSchema)]
struct PoolPlace<'a> {
    /// The replica; null for a future replica.
    replica: Option<&'a str>,
    /// Whether it stays; a replica that goes has nothing to do.
    stays: bool,
    /// Adapters that it has and should keep.
    keep: Vec<&'a str>,
    /// Adapters that it should load.
    load: Vec<&'a str>,
    /// Adapters that it has and should not keep.
    unload: Vec<&'a str>,
}

/// One replica that may go.
#[derive(Serialize, JsonSchema)]
struct PoolDeparture<'a> {
    /// The replica.
    replica: &'a str,
    /// Copies that would have to be loaded elsewhere if it went after those before it.
    displaced: u32,
    /// Its place in the order, from 0: the value for `controller.kubernetes.io/pod-deletion-cost`.
    deletion_cost: usize,
}

impl<'a> Pool<'a> {
    pub(crate) fn new(report: &'a PoolReport) -> Self {
        let PoolReport { slots, adapters, replicas, need, unmet, plan, places, departures } =
            report;
        let PoolNeed { copies, slots: for_slots, load } = need;

        let staying = plan.replicas.iter().map(|(at, it)| {
            let ReplicaPlan { keep, load, unload } = it;
            let [keep, load, unload] = [keep, load, unload].map(names);
            let replica = places.get(at).map(ReplicaName::as_str);
            PoolPlace { replica, stays: true, keep, load, unload }
        });
        let leaving = plan.leaving.iter().map(|(at, on)| {
            let keep = Vec::new();
            let load = Vec::new();
            let unload = names(on);
            let replica = places.get(at).map(ReplicaName::as_str);
            PoolPlace { replica, stays: false, keep, load, unload }
        });

        Self {
            slots: slots.map(Slots::number),
            copies: adapters.iter().map(|it| it.copies.wanted).sum::<Replicas>().count(),
            needed_for_copies: copies.as_ref().map_or(0, |(_, copies)| copies.count()),
            needed_for_slots: match for_slots {
                SlotNeed::Known { replicas, .. } => Some(replicas.count()),
                SlotNeed::Unknown | SlotNeed::Uncounted => None,
            },
            needed_for_load: load.map(Replicas::count),
            unmet: unmet.count(),
            adapters: adapters.iter().map(adapter).collect(),
            replicas: replicas.iter().map(replica).collect(),
            plan_loads: plan.loads().count(),
            plan_unmet: plan.unmet.values().copied().sum::<Replicas>().count(),
            plan: staying.chain(leaving).collect(),
            departures: departures
                .iter()
                .enumerate()
                .map(|(place, found)| departure(place, found))
                .collect(),
        }
    }
}

fn adapter(found: &found::AdapterState) -> PoolAdapter<'_> {
    let found::AdapterState { copies, arriving, hosts, starved } = found;

    PoolAdapter {
        adapter: copies.adapter.as_str(),
        copies: copies.wanted.count(),
        why: copies.to_string(),
        arriving: arriving.map(RequestRate::requests_per_second),
        replicas: hosts.count(),
        starved: starved.count(),
    }
}

fn replica(found: &found::PoolReplicaState) -> PoolReplica<'_> {
    let found::PoolReplicaState { name, known, slots, running, waiting, loaded } = found;

    PoolReplica {
        replica: name.as_str(),
        known: *known,
        slots: slots.map(Slots::number),
        running: names(running),
        waiting: names(waiting),
        loaded: names(loaded),
    }
}

fn departure(place: usize, found: &RemovalCandidate<ReplicaName>) -> PoolDeparture<'_> {
    let RemovalCandidate { replica, displaced } = found;
    PoolDeparture { replica: replica.as_str(), displaced: displaced.count(), deletion_cost: place }
}

fn names(of: &std::collections::BTreeSet<ModelName>) -> Vec<&str> {
    of.iter().map(ModelName::as_str).collect()
}
