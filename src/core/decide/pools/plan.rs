//! The plan of a pool: the copies on each replica, and the order in which replicas are removed.
//!
//! [`plan`] is advice for the component that loads adapters and routes requests. It keeps copies
//! where they are needed and loads as few as possible. Once the plan is in effect, planning again
//! changes nothing. [`departures`] orders replicas by the number of copies that would have to be
//! loaded elsewhere.
//!
//! # Model
//!
//! Adapters are sources of as many copies as they need, and replicas are sinks of as many as they
//! have slots. Each adapter may send one copy to each replica. That costs 0 where the adapter is
//! loaded already and 1 where it has to be loaded. The plan is a flow of the most copies at the
//! least cost. It is found by shortest augmenting paths from the copies that stay. Each path adds
//! one copy and moves others if that makes room. No cheaper placement of the same number of copies
//! exists.
//!
//! # Source
//!
//! R. K. Ahuja, T. L. Magnanti, J. B. Orlin, *Network Flows* (1993), section 9.7, "Successive
//! shortest path algorithm".
//!
//! # Domain
//!
//! Slots of equal size. If slots are short, time grows with copies to load x adapters x replicas,
//! and otherwise with copies to load x replicas. Pools beyond [`PLACES_MAX`] get the copies that
//! stay and no new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::decide::pools::Ordinal;
use crate::fleet::ModelName;
use crate::observe::engine::lora::Slots;
use crate::units::{NounCount, Replicas};

/// Pairs of adapter and replica beyond which no plan is made. This is a thousand adapters on a
/// hundred replicas. A change of a third of them takes less than a second in an unoptimized build.
pub const PLACES_MAX: usize = 100_000;

/// The adapters on each replica of a pool.
pub type AdapterLayout = BTreeMap<Ordinal, BTreeSet<ModelName>>;

/// The desired layout of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutWish {
    /// Copies that each adapter needs.
    pub copies: BTreeMap<ModelName, Replicas>,
    /// Future replicas, at the lowest ordinals.
    pub replicas: Replicas,
    /// Slots per replica.
    pub slots: Slots,
}

/// The changes on one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaPlan {
    /// Adapters that it has and should keep.
    pub keep: BTreeSet<ModelName>,
    /// Adapters that it should load.
    pub load: BTreeSet<ModelName>,
    /// Adapters that it has and should not keep.
    pub unload: BTreeSet<ModelName>,
}

/// The changes on each replica.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// The replicas that stay.
    pub replicas: BTreeMap<Ordinal, ReplicaPlan>,
    /// The adapters on the replicas that leave.
    pub leaving: AdapterLayout,
    /// Copies without a slot, by adapter.
    pub unmet: BTreeMap<ModelName, Replicas>,
}

impl LayoutPlan {
    /// Returns the copies that have to be loaded.
    #[must_use]
    pub fn loads(&self) -> Replicas {
        let loads: usize = self.replicas.values().map(|replica| replica.load.len()).sum();
        Replicas::capped(loads)
    }

    /// Lets replicas keep their adapters while slots are free and no adapter exceeds `most` copies.
    /// Unloading them gains nothing, and keeping them spreads load over more replicas.
    pub fn keeping_spare(
        mut self,
        slots: Slots,
        most: impl Fn(&ModelName) -> Option<Replicas>,
    ) -> Self {
        let mut copies: BTreeMap<ModelName, usize> = BTreeMap::new();
        for adapter in self.replicas.values().flat_map(|it| it.keep.union(&it.load)) {
            *copies.entry(adapter.clone()).or_default() += 1;
        }

        let room = usize::try_from(slots.number()).unwrap_or(usize::MAX);
        for ReplicaPlan { keep, load, unload } in self.replicas.values_mut() {
            for adapter in unload.clone() {
                let known = copies.entry(adapter.clone()).or_default();
                let allowed = most(&adapter).is_none_or(|most| Replicas::capped(*known) < most);
                if keep.len() + load.len() < room && allowed {
                    *known += 1;
                    unload.remove(&adapter);
                    keep.insert(adapter);
                }
            }
        }

        self
    }
}

impl fmt::Display for LayoutPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, leaving, unmet } = self;
        let all = NounCount(replicas.len(), "replica", "replicas");
        let loads = NounCount(self.loads().count(), "load", "loads");
        write!(f, "{all} with {loads}")?;
        for (ordinal, ReplicaPlan { load, .. }) in replicas {
            if !load.is_empty() {
                write!(f, "; {ordinal} loads {}", names(load))?;
            }
        }

        for (ordinal, adapters) in leaving {
            write!(f, "; {ordinal} leaves with {}", names(adapters))?;
        }
        for (adapter, copies) in unmet {
            write!(
                f,
                "; no slot for {} of {adapter}",
                NounCount(copies.count(), "copy", "copies")
            )?;
        }

        Ok(())
    }
}

fn names(adapters: &BTreeSet<ModelName>) -> String {
    let names: Vec<&str> = adapters.iter().map(ModelName::as_str).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Lays out a pool with as many copies as fit and as few loads as that takes.
pub fn plan(current: &AdapterLayout, wish: &LayoutWish) -> LayoutPlan {
    let mut flow = SlotFlow::of_what_stays(current, wish);
    if flow.wanted.len().saturating_mul(flow.used.len()) <= PLACES_MAX {
        // The adapter that misses most copies goes first, then by name.
        let mut missing = flow.missing();
        while let Some(adapter) = missing.pop_first().map(|(_, adapter)| adapter) {
            if flow.place(adapter)
                && let Some(left) = flow.lacks(adapter)
            {
                missing.insert((left, adapter));
            }
        }
    }

    flow.into_plan(current)
}

/// Copies on replicas, by their positions in sorted lists.
struct SlotFlow<'a> {
    adapters: Vec<&'a ModelName>,
    wanted: Vec<u32>,
    /// Adapters on each replica.
    used: Vec<BTreeSet<usize>>,
    slots: usize,
    /// Adapters that are loaded already, by adapter and replica.
    there: BTreeSet<(usize, usize)>,
    /// Adapters in the plan, by adapter and replica.
    placed: BTreeSet<(usize, usize)>,
}

/// A step on the way to a slot: the adapter would leave `from`, because the adapter before it on
/// the way makes better use of that replica.
#[derive(Clone, Copy)]
struct SlotStep {
    cost: i64,
    /// The adapter that takes a slot on this replica.
    adapter: usize,
    /// The replica where that adapter leaves a slot; `None` for the adapter that is being placed.
    from: Option<usize>,
}

impl<'a> SlotFlow<'a> {
    /// Creates a flow with the copies that may stay in place: adapters by name, at the lowest
    /// ordinals.
    fn of_what_stays(current: &AdapterLayout, wish: &'a LayoutWish) -> Self {
        let adapters: Vec<&ModelName> = wish.copies.keys().collect();
        let wanted = wish.copies.values().map(|copies| copies.count()).collect();
        let replicas = usize::try_from(wish.replicas.count()).unwrap_or(usize::MAX);
        let mut flow = Self {
            adapters,
            wanted,
            used: vec![BTreeSet::new(); replicas],
            slots: usize::try_from(wish.slots.number()).unwrap_or(usize::MAX),
            there: BTreeSet::new(),
            placed: BTreeSet::new(),
        };

        let staying = current.iter().filter(|(ordinal, _)| ordinal.is_below(wish.replicas));
        for (ordinal, present) in staying {
            let Ok(replica) = usize::try_from(ordinal.number()) else { continue };
            for name in present {
                if let Ok(adapter) = flow.adapters.binary_search(&name) {
                    flow.there.insert((adapter, replica));
                }
            }
        }

        for (adapter, replica) in flow.there.clone() {
            if flow.lacks(adapter).is_some() && flow.has_room(replica) {
                flow.put(adapter, replica);
            }
        }

        flow
    }

    fn put(&mut self, adapter: usize, replica: usize) {
        self.placed.insert((adapter, replica));
        self.used[replica].insert(adapter);
    }

    fn take(&mut self, adapter: usize, replica: usize) {
        self.placed.remove(&(adapter, replica));
        self.used[replica].remove(&adapter);
    }

    fn has_room(&self, replica: usize) -> bool {
        self.used[replica].len() < self.slots
    }

    /// Returns the missing copies of an adapter, such that more come first in order; `None` if
    /// none.
    fn lacks(&self, adapter: usize) -> Option<std::cmp::Reverse<usize>> {
        let copies = self.placed.range((adapter, 0)..(adapter + 1, 0)).count();
        let wanted = usize::try_from(self.wanted[adapter]).unwrap_or(usize::MAX);
        let missing = wanted.min(self.used.len()).saturating_sub(copies);
        (missing > 0).then_some(std::cmp::Reverse(missing))
    }

    fn missing(&self) -> BTreeSet<(std::cmp::Reverse<usize>, usize)> {
        (0..self.adapters.len()).filter_map(|it| Some((self.lacks(it)?, it))).collect()
    }

    fn cost(&self, adapter: usize, replica: usize) -> i64 {
        i64::from(!self.there.contains(&(adapter, replica)))
    }

    /// Places one more copy of an adapter at the least cost, and moves others if that makes room.
    fn place(&mut self, adapter: usize) -> bool {
        if let Some(replica) = self.place_beside(adapter) {
            self.put(adapter, replica);
            return true;
        }

        let reached = self.reach(adapter);
        let ends = (0..self.used.len()).filter(|replica| self.has_room(*replica));
        let end = ends
            .filter_map(|replica| Some((reached[replica]?.cost, self.used[replica].len(), replica)))
            .min();
        let Some((_, _, mut replica)) = end else { return false };

        while let Some(SlotStep { adapter, from, .. }) = reached[replica] {
            self.put(adapter, replica);
            let Some(before) = from else { break };
            self.take(adapter, before);
            replica = before;
        }

        true
    }

    /// Returns a replica with a free slot where one more copy costs no more than on any other
    /// replica.
    ///
    /// Moving others saves a load only in one case: a loaded copy that is not in the plan could
    /// take the place of a copy that is to be loaded. While every adapter has all loaded copies in
    /// the plan, or needs no load, every free slot is equally good. The emptiest replica is then
    /// taken.
    fn place_beside(&self, first: usize) -> Option<usize> {
        if self.there.difference(&self.placed).any(|(adapter, _)| self.loads(*adapter)) {
            return None;
        }

        (0..self.used.len())
            .filter(|&at| self.has_room(at) && !self.used[at].contains(&first))
            .min_by_key(|&at| (self.used[at].len(), at))
    }

    /// Returns true if an adapter misses copies, or the plan has a copy that is to be loaded.
    fn loads(&self, adapter: usize) -> bool {
        let mut placed = self.placed.range((adapter, 0)..(adapter + 1, 0));
        self.lacks(adapter).is_some() || placed.any(|it| !self.there.contains(it))
    }

    /// Returns the least cost of a slot on each replica for one more copy, and the way to it
    /// (Bellman and Ford: taking back a copy that is to be loaded has a negative cost).
    fn reach(&self, first: usize) -> Vec<Option<SlotStep>> {
        let mut reached: Vec<Option<SlotStep>> = (0..self.used.len())
            .map(|replica| {
                let free = !self.placed.contains(&(first, replica));
                free.then(|| SlotStep {
                    cost: self.cost(first, replica),
                    adapter: first,
                    from: None,
                })
            })
            .collect();

        let mut changed: BTreeSet<usize> = (0..self.used.len()).collect();
        while let Some(from) = changed.pop_first() {
            let Some(SlotStep { cost, .. }) = reached[from] else { continue };
            for &adapter in &self.used[from] {
                let left = cost - self.cost(adapter, from);
                for (to, known) in reached.iter_mut().enumerate() {
                    let cost = left + self.cost(adapter, to);
                    let better = known.is_none_or(|known| cost < known.cost);
                    if better && !self.placed.contains(&(adapter, to)) {
                        *known = Some(SlotStep { cost, adapter, from: Some(from) });
                        changed.insert(to);
                    }
                }
            }
        }

        reached
    }

    fn name(&self, adapter: usize) -> ModelName {
        self.adapters[adapter].clone()
    }

    fn into_plan(self, current: &AdapterLayout) -> LayoutPlan {
        let nothing = BTreeSet::new();
        let ordinals = (0_u32..).map(Ordinal::new);
        let replicas = ordinals.zip(&self.used).map(|(ordinal, used)| {
            let present = current.get(&ordinal).unwrap_or(&nothing);
            let wanted: BTreeSet<ModelName> = used.iter().map(|it| self.name(*it)).collect();
            let plan = ReplicaPlan {
                keep: wanted.intersection(present).cloned().collect(),
                load: wanted.difference(present).cloned().collect(),
                unload: present.difference(&wanted).cloned().collect(),
            };
            (ordinal, plan)
        });

        let unmet = (0..self.adapters.len()).filter_map(|adapter| {
            let copies = self.placed.range((adapter, 0)..(adapter + 1, 0)).count();
            let missing =
                Replicas::saturating(self.wanted[adapter]).beyond(Replicas::capped(copies));
            (missing > Replicas::ZERO).then(|| (self.name(adapter), missing))
        });

        let stays = Replicas::capped(self.used.len());
        let leaving = current.iter().filter(|(ordinal, _)| !ordinal.is_below(stays));
        LayoutPlan {
            replicas: replicas.collect(),
            leaving: leaving.map(|(ordinal, on)| (*ordinal, on.clone())).collect(),
            unmet: unmet.collect(),
        }
    }
}

/// A replica that may be removed, and the cost of its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalCandidate<R> {
    /// The replica.
    pub replica: R,
    /// Copies that would have to be loaded elsewhere.
    pub displaced: Replicas,
}

/// Returns the replicas of a pool in the order in which they should be removed. Replicas come first
/// if the others also have their copies, or if their copies are not needed; then by name. The
/// position in this order is the value for `controller.kubernetes.io/pod-deletion-cost`. A
/// `StatefulSet` ignores that and removes the highest ordinal.
///
/// A copy is displaced if it is needed and not spare. A spare copy is spare only once, so the order
/// is made one replica at a time.
#[must_use]
pub fn departures<R: Ord + Clone>(
    current: &BTreeMap<R, BTreeSet<ModelName>>,
    wanted: &BTreeMap<ModelName, Replicas>,
) -> Vec<RemovalCandidate<R>> {
    let mut copies: BTreeMap<&ModelName, u32> = BTreeMap::new();
    for adapter in current.values().flatten() {
        *copies.entry(adapter).or_default() += 1;
    }

    let mut staying: BTreeMap<&R, &BTreeSet<ModelName>> = current.iter().collect();
    let mut order = Vec::with_capacity(current.len());
    while !staying.is_empty() {
        let each = staying.iter();
        let next = each.map(|(replica, on)| (displaced_by(on, &copies, wanted), *replica)).min();
        let Some((displaced, replica)) = next else { break };

        for adapter in staying.remove(replica).into_iter().flatten() {
            if let Some(copies) = copies.get_mut(adapter) {
                *copies = copies.saturating_sub(1);
            }
        }

        order.push(RemovalCandidate { replica: replica.clone(), displaced });
    }

    order
}

/// Returns the copies on a replica that are needed and not spare.
fn displaced_by(
    on: &BTreeSet<ModelName>,
    copies: &BTreeMap<&ModelName, u32>,
    wanted: &BTreeMap<ModelName, Replicas>,
) -> Replicas {
    let needed = on.iter().filter(|adapter| {
        let most = wanted.get(adapter).map_or(0, |wanted| wanted.count());
        copies.get(adapter).is_some_and(|copies| *copies <= most)
    });
    Replicas::capped(needed.count())
}

#[cfg(test)]
mod tests;
