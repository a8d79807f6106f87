//! Layouts: the lines of a server's metrics response, so that the next one is read faster.
//!
//! A server writes the same lines in every response, and only the values differ. Most of the work
//! in reading a response is to find the same facts again: the end of each line, the meaning of its
//! name, and its labels. A [`Layout`] holds the text of a response without its values, and the slot
//! of each value. If the next response has the same text, each line takes one comparison and its
//! value.
//!
//! Comments may differ, and so may lines that are not needed, provided that their names are known
//! not to be needed. Those lines are then checked one by one, as [`read`] does. Lines whose labels
//! are their content, which are those about adapters, are always read one by one. A response that
//! differs in any other way is read by [`read`] without a layout, and defines the next layout. A
//! layout therefore only makes reading faster. It never changes the reading or the errors.
//!
//! One vLLM rank's layout has 70 KB, nearly all of it text. The replicas of a variant share one
//! layout, and [`Layouts`] bounds their total size.
//!
//! [`Layouts`]: crate::collect::exposition::Layouts
//! [`read`]: crate::collect::exposition::read

use memchr::memchr;

use crate::collect::exposition::format::{ExpositionFormat, LINE_MAX, SAMPLES_MAX};
use crate::collect::exposition::line;
use plimsoll_core::observe::Reading;
use plimsoll_core::observe::engine::{Filling, Label, PageTemplate, SeriesPosition, number};

/// The longest text before a line's value. It leaves room for the value within [`LINE_MAX`].
const HEAD_MAX: usize = LINE_MAX - 64;

/// The lines of a text response.
#[derive(Debug)]
pub struct Layout {
    /// The response without its values.
    text: Box<[u8]>,
    steps: Box<[LayoutStep]>,
    /// The number of steps before the engine is known. These must match exactly, comments included,
    /// because any of them can identify the engine.
    before_engine: usize,
    template: PageTemplate,
    /// The number of needed samples, except those whose content is in their labels.
    samples: usize,
}

/// A line with the comments before it: the next bytes of the layout's text, followed by a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LayoutStep {
    /// The number of bytes of the text.
    length: u32,
    /// The number of these bytes that are comments.
    comments: u32,
    /// The number of the line's bytes that are its name and the byte after it.
    name: u32,
    /// The slot of the value; `None` if it is not needed.
    slot: Option<SeriesPosition>,
}

/// Marks whether the engine was known before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineKnowledge {
    Known,
    Unknown,
}

/// A layout that is being learned.
#[derive(Debug, Default)]
pub(super) struct Learning {
    text: Vec<u8>,
    steps: Vec<LayoutStep>,
    /// The offset at which the text of the next step starts.
    start: usize,
    before_engine: usize,
    /// True if no layout can describe the response.
    is_given_up: bool,
}

// === impl Layout ===

impl Layout {
    /// Reads a text response that has this layout; `None` for any other response, which may be just
    /// as valid.
    pub(super) fn read(&self, body: &[u8]) -> Option<Reading> {
        let mut page = self.template.fill();
        let mut loose = SingleLines::default();
        let mut rest = body;
        let mut text = &*self.text;
        let mut at = 0;
        while !rest.is_empty() {
            let Some(step) = self.steps.get(at) else {
                rest = after_comment(rest)?;
                continue;
            };
            let (lead, later) = text.split_at_checked(step.length as usize)?;
            let is_free = at >= self.before_engine;
            let head = lead.get(step.comments as usize..)?;
            let value_on = match rest.strip_prefix(lead) {
                None if is_free => rest.strip_prefix(head),
                same => same,
            };
            let length = match (value_on, step.slot) {
                (Some(_), Some(slot)) if slot.is_in_labels() => None,
                (Some(value_on), Some(slot)) => {
                    let (value, end) = line::last_value(value_on)?;
                    page.put(slot, value).ok()?;
                    Some(end)
                }
                (Some(value_on), None) => line::last_word(value_on),
                (None, _) => None,
            };

            if let (Some(value_on), Some(length)) = (value_on, length) {
                (rest, text, at) = (&value_on[length + 1..], later, at + 1);
            } else if !is_free {
                return None;
            } else if rest.starts_with(b"#") {
                rest = after_comment(rest)?;
            } else if step.is_fixed() {
                return None;
            } else if let Some(after) = loose.after(rest, step, head, &mut page) {
                rest = after;
            } else {
                (text, at) = (later, at + 1);
            }
        }

        let missing = self.steps.get(at.max(self.before_engine)..)?;
        let is_whole = at >= self.before_engine && !missing.iter().any(LayoutStep::is_fixed);
        let samples = self.samples + loose.taken;
        let reading = (is_whole && samples <= SAMPLES_MAX).then(|| page.finish().ok()).flatten()?;
        Some(Reading { samples, ..reading })
    }

    pub(super) fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.steps)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        let Self { text, steps, before_engine, template: _, samples } = self;
        // The template is derived from the data that the other fields describe.
        (samples, before_engine) == (&other.samples, &other.before_engine)
            && text == &other.text
            && steps == &other.steps
    }
}

/// Returns the rest of the text after the comment that it starts with.
#[cold]
fn after_comment(page: &[u8]) -> Option<&[u8]> {
    let (line, after) = first_line(page)?;
    line.starts_with(b"#").then_some(after)
}

/// Lines that are read one by one.
#[derive(Default)]
struct SingleLines<'p> {
    labels: Vec<Label<'p>>,
    /// The number of needed lines.
    taken: usize,
}

impl<'p> SingleLines<'p> {
    /// Returns the text after its first line, if that line is a sample with the step's name.
    fn after(
        &mut self,
        page: &'p [u8],
        step: &LayoutStep,
        head: &[u8],
        filling: &mut Filling<'p>,
    ) -> Option<&'p [u8]> {
        let name = head.get(..step.name as usize)?;
        let end = name.len().checked_sub(1)?;
        let (line, after) = first_line(page).filter(|(line, _)| line.starts_with(name))?;
        if step.slot.is_some() {
            self.labels.clear();
            let value = line::sample(line, end, ExpositionFormat::Text, &mut self.labels).ok()?;
            filling.take_labels(&self.labels, value);
            self.taken += 1;
        } else if !line::is_plain(line, end) {
            line::sample(line, end, ExpositionFormat::Text, &mut Vec::new()).ok()?;
        }

        Some(after)
    }
}

impl LayoutStep {
    /// Returns true if the line must be present exactly once and unchanged.
    fn is_fixed(&self) -> bool {
        self.slot.is_some_and(|slot| !slot.is_in_labels())
    }
}

/// Returns the first line, without its end, and the rest; `None` if `exposition::read` might reject
/// the line.
fn first_line(page: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b'\n', page).filter(|&at| at <= LINE_MAX)?;
    let line = &page[..end];
    std::str::from_utf8(line).ok()?;
    Some((line, &page[end + 1..]))
}

// === impl Learning ===

impl Learning {
    /// Adds a line without its end. It is a comment, another sample, or a needed sample, for which
    /// `placed` is the slot and the offset of its value.
    pub(super) fn line(
        &mut self,
        line: &[u8],
        placed: Option<(SeriesPosition, usize)>,
        engine: EngineKnowledge,
    ) {
        let is_comment = line.starts_with(b"#");
        if is_comment {
            self.text.extend_from_slice(line);
            self.text.push(b'\n');
        } else if let Some((length, name, slot)) = sample(line, placed) {
            if self.repeats(&line[..name], slot) {
                return;
            }

            let comments = self.text.len() - self.start;
            self.text.extend_from_slice(&line[..length]);
            let step = step(self.text.len() - self.start, comments, name, slot);
            self.steps.extend(step);
            self.is_given_up |= step.is_none();
            self.start = self.text.len();
        } else {
            self.is_given_up = true;
        }
        if engine == EngineKnowledge::Unknown {
            // A comment belongs to the next step.
            self.before_engine = self.steps.len() + usize::from(is_comment);
        }
    }

    /// Returns true if this line repeats a kind of line that may occur any number of times. A
    /// server with many adapters has thousands.
    fn repeats(&self, name: &[u8], slot: Option<SeriesPosition>) -> bool {
        slot.is_some_and(SeriesPosition::is_in_labels)
            && self.start == self.text.len()
            && self.steps.last().is_some_and(|last| last.slot == slot)
            && self.text.ends_with(name)
    }

    /// Returns the layout of the response that was read.
    pub(super) fn finish(self, template: PageTemplate) -> Option<Layout> {
        let Self { mut text, mut steps, start, before_engine, is_given_up } = self;
        if is_given_up || before_engine > steps.len() {
            return None;
        }
        for slot in steps.iter_mut().filter_map(|step| step.slot.as_mut()) {
            *slot = template.place(*slot)?;
        }

        text.truncate(start);
        let samples = steps.iter().filter(|step| step.is_fixed()).count();
        Some(Layout {
            text: text.into_boxed_slice(),
            steps: steps.into_boxed_slice(),
            before_engine,
            template,
            samples,
        })
    }
}

/// Returns a sample's length before its value, the part of it that is its name with the byte after
/// it, and its slot; `None` for a rarer form of sample.
fn sample(
    line: &[u8],
    placed: Option<(SeriesPosition, usize)>,
) -> Option<(usize, usize, Option<SeriesPosition>)> {
    let name_end = line::name_end(line, 0);
    let head = match placed {
        Some((slot, _)) if slot.is_in_labels() => {
            return (name_end > 0).then(|| (name_end + 1, name_end + 1, Some(slot)));
        }
        Some((_, value)) => value,
        None => memchr::memrchr(b' ', line)? + 1,
    };

    let is_usual = name_end > 0
        && head <= HEAD_MAX
        && number(&line[head..]).is_some()
        && (placed.is_some() || line::is_plain_head(&line[..head], name_end));
    is_usual.then(|| (head, name_end + 1, placed.map(|(slot, _)| slot)))
}

fn step(
    length: usize,
    comments: usize,
    name: usize,
    slot: Option<SeriesPosition>,
) -> Option<LayoutStep> {
    Some(LayoutStep {
        length: count(length)?,
        comments: count(comments)?,
        name: count(name)?,
        slot,
    })
}

fn count(bytes: usize) -> Option<u32> {
    u32::try_from(bytes).ok()
}
