//! Speculative decoding: a step gives each decoding request several tokens.
//!
//! # Model
//!
//! For each decoding request, a step computes its next token and the configured number of drafts,
//! all within the budget. Drafts up to the first wrong one are accepted. Each draft is right with
//! the same probability, if all before it are. The request gets one token more than were accepted.
//! A step drafts nothing if the cache lacks room for the tokens.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.schedule` counts drafts in `num_new_tokens`.
//! `Scheduler.update_from_output` calls `SpecDecodingStats.observe_draft` once per request and
//! step, before it truncates an answer that reaches its length.
//!
//! # Limits
//!
//! All requests of a step have the same number of accepted drafts. Rejected drafts hold no blocks.

use rand_pcg::Pcg64;

use crate::simulate::random;

/// The speculation settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Tokens that a step drafts for a request (`num_speculative_tokens`).
    pub drafts: u32,
    /// The probability that a draft is right, if all before it are.
    pub chance: f64,
}

/// The draft counters of an engine since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftCounters {
    /// Drafts, one per request and step.
    pub drafts: u64,
    /// Tokens of these drafts.
    pub tokens: u64,
    /// Accepted tokens of these drafts, by their position in a draft.
    pub accepted: Vec<u64>,
}

/// The effect of a step on each decoding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speculated {
    /// Tokens that each request gets.
    pub(super) tokens: u32,
    /// Blocks for the tokens after the first one, of all requests together.
    pub(super) promised: u32,
}

/// The speculation of one engine.
#[derive(Clone, Debug)]
pub(super) struct Speculator {
    speculation: Speculation,
    /// The drafts so far.
    pub(super) drafted: DraftCounters,
    random: Pcg64,
}

/// Bisections of an interval of length 1 until the precision of an `f64` is reached.
const HALVINGS: u32 = 52;

// === impl Speculated ===

impl Speculated {
    /// One token each, without a draft.
    pub(super) const NOTHING: Self = Self { tokens: 1, promised: 0 };
}

// === impl Speculation ===

impl Speculation {
    /// The speculation whose steps give a request this many tokens on average, from 1 to one more
    /// than its drafts.
    #[must_use]
    pub fn with_mean(drafts: u32, tokens: f64) -> Self {
        let mut speculation = Self { drafts, chance: 0.0 };
        let mut half = 0.5;
        for _ in 0..HALVINGS {
            speculation.chance += half;
            if speculation.mean() > tokens {
                speculation.chance -= half;
            }
            half /= 2.0;
        }

        speculation
    }

    /// The mean number of tokens that a step gives a request: the sum of `chance^i` over the
    /// positions `i` of its tokens, counted from 0.
    #[must_use]
    pub fn mean(&self) -> f64 {
        (0..self.drafts).fold(1.0, |tokens, _| tokens.mul_add(self.chance, 1.0))
    }

    /// The most tokens that a step gives a request, which is also the number that it computes.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.drafts + 1
    }
}

// === impl Speculator ===

impl Speculator {
    pub(super) fn new(speculation: Speculation, random: Pcg64) -> Self {
        let accepted = vec![0; speculation.drafts as usize];
        Self {
            speculation,
            drafted: DraftCounters { accepted, ..DraftCounters::default() },
            random,
        }
    }

    pub(super) const fn most(&self) -> u32 {
        self.speculation.most()
    }

    /// The number of tokens that the next step gives a request.
    pub(super) fn draw(&mut self) -> u32 {
        let Speculation { drafts, chance } = self.speculation;
        let mut tokens = 1;
        while tokens <= drafts && random::uniform(&mut self.random) <= chance {
            tokens += 1;
        }
        tokens
    }

    /// Counts a step that gave this many requests this many tokens each.
    pub(super) fn count(&mut self, requests: u32, tokens: u32) {
        let drafts = u64::from(requests);
        self.drafted.drafts += drafts;
        self.drafted.tokens += drafts * u64::from(self.speculation.drafts);
        for accepted in self.drafted.accepted.iter_mut().take(tokens as usize - 1) {
            *accepted += drafts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};

    #[test]
    fn steps_give_the_tokens_that_were_asked_for_in_the_mean() {
        for (drafts, tokens) in [(1, 1.7), (3, 3.5), (3, 1.0), (3, 4.0), (5, 2.5)] {
            let speculation = Speculation::with_mean(drafts, tokens);
            assert!((speculation.mean() - tokens).abs() < 1e-9, "{speculation:?}");

            let mut speculator = Speculator::new(speculation, generator(1, Purpose::Steps, 0));
            let drawn: Vec<u32> = (0..100_000).map(|_| speculator.draw()).collect();
            let mean = f64::from(drawn.iter().sum::<u32>()) / drawn.len() as f64;
            // The standard deviation is at most 2 tokens; the bound is four standard errors of the
            // mean.
            assert!((mean - tokens).abs() < 0.025, "{mean} for {tokens}");
            assert!(drawn.iter().all(|drawn| (1..=drafts + 1).contains(drawn)));
        }
    }
}
