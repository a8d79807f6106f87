//! The parser of a response: each line is checked, and a needed one goes to the reading.

use crate::collect::exposition::fault::{PageError, SyntaxFault, column};
use crate::collect::exposition::format::{END_MARK, ExpositionFormat, LINE_MAX, SAMPLES_MAX};
use crate::collect::exposition::labels::LabelSets;
use crate::collect::exposition::layout::{EngineKnowledge, Layout, Learning};
use crate::collect::exposition::line::{self, BucketLine, NextBucket};
use plimsoll_core::observe::Reading;
use plimsoll_core::observe::engine::{
    ReadingBuilder, SampleError, Series, SeriesPosition, unwanted_sibling,
};

/// Reads a response line by line.
pub(super) fn walk<'p>(
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

        if let Some(line) = page.unneeded.and_then(|bucket| bucket.next_plain(rest)) {
            page.learn(line, EngineKnowledge::Known);
            rest = &rest[line.len() + 1..];
            continue;
        }

        let end = line::line_end(rest);
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

/// A response that is being read.
pub(super) struct PageParser<'p> {
    format: ExpositionFormat,
    reader: ReadingBuilder<'p>,
    /// The name of the last sample with the byte after it, and its series.
    last: Option<(&'p [u8], Option<Series>)>,
    /// The last sample taken, if it was a bucket.
    bucket: Option<BucketLine<'p>>,
    /// The last sample that was not needed, if it was a plain bucket of a known engine's response.
    unneeded: Option<BucketLine<'p>>,
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
    pub(super) fn new(format: ExpositionFormat, learning: Option<Learning>) -> Self {
        Self {
            format,
            reader: ReadingBuilder::new(),
            last: None,
            bucket: None,
            unneeded: None,
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
            && line::after_head(line, head).is_some()
        {
            let end = head.len() - 1;
            return match series {
                None if line::is_plain(line, end) => {
                    self.pass_bucket(line, end);
                    Ok(())
                }
                _ => self.sample(number, line, end, series),
            };
        }

        self.other_line(number, line)
    }

    /// Remembers an unneeded bucket. The next bucket of its histogram needs no search for its end.
    fn pass_bucket(&mut self, line: &'p [u8], name_end: usize) {
        if line[..name_end].ends_with(b"_bucket") && self.reader.engine().is_some() {
            self.unneeded = BucketLine::of_plain(line, name_end);
        }
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
            self.unneeded = None;
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
