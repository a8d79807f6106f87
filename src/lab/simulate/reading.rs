//! What a scrape of a replica's page would say, without the page.
//!
//! [`crate::simulate::page::render`] writes the text that vLLM would write, for whoever asks over
//! HTTP. A study of a day asks some millions of times, and would spend its time on printing numbers
//! and reading them again, so [`read`] makes the same [`Reading`] from the same counters.
//! `a_reading_is_what_the_page_says` in `tests/it/simulate.rs` compares the two.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use crate::simulate::replica::Replica;
use crate::simulate::replica::adapters::{AdapterId, NewestSets};
use crate::simulate::replica::stats;
use plimsoll_core::fleet::ModelName;
use plimsoll_core::observe::engine::Engine;
use plimsoll_core::observe::engine::lora::{LoraPage, Slots};
use plimsoll_core::observe::histogram::Histogram;
use plimsoll_core::observe::{FinishedReading, HttpReading, RankReading, Reading};
use plimsoll_core::units::{Fraction, Requests, Tokens};

/// Samples of a page that a reading is made of, before the HTTP server has answered anything.
const SAMPLES: usize = 203;

/// Those of them that are gauges which an engine sets at each step.
const GAUGES: usize = 5;

/// What a page says that has nothing to do with load.
#[derive(Clone, Debug)]
pub struct Names {
    /// The model names on the page.
    pub models: Vec<ModelName>,
    /// Those of adapters, in the order of their places.
    pub adapters: Vec<ModelName>,
}

/// What a scrape of this replica would read at the time up to which it has been advanced, which is
/// `now` by the wall clock.
#[must_use]
pub fn read(names: &Names, started: Timestamp, now: Timestamp, replica: &Replica) -> Reading {
    let counters = replica.counters();
    let gauges = replica.gauges();
    let finished = Requests::new(counters.finished as f64);
    let answered = counters.http.count();
    let deferred = replica.deferred();
    let newest = replica.newest_sets();
    let series = newest.as_ref().map_or(0, |newest| newest.series);
    // Several API servers share a page without a process, and without gauges before the first step.
    let shared = replica.api_servers() > 1;
    let has_gauges = !shared || counters.steps > 0;
    let gauge = |count: u32| Requests::new(f64::from(count)).filter(|_| has_gauges);
    let absent = usize::from(shared) + if has_gauges { 0 } else { GAUGES };
    let mut rank = RankReading {
        rank: 0,
        running: gauge(gauges.running),
        waiting: gauge(gauges.waiting),
        waiting_capacity: gauge(gauges.waiting - deferred),
        waiting_deferred: gauge(deferred),
        kv_usage: Fraction::new(gauges.kv_usage).filter(|_| has_gauges),
        kv_capacity: Tokens::new(replica.kv_tokens() as f64),
        asleep: Some(false),
        prompt_tokens: Tokens::new(counters.prompt_tokens as f64),
        generation_tokens: Tokens::new(counters.generation_tokens as f64),
        prefix_queries: Tokens::new(counters.prefix_queries as f64),
        prefix_hits: Tokens::new(counters.prefix_hits as f64),
        preemptions: Requests::new(counters.preemptions as f64),
        finished: FinishedReading {
            stop: finished,
            length: Requests::new(0.0),
            abort: Requests::new(0.0),
            error: Requests::new(0.0),
            other: Requests::new(0.0),
        },
        ttft: Some(seconds(&counters.ttft)),
        itl: Some(seconds(&counters.itl)),
        e2e: Some(seconds(&counters.e2e)),
        queue_time: Some(seconds(&counters.queue)),
        inference_time: Some(seconds(&counters.inference)),
        prompt_length: Some(plain(&counters.prompt_length)),
        generation_length: Some(plain(&counters.generation_length)),
        completions_asked: Some(asked(counters.finished)),
        step_tokens: Some(plain(&counters.iteration_tokens)),
    };
    rank.fill_unserved();
    Reading {
        engine: Engine::Vllm,
        samples: SAMPLES - absent + usize::from(answered > 0) + series,
        started: (!shared).then_some(started),
        models: names.models.clone(),
        http: HttpReading {
            success: if answered > 0 { Requests::new(answered as f64) } else { None },
            client_error: None,
            server_error: None,
        },
        rejected: Requests::new(0.0),
        lora: newest.map(|newest| Box::new(lora(names, now, replica.now(), &newest))),
        ranks: vec![rank],
    }
}

/// What the newest series say. vLLM gives both lists the adapters that run.
fn lora(names: &Names, now: Timestamp, reached: Micros, newest: &NewestSets) -> LoraPage {
    let ago = SignedDuration::try_from(reached.since(newest.at).duration()).unwrap_or_default();
    let at = now.saturating_sub(ago).unwrap_or(now);
    let name = |it: &AdapterId| names.adapters.get(usize::from(it.place())).cloned();
    let running: BTreeSet<ModelName> = newest.running.iter().filter_map(name).collect();
    LoraPage {
        value: at.as_microsecond() as f64 / 1e6,
        slots: Slots::new(u32::from(newest.slots)),
        waiting: running.clone(),
        running,
    }
}

fn plain(histogram: &stats::Histogram) -> Histogram {
    scaled(histogram, 1.0)
}

fn seconds(histogram: &stats::Histogram) -> Histogram {
    scaled(histogram, 1e6)
}

fn scaled(histogram: &stats::Histogram, unit: f64) -> Histogram {
    let edges = histogram.edges().iter().map(|&edge| edge as f64 / unit).chain([f64::INFINITY]);
    let buckets: Vec<(f64, f64)> =
        edges.zip(histogram.cumulative().map(|count| count as f64)).collect();
    let count = buckets.last().map_or(0.0, |(_, count)| *count);
    Histogram { sum: histogram.sum() as f64 / unit, count, buckets }
}

/// Every request asks for one answer.
fn asked(finished: u64) -> Histogram {
    let mut answers = stats::Histogram::new(&stats::ANSWER_EDGES);
    answers.observe(1, finished);
    plain(&answers)
}
