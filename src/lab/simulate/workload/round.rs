//! One round of a trace: all its copies, merged in the order of their times.
//!
//! Copies are shifted in time, and what one has beyond the end of the round is at its beginning.
//! Each is one or two stretches of ascending times, so the next request of a round is the earliest
//! head of a few dozen stretches. The round itself, which may be millions of requests, is never put
//! together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use crate::simulate::Micros;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::workload::load::Row;

/// The requests of a round, from where it has been read to.
#[derive(Clone, Debug)]
pub struct Round {
    speed: Speed,
    /// In the order of copies, and of the rows of each: the order of requests at one time.
    stretches: Vec<Stretch>,
    /// The next request of each stretch that has one.
    heads: BinaryHeap<Reverse<Head>>,
}

/// When the next request of a stretch is and, below, which stretch: one number, because comparing two
/// of these is nearly all of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head(u128);

/// How many times as fast time runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speed {
    /// As recorded.
    Recorded,
    Times(f64),
}

/// A copy of a trace, which is shifted in time.
#[derive(Clone, Debug)]
pub(super) struct Shifted {
    /// Its requests, times ascending.
    pub(super) rows: Arc<[Row]>,
    /// How much later it is.
    pub(super) shift: Micros,
    /// The world of its prompts.
    pub(super) world: u32,
}

/// Rows of one copy, from one end of the round to the other at most.
#[derive(Clone, Debug)]
struct Stretch {
    copy: Shifted,
    /// What is before the beginning of the round.
    lap: Micros,
    first: usize,
    next: usize,
    end: usize,
}

// === impl Speed ===

impl Speed {
    pub(super) fn new(speed: f64) -> Self {
        if (speed - 1.0).abs() < f64::EPSILON { Self::Recorded } else { Self::Times(speed) }
    }

    /// When something happens that was recorded at a time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are not negative, and the cast saturates"
    )]
    pub(super) fn of(self, at: Micros) -> Micros {
        match self {
            Self::Recorded => at,
            Self::Times(speed) => Micros::new((at.micros() as f64 / speed).round() as u64),
        }
    }
}

// === impl Head ===

impl Head {
    const fn new(at: Micros, place: usize) -> Self {
        Self((at.micros() as u128) << 64 | place as u128)
    }

    const fn parts(self) -> (Micros, usize) {
        (Micros::new((self.0 >> 64) as u64), self.0 as usize)
    }
}

// === impl Stretch ===

impl Stretch {
    fn head(&self, speed: Speed) -> Option<Micros> {
        let row = self.copy.rows[..self.end].get(self.next)?;
        Some((speed.of(row.at) + self.copy.shift).since(self.lap))
    }
}

// === impl Round ===

impl Round {
    /// A trace by itself, as it was recorded.
    pub(super) fn recorded(rows: Arc<[Row]>) -> Self {
        let (shift, lap, end) = (Micros::ZERO, Micros::ZERO, rows.len());
        let copy = Shifted { rows, shift, world: 0 };
        let whole = Stretch { copy, lap, first: 0, next: 0, end };
        Self::begun(Speed::Recorded, vec![whole])
    }

    /// Copies of a trace in a round that lasts `span`, which must not be zero.
    pub(super) fn merged(speed: Speed, copies: Vec<Shifted>, span: Micros) -> Self {
        let span = span.micros().max(1);
        let mut stretches = Vec::with_capacity(2 * copies.len());
        for copy in copies {
            let at = |row: &Row| (speed.of(row.at) + copy.shift).micros();
            let mut first = 0;
            while let Some(row) = copy.rows.get(first) {
                let lap = at(row) / span * span;
                let end = first + copy.rows[first..].partition_point(|row| at(row) < lap + span);
                let (copy, lap) = (copy.clone(), Micros::new(lap));
                stretches.push(Stretch { copy, lap, first, next: first, end });
                first = end;
            }
        }
        Self::begun(speed, stretches)
    }

    fn begun(speed: Speed, stretches: Vec<Stretch>) -> Self {
        let mut round = Self { speed, stretches, heads: BinaryHeap::new() };
        round.begin();
        round
    }

    /// Begins anew.
    pub(super) fn begin(&mut self) {
        self.heads.clear();
        for (place, stretch) in self.stretches.iter_mut().enumerate() {
            stretch.next = stretch.first;
            self.heads.extend(stretch.head(self.speed).map(|at| Reverse(Head::new(at, place))));
        }
    }
}

impl Iterator for Round {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let mut earliest = self.heads.peek_mut()?;
        let (at, place) = earliest.0.parts();
        let stretch = &mut self.stretches[place];
        let row = stretch.copy.rows[stretch.next];
        let world = stretch.copy.world;
        stretch.next += 1;
        match stretch.head(self.speed) {
            Some(next) => *earliest = Reverse(Head::new(next, place)),
            None => {
                PeekMut::pop(earliest);
            }
        }
        Some(Row { at, prompt: row.prompt.map(|prompt| PromptId { world, ..prompt }), ..row })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::workload::load::Size;

    /// As many rows as there are times, told apart by their lengths.
    fn rows(times: &[u64]) -> Arc<[Row]> {
        let row = |(at, prompt): (&u64, u32)| {
            let size = Size { prompt, output: 1 };
            Row { at: Micros::new(*at), size, prompt: Some(PromptId { place: prompt, world: 0 }) }
        };
        times.iter().zip(1..).map(row).collect()
    }

    #[test]
    fn a_round_is_all_copies_in_the_order_of_time_and_then_as_they_are_listed() {
        let span = Micros::new(100);
        let trace = rows(&[0, 0, 3, 3, 40, 99, 100]);
        for (speed, shifts) in [
            (Speed::Recorded, vec![0]),
            (Speed::Recorded, vec![0, 3, 97, 97, 250]),
            (Speed::Times(1.5), vec![0, 40, 40, 66]),
        ] {
            let copies = shifts.iter().zip(0..).map(|(&shift, world)| Shifted {
                rows: Arc::clone(&trace),
                shift: Micros::new(shift),
                world,
            });
            let mut sorted = Vec::new();
            for Shifted { rows, shift, world } in copies.clone() {
                for row in rows.iter() {
                    let at = Micros::new((speed.of(row.at) + shift).micros() % span.micros());
                    let prompt = row.prompt.map(|prompt| PromptId { world, ..prompt });
                    sorted.push(Row { at, prompt, ..*row });
                }
            }
            sorted.sort_by_key(|row| row.at);
            let mut round = Round::merged(speed, copies.collect(), span);
            for _ in 0..2 {
                assert_eq!(round.by_ref().collect::<Vec<_>>(), sorted, "{speed:?} {shifts:?}");
                assert_eq!(round.next(), None);
                round.begin();
            }
        }
    }
}
