//! Traces from files: what arrives when, and how long it is.
//!
//! Every row is checked, and a problem says in which line it is. What is refused: times that are
//! negative, not numbers or before the row above; prompts and answers without tokens; files without
//! a row. A file that ends in the middle of a row is read up to the last whole one.

pub(crate) mod servegen;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::DateTime;
use serde_json::Value;

use crate::simulate::Micros;
use crate::simulate::replica::prefix::{PromptId, Prompts};
use crate::simulate::workload::load::{Row, Size};
use crate::study::file::Format;

/// The largest file: ten times the longest public trace, and less than what fills a machine.
const FILE_MAX: u64 = 1 << 30;

/// How long a trace may be, as a scenario may: a leap year.
pub(crate) const SPAN_MAX: Duration = Duration::from_hours(24 * 366);

/// The latest time that a trace may name, in seconds: what is beyond is in milliseconds.
const TIME_MAX: f64 = 1e11;

/// What a file begins with that is packed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What some editors begin a file with to say that it is UTF-8.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// Problems of one file that are listed; a file in the wrong format has one in each line.
const LISTED_MAX: usize = 20;

/// Tokens that one of Mooncake's `hash_ids` stands for.
const PAGE_TOKENS: u32 = 512;

/// How long a trace lasts whose requests all arrive at one time. As it begins again at its end, that
/// must not be next to nothing.
const AT_ONCE: Micros = Micros::from_secs(1);

/// A recorded trace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    /// The requests, in order of time.
    pub(crate) rows: Vec<Row>,
    /// What their prompts consist of, where the trace says so.
    pub(crate) prompts: Option<Prompts>,
    /// The last line, where it has no end and says nothing: somebody cut the file off.
    pub(crate) cut: Option<usize>,
    /// From the first arrival to the last, and as long again as the mean gap; [`AT_ONCE`] where all
    /// arrive at one time.
    pub(crate) span: Micros,
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is too large.
    #[error("{} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    /// Lines of it mean nothing; the first of them are listed.
    #[error("{}", listed(path, lines, *more))]
    Lines { path: PathBuf, lines: Vec<(usize, String)>, more: usize },
    /// There is no request in it.
    #[error("{} has no requests", path.display())]
    Empty { path: PathBuf },
    /// It is packed.
    #[error("{} is packed with gzip; unpack it first, as gunzip does", path.display())]
    Packed { path: PathBuf },
    /// It is something else than text.
    #[error("{} is no text in UTF-8", path.display())]
    NoText { path: PathBuf },
    /// It is a folder of clients, which has no list of requests.
    #[error("{} describes clients, which are a workload.trace and no list of lengths", path.display())]
    Clients { path: PathBuf },
}

/// A line for each problem, with its place.
fn listed(path: &Path, lines: &[(usize, String)], more: usize) -> String {
    let path = path.display();
    let mut text: Vec<String> =
        lines.iter().map(|(line, why)| format!("\n  {path}:{line}: {why}")).collect();
    if more > 0 {
        text.push(format!("\n  and {more} more lines"));
    }
    text.concat()
}

/// Reads a trace.
pub(crate) fn read(path: &Path, format: Format) -> Result<Recorded, TraceError> {
    if format == Format::Servegen {
        return Err(TraceError::Clients { path: path.to_owned() });
    }
    let text = text(path)?;
    let mut reader = Reader::new(format);
    let mut problems = Problems { path, lines: Vec::new(), more: 0 };
    let mut rows: Vec<Row> = Vec::new();
    // Only the last line can be without its end.
    let unended = if text.ends_with('\n') { None } else { Some(text.lines().count()) };
    let mut cut = None;
    for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
        if text.is_empty() {
            continue;
        }
        match reader.row(text) {
            Ok(None) => {}
            Ok(Some(row)) => match misplaced(&rows, row.at) {
                Some(why) => problems.add(line, why),
                None => rows.push(row),
            },
            Err(_) if unended == Some(line) && !rows.is_empty() => cut = Some(line),
            Err(why) => problems.add(line, why),
        }
    }
    problems.check()?;
    if rows.is_empty() {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    Ok(Recorded { prompts: reader.prompts, cut, ..recorded(rows) })
}

/// Why a row cannot be at a time behind those that were read; `None` when it can.
fn misplaced(rows: &[Row], at: Micros) -> Option<String> {
    let (first, last) = (rows.first()?, rows.last()?);
    if at < last.at {
        return Some("its time is before that of the row above".to_owned());
    }
    let most = SPAN_MAX.as_secs();
    (at.since(first.at) > Micros::from_secs(most))
        .then(|| format!("its time is more than {} days after the first", most / 86_400))
}

/// What a workload is made of: a file, or one after the other those of a folder of clients.
pub(crate) fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    if !path.is_dir() {
        return fs::read(path);
    }
    let mut bytes = Vec::new();
    for file in servegen::files(path)? {
        let dataset = Some(servegen::dataset_of(&file)).filter(|dataset| dataset.exists());
        for file in [Some(file), dataset].into_iter().flatten() {
            bytes.extend(fs::read(file)?);
        }
    }
    Ok(bytes)
}

fn text(path: &Path) -> Result<String, TraceError> {
    let failed = |source| TraceError::Read { path: path.to_owned(), source };
    if fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
        return Err(TraceError::TooLarge { path: path.to_owned() });
    }
    let bytes = fs::read(path).map_err(failed)?;
    if bytes.starts_with(&GZIP) {
        return Err(TraceError::Packed { path: path.to_owned() });
    }
    let mut text =
        String::from_utf8(bytes).map_err(|_| TraceError::NoText { path: path.to_owned() })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

struct Problems<'a> {
    path: &'a Path,
    lines: Vec<(usize, String)>,
    more: usize,
}

impl Problems<'_> {
    fn add(&mut self, line: usize, why: String) {
        if self.lines.len() < LISTED_MAX {
            self.lines.push((line, why));
        } else {
            self.more += 1;
        }
    }

    fn check(self) -> Result<(), TraceError> {
        let Self { path, lines, more } = self;
        if lines.is_empty() {
            return Ok(());
        }
        Err(TraceError::Lines { path: path.to_owned(), lines, more })
    }
}

/// Reads the rows of one format.
struct Reader {
    format: Format,
    /// Whether the first line, which names the columns, is still to come.
    header: bool,
    /// The first time of a format whose times are dates.
    first: Option<DateTime>,
    /// Rows so far, for a format without times.
    rows: u64,
    /// What the prompts so far consist of, for a format that says so.
    prompts: Option<Prompts>,
}

impl Reader {
    const fn new(format: Format) -> Self {
        let header = !matches!(format, Format::Mooncake | Format::Jsonl);
        Self { format, header, first: None, rows: 0, prompts: None }
    }

    fn row(&mut self, text: &str) -> Result<Option<Row>, String> {
        if std::mem::take(&mut self.header) {
            let columns = match self.format {
                Format::Azure => "TIMESTAMP,ContextTokens,GeneratedTokens",
                Format::Csv => "seconds,input_tokens,output_tokens",
                Format::Vidur => "num_prefill_tokens,num_decode_tokens",
                Format::Mooncake | Format::Jsonl | Format::Servegen => return Ok(None),
            };
            let fits = text.starts_with(columns);
            return if fits { Ok(None) } else { Err(format!("must begin with {columns}")) };
        }
        self.rows += 1;
        let mut known = None;
        let (at, prompt, output) = match self.format {
            Format::Azure => self.azure(text)?,
            Format::Csv => {
                let [at, prompt, output] = fields(text)?;
                (seconds(number(at)?)?, whole(prompt)?, whole(output)?)
            }
            Format::Vidur => {
                let mut fields = text.split(',');
                let mut next = || whole(fields.next().unwrap_or_default());
                (Micros::from_secs(self.rows - 1), next()?, next()?)
            }
            Format::Mooncake => {
                let value = json(text)?;
                let at = field(&value, "timestamp")? / 1e3;
                let prompt = tokens(field(&value, "input_length")?)?;
                known = self.pages(&value, prompt)?;
                (seconds(at)?, prompt, tokens(field(&value, "output_length")?)?)
            }
            Format::Jsonl => {
                let value = json(text)?;
                let prompt = tokens(field(&value, "input_tokens")?)?;
                let output = tokens(field(&value, "output_tokens")?)?;
                (seconds(field(&value, "seconds")?)?, prompt, output)
            }
            Format::Servegen => return Ok(None),
        };
        Ok(Some(Row { at, size: Size { prompt, output }, prompt: known }))
    }

    /// Notes the pages of a prompt, where a row has them.
    fn pages(&mut self, row: &Value, prompt: u32) -> Result<Option<PromptId>, String> {
        let Some(ids) = row.get("hash_ids") else { return Ok(None) };
        let names: Option<Vec<u32>> = ids.as_array().and_then(|ids| ids.iter().map(name).collect());
        let names = names.ok_or("its hash_ids are no list of numbers from 0 to 4294967295")?;
        let (most, count) = (prompt.div_ceil(PAGE_TOKENS), names.len());
        if count > most as usize {
            return Err(format!(
                "has {count} hash_ids for {prompt} tokens, which are {most} times {PAGE_TOKENS}"
            ));
        }
        let prompts = self.prompts.get_or_insert_with(|| Prompts::new(PAGE_TOKENS));
        let place = prompts.add(&names).ok_or("there are too many prompts before it")?;
        Ok(Some(PromptId { place, world: 0 }))
    }

    fn azure(&mut self, text: &str) -> Result<(Micros, u32, u32), String> {
        let [at, prompt, output] = fields(text)?;
        let at: DateTime =
            at.trim().parse().map_err(|_| format!("{at:?} is not a date with a time of day"))?;
        let first = *self.first.get_or_insert(at);
        let passed = at.duration_since(first).as_secs_f64();
        Ok((seconds(passed)?, whole(prompt)?, whole(output)?))
    }
}

fn name(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn fields(text: &str) -> Result<[&str; 3], String> {
    // Lines are short, and there are a great many.
    let mut commas = text.bytes().enumerate().filter(|(_, byte)| *byte == b',').map(|(at, _)| at);
    match (commas.next(), commas.next(), commas.next()) {
        (Some(first), Some(second), None) => {
            Ok([&text[..first], &text[first + 1..second], &text[second + 1..]])
        }
        _ => Err(format!("has {} fields instead of 3", text.split(',').count())),
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

fn field(value: &Value, name: &str) -> Result<f64, String> {
    value.get(name).and_then(Value::as_f64).ok_or_else(|| format!("has no number {name}"))
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}

fn seconds(value: f64) -> Result<Micros, String> {
    if (0.0..=TIME_MAX).contains(&value) {
        return Ok(Micros::from_secs_f64(value));
    }
    Err(format!("its time is {value} s; it must be from 0 to {TIME_MAX}"))
}

/// A number of tokens, which is nearly always written as one.
fn whole(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(tokens) if tokens > 0 => Ok(tokens),
        Ok(_) | Err(_) => tokens(number(text)?),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are whole and in the range"
)]
fn tokens(value: f64) -> Result<u32, String> {
    if value >= 1.0 && value <= f64::from(u32::MAX) && value.fract() == 0.0 {
        return Ok(value as u32);
    }
    Err(format!("{value} is not a number of tokens; it must be whole and at least 1"))
}

/// Rows of one time are spread evenly up to the next: traces are quantised where they were recorded.
fn recorded(mut rows: Vec<Row>) -> Recorded {
    let first = rows.first().map_or(Micros::ZERO, |row| row.at);
    for row in &mut rows {
        row.at = row.at.since(first);
    }
    let last = rows.last().map_or(Micros::ZERO, |row| row.at);
    let gap = Micros::new((last.micros() / (rows.len() as u64 - 1).max(1)).max(1));
    let span = if last == Micros::ZERO { AT_ONCE } else { last + gap };
    let mut start = 0;
    while start < rows.len() {
        let at = rows[start].at;
        let end = start + rows[start..].partition_point(|row| row.at == at);
        let next = rows.get(end).map_or(span, |row| row.at);
        let (count, width) = ((end - start) as u64, next.since(at).micros());
        for (index, row) in rows[start..end].iter_mut().enumerate() {
            row.at = at + Micros::new(width * index as u64 / count);
        }
        start = end;
    }
    Recorded { rows, prompts: None, cut: None, span }
}
