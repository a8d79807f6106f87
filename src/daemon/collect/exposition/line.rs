//! The grammar of one sample line.
//!
//! ```text
//! sample   = (name [ "{" labels "}" ] | "{" quoted-name [ "," labels ] "}")
//!            value [time] [exemplar]
//! labels   = [ label { "," label } [ "," ] ]
//! label    = (name | quoted-name) "=" quoted
//! exemplar = "#" "{" labels "}" value [time]
//! ```
//!
//! Blanks (spaces and tabs) may stand between any two of these. Quoted text has the escapes `\\`,
//! `\"` and `\n`. One grammar covers all formats, which differ only in the syntax of a time. A
//! response that uses more than its format allows is still read in its only possible meaning.

use std::borrow::Cow;

use memchr::{memchr2, memrchr};

use crate::collect::exposition::fault::SyntaxFault;
use crate::collect::exposition::format::{ExpositionFormat, LINE_MAX};
use plimsoll_core::observe::engine::{Label, decimal, leading_decimal, number};

const fn fault<T>(at: usize, expected: &'static str) -> Result<T, SyntaxFault> {
    Err(SyntaxFault { at, expected })
}

/// Bytes that a label's name may contain. Digits cannot start a name.
static LABEL: [bool; 256] = alphanumerics_and(b"_");

/// Bytes that a metric's name may contain. Digits cannot start a name.
static NAME: [bool; 256] = alphanumerics_and(b"_:");

/// Returns the set of ASCII letters, digits and `some`.
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

pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Returns the offset of the first byte that is not blank.
pub(super) fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).copied().is_some_and(is_blank) {
        at += 1;
    }
    at
}

/// Returns the end of the bare metric name that starts here; `at` if there is none.
pub(super) fn name_end(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    // Nearly every name ends here, and checking all of its bytes at once is faster.
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

/// Returns true if a line whose name ends at `name_end` has the shape `name number` or
/// `name{...} number`. The last word must start like a number and end with a digit. Before it must
/// be the closing brace or the name. The text between the braces is not checked, which makes this
/// cheap. A line that fails this check may still be a sample, so it must be read in full.
pub(super) fn is_plain(line: &[u8], name_end: usize) -> bool {
    let rest = line.get(name_end..).unwrap_or_default();
    // Most numbers are so short that a linear scan ends before a search would start.
    let near = rest.len().saturating_sub(8);
    let blank = rest[near..].iter().rposition(|&byte| byte == b' ').map(|at| near + at);
    let Some(blank) = blank.or_else(|| memrchr(b' ', rest)) else { return false };

    let labels = &rest[..blank];
    let number = &rest[blank + 1..];
    is_number_shaped(number) && (labels.is_empty() || matches!(labels, [b'{', .., b'}']))
}

/// Reads a sample whose name is quoted and stands between the braces. `at` is the offset after the
/// brace. Returns the name and the offset of its value.
pub(super) fn quoted_name<'p>(
    line: &'p [u8],
    at: usize,
    labels: &mut Vec<Label<'p>>,
) -> Result<(Cow<'p, [u8]>, usize), SyntaxFault> {
    let start = skip_blanks(line, at);
    if line.get(start) != Some(&b'"') {
        return fault(start, "a metric name in quotes");
    }

    let (name, end) = quoted(line, start + 1)?;
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

/// Adds the labels before the closing brace to `labels`, and returns the offset after the brace.
/// `at` is the offset after the opening brace.
pub(super) fn labels<'p>(
    line: &'p [u8],
    mut at: usize,
    labels: &mut Vec<Label<'p>>,
) -> Result<usize, SyntaxFault> {
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

/// Reads a label in the form that all clients write, `name="value"` without blanks and escapes.
/// Returns it with the offset after its closing quote. Text in another form may also be a label.
#[inline]
fn plain_label(line: &[u8], at: usize) -> Option<(Label<'_>, usize)> {
    let end = run_end(line, at, &LABEL);
    let rest = line.get(end..)?.strip_prefix(b"=\"")?;
    let length = value_end(rest)?;
    if end == at || rest[length] != b'"' {
        return None;
    }

    let name = Cow::Borrowed(&line[at..end]);
    let value = Cow::Borrowed(&rest[..length]);
    Some((Label { name, value }, end + 2 + length + 1))
}

/// Returns the offset at which a quoted value ends or has its first escape.
#[inline]
fn value_end(quoted: &[u8]) -> Option<usize> {
    // Most values are so short that a linear scan ends before a search would start.
    let near = quoted.iter().take(8).position(|byte| matches!(byte, b'"' | b'\\'));
    near.or_else(|| memchr2(b'"', b'\\', quoted))
}

fn label_name(line: &[u8], at: usize) -> Result<(Cow<'_, [u8]>, usize), SyntaxFault> {
    if line.get(at) == Some(&b'"') {
        return quoted(line, at + 1);
    }

    let end = run_end(line, at, &LABEL);
    if end == at {
        return fault(at, "a label name or `}`");
    }
    Ok((Cow::Borrowed(&line[at..end]), end))
}

/// Adds a label unless its name is among those from `first` on. Clients sort labels, so a name
/// nearly always sorts after the last one and needs no search.
#[inline]
fn add_label<'p>(
    labels: &mut Vec<Label<'p>>,
    first: usize,
    label: Label<'p>,
    start: usize,
) -> Result<(), SyntaxFault> {
    let known = labels.get(first..).unwrap_or_default();
    let is_sorted = known.last().is_none_or(|last| {
        let (last, name): (&[u8], &[u8]) = (&last.name, &label.name);
        last.first() < name.first() || last.first() == name.first() && last < name
    });
    if !is_sorted && known.iter().any(|known| known.name == label.name) {
        return fault(start, "a label name that is not repeated");
    }

    labels.push(label);
    Ok(())
}

/// Reads quoted text and returns it with the offset after the closing quote. `at` is the offset
/// after the opening quote. Only text with an escape is copied.
fn quoted(line: &[u8], at: usize) -> Result<(Cow<'_, [u8]>, usize), SyntaxFault> {
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

/// Reads the part after name and labels: value, time and exemplar. Returns the value and its
/// offset.
pub(super) fn value(
    line: &[u8],
    at: usize,
    format: ExpositionFormat,
) -> Result<(f64, usize), SyntaxFault> {
    let start = skip_blanks(line, at);
    // The rest of the line is nearly always the number.
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

/// Checks a time and an exemplar. Neither is used: engines write no times, and an exemplar adds no
/// information to its sample.
fn after_value(line: &[u8], at: usize, format: ExpositionFormat) -> Result<(), SyntaxFault> {
    let exemplar = time(line, at, format)?;
    if exemplar == line.len() {
        return Ok(());
    }
    if line[exemplar] != b'#' {
        return fault(exemplar, "the end of the line");
    }

    let brace = skip_blanks(line, exemplar + 1);
    if line.get(brace) != Some(&b'{') {
        return fault(brace, "`{` of an exemplar");
    }

    let value = skip_blanks(line, labels(line, brace + 1, &mut Vec::new())?);
    let value_end = token_end(line, value);
    if number(&line[value..value_end]).is_none() {
        return fault(value, "an exemplar's value");
    }

    let end = time(line, skip_blanks(line, value_end), ExpositionFormat::OpenMetrics)?;
    if end == line.len() { Ok(()) } else { fault(end, "the end of the line") }
}

/// Skips a time, if present: whole milliseconds in text, seconds in `OpenMetrics`.
fn time(line: &[u8], at: usize, format: ExpositionFormat) -> Result<usize, SyntaxFault> {
    if at == line.len() || line[at] == b'#' {
        return Ok(at);
    }

    let end = token_end(line, at);
    let token = &line[at..end];
    let (is_time, expected) = match format {
        ExpositionFormat::Text => {
            let digits = token.strip_prefix(b"-").unwrap_or(token);
            let is_whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            (is_whole, "a time in milliseconds, or the end of the line")
        }
        ExpositionFormat::OpenMetrics => (
            number(token).is_some_and(f64::is_finite),
            "a time in seconds, an exemplar, or the end of the line",
        ),
    };

    if is_time { Ok(skip_blanks(line, end)) } else { fault(at, expected) }
}

/// A length above that of any edge or value that programs write. Longer words are read in full.
const WORD_MAX: usize = 32;

/// Returns the value that `page` starts with, if its line ends there, and its length.
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

/// Returns the length of the word that `page` starts with, if its line ends there. The word must
/// have the shape that [`is_plain`] requires of a number.
#[inline]
pub(super) fn last_word(page: &[u8]) -> Option<usize> {
    if page.starts_with(b"0.0\n") {
        return Some(3);
    }

    let mut length = 0;
    for &bytes in page.as_chunks::<8>().0.iter().take(WORD_MAX / 8) {
        let word = u64::from_le_bytes(bytes);
        let newlines = zeros(word ^ (LOW * 0x0a));
        // The bytes before the first newline, or all eight.
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

    // A remainder this short occurs only at the end of a response.
    let near = &page[..page.len().min(WORD_MAX)];
    let length = near.iter().position(|&byte| byte == b'\n')?;
    let word = &near[..length];
    (word.is_ascii() && !word.contains(&b' ') && is_number_shaped(word)).then_some(length)
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW * 0x80;

/// Returns the high bit of each byte that is zero. Bytes above the lowest such byte may also have
/// it set.
#[inline]
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Returns true if a word starts like a number and ends with a digit.
#[inline]
fn is_number_shaped(word: &[u8]) -> bool {
    matches!(word.first(), Some(b'0'..=b'9' | b'+' | b'-' | b'.'))
        && word.last().is_some_and(u8::is_ascii_digit)
}

/// Returns true if the text before a number has the shape that [`is_plain`] requires: the name and
/// a blank, or the name, braces and a blank.
pub(super) fn is_plain_head(head: &[u8], name_end: usize) -> bool {
    matches!(head.get(name_end..), Some([b' '] | [b'{', .., b'}', b' ']))
}

/// Reads the part after the name of a sample, which ends at `name_end`. Returns the value.
pub(super) fn sample<'p>(
    line: &'p [u8],
    name_end: usize,
    format: ExpositionFormat,
    into: &mut Vec<Label<'p>>,
) -> Result<f64, SyntaxFault> {
    let start = skip_blanks(line, name_end);
    let after = match line.get(start) {
        Some(b'{') => labels(line, start + 1, into)?,
        Some(_) | None => name_end,
    };
    value(line, after, format).map(|(value, _)| value)
}

/// The line of a bucket without its `le` and its value. The lines of one histogram differ only in
/// these two, and most needed lines are buckets. The labels are therefore parsed once for all of
/// them.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketLine<'p> {
    /// The line's start, including the opening quote of `le`.
    head: &'p [u8],
    /// From the closing quote of `le` to the closing brace, both included.
    tail: &'p [u8],
}

/// A line with another bucket of the last histogram.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextBucket<'p> {
    /// The line without its end.
    pub(super) line: &'p [u8],
    /// The bucket's edge as text.
    pub(super) le: &'p [u8],
    /// The sample's value.
    pub(super) value: f64,
    /// The offset of the value in the line.
    pub(super) at: usize,
}

impl<'p> BucketLine<'p> {
    /// Splits a line whose labels end before `end`; `None` if it is not a plain bucket.
    pub(super) fn of(line: &'p [u8], end: usize, labels: &[Label<'p>]) -> Option<Self> {
        let le = labels.iter().find(|label| *label.name == *b"le")?;
        let Cow::Borrowed(le) = le.value else { return None };
        // The value is a slice of the line, so its address yields its offset.
        let start = le.as_ptr().addr().checked_sub(line.as_ptr().addr())?;
        let tail = line.get(start + le.len()..end)?;
        tail.starts_with(b"\"").then_some(Self { head: &line[..start], tail })
    }

    /// Splits an unneeded line whose name ends at `name_end`, and which [`is_plain`]; `None` if it
    /// has no `le`. As for all such lines, the text between the braces is not checked.
    pub(super) fn of_plain(line: &'p [u8], name_end: usize) -> Option<Self> {
        const LE: &[u8; 4] = b"le=\"";
        let labels = line.get(name_end..)?;
        let start = name_end + labels.windows(LE.len()).position(|four| four == LE)? + LE.len();
        let end = start + line[start..].iter().position(|&byte| byte == b'"')?;
        let tail = line.get(end..memrchr(b' ', line)?)?;
        tail.ends_with(b"}").then_some(Self { head: &line[..start], tail })
    }

    /// Returns the line that `page` starts with, if it differs from the previous line only in its
    /// `le` and its value, and ends after them. The head ends inside quotes and the tail starts
    /// where they close, so equal bytes are equal labels. The end of such a line needs no search.
    #[inline]
    pub(super) fn next(self, page: &'p [u8]) -> Option<NextBucket<'p>> {
        let (le, value_on) = self.after_labels(page)?;
        let at = page.len() - value_on.len();
        let (value, length) = last_value(value_on)?;
        let line = &page[..at + length];
        (line.len() <= LINE_MAX).then_some(NextBucket { line, le, value, at })
    }

    /// Returns the line that `page` starts with, as [`BucketLine::next`] does, if it is plain.
    #[inline]
    pub(super) fn next_plain(self, page: &'p [u8]) -> Option<&'p [u8]> {
        let (_, value_on) = self.after_labels(page)?;
        let length = page.len() - value_on.len() + last_word(value_on)?;
        (length <= LINE_MAX).then(|| &page[..length])
    }

    /// Returns the edge of a line with the same labels, and the page from its value on.
    #[inline]
    fn after_labels(self, page: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
        let le_on = after_head(page, self.head)?;
        let near = le_on.get(..WORD_MAX).unwrap_or(le_on);
        let le = &near[..near.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\n'))?];
        let value_on = le_on[le.len()..].strip_prefix(self.tail)?.strip_prefix(b" ")?;
        Some((le, value_on))
    }
}

/// Returns the rest of a text that starts with `head`. Most texts that do not differ in the last
/// byte of the head already.
#[inline]
pub(super) fn after_head<'p>(text: &'p [u8], head: &[u8]) -> Option<&'p [u8]> {
    let last = head.len().checked_sub(1)?;
    if text.get(last) != head.get(last) {
        return None;
    }
    text.strip_prefix(head)
}

/// Returns the offset of the first line feed. Lines are so short that this ends before a search
/// with wider vectors would start.
#[inline]
pub(super) fn line_end(page: &[u8]) -> Option<usize> {
    let blocks = page.as_chunks::<32>().0.iter();
    let passed = blocks.take_while(|block| {
        block.iter().fold(0, |found, byte| found | u8::from(*byte == b'\n')) == 0
    });
    let mut at = 32 * passed.count();
    for &bytes in page[at..].as_chunks::<8>().0 {
        let newlines = zeros(u64::from_le_bytes(bytes) ^ (LOW * 0x0a));
        if newlines != 0 {
            return Some(at + newlines.trailing_zeros() as usize / 8);
        }
        at += 8;
    }

    page[at..].iter().position(|&byte| byte == b'\n').map(|behind| at + behind)
}

fn token_end(line: &[u8], at: usize) -> usize {
    let rest = line.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| is_blank(byte)).unwrap_or(rest.len())
}
