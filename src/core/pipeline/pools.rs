//! Pools: variants whose replicas each serve several adapters.
//!
//! The load asks for a number of replicas as it does of any variant, and the adapters ask for more
//! where copies or slots are short. More is asked for at once. Less is asked for only after it has
//! been enough for a window, on replicas whose adapters are all known, and by packing only where few
//! copies have to move.
//!
//! For the number that comes out at the end of a tick, a placement is suggested: to whoever loads
//! adapters and routes requests, since nothing here does either.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::pools::Ordinal;
use crate::decide::pools::adapters::{
    Adapter, Copies, Desired, Idle, Seen, SlotNeed, copies, desired, need,
};
use crate::decide::pools::packing::{Lowering, Packed, PackingPolicy, Present, lower};
use crate::decide::pools::plan::{Departure, Layout, Plan, Wish, departures, plan};
use crate::decide::pools::pooled::{PoolAdapter, PoolReplica, PoolReport, Pooled, Unsure};
use crate::decide::{Decision, Reason, Stage};
use crate::fleet::{Bounds, ModelName, ReplicaName, VariantKey};
use crate::observe::adapters::{
    AdapterHorizon, AdapterObservation, AdapterRecorder, AdapterSeen, ReplicaAdapters,
};
use crate::observe::engine::lora::Slots;
use crate::observe::{Inputs, Observation};
use crate::pipeline::group::Member;
use crate::pipeline::{Asked, Decisions, Pipeline};
use crate::units::{Replicas, Seconds};

/// What is declared of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Adapters that a replica serves in one step; `None` to read it from their pages.
    pub slots: Option<Slots>,
    /// How few and how many copies an adapter may have that is not listed below.
    pub copies: Bounds,
    /// What is declared of single adapters.
    pub adapters: BTreeMap<ModelName, AdapterWish>,
    /// For how long an adapter without a request keeps its copies.
    pub idle_after: Seconds,
    /// When the pool may have fewer replicas.
    pub packing: PackingPolicy,
}

/// What is declared of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterWish {
    /// How few and how many copies it may have.
    pub bounds: Bounds,
    /// How many it wants, whatever is asked of it.
    pub declared: Option<Replicas>,
}

/// What is remembered of all pools.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    pools: BTreeMap<VariantKey, Memory>,
}

/// What is remembered of one pool.
#[derive(Clone, Debug, Default)]
struct Memory {
    adapters: AdapterRecorder,
    packed: Packed,
    /// Copies that each adapter wanted at the last tick.
    wanted: BTreeMap<ModelName, Replicas>,
    /// When an adapter last waited on all its replicas, and how many those were.
    raised: BTreeMap<ModelName, (Timestamp, Replicas)>,
    /// The last plans and what they were made of; most ticks ask for the same ones.
    plans: [Option<(Layout, Wish, Plan)>; 2],
}

// === impl Pipeline ===

impl Pipeline {
    /// Takes in what replicas of pools say of their adapters.
    pub(super) fn watch_pools(&mut self, inputs: &Inputs) {
        let policy = &self.policy.pools;
        self.pools.pools.retain(|key, _| policy.contains_key(key));
        if policy.is_empty() {
            return;
        }
        for scrape in &inputs.scrapes {
            let variant = &scrape.replica.variant;
            if policy.contains_key(variant) {
                let memory = self.pools.pools.entry(variant.clone()).or_default();
                memory.adapters.take(scrape);
            }
        }
    }

    /// What a pool asks for, given what its load does; a variant that is none asks for that.
    pub(super) fn pool(
        &mut self,
        now: Timestamp,
        member: &Member<'_>,
        mut asked: Asked,
        found: &mut Decisions,
    ) -> Asked {
        let Member { spec, observation, .. } = member;
        let Some(policy) = self.policy.pools.get(&spec.key) else { return asked };
        if member.blind().is_some() {
            return asked;
        }
        let in_force = self.in_force.get(&spec.key).map_or(asked.before, |it| it.desired);
        let horizon = AdapterHorizon { idle_after: policy.idle_after, window: self.policy.window };
        let memory = self.pools.pools.entry(spec.key.clone()).or_default();
        let seen = memory.adapters.observe(now, &observation.replicas, horizon);
        let load = Load { in_force, asked: asked.number() };
        let (why, report) = memory.count(now, policy, observation, &seen, load);
        found.pools.insert(spec.key.clone(), report);
        asked.push(Stage::Pool, why.lowering.replicas(), Reason::Pool(Box::new(why)));
        asked
    }

    /// Lays the pool out for the number that was decided.
    pub(super) fn place(&mut self, decision: &Decision, found: &mut Decisions) {
        let Some(report) = found.pools.get_mut(&decision.variant) else { return };
        let Some(memory) = self.pools.pools.get_mut(&decision.variant) else { return };
        let Some(wish) = wish(report, decision.desired()) else { return };
        let (layout, places) = layout(report, decision.desired());
        let slots = wish.slots;
        let policy = self.policy.pools.get(&decision.variant);
        let most = |name: &ModelName| {
            policy.and_then(|policy| {
                policy.adapters.get(name).map_or(policy.copies, |wish| wish.bounds).max()
            })
        };
        report.plan = memory.plan(Which::Published, &layout, wish).keeping_spare(slots, most);
        report.departures = order(report);
        report.places = places;
    }

    /// Notes that a pool was packed, when the number that is in force says so.
    pub(super) fn note_packing(&mut self, now: Timestamp, decision: &Decision, lowered: bool) {
        let Some(memory) = self.pools.pools.get_mut(&decision.variant) else { return };
        let packs = decision.steps.iter().any(|step| match &step.reason {
            Reason::Pool(pooled) => matches!(pooled.lowering, Lowering::Packed { .. }),
            _ => false,
        });
        if packs && lowered {
            memory.packed.carried_out(now);
        }
    }
}

/// What the load asks for, and what is in force.
#[derive(Clone, Copy)]
struct Load {
    in_force: Replicas,
    asked: Replicas,
}

/// Which of two plans is meant, so that each is made once.
#[derive(Clone, Copy)]
enum Which {
    /// The one that is published.
    Published,
    /// The one with as few replicas as are needed.
    Packed,
}

// === impl Pools, Memory ===

impl Pools {
    /// Forgets for how long adapters have been watched: there has been a gap.
    pub(super) fn unsettle(&mut self) {
        for memory in self.pools.values_mut() {
            memory.adapters.unsettle();
        }
    }
}

impl Memory {
    fn count(
        &mut self,
        now: Timestamp,
        policy: &Pool,
        observation: &Observation,
        seen: &AdapterObservation,
        load: Load,
    ) -> (Pooled, PoolReport) {
        let Load { in_force, asked } = load;
        let unsure = unsure(seen, policy.idle_after);
        let slots = policy.slots.or_else(|| seen.replicas.iter().filter_map(|it| it.slots).min());
        let adapters = self.wants(now, policy, seen, (slots, observation.measured()));
        let wants: Vec<Copies> = adapters.iter().map(|it| it.copies.clone()).collect();
        let need = need(&wants, slots, Some(asked));
        let Desired { unmet, .. } =
            desired(need.clone(), observation.bounds, Idle::GoesToZero, in_force);
        let certain = need.is_complete() && unsure.is_none();
        let needed = need.replicas();
        let needed = if certain { needed } else { needed.max(in_force) };
        let report = PoolReport {
            slots,
            adapters,
            replicas: seen.replicas.iter().map(replica).collect(),
            need: need.clone(),
            unmet,
            plan: Plan::default(),
            places: BTreeMap::new(),
            departures: Vec::new(),
        };
        let (current, wanted) = (observation.current, observation.wanted);
        let going = current.unwrap_or_default().beyond(wanted.unwrap_or_default());
        let present = Present {
            asked: in_force,
            empty: empty(seen, policy.packing.window),
            moving: observation.pending + going,
            moved: self.moved(&report, needed, in_force),
        };
        let lowering = lower(now, &mut self.packed, needed, present, &policy.packing);
        (Pooled { need, lowering, unsure }, report)
    }

    /// How many copies each adapter wants. One that waits for a slot wants one more only where
    /// there are slots for all: else they are short, and more copies would make them shorter.
    fn wants(
        &mut self,
        now: Timestamp,
        policy: &Pool,
        seen: &AdapterObservation,
        (slots, ready): (Option<Slots>, Replicas),
    ) -> Vec<PoolAdapter> {
        let certain = unsure(seen, policy.idle_after).is_none();
        self.raised.retain(|_, (at, _)| *at <= now && span(*at, now) <= policy.idle_after);
        let names = policy.adapters.keys().chain(seen.adapters.keys()).chain(self.wanted.keys());
        let names: BTreeSet<ModelName> = names.cloned().collect();
        let without = |name: &ModelName| match seen.adapters.get(name) {
            Some(_) => Seen::Busy,
            None if certain => Seen::Idle,
            None => Seen::Unknown { before: self.wanted.get(name).copied().unwrap_or_default() },
        };
        let plain: Vec<Copies> =
            names.iter().map(|name| policy.copies_of(name, without(name))).collect();
        let room = match need(&plain, slots, None).slots {
            SlotNeed::Known { replicas, .. } => replicas <= ready,
            SlotNeed::Unknown => false,
        };
        for (name, AdapterSeen { hosts, starved }) in &seen.adapters {
            let before = self.wanted.get(name).copied().unwrap_or(Replicas::ONE);
            // On more replicas than it has copies it is routed past them, and more would not help.
            let placed = *hosts <= before.max(Replicas::ONE);
            if room && placed && *starved > Replicas::ZERO && starved == hosts {
                let hosts = self.raised.get(name).map_or(*hosts, |(_, known)| (*known).max(*hosts));
                self.raised.insert(name.clone(), (now, hosts));
            }
        }
        let raised = |name: &ModelName| {
            let hosts = self.raised.get(name).map(|(_, hosts)| *hosts);
            hosts.filter(|_| room).map(|hosts| Seen::Starved { hosts })
        };
        let adapters = names.iter().zip(plain).map(|(name, plain)| {
            let copies = raised(name).map_or(plain, |starved| policy.copies_of(name, starved));
            let AdapterSeen { hosts, starved } =
                seen.adapters.get(name).copied().unwrap_or_default();
            PoolAdapter { copies, hosts, starved }
        });
        let kept = |it: &PoolAdapter| {
            it.copies.wanted > Replicas::ZERO || policy.adapters.contains_key(&it.copies.adapter)
        };
        let adapters: Vec<PoolAdapter> = adapters.filter(kept).collect();
        self.wanted =
            adapters.iter().map(|it| (it.copies.adapter.clone(), it.copies.wanted)).collect();
        adapters
    }

    /// Copies that would have to be loaded elsewhere with as few replicas as are needed.
    fn moved(&mut self, report: &PoolReport, needed: Replicas, in_force: Replicas) -> Replicas {
        let Some(wish) = wish(report, needed).filter(|_| needed < in_force) else {
            return Replicas::ZERO;
        };
        let (layout, _) = layout(report, needed);
        self.plan(Which::Packed, &layout, wish).loads()
    }

    fn plan(&mut self, which: Which, layout: &Layout, wish: Wish) -> Plan {
        let [published, packed] = &mut self.plans;
        let known = match which {
            Which::Published => published,
            Which::Packed => packed,
        };
        if let Some((of, by, plan)) = known
            && of == layout
            && *by == wish
        {
            return plan.clone();
        }
        let made = plan(layout, &wish);
        *known = Some((layout.clone(), wish, made.clone()));
        made
    }
}

impl Pool {
    fn copies_of(&self, name: &ModelName, seen: Seen) -> Copies {
        let wish = self.adapters.get(name);
        copies(&Adapter {
            name: name.clone(),
            bounds: wish.map_or(self.copies, |wish| wish.bounds),
            declared: wish.and_then(|wish| wish.declared),
            traffic: None,
            seen,
        })
    }
}

// === helpers ===

/// Why there may be adapters that nobody has seen, if so.
fn unsure(seen: &AdapterObservation, idle_after: Seconds) -> Option<Unsure> {
    let mut unlisted = seen.replicas.iter().filter_map(|it| Some((it, it.known.err()?)));
    if let Some((first, why)) = unlisted.next() {
        let replicas = Replicas::ONE + count(unlisted.count());
        return Some(Unsure::Unlisted { replica: first.replica.replica.clone(), replicas, why });
    }
    let remaining = Seconds::new(idle_after.seconds() - seen.watched.seconds());
    let remaining = remaining.filter(|remaining| *remaining > Seconds::ZERO)?;
    Some(Unsure::Unwatched { remaining })
}

fn replica(seen: &ReplicaAdapters) -> PoolReplica {
    let ReplicaAdapters { replica, known, slots, running, waiting, loaded, idle: _ } = seen;
    PoolReplica {
        name: replica.replica.clone(),
        known: known.is_ok(),
        slots: *slots,
        running: running.clone(),
        waiting: waiting.clone(),
        loaded: loaded.clone(),
    }
}

/// Replicas that have had no request for a window and can go before any other: all of them, or
/// where ordinals decide which goes, those at the end.
fn empty(seen: &AdapterObservation, window: Seconds) -> Replicas {
    let is_empty = |it: &&ReplicaAdapters| it.known.is_ok() && it.idle >= window;
    let names = seen.replicas.iter().map(|it| &it.replica.replica);
    match ordinals(names) {
        None => count(seen.replicas.iter().filter(is_empty).count()),
        Some(ordinals) => {
            let mut placed: Vec<_> = ordinals.into_iter().zip(&seen.replicas).collect();
            placed.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
            count(placed.iter().take_while(|(_, it)| is_empty(it)).count())
        }
    }
}

/// The places of replicas that are numbered, as those of a `StatefulSet` are: all with one prefix
/// and a number of their own. The suffix of a Deployment's pod has five characters.
fn ordinals<'a>(names: impl Iterator<Item = &'a ReplicaName>) -> Option<Vec<Ordinal>> {
    const DIGITS_MAX: usize = 4;
    let (mut prefix, mut ordinals) = (None, Vec::new());
    for name in names {
        let (before, number) = name.as_str().rsplit_once('-')?;
        let digits = number.len() <= DIGITS_MAX && number.bytes().all(|it| it.is_ascii_digit());
        let padded = number.len() > 1 && number.starts_with('0');
        if !digits || padded || *prefix.get_or_insert(before) != before {
            return None;
        }
        ordinals.push(Ordinal::new(number.parse().ok()?));
    }
    let distinct: BTreeSet<&Ordinal> = ordinals.iter().collect();
    (distinct.len() == ordinals.len() && !ordinals.is_empty()).then_some(ordinals)
}

fn wanted(report: &PoolReport) -> BTreeMap<ModelName, Replicas> {
    let wanted = report.adapters.iter().map(|it| (it.copies.adapter.clone(), it.copies.wanted));
    wanted.filter(|(_, wanted)| *wanted > Replicas::ZERO).collect()
}

fn wish(report: &PoolReport, replicas: Replicas) -> Option<Wish> {
    Some(Wish { copies: wanted(report), replicas, slots: report.slots? })
}

/// In which order replicas should go where nothing else decides it.
fn order(report: &PoolReport) -> Vec<Departure<ReplicaName>> {
    if ordinals(report.replicas.iter().map(|it| &it.name)).is_some() {
        return Vec::new();
    }
    let loaded = report.replicas.iter().map(|it| (it.name.clone(), it.loaded.clone()));
    departures(&loaded.collect(), &wanted(report))
}

/// What is loaded where, and which replica has which place when so many replicas stay.
fn layout(report: &PoolReport, stay: Replicas) -> (Layout, BTreeMap<Ordinal, ReplicaName>) {
    let names = || report.replicas.iter().map(|it| &it.name);
    let places: BTreeMap<Ordinal, ReplicaName> = if let Some(ordinals) = ordinals(names()) {
        ordinals.into_iter().zip(names().cloned()).collect()
    } else {
        let going = report.replicas.len().saturating_sub(index(stay));
        let mut order: Vec<ReplicaName> = order(report).into_iter().map(|it| it.replica).collect();
        let mut staying = order.split_off(going);
        staying.sort_unstable();
        staying.extend(order.into_iter().rev());
        (0..).map(Ordinal::new).zip(staying).collect()
    };
    let on = |name: &ReplicaName| report.replicas.iter().find(|it| it.name == *name);
    let layout = places.iter().filter_map(|(at, name)| Some((*at, on(name)?.loaded.clone())));
    (layout.collect(), places)
}

fn index(replicas: Replicas) -> usize {
    usize::try_from(replicas.count()).unwrap_or(usize::MAX)
}

fn count(number: usize) -> Replicas {
    Replicas::saturating(u32::try_from(number).unwrap_or(u32::MAX))
}

fn span(from: Timestamp, to: Timestamp) -> Seconds {
    Seconds::from_span(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
