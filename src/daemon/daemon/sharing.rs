//! What the replicas of this daemon share: one decides, and all show what it has decided.
//!
//! A number is shown only once it is written where every replica sees it. So whoever leads next
//! begins with it, and no reader gets a newer number from one replica and an older one from
//! another that has taken over since. Numbers that stay the same are shown with their new ages and
//! reasons at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;
use tracing::{error, info};

use crate::clock::Clock;
use crate::collect::cluster::Sighting;
use crate::leader::Leadership;
use crate::leader::share::{BODY_MAX, Document, Draft, EMPTY, Place, Seat, Term};
use crate::publish::state::shared::{self, Arrival, Receipt, Shared, SharedMemories};
use crate::publish::state::{Memories, RESTORE_MAX};
use crate::publish::{Decided, Published};
use plimsoll_core::decide::{NoData, Undecided};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::Number;
use plimsoll_core::units::Replicas;

/// How often the decisions are written though no number has changed, so that their ages stay true.
/// It is well below the 45 s from which a decision is no longer fresh.
const REFRESH: Duration = Duration::from_secs(10);

/// Drafts that are remembered while they wait to be written. Only the latest is written, so it
/// takes an API server that answers some and forgets others to have many.
const SENT_MAX: usize = 16;

/// What a replica may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It decides, in this term.
    Leads(Term),
    /// It shows what the leader has decided.
    Follows,
}

/// Where what is shared comes from and goes to.
pub(crate) struct Channels {
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) seat: watch::Receiver<Seat>,
    pub(crate) sightings: watch::Receiver<Option<Sighting>>,
    pub(crate) drafts: watch::Sender<Option<Draft>>,
}

/// A replica's part.
pub(crate) struct Sharing {
    clock: Clock,
    channels: Channels,
    /// What is written where every replica sees it.
    committed: BTreeMap<VariantKey, Decided>,
    /// What whoever wrote it remembers.
    memories: SharedMemories,
    /// What only its release knows, by name.
    strange: BTreeSet<String>,
    generation: u64,
    decided_by: Option<String>,
    /// Which document this is from.
    place: Option<Place>,
    /// The body that was taken over last. Whoever claims the document repeats it.
    body: Option<Arc<str>>,
    /// Since when variants that have a number have not been in our fleet.
    absent: BTreeMap<VariantKey, Duration>,
    /// What we have asked to be written and has not been yet, the oldest first.
    sent: VecDeque<Sent>,
    drafts: u64,
    sent_at: Option<Duration>,
    /// The term in which we have taken over the document.
    term: Option<Term>,
    /// Whether a failure was said that is not over.
    troubled: bool,
}

struct Sent {
    number: u64,
    decided: BTreeMap<VariantKey, Decided>,
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

    /// Waits until there is something to take in.
    pub(crate) async fn changed(&mut self) {
        let Channels { leadership: _, seat, sightings, drafts: _ } = &mut self.channels;
        let ended = tokio::select! {
            changed = seat.changed() => changed.is_err(),
            changed = sightings.changed() => changed.is_err(),
        };
        if ended {
            // Whoever tells us has ended, and tells us no more.
            std::future::pending::<()>().await;
        }
    }

    /// Takes in what has been written, by us or by others, and says what we may do now.
    pub(crate) fn stand(&mut self) -> Standing {
        let leads = self.channels.leadership.borrow().leads(self.clock.elapsed());
        let seat = self.channels.seat.borrow_and_update().clone();
        let standing = match seat {
            Seat::Writer { term, inherited, written, place } => {
                if self.term != Some(term) {
                    self.term = Some(term);
                    self.sent.clear();
                    self.sent_at = None;
                    if let Some(document) = inherited {
                        self.adopt(&document, Arrival::Late, self.clock.elapsed());
                    }
                    self.place = Some(place.clone());
                }
                // What has been written is in force, even if we have lost the lead since.
                while let Some(sent) = self.sent.pop_front_if(|sent| sent.number <= written) {
                    self.committed = sent.decided;
                    self.strange.clear();
                    self.body = Some(sent.body);
                    self.place = Some(place.clone());
                }
                if leads { Standing::Leads(term) } else { Standing::Follows }
            }
            Seat::Reader => {
                (self.term, self.sent_at) = (None, None);
                self.sent.clear();
                Standing::Follows
            }
        };
        let sighting = self.channels.sightings.borrow_and_update().clone();
        if let Some(sighting) = sighting {
            self.see(&sighting);
        }
        standing
    }

    fn see(&mut self, sighting: &Sighting) {
        let document = match Document::read(&sighting.object) {
            Ok(document) => document,
            Err(problem) => return self.say(&problem),
        };
        let arrival = if sighting.prompt { Arrival::Prompt } else { Arrival::Late };
        self.adopt(&document, arrival, sighting.elapsed);
    }

    /// Takes over a document, unless we have taken over it or a later one.
    fn adopt(&mut self, document: &Document, arrival: Arrival, elapsed: Duration) {
        let Document { place, holder, body } = document;
        let known = self.place.as_ref().filter(|known| known.history == place.history);
        if known.is_some_and(|known| known.position >= place.position) {
            return;
        }
        // A leader that found nothing has claimed the document and not decided yet.
        if &**body == EMPTY {
            self.place = Some(place.clone());
            return;
        }
        // A claim repeats what was there, which makes none of it newer.
        if self.body.as_ref() == Some(body) {
            self.place = Some(place.clone());
            return;
        }
        let now = self.clock.now();
        let Shared { generation, lain, mut decided, memories, strange } =
            match shared::decode(body, Receipt { elapsed, now, arrival, holder }) {
                Ok(read) => read,
                Err(problem) => return self.say(&problem),
            };
        self.recovered();
        if self.strange != strange {
            if !strange.is_empty() {
                info!(?strange, "The leader says what this release does not know");
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

    /// What whoever has decided remembers of the variants.
    pub(crate) fn memories(&self) -> &SharedMemories {
        &self.memories
    }

    /// What of the document in force this release does not know, by name.
    pub(crate) fn strange(&self) -> &BTreeSet<String> {
        &self.strange
    }

    /// The numbers in force, for a pipeline that follows.
    pub(crate) fn numbers(&self) -> BTreeMap<VariantKey, Number> {
        let number = |decided: &Decided| Number {
            desired: desired(decided),
            inputs_at: decided.decision.inputs_at,
        };
        self.committed.iter().map(|(key, decided)| (key.clone(), number(decided))).collect()
    }

    /// Of what a tick has found, what may be shown now; asks for the rest to be written.
    pub(crate) fn compose(
        &mut self,
        standing: Standing,
        found: &Published,
        memories: &dyn Fn() -> Memories,
    ) -> Published {
        let mut shown = found.clone();
        match standing {
            Standing::Leads(term) => {
                self.offer(term, found, memories);
                self.decided_by = self.channels.leadership.borrow().holder.clone();
                self.generation = self.generation.max(found.generation);
                self.keep_back(&mut shown);
            }
            Standing::Follows => {
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

    /// Shows a leader's decisions where their numbers are written, else those that are.
    fn keep_back(&mut self, shown: &mut Published) {
        for (key, variant) in &mut shown.variants {
            let Some(new) = &variant.decided else {
                if let Some(known) = self.committed.get(key) {
                    (variant.decided, variant.undecided) = (Some(known.clone()), None);
                }
                continue;
            };
            match self.committed.get_mut(key) {
                Some(known) if desired(new) == desired(known) => known.clone_from(new),
                Some(known) => variant.decided = Some(known.clone()),
                None => (variant.decided, variant.undecided) = (None, Some(NOT_SHARED)),
            }
        }
    }

    /// Asks for the decisions to be written when a number has changed, and from time to time.
    fn offer(&mut self, term: Term, found: &Published, memories: &dyn Fn() -> Memories) {
        let decided = |(key, variant): (&VariantKey, &crate::publish::PublishedVariant)| {
            Some((key.clone(), variant.decided.clone()?))
        };
        let mut decided: BTreeMap<VariantKey, Decided> =
            found.variants.iter().filter_map(decided).collect();
        let elapsed = self.clock.elapsed();
        self.carry(elapsed, found, &mut decided);
        let due = self.sent_at.is_none_or(|at| elapsed.saturating_sub(at) >= REFRESH);
        let latest = self.sent.back().map_or(&self.committed, |sent| &sent.decided);
        if !due && same_numbers(latest, &decided) {
            return;
        }
        let (now, generation) = (self.clock.now(), found.generation);
        let memories = memories();
        let remembered = decided.iter().map(|(key, decided)| {
            let before = || self.memories.get(key).map(|(_, memory)| memory);
            (decided, memories.get(key).or_else(before))
        });
        let encoded = shared::encode(now, elapsed, generation, remembered, BODY_MAX);
        let body: Arc<str> = match encoded {
            Ok(body) => body.into(),
            Err(problem) => return self.say(&problem),
        };
        self.recovered();
        self.drafts += 1;
        self.sent_at = Some(elapsed);
        let draft = Draft { number: self.drafts, term, body: Arc::clone(&body) };
        self.channels.drafts.send_replace(Some(draft));
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { number: self.drafts, decided, body });
    }

    /// Keeps the numbers of variants that we do not know, or cannot decide about: another replica
    /// has, and a list of variants may come late.
    fn carry(
        &mut self,
        elapsed: Duration,
        found: &Published,
        decided: &mut BTreeMap<VariantKey, Decided>,
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

const NOT_SHARED: Undecided = Undecided(NoData::NotShared);

/// Whether numbers that were last in force so long ago are taken over. In a longer absence whoever
/// has scaled by hand knows better. How old the data behind them is does not matter: a number that
/// is held is in force.
fn within_memory(absence: Duration) -> bool {
    SignedDuration::try_from(absence).is_ok_and(|absence| absence <= RESTORE_MAX)
}

fn desired(decided: &Decided) -> Replicas {
    decided.decision.desired()
}

fn same_numbers(a: &BTreeMap<VariantKey, Decided>, b: &BTreeMap<VariantKey, Decided>) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((a, one), (b, other))| a == b && desired(one) == desired(other))
}
