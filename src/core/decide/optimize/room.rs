//! What is free: accelerators of each kind, in the cluster and in each namespace, and money.
//!
//! A kind that is not listed has nothing free: a source that does not know a kind must not be read
//! as one that does not limit it.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;

use crate::decide::optimize::Candidate;
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::{CostPerHour, Gpus, Replicas};

/// How much of one kind is free.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum Headroom {
    /// So much.
    #[display("{_0} free")]
    Limited(Gpus),
    /// Nothing limits it.
    #[display("unlimited")]
    Unlimited,
}

/// What is free, of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Room {
    /// In the cluster.
    pub cluster: BTreeMap<Accelerator, Headroom>,
    /// In namespaces that have a list of their own, which holds beside the cluster's.
    pub namespaces: BTreeMap<Namespace, BTreeMap<Accelerator, Headroom>>,
    /// For variants of which nobody knows the kind.
    pub unknown: Headroom,
    /// What is left of each budget.
    pub purses: Vec<Purse>,
    /// How many replicas more of a variant nodes have a place for; of others nothing is known.
    pub slots: BTreeMap<VariantKey, Replicas>,
}

/// What is left of a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Purse {
    /// What replicas that start may cost together.
    pub left: CostPerHour,
    /// The variants that it counts.
    pub counts: BTreeSet<VariantKey>,
}

// === impl Headroom ===

impl Headroom {
    /// Nothing is free.
    pub const NONE: Self = Self::Limited(Gpus::ZERO);

    /// How many replicas fit, if each takes `each`; `None` when nothing limits them.
    #[must_use]
    pub fn replicas(self, each: Gpus) -> Option<Replicas> {
        match self {
            Self::Unlimited => None,
            Self::Limited(free) => free.replicas_of(each),
        }
    }

    /// What is left when `used` is taken.
    #[must_use]
    pub fn without(self, used: Gpus) -> Self {
        match self {
            Self::Unlimited => Self::Unlimited,
            Self::Limited(free) => Self::Limited(free.beyond(used)),
        }
    }
}

impl Default for Headroom {
    /// Nothing: what no list names is not there.
    fn default() -> Self {
        Self::NONE
    }
}

// === impl Room ===

impl Room {
    /// What a workload of this namespace may still take of this kind.
    #[must_use]
    pub fn free(&self, namespace: &Namespace, kind: &Accelerator) -> Headroom {
        let listed = |list: &BTreeMap<Accelerator, Headroom>| {
            list.get(kind).copied().unwrap_or(Headroom::NONE)
        };
        let own = self.namespaces.get(namespace).map_or(Headroom::Unlimited, listed);
        listed(&self.cluster).min(own)
    }

    /// Takes this much of this kind for a workload of this namespace.
    pub fn take(&mut self, namespace: &Namespace, kind: &Accelerator, used: Gpus) {
        let own = self.namespaces.get_mut(namespace).and_then(|list| list.get_mut(kind));
        for headroom in [self.cluster.get_mut(kind), own].into_iter().flatten() {
            *headroom = headroom.without(used);
        }
    }

    /// What a variant may take of its kind.
    pub(crate) fn headroom(&self, candidate: &Candidate) -> Headroom {
        match &candidate.accelerator {
            Some(kind) => self.free(&candidate.key.namespace, kind),
            None => self.unknown,
        }
    }

    /// How many replicas of a variant may start; `None` when nothing limits them.
    pub(crate) fn fit(&self, candidate: &Candidate) -> Option<Replicas> {
        let paid = self.purses.iter().filter(|purse| purse.counts.contains(&candidate.key));
        let paid = paid.filter_map(|purse| purse.left.replicas_of(candidate.cost)).min();
        let started = self.headroom(candidate).replicas(candidate.gpus);
        let placed = self.slots.get(&candidate.key).copied();
        [started, paid, placed].into_iter().flatten().min()
    }

    /// Takes what so many replicas of a variant run on and cost.
    pub(crate) fn start(&mut self, candidate: &Candidate, replicas: Replicas) {
        if let Some(kind) = &candidate.accelerator {
            self.take(&candidate.key.namespace, kind, candidate.gpus.times(replicas));
        }
        if let Some(slots) = self.slots.get_mut(&candidate.key) {
            *slots = slots.beyond(replicas);
        }
        for purse in self.purses.iter_mut().filter(|it| it.counts.contains(&candidate.key)) {
            purse.left = purse.left.beyond(candidate.cost.times(replicas));
        }
    }
}
