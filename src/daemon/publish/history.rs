//! The last hour of every variant, and the events of the fleet.
//!
//! [`RecentHistory::record`] records each [`Published`] once, right after it is computed. The
//! history of a variant has two parts:
//!
//! - Replica counts and verdict form a step function. Only changes are stored, each with its
//!   instant, so a chart is exact however rarely it is read.
//! - The load is a curve. One sample per [`SAMPLE_INTERVAL`] is stored. The sampled values are
//!   already averages over a window.
//!
//! Ages use the monotonic clock, so setting the wall clock neither distorts nor empties the
//! history. A removed variant has no history, and a variant that returns starts with an empty one.
//! Nothing is written to disk: after a restart the history is empty and reports when it began.
//!
//! # Memory
//!
//! A [`ReplicaLevel`] and a [`LoadSample`] take 32 bytes each, and the rings have no room to spare
//! when they are full. A variant takes at most 362 x 32 B for samples and 512 x 32 B for changes,
//! 28 KB in total. A variant that rarely changes takes about 12 KB. 1,000 variants take 12 MB, and
//! never more than 28 MB. The events take less than 1 MB.

mod packed;
pub(crate) mod sample;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::publish::attention::{self, AttentionCause};
use crate::publish::balance::{CapacityBalance, balances};
use crate::publish::history::packed::{Millis, PackedNumber};
use crate::publish::history::sample::LoadSample;
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::fleet::{ModelName, VariantKey};
use plimsoll_core::units::Replicas;

/// The period that the history covers.
pub const KEPT: Duration = Duration::from_hours(1);

/// The time between two samples of the load. A chart of one hour is a few hundred points wide.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Samples of one variant: one hour and the sample before it.
const SAMPLES_MAX: usize = 362;

/// Changes per variant that are kept. If the counts of a variant change more often than every seven
/// seconds for an hour, the oldest changes are dropped. `since` then shows from when on the history
/// is complete.
const LEVELS_MAX: usize = 512;

/// Events of the whole fleet that are kept: two per variant for 1,000 variants.
const EVENTS_MAX: usize = 2000;

/// A time without ticks that the history shows as a gap. Ticks are at most some seconds apart.
const GAP: Duration = Duration::from_secs(30);

/// The basis of a variant's desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DesiredBasis {
    /// Decided on fresh data.
    Fresh,
    /// Held from an earlier tick because data is missing.
    Held,
    /// No desired replicas are set.
    None,
    /// The daemon had no ticks, so it did not decide.
    Silent,
}

/// The counts of a variant from one instant to the next level.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct ReplicaLevel {
    at: Millis,
    desired: PackedNumber,
    unconstrained: PackedNumber,
    current: PackedNumber,
    ready: PackedNumber,
    pending: PackedNumber,
    pub(crate) verdict: DesiredBasis,
}

/// An event of a variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PastEvent {
    /// The number of events so far; never decreases.
    pub(crate) number: u64,
    pub(crate) at: Timestamp,
    pub(crate) elapsed: Duration,
    pub(crate) change: PastEventKind,
    pub(crate) variant: VariantKey,
    pub(crate) model: ModelName,
    pub(crate) before: Option<Replicas>,
    pub(crate) after: Option<Replicas>,
    pub(crate) current: Option<Replicas>,
    pub(crate) because: Option<EventCause>,
}

/// The step that best explains the desired replicas, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventCause {
    pub(crate) stage: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) headline: String,
    pub(crate) text: String,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PastEventKind {
    /// The desired replicas changed.
    Desired,
    /// The desired replicas are now held because data is missing.
    Held,
    /// The desired replicas are decided on fresh data again.
    Released,
    /// The variant no longer exists.
    Removed,
}

/// The history of one variant.
#[derive(Clone, Debug)]
pub(crate) struct VariantTrack {
    pub(crate) levels: VecDeque<ReplicaLevel>,
    pub(crate) samples: VecDeque<LoadSample>,
    model: ModelName,
    /// The instant since when every change is stored.
    pub(crate) since: Millis,
}

/// The last hour, shared by any number of readers.
#[derive(Debug, Default)]
pub struct RecentHistory {
    inner: Mutex<HistoryTracks>,
}

#[derive(Debug, Default)]
struct HistoryTracks {
    tracks: BTreeMap<VariantKey, VariantTrack>,
    causes: BTreeMap<(AttentionCause, VariantKey), CauseStart>,
    events: VecDeque<PastEvent>,
    numbered: u64,
    last: Option<LastTick>,
}

/// The first tick in which a cause of attention held, without a break since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CauseStart {
    pub(crate) at: Timestamp,
    pub(crate) elapsed: Duration,
}

/// The time of the last tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastTick {
    pub(crate) at: Timestamp,
    pub(crate) elapsed: Duration,
    pub(crate) generation: u64,
}

// === impl RecentHistory ===

impl RecentHistory {
    /// Records the state published at `now`, at the monotonic instant `elapsed`.
    pub fn record(&self, now: Timestamp, elapsed: Duration, published: &Published) {
        let mut inner = self.lock();
        let tick = LastTick { at: now, elapsed, generation: published.generation };
        let last = inner.last.replace(tick);
        let silent = last.filter(|last| elapsed.saturating_sub(last.elapsed) > GAP);
        let balances = balances(published);
        for (key, variant) in &published.variants {
            let balance = balances.get(&(variant.spec.model_key(), variant.spec.role));
            inner.variant(&tick, silent.as_ref(), key, variant, balance);
        }

        inner.note_causes(&tick, published);
        inner.drop_gone(&tick, published);
    }

    /// Returns the history of a variant.
    pub(crate) fn track(&self, variant: &VariantKey) -> Option<VariantTrack> {
        self.lock().tracks.get(variant).cloned()
    }

    /// Returns up to `count` events that `wanted` accepts, the newest first.
    pub(crate) fn events(
        &self,
        count: usize,
        wanted: impl Fn(&PastEvent) -> bool,
    ) -> Vec<PastEvent> {
        let inner = self.lock();
        inner.events.iter().rev().filter(|event| wanted(event)).take(count).cloned().collect()
    }

    /// Returns every cause of attention with its variant and its start, the most urgent first.
    pub(crate) fn causes(&self) -> Vec<(AttentionCause, VariantKey, CauseStart)> {
        let inner = self.lock();
        let causes = inner.causes.iter();
        causes.map(|((cause, variant), start)| (*cause, variant.clone(), *start)).collect()
    }

    /// Returns the time of the last tick.
    pub(crate) fn last_tick(&self) -> Option<LastTick> {
        self.lock().last
    }

    fn lock(&self) -> MutexGuard<'_, HistoryTracks> {
        // After a panic, the remaining data is still in order of time.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl HistoryTracks ===

impl HistoryTracks {
    fn variant(
        &mut self,
        tick: &LastTick,
        silent: Option<&LastTick>,
        key: &VariantKey,
        variant: &PublishedVariant,
        balance: Option<&CapacityBalance>,
    ) {
        let level = ReplicaLevel::of(tick.elapsed, variant);
        let track = self.tracks.entry(key.clone()).or_insert_with(|| VariantTrack {
            levels: VecDeque::new(),
            samples: VecDeque::new(),
            model: variant.spec.model.clone(),
            since: level.at,
        });

        track.model.clone_from(&variant.spec.model);
        if let Some(silent) = silent.filter(|_| !track.levels.is_empty()) {
            track.push(ReplicaLevel::silent(silent.elapsed));
        }

        let before =
            track.levels.iter().rev().find(|level| level.verdict != DesiredBasis::Silent).copied();
        track.push(level);
        track.sample(tick.elapsed, variant, balance);
        track.forget(level.at);

        for change in changes(before.as_ref(), &level) {
            let decision = variant.decided.as_ref().map(|decided| &decided.decision);
            self.tell(PastEvent {
                number: 0,
                at: tick.at,
                elapsed: tick.elapsed,
                change,
                variant: key.clone(),
                model: variant.spec.model.clone(),
                before: before.and_then(|level| level.desired.count()),
                after: level.desired.count(),
                current: level.current.count(),
                because: decision.and_then(EventCause::of),
            });
        }
    }

    /// Keeps the start of each cause that still holds, and adds the new ones.
    fn note_causes(&mut self, tick: &LastTick, published: &Published) {
        let mut holding = BTreeSet::new();
        for (key, variant) in &published.variants {
            let causes = attention::causes(published, variant);
            holding.extend(causes.into_iter().map(|cause| (cause, key.clone())));
        }

        self.causes.retain(|known, _| holding.contains(known));
        for cause in holding {
            let start = CauseStart { at: tick.at, elapsed: tick.elapsed };
            self.causes.entry(cause).or_insert(start);
        }
    }

    fn drop_gone(&mut self, tick: &LastTick, published: &Published) {
        let gone = self.tracks.keys().filter(|key| !published.variants.contains_key(*key));

        for variant in gone.cloned().collect::<Vec<_>>() {
            let Some(track) = self.tracks.remove(&variant) else { continue };
            let last = track.levels.back().copied();
            self.tell(PastEvent {
                number: 0,
                at: tick.at,
                elapsed: tick.elapsed,
                change: PastEventKind::Removed,
                variant,
                model: track.model,
                before: last.and_then(|level| level.desired.count()),
                after: None,
                current: None,
                because: None,
            });
        }
    }

    fn tell(&mut self, event: PastEvent) {
        self.numbered += 1;
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(PastEvent { number: self.numbered, ..event });
    }
}

/// Returns the changes to report for a variant whose level was `before` and is now `after`.
fn changes(before: Option<&ReplicaLevel>, after: &ReplicaLevel) -> Vec<PastEventKind> {
    let mut changes = Vec::new();
    if before.is_none_or(|before| before.desired != after.desired) && after.desired.is_some() {
        changes.push(PastEventKind::Desired);
    }
    match (before.map(|before| before.verdict), after.verdict) {
        (Some(DesiredBasis::Fresh | DesiredBasis::None) | None, DesiredBasis::Held) => {
            changes.push(PastEventKind::Held);
        }
        (Some(DesiredBasis::Held), DesiredBasis::Fresh) => changes.push(PastEventKind::Released),
        (
            _,
            DesiredBasis::Fresh | DesiredBasis::Held | DesiredBasis::None | DesiredBasis::Silent,
        ) => {}
    }

    changes
}

// === impl VariantTrack ===

impl VariantTrack {
    /// Adds a level if it differs from the last.
    fn push(&mut self, level: ReplicaLevel) {
        if self.levels.back().is_some_and(|last| last.same(&level)) {
            return;
        }
        if self.levels.len() >= LEVELS_MAX {
            self.levels.pop_front();
            self.since = self.levels.front().map_or(level.at, |first| first.at);
        }

        grow(&mut self.levels, LEVELS_MAX);
        self.levels.push_back(level);
    }

    fn sample(
        &mut self,
        elapsed: Duration,
        variant: &PublishedVariant,
        balance: Option<&CapacityBalance>,
    ) {
        let now = Millis::of(elapsed);
        let due = self.samples.back().is_none_or(|last| now.beyond(last.at) >= SAMPLE_INTERVAL);

        if due {
            if self.samples.len() >= SAMPLES_MAX {
                self.samples.pop_front();
            }
            grow(&mut self.samples, SAMPLES_MAX);
            self.samples.push_back(LoadSample::of(now, variant, balance));
        }
    }

    /// Returns the time for which the desired replicas have been on the same side of `current`, and
    /// at least as far from it as `desired`. `None` if that is not known.
    pub(crate) fn asked_for(
        &self,
        desired: u32,
        current: u32,
        elapsed: Duration,
    ) -> Option<Duration> {
        let asks = |level: &ReplicaLevel| match level.desired() {
            Some(number) if desired < current => number <= desired,
            Some(number) => number >= desired,
            None => false,
        };
        let levels = self.levels.iter().rev().take_while(|level| asks(level));
        levels.last().map(|level| level.age(elapsed))
    }

    /// Removes entries older than one hour. The level in effect at the beginning of that hour
    /// stays.
    fn forget(&mut self, now: Millis) {
        while self.levels.get(1).is_some_and(|second| now.beyond(second.at) > KEPT) {
            self.levels.pop_front();
        }
        while self.samples.front().is_some_and(|sample| now.beyond(sample.at) > KEPT) {
            self.samples.pop_front();
        }
    }
}

/// Makes room for one more entry: half as much again, and in the end exactly `most`.
fn grow<T>(ring: &mut VecDeque<T>, most: usize) {
    if ring.len() == ring.capacity() {
        let more = (ring.len() / 2).max(4);
        ring.reserve_exact(more.min(most.saturating_sub(ring.len())));
    }
}

// === impl ReplicaLevel ===

impl ReplicaLevel {
    fn of(elapsed: Duration, variant: &PublishedVariant) -> Self {
        let observation = &variant.observation;
        let decision = variant.decided.as_ref().map(|decided| &decided.decision);
        let pending = observation.current.map(|_| observation.pending);

        Self {
            at: Millis::of(elapsed),
            desired: PackedNumber::of_count(decision.map(Decision::desired)),
            unconstrained: PackedNumber::of_count(decision.map(Decision::unconstrained)),
            current: PackedNumber::of_count(observation.current),
            ready: PackedNumber::of_count(observation.ready),
            pending: PackedNumber::of_count(pending),
            verdict: DesiredBasis::of(variant),
        }
    }

    fn silent(elapsed: Duration) -> Self {
        let none = PackedNumber::of_count(None);

        Self {
            at: Millis::of(elapsed),
            desired: none,
            unconstrained: none,
            current: none,
            ready: none,
            pending: none,
            verdict: DesiredBasis::Silent,
        }
    }

    fn same(&self, other: &Self) -> bool {
        Self { at: other.at, ..*self } == *other
    }

    pub(crate) fn age(&self, elapsed: Duration) -> Duration {
        Millis::of(elapsed).beyond(self.at)
    }

    pub(crate) fn desired(&self) -> Option<u32> {
        self.desired.count().map(Replicas::count)
    }

    pub(crate) fn unconstrained(&self) -> Option<u32> {
        self.unconstrained.count().map(Replicas::count)
    }

    pub(crate) fn current(&self) -> Option<u32> {
        self.current.count().map(Replicas::count)
    }

    pub(crate) fn ready(&self) -> Option<u32> {
        self.ready.count().map(Replicas::count)
    }

    pub(crate) fn pending(&self) -> Option<u32> {
        self.pending.count().map(Replicas::count)
    }
}

// === impl DesiredBasis ===

impl DesiredBasis {
    /// Returns the verdict for a variant.
    #[must_use]
    pub fn of(variant: &PublishedVariant) -> Self {
        match variant.decided.as_ref().map(|decided| decided.decision.basis) {
            Some(Basis::Fresh) => Self::Fresh,
            Some(Basis::Held) => Self::Held,
            None => Self::None,
        }
    }

    /// Returns the verdict as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Held => "held",
            Self::None => "none",
            Self::Silent => "silent",
        }
    }
}

impl PastEventKind {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Desired => "desired",
            Self::Held => "held",
            Self::Released => "released",
            Self::Removed => "removed",
        }
    }
}

impl EventCause {
    fn of(decision: &Decision) -> Option<Self> {
        let step = decision.because()?;
        let stage = step.stage.label();
        let reason = step.reason.label();
        Some(Self { stage, reason, headline: step.headline(), text: step.reason.to_string() })
    }
}

#[cfg(test)]
mod tests;
