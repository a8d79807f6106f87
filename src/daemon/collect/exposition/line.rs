//! The grammar of one sample line.
//!
//! ```text
//! sample   = (name [ "{" labels "}" ] | "{" quoted-name [ "," labels ] "}") value [time] [exemplar]
//! labels   = [ label { "," label } [ "," ] ]
//! label    = (name | quoted-name) "=" quoted
//! exemplar = "#" "{" labels "}" value [time]
//! ```
//!
//! Blanks (spaces and tabs) may stand between any two of these. Quoted text knows the escapes
//! `\\`, `\"` and `\n`. One grammar serves all formats; they differ in what a time is, and a
//! page that uses more than its format allows is still read in the only way that it can be meant.

use std::borrow::Cow;

use memchr::{memchr2, memrchr};

use crate::collect::exposition::{Format, LINE_MAX};
use plimsoll_core::observe::engine::{Label, decimal, leading_decimal, number};

/// Where a line stops being a sample, and what should have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset in the line.
    pub(super) at: usize,
    /// What should have been there.
    pub(super) expected: &'static str,
}

const fn fault<T>(at: usize, expected: &'static str) -> Result<T, Fault> {
    Err(Fault { at, expected })
}

/// Bytes that can be in a label's name; the digits cannot start one.
static LABEL: [bool; 256] = alphanumerics_and(b"_");

/// Bytes that can be in a metric's name; the digits cannot start one.
static NAME: [bool; 256] = alphanumerics_and(b"_:");

/// ASCII letters and digits, and some more.
const fn alphanumerics_and(some: &[u8]) -> [bool; 256] {
    let mut set = [false; 256];
    let mut byte: u8 = 0;
    while byte < 0x80 {
        set[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut index = 0;
    while index < some.len() {
        set[some[index] as usize] = true;
        index += 1;
    }
    set
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The offset of the first byte that is not blank.
pub(super) fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).copied().is_some_and(is_blank) {
        at += 1;
    }
    at
}

/// The end of the bare metric name that starts here; `at` itself when there is none.
pub(super) fn name_end(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    // Nearly every name ends here, and to check that it is one is quicker for all of it at once.
    if let Some(end) = memchr2(b'{', b' ', rest)
        && rest[..end].iter().fold(true, |all, &byte| all & NAME[usize::from(byte)])
    {
        let is_name = !rest.first().is_none_or(u8::is_ascii_digit);
        return if is_name { at + end } else { at };
    }
    run_end(line, at, &NAME)
}

fn run_end(line: &[u8], at: usize, of: &[bool; 256]) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    if rest.first().is_none_or(u8::is_ascii_digit) {
        return at;
    }
    at + rest.iter().position(|&byte| !of[usize::from(byte)]).unwrap_or(rest.len())
}

/// Whether a line whose name ends at `name_end` is shaped like `name number` or
/// `name{...} number`: the last word starts like a number and ends with a digit, and before it is
/// the closing brace or the name. What is between the braces is not looked at, which makes this
/// cheap; a line that fails may still be a sample and must be read in full to know.
pub(super) fn is_plain(line: &[u8], name_end: usize) -> bool {
    let rest = line.get(name_end..).unwrap_or_default();
    // Most numbers are short, over before a search for the blank has started.
    let near = rest.len().saturating_sub(8);
    let blank = rest[near..].iter().rposition(|&byte| byte == b' ').map(|at| near + at);
    let Some(blank) = blank.or_else(|| memrchr(b' ', rest)) else { return false };
    let (labels, number) = (&rest[..blank], &rest[blank + 1..]);
    is_number_shaped(number) && (labels.is_empty() || matches!(labels, [b'{', .., b'}']))
}

/// Reads a sample whose name is quoted and stands between the braces. `at` is after the brace.
/// Returns the name and the offset of its value.
pub(super) fn quoted_name<'p>(
    line: &'p [u8],
    at: usize,
    labels: &mut Vec<Label<'p>>,
) -> Result<(Cow<'p, [u8]>, usize), Fault> {
    let at = skip_blanks(line, at);
    if line.get(at) != Some(&b'"') {
        return fault(at, "a metric name in quotes");
    }
    let (name, end) = quoted(line, at + 1)?;
    if name.is_empty() {
        return fault(at, "a metric name that is not empty");
    }
    let at = skip_blanks(line, end);
    match line.get(at) {
        Some(b',') => Ok((name, self::labels(line, at + 1, labels)?)),
        Some(b'}') => Ok((name, at + 1)),
        _ => fault(at, "`,` or `}` after the metric name"),
    }
}

/// Adds labels up to the closing brace to `labels` and returns the offset after it. `at` is after
/// the opening brace.
pub(super) fn labels<'p>(
    line: &'p [u8],
    mut at: usize,
    labels: &mut Vec<Label<'p>>,
) -> Result<usize, Fault> {
    let first = labels.len();
    loop {
        if let Some((label, end)) = plain_label(line, at)
            && let Some(next @ (b',' | b'}')) = line.get(end)
        {
            add_label(labels, first, label, at)?;
            at = end + 1;
            if *next == b'}' {
                return Ok(at);
            }
            continue;
        }
        at = skip_blanks(line, at);
        if line.get(at) == Some(&b'}') {
            return Ok(at + 1);
        }
        let start = at;
        let (name, end) = label_name(line, at)?;
        at = skip_blanks(line, end);
        if line.get(at) != Some(&b'=') {
            return fault(at, "`=` after the label name");
        }
        at = skip_blanks(line, at + 1);
        if line.get(at) != Some(&b'"') {
            return fault(at, "a label value in quotes");
        }
        let (value, end) = quoted(line, at + 1)?;
        add_label(labels, first, Label { name, value }, start)?;
        at = skip_blanks(line, end);
        match line.get(at) {
            Some(b',') => at += 1,
            Some(b'}') => return Ok(at + 1),
            _ => return fault(at, "`,` or `}` after the label value"),
        }
    }
}

/// A label as all clients write it, `name="value"` without blanks and escapes, and the offset
/// after its closing quote. Any other may be a label as well.
#[inline]
fn plain_label(line: &[u8], at: usize) -> Option<(Label<'_>, usize)> {
    let end = run_end(line, at, &LABEL);
    let value = line.get(end..)?.strip_prefix(b"=\"")?;
    let length = value_end(value)?;
    if end == at || value[length] != b'"' {
        return None;
    }
    let (name, value) = (Cow::Borrowed(&line[at..end]), Cow::Borrowed(&value[..length]));
    Some((Label { name, value }, end + 2 + length + 1))
}

/// Where a quoted value ends or has its first escape.
#[inline]
fn value_end(quoted: &[u8]) -> Option<usize> {
    // Most values are a digit or a word, over before a search for the quote has started.
    let is_end = |&byte: &u8| matches!(byte, b'"' | b'\\');
    let near = quoted.iter().take(8).position(is_end);
    near.or_else(|| memchr2(b'"', b'\\', quoted))
}

fn label_name(line: &[u8], at: usize) -> Result<(Cow<'_, [u8]>, usize), Fault> {
    if line.get(at) == Some(&b'"') {
        return quoted(line, at + 1);
    }
    let end = run_end(line, at, &LABEL);
    if end == at {
        return fault(at, "a label name or `}`");
    }
    Ok((Cow::Borrowed(&line[at..end]), end))
}

/// Adds a label unless its name is among those from `first` on. Clients sort labels, so that a name
/// is nearly always behind the last one and needs no search.
#[inline]
fn add_label<'p>(
    labels: &mut Vec<Label<'p>>,
    first: usize,
    label: Label<'p>,
    start: usize,
) -> Result<(), Fault> {
    let known = labels.get(first..).unwrap_or_default();
    let is_sorted = known.last().is_none_or(|last| {
        let (last, name): (&[u8], &[u8]) = (&last.name, &label.name);
        last.first() < name.first() || last.first() == name.first() && last < name
    });
    if !is_sorted && known.iter().any(|known| known.name == label.name) {
        return fault(start, "a label name that is not there twice");
    }
    labels.push(label);
    Ok(())
}

/// Reads quoted text and returns it with the offset after the closing quote. `at` is after the
/// opening quote. Only text with an escape is copied.
fn quoted(line: &[u8], at: usize) -> Result<(Cow<'_, [u8]>, usize), Fault> {
    const UNCLOSED: &str = "a closing `\"`";
    let rest = line.get(at..).unwrap_or_default();
    let Some(first) = value_end(rest) else {
        return fault(line.len(), UNCLOSED);
    };
    if rest[first] == b'"' {
        return Ok((Cow::Borrowed(&rest[..first]), at + first + 1));
    }
    let mut text = Vec::with_capacity(rest.len().min(2 * first + 16));
    let mut from = 0;
    let mut next = first;
    loop {
        text.extend_from_slice(&rest[from..next]);
        if rest[next] == b'"' {
            return Ok((Cow::Owned(text), at + next + 1));
        }
        text.push(match rest.get(next + 1) {
            Some(b'n') => b'\n',
            Some(&escaped @ (b'"' | b'\\')) => escaped,
            _ => return fault(at + next + 1, "`\\`, `\"` or `n` after a backslash"),
        });
        from = next + 2;
        next = match memchr2(b'"', b'\\', &rest[from..]) {
            Some(found) => from + found,
            None => return fault(line.len(), UNCLOSED),
        };
    }
}

/// Reads what follows name and labels: value, time and exemplar. Returns the value and its offset.
pub(super) fn value(line: &[u8], at: usize, format: Format) -> Result<(f64, usize), Fault> {
    let start = skip_blanks(line, at);
    // Nearly always the number is the rest of the line.
    if let Some(value) = line.get(start..).and_then(decimal) {
        return Ok((value, start));
    }
    let end = token_end(line, start);
    let Some(value) = number(&line[start..end]) else { return fault(start, "a number") };
    let at = skip_blanks(line, end);
    if at < line.len() {
        after_value(line, at, format)?;
    }
    Ok((value, start))
}

/// Checks a time and an exemplar. Neither is used: engines write no times, and an exemplar says
/// nothing that the sample does not.
fn after_value(line: &[u8], at: usize, format: Format) -> Result<(), Fault> {
    let at = time(line, at, format)?;
    if at == line.len() {
        return Ok(());
    }
    if line[at] != b'#' {
        return fault(at, "the end of the line");
    }
    let at = skip_blanks(line, at + 1);
    if line.get(at) != Some(&b'{') {
        return fault(at, "`{` of an exemplar");
    }
    let at = skip_blanks(line, labels(line, at + 1, &mut Vec::new())?);
    let end = token_end(line, at);
    if number(&line[at..end]).is_none() {
        return fault(at, "an exemplar's value");
    }
    let at = time(line, skip_blanks(line, end), Format::OpenMetrics)?;
    if at == line.len() { Ok(()) } else { fault(at, "the end of the line") }
}

/// Skips a time, if there is one: whole milliseconds in text, seconds in `OpenMetrics`.
fn time(line: &[u8], at: usize, format: Format) -> Result<usize, Fault> {
    if at == line.len() || line[at] == b'#' {
        return Ok(at);
    }
    let end = token_end(line, at);
    let token = &line[at..end];
    let (is_time, expected) = match format {
        Format::Text => {
            let digits = token.strip_prefix(b"-").unwrap_or(token);
            let is_whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            (is_whole, "a time in milliseconds, or the end of the line")
        }
        Format::OpenMetrics => (
            number(token).is_some_and(f64::is_finite),
            "a time in seconds, an exemplar, or the end of the line",
        ),
    };
    if is_time { Ok(skip_blanks(line, end)) } else { fault(at, expected) }
}

/// Longer than any edge or value that a program writes; what is longer is read in full.
const WORD_MAX: usize = 32;

/// The number that `page` starts with, if its line ends there, and its length.
#[inline]
pub(super) fn last_value(page: &[u8]) -> Option<(f64, usize)> {
    // Half of all buckets are empty.
    if page.starts_with(b"0.0\n") {
        return Some((0.0, 3));
    }
    match leading_decimal(page) {
        Some((value, length)) if page.get(length) == Some(&b'\n') => Some((value, length)),
        Some(_) | None => {
            let near = page.get(..WORD_MAX).unwrap_or(page);
            let length = near.iter().position(|&byte| byte == b'\n')?;
            Some((number(&near[..length])?, length))
        }
    }
}

/// The length of the word that `page` starts with, if its line ends there and it is shaped like the
/// number of a line that [`is_plain`].
#[inline]
pub(super) fn last_word(page: &[u8]) -> Option<usize> {
    if page.starts_with(b"0.0\n") {
        return Some(3);
    }
    let mut length = 0;
    for &word in page.as_chunks::<8>().0.iter().take(WORD_MAX / 8) {
        let word = u64::from_le_bytes(word);
        let newlines = zeros(word ^ (LOW * 0x0a));
        // Up to the first end of a line, or all eight.
        let before = newlines.wrapping_sub(1) & !newlines;
        if before & (zeros(word ^ (LOW * 0x20)) | word & HIGH) != 0 {
            return None;
        }
        if newlines != 0 {
            length += newlines.trailing_zeros() as usize / 8;
            return is_number_shaped(&page[..length]).then_some(length);
        }
        length += 8;
    }
    // So short a rest is only at the end of a page.
    let near = &page[..page.len().min(WORD_MAX)];
    let length = near.iter().position(|&byte| byte == b'\n')?;
    let word = &near[..length];
    (word.is_ascii() && !word.contains(&b' ') && is_number_shaped(word)).then_some(length)
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW * 0x80;

/// The high bit of each byte that is zero. Bytes above the lowest of these may have theirs set as
/// well.
#[inline]
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Whether a word starts like a number and ends with a digit.
#[inline]
fn is_number_shaped(word: &[u8]) -> bool {
    matches!(word.first(), Some(b'0'..=b'9' | b'+' | b'-' | b'.'))
        && word.last().is_some_and(u8::is_ascii_digit)
}

/// Whether what stands before a number has the shape that [`is_plain`] asks for: the name and a
/// blank, or the name, braces and a blank.
pub(super) fn is_plain_head(head: &[u8], name_end: usize) -> bool {
    matches!(head.get(name_end..), Some([b' '] | [b'{', .., b'}', b' ']))
}

/// Reads what follows the name of a sample, which ends at `name_end`; returns the value.
pub(super) fn sample<'p>(
    line: &'p [u8],
    name_end: usize,
    format: Format,
    into: &mut Vec<Label<'p>>,
) -> Result<f64, Fault> {
    let start = skip_blanks(line, name_end);
    let after = match line.get(start) {
        Some(b'{') => labels(line, start + 1, into)?,
        Some(_) | None => name_end,
    };
    value(line, after, format).map(|(value, _)| value)
}

/// A bucket's line without its `le` and its number. The lines of one histogram differ in nothing
/// else, and they are most of what is read, so the labels are taken apart only once for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket<'p> {
    /// Up to the opening quote of `le`, which is included.
    head: &'p [u8],
    /// From the closing quote of `le` to the closing brace, both included.
    tail: &'p [u8],
}

/// A line that is another bucket of the histogram that was last read.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextBucket<'p> {
    /// The line without its end.
    pub(super) line: &'p [u8],
    /// The bucket's edge as it is written.
    pub(super) le: &'p [u8],
    /// The sample's value.
    pub(super) value: f64,
    /// The offset of the value in the line.
    pub(super) at: usize,
}

impl<'p> Bucket<'p> {
    /// The parts of a line whose labels end before `end`; `None` when it is no plain bucket.
    pub(super) fn of(line: &'p [u8], end: usize, labels: &[Label<'p>]) -> Option<Self> {
        let le = labels.iter().find(|label| *label.name == *b"le")?;
        let Cow::Borrowed(le) = le.value else { return None };
        // The value is a part of the line; this is where.
        let start = le.as_ptr().addr().checked_sub(line.as_ptr().addr())?;
        let tail = line.get(start + le.len()..end)?;
        tail.starts_with(b"\"").then_some(Self { head: &line[..start], tail })
    }

    /// The line that `page` starts with, if it differs from the one before only in its `le` and
    /// its value and nothing follows that. The head ends inside quotes and the tail starts where
    /// they close, so equal bytes are equal labels. The end of such a line need not be searched.
    #[inline]
    pub(super) fn next(self, page: &'p [u8]) -> Option<NextBucket<'p>> {
        let le_on = page.strip_prefix(self.head)?;
        let near = le_on.get(..WORD_MAX).unwrap_or(le_on);
        let le = &near[..near.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\n'))?];
        let value_on = le_on[le.len()..].strip_prefix(self.tail)?.strip_prefix(b" ")?;
        let at = page.len() - value_on.len();
        let (value, length) = last_value(value_on)?;
        let line = &page[..at + length];
        (line.len() <= LINE_MAX).then_some(NextBucket { line, le, value, at })
    }
}

fn token_end(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| is_blank(byte)).unwrap_or(rest.len())
}
