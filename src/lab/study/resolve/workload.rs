//! Workloads: from traces and descriptions in files to the requests of a model.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::simulate::Micros;
use crate::simulate::scenario::BatchTraffic;
use crate::simulate::workload::drift::{Drift, LengthFactors};
use crate::simulate::workload::load::{ClosedLoad, Lengths, Load, RateLoad, ReplayLoad, Sizes};
use crate::simulate::workload::rate::{Rate, RateError};
use crate::study::file::{
    BatchKeys, ClosedKeys, DrawnKeys, DriftKeys, Format, LengthKeys, PointKeys, RecordedKeys,
    TraceKeys, WaveKeys, WorkloadKeys,
};
use crate::study::traces::{self, RecordedTrace, WorkloadTraceError, servegen};
use plimsoll_daemon::config::check::Checks;
use plimsoll_daemon::config::problem::join;

/// The largest time shift of a trace's copies: below the minutes in which load changes, and above
/// the seconds in which requests bunch.
const SPREAD: Micros = Micros::from_secs(60);

/// The standard deviation of the logarithm of a length.
const SIGMA: f64 = 0.5;

/// A workload, and its length if it has an end.
pub(crate) struct ScenarioLoad {
    pub(crate) load: Load,
    pub(crate) span: Option<Micros>,
}

/// The configured lengths of requests.
struct SizeKeys<'a> {
    prompt: &'a Option<LengthKeys>,
    output: &'a Option<LengthKeys>,
    lengths: &'a Option<RecordedKeys>,
}

/// Reads the files of a workload, and checks keys that must fit together.
pub(crate) fn resolve(
    path: &str,
    keys: &WorkloadKeys,
    checks: &mut Checks<'_>,
) -> Option<ScenarioLoad> {
    match (&keys.trace, &keys.drawn, &keys.closed) {
        (Some(trace), None, None) => resolve_trace(&join(path, "trace"), trace, checks),
        (None, Some(drawn), None) => resolve_drawn(&join(path, "drawn"), drawn, checks),
        (None, None, Some(closed)) => resolve_closed(&join(path, "closed"), closed, checks),
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

/// Resolves batch work.
pub(crate) fn resolve_batch(
    path: &str,
    keys: &BatchKeys,
    checks: &mut Checks<'_>,
) -> Option<BatchTraffic> {
    let BatchKeys { slo, drawn } = keys;
    let ScenarioLoad { load, .. } = resolve_drawn(&join(path, "drawn"), drawn.as_ref()?, checks)?;
    Some(BatchTraffic { load, slo: *slo })
}

fn resolve_trace(path: &str, keys: &TraceKeys, checks: &mut Checks<'_>) -> Option<ScenarioLoad> {
    let TraceKeys { format, rate, spread, speed, prompt, output, lengths, .. } = keys;
    let servegen = *format == Some(Format::Servegen);
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
            checks.problems.warning(join(path, key), rule);
        }
    }

    if servegen {
        return resolve_clients(path, keys, checks);
    }

    let RecordedTrace { rows, prompts, span, .. } =
        recorded(path, keys.file.as_ref(), *format, checks)?;
    if *format == Some(Format::Vidur) {
        let rule = "has only lengths, so one request per second is played, times speed and rate; \
            use workload.drawn with this file's lengths to set a rate";
        checks.problems.warning(join(path, "format"), rule);
    }

    let replay = ReplayLoad {
        rows: rows.into(),
        prompts: prompts.map(Arc::new),
        span,
        copies: *rate,
        spread: spread.unwrap_or(SPREAD),
        speed: *speed,
    };

    let played = Micros::from_secs_f64(span.seconds() / speed);
    Some(ScenarioLoad { load: Load::Replay(replay), span: Some(played) })
}

/// Reads a folder of clients, and the lengths for clients whose lengths are not in the folder.
fn resolve_clients(path: &str, keys: &TraceKeys, checks: &mut Checks<'_>) -> Option<ScenarioLoad> {
    let TraceKeys { file, rate, speed, prompt, output, lengths, .. } = keys;
    let otherwise = match (SizeKeys { prompt, output, lengths }) {
        SizeKeys { prompt: None, output: None, lengths: None } => None,
        sizes => Some(resolve_sizes(path, &sizes, checks)?),
    };

    let file_path = join(path, "file");
    let given = file.as_ref()?;
    if !given.is_dir() {
        let rule = "must be a folder with chunk-*-trace.csv of ServeGen";
        checks.problems.error(file_path, rule, given.display());
        return None;
    }

    // Without its dots, which would otherwise be in every problem.
    let folder: PathBuf = given.components().collect();
    match servegen::read(&folder, *rate, *speed, otherwise) {
        Ok(described) => {
            let span = Micros::from_secs_f64(described.span.seconds() / described.speed);
            Some(ScenarioLoad { load: Load::Described(described), span: Some(span) })
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

/// Reads a trace in a format.
fn recorded(
    path: &str,
    written: Option<&PathBuf>,
    format: Option<Format>,
    checks: &mut Checks<'_>,
) -> Option<RecordedTrace> {
    let file_path = join(path, "file");
    let file = written?;
    if !checks.readable(&file_path, file) {
        return None;
    }

    match traces::read(file, format?) {
        Ok(read) => {
            if let Some(line) = read.cut {
                let rule = format!("ends in the middle of line {line}, which is left out");
                checks.problems.warning(file_path, rule);
            }
            Some(read)
        }
        Err(error) => {
            let list = matches!(error, WorkloadTraceError::Lines { .. });
            let gap = if list { "" } else { " " };
            checks.problems.error_at(file_path, format!("must be a trace:{gap}{error}"));
            None
        }
    }
}

fn resolve_drawn(path: &str, keys: &DrawnKeys, checks: &mut Checks<'_>) -> Option<ScenarioLoad> {
    let DrawnKeys { variation, prompt, output, lengths, .. } = keys;
    let rate = resolve_rate(path, keys, checks);
    let sizes = resolve_sizes(path, &SizeKeys { prompt, output, lengths }, checks);
    let drift = resolve_drift(path, keys, checks);
    let drawn = RateLoad { rate: rate?, variation: *variation, sizes: sizes?, drift };
    Some(ScenarioLoad { load: Load::Drawn(drawn), span: None })
}

fn resolve_drift(path: &str, keys: &DrawnKeys, checks: &mut Checks<'_>) -> Option<Drift> {
    let points = keys.drift.as_ref()?.iter().map(|point| {
        let DriftKeys { at, prompt, output } = *point;
        (at, LengthFactors { prompt, output })
    });
    let drift = Drift::through(points.collect());
    drift.map_err(|error| lacks(&join(path, "drift"), &error.to_string(), checks)).ok()
}

fn resolve_closed(path: &str, keys: &ClosedKeys, checks: &mut Checks<'_>) -> Option<ScenarioLoad> {
    let ClosedKeys { clients, think, prompt, output, lengths } = keys;
    let sizes = resolve_sizes(path, &SizeKeys { prompt, output, lengths }, checks)?;
    let closed = ClosedLoad { clients: *clients, think: *think, sizes };
    Some(ScenarioLoad { load: Load::Closed(closed), span: None })
}

fn resolve_rate(path: &str, keys: &DrawnKeys, checks: &mut Checks<'_>) -> Option<Rate> {
    let DrawnKeys { rate, steps, points, wave, period, .. } = keys;
    let again = period.as_ref().map(Duration::as_secs_f64);
    let (key, rate) = match (rate, steps, points, wave) {
        (Some(rate), None, None, None) => ("rate", Rate::constant(*rate)),
        (None, Some(steps), None, None) => ("steps", Rate::through(stepped(steps, again), again)),
        (None, None, Some(points), None) => {
            ("points", Rate::through(points.iter().map(PointKeys::point).collect(), again))
        }
        (None, None, None, Some(wave)) => ("wave", resolve_wave(&join(path, "wave"), wave, checks)),
        _ => {
            lacks(path, "must have exactly one of rate, steps, points and wave", checks);
            return None;
        }
    };

    if period.is_some() && steps.is_none() && points.is_none() {
        let rule = "has no effect, because only steps and points repeat";
        checks.problems.warning(join(path, "period"), rule);
    }

    rate.map_err(|error| lacks(&join(path, key), &error.to_string(), checks)).ok()
}

fn resolve_wave(path: &str, keys: &WaveKeys, checks: &mut Checks<'_>) -> Result<Rate, RateError> {
    let WaveKeys { trough, crest, period, burst } = keys;
    let rate = Rate::wave(*trough, *crest, period.as_secs_f64())?;
    let Some(burst) = *burst else { return Ok(rate) };

    if burst.end().duration() > *period && !checks.problems.refused_below(path) {
        let rule = "must end before the period of its wave does";
        checks.problems.error_at(join(path, "burst"), rule);
    }
    Ok(rate.with_burst(burst))
}

impl PointKeys {
    /// Seconds and requests per second.
    fn point(&self) -> (f64, f64) {
        (self.at.as_secs_f64(), self.rate)
    }
}

/// The points of a step function, in which each rate holds from its time on.
fn stepped(steps: &[PointKeys], period: Option<f64>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (at, rate) in steps.iter().map(PointKeys::point) {
        points.extend(points.last().map(|&(_, before)| (at, before)));
        points.push((at, rate));
    }

    if let (Some(period), Some(&(_, last))) = (period, points.last()) {
        points.push((period, last));
    }

    points
}

/// Notes a problem, unless a key there has already been rejected.
fn lacks(path: &str, rule: &str, checks: &mut Checks<'_>) {
    if !checks.problems.refused_below(path) {
        checks.problems.error_at(path, rule);
    }
}

fn resolve_sizes(path: &str, keys: &SizeKeys<'_>, checks: &mut Checks<'_>) -> Option<Sizes> {
    match *keys {
        SizeKeys { prompt: None, output: None, lengths: Some(RecordedKeys { file, format }) } => {
            let lengths_path = join(path, "lengths");
            let RecordedTrace { rows, .. } =
                recorded(&lengths_path, file.as_ref(), *format, checks)?;
            Some(Sizes::Pairs(rows.into_iter().map(|row| row.size).collect()))
        }
        SizeKeys { prompt: Some(prompt), output: Some(output), lengths: None } => {
            let prompts = resolve_lengths(&join(path, "prompt"), prompt, checks);
            let outputs = resolve_lengths(&join(path, "output"), output, checks);
            Some(Sizes::Apart { prompt: prompts?, output: outputs? })
        }
        SizeKeys { .. } => {
            checks.problems.missing(path, "must have both prompt and output, or lengths alone");
            None
        }
    }
}

fn resolve_lengths(path: &str, keys: &LengthKeys, checks: &mut Checks<'_>) -> Option<Lengths> {
    let LengthKeys { fixed, min, max, median, sigma } = *keys;
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        let rule = format!("must not be below min, which is {min}");
        checks.problems.error(join(path, "max"), rule, max);
    }

    match (fixed, median, sigma, min, max) {
        (Some(length), None, None, None, None) => Some(Lengths::Fixed(length)),
        (None, None, None, Some(min), Some(max)) => Some(Lengths::Uniform { min, max }),
        (None, Some(median), sigma, min, max) => Some(Lengths::Lognormal {
            median,
            sigma: sigma.unwrap_or(SIGMA),
            min: min.unwrap_or(1),
            max: max.unwrap_or(u32::MAX),
        }),
        _ => {
            let rule = "must have exactly one of fixed, min with max, and median; median may have \
                sigma, min and max";
            lacks(path, rule, checks);
            None
        }
    }
}
