//! Cached label sets.

use std::ops::Range;

use crate::collect::exposition::fault::SyntaxFault;
use crate::collect::exposition::line;
use plimsoll_core::observe::engine::Label;

/// Label sets that have been read, kept because they recur. The next sample usually has the same
/// labels. If a response has several ranks, each family's samples list the ranks in the same order.
#[derive(Default)]
pub(super) struct LabelSets<'p> {
    /// The labels of all sets, one set after the other.
    labels: Vec<Label<'p>>,
    sets: Vec<LabelSet<'p>>,
    /// The set that was last used.
    last: usize,
}

/// Labels, and the bytes from which they were read, braces included.
struct LabelSet<'p> {
    text: &'p [u8],
    labels: Range<usize>,
}

/// The maximum number of cached sets. Labels of further ranks are parsed for each sample.
const SETS_MAX: usize = 64;

/// Initial capacity for the labels of one engine, its configuration's included.
const LABELS_USUAL: usize = 96;

impl<'p> LabelSets<'p> {
    /// Reads the labels after a name, if there are any, and returns them with the offset after.
    pub(super) fn read(
        &mut self,
        line: &'p [u8],
        name_end: usize,
    ) -> Result<(&[Label<'p>], usize), SyntaxFault> {
        let start = line::skip_blanks(line, name_end);
        let text = line.get(start..).unwrap_or_default();
        if !text.starts_with(b"{") {
            return Ok((&[], name_end));
        }

        // The same set, the next one in order, or the first one of a new cycle.
        let same = [self.last, self.last + 1, 0]
            .into_iter()
            .find(|at| self.sets.get(*at).is_some_and(|known| text.starts_with(known.text)));
        if let Some(at) = same {
            self.last = at;
            let LabelSet { text, labels } = &self.sets[at];
            return Ok((&self.labels[labels.clone()], start + text.len()));
        }

        if self.sets.len() >= SETS_MAX
            && let Some(LabelSet { labels, .. }) = self.sets.pop()
        {
            self.labels.truncate(labels.start);
        }

        let first = self.labels.len();
        if first == 0 {
            self.labels.reserve(LABELS_USUAL);
        }

        let end = line::labels(line, start + 1, &mut self.labels)?;
        self.last = self.sets.len();
        self.sets.push(LabelSet { text: &line[start..end], labels: first..self.labels.len() });
        Ok((&self.labels[first..], end))
    }
}
