//! Analyzers that size a model.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::analyze::ballot::Analyzer;
use crate::analyze::capacity::Utilisation;
use crate::analyze::foresight::policy::Window;
use crate::analyze::queueing::{LatencyTarget, Percentile, Statistic, Targets};
use crate::analyze::saturation::Thresholds;
use crate::analyze::{foresight, queueing, throughput, tokens};
use crate::config::check::{Checks, Durations};
use crate::config::{file, resolve};
use crate::decide::optimize::{Policy as Optimizer, Rule, Switching};
use crate::decide::rank;
use crate::pipeline::sizing::Sizing;
use crate::settings::{self, Written};
use crate::units::{Fraction, Seconds};

/// The key of the section.
pub(crate) const PATH: &str = "capacity";

/// Those of the Workload Variant Autoscaler.
const SCALE_UP_THRESHOLD: f64 = 0.85;
const SCALE_DOWN_BOUNDARY: f64 = 0.70;

const SHARES: RangeInclusive<f64> = 0.05..=1.0;
/// A replica that costs its whole hour to start is one that is never started for less than an hour.
const COSTS: RangeInclusive<f64> = 0.0..=10.0;
/// At one, nothing would ever be drained.
const DRAIN_COSTS: RangeInclusive<f64> = 0.0..=0.9;
const PERCENTILES: RangeInclusive<f64> = 50.0..=99.0;
/// A tenth would hold ten replicas where one does; beyond one and a half, queues never clear.
const UTILISATIONS: RangeInclusive<f64> = 0.1..=1.5;
const LATENCIES: Durations = Duration::from_millis(1)..=Duration::from_hours(1);

pub(crate) const START_TIMES: Durations = Duration::from_secs(1)..=Duration::from_hours(1);

/// How long what an analyzer knew has a say while it knows nothing new.
const PATIENCE: f64 = 300.0;

/// Resolves the section. The window of scaling down is waited for beside the hold of `foresight`
/// where that says nothing of it.
pub(crate) fn resolve(
    section: Option<&file::Capacity>,
    thresholds: &Thresholds,
    window: Window,
    checks: &mut Checks<'_>,
) -> Sizing {
    let written = section.cloned().unwrap_or_default();
    let at = |key: &str| format!("{PATH}.{key}");
    let mut share = |key: &str, written, default| {
        let share = checks.number(&at(key), written, &SHARES).unwrap_or(default);
        Fraction::new(share).unwrap_or(Fraction::ONE)
    };
    let grow = share("scale_up_threshold", written.scale_up_threshold, SCALE_UP_THRESHOLD);
    let shrink = share("scale_down_boundary", written.scale_down_boundary, SCALE_DOWN_BOUNDARY);
    if shrink >= grow {
        let rule = format!("must be below {PATH}.scale_up_threshold, which is {}", grow.fraction());
        checks.problems.error(at("scale_down_boundary"), rule, shrink.fraction());
    }
    let analyzers = analyzers(written.analyzers.as_deref(), checks);
    let targets = targets(written.slo.as_ref(), &analyzers, checks);
    let default = Switching::default();
    let start = checks.number(&at("start_cost"), written.start_cost, &COSTS);
    let drain = checks.number(&at("drain_cost"), written.drain_cost, &DRAIN_COSTS);
    let switching = Switching {
        start: start.and_then(Fraction::new).unwrap_or(default.start),
        drain: drain.and_then(Fraction::new).unwrap_or(default.drain),
    };
    let rule = rule(written.optimizer, written.rank.as_ref(), checks);
    let utilisation = Utilisation { grow, shrink };
    let foresight = foresight_policy(&written, &analyzers, window, checks);
    let foresight = foresight::Policy {
        ttft: targets.ttft.map_or(foresight.ttft, |target| target.limit),
        itl: targets.itl,
        ..foresight
    };
    let cards = resolve::cards::resolve(&written, checks);
    let votes = analyzers.contains(&Analyzer::Foresight);
    for (key, written) in
        [("cards", written.cards.is_some()), ("card_files", written.card_files.is_some())]
    {
        if written && !votes {
            let rule = "has no effect, because capacity.analyzers does not name foresight";
            checks.problems.warning(at(key), rule);
        }
    }
    let usual = tokens::Policy::default();
    Sizing {
        analyzers,
        tokens: tokens::Policy {
            kv_threshold: thresholds.kv_cache,
            queue_threshold: thresholds.queue_length,
            utilisation,
            ..usual
        },
        throughput: throughput::Policy { utilisation, ..throughput::Policy::default() },
        queueing: queueing::Policy { targets, ..queueing::Policy::default() },
        foresight,
        cards,
        optimizer: Optimizer { rule, switching, ..Optimizer::default() },
        patience: Seconds::new(PATIENCE).unwrap_or_default(),
    }
}

/// By what `foresight` judges, but for the objectives.
fn foresight_policy(
    written: &file::Capacity,
    analyzers: &[Analyzer],
    window: Window,
    checks: &mut Checks<'_>,
) -> foresight::Policy {
    let at = |key: &str| format!("{PATH}.{key}");
    let votes = analyzers.contains(&Analyzer::Foresight);
    if written.foresight.is_some() && !votes {
        let rule = "has no effect, because capacity.analyzers does not name foresight";
        checks.problems.warning(at("foresight"), rule);
    }
    let mut own: foresight::Policy =
        settings::resolve(written.foresight.as_ref(), &at("foresight"), &mut checks.problems);
    let hold = written.foresight.as_ref().and_then(|it| it.hold.as_ref());
    if let Some(resolved) = &mut own.hold
        && hold.is_none_or(|it| it.replaces_window.is_none())
    {
        resolved.replaces_window = window;
    }

    let usual = if votes { own } else { foresight::Policy::default() };
    let used = checks.number(&at("utilisation"), written.utilisation, &UTILISATIONS);
    let startup = checks.duration(&at("start_time"), written.start_time, &START_TIMES);
    foresight::Policy {
        used: used.and_then(Fraction::new).unwrap_or(usual.used),
        startup: startup.map_or(usual.startup, resolve::seconds),
        ..usual
    }
}

/// By which rule variants are chosen.
fn rule(
    written: Option<file::Optimizer>,
    section: Option<&Written<rank::Policy>>,
    checks: &mut Checks<'_>,
) -> Rule {
    let path = format!("{PATH}.rank");
    let is_ranked = written == Some(file::Optimizer::Rank);
    if section.is_some() && !is_ranked {
        let rule = "has no effect, because capacity.optimizer is not rank";
        checks.problems.warning(&path, rule);
    }
    let policy = settings::resolve(section, &path, &mut checks.problems);
    if is_ranked { Rule::Ranked(policy) } else { Rule::LeastCost }
}

fn analyzers(written: Option<&[Option<file::Analyzer>]>, checks: &mut Checks<'_>) -> Vec<Analyzer> {
    let Some(written) = written else { return vec![Analyzer::Foresight] };
    let mut analyzers = Vec::new();
    for (at, one) in written.iter().enumerate() {
        let analyzer = match one {
            Some(file::Analyzer::Tokens) => Analyzer::Tokens,
            Some(file::Analyzer::Throughput) => Analyzer::Throughput,
            Some(file::Analyzer::Queueing) => Analyzer::Queueing,
            Some(file::Analyzer::Foresight) => Analyzer::Foresight,
            None => continue,
        };
        if analyzers.contains(&analyzer) {
            let path = format!("{PATH}.analyzers[{at}]");
            checks.problems.warning(path, "is in the list already");
        } else {
            analyzers.push(analyzer);
        }
    }
    if analyzers.is_empty() {
        let rule = "must name at least one of tokens, throughput, queueing and foresight";
        checks.problems.error_at(format!("{PATH}.analyzers"), rule);
    }
    analyzers
}

fn targets(
    written: Option<&file::Slo>,
    analyzers: &[Analyzer],
    checks: &mut Checks<'_>,
) -> Targets {
    let file::Slo { ttft, ttft_percentile, itl } = written.cloned().unwrap_or_default();
    let path = format!("{PATH}.slo");
    let judge = |it: &Analyzer| matches!(it, Analyzer::Queueing | Analyzer::Foresight);
    if written.is_some() && !analyzers.iter().any(judge) {
        let rule = "has no effect, because capacity.analyzers names neither queueing nor foresight";
        checks.problems.warning(&path, rule);
    }
    let percentile_path = format!("{path}.ttft_percentile");
    if ttft_percentile.is_some() && ttft.is_none() {
        let rule = "has no effect without capacity.slo.ttft";
        checks.problems.warning(&percentile_path, rule);
    }
    let percentile = checks.number(&percentile_path, ttft_percentile, &PERCENTILES);
    let percentile = percentile.and_then(|percent| Fraction::new(percent / 100.0));
    let of = percentile.and_then(Percentile::new).map_or(Statistic::Mean, Statistic::Percentile);
    let mut limit = |key: &str, written| {
        let limit = checks.duration(&format!("{path}.{key}"), written, &LATENCIES)?;
        Seconds::new(limit.as_secs_f64())
    };
    Targets {
        ttft: limit("ttft", ttft).map(|limit| LatencyTarget { limit, of }),
        itl: limit("itl", itl),
    }
}
