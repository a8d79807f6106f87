//! All decoding requests of a batch, advanced together.
//!
//! Each step gives each request one token, so a clock that counts steps determines their growth.
//! Two events depend on a single request: its last block becomes full, and its answer ends. Each is
//! filed under the clock reading at which it occurs: the phase within a block, and the reading at
//! the end.
//!
//! Ends are in a wheel, which has one ring for each reading up to its next turn and one ring for
//! all later readings. Filing an end, removing one and finding the next take a few instructions
//! each, for any number of ends. At a turn, ends that have come near get rings of their own.

use crate::simulate::replica::rings::Rings;

/// Readings of the clock between two turns of the wheel. This is about the number of tokens in an
/// answer, so few ends wait for several turns. It is also small enough that all heads fit into a
/// processor's first-level cache.
const TURN: usize = 256;

/// The ring of ends after the next turn.
const LATER: usize = TURN;

/// Rings per word of `filled`, which has a bit for each ring.
const WORD: usize = u64::BITS as usize;

/// The phase of a request in the batch, or on its way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestPhase {
    /// Prefill with this many computed tokens of the prompt (and of the kept answer).
    Prefill { computed: u32 },
    /// One token per step since the prefill ended.
    Decode,
}

/// All decoding requests of a batch, identified by their indices.
#[derive(Clone, Debug)]
pub(crate) struct Decodes {
    /// Steps so far; each gives every decoding request one token.
    clock: u64,
    /// The clock's position within a turn of the wheel.
    at: usize,
    /// The clock's position within a block.
    phase: usize,
    count: u32,
    /// Tokens of decoding requests in the cache.
    stored: u64,
    /// The number of requests that fill a block at each phase of the block size.
    fills_at: Vec<u32>,
    stays: Vec<Stay>,
    ends: Rings,
    /// A bit for each non-empty ring of the wheel.
    filled: [u64; TURN / WORD],
}

/// A request's stay among the decoding requests.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    /// The clock at which it joined.
    joined: u64,
    /// The clock at which its answer is complete.
    ends: u64,
    /// Its tokens in the cache when it joined.
    stored: u32,
    /// The phase at which its last block is full.
    fills: usize,
}

/// The state of a request that has stopped decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoppedDecode {
    /// Its tokens in the cache.
    pub(crate) stored: u32,
    /// Tokens missing from its answer.
    pub(crate) missing: u32,
}

// === impl Decodes ===

impl Decodes {
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            clock: 0,
            at: 0,
            phase: 0,
            count: 0,
            stored: 0,
            fills_at: vec![0; block_size as usize],
            stays: Vec::new(),
            ends: Rings::new(TURN + 1),
            filled: [0; TURN / WORD],
        }
    }

    /// The number of decoding requests.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Their tokens in the cache.
    pub(crate) const fn stored(&self) -> u64 {
        self.stored
    }

    /// The number of requests that need a block for their next token.
    pub(crate) fn blocks_needed(&self) -> u32 {
        self.fills_at[self.phase]
    }

    /// The most blocks that the tokens after the next one may need, up to `tokens` tokens in all.
    pub(crate) fn blocks_needed_later(&self, tokens: u32) -> u32 {
        let size = self.fills_at.len();
        let later = (1..tokens as usize).map(|token| self.fills_at[(self.phase + token) % size]);
        later.sum()
    }

    /// Returns true if a request needs a block for its next token.
    pub(crate) fn needs_block(&self, index: usize) -> bool {
        self.stays[index].fills == self.phase
    }

    /// Tokens missing from the answer of a decoding request.
    pub(crate) fn missing(&self, index: usize) -> u32 {
        narrow(self.stays[index].ends - self.clock)
    }

    /// Adds a request with `stored` tokens in the cache and `missing` tokens to generate.
    pub(crate) fn join(&mut self, index: usize, stored: u32, missing: u32) {
        let size = self.fills_at.len();
        let fills = (self.phase + size - stored as usize % size) % size;
        self.fills_at[fills] += 1;
        self.count += 1;
        self.stored += u64::from(stored);
        if index >= self.stays.len() {
            self.stays.resize(index + 1, Stay::default());
        }

        let ends = self.clock + u64::from(missing);
        self.stays[index] = Stay { joined: self.clock, ends, stored, fills };
        self.file(index, self.at + missing as usize);
    }

    /// Files the end of a request at a reading relative to the last turn.
    fn file(&mut self, index: usize, reading: usize) {
        if let Some(word) = self.filled.get_mut(reading / WORD) {
            *word |= 1 << (reading % WORD);
            self.ends.push(reading, index);
        } else {
            self.ends.push(LATER, index);
        }
    }

    /// Removes a request.
    pub(crate) fn leave(&mut self, index: usize) -> StoppedDecode {
        let Stay { joined, stored: at_first, fills, .. } = self.stays[index];
        let stored = at_first + narrow(self.clock - joined);
        let missing = self.missing(index);
        self.fills_at[fills] -= 1;
        self.count -= 1;
        self.stored -= u64::from(stored);
        self.ends.remove(index);
        let reading = self.at + missing as usize;
        if reading < TURN && self.ends.first(reading).is_none() {
            self.filled[reading / WORD] &= !(1 << (reading % WORD));
        }

        StoppedDecode { stored, missing }
    }

    /// Counts a step.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
        self.stored += u64::from(self.count);
        self.phase += 1;
        if self.phase == self.fills_at.len() {
            self.phase = 0;
        }

        self.at += 1;
        if self.at == TURN {
            self.turn();
        }
    }

    /// Moves ends that are now near to rings of their own, in the order in which their requests
    /// joined.
    #[cold]
    fn turn(&mut self) {
        self.at = 0;
        let mut next = self.ends.first(LATER);

        while let Some(index) = next {
            next = self.ends.next(index);
            let left = self.stays[index].ends - self.clock;
            if left < TURN as u64 {
                self.ends.remove(index);
                self.file(index, usize::try_from(left).unwrap_or(LATER));
            }
        }
    }

    /// A lower bound for the steps until an answer is complete. It is exact unless the wheel turns
    /// before then. `None` if no request decodes.
    pub(crate) fn steps_to_end(&self) -> Option<u64> {
        if self.count == 0 {
            return None;
        }

        let from = self.at + 1;
        let mut word = from / WORD;
        let mut bits = self.filled.get(word).map_or(0, |all| all >> (from % WORD) << (from % WORD));
        while bits == 0 {
            word += 1;
            match self.filled.get(word) {
                Some(&next) => bits = next,
                None => return Some((TURN - self.at) as u64),
            }
        }

        Some((word * WORD + bits.trailing_zeros() as usize - self.at) as u64)
    }

    /// A request whose answer is complete now; of several, the one that joined first.
    pub(crate) fn complete(&self) -> Option<usize> {
        self.ends.first(self.at)
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;
    use crate::simulate::random::{Purpose, generator};

    /// A decoding request, as the test's reference model sees it.
    struct Plain {
        index: usize,
        stored: u32,
        missing: u32,
    }

    #[test]
    fn the_wheel_says_what_a_list_of_all_requests_says() {
        let mut random = generator(1, Purpose::Lengths, 0);
        let mut decodes = Decodes::new(16);
        let mut plain = Vec::<Plain>::new();
        let mut free: Vec<usize> = (0..64).collect();
        for _ in 0..20_000 {
            if random.random::<f64>() < 0.1
                && let Some(index) = free.pop()
            {
                let stored = random.random_range(1..500);
                // Some answers end within a turn of the wheel, and some after several.
                let missing = random.random_range(1..=1_000);
                decodes.join(index, stored, missing);
                plain.push(Plain { index, stored, missing });
            }

            if random.random::<f64>() < 0.01 && !plain.is_empty() {
                let gone = plain.remove(random.random_range(0..plain.len()));
                let left = StoppedDecode { stored: gone.stored, missing: gone.missing };
                assert_eq!(decodes.leave(gone.index), left);
                free.push(gone.index);
            }

            let mut needed = 0;
            for it in &plain {
                let is_full = it.stored.is_multiple_of(16);
                assert_eq!(decodes.needs_block(it.index), is_full);
                needed += usize::from(is_full);
            }
            assert_eq!(decodes.blocks_needed() as usize, needed);

            let soonest = plain.iter().map(|it| u64::from(it.missing)).min();
            match (decodes.steps_to_end(), soonest) {
                (Some(steps), Some(soonest)) => assert!((1..=soonest).contains(&steps)),
                (steps, soonest) => assert_eq!(steps, soonest),
            }

            decodes.tick();
            for it in &mut plain {
                it.stored += 1;
                it.missing -= 1;
            }

            while let Some(index) = decodes.complete() {
                let first = plain.iter().position(|it| it.missing == 0).unwrap();
                assert_eq!(plain.remove(first).index, index, "the first to join ends first");
                assert_eq!(decodes.leave(index).missing, 0);
                free.push(index);
            }

            assert!(plain.iter().all(|it| it.missing > 0));
            let stored: u64 = plain.iter().map(|it| u64::from(it.stored)).sum();
            assert_eq!(decodes.stored(), stored);
        }
    }
}
