//! A round of a trace: all its copies, merged in the order of their times.
//!
//! Copies are shifted in time, and the part of a copy beyond the end of the round wraps to its
//! beginning. Each copy is one or two stretches of ascending times, so the next request of a round
//! is the earliest head of a few dozen stretches. The round itself, which may have millions of
//! requests, never exists as a whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use crate::simulate::Micros;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::workload::arrival::Row;

/// The remaining requests of a round.
#[derive(Clone, Debug)]
pub struct Round {
    speed: Speed,
    /// Ordered by copy and then by row, which is the order of simultaneous requests.
    stretches: Vec<LapRows>,
    /// The next request of each stretch that has one.
    heads: BinaryHeap<Reverse<Head>>,
}

/// The time of a stretch's next request, and in the low bits the stretch's index. It is a single
/// number, because comparing two heads is nearly all of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head(u128);

/// The factor by which time runs faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speed {
    /// As recorded.
    Recorded,
    Times(f64),
}

/// A copy of a trace, shifted in time.
#[derive(Clone, Debug)]
pub(super) struct Shifted {
    /// The requests in ascending order of time.
    pub(super) rows: Arc<[Row]>,
    /// The delay of the copy.
    pub(super) shift: Micros,
    /// The world of its prompts.
    pub(super) world: u32,
}

/// Rows of one copy that lie within one lap of the round.
#[derive(Clone, Debug)]
struct LapRows {
    copy: Shifted,
    /// The start of this lap, which is subtracted from the times.
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

    /// The time of an event with this recorded time.
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

// === impl LapRows ===

impl LapRows {
    fn head(&self, speed: Speed) -> Option<Micros> {
        let row = self.copy.rows[..self.end].get(self.next)?;
        Some(self.copy.at(row, speed).since(self.lap))
    }
}

// === impl Shifted ===

impl Shifted {
    /// The time of a row in this copy, before it wraps to the beginning of the round.
    fn at(&self, row: &Row, speed: Speed) -> Micros {
        speed.of(row.at) + self.shift
    }
}

// === impl Round ===

impl Round {
    /// A single trace, as recorded.
    pub(super) fn recorded(rows: Arc<[Row]>) -> Self {
        let shift = Micros::ZERO;
        let lap = Micros::ZERO;
        let end = rows.len();
        let copy = Shifted { rows, shift, world: 0 };
        let whole = LapRows { copy, lap, first: 0, next: 0, end };
        Self::begun(Speed::Recorded, vec![whole])
    }

    /// Copies of a trace in a round of length `span`, which must not be zero.
    pub(super) fn merged(speed: Speed, copies: Vec<Shifted>, span: Micros) -> Self {
        let length = span.micros().max(1);
        let mut stretches = Vec::with_capacity(2 * copies.len());
        for copy in copies {
            let mut first = 0;
            while let Some(row) = copy.rows.get(first) {
                let lap = copy.at(row, speed).micros() / length * length;
                let next_lap = Micros::new(lap + length);
                let rest = &copy.rows[first..];
                let end = first + rest.partition_point(|row| copy.at(row, speed) < next_lap);
                stretches.push(LapRows {
                    copy: copy.clone(),
                    lap: Micros::new(lap),
                    first,
                    next: first,
                    end,
                });
                first = end;
            }
        }

        Self::begun(speed, stretches)
    }

    fn begun(speed: Speed, stretches: Vec<LapRows>) -> Self {
        let mut round = Self { speed, stretches, heads: BinaryHeap::new() };
        round.begin();
        round
    }

    /// Restarts the round.
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

    /// One row per time, each with a distinct prompt length.
    fn rows(times: &[u64]) -> Arc<[Row]> {
        let mut rows = Vec::new();
        for (at, prompt) in times.iter().zip(1..) {
            let size = Size { prompt, output: 1 };
            let known = Some(PromptId { place: prompt, world: 0 });
            rows.push(Row { at: Micros::new(*at), size, prompt: known });
        }

        rows.into()
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
                    let prompt = row.prompt.map(|it| PromptId { world, ..it });
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
