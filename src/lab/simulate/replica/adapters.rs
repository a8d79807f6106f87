//! `LoRA` adapters: which of them a step can serve, what loading one costs, and what is said of them.
//!
//! # Model
//!
//! A step serves as many adapters as there are slots. A waiting request whose adapter has none is
//! passed over, and those behind it are looked at, as vLLM's scheduler does. An adapter stays in its
//! slot until another needs it, and the one goes that was used least recently. Loading one makes the
//! step longer in which its request is admitted.
//!
//! Requests without an adapter are served beside any others.
//!
//! # Source
//!
//! vLLM 0.33: `Scheduler.schedule` passes over requests beyond `max_loras`; `LRUCacheWorkerLoRAManager`
//! evicts; `LoggingStatLogger` and `PrometheusStatLogger` list adapters that run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use crate::simulate::replica::{Replica, count};
use plimsoll_core::settings;
use plimsoll_core::settings::minutes;

/// Adapters that one engine can be asked for: they are the bits of a number.
pub const ADAPTERS_MAX: u8 = 64;

/// An adapter, by its place in a list that the caller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterId(u8);

settings! {
    /// How an engine serves `LoRA` adapters.
    #[derive(Copy, Eq)]
    pub struct AdapterSettings {
        /// Adapters that one step serves (`--max-loras`); at least one in effect.
        slots: u8 = 1, in 1..=u32::from(ADAPTERS_MAX);

        /// How much longer a step takes in which one is loaded.
        // Adapters come from a disk at the slowest, in seconds.
        load: Micros, in Duration::ZERO..=minutes(1);
    }
}

/// What an engine says of its adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStats {
    slots: u8,
    now: Micros,
    /// Each set of adapters that has ever run together, as bits, and when it last did.
    series: BTreeMap<u64, Micros>,
    /// Adapters that have been loaded since the start.
    pub loads: u64,
}

/// The newest of what an engine says of its adapters: the sets that it gives the latest time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestSets {
    /// Adapters that one step serves.
    pub slots: u8,
    /// Those that ran at that time.
    pub running: BTreeSet<AdapterId>,
    /// The time.
    pub at: Micros,
    /// How many sets its page has, older ones included.
    pub series: usize,
}

/// The adapters of one engine.
#[derive(Clone, Debug)]
pub(super) struct Adapters {
    settings: AdapterSettings,
    /// The adapters of requests that have not finished.
    of: BTreeMap<u64, AdapterId>,
    /// Requests in the batch, by adapter.
    batch: BTreeMap<AdapterId, u32>,
    /// Adapters in slots; the one that was used last is at the end.
    loaded: VecDeque<AdapterId>,
    /// What loading adds to the step that is being built.
    loading: Micros,
    loads: u64,
    series: BTreeMap<u64, Micros>,
    /// The last time at which adapters were noted, and all that were noted then, as bits.
    newest: (Micros, u64),
}

impl AdapterId {
    /// The adapter at this place.
    #[must_use]
    pub const fn new(place: u8) -> Option<Self> {
        if place < ADAPTERS_MAX { Some(Self(place)) } else { None }
    }

    /// Its place.
    #[must_use]
    pub const fn place(self) -> u8 {
        self.0
    }
}

// === impl Replica ===

impl Replica {
    /// The same engine, which serves adapters as well.
    #[must_use]
    pub fn with_adapters(self, settings: AdapterSettings) -> Self {
        Self { adapters: Some(Box::new(Adapters::new(settings))), ..self }
    }

    /// Notes which adapter a request asks for that has been submitted at this instant. Its number must be
    /// no other request's.
    pub fn ask_for(&mut self, request: u64, adapter: AdapterId) {
        if let Some(adapters) = &mut self.adapters {
            adapters.expect(request, adapter);
        }
    }

    /// What it says of its adapters; `None` when it serves none.
    #[must_use]
    pub fn adapters(&self) -> Option<AdapterStats> {
        self.adapters.as_ref().map(|adapters| adapters.stats(self.now))
    }

    /// Adapters that it has loaded since its start.
    pub(crate) fn adapter_loads(&self) -> u64 {
        self.adapters.as_ref().map_or(0, |adapters| adapters.loads)
    }

    /// The newest of what it says of its adapters, without the cost of all the rest; `None` when it
    /// serves none, or none was asked for yet.
    #[must_use]
    pub fn newest_sets(&self) -> Option<NewestSets> {
        self.adapters.as_ref().and_then(|adapters| adapters.newest(self.now))
    }

    /// What its slots hold for an adapter; `None` when it serves none.
    #[must_use]
    pub fn holds(&self, adapter: AdapterId) -> Option<Holds> {
        self.adapters.as_ref().map(|adapters| adapters.holds(adapter))
    }

    /// The place in the queue of the first request that a step can serve. Without adapters it is the
    /// head; else those whose adapter has no slot are passed over.
    pub(super) fn next_to_admit(&self) -> Option<usize> {
        match &self.adapters {
            None => (!self.waiting.is_empty()).then_some(0),
            Some(adapters) => {
                self.waiting.iter().position(|&index| adapters.admits(self.lives[index].request.id))
            }
        }
    }

    /// How much longer loading adapters makes the step that has been built.
    pub(super) fn loading(&mut self) -> Micros {
        self.adapters.as_mut().map(|adapters| adapters.take_loading()).unwrap_or_default()
    }

    /// Requests that wait for a slot for their adapter, or for the cache of their prompt.
    pub(crate) fn deferred(&self) -> u32 {
        let Some(adapters) = &self.adapters else { return self.fetching() };
        let waiting = self.waiting.iter();
        let blocked = waiting.filter(|&&index| !adapters.admits(self.lives[index].request.id));
        count(blocked.count()) + self.fetching()
    }
}

// === impl Adapters ===

impl Adapters {
    pub(super) fn new(settings: AdapterSettings) -> Self {
        let settings = AdapterSettings { slots: settings.slots.max(1), ..settings };
        Self {
            settings,
            of: BTreeMap::new(),
            batch: BTreeMap::new(),
            loaded: VecDeque::new(),
            loading: Micros::ZERO,
            loads: 0,
            series: BTreeMap::new(),
            newest: (Micros::ZERO, 0),
        }
    }

    /// Notes which adapter a request asks for.
    pub(super) fn expect(&mut self, request: u64, adapter: AdapterId) {
        self.of.insert(request, adapter);
    }

    /// Whether the next step can serve a request.
    pub(super) fn admits(&self, request: u64) -> bool {
        let Some(adapter) = self.of.get(&request) else { return true };
        self.batch.contains_key(adapter) || self.batch.len() < usize::from(self.settings.slots)
    }

    /// Takes a request into the batch, and loads its adapter if need be.
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

    /// Takes a request out of the batch.
    pub(super) fn leave(&mut self, request: u64) {
        let Some(adapter) = self.of.get(&request) else { return };
        if let Some(count) = self.batch.get_mut(adapter) {
            *count -= 1;
            if *count == 0 {
                self.batch.remove(adapter);
            }
        }
    }

    /// Forgets a request that has left for good.
    pub(super) fn forget(&mut self, request: u64) {
        self.of.remove(&request);
    }

    /// What loading adds to the step that has been built.
    fn take_loading(&mut self) -> Micros {
        std::mem::take(&mut self.loading)
    }

    /// Notes which adapters ran up to now.
    pub(super) fn record(&mut self, now: Micros) {
        let bits = self.bits();
        self.series.insert(bits, now);
        let (at, known) = self.newest;
        self.newest = (now, if at == now { known | bits } else { bits });
    }

    fn newest(&self, now: Micros) -> Option<NewestSets> {
        let (mut at, mut bits) = self.newest;
        let mut series = self.series.len();
        if !self.batch.is_empty() {
            let present = self.bits();
            series += usize::from(!self.series.contains_key(&present));
            bits = if at == now { bits | present } else { present };
            at = now;
        }
        let runs = |adapter: &AdapterId| bits >> adapter.0 & 1 == 1;
        let running = (0..ADAPTERS_MAX).map(AdapterId).filter(runs).collect();
        (series > 0).then_some(NewestSets { slots: self.settings.slots, running, at, series })
    }

    /// Whether an adapter is in a slot, or has one that no other is in.
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

/// What an engine's slots hold for an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// The adapter itself.
    Loaded,
    /// Nothing, in at least one slot.
    Free,
    /// Others, in all slots.
    Others,
}

// === impl AdapterStats ===

impl AdapterStats {
    /// The family of a metrics page at the instant that `now` is of the wall clock, with the names
    /// of the adapters in the order of their places. Every set of adapters that has run is a series
    /// of its own and stays, and both labels list those that run: so does vLLM.
    #[must_use]
    pub fn page(&self, now: Timestamp, names: &[String]) -> String {
        let name = "vllm:lora_requests_info";
        let mut page = format!("# HELP {name} Adapters with requests.\n# TYPE {name} gauge\n");
        for (bits, at) in &self.series {
            let running = names.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
            let running: Vec<&str> = running.map(|(_, name)| name.as_str()).collect();
            let running = running.join(",");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::replica::settings::{Admission, Settings, StepTime};
    use crate::simulate::replica::{Event, Finished, Request};

    /// An engine whose steps take 10 ms, with two slots; loading an adapter takes 100 ms.
    fn engine() -> Replica {
        let settings = Settings {
            step: StepTime::dense(10_000.0, 0.0, 0.0, 0.0),
            max_num_seqs: 8,
            max_num_batched_tokens: 1_000,
            block_size: 16,
            kv_blocks: 1_000,
            admission: Admission::WholePrompt,
        };
        let adapters = AdapterSettings { slots: 2, load: Micros::new(100_000) };
        Replica::new(settings).unwrap().with_adapters(adapters)
    }

    fn adapter(place: u8) -> AdapterId {
        AdapterId::new(place).unwrap()
    }

    fn ask(engine: &mut Replica, id: u64, place: u8, output: u32) {
        let request = Request { id, prompt: 10, output };
        engine.submit(Micros::ZERO, request).unwrap();
        engine.ask_for(id, adapter(place));
    }

    fn finished(engine: &mut Replica) -> Vec<Finished> {
        let mut events = Vec::new();
        engine.advance_to(Micros::from_secs(10), &mut events);
        let finished = events.into_iter().filter_map(|event| match event {
            Event::Finished(finished) => Some(finished),
            Event::FirstToken { .. } | Event::Preempted { .. } => None,
        });
        finished.collect()
    }

    #[test]
    fn a_request_whose_adapter_has_no_slot_is_passed_over_until_one_is_free() {
        let mut engine = engine();
        for (id, place) in [(0, 0), (1, 1), (2, 2), (3, 0)] {
            ask(&mut engine, id, place, 5);
        }
        engine.advance_to(Micros::new(205_000), &mut Vec::new());
        let stats = engine.snapshot();
        assert_eq!((stats.running, stats.waiting, stats.deferred), (3, 1, 1));
        let order: Vec<u64> = finished(&mut engine).iter().map(|it| it.request.id).collect();
        assert_eq!(order, [0, 1, 3, 2], "the last one shares the slot of the first");
    }

    #[test]
    fn loading_makes_a_step_longer_and_the_one_that_was_used_least_recently_goes() {
        let mut engine = engine();
        for (id, place) in [(0, 0), (1, 1)] {
            ask(&mut engine, id, place, 1);
        }
        let first = finished(&mut engine);
        assert_eq!(first[0].e2e, Micros::new(210_000), "two are loaded in one step");
        assert_eq!(engine.holds(adapter(0)), Some(Holds::Loaded));
        ask(&mut engine, 2, 2, 1);
        engine.advance_to(Micros::from_secs(20), &mut Vec::new());
        assert_eq!(engine.holds(adapter(0)), Some(Holds::Others), "it was used first");
        assert_eq!(engine.holds(adapter(1)), Some(Holds::Loaded));
        assert_eq!(engine.adapters().unwrap().loads, 3);
    }

    #[test]
    fn every_set_that_has_run_stays_on_the_page_and_the_newest_is_the_present_one() {
        let mut engine = engine();
        ask(&mut engine, 0, 0, 3);
        ask(&mut engine, 1, 1, 9);
        engine.advance_to(Micros::new(260_000), &mut Vec::new());
        let now = Timestamp::from_second(1_000).unwrap();
        let names = ["sql".to_owned(), "chat".to_owned()];
        let page = engine.adapters().unwrap().page(now, &names);
        let line = |names: &str, at: &str| {
            format!(
                "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{names}\",\
                 waiting_lora_adapters=\"{names}\"}} {at}\n"
            )
        };
        // The third step, in which the first request ends, is over at 230 ms.
        assert!(page.contains(&line("sql,chat", "999.96")), "{page}");
        assert!(page.contains(&line("chat", "1000.0")), "{page}");
    }
}
