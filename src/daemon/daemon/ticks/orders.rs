//! Requests to pin or pause a variant, from their arrival until they are answered.

use crate::daemon::sharing::Sharing;
use crate::daemon::ticks::Ticks;
use crate::daemon::ticks::overrides::{OverrideRefusal, OverrideRequest, UnwrittenOrder};

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
