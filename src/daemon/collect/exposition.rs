//! Metrics responses: Prometheus text 0.0.4 and 1.0.0, and `OpenMetrics` 1.0.
//!
//! A response is read once, line by line, without being copied. Nearly all of its lines belong to
//! families that are not needed: an autoscaler uses a third of the samples that vLLM exports. Such
//! lines are checked only for their shape:
//!
//! - the line starts with `#`, or with a metric name followed by a blank or `{`;
//! - after the last blank is a word that starts like a number and ends with a digit;
//! - before that blank is the closing brace, or the name itself.
//!
//! The text between the braces of such a line is not checked. A line of any other shape is read in
//! full, needed or not. It is either a rarer form of sample (a time, an exemplar, a quoted name) or
//! an error. The whole body must be UTF-8. These checks reject a body that is only partly a metrics
//! response. A line that is not needed costs no more than finding its ends.
//!
//! A line that is not needed allocates nothing. Its name is compared in place, and a name that
//! repeats the last line's is not looked up. In a needed line, labels are slices of the body,
//! copied only if they contain an escape. All lines share one list of labels, and the value goes
//! directly to the [`ReadingBuilder`], whose memory is that of the reading. Labels are parsed once
//! for all buckets of a histogram, and once for all consecutive samples with the same labels.
//!
//! There is no partial reading. Truncation is detected by a last line without an end, in
//! `OpenMetrics` by a missing `# EOF`, and by histograms that lack a part. **A text response that
//! is truncated exactly between two lines and two families looks complete**, because the format has
//! no end mark. Signals are then absent, and counters that are summed over labels (HTTP responses,
//! rejections) can be too small. HTTP detects such a truncation by `Content-Length` or the last
//! chunk. Callers that fetch a response must therefore treat a body that ends early as a failure,
//! and must not pass it on.

mod labels;
mod layout;
mod line;
pub mod samples;

use std::borrow::Cow;

use memchr::memchr;

use crate::collect::exposition::labels::LabelSets;
use crate::collect::exposition::layout::{EngineKnowledge, Learning};
use crate::collect::exposition::line::{BucketLine, NextBucket, SyntaxFault};
use plimsoll_core::observe::engine::{
    Engine, ReadingBuilder, SampleError, Series, SeriesPosition, Unreadable, unwanted_sibling,
};
use plimsoll_core::observe::{Reading, ScrapeFailure};

pub use crate::collect::exposition::layout::{Layout, LayoutMemory, Layouts};

/// The longest accepted line. The longest that vLLM exports is 1.1 KB (`cache_config_info`), but
/// one build put 7 MB of configuration into one label.
pub const LINE_MAX: usize = 64 * 1024;

/// The maximum number of needed samples. A vLLM rank has about 170, so this suffices for 300 ranks.
pub const SAMPLES_MAX: usize = 50_000;

/// The last line of an `OpenMetrics` response.
const END_MARK: &[u8] = b"# EOF";

/// The syntax of a response, as far as the formats differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpositionFormat {
    /// Prometheus text of any version. vLLM declares 1.0.0 and writes 0.0.4.
    Text,
    /// `OpenMetrics`, which ends with `# EOF`.
    OpenMetrics,
}

/// The reason why a response has no reading.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The body is empty.
    #[error("the body is empty, expected metrics")]
    Empty,
    /// The server declares another content type.
    #[error("the content type is {found:?}, expected text/plain or application/openmetrics-text")]
    ContentType {
        /// The header's value.
        found: String,
    },
    /// The response is truncated.
    #[error("line {line}, column {column}: the page ends here, expected {expected}")]
    Truncated {
        /// Line at which it ends, from 1.
        line: usize,
        /// Column after its last character, from 1.
        column: usize,
        /// The text that was expected next.
        expected: &'static str,
    },
    /// A line is neither a comment nor a sample.
    #[error("line {line}, column {column}: found {found}, expected {expected}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The text that was found.
        found: String,
        /// The text that was expected.
        expected: &'static str,
    },
    /// A sample is well formed but has no valid meaning.
    #[error("line {line}, column {column}: the sample of {name} is unusable")]
    Sample {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The metric.
        name: String,
        /// The problem with it.
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
    /// There are more needed samples than [`SAMPLES_MAX`].
    #[error("line {line}, column 1: more than {limit} samples of the metrics that are read")]
    TooManySamples {
        /// Line of the first excess sample, from 1.
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
    /// The response is valid, but from no known engine.
    #[error("no metrics of a known engine, but {}", Prefixes(prefixes))]
    UnknownEngine {
        /// Prefixes of its metrics, in order of appearance.
        prefixes: Vec<String>,
    },
}

/// Shows the prefixes in an unknown response, and the known prefixes.
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
    /// The failure class in the core and in metrics.
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

    fn syntax(number: usize, line: &[u8], SyntaxFault { at, expected }: SyntaxFault) -> Self {
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

/// Reads a response. `content_type` is the header's value, which determines the format. Without
/// one, the response is read as text.
///
/// # Errors
///
/// The response is truncated, is not metrics, has an invalid line, or is from no known engine. A
/// partial reading is never returned.
pub fn read(body: &[u8], content_type: Option<&str>) -> Result<Reading, PageError> {
    let format = checked(body, content_type)?;
    walk(body, PageParser::new(format, None)).map(|(reading, _)| reading)
}

/// Checks that a body may be a metrics response, and returns its format.
fn checked(body: &[u8], content_type: Option<&str>) -> Result<ExpositionFormat, PageError> {
    let format = format(content_type)?;
    if body.trim_ascii().is_empty() {
        return Err(PageError::Empty);
    }
    check_utf8(body)?;
    Ok(format)
}

/// Reads a response line by line.
fn walk<'p>(
    body: &'p [u8],
    mut page: PageParser<'p>,
) -> Result<(Reading, Option<Layout>), PageError> {
    let mut rest = body;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        if let Some(next) = page.bucket.and_then(|bucket| bucket.next(rest)) {
            page.next_bucket(number, &next)?;
            page.learn(next.line, EngineKnowledge::Known);
            rest = &rest[next.line.len() + 1..];
            continue;
        }

        let end = memchr(b'\n', rest);
        let whole = &rest[..end.unwrap_or(rest.len())];
        if whole.len() > LINE_MAX {
            let column = column(whole, LINE_MAX);
            return Err(PageError::LineTooLong { line: number, column, limit: LINE_MAX });
        }

        let line = whole.strip_suffix(b"\r").unwrap_or(whole);
        let Some(end) = end else {
            page.unfinished(number, line)?;
            break;
        };
        let is_known = page.reader.engine().is_some();
        page.line(number, line)?;
        page.learn(whole, if is_known { EngineKnowledge::Known } else { EngineKnowledge::Unknown });
        rest = &rest[end + 1..];
    }

    page.finish(number)
}

/// Returns the format that a content type declares.
fn format(content_type: Option<&str>) -> Result<ExpositionFormat, PageError> {
    let declared = content_type.unwrap_or_default().trim();
    let media_type = declared.split(';').next().unwrap_or_default().trim();

    if media_type.is_empty() || media_type.eq_ignore_ascii_case("text/plain") {
        Ok(ExpositionFormat::Text)
    } else if media_type.eq_ignore_ascii_case("application/openmetrics-text") {
        Ok(ExpositionFormat::OpenMetrics)
    } else {
        Err(PageError::ContentType { found: declared.chars().take(FOUND_MAX).collect() })
    }
}

/// Rejects a body that is not UTF-8. Nearly every response is ASCII, which is faster to check.
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

/// A response that is being read.
struct PageParser<'p> {
    format: ExpositionFormat,
    reader: ReadingBuilder<'p>,
    /// The name of the last sample with the byte after it, and its series.
    last: Option<(&'p [u8], Option<Series>)>,
    /// The last sample taken, if it was a bucket.
    bucket: Option<BucketLine<'p>>,
    /// The labels of buckets and of other samples, which alternate.
    bucket_labels: LabelSets<'p>,
    labels: LabelSets<'p>,
    /// The last name that was checked in a comment.
    noted: &'p [u8],
    samples: usize,
    is_ended: bool,
    /// The layout learned so far, if it is wanted.
    learning: Option<Learning>,
    /// The slot and the offset of the line's value, if the line was needed.
    placed: Option<(SeriesPosition, usize)>,
}

impl<'p> PageParser<'p> {
    fn new(format: ExpositionFormat, learning: Option<Learning>) -> Self {
        Self {
            format,
            reader: ReadingBuilder::new(),
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

    /// Processes a whole line, without its end. Nearly all lines are comments or resemble the
    /// previous line, and are handled here. [`PageParser::other_line`] handles the rest.
    #[inline]
    fn line(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        if line.starts_with(b"#") && self.passes_over(line) {
            return Ok(());
        }

        // A name that repeats the last sample's ends at the same offset.
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

    /// Returns true if a comment is irrelevant: it is not the end mark, and the engine is known.
    #[inline]
    fn passes_over(&self, comment: &[u8]) -> bool {
        let may_end = self.format == ExpositionFormat::OpenMetrics;
        self.reader.engine().is_some() && !(may_end && (self.is_ended || comment == END_MARK))
    }

    fn other_line(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        let start = line::skip_blanks(line, 0);

        match line.get(start) {
            None => Ok(()),
            Some(_) if self.is_ended => {
                let expected = "nothing after `# EOF`";
                Err(PageError::syntax(number, line, SyntaxFault { at: start, expected }))
            }
            Some(b'#') => {
                self.comment(&line[start..]);
                Ok(())
            }
            Some(b'{') => self.quoted_sample(number, line, start + 1),
            Some(_) => self.named_sample(number, line, start),
        }
    }

    /// Processes the last line, which has no end. Only the end mark may lack one.
    fn unfinished(&mut self, number: usize, line: &'p [u8]) -> Result<(), PageError> {
        if self.is_ended || self.format == ExpositionFormat::OpenMetrics && line == END_MARK {
            return self.other_line(number, line);
        }

        // A single line may be a whole response that was never metrics. A syntax error is then more
        // helpful than a truncation.
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
        if self.format == ExpositionFormat::OpenMetrics && !self.is_ended {
            return Err(PageError::truncated(lines + 1, b"", "`# EOF`"));
        }
        let Self { reader, samples, learning, .. } = self;
        let layout = learning.and_then(|learning| learning.finish(reader.template()));
        Ok((Reading { samples, ..reader.finish()? }, layout))
    }

    /// Processes a comment. Only the end mark matters, and, while the engine is unknown, the names
    /// in `HELP` and `TYPE`. Types are ignored because they can be wrong.
    fn comment(&mut self, line: &'p [u8]) {
        if self.format == ExpositionFormat::OpenMetrics && line == END_MARK {
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

    /// Processes a line that does not start like the last sample.
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
            return Err(PageError::syntax(number, line, SyntaxFault { at: start, expected }));
        }

        if !matches!(line.get(end), Some(b'{' | b' ' | b'\t')) {
            let expected = "`{` or a blank after the metric name";
            return Err(PageError::syntax(number, line, SyntaxFault { at: end, expected }));
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

    /// Reads a sample in full, needed or not. Its name ends at `end`.
    fn sample(
        &mut self,
        number: usize,
        line: &'p [u8],
        end: usize,
        series: Option<Series>,
    ) -> Result<(), PageError> {
        let is_bucket = series.is_some_and(Series::is_bucket);
        let sets = if is_bucket { &mut self.bucket_labels } else { &mut self.labels };
        let read = sets.read(line, end).and_then(|(labels, after)| {
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
            SampleLocation { number, line, name, value: at }.unusable(source)
        })?;

        self.placed = Some((slot, at));
        self.bucket = if is_bucket { BucketLine::of(line, after, labels) } else { None };
        self.check_samples(number)
    }

    /// Processes another bucket of the same histogram.
    #[inline]
    fn next_bucket(&mut self, number: usize, next: &NextBucket<'p>) -> Result<(), PageError> {
        let &NextBucket { line, le, value, at } = next;
        self.samples += 1;
        let slot = self.reader.take_next_bucket(le, value).map_err(|source| {
            let start = line::skip_blanks(line, 0);
            let name = &line[start..line::name_end(line, start)];
            SampleLocation { number, line, name, value: at }.unusable(source)
        })?;

        self.placed = Some((slot, at));
        self.check_samples(number)
    }

    /// Processes a sample whose name is quoted. `at` is the offset after the brace.
    fn quoted_sample(&mut self, number: usize, line: &'p [u8], at: usize) -> Result<(), PageError> {
        let mut labels = Vec::new();
        let read = line::quoted_name(line, at, &mut labels)
            .and_then(|(name, at)| Ok((name, line::value(line, at, self.format)?)));
        let (name, (value, at)) = read.map_err(|fault| PageError::syntax(number, line, fault))?;
        let Some(series) = self.reader.wants(&name) else { return Ok(()) };

        let taken = self.reader.take(series, &labels, value);
        taken.map_err(|source| {
            SampleLocation { number, line, name: &name, value: at }.unusable(source)
        })?;
        self.bucket = None;
        self.samples += 1;
        self.check_samples(number)
    }

    /// Adds the processed line to the layout, if one is learned.
    #[inline]
    fn learn(&mut self, line: &[u8], engine: EngineKnowledge) {
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

/// Returns the family that a `HELP` or `TYPE` line describes.
fn described(comment: &[u8]) -> Option<&[u8]> {
    let text = comment.strip_prefix(b"#")?.strip_prefix(b" ")?;
    let after = text.strip_prefix(b"HELP").or_else(|| text.strip_prefix(b"TYPE"))?;
    let (blank, words) = after.split_first()?;
    let end = words.iter().copied().position(line::is_blank).unwrap_or(words.len());
    line::is_blank(*blank).then(|| &words[..end])
}

/// The location of a sample, for an error about it.
struct SampleLocation<'a> {
    number: usize,
    line: &'a [u8],
    name: &'a [u8],
    value: usize,
}

impl SampleLocation<'_> {
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

/// The maximum number of characters that a message quotes.
const FOUND_MAX: usize = 40;

/// Returns the column of an offset, in characters from 1.
fn column(line: &[u8], at: usize) -> usize {
    String::from_utf8_lossy(&line[..at.min(line.len())]).chars().count() + 1
}

/// Returns the text at an offset: a word or a single character.
fn found(line: &[u8], at: usize) -> String {
    let rest: Cow<'_, str> = String::from_utf8_lossy(line.get(at..).unwrap_or_default());
    let Some(first) = rest.chars().next() else { return "the end of the line".to_owned() };
    let start = rest.chars().take_while(|c| c.is_alphanumeric() || "_:+-.".contains(*c));
    let word: String = start.take(FOUND_MAX).collect();
    let shown = if word.is_empty() { first.to_string() } else { word };
    format!("`{}`", shown.escape_debug())
}
