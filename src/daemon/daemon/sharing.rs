//! The state that the replicas of Plimsoll share: one replica decides, and all publish its
//! decisions.
//!
//! New desired replicas are published only after they are written to the object that every replica
//! watches. The next leader therefore starts from them. No reader gets newer desired replicas from
//! one replica and older ones from its successor. Unchanged desired replicas are published with
//! their new ages and reasons at once.

mod change;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::DocumentVersion;
use crate::daemon::sharing::change::{PAUSE, change, desired};
use crate::leader::Leadership;
use crate::leader::share::{
    BODY_MAX, DocumentAccess, DocumentBody, DocumentDraft, HistoryPosition, LeaderDocument,
    LeaderTerm,
};
use crate::publish::state::shared::{
    self, DocumentArrival, DocumentReceipt, PackedDecisions, ShareEntry, SharedDecisions,
    SharedMemories,
};
use crate::publish::state::{RESTORE_MAX, SavedDecision, VariantMemories};
use crate::publish::{Published, PublishedDecision};
use crate::telemetry::LeaderMetrics;
use plimsoll_core::decide::{NoData, NoDecision};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::pipeline::DesiredReplicas;
use plimsoll_core::pipeline::saved::VariantMemory;

/// The label of variants that found no room in the document.
const LEFT_OUT: &str = "left_out";

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
    metrics: LeaderMetrics,
    /// The decisions that are written to the shared object.
    committed: BTreeMap<VariantKey, PublishedDecision>,
    /// The memories of the replica that wrote them.
    memories: SharedMemories,
    /// Decisions that were too old to be in effect when they were adopted, with their memories.
    outlived: Vec<SavedDecision>,
    /// The names of the fields that only the writer's release knows.
    strange: BTreeSet<String>,
    generation: u64,
    decided_by: Option<String>,
    /// The place of the document that this state is from.
    place: Option<HistoryPosition>,
    /// The time at which this replica last learned, as the writer, that its object exists.
    placed_at: Option<Duration>,
    /// The body that was adopted last. The next leader repeats it when it claims the document.
    body: Option<DocumentBody>,
    /// The variants that found no room in the last draft.
    left_out: BTreeSet<VariantKey>,
    /// The decided variants that are missing from this replica's fleet, and since when.
    absent: BTreeMap<VariantKey, Duration>,
    /// The drafts that are not written yet, oldest first.
    sent: VecDeque<SentDecisions>,
    drafts: u64,
    /// The number of the last draft that is written in this term.
    written: u64,
    sent_at: Option<Duration>,
    /// True while a request waits for a draft.
    is_awaited: bool,
    /// The term in which this replica has taken over the document.
    term: Option<LeaderTerm>,
    /// True while a logged failure persists.
    troubled: bool,
}

struct SentDecisions {
    number: u64,
    decided: BTreeMap<VariantKey, PublishedDecision>,
    memories: SharedMemories,
    body: DocumentBody,
}

impl Sharing {
    pub(crate) fn new(clock: Clock, channels: Channels, metrics: LeaderMetrics) -> Self {
        Self {
            clock,
            channels,
            metrics,
            committed: BTreeMap::new(),
            memories: SharedMemories::new(),
            outlived: Vec::new(),
            strange: BTreeSet::new(),
            generation: 0,
            decided_by: None,
            place: None,
            placed_at: None,
            body: None,
            left_out: BTreeSet::new(),
            absent: BTreeMap::new(),
            sent: VecDeque::new(),
            drafts: 0,
            written: 0,
            sent_at: None,
            is_awaited: false,
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
        let leads = self.leads();
        let seat = self.channels.seat.borrow_and_update().clone();
        let standing = match seat {
            DocumentAccess::Writer { term, inherited, written, place } => {
                self.written = written;
                if self.term != Some(term) {
                    self.term = Some(term);
                    self.sent.clear();
                    self.sent_at = None;
                    if let Some(document) = inherited {
                        self.adopt(&document, DocumentArrival::Late, self.clock.elapsed());
                    }

                    self.hold_place(&place);
                }

                // Written decisions are in effect, even if this replica has lost the lead since.
                while let Some(sent) = self.sent.pop_front_if(|sent| sent.number <= written) {
                    self.committed = sent.decided;
                    self.memories = sent.memories;
                    self.strange.clear();
                    self.body = Some(sent.body);
                    self.hold_place(&place);
                }

                if leads { LeadershipRole::Leads(term) } else { LeadershipRole::Follows }
            }
            DocumentAccess::Reader => {
                self.term = None;
                self.written = 0;
                self.sent_at = None;
                self.sent.clear();
                self.left_out.clear();
                self.absent.clear();
                self.metrics.document_variants.reset();
                LeadershipRole::Follows
            }
        };

        let sighting = self.channels.sightings.borrow_and_update().clone();
        if let Some(sighting) = sighting {
            self.see(&sighting);
        }

        standing
    }

    /// Continues from the object that this replica writes.
    fn hold_place(&mut self, place: &HistoryPosition) {
        self.place = Some(place.clone());
        self.placed_at = Some(self.clock.elapsed());
    }

    fn see(&mut self, sighting: &DocumentVersion) {
        let document = match LeaderDocument::read(&sighting.object) {
            Ok(read) => read,
            Err(problem) => return self.say(&problem),
        };
        // The writer knows the current object. A sighting of another one is from before a deletion.
        // So is an earlier sighting after this replica has stopped writing.
        let is_other = self.place.as_ref().is_some_and(|it| it.history != document.place.history);
        let is_early = self.placed_at.is_some_and(|at| sighting.elapsed <= at);
        if is_other && (self.term.is_some() || is_early) {
            return;
        }

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
        if *body == DocumentBody::empty() {
            self.place = Some(place.clone());
            return;
        }

        // A claim repeats the earlier content, so its content is not newer.
        if self.body.as_ref() == Some(body) {
            self.place = Some(place.clone());
            return;
        }

        let now = self.clock.now();
        let receipt = DocumentReceipt { elapsed, now, arrival, holder };
        let decoded = match body {
            DocumentBody::Plain(text) => shared::decode(text, receipt),
            DocumentBody::Packed(packed) => shared::decode_packed(packed, receipt),
        };
        let SharedDecisions { generation, lain, mut decided, memories, strange } = match decoded {
            Ok(read) => read,
            Err(problem) => return self.say(&problem),
        };
        self.recovered();
        self.show_size(body);
        if self.strange != strange {
            if !strange.is_empty() {
                info!(?strange, "The leader reports values that this release does not know");
            }
            self.strange = strange;
        }

        self.place = Some(place.clone());
        self.body = Some(body.clone());
        if self.committed.is_empty() && !within_memory(lain) {
            let found = std::mem::take(&mut decided);
            self.outlived = outlived(now, lain, found, &memories);
            let learned = self.outlived.len();
            warn!(?lain, learned, "The shared desired replicas are too old to be in effect");
        }

        let leads = self.channels.leadership.borrow().leads(elapsed);
        if self.decided_by.as_ref() != Some(holder) && !leads {
            info!(holder, variants = decided.len(), "Showing the leader's decisions");
        }

        self.decided_by = Some(holder.clone());
        self.generation = self.generation.max(generation);
        self.committed = decided;
        self.memories = memories;
    }

    /// Returns true while this replica holds the Lease.
    pub(crate) fn leads(&self) -> bool {
        self.channels.leadership.borrow().leads(self.clock.elapsed())
    }

    /// Requests writing the next decisions as soon as the pause allows, and returns the number of
    /// their draft.
    pub(crate) const fn hurry(&mut self) -> u64 {
        self.is_awaited = true;
        self.drafts + 1
    }

    /// The time until a draft that a request waits for may be written; `None` if none is awaited.
    pub(crate) fn awaited_in(&self) -> Option<Duration> {
        let due = self.sent_at.map_or(Duration::ZERO, |at| at + PAUSE);
        self.is_awaited.then(|| due.saturating_sub(self.clock.elapsed()))
    }

    /// The number of the last draft that is written in this term; 0 before the first.
    pub(crate) const fn written(&self) -> u64 {
        self.written
    }

    /// The memories of the deciding replica, by variant.
    pub(crate) fn memories(&self) -> &SharedMemories {
        &self.memories
    }

    /// The decisions that were too old to be in effect when they were adopted, once.
    pub(crate) fn take_outlived(&mut self) -> Vec<SavedDecision> {
        std::mem::take(&mut self.outlived)
    }

    /// The names of the fields in the adopted document that this release does not know.
    pub(crate) fn strange(&self) -> &BTreeSet<String> {
        &self.strange
    }

    /// The leadership, as it changes.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.channels.leadership.clone()
    }

    /// The desired replicas in effect, for a pipeline that follows.
    pub(crate) fn numbers(&self) -> BTreeMap<VariantKey, DesiredReplicas> {
        let numbers = self.committed.iter().map(|(key, decided)| {
            let inputs_at = decided.decision.inputs_at;
            let packed = self.memories.get(key).and_then(|(_, memory)| memory.packed);
            (key.clone(), DesiredReplicas { desired: desired(decided), inputs_at, packed })
        });
        numbers.collect()
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
                self.is_awaited = false;
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

    /// Requests writing the decisions: at once when desired replicas rise, after a pause when they
    /// change otherwise or a request waits, and at a fixed interval.
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

        let latest = self.sent.back().map_or(&self.committed, |sent| &sent.decided);
        let change = change(latest, &decided, &self.left_out);
        let pause = if self.is_awaited { change.pause().min(PAUSE) } else { change.pause() };
        if self.sent_at.is_some_and(|at| elapsed.saturating_sub(at) < pause) {
            return;
        }

        self.is_awaited = false;
        self.sent_at = Some(elapsed);
        let memories = self.memories_of(found, &decided, memories());
        let encoded = self.encode(elapsed, found.generation, &decided, &memories);
        let packed = match encoded {
            Ok(document) => document,
            Err(problem) => return self.say(&problem),
        };

        self.recovered();
        let body = self.take_draft(packed);
        decided.retain(|key, _| !self.left_out.contains(key));
        self.drafts += 1;
        let draft = DocumentDraft { number: self.drafts, term, body: body.clone() };
        self.channels.drafts.send_replace(Some(draft));
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }

        self.sent.push_back(SentDecisions { number: self.drafts, decided, memories, body });
    }

    /// The memories in a draft: those of this replica, and of other variants the adopted ones. Of
    /// variants without a decision, these are only the overrides.
    fn memories_of(
        &self,
        found: &Published,
        decided: &BTreeMap<VariantKey, PublishedDecision>,
        mut own: VariantMemories,
    ) -> SharedMemories {
        let written = decided.iter().filter_map(|(key, decided)| {
            // An override from before the first decision may have ended.
            let adopted = self.memories.get(key).filter(|_| self.committed.contains_key(key));
            let latest = own.remove(key).or_else(|| adopted.map(|(_, memory)| memory.clone()))?;
            Some((key.clone(), (decided.decision.model.clone(), latest)))
        });
        let mut memories: SharedMemories = written.collect();

        for (key, VariantMemory { overridden, .. }) in own {
            if let Some(variant) = found.variants.get(&key)
                && overridden.is_some()
            {
                let memory = VariantMemory { overridden, ..VariantMemory::default() };
                memories.insert(key, (variant.spec.model_key(), memory));
            }
        }
        memories
    }

    fn encode(
        &self,
        elapsed: Duration,
        generation: u64,
        decided: &BTreeMap<VariantKey, PublishedDecision>,
        memories: &SharedMemories,
    ) -> Result<PackedDecisions, shared::SharedError> {
        let entries = decided.iter().map(|(key, decided)| {
            let memory = memories.get(key).map(|(_, known)| known);
            ShareEntry { decided, memory, in_effect: self.committed.contains_key(key) }
        });

        let undecided = memories.iter().filter(|(key, _)| !decided.contains_key(*key));
        let overrides: SharedMemories =
            undecided.map(|(key, known)| (key.clone(), known.clone())).collect();

        shared::encode(self.clock.now(), elapsed, generation, entries, &overrides, BODY_MAX)
    }

    /// Takes over the omissions of a new draft, reports them, and returns the draft's body.
    fn take_draft(&mut self, packed: PackedDecisions) -> DocumentBody {
        let PackedDecisions { packed, variants, left_out } = packed;
        for (detail, variants) in variants {
            let labels = [detail.label()];
            self.metrics.document_variants.with_label_values(&labels).set(variants as f64);
        }
        self.metrics.document_variants.with_label_values(&[LEFT_OUT]).set(left_out.len() as f64);

        if left_out.is_empty() != self.left_out.is_empty() {
            say_left_out(&left_out);
        }
        self.left_out = left_out;
        let body = DocumentBody::Packed(packed.into());
        self.show_size(&body);
        body
    }

    fn show_size(&self, body: &DocumentBody) {
        let LeaderMetrics { document_bytes, document_limit, .. } = &self.metrics;
        let unlabelled: [&str; 0] = [];
        document_bytes.with_label_values(&unlabelled).set(body.size() as f64);
        document_limit.with_label_values(&unlabelled).set(BODY_MAX as f64);
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
            error!(error = %problem, source, "The decisions cannot be shared; desired replicas \
                stay as they are");
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

/// The decisions of a document that was written this long ago, as far as they have memories.
fn outlived(
    now: Timestamp,
    ago: Duration,
    decided: BTreeMap<VariantKey, PublishedDecision>,
    memories: &SharedMemories,
) -> Vec<SavedDecision> {
    let written = now.checked_sub(ago).unwrap_or(Timestamp::MIN);
    let states = decided.into_iter().filter_map(|(variant, it)| {
        SavedDecision::shared(variant, desired(&it), it.at, written, memories)
    });

    states.collect()
}

fn say_left_out(left_out: &BTreeSet<VariantKey>) {
    let Some(first) = left_out.first() else {
        info!("All variants fit into the document of shared decisions");
        return;
    };

    error!(
        variants = left_out.len(),
        %first,
        "Variants exceed the size of the document of shared decisions, and have no desired \
         replicas: run two daemons, each with part of the namespaces and its own \
         leader_election.name"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plimsoll_core::observe::Observation;
    use plimsoll_core::observe::overrides::{Order, Override, OverrideSource};
    use prometheus::Registry;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::leader::share::DocumentPosition;
    use crate::publish::PublishedVariant;

    /// The decisions of variants with these desired replicas.
    fn decided(numbers: &[(&str, u32)]) -> BTreeMap<VariantKey, PublishedDecision> {
        let specs = numbers.iter().map(|(name, desired)| (fixtures::variant(name), *desired));
        specs.map(|(spec, desired)| (spec.key.clone(), fixtures::held(&spec, desired))).collect()
    }

    #[test]
    fn a_number_that_rises_is_written_at_once_and_others_wait_for_a_moment() {
        let before = decided(&[("a", 2), ("b", 2)]);
        let check = |after: &[(&str, u32)], left_out: &[&str], pause: u64| {
            let left_out = left_out.iter().map(|name| fixtures::variant(name).key).collect();
            let change = change(&before, &decided(after), &left_out);
            assert_eq!(change.pause(), Duration::from_secs(pause), "{after:?}");
        };
        check(&[("a", 2), ("b", 2)], &[], 10);
        check(&[("a", 2), ("b", 1)], &[], 2);
        check(&[("a", 2)], &[], 2);
        check(&[("a", 1), ("b", 3)], &[], 0);
        check(&[("a", 2), ("b", 2), ("new", 1)], &[], 0);
        check(&[("a", 2), ("b", 2), ("new", 1)], &["new"], 10);
    }

    /// A sighting of a document with desired replicas of one variant.
    fn sighting(clock: Clock) -> DocumentVersion {
        let now = clock.now();
        let body = json!({"version": 2, "generation": 812, "written": now, "decisions": [{
            "variant": {"namespace": "shop", "variant": "a"}, "model": "m", "at": now,
            "age": 0.0, "basis": "held", "current": 3, "bounds": {"min": 1, "max": 8},
            "steps": [{"stage": "hold", "before": 4, "after": 4, "code": "no_data",
                       "reason": {"no_data": "no_fresh_replica"}}],
        }]});
        let config_map = json!({
            "metadata": {"name": "plimsoll-decisions", "uid": "deleted"},
            "data": {"term": "7", "sequence": "90", "holder": "gone",
                     "decisions.json": body.to_string()},
        });

        let object = Arc::new(serde_json::from_value(config_map).unwrap());
        DocumentVersion { object, elapsed: clock.elapsed(), now, prompt: true }
    }

    #[tokio::test]
    async fn no_replica_goes_back_to_a_document_that_it_saw_before_it_wrote_another_object() {
        let clock = Clock::start();
        let (_elector, leadership) = watch::channel(Leadership::default());
        let (watcher, sightings) = watch::channel(Some(sighting(clock)));
        let (drafts, _desk) = watch::channel(None);
        let place =
            HistoryPosition { history: "new".to_owned(), position: DocumentPosition::default() };
        let term = LeaderTerm(1);
        let writer = DocumentAccess::Writer { term, inherited: None, written: 0, place };
        let (access, seat) = watch::channel(writer);
        let channels = Channels { leadership, seat, sightings, drafts };
        let metrics = LeaderMetrics::register(&Registry::new()).unwrap();
        let mut sharing = Sharing::new(clock, channels, metrics);

        sharing.stand();
        assert!(sharing.numbers().is_empty());
        access.send_replace(DocumentAccess::Reader);
        sharing.stand();
        assert!(sharing.numbers().is_empty(), "its watch is behind its own writes");

        let elapsed = clock.elapsed() + Duration::from_millis(1);
        watcher.send_replace(Some(DocumentVersion { elapsed, ..sighting(clock) }));
        sharing.stand();
        assert_eq!(sharing.numbers().len(), 1, "another replica may have replaced the object");
    }

    /// The variants that a replica keeps at an instant at which it knows none.
    fn kept(sharing: &mut Sharing, elapsed: Duration) -> usize {
        let mut decided = BTreeMap::new();
        sharing.carry(elapsed, &Published::default(), &mut decided);
        decided.len()
    }

    /// A replica that has seen no document.
    fn follower() -> Sharing {
        let (_, leadership) = watch::channel(Leadership::default());
        let (_, seat) = watch::channel(DocumentAccess::Reader);
        let (_, sightings) = watch::channel(None);
        let (drafts, _) = watch::channel(None);
        let channels = Channels { leadership, seat, sightings, drafts };
        let metrics = LeaderMetrics::register(&Registry::new()).unwrap();
        Sharing::new(Clock::start(), channels, metrics)
    }

    #[test]
    fn a_draft_has_the_overrides_of_variants_without_a_decision() {
        let sharing = follower();
        let spec = fixtures::variant("new");
        let (key, model) = (spec.key.clone(), spec.model_key());
        let variant = PublishedVariant {
            observation: Observation::of_nothing(spec.bounds),
            spec,
            report: None,
            decided: None,
            undecided: Some(NOT_SHARED),
        };
        let found = Published { variants: [(key.clone(), variant)].into(), ..Published::default() };
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        let pause = Override { order: Order::Pause, until, by: OverrideSource::Api };
        let overridden = VariantMemory { overridden: Some(pause), ..VariantMemory::default() };
        let own = VariantMemory { named: vec!["queue".to_owned()], ..overridden.clone() };

        let none = BTreeMap::new();
        let memories = sharing.memories_of(&found, &none, [(key.clone(), own)].into());
        assert_eq!(memories, SharedMemories::from([(key, (model, overridden))]));

        let draft = sharing.encode(Duration::ZERO, 1, &none, &memories).unwrap();
        let now = sharing.clock.now();
        let arrival = DocumentArrival::Prompt;
        let receipt = DocumentReceipt { elapsed: Duration::ZERO, now, arrival, holder: "me" };
        let read = shared::decode_packed(&draft.packed, receipt).unwrap();
        assert_eq!((read.memories, read.decided.len()), (memories, 0));
    }

    #[test]
    fn an_override_that_ended_before_the_first_decision_is_not_written_again() {
        let mut sharing = follower();
        let spec = fixtures::variant("a");
        let until = Timestamp::from_second(1_800_000_000).unwrap();
        let pause = Override { order: Order::Pause, until, by: OverrideSource::Api };
        let overridden = VariantMemory { overridden: Some(pause), ..VariantMemory::default() };
        sharing.memories = [(spec.key.clone(), (spec.model_key(), overridden))].into();

        let found = Published::default();
        let memories = sharing.memories_of(&found, &decided(&[("a", 2)]), VariantMemories::new());
        assert_eq!(memories, SharedMemories::new());
    }

    #[test]
    fn the_time_without_a_variant_begins_again_after_another_replica_has_led() {
        let mut sharing = follower();
        sharing.committed = decided(&[("a", 2)]);

        let late = RESTORE_MAX.unsigned_abs() + Duration::from_secs(1);
        assert_eq!([kept(&mut sharing, Duration::ZERO), kept(&mut sharing, late)], [1, 0]);
        assert_eq!(sharing.stand(), LeadershipRole::Follows);
        assert_eq!(kept(&mut sharing, late), 1);
    }
}
