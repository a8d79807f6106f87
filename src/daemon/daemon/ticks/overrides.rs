//! The pins and pauses in effect: those of annotations, and those of the API.
//!
//! Those of the API are nowhere but here and in the saved memories. The leader keeps them, and the
//! other replicas take them from its memories with every tick.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::info;

use crate::collect::cluster::Discovery;
use crate::publish::state::SavedDecision;
use crate::publish::state::shared::SharedMemories;
use plimsoll_core::fleet::{Fleet, VariantKey};
use plimsoll_core::observe::overrides::{Order, Override};

/// A request to set or to end the override of a variant.
pub(crate) struct OverrideRequest {
    pub(crate) variant: VariantKey,
    /// The override; `None` to end the one in effect.
    pub(crate) order: Option<Override>,
    pub(crate) done: oneshot::Sender<Result<(), OverrideRefusal>>,
}

/// A request whose change is in effect, and not yet written for the next leader.
pub(super) struct UnwrittenOrder {
    pub(super) variant: VariantKey,
    /// The override; `None` to end the one in effect.
    pub(super) order: Option<Override>,
    /// The number of the first draft that can contain the change; `None` before the next tick.
    pub(super) draft: Option<u64>,
    pub(super) done: oneshot::Sender<Result<(), OverrideRefusal>>,
}

/// The reason why an override is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OverrideRefusal {
    #[error("there is no variant {0}; /api/v1/decisions lists all variants")]
    Unknown(VariantKey),
    #[error("{} decides for this replica of Plimsoll; send the request to it", leader.as_deref().unwrap_or("no replica"))]
    Follows { leader: Option<String> },
    #[error("{variant} has no pin or pause from the API; change the annotation on its object")]
    Nothing { variant: VariantKey },
}

/// The overrides of the API.
#[derive(Debug, Default)]
pub(super) struct OverrideBook {
    given: BTreeMap<VariantKey, Override>,
}

// === impl OverrideBook ===

impl OverrideBook {
    /// Sets or ends the override of a variant of this fleet.
    pub(super) fn apply(
        &mut self,
        variant: &VariantKey,
        order: Option<Override>,
        fleet: &Fleet,
    ) -> Result<(), OverrideRefusal> {
        if fleet.get(variant).is_none() {
            return Err(OverrideRefusal::Unknown(variant.clone()));
        }

        let Some(given) = order else {
            if !self.given.contains_key(variant) {
                return Err(OverrideRefusal::Nothing { variant: variant.clone() });
            }
            info!(%variant, "An override was ended");
            self.set(variant, None);
            return Ok(());
        };

        let Override { order, until, .. } = given;
        let kind = order.label();
        let replicas = match order {
            Order::Pin(replicas) => Some(replicas.count()),
            Order::Pause => None,
        };
        info!(%variant, kind, replicas, %until, "An override was set");
        self.set(variant, Some(given));

        Ok(())
    }

    pub(super) fn set(&mut self, variant: &VariantKey, order: Option<Override>) {
        match order {
            Some(given) => {
                self.given.insert(variant.clone(), given);
            }
            None => {
                self.given.remove(variant);
            }
        }
    }

    /// Takes over the overrides from before a restart.
    pub(super) fn restore(&mut self, saved: &[SavedDecision]) {
        for SavedDecision { variant, memory, .. } in saved {
            if let Some(given) = memory.as_ref().and_then(|memory| memory.overridden) {
                self.given.insert(variant.clone(), given);
            }
        }
    }

    /// Takes over the overrides of the replica that decides. A replica that leads also keeps those
    /// that the memories cannot contain, and its unwritten orders.
    pub(super) fn follow(
        &mut self,
        memories: &SharedMemories,
        leads: bool,
        unwritten: &[UnwrittenOrder],
    ) {
        // The document may have no room for the memory of a variant.
        self.given.retain(|variant, _| leads && !memories.contains_key(variant));
        for (variant, (_, memory)) in memories {
            if let Some(given) = memory.overridden {
                self.given.insert(variant.clone(), given);
            }
        }

        if leads {
            for UnwrittenOrder { variant, order, .. } in unwritten {
                self.set(variant, *order);
            }
        }
    }

    /// The overrides that are in effect. That of the API replaces an annotation.
    pub(super) fn in_effect(
        &mut self,
        now: Timestamp,
        discovery: Option<&Discovery>,
    ) -> BTreeMap<VariantKey, Override> {
        self.given.retain(|_, given| now < given.until);

        let mut orders = BTreeMap::new();
        for (key, variant) in discovery.into_iter().flat_map(|it| &it.variants) {
            orders.extend(variant.overridden.map(|order| (key.clone(), order)));
        }
        orders.extend(self.given.iter().map(|(key, given)| (key.clone(), *given)));
        orders.retain(|_, order| order.is_in_effect(now));
        orders
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::observe::overrides::OverrideSource;
    use plimsoll_core::pipeline::saved::VariantMemory;

    use super::*;
    use crate::fixtures;

    #[test]
    fn what_is_not_written_yet_outlives_the_saved_overrides() {
        let a = fixtures::variant("a").key;
        let b = fixtures::variant("b").key;
        let until = Timestamp::from_second(100).unwrap();
        let pause = Override { order: Order::Pause, until, by: OverrideSource::Api };
        let unwritten = [(&a, Some(pause)), (&b, Some(pause)), (&b, None)].map(|(key, order)| {
            let (done, _asker) = oneshot::channel();
            UnwrittenOrder { variant: key.clone(), order, draft: Some(7), done }
        });

        let mut book = OverrideBook::default();
        book.follow(&SharedMemories::new(), true, &unwritten);
        let kept = book.in_effect(Timestamp::UNIX_EPOCH, None);
        assert_eq!(kept, BTreeMap::from([(a, pause)]));

        book.follow(&SharedMemories::new(), false, &unwritten);
        assert!(book.in_effect(Timestamp::UNIX_EPOCH, None).is_empty());
    }

    #[test]
    fn a_leader_keeps_the_overrides_that_the_document_cannot_contain() {
        let spec = fixtures::variant("a");
        let until = Timestamp::from_second(100).unwrap();
        let pause = Override { order: Order::Pause, until, by: OverrideSource::Api };
        let mut book = OverrideBook::default();
        book.set(&spec.key, Some(pause));

        let undecided = SharedMemories::new();
        book.follow(&undecided, true, &[]);
        assert_eq!(book.in_effect(Timestamp::UNIX_EPOCH, None).len(), 1);

        let memory = (spec.model_key(), VariantMemory::default());
        let ended = SharedMemories::from([(spec.key.clone(), memory)]);
        book.follow(&ended, true, &[]);
        assert!(book.in_effect(Timestamp::UNIX_EPOCH, None).is_empty());
    }
}
