//! Requests to pin or pause a variant, from their arrival until they are answered.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::collect::cluster::Discovery;
use crate::daemon::sharing::{LeadershipRole, Sharing};
use crate::daemon::ticks::Ticks;
use crate::daemon::ticks::overrides::{OverrideRefusal, OverrideRequest, UnwrittenOrder};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::overrides::Override;

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
                // The draft of the next tick is the first that can contain the change.
                sharing.hurry();
                self.unwritten.push(UnwrittenOrder { variant, order, draft: None, done });
            }
            (_, outcome) => {
                self.kept.hurry();
                let _asker_may_be_gone = done.send(outcome);
            }
        }
    }

    /// The pins and pauses in effect. A replica that has not decided before takes over those that the
    /// leader saved.
    ///
    /// A leader that lost the document for a moment still has requests that it has not answered.
    /// They are not among the saved ones, and stay in effect.
    pub(super) fn orders(
        &mut self,
        now: Timestamp,
        standing: Option<LeadershipRole>,
        discovery: Option<&Discovery>,
    ) -> BTreeMap<VariantKey, Override> {
        let Self { parts, overrides, unwritten, term, .. } = self;
        let led = term.is_some() && standing != Some(LeadershipRole::Follows);

        if let Some(sharing) = &mut parts.sharing {
            if !led {
                let kept: &[UnwrittenOrder] =
                    if sharing.leads() { unwritten.as_slice() } else { &[] };
                overrides.follow(sharing.memories(), kept);
            }
            // An earlier draft was decided without the change.
            for order in unwritten.iter_mut().filter(|order| order.draft.is_none()) {
                order.draft = Some(sharing.hurry());
            }
        }

        overrides.in_effect(now, discovery)
    }

    /// Answers the requests whose changes are written by now, and all if this replica no longer
    /// leads.
    pub(super) fn answer_orders(&mut self) {
        let Some(sharing) = &self.parts.sharing else { return };
        let refusal = (!sharing.leads()).then(|| self.follows());
        let written = sharing.written();

        for order in std::mem::take(&mut self.unwritten) {
            let outcome = match &refusal {
                _ if order.draft.is_some_and(|draft| draft <= written) => Ok(()),
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
