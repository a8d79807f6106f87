//! Rollouts: engines that are started with other arguments than those that taught.
//!
//! A pod template is read before its first replica serves, so replicas of both kinds run side by side
//! for a while. Scrapes do not tell a replica's arguments. Its name does: a replica that was there when
//! the arguments changed has the former ones.
//!
//! - Until a replica of the new kind teaches, the former ones go on teaching. What they taught holds
//!   for every replica that serves.
//! - With its first lesson, learning starts over, and the former ones teach no more.
//! - Arguments that cannot be read are no change, and those that come back end the rollout.
//!
//! A replica that did not report in the very second of the change is taken for a new one. It then
//! starts learning over too early, from lessons that are right for the replicas that serve. A new image
//! with the same arguments is no rollout: if it is slower or faster,
//! [`change`](crate::analyze::foresight::change) detects it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::analyze::engine_args::EngineArguments;
use crate::fleet::ReplicaKey;

/// The arguments of a variant's engines, and the replicas that were started with others.
#[derive(Clone, Debug, Default)]
pub(super) struct Rollout {
    /// Those of the engines that taught; `None` while they were never read.
    taught_by: Option<Arc<EngineArguments>>,
    /// Those of new replicas, while none of them has taught.
    next: Option<Arc<EngineArguments>>,
    /// Replicas that were there when the arguments changed.
    former: BTreeSet<ReplicaKey>,
}

// === impl Rollout ===

impl Rollout {
    /// The arguments of the engines that taught.
    pub(super) const fn taught_by(&self) -> Option<&Arc<EngineArguments>> {
        self.taught_by.as_ref()
    }

    /// Takes in the arguments of new replicas, and the replicas that are there.
    pub(super) fn take<'a>(
        &mut self,
        arguments: Option<&Arc<EngineArguments>>,
        replicas: impl Iterator<Item = &'a ReplicaKey>,
    ) {
        let Some(arguments) = arguments else { return };
        if self.taught_by.is_none() || self.taught_by.as_ref() == Some(arguments) {
            self.taught_by = Some(Arc::clone(arguments));
            if self.next.take().is_some() {
                self.former.clear();
            }
        } else if self.next.as_ref() != Some(arguments) {
            self.next = Some(Arc::clone(arguments));
            self.former = replicas.cloned().collect();
        }
    }

    /// Whether a replica has former arguments and teaches no more.
    pub(super) fn is_over_for(&self, replica: &ReplicaKey) -> bool {
        self.next.is_none() && self.former.contains(replica)
    }

    /// Whether learning starts over with the first lesson of this replica.
    pub(super) fn starts_over_with(&mut self, replica: &ReplicaKey) -> bool {
        if self.former.contains(replica) {
            return false;
        }
        let Some(next) = self.next.take() else { return false };
        self.taught_by = Some(next);
        true
    }
}
