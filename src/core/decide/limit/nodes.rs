//! Placement on nodes: a pod gets all its accelerators on one node, or it does not start.
//!
//! # Model
//!
//! A replica of `g` accelerators has `ceil(g / p)` pods of `p`, and each pod must find `p` on one
//! node. Pods are placed largest first, each on the node that it leaves with the least free
//! (best-fit decreasing, Johnson et al. 1974). A replica fits if all pods that are started with it,
//! and its own, find a place.
//!
//! # Domain
//!
//! A scheduler does no better than this, because it chooses the nodes itself and free amounts
//! change. If no pod of a variant has been observed, nothing is known, and the sum over nodes
//! counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decide::limit::want::Want;
use crate::decide::optimize::room::Headroom;
use crate::fleet::{Accelerator, VariantKey};
use crate::units::{Gpus, Replicas};

/// The accelerators of nodes: the sums, and the free amount on each node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes {
    /// The total for variants, by kind.
    pub kinds: BTreeMap<Accelerator, Headroom>,
    /// The free amount on each node that has any, by kind.
    pub free: BTreeMap<Accelerator, Vec<Gpus>>,
    /// Accelerators per pod of each variant with an observed pod.
    pub pods: BTreeMap<VariantKey, Gpus>,
}

/// Pods that are started and are on no node yet.
#[derive(Clone, Debug, Default)]
pub(super) struct UnplacedPods(BTreeMap<VariantKey, PodGroup>);

/// Pods of one size.
#[derive(Clone, Debug)]
struct PodGroup {
    kind: Accelerator,
    each: Gpus,
    /// Pods per replica.
    number: u32,
    replicas: Replicas,
}

impl Nodes {
    /// Returns the pods of these replicas; `None` if nodes or pods are unknown.
    fn pods(&self, want: &Want, kind: &Accelerator, replicas: Replicas) -> Option<PodGroup> {
        self.free.get(kind)?;
        let each = (*self.pods.get(&want.key)?).min(want.gpus);
        let number = want.gpus.count().div_ceil(each.count().max(1));
        (each > Gpus::ZERO).then(|| PodGroup { kind: kind.clone(), each, number, replicas })
    }

    /// Returns the largest number of replicas, up to `most`, that fit in addition to the started
    /// pods; `None` if unknown.
    pub(super) fn fit(
        &self,
        started: &UnplacedPods,
        want: &Want,
        kind: &Accelerator,
        most: Replicas,
    ) -> Option<Replicas> {
        let there = started.0.get(&want.key).map_or(Replicas::ZERO, |pods| pods.replicas);
        let alone = self.pods(want, kind, there)?;
        let others: Vec<&PodGroup> = started
            .0
            .iter()
            .filter(|(key, pods)| **key != want.key && pods.kind == *kind)
            .map(|(_, pods)| pods)
            .collect();

        // No more pods fit than if each node held only these pods.
        let nodes = self.free.get(kind)?.iter();
        let slots: u32 = nodes.map(|free| free.count() / alone.each.count()).sum();

        let mut low = 0;
        let mut high = (slots / alone.number).min(most.count());
        while low < high {
            let middle = (low + high).div_ceil(2);
            let replicas = there + Replicas::saturating(middle);
            if self.place(&others, &PodGroup { replicas, ..alone.clone() }) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }

        Some(Replicas::saturating(low))
    }

    /// Returns the free amount of a kind on the node that has most.
    pub(super) fn largest(&self, kind: &Accelerator) -> Gpus {
        let free = self.free.get(kind).map(Vec::as_slice).unwrap_or_default();
        free.iter().copied().max().unwrap_or_default()
    }

    /// Returns the accelerators per pod of a variant. Without an observed pod, returns those per
    /// replica.
    pub(super) fn pod(&self, want: &Want) -> Gpus {
        self.pods.get(&want.key).copied().unwrap_or(want.gpus).min(want.gpus)
    }

    /// Returns true if all these pods find a place.
    fn place(&self, others: &[&PodGroup], own: &PodGroup) -> bool {
        let mut free = self.free.get(&own.kind).cloned().unwrap_or_default();
        let mut all: Vec<&PodGroup> = others.iter().copied().chain([own]).collect();
        all.sort_by_key(|pods| Reverse(pods.each));
        for pods in all {
            for _ in 0..pods.number.saturating_mul(pods.replicas.count()) {
                let nodes = free.iter_mut().filter(|free| **free >= pods.each);
                let Some(node) = nodes.min_by_key(|free| **free) else { return false };
                *node = node.beyond(pods.each);
            }
        }

        true
    }
}

impl UnplacedPods {
    /// Records replicas that are started.
    pub(super) fn start(
        &mut self,
        nodes: &Nodes,
        want: &Want,
        kind: &Accelerator,
        replicas: Replicas,
    ) {
        if replicas == Replicas::ZERO {
            return;
        }

        if let Some(pods) = self.0.get_mut(&want.key) {
            pods.replicas += replicas;
        } else if let Some(pods) = nodes.pods(want, kind, replicas) {
            self.0.insert(want.key.clone(), pods);
        }
    }

    /// Removes replicas that were started.
    pub(super) fn stop(&mut self, want: &Want, replicas: Replicas) {
        if let Some(pods) = self.0.get_mut(&want.key) {
            pods.replicas = pods.replicas.beyond(replicas);
        }
    }
}
