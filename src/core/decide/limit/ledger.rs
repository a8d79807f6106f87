//! The holdings against each limit, and the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::limit::nodes::{Nodes, UnplacedPods};
use crate::decide::limit::{Allowance, LimitScope, LimitSource, SupplyLimit, Want};
use crate::decide::optimize::{FreeBudget, Headroom, SupplyHeadroom};
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::{CostPerHour, Gpus, Replicas};

/// The holdings that count against one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitUse {
    pub(super) kinds: BTreeMap<Accelerator, Gpus>,
    pub(super) total: Gpus,
    pub(super) cost: CostPerHour,
    /// Pods that have been started and are on no node yet.
    pub(super) started: UnplacedPods,
}

/// The accelerators that are held, by limit.
///
/// To plan many models one after the other, the holdings of one model are taken out and put back.
/// The other models are not counted again.
#[derive(Clone, Debug)]
pub struct AcceleratorLedger<'a> {
    limits: &'a [SupplyLimit],
    used: Vec<LimitUse>,
}

/// Returns the limits that are left for others while these variants keep their holdings.
#[must_use]
pub fn without(limits: &[SupplyLimit], held: &[Want]) -> Vec<SupplyLimit> {
    let mut ledger = AcceleratorLedger::new(limits);
    for want in held {
        ledger.hold(want, want.current);
    }

    limits.iter().zip(&ledger.used).map(|(limit, used)| used.rest_of(limit)).collect()
}

// === impl AcceleratorLedger ===

impl<'a> AcceleratorLedger<'a> {
    /// Creates a ledger without holdings.
    #[must_use]
    pub fn new(limits: &'a [SupplyLimit]) -> Self {
        Self { limits, used: vec![LimitUse::default(); limits.len()] }
    }

    /// Adds the accelerators that these replicas of a variant hold. Replicas beyond the count of
    /// its scale target have to be started.
    pub fn hold(&mut self, want: &Want, replicas: Replicas) {
        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(want) {
                used.add(limit, want, replicas);
                used.start(limit, want, replicas.beyond(want.current));
            }
        }
    }

    /// Removes the accelerators that these replicas of a variant held.
    pub fn release(&mut self, want: &Want, replicas: Replicas) {
        for (limit, used) in self.limits.iter().zip(&mut self.used) {
            if limit.counts(want) {
                used.remove(limit, want, replicas);
                used.started.stop(want, replicas.beyond(want.current));
            }
        }
    }

    /// Returns the free accelerators for these variants, by their kinds, and the rest of the
    /// budgets; `None` without limits.
    #[must_use]
    pub fn room(&self, wants: &[Want]) -> Option<SupplyHeadroom> {
        self.limits.first()?;
        let purses = self.purses(wants);
        let slots = self.slots(wants);
        let mut room = SupplyHeadroom { purses, slots, ..SupplyHeadroom::default() };
        if self.limits.iter().all(SupplyLimit::is_budget) {
            room.unknown = Headroom::Unlimited;
        }

        let kinds: BTreeSet<(&Namespace, &Accelerator)> = wants
            .iter()
            .filter_map(|want| Some((&want.key.namespace, want.accelerator.as_ref()?)))
            .collect();
        for (namespace, kind) in kinds {
            let cluster = self.free(kind, |scope| *scope == LimitScope::Cluster);
            room.cluster.insert(kind.clone(), cluster.unwrap_or(Headroom::Unlimited));

            let own = self.free(kind, |scope| match scope {
                LimitScope::Cluster => false,
                LimitScope::Namespace(name) => name == namespace,
                LimitScope::Variants(keys) => {
                    wants.iter().any(|it| it.takes(namespace, kind) && keys.contains(&it.key))
                }
            });
            if let Some(own) = own {
                let list = room.namespaces.entry(namespace.clone()).or_default();
                list.insert(kind.clone(), own);
            }
        }

        Some(room)
    }

    /// Returns the smallest free amount of a kind by the limits whose scope `holds`; `None` without
    /// such a limit.
    fn free(&self, kind: &Accelerator, holds: impl Fn(&LimitScope) -> bool) -> Option<Headroom> {
        let counted = self.limits.iter().zip(&self.used).filter(|(limit, _)| holds(&limit.scope));
        counted.map(|(limit, used)| limit.free(kind, used)).min()
    }

    /// Returns the rest of each budget that counts some of these variants.
    fn purses(&self, wants: &[Want]) -> Vec<FreeBudget> {
        let counted = self.limits.iter().zip(&self.used);
        counted
            .filter_map(|(limit, used)| {
                let Some(Allowance::Budget(budget)) = limit.source.allowance() else { return None };
                let left = budget.beyond(used.cost);
                let own = wants.iter().filter(|want| limit.counts(want));
                Some(FreeBudget { left, counts: own.map(|want| want.key.clone()).collect() })
            })
            .filter(|purse| !purse.counts.is_empty())
            .collect()
    }

    /// Returns the additional replicas of each variant that fit on nodes, if that is known.
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

    /// Returns the holdings against each limit.
    pub(super) fn into_used(self) -> Vec<LimitUse> {
        self.used
    }
}

// === impl LimitUse ===

impl LimitUse {
    /// Returns a limit with the rest of its allowance.
    fn rest_of(&self, limit: &SupplyLimit) -> SupplyLimit {
        let source = match &limit.source {
            LimitSource::Read(allowance) => LimitSource::Read(self.left_of(allowance)),
            LimitSource::Held { last, age } => {
                LimitSource::Held { last: self.left_of(last), age: *age }
            }
            LimitSource::Unread => LimitSource::Unread,
        };
        SupplyLimit { source, ..limit.clone() }
    }

    /// Returns the rest of an allowance.
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
        kinds
            .iter()
            .map(|(kind, headroom)| {
                let used = self.kinds.get(kind).copied().unwrap_or_default();
                (kind.clone(), headroom.without(used))
            })
            .collect()
    }

    /// Records replicas that need a place on a node.
    pub(super) fn start(&mut self, limit: &SupplyLimit, want: &Want, replicas: Replicas) {
        if let Some(Allowance::Nodes(nodes)) = limit.source.allowance()
            && let Some(kind) = limit.kind(want)
        {
            self.started.start(nodes, want, kind, replicas);
        }
    }

    pub(super) fn add(&mut self, limit: &SupplyLimit, want: &Want, replicas: Replicas) {
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

    /// Removes holdings that were added. Sums of costs are not exact; code that reads them allows
    /// for that.
    fn remove(&mut self, limit: &SupplyLimit, want: &Want, replicas: Replicas) {
        let gpus = want.gpus.times(replicas);
        if let Some(used) = limit.kind(want).and_then(|kind| self.kinds.get_mut(kind)) {
            *used = used.beyond(gpus);
        }
        self.total = self.total.beyond(gpus);
        self.cost = self.cost.beyond(want.cost.times(replicas));
    }
}
