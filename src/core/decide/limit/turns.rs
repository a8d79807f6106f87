//! Whose turn it is to get a replica.
//!
//! Those that share a turn, which are the variants of a model, stand in one line, and the lines are
//! sorted by how much each has of what it wants. Giving a replica moves one line and no other, so
//! what a fleet is given costs its size times a logarithm, and not its square.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use crate::decide::limit::State;

/// The lines, and which of them is next.
pub(super) struct Turns {
    order: BTreeSet<Turn>,
    /// The positions of the wants in each line.
    lines: Vec<VecDeque<usize>>,
}

/// The place of a line: those below their guarantee first, then by class, then by level, then by the
/// order of the models.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    below_guarantee: Reverse<bool>,
    class: Reverse<u32>,
    /// The bits of a level, which is not negative, so that they are in its order.
    level: u64,
    line: usize,
}

// === impl Turns ===

impl Turns {
    pub(super) fn new(state: &State<'_>) -> Self {
        let mut lines = vec![VecDeque::new(); state.models.len()];
        for at in 0..state.wants.len() {
            lines[state.model_of[at]].push_back(at);
        }

        let mut turns = Self { order: BTreeSet::new(), lines };
        (0..turns.lines.len()).for_each(|line| turns.stand(state, line));
        turns
    }

    /// Takes the next want that lacks something that is to be had, with its line; `None` when there
    /// is no such want. The line stands again by [`Turns::stand`].
    pub(super) fn next(&mut self, state: &State<'_>) -> Option<(usize, usize)> {
        while let Some(Turn { line, .. }) = self.order.pop_first() {
            while let Some(&at) = self.lines[line].front() {
                if state.lacks(at) {
                    return Some((line, at));
                }
                self.lines[line].pop_front();
            }
        }
        None
    }

    /// Puts a line where it belongs by what it has.
    pub(super) fn stand(&mut self, state: &State<'_>, line: usize) {
        let model = &state.models[line];
        self.order.insert(Turn {
            below_guarantee: Reverse(model.is_below_guarantee()),
            class: Reverse(model.priority.class),
            level: model.level().to_bits(),
            line,
        });
    }
}
