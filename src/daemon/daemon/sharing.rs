//! The state that the replicas of Plimsoll share: one replica decides, and all publish its
//! decisions.
//!
//! New desired replicas are published only after they are written to the object that every replica
//! watches. The next leader therefore starts from them. No reader gets newer desired replicas from
//! one replica and older ones from its successor. Unchanged desired replicas are published with
//! their new ages and reasons at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;
use tracing::{error, info};

use crate::clock::Clock;
use crate::collect::cluster::DocumentVersion;
use crate::leader::Leadership;
use crate::leader::share::{
    BODY_MAX, DocumentAccess, DocumentDraft, EMPTY, HistoryPosition, LeaderDocument, LeaderTerm,
};
use crate::publish::state::shared::{
    self, DocumentArrival, DocumentReceipt, SharedDecisions, SharedMemories,
};
use crate::publish::state::{RESTORE_MAX, VariantMemories};
use crate::publish::{Published, PublishedDecision};
use plimsoll_core::decide::{NoData, NoDecision};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::DesiredReplicas;
use plimsoll_core::units::Replicas;

/// The interval at which unchanged decisions are written, so that their ages stay correct. It is
/// well below the 45 s after which a decision is no longer fresh.
const REFRESH: Duration = Duration::from_secs(10);

/// The maximum drafts that are remembered while they wait to be written. Only the latest draft is
/// written, so many accumulate only if the API server answers some writes and loses others.
const SENT_MAX: usize = 16;

/// The role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadershipRole {
    /// It decides, in this term.
    Leads(LeaderTerm),
    /// It publishes the leader's decisions.
    Follows,
}

/// The inputs and outputs of sharing.
pub(crate) struct Channels {
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) seat: watch::Receiver<DocumentAccess>,
    pub(crate) sightings: watch::Receiver<Option<DocumentVersion>>,
    pub(crate) drafts: watch::Sender<Option<DocumentDraft>>,
}

/// The shared state from one replica's view.
pub(crate) struct Sharing {
    clock: Clock,
    channels: Channels,
    /// The decisions that are written to the shared object.
    committed: BTreeMap<VariantKey, PublishedDecision>,
    /// The memories of the replica that wrote them.
    memories: SharedMemories,
    /// The names of the fields that only the writer's release knows.
    strange: BTreeSet<String>,
    generation: u64,
    decided_by: Option<String>,
    /// The place of the document that this state is from.
    place: Option<HistoryPosition>,
    /// The body that was adopted last. The next leader repeats it when it claims the document.
    body: Option<Arc<str>>,
    /// The decided variants that are missing from this replica's fleet, and since when.
    absent: BTreeMap<VariantKey, Duration>,
    /// The drafts that are not written yet, oldest first.
    sent: VecDeque<SentDecisions>,
    drafts: u64,
    sent_at: Option<Duration>,
    /// The term in which this replica has taken over the document.
    term: Option<LeaderTerm>,
    /// True while a logged failure persists.
    troubled: bool,
}

struct SentDecisions {
    number: u64,
    decided: BTreeMap<VariantKey, PublishedDecision>,
    body: Arc<str>,
}

impl Sharing {
    pub(crate) fn new(clock: Clock, channels: Channels) -> Self {
        Self {
            clock,
            channels,
            committed: BTreeMap::new(),
            memories: SharedMemories::new(),
            strange: BTreeSet::new(),
            generation: 0,
            decided_by: None,
            place: None,
            body: None,
            absent: BTreeMap::new(),
            sent: VecDeque::new(),
            drafts: 0,
            sent_at: None,
            term: None,
            troubled: false,
        }
    }

    /// Waits until there is new shared state.
    pub(crate) async fn changed(&mut self) {
        let Channels { leadership: _, seat, sightings, drafts: _ } = &mut self.channels;
        let ended = tokio::select! {
            changed = seat.changed() => changed.is_err(),
            changed = sightings.changed() => changed.is_err(),
        };

        if ended {
            // The sender has ended, so no change can follow.
            std::future::pending::<()>().await;
        }
    }

    /// Processes the written documents, of this and other replicas, and returns this replica's
    /// role.
    pub(crate) fn stand(&mut self) -> LeadershipRole {
        let leads = self.channels.leadership.borrow().leads(self.clock.elapsed());
        let seat = self.channels.seat.borrow_and_update().clone();
        let standing = match seat {
            DocumentAccess::Writer { term, inherited, written, place } => {
                if self.term != Some(term) {
                    self.term = Some(term);
                    self.sent.clear();
                    self.sent_at = None;
                    if let Some(document) = inherited {
                        self.adopt(&document, DocumentArrival::Late, self.clock.elapsed());
                    }

                    self.place = Some(place.clone());
                }

                // Written decisions are in effect, even if this replica has lost the lead since.
                while let Some(sent) = self.sent.pop_front_if(|sent| sent.number <= written) {
                    self.committed = sent.decided;
                    self.strange.clear();
                    self.body = Some(sent.body);
                    self.place = Some(place.clone());
                }

                if leads { LeadershipRole::Leads(term) } else { LeadershipRole::Follows }
            }
            DocumentAccess::Reader => {
                self.term = None;
                self.sent_at = None;
                self.sent.clear();
                LeadershipRole::Follows
            }
        };

        let sighting = self.channels.sightings.borrow_and_update().clone();
        if let Some(sighting) = sighting {
            self.see(&sighting);
        }

        standing
    }

    fn see(&mut self, sighting: &DocumentVersion) {
        let document = match LeaderDocument::read(&sighting.object) {
            Ok(read) => read,
            Err(problem) => return self.say(&problem),
        };
        let arrival = if sighting.prompt { DocumentArrival::Prompt } else { DocumentArrival::Late };
        self.adopt(&document, arrival, sighting.elapsed);
    }

    /// Adopts a document, unless this replica has already adopted it or a later one.
    fn adopt(&mut self, document: &LeaderDocument, arrival: DocumentArrival, elapsed: Duration) {
        let LeaderDocument { place, holder, body } = document;
        let known = self.place.as_ref().filter(|it| it.history == place.history);
        if known.is_some_and(|known| known.position >= place.position) {
            return;
        }

        // A leader without an earlier document has claimed it and not decided yet.
        if &**body == EMPTY {
            self.place = Some(place.clone());
            return;
        }

        // A claim repeats the earlier content, so its content is not newer.
        if self.body.as_ref() == Some(body) {
            self.place = Some(place.clone());
            return;
        }

        let now = self.clock.now();
        let SharedDecisions { generation, lain, mut decided, memories, strange } =
            match shared::decode(body, DocumentReceipt { elapsed, now, arrival, holder }) {
                Ok(read) => read,
                Err(problem) => return self.say(&problem),
            };
        self.recovered();
        if self.strange != strange {
            if !strange.is_empty() {
                info!(?strange, "The leader reports values that this release does not know");
            }
            self.strange = strange;
        }

        self.place = Some(place.clone());
        self.body = Some(Arc::clone(body));
        if self.committed.is_empty() && !within_memory(lain) {
            decided.clear();
        }

        let leads = self.channels.leadership.borrow().leads(elapsed);
        if self.decided_by.as_ref() != Some(holder) && !leads {
            info!(holder, variants = decided.len(), "Showing the decisions of the leader");
        }

        self.decided_by = Some(holder.clone());
        self.generation = self.generation.max(generation);
        self.committed = decided;
        self.memories = memories;
    }

    /// The memories of the deciding replica, by variant.
    pub(crate) fn memories(&self) -> &SharedMemories {
        &self.memories
    }

    /// The names of the fields in the adopted document that this release does not know.
    pub(crate) fn strange(&self) -> &BTreeSet<String> {
        &self.strange
    }

    /// The desired replicas in effect, for a pipeline that follows.
    pub(crate) fn numbers(&self) -> BTreeMap<VariantKey, DesiredReplicas> {
        self.committed.iter().map(|(key, decided)| (key.clone(), number(decided))).collect()
    }

    /// Returns the part of a tick's result that may be published; requests writing the rest.
    pub(crate) fn compose(
        &mut self,
        standing: LeadershipRole,
        found: &Published,
        memories: &dyn Fn() -> VariantMemories,
    ) -> Published {
        let mut shown = found.clone();
        match standing {
            LeadershipRole::Leads(term) => {
                self.offer(term, found, memories);
                self.decided_by = self.channels.leadership.borrow().holder.clone();
                self.generation = self.generation.max(found.generation);
                self.keep_back(&mut shown);
            }
            LeadershipRole::Follows => {
                shown.generation = self.generation;
                for (key, variant) in &mut shown.variants {
                    variant.decided = self.committed.get(key).cloned();
                    variant.undecided = variant.decided.is_none().then_some(NOT_SHARED);
                }
            }
        }

        shown.decided_by.clone_from(&self.decided_by);
        shown
    }

    /// Replaces a leader's decisions by the written ones until their desired replicas are written.
    fn keep_back(&mut self, shown: &mut Published) {
        for (key, variant) in &mut shown.variants {
            let Some(new) = &variant.decided else {
                if let Some(known) = self.committed.get(key) {
                    variant.decided = Some(known.clone());
                    variant.undecided = None;
                }
                continue;
            };

            match self.committed.get_mut(key) {
                Some(known) if desired(new) == desired(known) => known.clone_from(new),
                Some(known) => variant.decided = Some(known.clone()),
                None => {
                    variant.decided = None;
                    variant.undecided = Some(NOT_SHARED);
                }
            }
        }
    }

    /// Requests writing the decisions when desired replicas have changed, and at a fixed interval.
    fn offer(
        &mut self,
        term: LeaderTerm,
        found: &Published,
        memories: &dyn Fn() -> VariantMemories,
    ) {
        let variants = found.variants.iter();
        let mut decided: BTreeMap<VariantKey, PublishedDecision> =
            variants.filter_map(|(key, it)| Some((key.clone(), it.decided.clone()?))).collect();
        let elapsed = self.clock.elapsed();
        self.carry(elapsed, found, &mut decided);

        let due = self.sent_at.is_none_or(|at| elapsed.saturating_sub(at) >= REFRESH);
        let latest = self.sent.back().map_or(&self.committed, |sent| &sent.decided);
        if !due && same_numbers(latest, &decided) {
            return;
        }

        let now = self.clock.now();
        let generation = found.generation;
        let memories = memories();
        let remembered = decided.iter().map(|(key, decided)| {
            let known = memories.get(key);
            (decided, known.or_else(|| self.memories.get(key).map(|(_, memory)| memory)))
        });

        let encoded = shared::encode(now, elapsed, generation, remembered, BODY_MAX);
        let body: Arc<str> = match encoded {
            Ok(text) => text.into(),
            Err(problem) => return self.say(&problem),
        };

        self.recovered();
        self.drafts += 1;
        self.sent_at = Some(elapsed);
        let draft = DocumentDraft { number: self.drafts, term, body: Arc::clone(&body) };
        self.channels.drafts.send_replace(Some(draft));
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }

        self.sent.push_back(SentDecisions { number: self.drafts, decided, body });
    }

    /// Keeps the desired replicas of variants that this replica does not know or cannot decide on.
    /// Another replica has decided on them, and a list of variants can arrive late.
    fn carry(
        &mut self,
        elapsed: Duration,
        found: &Published,
        decided: &mut BTreeMap<VariantKey, PublishedDecision>,
    ) {
        let Self { committed, absent, .. } = self;
        absent.retain(|key, _| committed.contains_key(key) && !found.variants.contains_key(key));

        for (key, known) in committed {
            let is_carried = found.variants.contains_key(key) || {
                let since = *absent.entry(key.clone()).or_insert(elapsed);
                within_memory(elapsed.saturating_sub(since))
            };
            if is_carried {
                decided.entry(key.clone()).or_insert_with(|| known.clone());
            }
        }
    }

    fn say(&mut self, problem: &(dyn std::error::Error + 'static)) {
        if !std::mem::replace(&mut self.troubled, true) {
            let source = problem.source().map(ToString::to_string);
            error!(error = %problem, source, "The decisions cannot be shared; no number changes");
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.troubled) {
            info!("The decisions can be shared again");
        }
    }
}

const NOT_SHARED: NoDecision = NoDecision(NoData::NotShared);

/// Returns true if decisions that were last in effect this long ago are adopted. After a longer
/// absence, a person who has scaled by hand knows better. The age of the data behind the decisions
/// does not matter: held desired replicas are in effect.
fn within_memory(absence: Duration) -> bool {
    SignedDuration::try_from(absence).is_ok_and(|absence| absence <= RESTORE_MAX)
}

fn desired(decided: &PublishedDecision) -> Replicas {
    decided.decision.desired()
}

fn number(decided: &PublishedDecision) -> DesiredReplicas {
    DesiredReplicas { desired: desired(decided), inputs_at: decided.decision.inputs_at }
}

fn same_numbers(
    a: &BTreeMap<VariantKey, PublishedDecision>,
    b: &BTreeMap<VariantKey, PublishedDecision>,
) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((a, one), (b, other))| a == b && desired(one) == desired(other))
}
