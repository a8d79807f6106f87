//! The variants of one role, with their capacity per replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::analyze::foresight::capacity::{CapacityBound, RATE_MIN, ReplicaCapacity};
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::demand::{ReplicaQueue, Smoothing};
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{Role, VariantKey};
use crate::units::Replicas;

/// The variants of one role, with their capacity per replica.
pub(super) struct RoleFleet<'a> {
    pub(super) role: Role,
    pub(super) variants: Vec<(&'a VariantStrides<'a>, Option<ReplicaCapacity>)>,
    /// True if replicas use a card, which does not permit scale-down.
    pub(super) by_card: bool,
}

/// The capacity of the replicas of one role, in requests per second.
pub(super) struct Rates {
    /// The capacity of a replica of the weakest variant.
    pub(super) least: f64,
    /// The mean capacity per replica.
    pub(super) carries: f64,
    /// The capacity of all measured replicas.
    pub(super) there: f64,
    /// The share of the engines' capacity that the router leaves unused.
    pub(super) unused: f64,
}

// === impl RoleFleet ===

impl<'a> RoleFleet<'a> {
    /// Returns true if the capacity of some variant is known. While others serve, a variant without
    /// replicas does not count, because its capacity is no measure of the load on theirs. Its card
    /// does not count while any variant has replicas.
    pub(super) fn is_known(
        &self,
        all: &[VariantStrides<'_>],
        cards: &BTreeMap<VariantKey, Arc<Card>>,
    ) -> bool {
        let staffed = all.iter().any(|it| it.current > Replicas::ZERO);
        let serving = all.iter().any(|it| !it.replicas.is_empty());
        self.known().any(|(it, _)| {
            let by_card = cards.contains_key(&it.spec.key);
            it.current > Replicas::ZERO || !(serving || (by_card && staffed))
        })
    }

    /// The share of time in which a replica is absent because it was lost and restarts.
    pub(super) fn absent(&self, horizon: f64) -> f64 {
        let all: f64 = self.variants.iter().map(|(it, _)| it.count()).sum();
        let lost: f64 = self.variants.iter().map(|(it, _)| it.count() * it.losses).sum();
        if all > 0.0 { lost / all * horizon / 3600.0 } else { 0.0 }
    }

    /// The capacity of the replicas; `None` while none is known.
    pub(super) fn rates(&self) -> Option<Rates> {
        let least = self.used().map(|(_, it)| it.counts()).min_by(f64::total_cmp)?;
        let replicas: f64 = self.used().map(|(variant, _)| variant.measured()).sum();
        let there: f64 = self.used().map(|(variant, it)| variant.measured() * it.counts()).sum();

        let rates = self.used().map(|(variant, it)| (variant, it.rate.requests_per_second()));
        let engines: f64 = rates.map(|(variant, rate)| variant.measured() * rate).sum();

        // While no replica was measured, the weakest variant is the best guess of the capacity.
        let carries = if replicas > 0.0 { there / replicas } else { least };
        let unused = if engines > 0.0 { 1.0 - there / engines } else { 0.0 };
        Some(Rates { least, carries, there, unused })
    }

    /// The limit that binds most of the capacity.
    pub(super) fn bound(&self) -> Option<CapacityBound> {
        let bounds = self.loaded().into_iter().map(|(variant, it)| {
            let capacity = variant.measured() * it.counts();
            (capacity, it.bound)
        });

        // Of equal ones, the first.
        bounds.rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, bound)| bound)
    }

    /// The mechanism that evens out unequal arrivals, given the limit that binds replicas.
    pub(super) fn smoothing(&self, bound: Option<CapacityBound>) -> Smoothing {
        match bound {
            Some(CapacityBound::Budget | CapacityBound::Ttft) => Smoothing::Queue,
            Some(CapacityBound::Itl | CapacityBound::Seats | CapacityBound::Kv) | None => {
                let stays = self.loaded().into_iter().map(|(_, it)| it.stay.seconds());
                Smoothing::Stay(stays.fold(0.0, f64::max))
            }
        }
    }

    /// The queue at each replica.
    pub(super) fn queues(&self) -> Vec<ReplicaQueue> {
        let mut queues = Vec::new();
        for (variant, carried) in self.known() {
            let carries = carried.rate.requests_per_second();
            let waiting = variant.replicas.iter().filter_map(|replica| replica.waiting);
            queues.extend(waiting.map(|it| ReplicaQueue { waiting: it.requests(), carries }));
        }

        queues
    }

    /// The variants whose replicas get the load: the measured ones whose capacity counts. While
    /// there are none, all variants with a known capacity.
    fn loaded(&self) -> Vec<(&VariantStrides<'a>, ReplicaCapacity)> {
        let measured: Vec<_> = self.used().filter(|(it, _)| it.measured() > 0.0).collect();
        if measured.is_empty() { self.known().collect() } else { measured }
    }

    /// The variants whose capacity per replica is known.
    pub(super) fn known(&self) -> impl Iterator<Item = (&VariantStrides<'a>, ReplicaCapacity)> {
        self.variants.iter().filter_map(|(variant, it)| Some((*variant, (*it)?)))
    }

    /// The variants among them whose capacity counts as more than nothing.
    fn used(&self) -> impl Iterator<Item = (&VariantStrides<'a>, ReplicaCapacity)> {
        self.known().filter(|(_, it)| it.counts() > RATE_MIN)
    }
}
