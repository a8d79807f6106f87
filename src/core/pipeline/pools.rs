//! Pools: variants whose replicas each serve several adapters.
//!
//! The load requires replicas as for any other variant. The adapters require more if copies or
//! slots are short. A pool scales up at once. It scales down only after fewer replicas have been
//! enough for a window and the adapters of all replicas are known. Packing also requires that only
//! a few copies have to move.
//!
//! For the final desired replicas of a tick, the pool suggests a placement. It is meant for the
//! components that load adapters and route requests. Plimsoll does neither.

pub(crate) mod hosted;
pub(crate) mod policy;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::pools::Ordinal;
use crate::decide::pools::adapters::{
    AdapterActivity, AdapterTraffic, Copies, DesiredPool, IdlePoolPolicy, SlotNeed, desired, need,
};
use crate::decide::pools::packing::{Lowering, PackedNeeds, PoolReplicas, lower};
use crate::decide::pools::plan::{
    AdapterLayout, LayoutPlan, LayoutWish, RemovalCandidate, departures, plan,
};
use crate::decide::pools::pooled::{
    AdapterState, PoolReason, PoolReplicaState, PoolReport, PoolUncertainty,
};
use crate::decide::sized::CapacityEstimate;
use crate::decide::{Decision, Reason, Stage};
use crate::fleet::{ModelName, ReplicaName, VariantKey};
use crate::observe::Observation;
use crate::observe::adapters::{
    AdapterHorizon, AdapterHosts, AdapterObservation, AdapterRecorder, ReplicaAdapters,
};
use crate::observe::arrivals::{RoutedRecorder, RoutedTraffic};
use crate::observe::engine::lora::Slots;
use crate::pipeline::group::Member;
use crate::pipeline::proposal::{Proposal, Proposals};
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, RequestRate, Seconds};

pub use crate::pipeline::pools::policy::{AdapterPool, AdapterRule, PoolSource};

/// The remembered state of all pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: BTreeMap<VariantKey, PoolState>,
}

/// The remembered state of one pool.
#[derive(Clone, Debug, Default)]
struct PoolState {
    adapters: AdapterRecorder,
    routed: RoutedRecorder,
    /// The capacity per replica as last known. It changes slowly, so an old one is better than none.
    capacity: Option<CapacityEstimate>,
    packed: PackedNeeds,
    /// The desired replicas of a packing that is not in effect yet.
    packing: Option<Replicas>,
    /// Copies that each adapter required at the last tick.
    wanted: BTreeMap<ModelName, Replicas>,
    /// The last time when an adapter waited on all its replicas, and the count of those replicas.
    raised: BTreeMap<ModelName, (Timestamp, Replicas)>,
    /// The last plans and their inputs. Most ticks need the same plans.
    plans: [Option<(AdapterLayout, LayoutWish, LayoutPlan)>; 2],
}

/// The replicas that the load requires, and the desired replicas in effect.
#[derive(Clone, Copy)]
struct PoolNumbers {
    in_force: Replicas,
    asked: Replicas,
}

/// The data about the adapters of a pool.
struct AdapterEvidence {
    seen: AdapterObservation,
    /// The requests at the gateway; `None` if the pool has no gateway.
    routed: Option<RoutedTraffic>,
    /// The capacity per replica; `None` if it was never known.
    capacity: Option<CapacityEstimate>,
    /// The reason why the pool may need more than is known, if so.
    unsure: Option<PoolUncertainty>,
    /// Replicas that have been measured.
    ready: Replicas,
}

/// Selects one of two plans, so that each is computed once.
#[derive(Clone, Copy)]
enum PlanKind {
    /// The published plan.
    Published,
    /// The plan with the fewest replicas.
    Packed,
}

// === impl Pools, PoolState ===

impl Pools {
    /// Adds the replicas that the adapters of pools require to the proposals, and returns the
    /// report of each pool.
    pub(crate) fn run(
        &mut self,
        tick: &Tick<'_>,
        proposals: &mut Proposals,
    ) -> BTreeMap<VariantKey, PoolReport> {
        let policies = &tick.policy.pools;
        self.pools.retain(|key, _| policies.contains_key(key));
        if policies.is_empty() {
            return BTreeMap::new();
        }

        for scrape in &tick.inputs.scrapes {
            let variant = &scrape.replica.variant;
            if policies.contains_key(variant) {
                self.pools.entry(variant.clone()).or_default().adapters.take(scrape);
            }
        }

        let mut reports = BTreeMap::new();
        for member in &tick.members {
            let key = &member.spec.key;
            let Some(policy) = policies.get(key) else { continue };
            if policy.source == PoolSource::Seldon {
                let (proposal, report) = self.host(tick, policy, member).unzip();
                proposals[member.place] = proposal;
                reports.extend(report.map(|report| (key.clone(), report)));
                continue;
            }
            let Some(proposal) = &mut proposals[member.place] else { continue };
            if member.blind().is_none() {
                let pool = self.pools.entry(key.clone()).or_default();
                reports.insert(key.clone(), pool.propose(tick, policy, member, proposal));
            }
        }

        reports
    }

    /// Returns the replicas that the models of a multi-model server require, and its report; `None`
    /// if they or its scale target are unknown.
    fn host(
        &mut self,
        tick: &Tick<'_>,
        policy: &AdapterPool,
        member: &Member<'_>,
    ) -> Option<(Proposal, PoolReport)> {
        let key = &member.spec.key;
        let models = hosted::recent(tick.now, tick.inputs.hosting.get(key))?;
        let known = member.unseen().is_none();
        let packed = &mut self.pools.entry(key.clone()).or_default().packed;
        let in_force = tick.desired(member);
        known.then(|| {
            hosted::propose(tick.now, packed, policy, member.observation, models, in_force)
        })
    }

    /// Lays out each pool for the decided replicas.
    pub(crate) fn place(
        &mut self,
        tick: &Tick<'_>,
        decisions: &[Decision],
        reports: &mut BTreeMap<VariantKey, PoolReport>,
    ) {
        for decision in decisions {
            let Some(report) = reports.get_mut(&decision.variant) else { continue };
            let Some(pool) = self.pools.get_mut(&decision.variant) else { continue };
            let Some(wish) = wish(report, decision.desired()) else { continue };

            let (layout, places) = layout(report, decision.desired());
            let slots = wish.slots;
            let policy = tick.policy.pools.get(&decision.variant);
            report.plan = pool
                .plan(PlanKind::Published, &layout, wish)
                .keeping_spare(slots, |name| policy.and_then(|it| it.bounds_of(name).max()));
            report.departures = order(report);
            report.places = places;
        }
    }

    /// Records that a pool was packed, as soon as the desired replicas of a packing are in effect.
    /// With leader election, that is a later tick. `before` and `number` are the desired replicas in
    /// effect before and after this one.
    pub(crate) fn note_packing(
        &mut self,
        now: Timestamp,
        decision: &Decision,
        before: Replicas,
        number: Replicas,
    ) {
        let Some(pool) = self.pools.get_mut(&decision.variant) else { return };
        let packs = decision.steps.iter().any(|step| match &step.reason {
            Reason::Pool(pooled) => matches!(pooled.lowering, Lowering::Packed { .. }),
            _ => false,
        });
        if packs && decision.desired() < before {
            pool.packing = Some(decision.desired());
        }

        if pool.packing == Some(number) {
            pool.packed.carried_out(now);
            pool.packing = None;
        } else if !packs {
            pool.packing = None;
        }
    }

    /// The time of the last packing of a pool, to save.
    pub(crate) fn packed(&self, variant: &VariantKey) -> Option<Timestamp> {
        self.pools.get(variant)?.packed.packed()
    }

    /// Restores the time of the last packing, unless a later one is known.
    pub(crate) fn recall(&mut self, now: Timestamp, variant: &VariantKey, packed: Timestamp) {
        self.pools.entry(variant.clone()).or_default().packed.carried_out(packed.min(now));
    }

    /// After a gap, forgets for how long adapters have been watched.
    pub(crate) fn unsettle(&mut self) {
        for memory in self.pools.values_mut() {
            memory.adapters.unsettle();
        }
    }
}

impl PoolState {
    /// Adds the replicas that the pool's adapters require to a proposal.
    fn propose(
        &mut self,
        tick: &Tick<'_>,
        policy: &AdapterPool,
        member: &Member<'_>,
        proposal: &mut Proposal,
    ) -> PoolReport {
        let observation = member.observation;
        let in_force = tick.desired(member).unwrap_or(proposal.before);
        let horizon = AdapterHorizon { idle_after: policy.idle_after, window: tick.policy.window };
        let seen = self.adapters.observe(tick.now, &observation.replicas, horizon);
        let gateway = tick.inputs.routed.get(&member.spec.key);
        let routed = gateway.map(|it| self.routed.observe(tick.now, it.as_ref(), horizon));
        let sizing = proposal.sizing.as_ref();
        self.capacity = sizing.and_then(|sizing| sizing.carries).or(self.capacity);

        let unsure = unsure(&seen, routed.as_ref(), policy.idle_after);
        let ready = observation.measured();
        let evidence = AdapterEvidence { seen, routed, capacity: self.capacity, unsure, ready };
        let load = PoolNumbers { in_force, asked: proposal.desired() };
        let (why, report) = self.count(tick.now, policy, observation, evidence, load);
        proposal.push(Stage::Pool, why.lowering.replicas(), Reason::Pool(Box::new(why)));
        report
    }

    fn count(
        &mut self,
        now: Timestamp,
        policy: &AdapterPool,
        observation: &Observation,
        evidence: AdapterEvidence,
        load: PoolNumbers,
    ) -> (PoolReason, PoolReport) {
        let PoolNumbers { in_force, asked } = load;
        let reported = evidence.seen.replicas.iter().filter_map(|it| it.slots).min();
        let slots = policy.slots.or(reported);
        let adapters = self.wants(now, policy, &evidence, slots);
        let AdapterEvidence { seen, unsure, .. } = evidence;
        let wants: Vec<Copies> = adapters.iter().map(|it| it.copies.clone()).collect();
        let need = need(&wants, slots, Some(asked));
        let DesiredPool { unmet, .. } =
            desired(need.clone(), observation.bounds, IdlePoolPolicy::GoesToZero, in_force);
        let certain = need.is_complete() && unsure.is_none();
        let required = need.replicas();
        let needed = if certain { required } else { required.max(in_force) };
        let report = PoolReport {
            slots,
            adapters,
            replicas: seen.replicas.iter().map(replica).collect(),
            need: need.clone(),
            unmet,
            plan: LayoutPlan::default(),
            places: BTreeMap::new(),
            departures: Vec::new(),
        };

        // Replicas that an earlier decision has given up exist until the autoscaler has removed them.
        let given_up = Replicas::capped(seen.replicas.len()).beyond(in_force);
        let present = PoolReplicas {
            asked: in_force,
            empty: empty(&seen, policy.packing.window).beyond(given_up),
            moving: observation.pending + observation.leaving(in_force),
            moved: self.moved(&report, needed, in_force),
        };

        let lowering = lower(now, &mut self.packed, needed, present, &policy.packing);
        (PoolReason { need, lowering, unsure }, report)
    }

    /// The copies that each adapter requires. An adapter that waits for a slot gets one more copy
    /// only if there are slots for all adapters. If slots are short, more copies would make them
    /// even shorter.
    fn wants(
        &mut self,
        now: Timestamp,
        policy: &AdapterPool,
        evidence: &AdapterEvidence,
        slots: Option<Slots>,
    ) -> Vec<AdapterState> {
        let seen = &evidence.seen;
        self.raised
            .retain(|_, (at, _)| *at <= now && Seconds::between(*at, now) <= policy.idle_after);
        let known = policy.adapters.keys().chain(seen.adapters.keys()).chain(self.wanted.keys());
        let names: BTreeSet<ModelName> = known.cloned().collect();
        let plain: Vec<Copies> = names
            .iter()
            .map(|name| {
                let before = self.wanted.get(name).copied().unwrap_or_default();
                let activity = evidence.activity(name, before);
                policy.copies_of(name, evidence.traffic(name), activity)
            })
            .collect();

        let room = match need(&plain, slots, None).slots {
            SlotNeed::Known { replicas, .. } => replicas <= evidence.ready,
            SlotNeed::Unknown | SlotNeed::Uncounted => false,
        };
        for (name, AdapterHosts { hosts, starved }) in &seen.adapters {
            let before = self.wanted.get(name).copied().unwrap_or(Replicas::ONE);
            // An adapter on more replicas than it has copies is routed outside of its placement,
            // and more copies would not help.
            let placed = *hosts <= before.max(Replicas::ONE);
            if room && placed && *starved > Replicas::ZERO && starved == hosts {
                let most = self.raised.get(name).map_or(*hosts, |(_, known)| (*known).max(*hosts));
                self.raised.insert(name.clone(), (now, most));
            }
        }

        let adapters = names.iter().zip(plain).map(|(name, plain)| {
            let copies = match self.raised.get(name) {
                Some(&(_, hosts)) if room => {
                    let starved = AdapterActivity::Starved { hosts };
                    let more = policy.copies_of(name, evidence.traffic(name), starved);
                    if more.wanted >= plain.wanted { more } else { plain }
                }
                Some(_) | None => plain,
            };
            let AdapterHosts { hosts, starved } =
                seen.adapters.get(name).copied().unwrap_or_default();
            AdapterState { copies, arriving: evidence.arriving(name), hosts, starved }
        });

        let kept = adapters.filter(|AdapterState { copies, .. }| {
            copies.wanted > Replicas::ZERO || policy.adapters.contains_key(&copies.adapter)
        });
        let wants: Vec<AdapterState> = kept.collect();
        self.wanted =
            wants.iter().map(|it| (it.copies.adapter.clone(), it.copies.wanted)).collect();
        wants
    }

    /// Copies that would have to be loaded elsewhere with the fewest replicas.
    fn moved(&mut self, report: &PoolReport, needed: Replicas, in_force: Replicas) -> Replicas {
        let Some(wish) = wish(report, needed).filter(|_| needed < in_force) else {
            return Replicas::ZERO;
        };
        let (layout, _) = layout(report, needed);
        self.plan(PlanKind::Packed, &layout, wish).loads()
    }

    fn plan(&mut self, which: PlanKind, layout: &AdapterLayout, wish: LayoutWish) -> LayoutPlan {
        let [published, packed] = &mut self.plans;
        let known = match which {
            PlanKind::Published => published,
            PlanKind::Packed => packed,
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

// === impl AdapterEvidence ===

impl AdapterEvidence {
    /// The requests that arrive for an adapter; `None` if no gateway counts them, or unknown.
    fn arriving(&self, name: &ModelName) -> Option<RequestRate> {
        self.routed.as_ref()?.of(name)
    }

    fn traffic(&self, name: &ModelName) -> Option<AdapterTraffic> {
        let arriving = self.arriving(name)?;
        let capacity = self.capacity?;
        Some(AdapterTraffic { arriving, per_replica: capacity.rate, target: capacity.usable })
    }

    fn activity(&self, name: &ModelName, before: Replicas) -> AdapterActivity {
        let is_uncounted = self.routed.is_some() && self.arriving(name).is_none();
        match self.seen.adapters.get(name) {
            Some(_) if is_uncounted => AdapterActivity::Uncounted { before },
            Some(_) => AdapterActivity::Busy,
            None if self.unsure.is_none() => AdapterActivity::Idle,
            None => AdapterActivity::Unknown { before },
        }
    }
}

// === helpers ===

/// The reason why adapters may need more copies than is known; `None` if all is known.
fn unsure(
    seen: &AdapterObservation,
    routed: Option<&RoutedTraffic>,
    idle_after: Seconds,
) -> Option<PoolUncertainty> {
    let mut unlisted = seen.replicas.iter().filter_map(|it| Some((it, it.known.err()?)));
    if let Some((first, why)) = unlisted.next() {
        let replicas = Replicas::ONE + Replicas::capped(unlisted.count());
        return Some(PoolUncertainty::Unlisted {
            replica: first.replica.replica.clone(),
            replicas,
            why,
        });
    }

    if routed.is_some_and(|routed| !routed.is_known()) {
        return Some(PoolUncertainty::Uncounted);
    }

    let left = Seconds::new(idle_after.seconds() - seen.watched.seconds());
    let remaining = left.filter(|left| *left > Seconds::ZERO)?;
    Some(PoolUncertainty::Unwatched { remaining })
}

fn replica(seen: &ReplicaAdapters) -> PoolReplicaState {
    let ReplicaAdapters { replica, known, slots, running, waiting, loaded, idle: _ } = seen;
    PoolReplicaState {
        name: replica.replica.clone(),
        known: known.is_ok(),
        slots: *slots,
        running: running.clone(),
        waiting: waiting.clone(),
        loaded: loaded.clone(),
    }
}

/// Replicas that have had no request for a window and can go before any other. If ordinals decide
/// the order, only the empty replicas at the end count.
fn empty(seen: &AdapterObservation, window: Seconds) -> Replicas {
    let names = seen.replicas.iter().map(|it| &it.replica.replica);
    match ordinals(names) {
        None => Replicas::capped(seen.replicas.iter().filter(|it| is_empty(it, window)).count()),
        Some(ordinals) => {
            let mut placed: Vec<_> = ordinals.into_iter().zip(&seen.replicas).collect();
            placed.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
            Replicas::capped(placed.iter().take_while(|(_, it)| is_empty(it, window)).count())
        }
    }
}

fn is_empty(replica: &ReplicaAdapters, window: Seconds) -> bool {
    replica.known.is_ok() && replica.idle >= window
}

/// The ordinals of numbered replicas, such as those of a `StatefulSet`: one common prefix, each
/// with a number of its own. The suffix of a Deployment's pod has five characters.
fn ordinals<'a>(names: impl Iterator<Item = &'a ReplicaName>) -> Option<Vec<Ordinal>> {
    const DIGITS_MAX: usize = 4;
    let mut prefix = None;
    let mut ordinals = Vec::new();
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

fn wish(report: &PoolReport, replicas: Replicas) -> Option<LayoutWish> {
    Some(LayoutWish { copies: wanted(report), replicas, slots: report.slots? })
}

/// The suggested order of removal if nothing else decides it.
fn order(report: &PoolReport) -> Vec<RemovalCandidate<ReplicaName>> {
    if ordinals(names(report)).is_some() {
        return Vec::new();
    }
    let loaded = report.replicas.iter().map(|it| (it.name.clone(), it.loaded.clone()));
    departures(&loaded.collect(), &wanted(report))
}

/// The loaded adapters per place, and the replica at each place, if `stay` replicas stay.
fn layout(report: &PoolReport, stay: Replicas) -> (AdapterLayout, BTreeMap<Ordinal, ReplicaName>) {
    let places: BTreeMap<Ordinal, ReplicaName> = if let Some(ordinals) = ordinals(names(report)) {
        ordinals.into_iter().zip(names(report).cloned()).collect()
    } else {
        let going = report.replicas.len().saturating_sub(index(stay));
        let mut order: Vec<ReplicaName> = order(report).into_iter().map(|it| it.replica).collect();
        let mut staying = order.split_off(going);
        staying.sort_unstable();
        staying.extend(order.into_iter().rev());
        (0..).map(Ordinal::new).zip(staying).collect()
    };

    let layout = places.iter().filter_map(|(at, name)| {
        let replica = report.replicas.iter().find(|it| it.name == *name)?;
        Some((*at, replica.loaded.clone()))
    });
    (layout.collect(), places)
}

fn names(report: &PoolReport) -> impl Iterator<Item = &ReplicaName> {
    report.replicas.iter().map(|it| &it.name)
}

fn index(replicas: Replicas) -> usize {
    usize::try_from(replicas.count()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
