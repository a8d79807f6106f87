//! What an engine counts: gauges, counters and histograms, in the sizes that vLLM gives them.
//!
//! Sums are integers (microseconds, tokens, requests), so that adding observations in another
//! order cannot change a page.

use crate::simulate::Micros;

/// Bucket edges of the time to first token, in microseconds.
pub const TTFT_EDGES: &[u64] = &[
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
];

/// Bucket edges of the time between tokens, in microseconds.
pub const ITL_EDGES: &[u64] = &[
    10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 20_000_000, 40_000_000, 80_000_000,
];

/// Bucket edges of the times of whole requests and of their phases, in microseconds.
pub const REQUEST_EDGES: &[u64] = &[
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
];

/// Bucket edges of a request's tokens, for a model length of 131,072: 1, 2, 5 times powers of ten.
pub const TOKEN_EDGES: &[u64] =
    &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];

/// Bucket edges of the tokens of one step.
pub const ITERATION_EDGES: &[u64] =
    &[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

/// Bucket edges of the number of times that a request was preempted.
pub const PREEMPTION_EDGES: &[u64] = &[1, 2, 3, 4, 5, 10, 20];

/// Bucket edges of the number of answers that a request asks for.
pub const ANSWER_EDGES: &[u64] = &[1, 2, 5, 10, 20];

/// Bucket edges of the HTTP server's answers, in microseconds.
pub const HTTP_EDGES: &[u64] = &[
    10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000, 1_500_000,
    2_000_000, 2_500_000, 3_000_000, 3_500_000, 4_000_000, 4_500_000, 5_000_000, 7_500_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// Observations of whole numbers in buckets whose upper edges belong to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    edges: &'static [u64],
    /// One count for each edge and one for what is above the last.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// An empty histogram with these edges, which must ascend.
    #[must_use]
    pub fn new(edges: &'static [u64]) -> Self {
        Self { edges, counts: vec![0; edges.len() + 1], sum: 0 }
    }

    /// Counts `times` observations of one value.
    pub fn observe(&mut self, value: u64, times: u64) {
        let bucket = self.edges.partition_point(|&edge| edge < value);
        self.counts[bucket] += times;
        self.sum += value * times;
    }

    /// The upper edges of all buckets but the last, which has none.
    #[must_use]
    pub const fn edges(&self) -> &'static [u64] {
        self.edges
    }

    /// Observations up to each edge, then all of them.
    pub fn cumulative(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        })
    }

    /// How many observations there are.
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

/// Observations that fall into one bucket after another, most often the same one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Values above this and up to `last` are in the bucket.
    below: u64,
    last: u64,
    bucket: usize,
    count: u64,
    sum: u64,
}

impl Run {
    /// Counts `times` observations of one value, and gives those of another bucket away.
    pub(crate) fn observe(&mut self, value: u64, times: u64, histogram: &mut Histogram) {
        if value <= self.below || value > self.last {
            self.flush(histogram);
            self.bucket = histogram.edges.partition_point(|&edge| edge < value);
            self.below = self.bucket.checked_sub(1).map_or(0, |before| histogram.edges[before]);
            self.last = histogram.edges.get(self.bucket).copied().unwrap_or(u64::MAX);
        }
        self.count += times;
        self.sum += value * times;
    }

    /// Gives away what is counted.
    pub(crate) fn flush(&mut self, histogram: &mut Histogram) {
        histogram.counts[self.bucket] += self.count;
        histogram.sum += self.sum;
        self.count = 0;
        self.sum = 0;
    }
}

/// How loaded a replica is at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: u32,
    /// Requests in the waiting queue.
    pub waiting: u32,
    /// The share of the KV cache that is held.
    pub kv_usage: f64,
}

/// Everything that a replica reports at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Requests in the batch.
    pub running: u32,
    /// Requests in the waiting queue.
    pub waiting: u32,
    /// Blocks of the KV cache that are held.
    pub kv_blocks_used: u32,
    /// Blocks of the KV cache.
    pub kv_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// What was counted since the start.
    pub counters: Counters,
}

impl Stats {
    /// The share of the KV cache that is held, as vLLM computes it: one of its blocks is never
    /// handed out and does not count.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.kv_blocks_used) / f64::from(self.kv_blocks.max(1))
    }
}

/// What a replica has counted since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Steps that ended.
    pub steps: u64,
    /// Time spent in those steps.
    pub busy: Micros,
    /// Prompt tokens of requests whose prefill ended; a repeated prefill does not count again.
    pub prompt_tokens: u64,
    /// Tokens that were computed in prefill, repetitions included.
    pub prefill_tokens: u64,
    /// Tokens that were generated, those that a preemption discarded included.
    pub generation_tokens: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that were dropped before their end.
    pub aborted: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens that were found there.
    pub prefix_hits: u64,
    /// From arrival to the first token, in microseconds; observed at the first token.
    pub ttft: Histogram,
    /// Between two tokens of one request, in microseconds; observed at each token.
    pub itl: Histogram,
    /// From arrival to the last token, in microseconds; observed at the end, like all that follow.
    pub e2e: Histogram,
    /// From arrival to the first step that computes the request, in microseconds.
    pub queue: Histogram,
    /// From there to the first token, in microseconds.
    pub prefill: Histogram,
    /// From the first token to the last, in microseconds.
    pub decode: Histogram,
    /// From the first step to the last token, in microseconds.
    pub inference: Histogram,
    /// The mean time between tokens of each request, in microseconds.
    pub tpot: Histogram,
    /// Prompt tokens of each request.
    pub prompt_length: Histogram,
    /// Generated tokens of each request.
    pub generation_length: Histogram,
    /// Preemptions of each request.
    pub request_preemptions: Histogram,
    /// How long the HTTP server took for each answer, in microseconds.
    pub http: Histogram,
    /// Tokens of each step; observed at its end.
    pub iteration_tokens: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            steps: 0,
            busy: Micros::ZERO,
            prompt_tokens: 0,
            prefill_tokens: 0,
            generation_tokens: 0,
            finished: 0,
            aborted: 0,
            preemptions: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            ttft: Histogram::new(TTFT_EDGES),
            itl: Histogram::new(ITL_EDGES),
            e2e: Histogram::new(REQUEST_EDGES),
            queue: Histogram::new(REQUEST_EDGES),
            prefill: Histogram::new(REQUEST_EDGES),
            decode: Histogram::new(REQUEST_EDGES),
            inference: Histogram::new(REQUEST_EDGES),
            tpot: Histogram::new(ITL_EDGES),
            prompt_length: Histogram::new(TOKEN_EDGES),
            generation_length: Histogram::new(TOKEN_EDGES),
            request_preemptions: Histogram::new(PREEMPTION_EDGES),
            http: Histogram::new(HTTP_EDGES),
            iteration_tokens: Histogram::new(ITERATION_EDGES),
        }
    }
}
