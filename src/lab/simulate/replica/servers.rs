//! API servers of one engine, each of which counts the steps that it hears of.
//!
//! # Model
//!
//! A request belongs to one API server, at random. At the end of a step each server gets the tokens of
//! its own requests, and counts an iteration of so many if there are any. So one step is counted up to
//! as many times as there are servers, and its tokens are split among them.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.update_from_output` groups outputs by `client_index`, and the
//! `AsyncLLM.output_handler` of each server makes one `IterationStats` of those that it gets.

use crate::simulate::random::mix;
use crate::simulate::replica::count;
use crate::simulate::replica::stats::Histogram;

/// The API servers of an engine, and which requests of a batch are whose.
#[derive(Clone, Debug)]
pub(super) struct ApiServers {
    /// Requests that decode, by server.
    decoding: Vec<u32>,
    /// Tokens of the step that ends, by server.
    tokens: Vec<u64>,
}

// === impl ApiServers ===

impl ApiServers {
    /// So many of them; at least one in effect.
    pub(super) fn new(count: u32) -> Self {
        let count = count.max(1) as usize;
        Self { decoding: vec![0; count], tokens: vec![0; count] }
    }

    pub(super) fn count(&self) -> u32 {
        count(self.decoding.len())
    }

    /// The server of a request. The kernel gives a connection to whichever server accepts it first.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a small count")]
    fn of(&self, request: u64) -> usize {
        (mix(request) % self.decoding.len() as u64) as usize
    }

    /// A request begins to decode.
    pub(super) fn join(&mut self, request: u64) {
        let server = self.of(request);
        self.decoding[server] += 1;
    }

    /// A request decodes no more.
    pub(super) fn leave(&mut self, request: u64) {
        let server = self.of(request);
        self.decoding[server] -= 1;
    }

    /// Gives every decoding request a token.
    pub(super) fn tick(&mut self) {
        for (tokens, decoding) in self.tokens.iter_mut().zip(&self.decoding) {
            *tokens += u64::from(*decoding);
        }
    }

    /// Counts tokens of one request in the step that ends.
    pub(super) fn add(&mut self, request: u64, tokens: u64) {
        let server = self.of(request);
        self.tokens[server] += tokens;
    }

    /// Ends a step: each server that has tokens of it counts an iteration.
    pub(super) fn end_step(&mut self, iterations: &mut Histogram) {
        for tokens in &mut self.tokens {
            if *tokens > 0 {
                iterations.observe(*tokens, 1);
                *tokens = 0;
            }
        }
    }

    /// Counts steps that give every decoding request a token and do nothing else.
    pub(super) fn count_decodes(&self, steps: u64, iterations: &mut Histogram) {
        for decoding in self.decoding.iter().filter(|decoding| **decoding > 0) {
            iterations.observe(u64::from(*decoding), steps);
        }
    }
}
