//! Plan: which copy should be on which replica of a pool, and which replica should go first.
//!
//! [`plan`] is advice for whoever loads adapters and routes requests. It keeps what is where it is
//! wanted and loads as little as possible; carried out, it is content with itself. [`departures`]
//! orders replicas by how much would have to be loaded elsewhere if they went.
//!
//! # Model
//!
//! Adapters are sources of as many copies as they want, replicas are sinks of as many as they have
//! slots, and each adapter may send one copy to each replica, which costs 0 where it is already and
//! 1 where it has to be loaded. A flow of the most copies at the least cost is the plan. It is found
//! by shortest augmenting paths from the copies that stay: each adds one copy, moving others where
//! that makes room, and no cheaper placement of as many copies exists.
//!
//! # Source
//!
//! R. K. Ahuja, T. L. Magnanti, J. B. Orlin, *Network Flows* (1993), section 9.7, "Successive
//! shortest path algorithm".
//!
//! # Domain
//!
//! Equal slots. Time grows with copies to load x adapters x replicas where slots are short, else with
//! copies to load x replicas. Pools beyond [`PLACES_MAX`] get the copies that stay and no new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::decide::pools::Ordinal;
use crate::fleet::ModelName;
use crate::observe::engine::lora::Slots;
use crate::units::Replicas;

/// Pairs of adapter and replica beyond which no plan is made: a thousand adapters on a hundred
/// replicas, for which a change of a third of them takes less than a second unoptimised.
pub const PLACES_MAX: usize = 100_000;

/// What is on each replica of a pool.
pub type Layout = BTreeMap<Ordinal, BTreeSet<ModelName>>;

/// A pool that is to be laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Copies that each adapter wants.
    pub copies: BTreeMap<ModelName, Replicas>,
    /// Replicas that there will be, at the lowest ordinals.
    pub replicas: Replicas,
    /// Slots of each.
    pub slots: Slots,
}

/// What one replica should do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaPlan {
    /// Adapters that it has and should keep.
    pub keep: BTreeSet<ModelName>,
    /// Adapters that it should load.
    pub load: BTreeSet<ModelName>,
    /// Adapters that it has and should not keep.
    pub unload: BTreeSet<ModelName>,
}

/// What each replica should do.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The replicas that stay.
    pub replicas: BTreeMap<Ordinal, ReplicaPlan>,
    /// What is on the replicas that go.
    pub leaving: Layout,
    /// Copies that found no slot, by adapter.
    pub unmet: BTreeMap<ModelName, Replicas>,
}

impl Plan {
    /// Copies that have to be loaded.
    #[must_use]
    pub fn loads(&self) -> Replicas {
        let loads = self.replicas.values().map(|replica| replica.load.len()).sum();
        count(loads)
    }

    /// The same plan, in which replicas keep what they have as long as there are slots for it and
    /// no adapter gets more copies than `most` of it: nothing is gained by unloading them, and load
    /// is spread over more replicas.
    pub fn keeping_spare(
        mut self,
        slots: Slots,
        most: impl Fn(&ModelName) -> Option<Replicas>,
    ) -> Self {
        let mut copies: BTreeMap<ModelName, usize> = BTreeMap::new();
        for adapter in self.replicas.values().flat_map(|it| it.keep.union(&it.load)) {
            *copies.entry(adapter.clone()).or_default() += 1;
        }
        let slots = usize::try_from(slots.number()).unwrap_or(usize::MAX);
        for ReplicaPlan { keep, load, unload } in self.replicas.values_mut() {
            for adapter in unload.clone() {
                let known = copies.entry(adapter.clone()).or_default();
                let allowed = most(&adapter).is_none_or(|most| count(*known) < most);
                if keep.len() + load.len() < slots && allowed {
                    *known += 1;
                    unload.remove(&adapter);
                    keep.insert(adapter);
                }
            }
        }
        self
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replicas, leaving, unmet } = self;
        write!(f, "{} replicas with {} loads", replicas.len(), self.loads())?;
        for (ordinal, ReplicaPlan { load, .. }) in replicas {
            if !load.is_empty() {
                write!(f, "; {ordinal} loads {}", names(load))?;
            }
        }
        for (ordinal, adapters) in leaving {
            write!(f, "; {ordinal} goes with {}", names(adapters))?;
        }
        for (adapter, copies) in unmet {
            write!(f, "; no slot for {copies} copies of {adapter}")?;
        }
        Ok(())
    }
}

fn names(adapters: &BTreeSet<ModelName>) -> String {
    let names: Vec<&str> = adapters.iter().map(ModelName::as_str).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Lays out a pool with as many copies as fit and as few loads as that takes.
pub fn plan(current: &Layout, wish: &Wish) -> Plan {
    let mut flow = Flow::of_what_stays(current, wish);
    if flow.wanted.len().saturating_mul(flow.used.len()) <= PLACES_MAX {
        // Of several that could be placed the one that misses most goes first, then by name.
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

/// Copies on replicas, by their places in sorted lists.
struct Flow<'a> {
    adapters: Vec<&'a ModelName>,
    wanted: Vec<u32>,
    /// Adapters on each replica.
    used: Vec<BTreeSet<usize>>,
    slots: usize,
    /// Whether an adapter is on a replica already, by adapter and replica.
    there: BTreeSet<(usize, usize)>,
    /// Adapters on replicas.
    placed: BTreeSet<(usize, usize)>,
}

/// How an adapter came to be considered for another replica: it would leave `from`, where it is,
/// because `from` is better used by the one before it.
#[derive(Clone, Copy)]
struct Reached {
    cost: i64,
    /// The adapter that takes a slot here.
    adapter: usize,
    /// The replica where that adapter leaves a slot; `None` for the adapter that is being placed.
    from: Option<usize>,
}

impl<'a> Flow<'a> {
    /// The copies that are where they may stay: adapters by name, at the lowest ordinals.
    fn of_what_stays(current: &Layout, wish: &'a Wish) -> Self {
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

    /// How many copies of an adapter are missing, so that more come first in order; `None` if none.
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

    /// Places one more copy of an adapter at the least cost, moving others where that makes room.
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
        while let Some(Reached { adapter, from, .. }) = reached[replica] {
            self.put(adapter, replica);
            let Some(before) = from else { break };
            self.take(adapter, before);
            replica = before;
        }
        true
    }

    /// A replica with a free slot where one more copy costs no more than anywhere.
    ///
    /// Moving others can save a load only if a copy that is there already and is not in the plan
    /// could take the place of one that is to be loaded. While every adapter either has all such
    /// copies in the plan, or needs no load, any free slot is as good, and the emptiest replica is
    /// taken.
    fn place_beside(&self, first: usize) -> Option<usize> {
        let loads = |adapter: usize| {
            let mut placed = self.placed.range((adapter, 0)..(adapter + 1, 0));
            self.lacks(adapter).is_some() || placed.any(|it| !self.there.contains(it))
        };
        if self.there.difference(&self.placed).any(|(adapter, _)| loads(*adapter)) {
            return None;
        }
        let free =
            |replica: &usize| self.has_room(*replica) && !self.used[*replica].contains(&first);
        (0..self.used.len()).filter(free).min_by_key(|it| (self.used[*it].len(), *it))
    }

    /// The least cost at which a slot on each replica can be used for one more copy, and how
    /// (Bellman and Ford: taking back a copy that is to be loaded has a negative cost).
    fn reach(&self, first: usize) -> Vec<Option<Reached>> {
        let mut reached: Vec<Option<Reached>> = (0..self.used.len())
            .map(|replica| {
                let free = !self.placed.contains(&(first, replica));
                free.then(|| Reached {
                    cost: self.cost(first, replica),
                    adapter: first,
                    from: None,
                })
            })
            .collect();
        let mut changed: BTreeSet<usize> = (0..self.used.len()).collect();
        while let Some(from) = changed.pop_first() {
            let Some(Reached { cost, .. }) = reached[from] else { continue };
            for &adapter in &self.used[from] {
                let left = cost - self.cost(adapter, from);
                for (to, known) in reached.iter_mut().enumerate() {
                    let cost = left + self.cost(adapter, to);
                    let better = known.is_none_or(|known| cost < known.cost);
                    if better && !self.placed.contains(&(adapter, to)) {
                        *known = Some(Reached { cost, adapter, from: Some(from) });
                        changed.insert(to);
                    }
                }
            }
        }
        reached
    }

    fn into_plan(self, current: &Layout) -> Plan {
        let name = |adapter: &usize| self.adapters[*adapter].clone();
        let nothing = BTreeSet::new();
        let replicas = (0_u32..).zip(&self.used).map(|(ordinal, used)| {
            let ordinal = Ordinal::new(ordinal);
            let present = current.get(&ordinal).unwrap_or(&nothing);
            let wanted: BTreeSet<ModelName> = used.iter().map(name).collect();
            let plan = ReplicaPlan {
                keep: wanted.intersection(present).cloned().collect(),
                load: wanted.difference(present).cloned().collect(),
                unload: present.difference(&wanted).cloned().collect(),
            };
            (ordinal, plan)
        });
        let unmet = (0..self.adapters.len()).filter_map(|adapter| {
            let copies = self.placed.range((adapter, 0)..(adapter + 1, 0)).count();
            let missing = Replicas::saturating(self.wanted[adapter]).beyond(count(copies));
            (missing > Replicas::ZERO).then(|| (name(&adapter), missing))
        });
        let stays = count(self.used.len());
        let leaving = current.iter().filter(|(ordinal, _)| !ordinal.is_below(stays));
        Plan {
            replicas: replicas.collect(),
            leaving: leaving.map(|(ordinal, on)| (*ordinal, on.clone())).collect(),
            unmet: unmet.collect(),
        }
    }
}

fn count(number: usize) -> Replicas {
    Replicas::saturating(u32::try_from(number).unwrap_or(u32::MAX))
}

/// A replica that may go, and what that would cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure<R> {
    /// The replica.
    pub replica: R,
    /// Copies that would have to be loaded elsewhere.
    pub displaced: Replicas,
}

/// The replicas of a pool in the order in which they should go: those first whose copies the others
/// have as well, or nobody wants; then by name. The place in this order is what
/// `controller.kubernetes.io/pod-deletion-cost` should say. A `StatefulSet` does not ask: it removes
/// the highest ordinal.
///
/// Copies are displaced that are wanted and not spare; one that is spare once is not spare twice, so
/// the order is made one replica at a time.
#[must_use]
pub fn departures<R: Ord + Clone>(
    current: &BTreeMap<R, BTreeSet<ModelName>>,
    wanted: &BTreeMap<ModelName, Replicas>,
) -> Vec<Departure<R>> {
    let mut copies: BTreeMap<&ModelName, u32> = BTreeMap::new();
    for adapter in current.values().flatten() {
        *copies.entry(adapter).or_default() += 1;
    }
    let mut staying: BTreeMap<&R, &BTreeSet<ModelName>> = current.iter().collect();
    let mut order = Vec::with_capacity(current.len());
    while !staying.is_empty() {
        let displaced = |on: &BTreeSet<ModelName>| {
            let needed = on.iter().filter(|adapter| {
                let wanted = wanted.get(adapter).map_or(0, |wanted| wanted.count());
                copies.get(adapter).is_some_and(|copies| *copies <= wanted)
            });
            count(needed.count())
        };
        let next = staying.iter().map(|(replica, on)| (displaced(on), *replica)).min();
        let Some((displaced, replica)) = next else { break };
        for adapter in staying.remove(replica).into_iter().flatten() {
            if let Some(copies) = copies.get_mut(adapter) {
                *copies = copies.saturating_sub(1);
            }
        }
        order.push(Departure { replica: replica.clone(), displaced });
    }
    order
}

#[cfg(test)]
mod tests;
