//! Free room: accelerators of each kind, in the cluster and in each namespace, accelerators of any
//! kind, and money.
//!
//! A kind that is not listed has nothing free. A source that does not know a kind must not count as
//! a source that does not limit it.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;

use crate::decide::optimize::model::Candidate;
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::{CostPerHour, Gpus, Replicas};

/// The free amount of one kind.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum Headroom {
    /// Limited to this many accelerators.
    #[display("{_0} free")]
    Limited(Gpus),
    /// Without a limit.
    #[display("unlimited")]
    Unlimited,
}

/// The free room for each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SupplyHeadroom {
    /// In the cluster.
    pub cluster: BTreeMap<Accelerator, Headroom>,
    /// In namespaces with a list of their own, which applies in addition to the cluster's.
    pub namespaces: BTreeMap<Namespace, BTreeMap<Accelerator, Headroom>>,
    /// For variants whose kind is unknown.
    pub unknown: Headroom,
    /// The rest of each limit on accelerators of any kind.
    pub totals: Vec<FreeTotal>,
    /// The rest of each budget.
    pub purses: Vec<FreeBudget>,
    /// Additional replicas of a variant that fit on nodes. For a variant without an entry they are
    /// unknown.
    pub slots: BTreeMap<VariantKey, Replicas>,
}

/// The rest of a limit on accelerators of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct FreeTotal {
    /// The most that all replicas to be started may take together.
    pub left: Gpus,
    /// The variants that it counts.
    pub counts: BTreeSet<VariantKey>,
}

/// The rest of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct FreeBudget {
    /// The most that all replicas to be started may cost together.
    pub left: CostPerHour,
    /// The variants that it counts.
    pub counts: BTreeSet<VariantKey>,
}

// === impl Headroom ===

impl Headroom {
    /// Nothing is free.
    pub const NONE: Self = Self::Limited(Gpus::ZERO);

    /// Returns the replicas that fit, if each takes `each`; `None` without a limit.
    #[must_use]
    pub fn replicas(self, each: Gpus) -> Option<Replicas> {
        match self {
            Self::Unlimited => None,
            Self::Limited(free) => free.replicas_of(each),
        }
    }

    /// Returns the rest after `used` is taken.
    #[must_use]
    pub fn without(self, used: Gpus) -> Self {
        match self {
            Self::Unlimited => Self::Unlimited,
            Self::Limited(free) => Self::Limited(free.beyond(used)),
        }
    }
}

impl Default for Headroom {
    /// Nothing: a kind that no list names is not available.
    fn default() -> Self {
        Self::NONE
    }
}

// === impl SupplyHeadroom ===

impl SupplyHeadroom {
    /// Returns the amount of this kind that a workload in this namespace may still take.
    #[must_use]
    pub fn free(&self, namespace: &Namespace, kind: &Accelerator) -> Headroom {
        let own = self.namespaces.get(namespace);
        let own_headroom = own.map_or(Headroom::Unlimited, |list| listed(list, kind));
        listed(&self.cluster, kind).min(own_headroom)
    }

    /// Takes this amount of this kind for a workload in this namespace.
    pub fn take(&mut self, namespace: &Namespace, kind: &Accelerator, used: Gpus) {
        let own = self.namespaces.get_mut(namespace).and_then(|list| list.get_mut(kind));
        for headroom in [self.cluster.get_mut(kind), own].into_iter().flatten() {
            *headroom = headroom.without(used);
        }
    }

    /// Returns the amount of its kind that a variant may take.
    pub(crate) fn headroom(&self, candidate: &Candidate) -> Headroom {
        match &candidate.accelerator {
            Some(kind) => self.free(&candidate.key.namespace, kind),
            None => self.unknown,
        }
    }

    /// Returns the replicas of a variant that may start; `None` without a limit.
    pub(crate) fn fit(&self, candidate: &Candidate) -> Option<Replicas> {
        let purses = self.purses.iter().filter(|purse| purse.counts.contains(&candidate.key));
        let paid = purses.filter_map(|purse| purse.left.replicas_of(candidate.cost)).min();
        let totals = self.totals.iter().filter(|total| total.counts.contains(&candidate.key));
        let counted = totals.filter_map(|total| total.left.replicas_of(candidate.gpus)).min();

        let started = self.headroom(candidate).replicas(candidate.gpus);
        let placed = self.slots.get(&candidate.key).copied();
        [started, counted, paid, placed].into_iter().flatten().min()
    }

    /// Takes the accelerators, the places and the money for these replicas of a variant.
    pub(crate) fn start(&mut self, candidate: &Candidate, replicas: Replicas) {
        let gpus = candidate.gpus.times(replicas);
        match &candidate.accelerator {
            Some(kind) => self.take(&candidate.key.namespace, kind, gpus),
            None => self.unknown = self.unknown.without(gpus),
        }

        if let Some(slots) = self.slots.get_mut(&candidate.key) {
            *slots = slots.beyond(replicas);
        }

        for total in self.totals.iter_mut().filter(|it| it.counts.contains(&candidate.key)) {
            total.left = total.left.beyond(gpus);
        }

        for purse in self.purses.iter_mut().filter(|it| it.counts.contains(&candidate.key)) {
            purse.left = purse.left.beyond(candidate.cost.times(replicas));
        }
    }
}

/// Returns the free amount of a kind; none of a kind that is not listed.
fn listed(list: &BTreeMap<Accelerator, Headroom>, kind: &Accelerator) -> Headroom {
    list.get(kind).copied().unwrap_or(Headroom::NONE)
}
