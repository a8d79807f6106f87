//! Rollouts: engines whose arguments differ from those of the engines that were learned from.
//!
//! A pod template is read before its first replica serves, so replicas of both kinds run side by
//! side for a while. Scrapes do not show a replica's arguments, but its name does: a replica that
//! existed when the arguments changed has the former arguments.
//! - Until the first lesson of a new replica, lessons of former replicas still count. Their
//!   coefficients apply to every replica that serves.
//! - With that lesson, learning starts over, and lessons of former replicas no longer count.
//! - Unreadable arguments are not a change. If the former arguments return, the rollout ends.
//!
//! A replica that did not report in the very second of the change counts as new. Then learning
//! starts over too early, with lessons that are right for the replicas that serve. A new image with
//! the same arguments is not a rollout: if it is slower or faster,
//! [`change`](crate::analyze::foresight::change) detects it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::analyze::engine_args::EngineArguments;
use crate::fleet::ReplicaKey;

/// The arguments of a variant's engines, and the replicas that were started with former ones.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineRollout {
    /// Arguments of the engines that were learned from; `None` while they were never read.
    taught_by: Option<Arc<EngineArguments>>,
    /// Arguments of new replicas, until the first lesson from one of them.
    next: Option<Arc<EngineArguments>>,
    /// Replicas that existed when the arguments changed.
    former: BTreeSet<ReplicaKey>,
}

// === impl EngineRollout ===

impl EngineRollout {
    /// The arguments of the engines that were learned from.
    pub(super) const fn taught_by(&self) -> Option<&Arc<EngineArguments>> {
        self.taught_by.as_ref()
    }

    /// Takes in the arguments of new replicas, and the replicas that exist.
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

    /// Returns true if a replica has former arguments and its lessons no longer count.
    pub(super) fn is_over_for(&self, replica: &ReplicaKey) -> bool {
        self.next.is_none() && self.former.contains(replica)
    }

    /// Returns true if learning starts over with the first lesson of this replica.
    pub(super) fn starts_over_with(&mut self, replica: &ReplicaKey) -> bool {
        if self.former.contains(replica) {
            return false;
        }

        let Some(next) = self.next.take() else { return false };
        self.taught_by = Some(next);
        true
    }
}
