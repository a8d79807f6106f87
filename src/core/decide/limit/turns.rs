//! The order in which models get replicas.
//!
//! The variants of a model share a turn and stand in one line. The lines are sorted by the share of
//! its demand that each model has. Granting a replica moves one line and no other, so granting a
//! fleet takes its size times a logarithm, not its square.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::decide::limit::grants::GrantState;

/// The lines in the order of their turns.
pub(super) struct TurnOrder {
    order: BinaryHeap<Reverse<LineTurn>>,
    /// The positions of all wants, one line after the other.
    wants: Vec<usize>,
    /// The rest of each line in `wants`.
    lines: Vec<Range<usize>>,
}

/// The place of a line: models below their guarantee first, then by class, then by level, then by
/// the order of the models.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LineTurn {
    below_guarantee: Reverse<bool>,
    class: Reverse<u32>,
    /// The bits of a level. Levels are not negative, so their bits sort like them.
    level: u64,
    line: usize,
}

// === impl TurnOrder ===

impl TurnOrder {
    pub(super) fn new(state: &GrantState<'_>) -> Self {
        let mut wants: Vec<usize> = (0..state.wants.len()).collect();
        wants.sort_by_key(|&at| state.model_of[at]);

        let mut lines = vec![0..0; state.models.len()];
        let mut start = 0;
        for line in wants.chunk_by(|&a, &b| state.model_of[a] == state.model_of[b]) {
            lines[state.model_of[line[0]]] = start..start + line.len();
            start += line.len();
        }

        let mut turns = Self { order: BinaryHeap::with_capacity(lines.len()), wants, lines };
        (0..turns.lines.len()).for_each(|line| turns.stand(state, line));
        turns
    }

    /// Takes the next want that lacks available replicas, with its line; `None` if there is no such
    /// want. [`TurnOrder::stand`] puts the line back.
    pub(super) fn next(&mut self, state: &GrantState<'_>) -> Option<(usize, usize)> {
        while let Some(Reverse(LineTurn { line, .. })) = self.order.pop() {
            if let Some(at) = self.first(state, line) {
                return Some((line, at));
            }
        }

        None
    }

    /// The first want of a line that lacks available replicas. Those before it leave the line.
    fn first(&mut self, state: &GrantState<'_>, line: usize) -> Option<usize> {
        let rest = &mut self.lines[line];
        let lacking = self.wants[rest.clone()].iter().position(|&at| state.lacks(at));
        rest.start = lacking.map_or(rest.end, |behind| rest.start + behind);
        lacking.map(|_| self.wants[rest.start])
    }

    /// Puts a line at its place, by the share that its model has. A line without a want that lacks
    /// replicas leaves.
    pub(super) fn stand(&mut self, state: &GrantState<'_>, line: usize) {
        if self.first(state, line).is_none() {
            return;
        }

        let model = &state.models[line];
        self.order.push(Reverse(LineTurn {
            below_guarantee: Reverse(model.is_below_guarantee()),
            class: Reverse(model.priority.class),
            level: model.level().to_bits(),
            line,
        }));
    }
}
