//! All decoding requests of a batch, advanced together.
//!
//! Each step gives each of them one token, so a clock that counts steps says how long each has
//! grown. What depends on a single request is filed under the reading of the clock at which it
//! matters: the phase at which its last block is full, and the reading at which its answer ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a request in the batch, or on its way there, is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This many tokens of the prompt (and of what was kept) are computed.
    Prefill { computed: u32 },
    /// One token a step since the prefill ended.
    Decode {
        /// The decode clock at that time.
        joined: u64,
        /// Tokens in the cache at that time.
        stored: u32,
        /// The decode clock at which the answer is complete.
        ends: u64,
        /// Tells this stay in the batch from others.
        ticket: u64,
    },
}

/// All decoding requests together.
#[derive(Clone, Debug)]
pub(crate) struct Decodes {
    /// Steps so far; each gives every decoding request one token.
    pub(crate) clock: u64,
    tickets: u64,
    pub(crate) count: u32,
    /// Tokens in the cache that belong to decoding requests.
    pub(crate) stored: u64,
    /// How many fill a block when the clock is at each phase of the block size.
    fills_at: Vec<u32>,
    /// Clock, ticket and index of each end; stale where the ticket is no longer the request's.
    ends: BinaryHeap<Reverse<(u64, u64, usize)>>,
}

impl Decodes {
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            clock: 0,
            tickets: 0,
            count: 0,
            stored: 0,
            fills_at: vec![0; block_size as usize],
            ends: BinaryHeap::new(),
        }
    }

    /// Tokens in the cache of a request that had `stored` when the clock was at `joined`.
    pub(crate) fn grown(&self, joined: u64, stored: u32) -> u32 {
        stored + u32::try_from(self.clock - joined).unwrap_or(u32::MAX)
    }

    /// The phase of the clock at which such a request has a full last block.
    fn phase(&self, joined: u64, stored: u32) -> usize {
        let size = self.fills_at.len() as u64;
        let phase = (joined % size + size - u64::from(stored) % size) % size;
        usize::try_from(phase).unwrap_or(0)
    }

    /// How many requests need a block for their next token.
    pub(crate) fn blocks_needed(&self) -> u32 {
        let phase = self.clock % self.fills_at.len() as u64;
        usize::try_from(phase).ok().and_then(|phase| self.fills_at.get(phase)).map_or(0, |n| *n)
    }

    pub(crate) fn join(&mut self, index: usize, stored: u32, missing: u32) -> Phase {
        let joined = self.clock;
        let phase = self.phase(joined, stored);
        self.fills_at[phase] += 1;
        self.count += 1;
        self.stored += u64::from(stored);
        self.tickets += 1;
        let ticket = self.tickets;
        let ends = joined + u64::from(missing);
        self.ends.push(Reverse((ends, ticket, index)));
        Phase::Decode { joined, stored, ends, ticket }
    }

    pub(crate) fn leave(&mut self, joined: u64, stored: u32) {
        let phase = self.phase(joined, stored);
        self.fills_at[phase] -= 1;
        self.count -= 1;
        self.stored -= u64::from(self.grown(joined, stored));
    }

    pub(crate) fn tick(&mut self) {
        self.clock += 1;
        self.stored += u64::from(self.count);
    }

    /// The reading of the clock at which the next answer is complete; drops what is stale before it.
    pub(crate) fn next_clock(&mut self, phase_of: impl Fn(usize) -> Phase) -> Option<u64> {
        while let Some(&Reverse((ends, expected, index))) = self.ends.peek() {
            if matches!(phase_of(index), Phase::Decode { ticket, .. } if ticket == expected) {
                return Some(ends);
            }
            self.ends.pop();
        }
        None
    }

    /// A reading of the clock before which no answer is complete.
    pub(crate) fn first_clock(&self) -> Option<u64> {
        self.ends.peek().map(|&Reverse((ends, ..))| ends)
    }

    /// Takes a request whose answer is complete now.
    pub(crate) fn next_end(&mut self, phase_of: impl Fn(usize) -> Phase) -> Option<usize> {
        while let Some(&Reverse((ends, expected, index))) = self.ends.peek() {
            if ends > self.clock {
                return None;
            }
            self.ends.pop();
            if matches!(phase_of(index), Phase::Decode { ticket, .. } if ticket == expected) {
                return Some(index);
            }
        }
        None
    }
}
