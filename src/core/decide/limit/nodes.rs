//! What fits on nodes: a pod takes its accelerators on one node, or it does not start.
//!
//! # Model
//!
//! A replica of `g` accelerators has `ceil(g / p)` pods of `p`, and each of them must find `p` on one
//! node. Pods are placed largest first, each on the node where least is left beside it (best-fit
//! decreasing, Johnson et al. 1974). A replica fits when all pods that are started beside it, and
//! its own, find a place.
//!
//! # Domain
//!
//! What schedulers do is at best this: where a pod goes is theirs to say, and what is free moves. Of
//! a variant of which nobody has seen a pod nothing is known, and the sum over nodes counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decide::limit::Want;
use crate::decide::optimize::Headroom;
use crate::fleet::{Accelerator, VariantKey};
use crate::units::{Gpus, Replicas};

/// What nodes have: sums, and what is free on each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes {
    /// Of each kind, what is there for variants in all.
    pub kinds: BTreeMap<Accelerator, Headroom>,
    /// Of each kind, what is free on each node that has any.
    pub free: BTreeMap<Accelerator, Vec<Gpus>>,
    /// What a pod of each variant takes, of those of which one has been seen.
    pub pods: BTreeMap<VariantKey, Gpus>,
}

/// Pods that are started and are on no node yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Started(BTreeMap<VariantKey, Pods>);

/// Pods of one size.
#[derive(Clone, Debug)]
struct Pods {
    kind: Accelerator,
    each: Gpus,
    /// Of one replica.
    number: u32,
    replicas: Replicas,
}

impl Nodes {
    /// What a replica is made of; `None` where nothing is known of nodes or pods.
    fn pods(&self, want: &Want, kind: &Accelerator, replicas: Replicas) -> Option<Pods> {
        self.free.get(kind)?;
        let each = (*self.pods.get(&want.key)?).min(want.gpus);
        let number = want.gpus.count().div_ceil(each.count().max(1));
        (each > Gpus::ZERO).then(|| Pods { kind: kind.clone(), each, number, replicas })
    }

    /// The largest number of replicas, up to `most`, that fit beside those that are started; `None`
    /// where nothing is known.
    pub(super) fn fit(
        &self,
        started: &Started,
        want: &Want,
        kind: &Accelerator,
        most: Replicas,
    ) -> Option<Replicas> {
        let there = started.0.get(&want.key).map_or(Replicas::ZERO, |pods| pods.replicas);
        let alone = self.pods(want, kind, there)?;
        let others: Vec<&Pods> = started
            .0
            .iter()
            .filter(|(key, pods)| **key != want.key && pods.kind == *kind)
            .map(|(_, pods)| pods)
            .collect();
        let fits = |more: u32| {
            let replicas = there + Replicas::saturating(more);
            self.place(&others, &Pods { replicas, ..alone.clone() })
        };
        // No more pods fit than if each node were filled with them.
        let slots = |free: &Gpus| free.count() / alone.each.count();
        let slots: u32 = self.free.get(kind)?.iter().map(slots).sum();
        let (mut low, mut high) = (0, (slots / alone.number).min(most.count()));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        Some(Replicas::saturating(low))
    }

    /// What is free of a kind on the node that has most of it.
    pub(super) fn largest(&self, kind: &Accelerator) -> Gpus {
        let free = self.free.get(kind).map(Vec::as_slice).unwrap_or_default();
        free.iter().copied().max().unwrap_or_default()
    }

    /// What a pod of a variant takes, if one was seen.
    pub(super) fn pod(&self, want: &Want) -> Gpus {
        self.pods.get(&want.key).copied().unwrap_or(want.gpus).min(want.gpus)
    }

    /// Whether all of these find a place.
    fn place(&self, others: &[&Pods], own: &Pods) -> bool {
        let mut free = self.free.get(&own.kind).cloned().unwrap_or_default();
        let mut all: Vec<&Pods> = others.iter().copied().chain([own]).collect();
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

impl Started {
    /// So many replicas more are started.
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

    /// So many replicas that were started are not.
    pub(super) fn stop(&mut self, want: &Want, replicas: Replicas) {
        if let Some(pods) = self.0.get_mut(&want.key) {
            pods.replicas = pods.replicas.beyond(replicas);
        }
    }
}
