//! Requests to pin or pause a variant, from their arrival until they are answered.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::collect::cluster::Discovery;
use crate::daemon::sharing::{LeadershipRole, Sharing};
use crate::daemon::ticks::Ticks;
use crate::daemon::ticks::overrides::{
    OverrideBook, OverrideRefusal, OverrideRequest, UnwrittenOrder,
};
use crate::leader::share::LeaderTerm;
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
    pub(super) fn orders(
        &mut self,
        now: Timestamp,
        standing: Option<LeadershipRole>,
        discovery: Option<&Discovery>,
    ) -> BTreeMap<VariantKey, Override> {
        let Self { parts, overrides, unwritten, term, .. } = self;
        if let Some(sharing) = &mut parts.sharing {
            share(overrides, sharing, unwritten, still_leads(*term, standing));
        }

        overrides.in_effect(now, discovery)
    }

    /// Answers the requests whose changes are written by now, and all if this replica no longer
    /// leads.
    pub(super) fn answer_orders(&mut self) {
        let Some(sharing) = &self.parts.sharing else { return };
        let refusal = (!sharing.leads()).then(|| self.follows());
        let written = sharing.written();
        answer(&mut self.unwritten, written, refusal.as_ref());
    }

    fn follows(&self) -> OverrideRefusal {
        OverrideRefusal::Follows { leader: self.parts.published.borrow().decided_by.clone() }
    }
}

/// Returns true if a replica decides in the same term as in its last tick. Before another term,
/// another replica may have written the document.
fn still_leads(term: Option<LeaderTerm>, standing: Option<LeadershipRole>) -> bool {
    term.is_some_and(|term| standing == Some(LeadershipRole::Leads(term)))
}

/// Takes over the saved overrides unless this replica has led since its last tick, and numbers the
/// drafts of the new requests.
///
/// A leader that lost the document for a moment still has requests that it has not answered.
/// They are not among the saved ones, and stay in effect.
fn share(
    overrides: &mut OverrideBook,
    sharing: &mut Sharing,
    unwritten: &mut [UnwrittenOrder],
    led: bool,
) {
    if !led {
        overrides.follow(sharing.memories(), sharing.leads(), unwritten);
    }

    // An earlier draft was decided without the change.
    for order in unwritten.iter_mut().filter(|order| order.draft.is_none()) {
        order.draft = Some(sharing.hurry());
    }
}

/// Answers the requests whose drafts are written, and the others with the refusal, if there is one.
fn answer(unwritten: &mut Vec<UnwrittenOrder>, written: u64, refusal: Option<&OverrideRefusal>) {
    for order in std::mem::take(unwritten) {
        let outcome = match refusal {
            _ if order.draft.is_some_and(|draft| draft <= written) => Ok(()),
            Some(refusal) => Err(refusal.clone()),
            None => {
                unwritten.push(order);
                continue;
            }
        };
        let _asker_may_be_gone = order.done.send(outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_core::observe::Observation;
    use plimsoll_core::observe::overrides::{Order, OverrideSource};
    use plimsoll_core::pipeline::saved::VariantMemory;
    use prometheus::Registry;
    use tokio::sync::oneshot::{self, error::TryRecvError};
    use tokio::sync::watch;

    use super::*;
    use crate::clock::Clock;
    use crate::daemon::sharing::Channels;
    use crate::fixtures;
    use crate::leader::Leadership;
    use crate::leader::share::{DocumentAccess, DocumentPosition, HistoryPosition};
    use crate::publish::state::VariantMemories;
    use crate::publish::{Published, PublishedVariant};
    use crate::telemetry::LeaderMetrics;

    const TERM: LeaderTerm = LeaderTerm(1);

    /// The overrides of a replica that leads to the end of time.
    struct Leader {
        sharing: Sharing,
        access: watch::Sender<DocumentAccess>,
        overrides: OverrideBook,
        unwritten: Vec<UnwrittenOrder>,
        term: Option<LeaderTerm>,
        /// The overrides of the last tick.
        in_effect: BTreeMap<VariantKey, Override>,
    }

    impl Leader {
        /// A leader in the first term.
        fn start() -> Self {
            let lead = Leadership { until: Some(Duration::MAX), holder: None };
            let (_, leadership) = watch::channel(lead);
            let (access, seat) = watch::channel(writer(TERM, 0));
            let (_, sightings) = watch::channel(None);
            let (drafts, _) = watch::channel(None);
            let channels = Channels { leadership, seat, sightings, drafts };
            let metrics = LeaderMetrics::register(&Registry::new()).unwrap();

            Self {
                sharing: Sharing::new(Clock::start(), channels, metrics),
                access,
                overrides: OverrideBook::default(),
                unwritten: Vec::new(),
                term: None,
                in_effect: BTreeMap::new(),
            }
        }

        fn pause(&mut self, name: &str) -> oneshot::Receiver<Result<(), OverrideRefusal>> {
            let variant = fixtures::variant(name).key;
            let until = Timestamp::from_second(100).unwrap();
            let pause = Override { order: Order::Pause, until, by: OverrideSource::Api };
            self.overrides.set(&variant, Some(pause));

            self.sharing.hurry();
            let (done, asker) = oneshot::channel();
            let order = Some(pause);
            self.unwritten.push(UnwrittenOrder { variant, order, draft: None, done });
            asker
        }

        /// Decides this for `a`, and nothing for other variants.
        fn tick(&mut self, desired: u32) {
            let standing = self.sharing.stand();
            let led = still_leads(self.term, Some(standing));
            share(&mut self.overrides, &mut self.sharing, &mut self.unwritten, led);
            self.in_effect = self.overrides.in_effect(Timestamp::UNIX_EPOCH, None);
            self.term = match standing {
                LeadershipRole::Leads(term) => Some(term),
                LeadershipRole::Follows => None,
            };
            self.show(standing, desired);
        }

        /// Looks at the written document between two ticks, with this result of the earlier one.
        fn look_again(&mut self, desired: u32) {
            let standing = self.sharing.stand();
            self.show(standing, desired);
        }

        fn show(&mut self, standing: LeadershipRole, desired: u32) {
            let key = fixtures::variant("a").key;
            let overridden = self.in_effect.get(&key).copied();
            let memory = VariantMemory { overridden, ..VariantMemory::default() };
            let memories = VariantMemories::from([(key, memory)]);
            let _shown = self.sharing.compose(standing, &found(desired), &|| memories.clone());
            answer(&mut self.unwritten, self.sharing.written(), None);
        }

        fn pauses(&self, name: &str) -> bool {
            self.in_effect.contains_key(&fixtures::variant(name).key)
        }
    }

    /// Access in a term, after writing this draft.
    fn writer(term: LeaderTerm, written: u64) -> DocumentAccess {
        let position = DocumentPosition { term, sequence: written };
        let place = HistoryPosition { history: "history".to_owned(), position };
        DocumentAccess::Writer { term, inherited: None, written, place }
    }

    /// The result of a tick that decides on `a`.
    fn found(desired: u32) -> Published {
        let spec = fixtures::variant("a");
        let key = spec.key.clone();
        let variant = PublishedVariant {
            observation: Observation::of_nothing(spec.bounds),
            report: None,
            decided: Some(fixtures::held(&spec, desired)),
            undecided: None,
            spec,
        };
        Published { variants: [(key, variant)].into(), ..Published::default() }
    }

    #[test]
    fn a_request_is_not_answered_by_a_draft_from_before_its_tick() {
        let mut leader = Leader::start();
        leader.tick(1);
        let mut asker = leader.pause("a");

        // Rising desired replicas are written at once.
        leader.look_again(2);
        leader.access.send_replace(writer(TERM, 2));
        leader.look_again(2);
        assert_eq!(asker.try_recv(), Err(TryRecvError::Empty));

        leader.tick(3);
        leader.access.send_replace(writer(TERM, 3));
        leader.look_again(3);
        assert_eq!(asker.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn a_leader_that_claims_the_document_again_keeps_an_unwritten_order() {
        let mut leader = Leader::start();
        leader.tick(1);
        leader.access.send_replace(writer(TERM, 1));
        let mut asker = leader.pause("a");
        leader.tick(2);

        leader.access.send_replace(DocumentAccess::Reader);
        leader.tick(2);
        assert!(leader.pauses("a"));

        let next = LeaderTerm(2);
        leader.access.send_replace(writer(next, 0));
        leader.tick(2);
        assert!(leader.pauses("a"));
        assert_eq!(asker.try_recv(), Err(TryRecvError::Empty));

        leader.access.send_replace(writer(next, 3));
        leader.look_again(2);
        assert_eq!(asker.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn a_leader_that_claims_the_document_again_keeps_an_order_for_a_variant_without_a_decision() {
        let mut leader = Leader::start();
        let mut asker = leader.pause("new");
        leader.tick(1);
        leader.access.send_replace(writer(TERM, 1));
        leader.look_again(1);
        assert_eq!(asker.try_recv(), Ok(Ok(())));

        leader.access.send_replace(DocumentAccess::Reader);
        leader.tick(1);
        assert!(leader.pauses("new"));
    }

    #[test]
    fn a_replica_that_claims_the_document_between_two_ticks_begins_to_lead() {
        let leads = Some(LeadershipRole::Leads(LeaderTerm(2)));
        assert!(still_leads(Some(LeaderTerm(2)), leads));
        assert!(!still_leads(Some(LeaderTerm(1)), leads));
        assert!(!still_leads(None, leads));
        assert!(!still_leads(Some(LeaderTerm(2)), Some(LeadershipRole::Follows)));
    }
}
