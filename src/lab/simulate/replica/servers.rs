//! The API servers of one engine, each of which counts the steps that it gets outputs from.
//!
//! # Model
//!
//! Each request belongs to a random API server. At the end of a step each server gets the tokens of
//! its own requests. If there are any, it counts an iteration with that many tokens. So a step may
//! count once per server, and its tokens are split among the servers.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.update_from_output` groups outputs by `client_index`. Each server's
//! `AsyncLLM.output_handler` makes one `IterationStats` from the outputs that it gets.

use crate::simulate::random::mix;
use crate::simulate::replica::stats::{EngineHistogram, count};

/// The API servers of an engine, and the decoding requests of each.
#[derive(Clone, Debug)]
pub(super) struct ApiServers {
    /// Decoding requests by server.
    decoding: Vec<u32>,
    /// Tokens of the ending step by server.
    tokens: Vec<u64>,
}

// === impl ApiServers ===

impl ApiServers {
    /// This many API servers, at least one.
    pub(super) fn new(count: u32) -> Self {
        let servers = count.max(1) as usize;
        Self { decoding: vec![0; servers], tokens: vec![0; servers] }
    }

    pub(super) fn count(&self) -> u32 {
        count(self.decoding.len())
    }

    /// The server of a request. The kernel gives a connection to the server that accepts it first.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a small count")]
    fn of(&self, request: u64) -> usize {
        (mix(request) % self.decoding.len() as u64) as usize
    }

    /// A request begins to decode.
    pub(super) fn join(&mut self, request: u64) {
        let server = self.of(request);
        self.decoding[server] += 1;
    }

    /// A request stops decoding.
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

    /// Counts tokens of one request in the ending step.
    pub(super) fn add(&mut self, request: u64, tokens: u64) {
        let server = self.of(request);
        self.tokens[server] += tokens;
    }

    /// Ends a step: each server that got tokens from it counts an iteration.
    pub(super) fn end_step(&mut self, iterations: &mut EngineHistogram) {
        for tokens in &mut self.tokens {
            if *tokens > 0 {
                iterations.observe(*tokens, 1);
                *tokens = 0;
            }
        }
    }

    /// Counts steps that only give every decoding request a token.
    pub(super) fn count_decodes(&self, steps: u64, iterations: &mut EngineHistogram) {
        for decoding in self.decoding.iter().filter(|decoding| **decoding > 0) {
            iterations.observe(u64::from(*decoding), steps);
        }
    }
}
