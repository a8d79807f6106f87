//! The difference between the desired replicas of two drafts, and the time between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::publish::PublishedDecision;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::units::Replicas;

/// The interval at which unchanged decisions are written, so that their ages stay correct. It is
/// well below the 45 s after which a decision is no longer fresh.
const REFRESH: Duration = Duration::from_secs(10);

/// The shortest time between two drafts if no desired replicas have risen. In a large fleet some
/// number changes in every tick, and each draft goes through the store of the whole cluster.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// The difference between two sets of desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NumberChange {
    /// There is none.
    Unchanged,
    /// Some fall or end.
    Falling,
    /// Some rise or are new.
    Rising,
}

/// Compares the desired replicas of two sets. Variants that found no room in the last draft count
/// only in the next one.
pub(super) fn change(
    before: &BTreeMap<VariantKey, PublishedDecision>,
    after: &BTreeMap<VariantKey, PublishedDecision>,
    left_out: &BTreeSet<VariantKey>,
) -> NumberChange {
    let mut change = NumberChange::Unchanged;
    for (key, new) in after.iter().filter(|(key, _)| !left_out.contains(*key)) {
        let known = before.get(key).map(desired);
        change = change.max(match known {
            Some(known) if known == desired(new) => NumberChange::Unchanged,
            Some(known) if known > desired(new) => NumberChange::Falling,
            Some(_) | None => NumberChange::Rising,
        });
    }

    let ended = before.keys().any(|key| !after.contains_key(key));
    if ended { change.max(NumberChange::Falling) } else { change }
}

/// The desired replicas of a decision.
pub(super) fn desired(decided: &PublishedDecision) -> Replicas {
    decided.decision.desired()
}

// === impl NumberChange ===

impl NumberChange {
    /// The time between two drafts with this change.
    pub(super) const fn pause(self) -> Duration {
        match self {
            Self::Unchanged => REFRESH,
            Self::Falling => PAUSE,
            Self::Rising => Duration::ZERO,
        }
    }
}
