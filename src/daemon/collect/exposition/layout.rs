//! Layouts: the lines of a server's page, so that the next one is sooner read.
//!
//! A server writes the same lines page after page and only the values differ. What it takes to read
//! a page is mostly to find that out: where each line ends, what its name stands for, and what its
//! labels say. A [`Layout`] has the text of a page without its values, and where each value goes.
//! Of a page that has the same text, each line takes one comparison and its value.
//!
//! Comments may differ, and so may the lines that nobody wants, as long as their names are known to
//! be unwanted: those are then checked one by one, as [`read`] does. Lines whose labels are what they
//! say, which are those about adapters, are always read one by one. A page that differs in anything
//! else is read by [`read`] as if there were no layout, and gives the layout of the next. So a
//! layout can make reading quicker and nothing else: what is read and what is refused is the same.
//!
//! One vLLM rank's layout has 70 KB, nearly all of it text. The replicas of a variant have the same
//! one and share it, and all together are bounded ([`Layouts`]).
//!
//! [`read`]: crate::collect::exposition::read

use std::sync::{Arc, Mutex, PoisonError, Weak};

use memchr::memchr;

use crate::collect::exposition::{
    Format, LINE_MAX, Page, PageError, SAMPLES_MAX, checked, format, line, walk,
};
use plimsoll_core::observe::Reading;
use plimsoll_core::observe::engine::{Filling, Label, Slot, Template, number};

/// Bytes of all layouts together. These are 250 kinds of servers with one rank each, which is far
/// more than fleets have; pages of further ones are read without a layout.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Room that a line of the layout leaves for its value.
const HEAD_MAX: usize = LINE_MAX - 64;

/// The lines of a text page.
#[derive(Debug)]
pub struct Layout {
    /// The page without its values.
    text: Box<[u8]>,
    steps: Box<[Step]>,
    /// Steps that come before the engine is known. They must be there as they were, comments
    /// included, because any of them can say whose page it is.
    before_engine: usize,
    template: Template,
    /// Wanted samples, but for those that are in their labels.
    samples: usize,
}

/// A line with the comments before it: the next bytes of the layout's text, and then a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    /// Bytes of the text.
    length: u32,
    /// So many of which are comments.
    comments: u32,
    /// So many of the line are its name and the byte after it.
    name: u32,
    /// Where the value goes; `None` if nobody wants it.
    slot: Option<Slot>,
}

/// Whether the engine was known before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    Known,
    Unknown,
}

/// A layout that is being learned.
#[derive(Debug, Default)]
pub(super) struct Learning {
    text: Vec<u8>,
    steps: Vec<Step>,
    /// Where the text of the next step starts.
    start: usize,
    before_engine: usize,
    /// The page has something that no layout can describe.
    is_given_up: bool,
}

/// The layouts of many servers, so that equal ones are kept once.
#[derive(Debug, Default)]
pub struct Layouts {
    known: Mutex<Vec<Weak<Layout>>>,
}

/// What is remembered of one server's pages.
#[derive(Debug, Default)]
pub struct Memory {
    layouts: Arc<Layouts>,
    layout: Option<Arc<Layout>>,
}

// === impl Memory ===

impl Memory {
    /// The memory of a server that has written no page, among others.
    #[must_use]
    pub fn new(layouts: Arc<Layouts>) -> Self {
        Self { layouts, layout: None }
    }

    /// The layout of the last page, if it had one.
    #[must_use]
    pub const fn layout(&self) -> Option<&Arc<Layout>> {
        self.layout.as_ref()
    }

    /// Reads the server's next page. The answer is that of `exposition::read`; a page that is
    /// laid out like the last one is just sooner read.
    ///
    /// # Errors
    ///
    /// As for `exposition::read`. What is remembered then stays.
    pub fn read(&mut self, body: &[u8], content_type: Option<&str>) -> Result<Reading, PageError> {
        let may_fit = format(content_type)? == Format::Text;
        if let Some(layout) = self.layout.as_ref().filter(|_| may_fit)
            && let Some(reading) = layout.read(body)
        {
            return Ok(reading);
        }
        let format = checked(body, content_type)?;
        let learns = may_fit && (self.layout.is_some() || self.layouts.have_room());
        let page = Page::new(format, learns.then(Learning::default));
        let (reading, layout) = walk(body, page)?;
        // The old one is let go before there is a new one.
        self.layout = None;
        self.layout = layout.and_then(|layout| self.layouts.share(layout));
        Ok(reading)
    }
}

// === impl Layouts ===

impl Layouts {
    fn have_room(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|layout| layout.strong_count() > 0);
        known.iter().filter_map(Weak::upgrade).map(|layout| layout.bytes()).sum::<usize>()
            < BYTES_MAX
    }

    /// The layout, or an equal one that is known; `None` when there is no room for another.
    fn share(&self, layout: Layout) -> Option<Arc<Layout>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.strong_count() > 0);
        let mut bytes = layout.bytes();
        for other in known.iter().filter_map(Weak::upgrade) {
            if other.is_same(&layout) {
                return Some(other);
            }
            bytes += other.bytes();
        }
        (bytes <= BYTES_MAX).then(|| {
            let layout = Arc::new(layout);
            known.push(Arc::downgrade(&layout));
            layout
        })
    }
}

// === impl Layout ===

impl Layout {
    /// The reading of a text page that has this layout; `None` for any other page, which may be as
    /// good.
    fn read(&self, body: &[u8]) -> Option<Reading> {
        let mut page = self.template.fill();
        let mut loose = Loose::default();
        let (mut rest, mut text, mut at) = (body, &*self.text, 0);
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
                    let (value, length) = line::last_value(value_on)?;
                    page.put(slot, value).ok()?;
                    Some(length)
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
        let is_whole = at >= self.before_engine && !missing.iter().any(Step::is_fixed);
        let samples = self.samples + loose.taken;
        let reading = (is_whole && samples <= SAMPLES_MAX).then(|| page.finish().ok()).flatten()?;
        Some(Reading { samples, ..reading })
    }

    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.steps)
    }

    fn is_same(&self, other: &Self) -> bool {
        let Self { text, steps, before_engine, template: _, samples } = self;
        // The template is made from what the others describe.
        (samples, before_engine) == (&other.samples, &other.before_engine)
            && text == &other.text
            && steps == &other.steps
    }
}

/// The page after the comment that it starts with.
#[cold]
fn after_comment(page: &[u8]) -> Option<&[u8]> {
    let (line, after) = first_line(page)?;
    line.starts_with(b"#").then_some(after)
}

/// Lines that are read one by one.
#[derive(Default)]
struct Loose<'p> {
    labels: Vec<Label<'p>>,
    /// Those that were wanted.
    taken: usize,
}

impl<'p> Loose<'p> {
    /// The page after a line that it starts with, if that has the name of the step and is a sample.
    fn after(
        &mut self,
        page: &'p [u8],
        step: &Step,
        head: &[u8],
        filling: &mut Filling<'p>,
    ) -> Option<&'p [u8]> {
        let name = head.get(..step.name as usize)?;
        let end = name.len().checked_sub(1)?;
        let (line, after) = first_line(page).filter(|(line, _)| line.starts_with(name))?;
        if step.slot.is_some() {
            self.labels.clear();
            let value = line::sample(line, end, Format::Text, &mut self.labels).ok()?;
            filling.take_labels(&self.labels, value);
            self.taken += 1;
        } else if !line::is_plain(line, end) {
            line::sample(line, end, Format::Text, &mut Vec::new()).ok()?;
        }
        Some(after)
    }
}

impl Step {
    /// Whether the line must be there, once and as it was.
    fn is_fixed(&self) -> bool {
        self.slot.is_some_and(|slot| !slot.is_in_labels())
    }
}

/// The first line, without its end, and what follows; `None` where `exposition::read` may find
/// fault.
fn first_line(page: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b'\n', page).filter(|&end| end <= LINE_MAX)?;
    let line = &page[..end];
    std::str::from_utf8(line).ok()?;
    Some((line, &page[end + 1..]))
}

// === impl Learning ===

impl Learning {
    /// Takes a line without its end: a comment, a wanted sample with where its value went and
    /// stands, or another sample.
    pub(super) fn line(&mut self, line: &[u8], placed: Option<(Slot, usize)>, engine: Learned) {
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
        if engine == Learned::Unknown {
            // A comment belongs to the step that comes next.
            self.before_engine = self.steps.len() + usize::from(is_comment);
        }
    }

    /// Whether this is one more of the lines of which there may be any number: a server of many
    /// adapters has thousands.
    fn repeats(&self, name: &[u8], slot: Option<Slot>) -> bool {
        slot.is_some_and(Slot::is_in_labels)
            && self.start == self.text.len()
            && self.steps.last().is_some_and(|last| last.slot == slot)
            && self.text.ends_with(name)
    }

    /// The layout of the page that was read.
    pub(super) fn finish(self, template: Template) -> Option<Layout> {
        let Self { mut text, mut steps, start, before_engine, is_given_up } = self;
        if is_given_up || before_engine > steps.len() {
            return None;
        }
        for slot in steps.iter_mut().filter_map(|step| step.slot.as_mut()) {
            *slot = template.place(*slot)?;
        }
        text.truncate(start);
        let samples = steps.iter().filter(|step| step.is_fixed()).count();
        let (text, steps) = (text.into_boxed_slice(), steps.into_boxed_slice());
        Some(Layout { text, steps, before_engine, template, samples })
    }
}

/// What a sample has before its value, how much of that is its name with the byte after it, and its
/// slot; `None` for a rarer form of sample.
fn sample(line: &[u8], placed: Option<(Slot, usize)>) -> Option<(usize, usize, Option<Slot>)> {
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

fn step(length: usize, comments: usize, name: usize, slot: Option<Slot>) -> Option<Step> {
    let count = |length: usize| u32::try_from(length).ok();
    Some(Step { length: count(length)?, comments: count(comments)?, name: count(name)?, slot })
}
