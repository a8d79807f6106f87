//! A source of limits: the variants that it counts, and the amount that they may use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decide::limit::nodes::Nodes;
use crate::decide::limit::want::Want;
use crate::decide::optimize::room::Headroom;
use crate::fleet::{Accelerator, LimitName, Namespace, VariantKey};
use crate::units::{CostPerHour, Gpus, Seconds};

/// One source of limits.
#[derive(Clone, Debug, PartialEq)]
pub struct SupplyLimit {
    /// Its name.
    pub name: LimitName,
    /// The variants that it counts.
    pub scope: LimitScope,
    /// Its value and its freshness.
    pub source: LimitSource,
}

/// The variants that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// Every variant.
    Cluster,
    /// The variants of a namespace.
    Namespace(Namespace),
    /// These variants.
    Variants(BTreeSet<VariantKey>),
}

/// The value of a limit, and its freshness.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitSource {
    /// The limit has been read.
    Read(Allowance),
    /// The limit cannot be read, and its last value applies.
    Held {
        /// The last value.
        last: Allowance,
        /// Time since it was read.
        age: Seconds,
    },
    /// The limit has never been read.
    Unread,
}

/// The amount that may be used.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Accelerators of each kind; none of a kind that is not listed.
    Kinds(BTreeMap<Accelerator, Headroom>),
    /// Accelerators of each kind on each node; none of a kind that is not listed.
    Nodes(Arc<Nodes>),
    /// Accelerators of all kinds together.
    Total(Gpus),
    /// Cost per hour.
    Budget(CostPerHour),
}

impl LimitSource {
    /// Returns the allowance in effect; `None` if the limit has never been read.
    #[must_use]
    pub fn allowance(&self) -> Option<&Allowance> {
        match self {
            Self::Read(allowance) | Self::Held { last: allowance, .. } => Some(allowance),
            Self::Unread => None,
        }
    }

    /// Returns the allowance in effect, to change it; `None` if the limit has never been read.
    pub(crate) const fn allowance_mut(&mut self) -> Option<&mut Allowance> {
        match self {
            Self::Read(allowance) | Self::Held { last: allowance, .. } => Some(allowance),
            Self::Unread => None,
        }
    }
}

impl SupplyLimit {
    pub(super) fn counts(&self, want: &Want) -> bool {
        match &self.scope {
            LimitScope::Cluster => true,
            LimitScope::Namespace(namespace) => want.key.namespace == *namespace,
            LimitScope::Variants(variants) => variants.contains(&want.key),
        }
    }

    /// Returns true if a replica of either variant takes the same, except for its cost.
    pub(super) fn takes_alike(&self, one: &Want, other: &Want) -> bool {
        let have_same_pods = match self.source.allowance() {
            Some(Allowance::Nodes(nodes)) => nodes.pods.get(&one.key) == nodes.pods.get(&other.key),
            Some(Allowance::Kinds(_) | Allowance::Total(_) | Allowance::Budget(_)) | None => true,
        };
        let have_same_size = one.accelerator == other.accelerator && one.gpus == other.gpus;
        have_same_pods && have_same_size && self.counts(one) == self.counts(other)
    }

    /// Returns true if a variant counts in the amount that all kinds share. A limit with one kind
    /// counts its own kind there, and unknown kinds.
    pub(super) fn counts_in_total(&self, want: &Want) -> bool {
        let is_of_kind = self.only_kind().is_none_or(|kind| self.kind(want) == Some(kind));
        self.counts(want) && is_of_kind
    }

    /// Returns the kind of a variant. If it is unknown and the limit has one kind only, returns
    /// that kind.
    pub(super) fn kind<'a>(&'a self, want: &'a Want) -> Option<&'a Accelerator> {
        want.accelerator.as_ref().or_else(|| self.only_kind())
    }

    /// Returns the kind of a limit with one kind only.
    pub(super) fn only_kind(&self) -> Option<&Accelerator> {
        let kinds = self.source.allowance()?.kinds()?;
        kinds.keys().next().filter(|_| kinds.len() == 1)
    }
}

impl Allowance {
    /// Returns the allowance for each kind, if the limit has kinds.
    #[must_use]
    pub fn kinds(&self) -> Option<&BTreeMap<Accelerator, Headroom>> {
        match self {
            Self::Kinds(kinds) => Some(kinds),
            Self::Nodes(nodes) => Some(&nodes.kinds),
            Self::Total(_) | Self::Budget(_) => None,
        }
    }
}
