//! Analyzers that size a model.

use crate::config::check::Checks;
use crate::config::file::{CapacityKeys, SloKeys};
use crate::config::problem::join;
use crate::config::{file, resolve};
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::capacity::Utilisation;
use plimsoll_core::analyze::foresight::policy::Window;
use plimsoll_core::analyze::queueing::{LatencyTarget, Percentile, Statistic, Targets};
use plimsoll_core::analyze::saturation::Thresholds;
use plimsoll_core::analyze::{foresight, queueing, throughput, tokens};
use plimsoll_core::decide::optimize::{Policy as Optimizer, Rule, Switching};
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::{Fraction, Seconds};

/// The key of the section.
pub(crate) const PATH: &str = "capacity";

/// How long what an analyzer knew has a say while it knows nothing new.
const PATIENCE: f64 = 300.0;

/// Resolves the section. The window of scaling down is waited for beside the hold of `foresight`
/// where that says nothing of it.
pub(crate) fn resolve(
    section: Option<&Written<CapacityKeys>>,
    thresholds: &Thresholds,
    window: Window,
    checks: &mut Checks<'_>,
) -> Sizing {
    let written = section.cloned().unwrap_or_default();
    let at = |key: &str| format!("{PATH}.{key}");
    // Cards have rules of their own.
    let own = Written::<CapacityKeys> { cards: None, ..written.clone() };
    let keys: CapacityKeys = settings::resolve(Some(&own), PATH, &mut checks.problems);
    let CapacityKeys { scale_up_threshold: grow, scale_down_boundary: shrink, .. } = keys;
    if shrink >= grow {
        let rule = format!("must be below {PATH}.scale_up_threshold, which is {}", grow.fraction());
        checks.problems.error(at("scale_down_boundary"), rule, shrink.fraction());
    }
    let analyzers = analyzers(written.analyzers.as_deref(), checks);
    let targets = targets(written.slo.as_ref(), keys.slo.clone(), &analyzers, checks);
    let switching = Switching { start: keys.start_cost, drain: keys.drain_cost };
    if written.rank.is_some() && keys.optimizer != file::Optimizer::Rank {
        let rule = "has no effect, because capacity.optimizer is not rank";
        checks.problems.warning(at("rank"), rule);
    }
    let rule = match keys.optimizer {
        file::Optimizer::LeastCost => Rule::LeastCost,
        file::Optimizer::Rank => Rule::Ranked(keys.rank),
    };
    let utilisation = Utilisation { grow, shrink };
    let foresight = foresight_policy(&written, &keys, &analyzers, window, checks);
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
    written: &Written<CapacityKeys>,
    keys: &CapacityKeys,
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
    let mut own = keys.foresight;
    let hold = written.foresight.as_ref().and_then(|it| it.hold.as_ref());
    if let Some(resolved) = &mut own.hold
        && hold.is_none_or(|it| it.replaces_window.is_none())
    {
        resolved.replaces_window = window;
    }

    let usual = if votes { own } else { foresight::Policy::default() };
    foresight::Policy { used: keys.utilisation, startup: keys.start_time, ..usual }
}

fn analyzers(written: Option<&[Option<Analyzer>]>, checks: &mut Checks<'_>) -> Vec<Analyzer> {
    let Some(written) = written else { return vec![Analyzer::Foresight] };
    let mut analyzers = Vec::new();
    for (at, one) in written.iter().enumerate() {
        let Some(analyzer) = *one else { continue };
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
    written: Option<&Written<SloKeys>>,
    keys: Option<SloKeys>,
    analyzers: &[Analyzer],
    checks: &mut Checks<'_>,
) -> Targets {
    let SloKeys { ttft, ttft_percentile, itl } = keys.unwrap_or_default();
    let path = format!("{PATH}.slo");
    let judge = |it: &Analyzer| matches!(it, Analyzer::Queueing | Analyzer::Foresight);
    if written.is_some() && !analyzers.iter().any(judge) {
        let rule = "has no effect, because capacity.analyzers names neither queueing nor foresight";
        checks.problems.warning(&path, rule);
    }
    if written.is_some_and(|it| it.ttft_percentile.is_some() && it.ttft.is_none()) {
        let rule = "has no effect without capacity.slo.ttft";
        checks.problems.warning(join(&path, "ttft_percentile"), rule);
    }
    let percentile = ttft_percentile.and_then(|percent| Fraction::new(percent / 100.0));
    let of = percentile.and_then(Percentile::new).map_or(Statistic::Mean, Statistic::Percentile);
    Targets { ttft: ttft.map(|limit| LatencyTarget { limit, of }), itl }
}
