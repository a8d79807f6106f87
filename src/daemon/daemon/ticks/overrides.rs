//! The pins and pauses in effect: those of annotations, and those of the API.
//!
//! Those of the API are nowhere but here and in the saved memories. The leader keeps them, and the
//! other replicas take them from its memories with every tick.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::info;

use crate::collect::cluster::Discovery;
use crate::daemon::sharing::Sharing;
use crate::daemon::ticks::Ticks;
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
    /// The number of the draft that contains the change.
    pub(super) draft: u64,
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

// === impl Ticks ===

impl Ticks {
    /// Sets or ends a pin or a pause. Only the replica that decides can. If replicas share their
    /// decisions, the answer waits until the change is written for the next leader.
    pub(super) fn order(&mut self, request: OverrideRequest) {
        let OverrideRequest { variant, order, done } = request;
        let leads = self.parts.sharing.as_ref().is_none_or(Sharing::leads);
        let decides = self.parts.sharing.is_none() || self.term.is_some();
        let outcome = if leads && decides {
            self.overrides.apply(&variant, order, self.directory.fleet())
        } else {
            Err(self.follows())
        };

        match (&mut self.parts.sharing, outcome) {
            (Some(sharing), Ok(())) => {
                self.unwritten.push(UnwrittenOrder { draft: sharing.hurry(), done });
            }
            (_, outcome) => {
                self.kept.hurry();
                let _asker_may_be_gone = done.send(outcome);
            }
        }
    }

    /// Answers the requests whose changes are written by now, and all if this replica no longer
    /// leads.
    pub(super) fn answer_orders(&mut self) {
        let Some(sharing) = &self.parts.sharing else { return };
        let refusal = (!sharing.leads()).then(|| self.follows());
        let written = sharing.written();

        for order in std::mem::take(&mut self.unwritten) {
            let outcome = match &refusal {
                _ if order.draft <= written => Ok(()),
                Some(refusal) => Err(refusal.clone()),
                None => {
                    self.unwritten.push(order);
                    continue;
                }
            };
            let _asker_may_be_gone = order.done.send(outcome);
        }
    }

    fn follows(&self) -> OverrideRefusal {
        OverrideRefusal::Follows { leader: self.parts.published.borrow().decided_by.clone() }
    }
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
            if self.given.remove(variant).is_none() {
                return Err(OverrideRefusal::Nothing { variant: variant.clone() });
            }
            info!(%variant, "An override was ended");
            return Ok(());
        };

        let Override { order, until, .. } = given;
        let kind = order.label();
        let replicas = match order {
            Order::Pin(replicas) => Some(replicas.count()),
            Order::Pause => None,
        };
        info!(%variant, kind, replicas, %until, "An override was set");
        self.given.insert(variant.clone(), given);

        Ok(())
    }

    /// Takes over the overrides from before a restart.
    pub(super) fn restore(&mut self, saved: &[SavedDecision]) {
        for SavedDecision { variant, memory, .. } in saved {
            if let Some(given) = memory.as_ref().and_then(|memory| memory.overridden) {
                self.given.insert(variant.clone(), given);
            }
        }
    }

    /// Takes over the overrides of the replica that decides.
    pub(super) fn follow(&mut self, memories: &SharedMemories) {
        self.given.clear();
        for (variant, (_, memory)) in memories {
            if let Some(given) = memory.overridden {
                self.given.insert(variant.clone(), given);
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
