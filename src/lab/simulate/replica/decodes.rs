//! All decoding requests of a batch, advanced together.
//!
//! Each step gives each of them one token, so a clock that counts steps says how long each has
//! grown. What depends on a single request is filed under the reading of the clock at which it
//! matters: the phase at which its last block is full, and the reading at which its answer ends.
//!
//! Ends are in a wheel, of one ring for each of the readings up to the next turn of the wheel and one
//! for all after that. To file an end, to take one out and to find the next takes a few instructions
//! each, however many there are; at a turn, those that are near by then get rings of their own.

use crate::simulate::replica::rings::Rings;

/// Readings of the clock between two turns of the wheel: about as many as an answer has tokens, so
/// that few ends wait for several turns, and so few that all heads fit a processor's first cache.
const TURN: usize = 256;

/// The ring of ends after the next turn.
const LATER: usize = TURN;

/// Rings that one word says of whether they are empty.
const WORD: usize = u64::BITS as usize;

/// What a request in the batch, or on its way there, is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This many tokens of the prompt (and of what was kept) are computed.
    Prefill { computed: u32 },
    /// One token a step since the prefill ended.
    Decode,
}

/// All decoding requests together. They are named by their indices.
#[derive(Clone, Debug)]
pub(crate) struct Decodes {
    /// Steps so far; each gives every decoding request one token.
    clock: u64,
    /// The clock within a turn of the wheel.
    at: usize,
    /// The clock within a block.
    phase: usize,
    count: u32,
    /// Tokens in the cache that belong to decoding requests.
    stored: u64,
    /// How many fill a block when the clock is at each phase of the block size.
    fills_at: Vec<u32>,
    stays: Vec<Stay>,
    ends: Rings,
    /// A bit for each ring of the wheel that is not empty.
    filled: [u64; TURN / WORD],
}

/// A request's stay among those that decode.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    /// The clock when it came.
    joined: u64,
    /// The clock at which its answer is complete.
    ends: u64,
    /// Tokens in the cache when it came.
    stored: u32,
    /// The phase at which its last block is full.
    fills: usize,
}

/// What a request has that decodes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Tokens in the cache.
    pub(crate) stored: u32,
    /// Tokens that its answer lacks.
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

    /// How many decode.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// Tokens in the cache that belong to them.
    pub(crate) const fn stored(&self) -> u64 {
        self.stored
    }

    /// How many need a block for their next token.
    pub(crate) fn blocks_needed(&self) -> u32 {
        self.fills_at[self.phase]
    }

    /// The most that their tokens after the next, up to this many in all, may need.
    pub(crate) fn blocks_needed_later(&self, tokens: u32) -> u32 {
        let size = self.fills_at.len();
        let later = (1..tokens as usize).map(|token| self.fills_at[(self.phase + token) % size]);
        later.sum()
    }

    /// Whether a request needs one.
    pub(crate) fn needs_block(&self, index: usize) -> bool {
        self.stays[index].fills == self.phase
    }

    /// Takes in a request with `stored` tokens in the cache, whose answer lacks `missing`.
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

    /// Files the end of a request, at a reading that is counted from the last turn.
    fn file(&mut self, index: usize, reading: usize) {
        if let Some(word) = self.filled.get_mut(reading / WORD) {
            *word |= 1 << (reading % WORD);
            self.ends.push(reading, index);
        } else {
            self.ends.push(LATER, index);
        }
    }

    /// Takes a request out.
    pub(crate) fn leave(&mut self, index: usize) -> Left {
        let Stay { joined, ends, stored, fills } = self.stays[index];
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let stored = stored + narrow(self.clock - joined);
        let missing = narrow(ends - self.clock);
        self.fills_at[fills] -= 1;
        self.count -= 1;
        self.stored -= u64::from(stored);
        self.ends.remove(index);
        let reading = self.at + missing as usize;
        if reading < TURN && self.ends.first(reading).is_none() {
            self.filled[reading / WORD] &= !(1 << (reading % WORD));
        }
        Left { stored, missing }
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

    /// Gives rings of their own to ends that are near now. Who joined first stays first.
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

    /// In how many steps an answer may be complete: never more than it takes, and exactly that many
    /// unless the wheel turns before; `None` when nobody decodes.
    pub(crate) fn steps_to_end(&self) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let from = self.at + 1;
        let mut word = from / WORD;
        let mut bits =
            self.filled.get(word).map_or(0, |bits| bits >> (from % WORD) << (from % WORD));
        while bits == 0 {
            word += 1;
            match self.filled.get(word) {
                Some(&next) => bits = next,
                None => return Some((TURN - self.at) as u64),
            }
        }
        Some((word * WORD + bits.trailing_zeros() as usize - self.at) as u64)
    }

    /// A request whose answer is complete now; of several the one that joined first.
    pub(crate) fn complete(&self) -> Option<usize> {
        self.ends.first(self.at)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;
    use crate::simulate::random::{Purpose, generator};

    /// A request that decodes, in plain words.
    struct Plain {
        index: usize,
        stored: u32,
        missing: u32,
    }

    #[test]
    fn the_wheel_says_what_a_list_of_all_requests_says() {
        let mut random = generator(1, Purpose::Lengths, 0);
        let (mut decodes, mut plain) = (Decodes::new(16), Vec::<Plain>::new());
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
                let left = Left { stored: gone.stored, missing: gone.missing };
                assert_eq!(decodes.leave(gone.index), left);
                free.push(gone.index);
            }
            let full = |request: &Plain| request.stored.is_multiple_of(16);
            assert!(plain.iter().all(|it| decodes.needs_block(it.index) == full(it)));
            let needed = plain.iter().filter(|it| full(it)).count();
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
