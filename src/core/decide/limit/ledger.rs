//! The holdings against each limit, and the rest.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::limit::holdings::LimitUse;
use crate::decide::limit::supply::{Allowance, LimitScope, SupplyLimit};
use crate::decide::limit::want::Want;
use crate::decide::optimize::room::{FreeBudget, FreeTotal, Headroom, SupplyHeadroom};
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::Replicas;

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
    let used = holdings(held, limits);
    limits.iter().zip(&used).map(|(limit, used)| used.rest_of(limit)).collect()
}

/// The holdings of all variants, by limit.
pub(crate) type Holdings = Vec<LimitUse>;

/// The holdings of the replicas that scale targets ask for.
pub(crate) fn holdings(wants: &[Want], limits: &[SupplyLimit]) -> Holdings {
    let mut ledger = AcceleratorLedger::new(limits);
    for want in wants {
        ledger.hold(want, want.current);
    }
    ledger.used
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

    /// Returns the free accelerators for these variants, by their kinds, and the rest of the totals
    /// and budgets; `None` without limits.
    #[must_use]
    pub fn room(&self, wants: &[Want]) -> Option<SupplyHeadroom> {
        self.limits.first()?;
        let mut room = SupplyHeadroom {
            unknown: self.free_of_unknown(wants),
            totals: self.totals(wants),
            purses: self.purses(wants),
            slots: self.slots(wants),
            ..SupplyHeadroom::default()
        };

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

    /// Returns the free amount for variants of an unknown kind among these, as far as limits depend
    /// on kinds.
    fn free_of_unknown(&self, wants: &[Want]) -> Headroom {
        let needs_kind = self.limits.iter().zip(&self.used).any(|(limit, used)| {
            limit.free_without_kind(used).is_none()
                && wants.iter().any(|want| want.accelerator.is_none() && limit.counts(want))
        });

        if needs_kind { Headroom::NONE } else { Headroom::Unlimited }
    }

    /// Returns the rest of each limit that variants of several or of unknown kinds share.
    fn totals(&self, wants: &[Want]) -> Vec<FreeTotal> {
        let all_known = wants.iter().all(|want| want.accelerator.is_some());
        let counted = self.limits.iter().zip(&self.used);
        counted
            .filter(|(limit, _)| !(all_known && limit.only_kind().is_some()))
            .filter_map(|(limit, used)| {
                let Headroom::Limited(left) = limit.free_without_kind(used)? else { return None };
                let own = wants.iter().filter(|want| limit.counts_in_total(want));
                Some(FreeTotal { left, counts: own.map(|want| want.key.clone()).collect() })
            })
            .filter(|total| !total.counts.is_empty())
            .collect()
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
}
