//! Speculative decoding: a step gives each decoding request several tokens.
//!
//! # Model
//!
//! For each decoding request a step computes its next token and as many drafts as are configured,
//! all within the budget. Of the drafts, those up to the first wrong one are accepted. Each is right
//! with the same chance if those before it are. The request gets one token more than was accepted.
//! A step in which the cache lacks room for that drafts nothing.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.schedule` counts drafts in `num_new_tokens`, `Scheduler.update_from_output`
//! calls `SpecDecodingStats.observe_draft` once per request and step, before an answer that reaches
//! its length is cut.
//!
//! # Limits
//!
//! All requests of a step have the same number accepted. Blocks for rejected drafts are not held.

use rand_pcg::Pcg64;

use crate::simulate::random;
use crate::simulate::replica::Replica;

/// How an engine speculates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculation {
    /// Tokens that a step drafts for a request (`num_speculative_tokens`).
    pub drafts: u32,
    /// The chance that a draft is right, if those before it are.
    pub chance: f64,
}

/// What an engine has drafted since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Drafts, one for each request and step.
    pub drafts: u64,
    /// Tokens of these drafts.
    pub tokens: u64,
    /// Of these, the accepted ones, by their place in a draft.
    pub accepted: Vec<u64>,
}

/// What a step does for each decoding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speculated {
    /// Tokens that it gives each.
    pub(super) tokens: u32,
    /// Blocks for those after the first, of all of them together.
    pub(super) promised: u32,
}

/// The speculation of one engine.
#[derive(Clone, Debug)]
pub(super) struct Speculator {
    speculation: Speculation,
    drafted: Drafted,
    random: Pcg64,
}

/// Halvings of an interval of 1 after which a `f64` gets no better.
const HALVINGS: u32 = 52;

// === impl Replica ===

impl Replica {
    /// What it has drafted; `None` when it does not speculate.
    #[must_use]
    pub fn drafted(&self) -> Option<&Drafted> {
        self.speculator.as_ref().map(|speculator| &speculator.drafted)
    }

    /// Decides how many tokens the step that is being built gives each decoding request, and promises
    /// it the blocks for those after the first.
    pub(super) fn speculate(&mut self) -> Speculated {
        let Some(speculator) = &mut self.speculator else { return Speculated::NOTHING };
        let tokens = speculator.draw();
        let promised = self.decodes.blocks_needed_later(tokens);
        if promised > self.free() {
            return Speculated::NOTHING;
        }
        self.promised += promised;
        Speculated { tokens, promised }
    }
}

// === impl Speculated ===

impl Speculated {
    /// One token each, without a draft.
    const NOTHING: Self = Self { tokens: 1, promised: 0 };
}

// === impl Speculation ===

impl Speculation {
    /// The speculation whose steps give a request so many tokens in the mean, from 1 to one more than
    /// its drafts.
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

    /// The mean number of tokens that a step gives a request: the sum of `chance^i` over the places
    /// `i` of its tokens, counted from 0.
    #[must_use]
    pub fn mean(&self) -> f64 {
        (0..self.drafts).fold(1.0, |tokens, _| tokens.mul_add(self.chance, 1.0))
    }

    /// The most tokens that a step gives a request, which is what it computes for one.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.drafts + 1
    }
}

// === impl Speculator ===

impl Speculator {
    pub(super) fn new(speculation: Speculation, random: Pcg64) -> Self {
        let accepted = vec![0; speculation.drafts as usize];
        Self { speculation, drafted: Drafted { accepted, ..Drafted::default() }, random }
    }

    pub(super) const fn most(&self) -> u32 {
        self.speculation.most()
    }

    /// The tokens that the next step gives a request.
    pub(super) fn draw(&mut self) -> u32 {
        let Speculation { drafts, chance } = self.speculation;
        let mut tokens = 1;
        while tokens <= drafts && random::uniform(&mut self.random) <= chance {
            tokens += 1;
        }
        tokens
    }

    /// Counts a step that gave so many requests so many tokens each.
    pub(super) fn count(&mut self, requests: u32, tokens: u32) {
        let requests = u64::from(requests);
        self.drafted.drafts += requests;
        self.drafted.tokens += requests * u64::from(self.speculation.drafts);
        for accepted in self.drafted.accepted.iter_mut().take(tokens as usize - 1) {
            *accepted += requests;
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
            // A standard deviation of at most 2 tokens; the bound is four errors of the mean.
            assert!((mean - tokens).abs() < 0.025, "{mean} for {tokens}");
            assert!(drawn.iter().all(|drawn| (1..=drafts + 1).contains(drawn)));
        }
    }
}
