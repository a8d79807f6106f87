//! The latency objectives of requests.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::simulate::Micros;
use crate::simulate::scenario::ranges::TOKEN_SPANS;
use plimsoll_core::settings;
use plimsoll_core::settings::hours;

/// Latency objectives.
const LATENCIES: RangeInclusive<Duration> = Duration::from_micros(1)..=hours(24);

settings! {
    /// What a request must meet to count as served well.
    #[derive(Copy, Eq)]
    pub struct Slo {
        /// The longest time to the first token, from the client's first attempt.
        ttft: Micros, in LATENCIES, required;

        /// The longest mean time between its tokens.
        itl: Micros, in LATENCIES, required;

        /// How much later the first token may be for each token of the prompt beyond `long_prompt`.
        ttft_per_token: Micros, in TOKEN_SPANS;

        /// Tokens of a prompt from which it is long.
        long_prompt: u32 = 4_000, in 0..=100_000_000;
    }
}

// === impl Slo ===

impl Slo {
    /// Objectives that are the same for all prompts.
    #[must_use]
    pub fn new(ttft: Micros, itl: Micros) -> Self {
        Self { ttft, itl, ..Self::default() }
    }

    /// The longest time to the first token for a prompt of this many tokens.
    #[must_use]
    pub fn ttft_of(&self, prompt: u32) -> Micros {
        let long = u64::from(prompt.saturating_sub(self.long_prompt));
        self.ttft + Micros::new(self.ttft_per_token.micros().saturating_mul(long))
    }
}
