//! Clients in `ServeGen`'s format: a folder with two files per client.
//!
//! # Shape
//!
//! `chunk-N-trace.csv` has a line per window of ten minutes, and no header. The fields are the
//! start in seconds, requests per second, the coefficient of variation of the gaps, `Gamma` or
//! `Weibull`, and that distribution's shape and scale. An empty rate or 0 means that the client
//! sent nothing. The scale is ignored, because the rate determines the length of the gaps.
//!
//! `chunk-N-dataset.json` has the lengths from a time on, each as a Python dictionary in a string:
//!
//! ```json
//! {"0": {"input_tokens": "{12: 0.25, 90: 0.75}", "output_tokens": "{40: 1.0}"}, "21600": {}}
//! ```
//!
//! A window has the lengths of the last time that is not after its start, or otherwise of the first
//! time. An empty dictionary means that the client sent nothing around then. Other fields, such as
//! the tokens of images, are ignored.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::simulate::Micros;
use crate::simulate::workload::clients::{Described, Gaps, Window};
use crate::simulate::workload::load::{Lengths, Sizes};
use crate::study::file::SPAN_MAX;
use crate::study::traces::content;
use plimsoll_core::units::NounCount;

/// The length of a window, in seconds.
const WINDOW: u32 = 600;
/// More than the demand of the whole world.
const RATE_MAX: f64 = 1e6;
/// Outside of this range, all gaps are equal, or a single gap dominates.
const SHAPES: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// The longest request.
const TOKENS_MAX: f64 = 1e8;
/// The maximum problems that are listed per folder; files in the wrong format have one in each
/// line.
const LISTED_MAX: usize = 100;

/// The problems of a folder, each with its file and line.
#[derive(Default)]
struct FolderProblems {
    listed: Vec<String>,
    more: usize,
}

/// A client's window from one line.
struct ClientWindow {
    begins: u64,
    requests: f64,
    gaps: Gaps,
}

/// The lengths of a client's requests, from a time in seconds on.
type Dataset = BTreeMap<u64, Arc<Sizes>>;

/// The files of clients in a folder, in the order of their numbers.
pub(super) fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let client = name.strip_prefix("chunk-").and_then(|name| name.strip_suffix("-trace.csv"));
        if let Some(client) = client {
            found.push((client.parse::<u64>().unwrap_or(u64::MAX), client.to_owned(), path));
        }
    }

    found.sort();
    Ok(found.into_iter().map(|(_, _, path)| path).collect())
}

/// The file with the lengths that belongs to a client's trace file.
pub(super) fn dataset_of(trace: &Path) -> PathBuf {
    let name = trace.file_name().and_then(OsStr::to_str).unwrap_or_default();
    trace.with_file_name(name.replace("-trace.csv", "-dataset.json"))
}

/// Reads a folder. Clients without recorded lengths get the given ones.
///
/// # Errors
///
/// All problems, each with its file and line.
pub(crate) fn read(
    folder: &Path,
    copies: f64,
    speed: f64,
    otherwise: Option<Sizes>,
) -> Result<Described, Vec<String>> {
    let shown = folder.display();
    let files = files(folder).map_err(|error| vec![format!("cannot read {shown}: {error}")])?;
    if files.is_empty() {
        return Err(vec![format!("{shown} has no chunk-*-trace.csv")]);
    }

    let others_sizes = otherwise.map(Arc::new);
    let mut problems = FolderProblems::default();
    let mut dated: Vec<(u64, Window)> = Vec::new();
    let mut silent: Vec<PathBuf> = Vec::new();
    let mut first = u64::MAX;
    let mut last = 0;
    for file in files {
        let lines = read_trace(&file, &mut problems);
        for line in &lines {
            (first, last) = (first.min(line.begins), last.max(line.begins));
        }

        let wrong = problems.count();
        let mut dataset = read_dataset(&dataset_of(&file), &mut problems);
        if let (true, Some(sizes)) = (dataset.is_empty(), &others_sizes) {
            dataset.insert(0, Arc::clone(sizes));
        }

        let sent = lines.iter().filter(|line| line.requests > 0.0);
        for &ClientWindow { begins, requests, gaps } in sent {
            let Some(sizes) = at(&dataset, begins) else {
                if problems.count() == wrong {
                    silent.push(dataset_of(&file));
                }
                break;
            };

            let window = Window { at: Micros::ZERO, requests, gaps, sizes: Arc::clone(sizes) };
            dated.push((begins, window));
        }
    }

    if let Some(problem) = without_lengths(&silent) {
        problems.add(problem);
    }
    problems.check()?;
    if dated.is_empty() {
        return Err(vec![format!("{shown} has no window in which a client sends anything")]);
    }

    // The clients are in order, and stay in order within a window.
    dated.sort_by_key(|(begins, _)| *begins);
    let windows: Arc<[Window]> = dated
        .into_iter()
        .map(|(begins, window)| Window { at: Micros::from_secs(begins - first), ..window })
        .collect();
    let width = Micros::from_secs(u64::from(WINDOW));
    let span = Micros::from_secs(last - first) + width;
    Ok(Described { windows, width, span, copies, speed })
}

/// The problem of clients that send requests without lengths, if there are any.
fn without_lengths(silent: &[PathBuf]) -> Option<String> {
    let [one, others @ ..] = silent else { return None };
    let more = match others.len() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };

    Some(format!(
        "{}{more} need the lengths of requests: either prompt and output, or lengths, next to \
         format",
        one.display()
    ))
}

/// The lengths that apply at a time.
fn at(dataset: &Dataset, begins: u64) -> Option<&Arc<Sizes>> {
    let before = dataset.range(..=begins).next_back();
    before.or_else(|| dataset.iter().next()).map(|(_, sizes)| sizes)
}

fn read_trace(file: &Path, problems: &mut FolderProblems) -> Vec<ClientWindow> {
    let text = match content::text(file) {
        Ok(content) => content,
        Err(error) => {
            problems.add(error.to_string());
            return Vec::new();
        }
    };

    let mut lines: Vec<ClientWindow> = Vec::new();
    for (number, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let first = lines.first().map(|line| line.begins);
        let above = lines.last().map(|line| line.begins);
        match line(text, first, above) {
            Ok(line) => lines.push(line),
            Err(why) => problems.add(format!("{}:{}: {why}", file.display(), number + 1)),
        }
    }

    lines
}

/// Reads a line, given the start of the file's first window and the start of the window above.
fn line(text: &str, first: Option<u64>, above: Option<u64>) -> Result<ClientWindow, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let [begins_text, rate_text, variation, distribution, shape, _scale] = fields[..] else {
        let count = fields.len();
        return Err(format!(
            "has {count} fields instead of 6: when it begins, rate, variation, distribution, \
             shape, scale"
        ));
    };

    let begins = window(begins_text)?;
    if above.is_some_and(|above| begins <= above) {
        return Err("begins before the window above ends".to_owned());
    }
    if first.is_some_and(|first| begins - first > SPAN_MAX.as_secs()) {
        return Err(format!(
            "begins more than {} days after the first",
            SPAN_MAX.as_secs() / 86_400
        ));
    }

    let rate = if rate_text.is_empty() { 0.0 } else { content::number(rate_text)? };
    if !(0.0..=RATE_MAX).contains(&rate) {
        return Err(format!("its rate is {rate}; it must be from 0 to {RATE_MAX}"));
    }

    let gaps = if rate > 0.0 { gaps(variation, distribution, shape)? } else { Gaps::Gamma(1.0) };
    Ok(ClientWindow { begins, requests: rate * f64::from(WINDOW), gaps })
}

/// The start of a window.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are whole and in the range"
)]
fn window(text: &str) -> Result<u64, String> {
    let begins = content::number(text)?;
    content::seconds(begins)?;
    if begins % f64::from(WINDOW) != 0.0 {
        return Err(format!("begins at {text} s; windows begin every {WINDOW} s"));
    }
    Ok(begins as u64)
}

/// The distribution of a line; without a shape, the one with the line's variation.
fn gaps(variation: &str, distribution: &str, shape: &str) -> Result<Gaps, String> {
    let given_variation = given(variation)?;
    let given_shape = given(shape)?;
    let weibull = match distribution {
        "Gamma" | "" => false,
        "Weibull" => true,
        other => return Err(format!("{other:?} is neither Gamma nor Weibull")),
    };

    let shape = match (given_shape, given_variation) {
        (Some(given), _) if !distribution.is_empty() => given,
        (_, Some(variation)) if !weibull => 1.0 / (variation * variation),
        _ if weibull => return Err("has no shape of its Weibull distribution".to_owned()),
        _ => return Err("has a rate, and neither a distribution nor a variation".to_owned()),
    };

    if !SHAPES.contains(&shape) {
        let least = SHAPES.start();
        let most = SHAPES.end();
        return Err(format!("its shape is {shape}; it must be from {least} to {most}"));
    }

    Ok(if weibull { Gaps::Weibull(shape) } else { Gaps::Gamma(shape) })
}

/// The number in a field; `None` if the field is empty or 0.
fn given(text: &str) -> Result<Option<f64>, String> {
    match text {
        "" => Ok(None),
        text => content::number(text).map(|number| (number != 0.0).then_some(number)),
    }
}

/// The lengths of a client; none if the file does not exist.
fn read_dataset(file: &Path, problems: &mut FolderProblems) -> Dataset {
    let mut dataset = Dataset::new();
    if !file.exists() {
        return dataset;
    }
    let text = match content::text(file) {
        Ok(content) => content,
        Err(error) => {
            problems.add(error.to_string());
            return dataset;
        }
    };

    let shown = file.display();
    let value: Value = match serde_json::from_str(&text) {
        Ok(read) => read,
        Err(error) => {
            problems.add(format!("{shown}:{}: is not JSON: {error}", error.line()));
            return dataset;
        }
    };

    let Some(times) = value.as_object() else {
        problems.add(format!("{shown}:1: must have times with lengths"));
        return dataset;
    };
    for (time, lengths) in times {
        match entry(time, lengths) {
            Ok(Some((time, sizes))) => {
                dataset.insert(time, Arc::new(sizes));
            }
            Ok(None) => {}
            Err(why) => problems.add(format!("{shown}:{}: {time:?} {why}", line_of(&text, time))),
        }
    }

    dataset
}

/// The line in which a key is.
fn line_of(text: &str, key: &str) -> usize {
    let before = text.find(&format!("{key:?}")).unwrap_or_default();
    text[..before].matches('\n').count() + 1
}

/// The lengths from a time on; `None` if the client sent nothing.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are not negative, and the cast saturates"
)]
fn entry(time: &str, lengths: &Value) -> Result<Option<(u64, Sizes)>, String> {
    let from = content::number(time).and_then(|time| content::seconds(time).map(|_| time))?;
    let prompt = counts_of(lengths, "input_tokens")?;
    let output = counts_of(lengths, "output_tokens")?;
    match (prompt.is_empty(), output.is_empty()) {
        (true, true) => return Ok(None),
        (false, false) => {}
        (true, false) => return Err("has output_tokens and no input_tokens".to_owned()),
        (false, true) => return Err("has input_tokens and no output_tokens".to_owned()),
    }

    let sizes = Sizes::Apart {
        prompt: drawn(prompt, "input_tokens")?,
        output: drawn(output, "output_tokens")?,
    };
    Ok(Some((from as u64, sizes)))
}

/// The counts under a key; empty if there is none.
fn counts_of(lengths: &Value, key: &str) -> Result<Vec<(u32, f64)>, String> {
    match lengths.get(key) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => counts(text).map_err(|why| format!("{key}: {why}")),
        Some(other) => Err(format!("{key}: {other} is not text with a dictionary")),
    }
}

fn drawn(counts: Vec<(u32, f64)>, key: &str) -> Result<Lengths, String> {
    Lengths::counted(counts).ok_or(format!("{key}: weighs nothing"))
}

/// A Python dictionary of lengths and their frequencies.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are in the range"
)]
fn counts(text: &str) -> Result<Vec<(u32, f64)>, String> {
    let inner = text
        .trim()
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .ok_or("must be a dictionary such as {12: 0.25, 90: 0.75}")?;

    let mut counts = Vec::new();
    for pair in inner.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (before, after) =
            pair.split_once(':').ok_or_else(|| format!("{pair:?} is no length with a share"))?;
        let length = content::number(before)?;
        let weight = content::number(after)?;
        if !(0.0..=TOKENS_MAX).contains(&length) {
            return Err(format!("{length} tokens must be from 0 to {TOKENS_MAX}"));
        }
        if !(0.0..=f64::MAX).contains(&weight) {
            return Err(format!("{length} tokens have the share {weight}, which is none"));
        }

        counts.push((length.round() as u32, weight));
    }

    Ok(counts)
}

impl FolderProblems {
    fn add(&mut self, problem: String) {
        if self.listed.len() < LISTED_MAX {
            self.listed.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn count(&self) -> usize {
        self.listed.len() + self.more
    }

    fn check(self) -> Result<(), Vec<String>> {
        let Self { mut listed, more } = self;
        if more > 0 {
            listed.push(format!("and {}", NounCount(more, "more line", "more lines")));
        }
        if listed.is_empty() { Ok(()) } else { Err(listed) }
    }
}
