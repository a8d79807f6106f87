//! Workloads: from traces and descriptions in files to the requests of a model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::simulate::Micros;
use crate::simulate::workload::load::{Closed, Drawn, Lengths, Load, Replay, Sizes};
use crate::simulate::workload::rate::Rate;
use crate::study::file;
use crate::study::traces::{self, Recorded, TraceError, servegen};
use plimsoll_daemon::config::check::{Checks, Durations};
use plimsoll_daemon::config::problem::join;

/// More than the whole world asks for.
const RATE_MAX: f64 = 1e6;
/// How far copies of a trace are shifted: below the minutes in which load changes, and above the
/// seconds in which requests bunch.
const SPREAD: Duration = Duration::from_mins(1);
const SPANS: Durations = Duration::ZERO..=Duration::from_hours(24 * 366);
/// What begins again must have gone on for a while.
const PERIODS: Durations = Duration::from_millis(1)..=Duration::from_hours(24 * 366);
/// The time for which somebody reads an answer.
const THINK: Duration = Duration::from_secs(10);

/// A workload, and how long it is where it has an end.
pub(crate) struct Loaded {
    pub(crate) load: Load,
    pub(crate) span: Option<Micros>,
}

/// Resolves a workload and reads its files.
pub(crate) fn resolve(
    path: &str,
    written: Option<&file::Workload>,
    checks: &mut Checks<'_>,
) -> Option<Loaded> {
    let file::Workload { trace, drawn, closed } = written.cloned().unwrap_or_default();
    match (trace, drawn, closed) {
        (Some(trace), None, None) => resolve_trace(&join(path, "trace"), &trace, checks),
        (None, Some(drawn), None) => resolve_drawn(&join(path, "drawn"), &drawn, checks),
        (None, None, Some(closed)) => resolve_closed(&join(path, "closed"), &closed, checks),
        (None, None, None) => {
            checks.problems.missing(path, "must have one of trace, drawn and closed");
            None
        }
        _ => {
            checks.problems.error_at(path, "must have only one of trace, drawn and closed");
            None
        }
    }
}

fn resolve_trace(path: &str, written: &file::Trace, checks: &mut Checks<'_>) -> Option<Loaded> {
    let at = |key: &str| join(path, key);
    let servegen = written.format == Some(file::Format::Servegen);
    let file::Trace { spread, prompt, output, lengths, .. } = written;
    for (key, there, has_effect) in [
        ("spread", spread.is_some(), !servegen),
        ("prompt", prompt.is_some(), servegen),
        ("output", output.is_some(), servegen),
        ("lengths", lengths.is_some(), servegen),
    ] {
        if there && !has_effect {
            let rule = format!(
                "has no effect, because format is {}servegen",
                if servegen { "" } else { "not " }
            );
            checks.problems.warning(at(key), rule);
        }
    }
    let copies = checks.positive(&at("rate"), written.rate, 10_000.0).unwrap_or(1.0);
    let speed = checks.positive(&at("speed"), written.speed, 1e6).unwrap_or(1.0);
    let spread = checks.duration(&at("spread"), written.spread, &SPANS).unwrap_or(SPREAD);
    if servegen {
        return resolve_clients(path, written, (copies, speed), checks);
    }
    let Recorded { rows, prompts, span, .. } =
        recorded(path, written.file.as_ref(), written.format, checks)?;
    if written.format == Some(file::Format::Vidur) {
        let rule = "has lengths alone, so one request a second is played, times speed and rate; \
                    workload.drawn, with lengths of this file, says how many";
        checks.problems.warning(at("format"), rule);
    }
    let spread = Micros::from_duration(spread);
    let prompts = prompts.map(Arc::new);
    let replay = Replay { rows: rows.into(), prompts, span, copies, spread, speed };
    let span = Micros::from_secs_f64(span.seconds() / speed);
    Some(Loaded { load: Load::Replay(replay), span: Some(span) })
}

/// Reads a folder of clients, and what says how long their requests are where it does not.
fn resolve_clients(
    path: &str,
    written: &file::Trace,
    scale: (f64, f64),
    checks: &mut Checks<'_>,
) -> Option<Loaded> {
    let file::Trace { file, prompt, output, lengths, .. } = written;
    let sizes = (prompt.as_ref(), output.as_ref(), lengths.as_ref());
    let otherwise = match sizes {
        (None, None, None) => None,
        written => Some(resolve_sizes(path, written, checks)?),
    };
    let file_path = join(path, "file");
    if file.is_none() {
        checks.problems.missing(&file_path, "is required");
    }
    let folder = checks.path(&file_path, file.as_ref())?;
    if !folder.is_dir() {
        let rule = "must be a folder with chunk-*-trace.csv of ServeGen";
        checks.problems.error(file_path, rule, folder.display());
        return None;
    }
    // Without the dots in it, which would be in every problem.
    let folder: PathBuf = folder.components().collect();
    match servegen::read(&folder, scale, otherwise) {
        Ok(described) => {
            let span = Micros::from_secs_f64(described.span.seconds() / described.speed);
            Some(Loaded { load: Load::Described(described), span: Some(span) })
        }
        Err(wrong) => {
            for why in wrong {
                let rule = format!("must be a folder of clients: {why}");
                checks.problems.error_at(&file_path, rule);
            }
            None
        }
    }
}

/// Reads a trace in a format, both of which are required.
fn recorded(
    path: &str,
    file: Option<&PathBuf>,
    format: Option<file::Format>,
    checks: &mut Checks<'_>,
) -> Option<Recorded> {
    let (file_path, format_path) = (join(path, "file"), join(path, "format"));
    if file.is_none() {
        checks.problems.missing(&file_path, "is required");
    }
    if format.is_none() {
        checks.problems.missing(format_path, "is required");
    }
    let file = checks.file(&file_path, file)?;
    if checks.problems.refused(&file_path) {
        return None;
    }
    match traces::read(&file, format?) {
        Ok(read) => {
            if let Some(line) = read.cut {
                let rule = format!("ends in the middle of line {line}, which is left out");
                checks.problems.warning(file_path, rule);
            }
            Some(read)
        }
        Err(error) => {
            let list = matches!(error, TraceError::Lines { .. });
            let gap = if list { "" } else { " " };
            checks.problems.error_at(file_path, format!("must be a trace:{gap}{error}"));
            None
        }
    }
}

fn resolve_drawn(path: &str, written: &file::Drawn, checks: &mut Checks<'_>) -> Option<Loaded> {
    let rate = resolve_rate(path, written, checks);
    let allowed = 0.0..=20.0;
    let variation = checks.number(&join(path, "variation"), written.variation, &allowed);
    let lengths = (written.prompt.as_ref(), written.output.as_ref(), written.lengths.as_ref());
    let sizes = resolve_sizes(path, lengths, checks);
    let drawn = Drawn { rate: rate?, variation: variation.unwrap_or(1.0), sizes: sizes? };
    Some(Loaded { load: Load::Drawn(drawn), span: None })
}

fn resolve_closed(path: &str, written: &file::Closed, checks: &mut Checks<'_>) -> Option<Loaded> {
    let clients = checks.number(&join(path, "clients"), written.clients, &(1..=1_000_000));
    if clients.is_none() {
        checks.problems.missing(join(path, "clients"), "is required");
    }
    let think = checks.duration(&join(path, "think"), written.think, &SPANS).unwrap_or(THINK);
    let lengths = (written.prompt.as_ref(), written.output.as_ref(), written.lengths.as_ref());
    let sizes = resolve_sizes(path, lengths, checks)?;
    let closed = Closed { clients: clients?, think: Micros::from_duration(think), sizes };
    Some(Loaded { load: Load::Closed(closed), span: None })
}

fn resolve_rate(path: &str, written: &file::Drawn, checks: &mut Checks<'_>) -> Option<Rate> {
    let period = checks.duration(&join(path, "period"), written.period, &PERIODS);
    let period = period.map(|period| period.as_secs_f64());
    let forms = [
        written.rate.is_some(),
        written.steps.is_some(),
        written.points.is_some(),
        written.wave.is_some(),
    ];
    if forms.iter().filter(|there| **there).count() != 1 {
        if !checks.problems.refused_below(path) {
            let rule = "must have exactly one of rate, steps, points and wave";
            checks.problems.error_at(path, rule);
        }
        return None;
    }
    if period.is_some() && (written.rate.is_some() || written.wave.is_some()) {
        let rule = "has no effect, because only steps and points begin again";
        checks.problems.warning(join(path, "period"), rule);
    }
    let (key, rate) = if let Some(rate) = written.rate {
        let rate = checks.number(&join(path, "rate"), Some(rate), &(0.0..=RATE_MAX))?;
        ("rate", Rate::constant(rate))
    } else if let Some(wave) = &written.wave {
        let allowed = 0.0..=RATE_MAX;
        let path = join(path, "wave");
        let trough = checks.number(&join(&path, "trough"), wave.trough, &allowed);
        let crest = checks.number(&join(&path, "crest"), wave.crest, &allowed);
        let period = checks.duration(&join(&path, "period"), wave.period, &PERIODS);
        let (Some(trough), Some(crest), Some(period)) = (trough, crest, period) else {
            lacks(&path, "must have trough, crest and period", checks);
            return None;
        };
        ("wave", Rate::wave(trough, crest, period.as_secs_f64()))
    } else if let Some(points) = &written.points {
        let points = resolve_points(&join(path, "points"), points, checks)?;
        ("points", Rate::through(points, period))
    } else {
        let steps = written.steps.as_deref().unwrap_or_default();
        let steps = resolve_points(&join(path, "steps"), steps, checks)?;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (at, rate) in steps {
            points.extend(points.last().map(|&(_, before)| (at, before)));
            points.push((at, rate));
        }
        if let (Some(period), Some(&(_, last))) = (period, points.last()) {
            points.push((period, last));
        }
        ("steps", Rate::through(points, period))
    };
    rate.map_err(|error| checks.problems.error_at(join(path, key), error.to_string())).ok()
}

fn resolve_points(
    path: &str,
    written: &[Option<file::Point>],
    checks: &mut Checks<'_>,
) -> Option<Vec<(f64, f64)>> {
    let mut points = Vec::new();
    for (index, point) in written.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(file::Point { at, rate }) = point.clone() else { continue };
        let rate = checks.number(&join(&path, "rate"), rate, &(0.0..=RATE_MAX));
        if let (Some(at), Some(rate)) = (at, rate) {
            points.push((at.0.as_secs_f64(), rate));
        } else {
            lacks(&path, "must have at and rate", checks);
        }
    }
    (points.len() == written.len()).then_some(points)
}

/// Says that something is not there, unless it is, and has been refused.
fn lacks(path: &str, rule: &str, checks: &mut Checks<'_>) {
    if !checks.problems.refused_below(path) {
        checks.problems.error_at(path, rule);
    }
}

type WrittenSizes<'a> =
    (Option<&'a file::Lengths>, Option<&'a file::Lengths>, Option<&'a file::Recorded>);

fn resolve_sizes(path: &str, written: WrittenSizes<'_>, checks: &mut Checks<'_>) -> Option<Sizes> {
    match written {
        (None, None, Some(lengths)) => {
            let path = join(path, "lengths");
            let (file, format) = (lengths.file.as_ref(), lengths.format);
            let Recorded { rows, .. } = recorded(&path, file, format, checks)?;
            Some(Sizes::Pairs(rows.into_iter().map(|row| row.size).collect()))
        }
        (Some(prompt), Some(output), None) => {
            let prompt = resolve_lengths(&join(path, "prompt"), prompt, checks);
            let output = resolve_lengths(&join(path, "output"), output, checks);
            Some(Sizes::Apart { prompt: prompt?, output: output? })
        }
        _ => {
            checks.problems.missing(path, "must have both prompt and output, or lengths alone");
            None
        }
    }
}

fn resolve_lengths(
    path: &str,
    written: &file::Lengths,
    checks: &mut Checks<'_>,
) -> Option<Lengths> {
    let allowed = 1..=100_000_000;
    let mut count = |key: &str, written| checks.number(&join(path, key), written, &allowed);
    let fixed = count("fixed", written.fixed);
    let (min, max) = (count("min", written.min), count("max", written.max));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        let rule = format!("must not be below min, which is {min}");
        checks.problems.error(join(path, "max"), rule, max);
    }
    let sigma = checks.number(&join(path, "sigma"), written.sigma, &(0.0..=5.0));
    let median = checks.positive(&join(path, "median"), written.median, 1e8);
    match (fixed, median, sigma, min, max) {
        (Some(length), None, None, None, None) => Some(Lengths::Fixed(length)),
        (None, None, None, Some(min), Some(max)) => Some(Lengths::Uniform { min, max }),
        (None, Some(median), sigma, min, max) => Some(Lengths::Lognormal {
            median,
            sigma: sigma.unwrap_or(0.5),
            min: min.unwrap_or(1),
            max: max.unwrap_or(u32::MAX),
        }),
        _ => {
            let rule = "must have exactly one of fixed, min with max, and median, which may have \
                        sigma, min and max beside it";
            lacks(path, rule, checks);
            None
        }
    }
}
