//! Exposition pages: Prometheus text 0.0.4 and 1.0.0, and `OpenMetrics` 1.0.
//!
//! A page is walked once, line by line, without being copied. Lines of families that nobody wants
//! are nearly all of it (an autoscaler uses a third of the samples of a vLLM page), so they are
//! checked for their shape only:
//!
//! - the line starts with `#`, or with a metric name followed by a blank or `{`;
//! - after the last blank is a word that starts like a number and ends with a digit;
//! - before that blank is the closing brace, or the name itself.
//!
//! What is between the braces of such a line is not looked at. A line of any other shape is read
//! in full, wanted or not: it is either a rarer form of sample (a time, an exemplar, a quoted
//! name) or an error. The whole body must be UTF-8. So a body that is half a page and half
//! something else is refused, and no unwanted line costs more than finding its ends.
//!
//! Nothing is allocated for an unwanted line: its name is compared where it stands, and names that
//! repeat the last line's are not even looked up. Of a wanted line, labels are slices of the body
//! (copied only when they contain an escape) in a list that all lines share, and the value goes
//! straight to the [`Reader`], whose memory is that of the reading it makes. Labels are taken apart
//! once for all buckets of a histogram, and once for all samples in a row that have the same ones.
//!
//! There is no partial reading. A cut is found by the missing end of the last line, in
//! `OpenMetrics` by the missing `# EOF`, and by histograms that lack a part. **A text page that is
//! cut exactly between two lines and two families looks complete**: the format has no end mark.
//! Then signals are absent, and counters that are summed over labels (HTTP answers, rejections)
//! can be too small. HTTP does notice, by `Content-Length` or the last chunk, so whoever fetches a
//! page must treat a body that ends early as a failure and not pass it on.

mod labels;
mod layout;
mod line;
pub mod samples;

use std::borrow::Cow;

use memchr::memchr;

use crate::collect::exposition::labels::LabelSets;
use crate::collect::exposition::layout::{Learned, Learning};
use crate::collect::exposition::line::{Bucket, Fault, NextBucket};
use plimsoll_core::observe::engine::{
    Engine, Reader, SampleError, Series, Slot, Unreadable, unwanted_sibling,
};
use plimsoll_core::observe::{Reading, ScrapeFailure};

pub use crate::collect::exposition::layout::{Layout, Layouts, Memory};

/// The longest line that is read. The longest on a vLLM page is 1.1 KB (`cache_config_info`), but
/// a build has put 7 MB of configuration into one label.
pub const LINE_MAX: usize = 64 * 1024;

/// The number of wanted samples that are read. A vLLM rank has about 170; this is 300 ranks.
pub const SAMPLES_MAX: usize = 50_000;

/// The last line of an `OpenMetrics` page.
const END_MARK: &[u8] = b"# EOF";

/// The syntax of a page, as far as the formats differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Prometheus text of any version. vLLM says 1.0.0 and writes 0.0.4.
    Text,
    /// `OpenMetrics`, which ends with `# EOF`.
    OpenMetrics,
}

/// Why a page gives no reading.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// There is no page in the body.
    #[error("the body is empty, expected metrics")]
    Empty,
    /// The server says that it is something else.
    #[error("the content type is {found:?}, expected text/plain or application/openmetrics-text")]
    ContentType {
        /// The header's value.
        found: String,
    },
    /// The page is cut off.
    #[error("line {line}, column {column}: the page ends here, expected {expected}")]
    Truncated {
        /// Line at which it ends, from 1.
        line: usize,
        /// Column after its last character, from 1.
        column: usize,
        /// What should have come.
        expected: &'static str,
    },
    /// A line is no comment and no sample.
    #[error("line {line}, column {column}: found {found}, expected {expected}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is there.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A sample is well formed and means nothing.
    #[error("line {line}, column {column}: the sample of {name} is unusable")]
    Sample {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The metric.
        name: String,
        /// What is wrong with it.
        source: SampleError,
    },
    /// A line is longer than [`LINE_MAX`].
    #[error("line {line}, column {column}: the line is longer than {limit} bytes")]
    LineTooLong {
        /// Line, from 1.
        line: usize,
        /// Column at which the limit is reached, from 1.
        column: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// There are more wanted samples than [`SAMPLES_MAX`].
    #[error("line {line}, column 1: more than {limit} samples of the metrics that are read")]
    TooManySamples {
        /// Line of the first that is too many, from 1.
        line: usize,
        /// The limit.
        limit: usize,
    },
    /// The histogram is incomplete, so lines are missing.
    #[error("the histogram {family} of rank {rank} has no {missing}: lines are missing")]
    CutHistogram {
        /// The family, without the engine's prefix.
        family: &'static str,
        /// The rank.
        rank: u32,
        /// The suffix or bucket that is missing.
        missing: &'static str,
    },
    /// The page is sound but no known engine's.
    #[error("no metrics of a known engine, but {}", Prefixes(prefixes))]
    UnknownEngine {
        /// Prefixes of the metrics that are there, in order of appearance.
        prefixes: Vec<String>,
    },
}

/// Shows the prefixes of a page that nobody knows, and those that are known.
struct Prefixes<'a>(&'a [String]);

impl std::fmt::Display for Prefixes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => f.write_str("no other metrics either")?,
            prefixes => write!(f, "metrics that start with {}", prefixes.join(", "))?,
        }
        write!(f, "; expected {}", Engine::ALL.map(Engine::prefix).join(" or "))
    }
}

impl PageError {
    /// The class of failure that the core and the metrics know.
    #[must_use]
    pub const fn failure(&self) -> ScrapeFailure {
        match self {
            Self::Empty | Self::ContentType { .. } | Self::Syntax { .. } | Self::Sample { .. } => {
                ScrapeFailure::Malformed
            }
            Self::Truncated { .. } | Self::CutHistogram { .. } => ScrapeFailure::Truncated,
            Self::LineTooLong { .. } | Self::TooManySamples { .. } => ScrapeFailure::TooLarge,
            Self::UnknownEngine { .. } => ScrapeFailure::UnknownEngine,
        }
    }

    fn syntax(number: usize, line: &[u8], Fault { at, expected }: Fault) -> Self {
        Self::Syntax { line: number, column: column(line, at), found: found(line, at), expected }
    }

    fn truncated(number: usize, line: &[u8], expected: &'static str) -> Self {
        Self::Truncated { line: number, column: column(line, line.len()), expected }
    }
}

impl From<Unreadable> for PageError {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::UnknownEngine { prefixes } => Self::UnknownEngine { prefixes },
            Unreadable::CutHistogram { family, rank, missing } => {
                Self::CutHistogram { family, rank, missing }
            }
        }
    }
}

/// Reads a page. `content_type` is the header's value, which decides the format; without one the
/// page is read as text.
///
/// # Errors
///
/// The page is truncated, not metrics, has a broken line, or is no known engine's. No partial
/// reading is ever returned.
pub fn read(body: &[u8], content_type: Option<&str>) -> Result<Reading, PageError> {
    let format = checked(body, content_type)?;
    walk(body, Page::new(format, None)).map(|(reading, _)| reading)
}

/// The format of a body that may be a page.
fn checked(body: &[u8], content_type: Option<&str>) -> Result<Format, PageError> {
    let format = format(content_type)?;
    if body.trim_ascii().is_empty() {
        return Err(PageError::Empty);
    }
    check_utf8(body)?;
    Ok(format)
}

/// Reads a page line by line.
fn walk<'p>(body: &'p [u8], mut page: Page<'p>) -> Result<(Reading, Option<Layout>), PageError> {
    let mut rest = body;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        if let Some(next) = page.bucket.and_then(|bucket| bucket.next(rest)) {
            page.next_bucket(number, &next)?;
            page.learn(next.line, Learned::Known);
            rest = &rest[next.line.len() + 1..];
            continue;
        }
        let end = memchr(b'\n', rest);
        let line = &rest[..end.unwrap_or(rest.len())];
        if line.len() > LINE_MAX {
            let column = column(line, LINE_MAX);
            return Err(PageError::LineTooLong { line: number, column, limit: LINE_MAX });
        }
        let whole = line;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(end) = end else {
            page.unfinished(number, line)?;
            break;
        };
        let is_known = page.reader.engine().is_some();
        page.line(number, line)?;
        page.learn(whole, if is_known { Learned::Known } else { Learned::Unknown });
        rest = &rest[end + 1..];
    }
    page.finish(number)
}

/// The format that a content type stands for.
fn format(content_type: Option<&str>) -> Result<Format, PageError> {
    let content_type = content_type.unwrap_or_default().trim();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type.is_empty() || media_type.eq_ignore_ascii_case("text/plain") {
        Ok(Format::Text)
    } else if media_type.eq_ignore_ascii_case("application/openmetrics-text") {
        Ok(Format::OpenMetrics)
    } else {
        Err(PageError::ContentType { found: content_type.chars().take(FOUND_MAX).collect() })
    }
}

/// Refuses a body that is not UTF-8. Nearly every page is ASCII, which is quicker to find out.
fn check_utf8(body: &[u8]) -> Result<(), PageError> {
    if body.is_ascii() {
        return Ok(());
    }
    let Err(error) = std::str::from_utf8(body) else { return Ok(()) };
    let (before, rest) = body.split_at(error.valid_up_to());
    let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    Err(PageError::Syntax {
        line: memchr::memchr_iter(b'\n', before).count() + 1,
        column: column(&body[start..], before.len() - start),
        found: format!("the byte 0x{:02x}", rest.first().copied().unwrap_or_default()),
        expected: "UTF-8",
    })
}

/// A page that is being read.
struct Page<'p> {
    format: Format,
    reader: Reader<'p>,
    /// The name of the last sample with the byte after it, and what it stands for.
    last: Option<(&'p [u8], Option<Series>)>,
    /// The last sample taken, if it was a bucket.
    bucket: Option<Bucket<'p>>,
    /// The labels of buckets and of other samples, which take turns.
    bucket_labels: LabelSets<'p>,
    labels: LabelSets<'p>,
    /// The name that was last looked at in a comment.
    noted: &'p [u8],
    samples: usize,
    is_ended: bool,
    /// What is learned of the page's layout, if that is wanted.
    learning: Option<Learning>,
    /// Where the value of the line went, and where it stands, if the line was wanted.
    placed: Option<(Slot, usize)>,
}

impl<'p> Page<'p> {
    fn new(format: Format, learning: Option<Learning>) -> Self {
        Self {
            format,
            reader: Reader::new(),
            last: None,
            bucket: None,
            bucket_labels: LabelSets::default(),
            labels: LabelSets::default(),
            noted: b"",
            samples: 0,
            is_ended: false,
            learning,
            placed: None,
        }
    }

    /// Takes a whole line, without its end. Nearly all lines are comments or like the one before;
    /// these are looked at here, and the rest in [`Page::other_line`].
    #[inline]
    fn line(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        if line.starts_with(b"#") && self.passes_over(line) {
            return Ok(());
        }
        // The name of a sample that repeats the last one's ends where that one ended.
        if let Some((head, series)) = self.last
            && line.starts_with(head)
        {
            let end = head.len() - 1;
            return match series {
                None if line::is_plain(line, end) => Ok(()),
                _ => self.sample(number, line, end, series),
            };
        }
        self.other_line(number, line)
    }

    /// Whether a comment says nothing: it is not the end mark, and the engine is known.
    #[inline]
    fn passes_over(&self, comment: &[u8]) -> bool {
        let may_end = self.format == Format::OpenMetrics;
        self.reader.engine().is_some() && !(may_end && (self.is_ended || comment == END_MARK))
    }

    fn other_line(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        let start = line::skip_blanks(line, 0);
        match line.get(start) {
            None => Ok(()),
            Some(_) if self.is_ended => {
                let expected = "nothing after `# EOF`";
                Err(PageError::syntax(number, line, Fault { at: start, expected }))
            }
            Some(b'#') => {
                self.comment(&line[start..]);
                Ok(())
            }
            Some(b'{') => self.quoted_sample(number, line, start + 1),
            Some(_) => self.named_sample(number, line, start),
        }
    }

    /// Takes the last line, which has no end. Only the end mark may be like that.
    fn unfinished(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        if self.is_ended || self.format == Format::OpenMetrics && line == END_MARK {
            return self.other_line(number, line);
        }
        // A single line may be all that there is of an answer that was never metrics; it is more
        // telling to say so.
        if number == 1 {
            match self.other_line(number, line) {
                Err(PageError::Syntax { column: at, found, expected, .. })
                    if at < column(line, line.len()) =>
                {
                    return Err(PageError::Syntax { line: number, column: at, found, expected });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Err(PageError::truncated(number, line, "the end of the line"))
    }

    fn finish(self, lines: usize) -> Result<(Reading, Option<Layout>), PageError> {
        if self.format == Format::OpenMetrics && !self.is_ended {
            return Err(PageError::truncated(lines + 1, b"", "`# EOF`"));
        }
        let Self { reader, samples, learning, .. } = self;
        let layout = learning.and_then(|learning| learning.finish(reader.template()));
        Ok((Reading { samples, ..reader.finish()? }, layout))
    }

    /// Looks at a comment. Only the end mark matters, and the names in `HELP` and `TYPE` as long
    /// as the engine is unknown; types do not, for they can lie.
    fn comment(&mut self, line: &'p [u8]) {
        if self.format == Format::OpenMetrics && line == END_MARK {
            self.is_ended = true;
            self.last = None;
            self.bucket = None;
        }
        if self.reader.engine().is_some() {
            return;
        }
        let Some(name) = described(line).filter(|name| *name != self.noted) else { return };
        self.noted = name;
        let unquoted = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\""));
        self.reader.note(unquoted.unwrap_or(name));
    }

    /// Takes a line that does not start like the last sample.
    fn named_sample(
        &mut self,
        number: usize,
        line: &'p [u8],
        start: usize,
    ) -> Result<(), PageError> {
        if let Some((head, None)) = self.last
            && self.reader.engine().is_some()
            && let Some(end) = unwanted_sibling(&head[..head.len() - 1], line)
            && line::is_plain(line, end)
        {
            self.last = Some((&line[..=end], None));
            return Ok(());
        }
        let end = line::name_end(line, start);
        if end == start {
            let expected = "`#`, `{` or a metric name";
            return Err(PageError::syntax(number, line, Fault { at: start, expected }));
        }
        if !matches!(line.get(end), Some(b'{' | b' ' | b'\t')) {
            let expected = "`{` or a blank after the metric name";
            return Err(PageError::syntax(number, line, Fault { at: end, expected }));
        }
        let series = self.reader.wants(&line[start..end]);
        if start == 0 {
            self.last = Some((&line[..=end], series));
        }
        if series.is_none() && line::is_plain(line, end) {
            return Ok(());
        }
        self.sample(number, line, end, series)
    }

    /// Reads a sample in full, wanted or not. Its name ends at `end`.
    fn sample(
        &mut self,
        number: usize,
        line: &'p [u8],
        end: usize,
        series: Option<Series>,
    ) -> Result<(), PageError> {
        let is_bucket = series.is_some_and(Series::is_bucket);
        let sets = if is_bucket { &mut self.bucket_labels } else { &mut self.labels };
        let read = sets.read(line, end);
        let read = read.and_then(|(labels, after)| {
            let (value, at) = line::value(line, after, self.format)?;
            Ok((labels, after, value, at))
        });
        let (labels, after, value, at) =
            read.map_err(|fault| PageError::syntax(number, line, fault))?;
        let Some(series) = series else { return Ok(()) };
        self.samples += 1;
        let taken = self.reader.take(series, labels, value);
        let slot = taken.map_err(|source| {
            let name = &line[line::skip_blanks(line, 0)..end];
            At { number, line, name, value: at }.unusable(source)
        })?;
        self.placed = Some((slot, at));
        self.bucket = if is_bucket { Bucket::of(line, after, labels) } else { None };
        self.check_samples(number)
    }

    /// Takes another bucket of the same histogram.
    #[inline]
    fn next_bucket(&mut self, number: usize, next: &NextBucket<'p>) -> Result<(), PageError> {
        let &NextBucket { line, le, value, at } = next;
        self.samples += 1;
        let slot = self.reader.take_next_bucket(le, value).map_err(|source| {
            let start = line::skip_blanks(line, 0);
            let name = &line[start..line::name_end(line, start)];
            At { number, line, name, value: at }.unusable(source)
        })?;
        self.placed = Some((slot, at));
        self.check_samples(number)
    }

    /// Takes a sample whose name is in quotes. `at` is after the brace.
    fn quoted_sample(&mut self, number: usize, line: &'p [u8], at: usize) -> Result<(), PageError> {
        let mut labels = Vec::new();
        let read = line::quoted_name(line, at, &mut labels);
        let read = read.and_then(|(name, at)| Ok((name, line::value(line, at, self.format)?)));
        let (name, (value, at)) = read.map_err(|fault| PageError::syntax(number, line, fault))?;
        let Some(series) = self.reader.wants(&name) else { return Ok(()) };
        let taken = self.reader.take(series, &labels, value);
        taken.map_err(|source| At { number, line, name: &name, value: at }.unusable(source))?;
        self.bucket = None;
        self.samples += 1;
        self.check_samples(number)
    }

    /// Adds the line that was taken to the layout, if one is learned.
    #[inline]
    fn learn(&mut self, line: &[u8], engine: Learned) {
        if let Some(learning) = &mut self.learning {
            learning.line(line, self.placed.take(), engine);
        }
    }

    fn check_samples(&self, line: usize) -> Result<(), PageError> {
        if self.samples > SAMPLES_MAX {
            return Err(PageError::TooManySamples { line, limit: SAMPLES_MAX });
        }
        Ok(())
    }
}

/// The family that a `HELP` or `TYPE` line is about.
fn described(comment: &[u8]) -> Option<&[u8]> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let words = comment.strip_prefix(b"#")?.strip_prefix(b" ")?;
    let words = words.strip_prefix(b"HELP").or_else(|| words.strip_prefix(b"TYPE"))?;
    let (blank, words) = words.split_first()?;
    is_blank(blank).then(|| &words[..words.iter().position(is_blank).unwrap_or(words.len())])
}

/// Where a sample is, for an error about it.
struct At<'a> {
    number: usize,
    line: &'a [u8],
    name: &'a [u8],
    value: usize,
}

impl At<'_> {
    #[cold]
    fn unusable(&self, source: SampleError) -> PageError {
        let at = match &source {
            SampleError::NotCumulative { .. } => self.value,
            SampleError::BadLabel { label, .. } => {
                memchr::memmem::find(self.line, label.as_bytes()).unwrap_or_default()
            }
            SampleError::Duplicate
            | SampleError::MissingLabel { .. }
            | SampleError::TooManyRanks
            | SampleError::TooManyBuckets => line::skip_blanks(self.line, 0),
        };
        PageError::Sample {
            line: self.number,
            column: column(self.line, at),
            name: String::from_utf8_lossy(self.name).into_owned(),
            source,
        }
    }
}

/// Characters of the page that a message repeats.
const FOUND_MAX: usize = 40;

/// The column of an offset, in characters from 1.
fn column(line: &[u8], at: usize) -> usize {
    String::from_utf8_lossy(&line[..at.min(line.len())]).chars().count() + 1
}

/// What is at an offset: a word or a single character.
fn found(line: &[u8], at: usize) -> String {
    let rest: Cow<'_, str> = String::from_utf8_lossy(line.get(at..).unwrap_or_default());
    let Some(first) = rest.chars().next() else { return "the end of the line".to_owned() };
    let is_word = |c: &char| c.is_alphanumeric() || "_:+-.".contains(*c);
    let word: String = rest.chars().take_while(is_word).take(FOUND_MAX).collect();
    let shown = if word.is_empty() { first.to_string() } else { word };
    format!("`{}`", shown.escape_debug())
}
