//! An engine with slots for adapters: the requests that it can admit, and its statistics.

use crate::simulate::Micros;
use crate::simulate::replica::Replica;
use crate::simulate::replica::adapters::{
    AdapterId, AdapterSettings, AdapterStats, Adapters, Holds, NewestSets,
};
use crate::simulate::replica::stats::count;

impl Replica {
    /// The same engine with support for adapters.
    #[must_use]
    pub fn with_adapters(self, settings: AdapterSettings) -> Self {
        Self { adapters: Some(Box::new(Adapters::new(settings))), ..self }
    }

    /// Records the adapter of a request that was submitted at this instant. The request's ID must
    /// be unique.
    pub fn ask_for(&mut self, request: u64, adapter: AdapterId) {
        if let Some(adapters) = &mut self.adapters {
            adapters.expect(request, adapter);
        }
    }

    /// The adapter statistics that it reports; `None` if it serves no adapters.
    #[must_use]
    pub fn adapters(&self) -> Option<AdapterStats> {
        self.adapters.as_ref().map(|adapters| adapters.stats(self.now))
    }

    /// Adapter loads since its start.
    pub(crate) fn adapter_loads(&self) -> u64 {
        self.adapters.as_ref().map_or(0, |adapters| adapters.loads)
    }

    /// The newest part of the adapter statistics, which is cheaper than all of them; `None` if it
    /// serves no adapters, or none was requested yet.
    #[must_use]
    pub fn newest_sets(&self) -> Option<NewestSets> {
        self.adapters.as_ref().and_then(|adapters| adapters.newest(self.now))
    }

    /// The state of its slots for an adapter; `None` if it serves no adapters.
    #[must_use]
    pub fn holds(&self, adapter: AdapterId) -> Option<Holds> {
        self.adapters.as_ref().map(|adapters| adapters.holds(adapter))
    }

    /// The place in the queue of the first request that a step can serve. Without adapters it is
    /// the head. Otherwise requests whose adapter has no slot are skipped.
    pub(super) fn next_to_admit(&self) -> Option<usize> {
        match &self.adapters {
            None => (!self.waiting.is_empty()).then_some(0),
            Some(adapters) => {
                self.waiting.iter().position(|&index| adapters.admits(self.lives[index].request.id))
            }
        }
    }

    /// The loading time of adapters that extends the step just built.
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::simulate::replica::settings::{Admission, Settings, StepTime};
    use crate::simulate::replica::{EngineEvent, Finished, Request};

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
        let ended = events.into_iter().filter_map(|event| match event {
            EngineEvent::Finished(life) => Some(life),
            EngineEvent::FirstToken { .. } | EngineEvent::Preempted { .. } => None,
        });
        ended.collect()
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

        // The third step, which ends the first request, is over at 230 ms.
        for (names, at) in [("sql,chat", "999.96"), ("chat", "1000.0")] {
            let line = format!(
                "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{names}\",\
                 waiting_lora_adapters=\"{names}\"}} {at}\n"
            );
            assert!(page.contains(&line), "{page}");
        }
    }
}
