//! Traces from files: the arrival times and lengths of requests.
//!
//! Every row is checked, and a problem names its line. Rejected are times that are negative, not
//! numbers, or before the row above. Prompts and answers without tokens, and files without a row,
//! are also rejected. A file that ends in the middle of a row is read up to the last complete row.

mod content;
pub(crate) mod servegen;

use std::fs;
use std::path::Path;

use jiff::civil::DateTime;
use serde_json::Value;

use crate::simulate::Micros;
use crate::simulate::replica::prefix::{PromptId, Prompts};
use crate::simulate::workload::load::{Row, Size};
use crate::study::file::{Format, SPAN_MAX};
pub(crate) use crate::study::traces::content::{BYTE_ORDER_MARK, WorkloadTraceError};
use crate::study::traces::content::{number, seconds, text};

/// The maximum problems that are listed per file; a file in the wrong format has one in each line.
const LISTED_MAX: usize = 20;

/// The tokens per entry of Mooncake's `hash_ids`.
const PAGE_TOKENS: u32 = 512;

/// The span of a trace whose requests all arrive at one time. The trace repeats at its end, so the
/// span must not be close to zero.
const AT_ONCE: Micros = Micros::from_secs(1);

/// A recorded trace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedTrace {
    /// The requests, in order of time.
    pub(crate) rows: Vec<Row>,
    /// The content of their prompts, if the trace has it.
    pub(crate) prompts: Option<Prompts>,
    /// The last line, if it is incomplete because the file was cut off.
    pub(crate) cut: Option<usize>,
    /// The time from the first arrival to the last, plus the mean gap; [`AT_ONCE`] if all requests
    /// arrive at one time.
    pub(crate) span: Micros,
}

/// Reads a trace.
pub(crate) fn read(path: &Path, format: Format) -> Result<RecordedTrace, WorkloadTraceError> {
    if format == Format::Servegen {
        return Err(WorkloadTraceError::Clients { path: path.to_owned() });
    }

    let text = text(path)?;
    let mut reader = RowReader::new(format);
    let mut problems = TraceProblems { path, lines: Vec::new(), more: 0 };
    let mut rows: Vec<Row> = Vec::new();
    // Only the last line can lack its line end.
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
        return Err(WorkloadTraceError::Empty { path: path.to_owned() });
    }

    Ok(RecordedTrace { prompts: reader.prompts, cut, ..recorded(rows) })
}

/// The reason that a row's time does not fit the rows before it; `None` if it fits.
fn misplaced(rows: &[Row], at: Micros) -> Option<String> {
    let first = rows.first()?;
    let last = rows.last()?;
    if at < last.at {
        return Some("its time is before that of the row above".to_owned());
    }

    let most = SPAN_MAX.as_secs();
    (at.since(first.at) > Micros::from_secs(most))
        .then(|| format!("its time is more than {} days after the first", most / 86_400))
}

/// The content of a workload: a file, or all files in a folder of clients, one after the other.
pub(crate) fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    if !path.is_dir() {
        return fs::read(path);
    }

    let mut bytes = Vec::new();
    for file in servegen::files(path)? {
        let dataset = Some(servegen::dataset_of(&file)).filter(|it| it.exists());
        for file in [Some(file), dataset].into_iter().flatten() {
            bytes.extend(fs::read(file)?);
        }
    }

    Ok(bytes)
}

struct TraceProblems<'a> {
    path: &'a Path,
    lines: Vec<(usize, String)>,
    more: usize,
}

impl TraceProblems<'_> {
    fn add(&mut self, line: usize, why: String) {
        if self.lines.len() < LISTED_MAX {
            self.lines.push((line, why));
        } else {
            self.more += 1;
        }
    }

    fn check(self) -> Result<(), WorkloadTraceError> {
        let Self { path, lines, more } = self;
        if lines.is_empty() {
            return Ok(());
        }
        Err(WorkloadTraceError::Lines { path: path.to_owned(), lines, more })
    }
}

/// Reads the rows of one format.
struct RowReader {
    format: Format,
    /// True until the first line, which names the columns, has been read.
    header: bool,
    /// The first time in a format whose times are dates.
    first: Option<DateTime>,
    /// Rows so far, for a format without times.
    rows: u64,
    /// The content of the prompts so far, in a format that has it.
    prompts: Option<Prompts>,
}

impl RowReader {
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
                let prompt = whole(fields.next().unwrap_or_default())?;
                let output = whole(fields.next().unwrap_or_default())?;
                (Micros::from_secs(self.rows - 1), prompt, output)
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

    /// Notes the pages of a prompt, if the row has them.
    fn pages(&mut self, row: &Value, prompt: u32) -> Result<Option<PromptId>, String> {
        let Some(ids) = row.get("hash_ids") else { return Ok(None) };
        let read: Option<Vec<u32>> = ids.as_array().and_then(|ids| ids.iter().map(name).collect());
        let names = read.ok_or("its hash_ids are not a list of numbers from 0 to 4294967295")?;
        let most = prompt.div_ceil(PAGE_TOKENS);
        let count = names.len();
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
        let [time, prompt, output] = fields(text)?;
        let at: DateTime = time
            .trim()
            .parse()
            .map_err(|_| format!("{time:?} is not a date with a time of day"))?;

        let first = *self.first.get_or_insert(at);
        let passed = at.duration_since(first).as_secs_f64();
        Ok((seconds(passed)?, whole(prompt)?, whole(output)?))
    }
}

fn name(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn fields(text: &str) -> Result<[&str; 3], String> {
    // Allocates nothing, because there are very many short lines.
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

/// A token count, which is almost always written as a whole number.
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

/// Spreads rows with equal times evenly up to the next time, because recordings quantize times.
fn recorded(mut rows: Vec<Row>) -> RecordedTrace {
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
        let count = (end - start) as u64;
        let width = next.since(at).micros();
        for (index, row) in rows[start..end].iter_mut().enumerate() {
            row.at = at + Micros::new(width * index as u64 / count);
        }

        start = end;
    }

    RecordedTrace { rows, prompts: None, cut: None, span }
}
