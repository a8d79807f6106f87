//! The order in which models get replicas.
//!
//! The variants of a model share a turn and stand in one line. The lines are sorted by the share of
//! its demand that each model has. Granting a replica moves one line and no other, so granting a
//! fleet takes its size times a logarithm, not its square.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use crate::decide::limit::grants::GrantState;

/// The lines in the order of their turns.
pub(super) struct TurnOrder {
    order: BTreeSet<LineTurn>,
    /// The positions of the wants in each line.
    lines: Vec<VecDeque<usize>>,
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
        let mut lines = vec![VecDeque::new(); state.models.len()];
        for at in 0..state.wants.len() {
            lines[state.model_of[at]].push_back(at);
        }

        let mut turns = Self { order: BTreeSet::new(), lines };
        (0..turns.lines.len()).for_each(|line| turns.stand(state, line));
        turns
    }

    /// Takes the next want that lacks available replicas, with its line; `None` if there is no such
    /// want. [`TurnOrder::stand`] puts the line back.
    pub(super) fn next(&mut self, state: &GrantState<'_>) -> Option<(usize, usize)> {
        while let Some(LineTurn { line, .. }) = self.order.pop_first() {
            while let Some(&at) = self.lines[line].front() {
                if state.lacks(at) {
                    return Some((line, at));
                }
                self.lines[line].pop_front();
            }
        }

        None
    }

    /// Puts a line at its place, by the share that its model has.
    pub(super) fn stand(&mut self, state: &GrantState<'_>, line: usize) {
        let model = &state.models[line];
        self.order.insert(LineTurn {
            below_guarantee: Reverse(model.is_below_guarantee()),
            class: Reverse(model.priority.class),
            level: model.level().to_bits(),
            line,
        });
    }
}
