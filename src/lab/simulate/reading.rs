//! The reading that a scrape of a simulated replica would give, without rendering a /metrics
//! response.
//!
//! [`crate::simulate::page::render`] writes the text that vLLM would write, for HTTP clients. A
//! one-day study scrapes millions of times and would spend most of its time on printing and parsing
//! numbers. So [`read`] makes the same [`Reading`] directly from the same counters.
//! `a_reading_is_what_the_page_says` in `tests/it/simulate.rs` compares the two.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use crate::simulate::replica::Replica;
use crate::simulate::replica::adapters::NewestSets;
use crate::simulate::replica::stats;
use plimsoll_core::fleet::ModelName;
use plimsoll_core::observe::engine::Engine;
use plimsoll_core::observe::engine::lora::{LoraPage, Slots};
use plimsoll_core::observe::histogram::Histogram;
use plimsoll_core::observe::{FinishedReading, HttpReading, RankReading, Reading};
use plimsoll_core::units::{Fraction, Requests, Tokens};

/// Samples that a reading uses from a /metrics response, before the HTTP server has answered any
/// request.
const SAMPLES: usize = 246;

/// The samples among them that are gauges which an engine sets at each step.
const GAUGES: usize = 5;

/// The parts of a /metrics response that do not depend on load.
#[derive(Clone, Debug)]
pub struct Names {
    /// The model names in the response.
    pub models: Vec<ModelName>,
    /// The adapter names, indexed by
    /// [`AdapterId`](crate::simulate::replica::adapters::AdapterId).
    pub adapters: Vec<ModelName>,
}

/// Returns the reading of this replica at the simulated time to which it has advanced. `now` is
/// that time by the wall clock.
#[must_use]
pub fn read(names: &Names, started: Timestamp, now: Timestamp, replica: &Replica) -> Reading {
    let counters = replica.counters();
    let gauges = replica.gauges();
    let answered = counters.http.count();
    let deferred = replica.deferred();
    let newest = replica.newest_sets();
    let series = newest.as_ref().map_or(0, |newest| newest.series);
    // Several API servers share one /metrics response, which has no process families, and no gauges
    // before the first step.
    let shared = replica.api_servers() > 1;
    let has_gauges = !shared || counters.steps > 0;
    let absent = usize::from(shared) + if has_gauges { 0 } else { GAUGES };
    let mut rank = RankReading {
        rank: 0,
        running: Requests::new(f64::from(gauges.running)),
        waiting: Requests::new(f64::from(gauges.waiting)),
        waiting_capacity: Requests::new(f64::from(gauges.waiting - deferred)),
        waiting_deferred: Requests::new(f64::from(deferred)),
        kv_usage: Fraction::new(gauges.kv_usage),
        kv_capacity: Tokens::new(replica.kv_tokens() as f64),
        asleep: Some(false),
        prompt_tokens: Tokens::new(counters.prompt_tokens as f64),
        generation_tokens: Tokens::new(counters.generation_tokens as f64),
        prefix_queries: Tokens::new(counters.prefix_queries as f64),
        prefix_hits: Tokens::new(counters.prefix_hits as f64),
        preemptions: Requests::new(counters.preemptions as f64),
        finished: all_stopped(counters.finished),
        ttft: Some(seconds(&counters.ttft)),
        itl: Some(seconds(&counters.itl)),
        e2e: Some(seconds(&counters.e2e)),
        queue_time: Some(seconds(&counters.queue)),
        inference_time: Some(seconds(&counters.inference)),
        prefill_time: Some(seconds(&counters.prefill)),
        prompt_length: Some(plain(&counters.prompt_length)),
        computed_length: Some(plain(&counters.computed_length)),
        generation_length: Some(plain(&counters.generation_length)),
        completions_asked: Some(asked(counters.finished)),
        step_tokens: Some(plain(&counters.iteration_tokens)),
    };

    if !has_gauges {
        rank.running = None;
        rank.waiting = None;
        rank.waiting_capacity = None;
        rank.waiting_deferred = None;
        rank.kv_usage = None;
    }

    rank.fill_unserved();
    Reading {
        engine: Engine::Vllm,
        samples: SAMPLES - absent + usize::from(answered > 0) + series,
        started: (!shared).then_some(started),
        models: names.models.clone(),
        http: HttpReading {
            success: if answered > 0 { Requests::new(answered as f64) } else { None },
            success_series: Some(u32::from(answered > 0)),
            ..HttpReading::default()
        },
        rejected: Requests::new(0.0),
        lora: newest.map(|newest| Box::new(lora(names, now, replica.now(), &newest))),
        ranks: vec![rank],
    }
}

/// So many finished requests. A simulated answer always ends with a stop token.
fn all_stopped(finished: u64) -> FinishedReading {
    let none = Requests::new(0.0);
    let stop = Requests::new(finished as f64);
    FinishedReading { stop, length: none, abort: none, error: none, other: none }
}

/// The state of the newest `LoRA` series. vLLM puts the running adapters in both lists.
fn lora(names: &Names, now: Timestamp, reached: Micros, newest: &NewestSets) -> LoraPage {
    let ago = SignedDuration::try_from(reached.since(newest.at).duration()).unwrap_or_default();
    let at = now.saturating_sub(ago).unwrap_or(now);
    let running: BTreeSet<ModelName> = newest
        .running
        .iter()
        .filter_map(|adapter| names.adapters.get(usize::from(adapter.place())).cloned())
        .collect();

    LoraPage {
        value: at.as_microsecond() as f64 / 1e6,
        slots: Slots::new(u32::from(newest.slots)),
        waiting: running.clone(),
        running,
    }
}

fn plain(histogram: &stats::EngineHistogram) -> Histogram {
    scaled(histogram, 1.0)
}

fn seconds(histogram: &stats::EngineHistogram) -> Histogram {
    scaled(histogram, 1e6)
}

fn scaled(histogram: &stats::EngineHistogram, unit: f64) -> Histogram {
    let edges = histogram.edges().iter().map(|&edge| edge as f64 / unit).chain([f64::INFINITY]);
    let buckets: Vec<(f64, f64)> =
        edges.zip(histogram.cumulative().map(|count| count as f64)).collect();
    let count = buckets.last().map_or(0.0, |last| last.1);
    Histogram { sum: histogram.sum() as f64 / unit, count, buckets }
}

/// The histogram of answers per request: every request asks for one.
fn asked(finished: u64) -> Histogram {
    let mut answers = stats::EngineHistogram::new(&stats::ANSWER_EDGES);
    answers.observe(1, finished);
    plain(&answers)
}
