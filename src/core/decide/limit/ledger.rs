//! What is held of each limit, and what that leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::limit::nodes::{Nodes, Started};
use crate::decide::limit::{Allowance, Limit, Scope, Source, Want};
use crate::decide::optimize::{Headroom, Purse, Room};
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::{CostPerHour, Gpus, Replicas};

/// What counts against one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Used {
    pub(super) kinds: BTreeMap<Accelerator, Gpus>,
    pub(super) total: Gpus,
    pub(super) cost: CostPerHour,
    /// What has been started and is on no node yet.
    pub(super) started: Started,
}

/// The accelerators that are held, by limit.
///
/// To plan many models one after the other, what one of them holds is taken out and put back, and
/// all others are not counted anew.
#[derive(Clone, Debug)]
pub struct Ledger<'a> {
    limits: &'a [Limit],
    used: Vec<Used>,
}

/// The limits that are left for others while these variants keep what they hold.
#[must_use]
pub fn without(limits: &[Limit], held: &[Want]) -> Vec<Limit> {
    let mut ledger = Ledger::new(limits);
    for want in held {
        ledger.hold(want, want.current);
    }
    let left = |(limit, used): (&Limit, &Used)| {
        let source = match &limit.source {
            Source::Read(allowance) => Source::Read(used.left_of(allowance)),
            Source::Held { last, age } => Source::Held { last: used.left_of(last), age: *age },
            Source::Unread => Source::Unread,
        };
        Limit { source, ..limit.clone() }
    };
    limits.iter().zip(&ledger.used).map(left).collect()
}

// === impl Ledger ===

impl<'a> Ledger<'a> {
    /// Nothing is held.
    #[must_use]
    pub fn new(limits: &'a [Limit]) -> Self {
        Self { limits, used: vec![Used::default(); limits.len()] }
    }

    /// So many replicas of a variant hold accelerators; those beyond what its scale target asks for
    /// have to be started.
    pub fn hold(&mut self, want: &Want, replicas: Replicas) {
        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(want) {
                used.add(limit, want, replicas);
                used.start(limit, want, replicas.beyond(want.current));
            }
        }
    }

    /// So many replicas of a variant, which held accelerators, do not.
    pub fn release(&mut self, want: &Want, replicas: Replicas) {
        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(want) {
                used.remove(limit, want, replicas);
                used.started.stop(want, replicas.beyond(want.current));
            }
        }
    }

    /// What is free for these variants, in the kinds that they run on, and what is left of budgets:
    /// `None` without limits.
    #[must_use]
    pub fn room(&self, wants: &[Want]) -> Option<Room> {
        self.limits.first()?;
        let is_budget =
            |limit: &Limit| matches!(limit.source.allowance(), Some(Allowance::Budget(_)));
        let (purses, slots) = (self.purses(wants), self.slots(wants));
        let mut room = Room { purses, slots, ..Room::default() };
        if self.limits.iter().all(is_budget) {
            room.unknown = Headroom::Unlimited;
        }
        let kinds: BTreeSet<(&Namespace, &Accelerator)> = wants
            .iter()
            .filter_map(|want| Some((&want.key.namespace, want.accelerator.as_ref()?)))
            .collect();
        for (namespace, kind) in kinds {
            let free = |holds: &dyn Fn(&Scope) -> bool| {
                let counted = self.limits.iter().zip(&self.used);
                counted
                    .filter(|(limit, _)| holds(&limit.scope))
                    .map(|(limit, used)| limit.free(kind, used))
                    .min()
            };
            let takes = |want: &Want| {
                want.key.namespace == *namespace && want.accelerator.as_ref() == Some(kind)
            };
            let cluster = free(&|scope| *scope == Scope::Cluster);
            room.cluster.insert(kind.clone(), cluster.unwrap_or(Headroom::Unlimited));
            let own = free(&|scope| match scope {
                Scope::Cluster => false,
                Scope::Namespace(name) => name == namespace,
                Scope::Variants(keys) => {
                    wants.iter().any(|want| takes(want) && keys.contains(&want.key))
                }
            });
            if let Some(own) = own {
                let list = room.namespaces.entry(namespace.clone()).or_default();
                list.insert(kind.clone(), own);
            }
        }
        Some(room)
    }

    /// What is left of each budget that counts some of these variants.
    fn purses(&self, wants: &[Want]) -> Vec<Purse> {
        let counted = self.limits.iter().zip(&self.used);
        counted
            .filter_map(|(limit, used)| {
                let Some(Allowance::Budget(budget)) = limit.source.allowance() else { return None };
                let left = budget.beyond(used.cost);
                let own = wants.iter().filter(|want| limit.counts(want));
                Some(Purse { left, counts: own.map(|want| want.key.clone()).collect() })
            })
            .filter(|purse| !purse.counts.is_empty())
            .collect()
    }

    /// How many replicas more of each variant nodes have a place for, where that is known.
    fn slots(&self, wants: &[Want]) -> BTreeMap<VariantKey, Replicas> {
        let mut slots = BTreeMap::new();
        for (limit, used) in self.limits.iter().zip(&self.used) {
            let Some(Allowance::Nodes(nodes)) = limit.source.allowance() else { continue };
            for want in wants.iter().filter(|want| limit.counts(want)) {
                let fit = limit
                    .kind(want)
                    .and_then(|kind| nodes.fit(&used.started, want, kind, Replicas::LIMIT));
                let Some(fit) = fit else { continue };
                slots.insert(want.key.clone(), fit);
            }
        }
        slots
    }

    /// What counts against each limit.
    pub(super) fn into_used(self) -> Vec<Used> {
        self.used
    }
}

// === impl Used ===

impl Used {
    /// What is left of an allowance.
    fn left_of(&self, allowance: &Allowance) -> Allowance {
        match allowance {
            Allowance::Kinds(kinds) => Allowance::Kinds(self.left_of_kinds(kinds)),
            Allowance::Nodes(nodes) => {
                let kinds = self.left_of_kinds(&nodes.kinds);
                Allowance::Nodes(Arc::new(Nodes { kinds, ..Nodes::clone(nodes) }))
            }
            Allowance::Total(total) => Allowance::Total(total.beyond(self.total)),
            Allowance::Budget(budget) => Allowance::Budget(budget.beyond(self.cost)),
        }
    }

    fn left_of_kinds(
        &self,
        kinds: &BTreeMap<Accelerator, Headroom>,
    ) -> BTreeMap<Accelerator, Headroom> {
        let left = |(kind, headroom): (&Accelerator, &Headroom)| {
            let used = self.kinds.get(kind).copied().unwrap_or_default();
            (kind.clone(), headroom.without(used))
        };
        kinds.iter().map(left).collect()
    }

    /// So many replicas need a place on a node.
    pub(super) fn start(&mut self, limit: &Limit, want: &Want, replicas: Replicas) {
        if let Some(Allowance::Nodes(nodes)) = limit.source.allowance()
            && let Some(kind) = limit.kind(want)
        {
            self.started.start(nodes, want, kind, replicas);
        }
    }

    pub(super) fn add(&mut self, limit: &Limit, want: &Want, replicas: Replicas) {
        let gpus = want.gpus.times(replicas);
        if let Some(kind) = limit.kind(want) {
            match self.kinds.get_mut(kind) {
                Some(used) => *used += gpus,
                None => drop(self.kinds.insert(kind.clone(), gpus)),
            }
        }
        self.total += gpus;
        self.cost += want.cost.times(replicas);
    }

    /// Takes out what was added. Sums of costs are not exact; what reads them allows for that.
    fn remove(&mut self, limit: &Limit, want: &Want, replicas: Replicas) {
        let gpus = want.gpus.times(replicas);
        if let Some(used) = limit.kind(want).and_then(|kind| self.kinds.get_mut(kind)) {
            *used = used.beyond(gpus);
        }
        self.total = self.total.beyond(gpus);
        self.cost = self.cost.beyond(want.cost.times(replicas));
    }
}
