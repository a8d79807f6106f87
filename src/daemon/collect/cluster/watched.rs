//! The objects of one watch, and how far they can be trusted.
//!
//! If a watch breaks, its objects are kept, because losing sight of the cluster does not change it.
//! Only the time of the watch stops. The exception is a kind that not every cluster has: when it is
//! uninstalled, its objects are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::collect::cluster::follow::{ObjectName, WatchChange, WatchFailure};
use plimsoll_core::observe::WhyScaleUnknown;

/// An instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    /// Wall-clock time, which `as_of` uses.
    pub(crate) wall: Timestamp,
    /// Monotonic time, which measures how long a watch has reported nothing.
    pub(crate) elapsed: Duration,
}

/// The health of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchHealth {
    /// It is starting, resuming or starting over.
    Waiting,
    /// It is connected.
    Live,
    /// It failed, and is being retried.
    Broken(WatchFailure),
}

/// The objects of one watch, by name.
#[derive(Clone, Debug)]
pub(crate) struct WatchedObjects<T> {
    pub(super) items: BTreeMap<ObjectName, T>,
    pub(crate) health: WatchHealth,
    /// True once the objects are listed, until the cluster no longer has their kind.
    pub(super) synced: bool,
    /// True once the API server has listed the objects, or has answered that it cannot.
    pub(super) answered: bool,
    heard: Duration,
    pub(super) true_at: Option<Timestamp>,
}

// === impl WatchedObjects ===

impl<T> Default for WatchedObjects<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            health: WatchHealth::Waiting,
            synced: false,
            answered: false,
            heard: Duration::ZERO,
            true_at: None,
        }
    }
}

impl<T> WatchedObjects<T> {
    pub(crate) fn absorb(&mut self, now: ClockReading, change: WatchChange<T>) {
        match change {
            WatchChange::Synced(items) => {
                self.items = items;
                self.synced = true;
                self.answered = true;
            }
            WatchChange::Applied(name, item) => {
                self.items.insert(name, item);
            }
            WatchChange::Deleted(name) => {
                self.items.remove(&name);
            }
            WatchChange::Alive => {}
            WatchChange::Resuming => {
                self.health = WatchHealth::Waiting;
                return;
            }
            WatchChange::Broken(failure) => {
                self.answered |= !matches!(failure, WatchFailure::Away(_));
                self.health = WatchHealth::Broken(failure);
                return;
            }
        }

        self.health = WatchHealth::Live;
        self.heard = now.elapsed;
        self.true_at = Some(now.wall);
    }

    /// Advances time. The state of a connected watch stays true, unless the watch has reported
    /// nothing for longer than a healthy one can.
    pub(crate) fn age(&mut self, now: ClockReading, quiet: Duration) {
        if self.health == WatchHealth::Live && now.elapsed.saturating_sub(self.heard) <= quiet {
            self.true_at = Some(now.wall);
        }
    }

    /// Forgets the objects of a kind that the cluster no longer has. Until they are listed again,
    /// this is the state of a kind that the cluster never had.
    pub(super) fn forget_absent(&mut self) {
        if matches!(self.health, WatchHealth::Broken(WatchFailure::Absent(_))) {
            self.items.clear();
            self.synced = false;
        }
    }

    /// Returns the object with this name.
    pub(crate) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.items.get(name)
    }

    /// Returns all objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&ObjectName, &T)> {
        self.items.iter()
    }

    /// Returns true once the API server has listed the objects, or has answered that it cannot.
    pub(crate) const fn is_answered(&self) -> bool {
        self.answered
    }

    /// The last instant at which all of this was known to be true; `None` before the first list.
    pub(crate) fn known(&self) -> Option<Timestamp> {
        self.true_at.filter(|_| self.synced)
    }

    /// Returns true if it is known that no object has this name.
    pub(super) fn lacks(&self, name: &ObjectName) -> bool {
        self.synced && !self.items.contains_key(name)
    }

    /// The reason why these objects are unknown, if so.
    pub(super) fn unknown(&self) -> Option<WhyScaleUnknown> {
        match &self.health {
            WatchHealth::Broken(WatchFailure::Forbidden(_)) => Some(WhyScaleUnknown::Forbidden),
            WatchHealth::Broken(WatchFailure::Absent(_)) => Some(WhyScaleUnknown::NoSuchTarget),
            WatchHealth::Broken(WatchFailure::Away(_))
            | WatchHealth::Waiting
            | WatchHealth::Live => (!self.synced).then_some(WhyScaleUnknown::NotListed),
        }
    }
}
