//! The statistics of an engine: gauges, counters and histograms, with vLLM's bucket sizes.
//!
//! Sums are integers (microseconds, tokens, requests), so the order of observations cannot change a
//! /metrics response.

use crate::simulate::Micros;
use crate::simulate::replica::request::Finished;
use crate::simulate::replica::speculation::DraftCounters;

/// Bucket edges of the time to first token, in microseconds.
pub static TTFT_EDGES: Edges = Edges::new(&[
    1_000,
    5_000,
    10_000,
    20_000,
    40_000,
    60_000,
    80_000,
    100_000,
    250_000,
    500_000,
    750_000,
    1_000_000,
    2_500_000,
    5_000_000,
    7_500_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    640_000_000,
    2_560_000_000,
]);

/// Bucket edges of the time between tokens, in microseconds.
pub static ITL_EDGES: Edges = Edges::new(&[
    10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 20_000_000, 40_000_000, 80_000_000,
]);

/// Bucket edges of whole requests' durations and of their phases, in microseconds.
pub static REQUEST_EDGES: Edges = Edges::new(&[
    300_000,
    500_000,
    800_000,
    1_000_000,
    1_500_000,
    2_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    40_000_000,
    50_000_000,
    60_000_000,
    120_000_000,
    240_000_000,
    480_000_000,
    960_000_000,
    1_920_000_000,
    7_680_000_000,
]);

/// Bucket edges of tokens per request, for a model length of 131,072: 1, 2, 5 times powers of ten.
pub static TOKEN_EDGES: Edges = Edges::new(&[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
]);

/// Bucket edges of tokens per step.
pub static ITERATION_EDGES: Edges =
    Edges::new(&[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384]);

/// Bucket edges of preemptions per request.
pub static PREEMPTION_EDGES: Edges = Edges::new(&[1, 2, 3, 4, 5, 10, 20]);

/// Bucket edges of answers per request.
pub static ANSWER_EDGES: Edges = Edges::new(&[1, 2, 5, 10, 20]);

/// Bucket edges of the HTTP server's response times, in microseconds.
pub static HTTP_EDGES: Edges = Edges::new(&[
    10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000, 1_500_000,
    2_000_000, 2_500_000, 3_000_000, 3_500_000, 4_000_000, 4_500_000, 5_000_000, 7_500_000,
    10_000_000, 30_000_000, 60_000_000,
]);

/// Upper edges of buckets, in ascending order.
///
/// An engine observes a dozen values for each request. So the first candidate bucket is stored for
/// each quarter of a power of two, and a lookup compares only an edge or two.
#[derive(Debug, PartialEq, Eq)]
pub struct Edges {
    edges: &'static [u64],
    first: [u8; QUARTERS],
}

/// A histogram of integers, whose buckets include their upper edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineHistogram {
    edges: &'static Edges,
    /// One count per edge, and one for values above the last edge.
    counts: Vec<u64>,
    sum: u64,
}

// === impl Edges ===

/// Quarters of the powers of two in 64 bits.
const QUARTERS: usize = 252;

/// The quarter of a power of two that a value is in; each small value has its own.
#[expect(clippy::cast_possible_truncation, reason = "the value is below 252")]
const fn quarter(value: u64) -> usize {
    let exponent = (u64::BITS - value.leading_zeros()).saturating_sub(3);
    exponent as usize * 4 + (value >> exponent) as usize
}

impl Edges {
    /// These edges; there must be fewer than 256.
    #[expect(clippy::cast_possible_truncation, reason = "there are so few edges")]
    const fn new(edges: &'static [u64]) -> Self {
        let mut first = [0; QUARTERS];
        let mut at = 0;
        let mut edge = 0;
        while at < QUARTERS {
            while edge < edges.len() && quarter(edges[edge]) < at {
                edge += 1;
            }
            first[at] = edge as u8;
            at += 1;
        }

        Self { edges, first }
    }

    /// The bucket of a value: the number of edges below it.
    fn bucket(&self, value: u64) -> usize {
        let mut bucket = usize::from(self.first[quarter(value)]);
        while self.edges.get(bucket).is_some_and(|&edge| edge < value) {
            bucket += 1;
        }
        bucket
    }
}

// === impl EngineHistogram ===

impl EngineHistogram {
    /// An empty histogram with these edges.
    #[must_use]
    pub fn new(edges: &'static Edges) -> Self {
        Self { edges, counts: vec![0; edges.edges.len() + 1], sum: 0 }
    }

    /// Counts `times` observations of one value.
    pub fn observe(&mut self, value: u64, times: u64) {
        let bucket = self.edges.bucket(value);
        self.counts[bucket] += times;
        self.sum += value * times;
    }

    /// The upper edges of all buckets except the last, which has none.
    #[must_use]
    pub const fn edges(&self) -> &'static [u64] {
        self.edges.edges
    }

    /// Observations up to each edge, then all observations.
    pub fn cumulative(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        })
    }

    /// The number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all observations.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }
}

/// Consecutive observations, which usually fall into the same bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Values above this, up to and including `last`, are in the bucket.
    below: u64,
    last: u64,
    bucket: usize,
    count: u64,
    sum: u64,
}

impl Run {
    /// Counts `times` observations of one value. If the bucket changes, flushes the earlier ones
    /// first.
    pub(crate) fn observe(&mut self, value: u64, times: u64, histogram: &mut EngineHistogram) {
        if value <= self.below || value > self.last {
            self.flush(histogram);
            self.bucket = histogram.edges.bucket(value);
            let edges = histogram.edges.edges;
            self.below = self.bucket.checked_sub(1).map_or(0, |before| edges[before]);
            self.last = edges.get(self.bucket).copied().unwrap_or(u64::MAX);
        }

        self.count += times;
        self.sum += value * times;
    }

    /// Adds the counted observations to the histogram.
    pub(crate) fn flush(&mut self, histogram: &mut EngineHistogram) {
        histogram.counts[self.bucket] += self.count;
        histogram.sum += self.sum;
        self.count = 0;
        self.sum = 0;
    }
}

/// The load of a replica at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: u32,
    /// Requests in the waiting queue.
    pub waiting: u32,
    /// The share of the KV cache in use.
    pub kv_usage: f64,
}

/// All statistics that a replica reports at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Requests in the batch.
    pub running: u32,
    /// Requests in the waiting queue.
    pub waiting: u32,
    /// Waiting requests that need a slot for their adapter, or the KV cache of their prompt.
    pub deferred: u32,
    /// KV cache blocks in use.
    pub kv_blocks_used: u32,
    /// All KV cache blocks.
    pub kv_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// API servers that share the /metrics response.
    pub api_servers: u32,
    /// Draft statistics; `None` if the engine does not speculate.
    pub drafted: Option<DraftCounters>,
    /// Counters since the start.
    pub counters: Counters,
}

impl Stats {
    /// The share of the KV cache in use, as vLLM computes it: one of its blocks is never handed out
    /// and does not count.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.kv_blocks_used) / f64::from(self.kv_blocks.max(1))
    }

    /// Returns true if the gauges have samples. Gauges that several API servers share have none
    /// before the first step, whose statistics set them.
    #[must_use]
    pub const fn has_gauges(&self) -> bool {
        self.api_servers == 1 || self.counters.steps > 0
    }
}

/// The counters of a replica since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Steps that ended.
    pub steps: u64,
    /// Time spent in those steps.
    pub busy: Micros,
    /// Prompt tokens of requests whose prefill ended, including cached tokens; a repeated prefill
    /// does not count again.
    pub prompt_tokens: u64,
    /// Tokens in `prompt_tokens` that this engine computed.
    pub prompt_computed: u64,
    /// Tokens in `prompt_tokens` whose KV cache another engine sent.
    pub prompt_transferred: u64,
    /// Tokens computed in prefill, including repetitions.
    pub prefill_tokens: u64,
    /// Generated tokens, including those that a preemption discarded.
    pub generation_tokens: u64,
    /// Finished requests.
    pub finished: u64,
    /// Requests that clients dropped before their end. vLLM has no family for them, but the HTTP
    /// server counts an answer to each (recordings of vLLM 0.11 and 0.32: docs/recordings.md).
    pub aborted: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// The time from arrival to the first token, in microseconds; observed at the first token.
    pub ttft: EngineHistogram,
    /// The time between two tokens of a request, in microseconds; observed at each token.
    pub itl: EngineHistogram,
    /// The time from arrival to the last token, in microseconds. It is observed at the end, like
    /// all histograms of requests below.
    pub e2e: EngineHistogram,
    /// The time from arrival to the first step that computes the request, in microseconds.
    pub queue: EngineHistogram,
    /// The time from that step to the first token, in microseconds.
    pub prefill: EngineHistogram,
    /// The time from the first token to the last, in microseconds.
    pub decode: EngineHistogram,
    /// The time from the first step to the last token, in microseconds.
    pub inference: EngineHistogram,
    /// The mean time between tokens of each request, in microseconds.
    pub tpot: EngineHistogram,
    /// Prompt tokens per request.
    pub prompt_length: EngineHistogram,
    /// Computed prompt tokens per request.
    pub computed_length: EngineHistogram,
    /// Generated tokens per request.
    pub generation_length: EngineHistogram,
    /// Preemptions per request.
    pub request_preemptions: EngineHistogram,
    /// The HTTP server's response time per request, in microseconds.
    pub http: EngineHistogram,
    /// Tokens per step that gives a token to a request, observed at its end. They are the generated
    /// tokens, and the computed prompt tokens of the prompts that the step completes, including all
    /// their chunks. Cached tokens, and tokens that are computed again after a preemption, never
    /// count (vLLM 0.32: `AsyncLLM.output_handler`, `IterationStats.update_from_output`,
    /// `PrometheusStatLogger.record`).
    pub iteration_tokens: EngineHistogram,
}

// === impl Counters ===

impl Counters {
    /// Counts a request whose client disconnected after this time.
    pub(super) fn leave(&mut self, stayed: Micros) {
        self.aborted += 1;
        self.http.observe(stayed.micros(), 1);
    }

    /// Counts a finished request in the histograms, with its computed prompt tokens.
    pub(super) fn observe(&mut self, finished: &Finished, computed: u32) {
        let Finished { request, queue, ttft, first_ever, e2e, preemptions, .. } = finished;

        self.e2e.observe(e2e.micros(), 1);
        self.http.observe(e2e.micros(), 1);
        self.queue.observe(queue.micros(), 1);
        self.prefill.observe(first_ever.since(*queue).micros(), 1);
        self.decode.observe(e2e.since(*ttft).micros(), 1);
        self.inference.observe(e2e.since(*queue).micros(), 1);
        self.tpot.observe(finished.itl_mean().unwrap_or_default().micros(), 1);
        self.prompt_length.observe(u64::from(request.prompt), 1);
        self.computed_length.observe(u64::from(computed), 1);
        self.generation_length.observe(u64::from(request.output), 1);
        self.request_preemptions.observe(u64::from(*preemptions), 1);
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            steps: 0,
            busy: Micros::ZERO,
            prompt_tokens: 0,
            prompt_computed: 0,
            prompt_transferred: 0,
            prefill_tokens: 0,
            generation_tokens: 0,
            finished: 0,
            aborted: 0,
            preemptions: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            ttft: EngineHistogram::new(&TTFT_EDGES),
            itl: EngineHistogram::new(&ITL_EDGES),
            e2e: EngineHistogram::new(&REQUEST_EDGES),
            queue: EngineHistogram::new(&REQUEST_EDGES),
            prefill: EngineHistogram::new(&REQUEST_EDGES),
            decode: EngineHistogram::new(&REQUEST_EDGES),
            inference: EngineHistogram::new(&REQUEST_EDGES),
            tpot: EngineHistogram::new(&ITL_EDGES),
            prompt_length: EngineHistogram::new(&TOKEN_EDGES),
            computed_length: EngineHistogram::new(&TOKEN_EDGES),
            generation_length: EngineHistogram::new(&TOKEN_EDGES),
            request_preemptions: EngineHistogram::new(&PREEMPTION_EDGES),
            http: EngineHistogram::new(&HTTP_EDGES),
            iteration_tokens: EngineHistogram::new(&ITERATION_EDGES),
        }
    }
}

/// A length as a count that an engine reports.
pub(super) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_bucket_whose_edge_is_the_first_not_below_it() {
        for edges in [
            &TTFT_EDGES,
            &ITL_EDGES,
            &REQUEST_EDGES,
            &TOKEN_EDGES,
            &ITERATION_EDGES,
            &PREEMPTION_EDGES,
            &ANSWER_EDGES,
            &HTTP_EDGES,
        ] {
            let near = edges.edges.iter().flat_map(|&edge| [edge - 1, edge, edge + 1]);
            let far = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            for value in near.chain(far).chain([0, u64::MAX]) {
                let want = edges.edges.partition_point(|&edge| edge < value);
                assert_eq!(edges.bucket(value), want, "{value}");
            }
        }
    }
}
