//! Clients as `ServeGen` describes them: a folder with two files of each.
//!
//! # Shape
//!
//! `chunk-N-trace.csv` has a line without a header for each window of ten minutes: when it begins in
//! seconds, requests a second, the coefficient of variation of the gaps, `Gamma` or `Weibull`, and
//! that distribution's shape and scale. A rate that is empty or 0 says that nothing was sent. The
//! scale is not read: the rate says how long gaps are.
//!
//! `chunk-N-dataset.json` has the lengths from a time on, each as a Python dictionary in a string:
//!
//! ```json
//! {"0": {"input_tokens": "{12: 0.25, 90: 0.75}", "output_tokens": "{40: 1.0}"}, "21600": {}}
//! ```
//!
//! A window has the lengths of the last time that is not after its beginning, or else of the first.
//! An empty dictionary says that nothing was sent around then. What else is there, such as the
//! tokens of images, is left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::simulate::Micros;
use crate::simulate::workload::clients::{Described, Gaps, Window};
use crate::simulate::workload::load::{Lengths, Sizes};
use crate::study::traces::{self, SPAN_MAX};

/// How long a window is.
const WINDOW: u32 = 600;
/// More than the whole world asks for.
const RATE_MAX: f64 = 1e6;
/// Beyond these, gaps are all the same, or one of them is all there is.
const SHAPES: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// The longest request.
const TOKENS_MAX: f64 = 1e8;
/// Problems of a folder that are listed; files in the wrong format have one in each line.
const LISTED_MAX: usize = 100;

/// What is wrong with a folder, each with its file and line.
#[derive(Default)]
struct Problems {
    listed: Vec<String>,
    more: usize,
}

/// A client's window as its line says.
struct Line {
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
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let client = name.strip_prefix("chunk-").and_then(|name| name.strip_suffix("-trace.csv"));
        if let Some(client) = client {
            found.push((client.parse::<u64>().unwrap_or(u64::MAX), client.to_owned(), path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, _, path)| path).collect())
}

/// The file with the lengths that belongs to the file of a client.
pub(super) fn dataset_of(trace: &Path) -> PathBuf {
    let name = trace.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    trace.with_file_name(name.replace("-trace.csv", "-dataset.json"))
}

/// Reads a folder. Clients whose lengths are not there have those that are given.
///
/// # Errors
///
/// Everything that is wrong, each with its file and line.
pub(crate) fn read(
    folder: &Path,
    (copies, speed): (f64, f64),
    otherwise: Option<Sizes>,
) -> Result<Described, Vec<String>> {
    let shown = folder.display();
    let files = files(folder).map_err(|error| vec![format!("cannot read {shown}: {error}")])?;
    if files.is_empty() {
        return Err(vec![format!("{shown} has no chunk-*-trace.csv")]);
    }
    let otherwise = otherwise.map(Arc::new);
    let mut problems = Problems::default();
    let mut windows: Vec<(u64, Window)> = Vec::new();
    let mut silent: Vec<PathBuf> = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    for file in files {
        let lines = read_trace(&file, &mut problems);
        for line in &lines {
            (first, last) = (first.min(line.begins), last.max(line.begins));
        }
        let wrong = problems.count();
        let mut dataset = read_dataset(&dataset_of(&file), &mut problems);
        if let (true, Some(otherwise)) = (dataset.is_empty(), &otherwise) {
            dataset.insert(0, Arc::clone(otherwise));
        }
        let sent = lines.iter().filter(|line| line.requests > 0.0);
        for &Line { begins, requests, gaps } in sent {
            let Some(sizes) = at(&dataset, begins) else {
                if problems.count() == wrong {
                    silent.push(dataset_of(&file));
                }
                break;
            };
            let sizes = Arc::clone(sizes);
            windows.push((begins, Window { at: Micros::ZERO, requests, gaps, sizes }));
        }
    }
    if let [one, others @ ..] = silent.as_slice() {
        let others = match others.len() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        problems.add(format!(
            "{}{others} need the lengths of requests: either prompt and output, or lengths, \
             next to format",
            one.display()
        ));
    }
    problems.check()?;
    if windows.is_empty() {
        return Err(vec![format!("{shown} has no window in which a client sends anything")]);
    }
    // Clients are in their order, and stay so within a window.
    windows.sort_by_key(|(begins, _)| *begins);
    let windows: Arc<[Window]> = windows
        .into_iter()
        .map(|(begins, window)| Window { at: Micros::from_secs(begins - first), ..window })
        .collect();
    let width = Micros::from_secs(u64::from(WINDOW));
    let span = Micros::from_secs(last - first) + width;
    Ok(Described { windows, width, span, copies, speed })
}

/// The lengths that hold at a time.
fn at(dataset: &Dataset, begins: u64) -> Option<&Arc<Sizes>> {
    let before = dataset.range(..=begins).next_back();
    before.or_else(|| dataset.iter().next()).map(|(_, sizes)| sizes)
}

fn read_trace(file: &Path, problems: &mut Problems) -> Vec<Line> {
    let text = match traces::text(file) {
        Ok(text) => text,
        Err(error) => {
            problems.add(error.to_string());
            return Vec::new();
        }
    };
    let mut lines: Vec<Line> = Vec::new();
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

/// Reads a line, given when the first window of its file begins and the one above.
fn line(text: &str, first: Option<u64>, above: Option<u64>) -> Result<Line, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let [begins, rate, variation, distribution, shape, _scale] = fields[..] else {
        let count = fields.len();
        return Err(format!(
            "has {count} fields instead of 6: when it begins, rate, variation, distribution, \
             shape, scale"
        ));
    };
    let begins = window(begins)?;
    if above.is_some_and(|above| begins <= above) {
        return Err("begins before the window above ends".to_owned());
    }
    if first.is_some_and(|first| begins - first > SPAN_MAX.as_secs()) {
        return Err(format!(
            "begins more than {} days after the first",
            SPAN_MAX.as_secs() / 86_400
        ));
    }
    let rate = if rate.is_empty() { 0.0 } else { traces::number(rate)? };
    if !(0.0..=RATE_MAX).contains(&rate) {
        return Err(format!("its rate is {rate}; it must be from 0 to {RATE_MAX}"));
    }
    let gaps = if rate > 0.0 { gaps(variation, distribution, shape)? } else { Gaps::Gamma(1.0) };
    Ok(Line { begins, requests: rate * f64::from(WINDOW), gaps })
}

/// When a window begins.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are whole and in the range"
)]
fn window(text: &str) -> Result<u64, String> {
    let begins = traces::number(text)?;
    traces::seconds(begins)?;
    if begins % f64::from(WINDOW) != 0.0 {
        return Err(format!("begins at {text} s; windows begin every {WINDOW} s"));
    }
    Ok(begins as u64)
}

/// The distribution that a line names; where it says no shape, that of the variation.
fn gaps(variation: &str, distribution: &str, shape: &str) -> Result<Gaps, String> {
    let given = |text: &str| match text {
        "" => Ok(None),
        text => traces::number(text).map(|number| (number != 0.0).then_some(number)),
    };
    let (variation, shape) = (given(variation)?, given(shape)?);
    let weibull = match distribution {
        "Gamma" | "" => false,
        "Weibull" => true,
        other => return Err(format!("{other:?} is neither Gamma nor Weibull")),
    };
    let shape = match (shape, variation) {
        (Some(shape), _) if !distribution.is_empty() => shape,
        (_, Some(variation)) if !weibull => 1.0 / (variation * variation),
        _ if weibull => return Err("has no shape of its Weibull distribution".to_owned()),
        _ => return Err("has a rate, and neither a distribution nor a variation".to_owned()),
    };
    if !SHAPES.contains(&shape) {
        let (least, most) = (SHAPES.start(), SHAPES.end());
        return Err(format!("its shape is {shape}; it must be from {least} to {most}"));
    }
    Ok(if weibull { Gaps::Weibull(shape) } else { Gaps::Gamma(shape) })
}

/// The lengths of a client; none where the file is not there.
fn read_dataset(file: &Path, problems: &mut Problems) -> Dataset {
    let mut dataset = Dataset::new();
    if !file.exists() {
        return dataset;
    }
    let text = match traces::text(file) {
        Ok(text) => text,
        Err(error) => {
            problems.add(error.to_string());
            return dataset;
        }
    };
    let shown = file.display();
    let value: Value = match serde_json::from_str(&text) {
        Ok(value) => value,
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

/// The lengths from a time on; `None` where nothing was sent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are not negative, and the cast saturates"
)]
fn entry(time: &str, lengths: &Value) -> Result<Option<(u64, Sizes)>, String> {
    let from = traces::number(time).and_then(|time| traces::seconds(time).map(|_| time))?;
    let of = |key: &str| match lengths.get(key) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => counts(text).map_err(|why| format!("{key}: {why}")),
        Some(other) => Err(format!("{key}: {other} is not text with a dictionary")),
    };
    let (prompt, output) = (of("input_tokens")?, of("output_tokens")?);
    match (prompt.is_empty(), output.is_empty()) {
        (true, true) => return Ok(None),
        (false, false) => {}
        (true, false) => return Err("has output_tokens and no input_tokens".to_owned()),
        (false, true) => return Err("has input_tokens and no output_tokens".to_owned()),
    }
    let drawn = |counts, key| Lengths::counted(counts).ok_or(format!("{key}: weighs nothing"));
    let sizes = Sizes::Apart {
        prompt: drawn(prompt, "input_tokens")?,
        output: drawn(output, "output_tokens")?,
    };
    Ok(Some((from as u64, sizes)))
}

/// A Python dictionary of lengths and how often each is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values are in the range"
)]
fn counts(text: &str) -> Result<Vec<(u32, f64)>, String> {
    let inner = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let inner = inner.ok_or("must be a dictionary such as {12: 0.25, 90: 0.75}")?;
    let mut counts = Vec::new();
    for pair in inner.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (length, weight) =
            pair.split_once(':').ok_or_else(|| format!("{pair:?} is no length with a share"))?;
        let (length, weight) = (traces::number(length)?, traces::number(weight)?);
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

impl Problems {
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
            listed.push(format!("and {more} more lines"));
        }
        if listed.is_empty() { Ok(()) } else { Err(listed) }
    }
}
