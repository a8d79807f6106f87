//! The last hour of every variant, and what has changed in the fleet.
//!
//! [`History::record`] takes each [`Published`] once, right after it was made. Two things are kept
//! of a variant, because they are of two kinds. Its replica counts and its verdict are a step
//! function: each change is kept with its instant and nothing else is, so a chart of them is exact
//! however rarely it is read. Its load is a curve, of which one sample in [`SAMPLE_INTERVAL`] is
//! kept; the values are already taken over a window.
//!
//! Ages count on the monotonic clock, so a clock that is set neither bends the hour nor empties it.
//! A variant that is gone has no history, and one that comes back begins anew. Nothing is written
//! to disk: a daemon that restarts begins with an empty hour, and says since when it has watched.
//!
//! # Memory
//!
//! A [`Level`] and a [`Sample`] take 32 bytes each, and the rings grow by doubling. A variant takes
//! at most 512 x 32 B of samples and 512 x 32 B of changes, 32 KiB; a variant that seldom changes
//! takes about 17 KiB. A thousand variants take 17 MB, and never more than 33 MB. The events take
//! less than 1 MB.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::publish::load::Load;
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::fleet::{ModelName, VariantKey};
use plimsoll_core::units::{Fraction, Replicas, RequestRate, Requests};

/// How far back the history goes.
pub const KEPT: Duration = Duration::from_hours(1);

/// The time between two samples of the load. A chart of an hour is a few hundred points wide.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Samples of one variant: an hour of them, and the one before it.
const SAMPLES_MAX: usize = 362;

/// Changes of one variant that are kept. A variant whose counts change more often than every seven
/// seconds for an hour loses the oldest, and its history says since when it is complete.
const LEVELS_MAX: usize = 512;

/// Events of the whole fleet that are kept: two for each of a thousand variants.
const EVENTS_MAX: usize = 2000;

/// A time without ticks that is shown as a gap. Ticks are at most some seconds apart.
const GAP: Duration = Duration::from_secs(30);

/// What is known of a variant's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was decided on fresh data.
    Fresh,
    /// It is kept from before, for want of data.
    Held,
    /// There is no number.
    None,
    /// There were no ticks: the daemon did not decide.
    Silent,
}

/// The counts of a variant from one instant until the next level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    at: Millis,
    desired: Packed,
    unconstrained: Packed,
    current: Packed,
    ready: Packed,
    pending: Packed,
    pub(crate) verdict: Verdict,
}

/// The load of a variant at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    at: Millis,
    saturation: Packed,
    kv_usage: Packed,
    waiting: Packed,
    running: Packed,
    arrivals: Packed,
}

/// What has happened to a variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Counts the events; never goes back.
    pub(crate) number: u64,
    pub(crate) at: Timestamp,
    pub(crate) elapsed: Duration,
    pub(crate) change: Change,
    pub(crate) variant: VariantKey,
    pub(crate) model: ModelName,
    pub(crate) before: Option<Replicas>,
    pub(crate) after: Option<Replicas>,
    pub(crate) current: Option<Replicas>,
    pub(crate) because: Option<Because>,
}

/// The step that explains a number best, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Because {
    pub(crate) stage: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The number is another one.
    Desired,
    /// The number is now held for want of data.
    Held,
    /// The number is decided on fresh data again.
    Released,
    /// The variant is no longer there.
    Removed,
}

/// What is kept of one variant.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) levels: VecDeque<Level>,
    pub(crate) samples: VecDeque<Sample>,
    model: ModelName,
    /// Since when every change is here.
    pub(crate) since: Millis,
}

/// The last hour, for any number of readers.
#[derive(Debug, Default)]
pub struct History {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tracks: BTreeMap<VariantKey, Track>,
    events: VecDeque<Event>,
    numbered: u64,
    last: Option<Tick>,
}

/// When the last tick was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) at: Timestamp,
    pub(crate) elapsed: Duration,
    pub(crate) generation: u64,
}

/// A reading of the monotonic clock in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(u64);

/// A count or a quantity, or none, in four bytes.
///
/// A count is below [`Replicas::LIMIT`], and a quantity is finite and not negative, so the bits of
/// either plus one fit and are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(Option<NonZeroU32>);

// === impl History ===

impl History {
    /// Takes in what was published at `now`, at the monotonic instant `elapsed`.
    pub fn record(&self, now: Timestamp, elapsed: Duration, published: &Published) {
        let mut inner = self.lock();
        let tick = Tick { at: now, elapsed, generation: published.generation };
        let last = inner.last.replace(tick);
        let silent = last.filter(|last| elapsed.saturating_sub(last.elapsed) > GAP);
        for (key, variant) in &published.variants {
            inner.variant(&tick, silent.as_ref(), key, variant);
        }
        inner.drop_gone(&tick, published);
    }

    /// What is kept of a variant.
    pub(crate) fn track(&self, variant: &VariantKey) -> Option<Track> {
        self.lock().tracks.get(variant).cloned()
    }

    /// The newest events first, as many as `count` of those that `wanted` lets through.
    pub(crate) fn events(&self, count: usize, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let inner = self.lock();
        inner.events.iter().rev().filter(|event| wanted(event)).take(count).cloned().collect()
    }

    /// When the last tick was.
    pub(crate) fn last_tick(&self) -> Option<Tick> {
        self.lock().last
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whatever a panic has left is in order of time.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    fn variant(
        &mut self,
        tick: &Tick,
        silent: Option<&Tick>,
        key: &VariantKey,
        variant: &PublishedVariant,
    ) {
        let level = Level::of(tick.elapsed, variant);
        let track = self.tracks.entry(key.clone()).or_insert_with(|| Track {
            levels: VecDeque::new(),
            samples: VecDeque::new(),
            model: variant.spec.model.clone(),
            since: level.at,
        });
        track.model.clone_from(&variant.spec.model);
        if let Some(silent) = silent.filter(|_| !track.levels.is_empty()) {
            track.push(Level::silent(silent.elapsed));
        }
        let before = track.levels.iter().rev().find(|level| level.verdict != Verdict::Silent);
        let before = before.copied();
        track.push(level);
        track.sample(tick.elapsed, variant);
        track.forget(level.at);
        for change in changes(before.as_ref(), &level) {
            let decision = variant.decided.as_ref().map(|decided| &decided.decision);
            self.tell(Event {
                number: 0,
                at: tick.at,
                elapsed: tick.elapsed,
                change,
                variant: key.clone(),
                model: variant.spec.model.clone(),
                before: before.and_then(|level| level.desired.count()),
                after: level.desired.count(),
                current: level.current.count(),
                because: decision.and_then(Because::of),
            });
        }
    }

    fn drop_gone(&mut self, tick: &Tick, published: &Published) {
        let gone = self.tracks.keys().filter(|key| !published.variants.contains_key(*key));
        for variant in gone.cloned().collect::<Vec<_>>() {
            let Some(track) = self.tracks.remove(&variant) else { continue };
            let last = track.levels.back().copied();
            self.tell(Event {
                number: 0,
                at: tick.at,
                elapsed: tick.elapsed,
                change: Change::Removed,
                variant,
                model: track.model,
                before: last.and_then(|level| level.desired.count()),
                after: None,
                current: None,
                because: None,
            });
        }
    }

    fn tell(&mut self, event: Event) {
        self.numbered += 1;
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { number: self.numbered, ..event });
    }
}

/// What there is to tell of a variant whose level was `before` and is `after`.
fn changes(before: Option<&Level>, after: &Level) -> Vec<Change> {
    let mut changes = Vec::new();
    if before.is_none_or(|before| before.desired != after.desired) && after.desired.is_some() {
        changes.push(Change::Desired);
    }
    match (before.map(|before| before.verdict), after.verdict) {
        (Some(Verdict::Fresh | Verdict::None) | None, Verdict::Held) => changes.push(Change::Held),
        (Some(Verdict::Held), Verdict::Fresh) => changes.push(Change::Released),
        (_, Verdict::Fresh | Verdict::Held | Verdict::None | Verdict::Silent) => {}
    }
    changes
}

// === impl Track ===

impl Track {
    /// Adds a level where it differs from the last.
    fn push(&mut self, level: Level) {
        if self.levels.back().is_some_and(|last| last.same(&level)) {
            return;
        }
        if self.levels.len() >= LEVELS_MAX {
            self.levels.pop_front();
            self.since = self.levels.front().map_or(level.at, |first| first.at);
        }
        self.levels.push_back(level);
    }

    fn sample(&mut self, elapsed: Duration, variant: &PublishedVariant) {
        let now = Millis::of(elapsed);
        let due = self.samples.back().is_none_or(|last| now.beyond(last.at) >= SAMPLE_INTERVAL);
        if due {
            if self.samples.len() >= SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample::of(now, variant));
        }
    }

    /// Forgets what is older than an hour. The level that was in force at its beginning stays.
    fn forget(&mut self, now: Millis) {
        let old = |at: Millis| now.beyond(at) > KEPT;
        while self.levels.get(1).is_some_and(|second| old(second.at)) {
            self.levels.pop_front();
        }
        while self.samples.front().is_some_and(|sample| old(sample.at)) {
            self.samples.pop_front();
        }
    }
}

// === impl Level ===

impl Level {
    fn of(elapsed: Duration, variant: &PublishedVariant) -> Self {
        let observation = &variant.observation;
        let decision = variant.decided.as_ref().map(|decided| &decided.decision);
        let pending = observation.current.map(|_| observation.pending);
        Self {
            at: Millis::of(elapsed),
            desired: Packed::of_count(decision.map(Decision::desired)),
            unconstrained: Packed::of_count(decision.map(Decision::unconstrained)),
            current: Packed::of_count(observation.current),
            ready: Packed::of_count(observation.ready),
            pending: Packed::of_count(pending),
            verdict: Verdict::of(variant),
        }
    }

    fn silent(elapsed: Duration) -> Self {
        let none = Packed(None);
        Self {
            at: Millis::of(elapsed),
            desired: none,
            unconstrained: none,
            current: none,
            ready: none,
            pending: none,
            verdict: Verdict::Silent,
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

// === impl Sample ===

impl Sample {
    fn of(at: Millis, variant: &PublishedVariant) -> Self {
        let Load { kv_usage, waiting, running, arrivals } = Load::of(&variant.observation.replicas);
        let saturation = variant.report.as_ref().map(|report| report.saturation.fraction());
        Self {
            at,
            saturation: Packed::of(saturation),
            kv_usage: Packed::of(kv_usage.map(Fraction::fraction)),
            waiting: Packed::of(waiting.map(Requests::requests)),
            running: Packed::of(running.map(Requests::requests)),
            arrivals: Packed::of(arrivals.map(RequestRate::requests_per_second)),
        }
    }

    pub(crate) fn age(&self, elapsed: Duration) -> Duration {
        Millis::of(elapsed).beyond(self.at)
    }

    pub(crate) fn saturation(&self) -> Option<f64> {
        self.saturation.quantity()
    }

    pub(crate) fn kv_usage(&self) -> Option<f64> {
        self.kv_usage.quantity()
    }

    pub(crate) fn waiting(&self) -> Option<f64> {
        self.waiting.quantity()
    }

    pub(crate) fn running(&self) -> Option<f64> {
        self.running.quantity()
    }

    pub(crate) fn arrivals(&self) -> Option<f64> {
        self.arrivals.quantity()
    }
}

// === impl Verdict ===

impl Verdict {
    /// The verdict on a variant.
    #[must_use]
    pub fn of(variant: &PublishedVariant) -> Self {
        match variant.decided.as_ref().map(|decided| decided.decision.basis) {
            Some(Basis::Fresh) => Self::Fresh,
            Some(Basis::Held) => Self::Held,
            None => Self::None,
        }
    }

    /// The verdict as it is written.
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

impl Change {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Desired => "desired",
            Self::Held => "held",
            Self::Released => "released",
            Self::Removed => "removed",
        }
    }
}

impl Because {
    fn of(decision: &Decision) -> Option<Self> {
        let step = decision.because()?;
        let (stage, reason) = (step.stage.label(), step.reason.label());
        Some(Self { stage, reason, text: step.reason.to_string() })
    }
}

// === impl Millis ===

impl Millis {
    fn of(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    const fn beyond(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn age(self, elapsed: Duration) -> Duration {
        Self::of(elapsed).beyond(self)
    }
}

// === impl Packed ===

impl Packed {
    fn of_count(count: Option<Replicas>) -> Self {
        Self(count.and_then(|count| NonZeroU32::new(count.count() + 1)))
    }

    fn count(self) -> Option<Replicas> {
        self.0.map(|it| Replicas::saturating(it.get() - 1))
    }

    #[expect(clippy::cast_possible_truncation, reason = "a chart shows three digits")]
    fn of(quantity: Option<f64>) -> Self {
        let bits = quantity.map(|it| (it as f32).min(f32::MAX).to_bits());
        Self(bits.and_then(|bits| NonZeroU32::new(bits + 1)))
    }

    fn quantity(self) -> Option<f64> {
        self.0.map(|it| f64::from(f32::from_bits(it.get() - 1)))
    }

    const fn is_some(self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests;
