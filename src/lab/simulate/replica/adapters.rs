//! `LoRA` adapters: the adapters that a step can serve, the cost of loading one, and their metrics.
//!
//! # Model
//!
//! A step serves at most one adapter per slot. The scheduler skips a waiting request whose adapter
//! has no slot and checks the requests behind it, as vLLM's does. An adapter stays in its slot
//! until another adapter needs it; the least recently used adapter goes first. Loading an adapter
//! makes the step that admits its request longer.
//!
//! Requests without an adapter run together with any others.
//!
//! # Source
//!
//! vLLM 0.33: `Scheduler.schedule` skips requests beyond `max_loras`; `LRUCacheWorkerLoRAManager`
//! evicts; `LoggingStatLogger` and `PrometheusStatLogger` list running adapters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use plimsoll_core::settings;
use plimsoll_core::settings::minutes;

/// The most adapters of one engine: a set of them is a 64-bit number.
pub const ADAPTERS_MAX: u8 = 64;

/// An adapter, by its index in the caller's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterId(u8);

settings! {
    /// How an engine serves `LoRA` adapters.
    #[derive(Copy, Eq)]
    pub struct AdapterSettings {
        /// Adapters that one step serves (`--max-loras`); at least one in effect.
        slots: u8 = 1, in 1..=u32::from(ADAPTERS_MAX);

        /// How much longer a step takes in which one is loaded.
        // Even from a disk, an adapter loads within seconds.
        load: Micros, in Duration::ZERO..=minutes(1);
    }
}

/// The adapter statistics that an engine reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStats {
    slots: u8,
    now: Micros,
    /// Each set of adapters that has ever run together, as bits, with the time at which it last
    /// ran.
    series: BTreeMap<u64, Micros>,
    /// Adapter loads since the start.
    pub loads: u64,
}

/// The newest part of the reported adapter statistics: the sets with the latest time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestSets {
    /// Adapters that one step serves.
    pub slots: u8,
    /// The adapters that ran at that time.
    pub running: BTreeSet<AdapterId>,
    /// The latest time.
    pub at: Micros,
    /// The number of sets in the /metrics response, including older ones.
    pub series: usize,
}

/// The adapters of one engine.
#[derive(Clone, Debug)]
pub(super) struct Adapters {
    settings: AdapterSettings,
    /// The adapters of unfinished requests.
    of: BTreeMap<u64, AdapterId>,
    /// Requests in the batch, by adapter.
    batch: BTreeMap<AdapterId, u32>,
    /// Adapters in slots; the most recently used one is last.
    loaded: VecDeque<AdapterId>,
    /// The loading time that extends the step under construction.
    loading: Micros,
    /// Loads so far.
    pub(super) loads: u64,
    series: BTreeMap<u64, Micros>,
    /// The time of the last record, and all adapters recorded at that time, as bits.
    newest: (Micros, u64),
}

impl AdapterId {
    /// The adapter at this index.
    #[must_use]
    pub const fn new(place: u8) -> Option<Self> {
        if place < ADAPTERS_MAX { Some(Self(place)) } else { None }
    }

    /// The index of the adapter.
    #[must_use]
    pub const fn place(self) -> u8 {
        self.0
    }
}

// === impl Adapters ===

impl Adapters {
    pub(super) fn new(settings: AdapterSettings) -> Self {
        Self {
            settings: AdapterSettings { slots: settings.slots.max(1), ..settings },
            of: BTreeMap::new(),
            batch: BTreeMap::new(),
            loaded: VecDeque::new(),
            loading: Micros::ZERO,
            loads: 0,
            series: BTreeMap::new(),
            newest: (Micros::ZERO, 0),
        }
    }

    /// Records the adapter of a request.
    pub(super) fn expect(&mut self, request: u64, adapter: AdapterId) {
        self.of.insert(request, adapter);
    }

    /// Returns true if the next step can serve a request.
    pub(super) fn admits(&self, request: u64) -> bool {
        let Some(adapter) = self.of.get(&request) else { return true };
        self.batch.contains_key(adapter) || self.batch.len() < usize::from(self.settings.slots)
    }

    /// Adds a request to the batch, and loads its adapter if necessary.
    pub(super) fn enter(&mut self, request: u64) {
        let Some(&adapter) = self.of.get(&request) else { return };
        *self.batch.entry(adapter).or_default() += 1;
        if let Some(place) = self.loaded.iter().position(|it| *it == adapter) {
            self.loaded.remove(place);
        } else {
            if self.loaded.len() >= usize::from(self.settings.slots) {
                let unused = self.loaded.iter().position(|it| !self.batch.contains_key(it));
                self.loaded.remove(unused.unwrap_or_default());
            }
            self.loading += self.settings.load;
            self.loads += 1;
        }

        self.loaded.push_back(adapter);
    }

    /// Removes a request from the batch.
    pub(super) fn leave(&mut self, request: u64) {
        let Some(adapter) = self.of.get(&request) else { return };
        if let Some(count) = self.batch.get_mut(adapter) {
            *count -= 1;
            if *count == 0 {
                self.batch.remove(adapter);
                self.loaded.retain(|it| it != adapter);
                self.loaded.push_back(*adapter);
            }
        }
    }

    /// Forgets a request that has left for good.
    pub(super) fn forget(&mut self, request: u64) {
        self.of.remove(&request);
    }

    /// Returns and resets the loading time that extends the step just built.
    pub(super) fn take_loading(&mut self) -> Micros {
        std::mem::take(&mut self.loading)
    }

    /// Records the adapters that ran up to now.
    pub(super) fn record(&mut self, now: Micros) {
        let bits = self.bits();
        self.series.insert(bits, now);
        let (at, known) = self.newest;
        self.newest = (now, if at == now { known | bits } else { bits });
    }

    pub(super) fn newest(&self, now: Micros) -> Option<NewestSets> {
        let (mut at, mut bits) = self.newest;
        let mut series = self.series.len();
        if !self.batch.is_empty() {
            let present = self.bits();
            series += usize::from(!self.series.contains_key(&present));
            bits = if at == now { bits | present } else { present };
            at = now;
        }

        let adapters = (0..ADAPTERS_MAX).map(AdapterId);
        let running = adapters.filter(|adapter| bits >> adapter.0 & 1 == 1).collect();
        (series > 0).then_some(NewestSets { slots: self.settings.slots, running, at, series })
    }

    /// Returns the state of the slots for an adapter.
    pub(super) fn holds(&self, adapter: AdapterId) -> Holds {
        if self.loaded.contains(&adapter) {
            Holds::Loaded
        } else if self.loaded.len() < usize::from(self.settings.slots) {
            Holds::Free
        } else {
            Holds::Others
        }
    }

    pub(super) fn stats(&self, now: Micros) -> AdapterStats {
        let mut series = self.series.clone();
        if !self.batch.is_empty() {
            series.insert(self.bits(), now);
        }
        AdapterStats { slots: self.settings.slots, now, series, loads: self.loads }
    }

    fn bits(&self) -> u64 {
        self.batch.keys().fold(0, |bits, adapter| bits | 1 << adapter.0)
    }
}

/// The state of an engine's slots for an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// The adapter is in a slot.
    Loaded,
    /// At least one slot is empty.
    Free,
    /// Other adapters are in all slots.
    Others,
}

// === impl AdapterStats ===

impl AdapterStats {
    /// Renders the adapter family of a /metrics response for the wall-clock time `now`, with the
    /// adapters' names by index. As in vLLM, every set of adapters that has run is a separate
    /// series that stays, and both labels list the running adapters.
    #[must_use]
    pub fn page(&self, now: Timestamp, names: &[String]) -> String {
        let name = "vllm:lora_requests_info";
        let mut page = format!("# HELP {name} Adapters with requests.\n# TYPE {name} gauge\n");
        for (bits, at) in &self.series {
            let set = names.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
            let running = set.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",");
            let ago = SignedDuration::try_from(self.now.since(*at).duration()).unwrap_or_default();
            let at = now.saturating_sub(ago).unwrap_or(now).as_microsecond() as f64 / 1e6;
            let _infallible = writeln!(
                page,
                "{name}{{max_lora=\"{}\",running_lora_adapters=\"{running}\",\
                 waiting_lora_adapters=\"{running}\"}} {at:?}",
                self.slots
            );
        }

        page
    }
}
