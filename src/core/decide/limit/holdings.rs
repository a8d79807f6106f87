//! The holdings that count against one limit, and the rest of the limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::limit::nodes::{Nodes, UnplacedPods};
use crate::decide::limit::supply::{Allowance, LimitSource, SupplyLimit};
use crate::decide::limit::want::Want;
use crate::decide::optimize::room::Headroom;
use crate::fleet::Accelerator;
use crate::units::{CostPerHour, Gpus, Replicas};

/// The holdings that count against one limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitUse {
    pub(super) kinds: BTreeMap<Accelerator, Gpus>,
    pub(super) total: Gpus,
    pub(super) cost: CostPerHour,
    /// Pods that have been started and are on no node yet.
    pub(super) started: UnplacedPods,
}

// === impl LimitUse ===

impl LimitUse {
    /// Returns a limit with the rest of its allowance.
    pub(super) fn rest_of(&self, limit: &SupplyLimit) -> SupplyLimit {
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
    pub(super) fn remove(&mut self, limit: &SupplyLimit, want: &Want, replicas: Replicas) {
        let gpus = want.gpus.times(replicas);
        if let Some(used) = limit.kind(want).and_then(|kind| self.kinds.get_mut(kind)) {
            *used = used.beyond(gpus);
        }
        self.total = self.total.beyond(gpus);
        self.cost = self.cost.beyond(want.cost.times(replicas));
    }
}

// === impl SupplyLimit ===

impl SupplyLimit {
    /// Returns the free amount of a kind, as far as the limit depends on kinds.
    pub(super) fn free(&self, kind: &Accelerator, used: &LimitUse) -> Headroom {
        match self.source.allowance() {
            None => Headroom::NONE,
            Some(Allowance::Budget(_) | Allowance::Total(_)) => Headroom::Unlimited,
            Some(Allowance::Kinds(kinds)) => left_of_kind(kinds, kind, used),
            Some(Allowance::Nodes(nodes)) => left_of_kind(&nodes.kinds, kind, used),
        }
    }

    /// Returns the free amount that variants of known and of unknown kinds share. A limit with one
    /// kind counts unknown kinds with it. `None` if the limit gives nothing without a kind.
    pub(super) fn free_without_kind(&self, used: &LimitUse) -> Option<Headroom> {
        match self.source.allowance()? {
            Allowance::Budget(_) => Some(Headroom::Unlimited),
            Allowance::Total(total) => Some(Headroom::Limited(*total).without(used.total)),
            Allowance::Kinds(_) | Allowance::Nodes(_) => {
                self.only_kind().map(|kind| self.free(kind, used))
            }
        }
    }
}

/// Returns the rest of a kind; none of a kind that is not listed.
pub(super) fn left_of_kind(
    kinds: &BTreeMap<Accelerator, Headroom>,
    kind: &Accelerator,
    used: &LimitUse,
) -> Headroom {
    let held = used.kinds.get(kind).copied().unwrap_or_default();
    kinds.get(kind).map_or(Headroom::NONE, |headroom| headroom.without(held))
}
