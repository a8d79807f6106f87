//! Analyzers that size a model.

use crate::config::check::Checks;
use crate::config::file::{CapacityKeys, SloKeys};
use crate::config::resolve::cards;
use crate::config::{file, print};
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::capacity::Utilization;
use plimsoll_core::analyze::queueing::{LatencyTarget, LatencyTargets, Percentile, Statistic};
use plimsoll_core::analyze::saturation::Thresholds;
use plimsoll_core::analyze::{foresight, queueing, throughput, tokens};
use plimsoll_core::decide::optimize::{GrowthRule, OptimizerPolicy, Switching};
use plimsoll_core::decide::rank;
use plimsoll_core::pipeline::sizing::{PATIENCE, Sizing};
use plimsoll_core::settings::Written;
use plimsoll_core::settings::problem::join;
use plimsoll_core::units::Fraction;

/// The key of the section.
pub(crate) const PATH: &str = "capacity";

/// Resolves the section, and completes it.
pub(crate) fn resolve(
    section: Option<&Written<CapacityKeys>>,
    keys: &mut CapacityKeys,
    thresholds: &Thresholds,
    checks: &mut Checks<'_>,
) -> Sizing {
    let written = section.cloned().unwrap_or_default();
    let CapacityKeys { scale_up_threshold: grow, scale_down_boundary: shrink, .. } = *keys;
    if shrink >= grow {
        let rule = format!("must be below {PATH}.scale_up_threshold, which is {}", grow.fraction());
        checks.problems.error(join(PATH, "scale_down_boundary"), rule, shrink.fraction());
    }

    keys.analyzers = analyzers(written.analyzers.as_deref(), checks);
    let targets = targets(written.slo.as_ref(), keys, checks);
    if keys.optimizer != file::Optimizer::Rank {
        let unused = [("rank", written.rank.is_some())];
        checks.problems.unused(PATH, &unused, "capacity.optimizer is not rank");
    }

    let rule = match keys.optimizer {
        file::Optimizer::LeastCost => {
            keys.rank = rank::Policy::default();
            GrowthRule::LeastCost
        }
        file::Optimizer::Rank => GrowthRule::Ranked(keys.rank),
    };

    let cards = cards::resolve(&written, checks);
    keys.cards = print::cards::list(&cards);
    keys.card_files.take_if(|files| files.is_empty());
    if !keys.analyzers.contains(&Analyzer::Foresight) {
        keys.foresight = None;
    }
    warn_of_unused(&written, &keys.analyzers, checks);

    let utilization = Utilization { grow, shrink };
    let switching = Switching { start: keys.start_cost, drain: keys.drain_cost };
    let usual = tokens::TokenPolicy::default();
    Sizing {
        analyzers: keys.analyzers.clone(),
        tokens: tokens::TokenPolicy {
            kv_threshold: thresholds.kv_cache,
            queue_threshold: thresholds.queue_length,
            utilization,
            sharing: keys.share_cards,
            ..usual
        },
        throughput: throughput::ThroughputPolicy {
            utilization,
            ..throughput::ThroughputPolicy::default()
        },
        queueing: queueing::QueueingPolicy { targets, ..queueing::QueueingPolicy::default() },
        foresight: foreseen(keys, targets),
        cards,
        optimizer: OptimizerPolicy { rule, switching, ..OptimizerPolicy::default() },
        patience: PATIENCE,
    }
}

/// Warns of keys that no configured analyzer reads.
fn warn_of_unused(
    written: &Written<CapacityKeys>,
    analyzers: &[Analyzer],
    checks: &mut Checks<'_>,
) {
    let of_foresight = [
        ("foresight", written.foresight.is_some()),
        ("cards", written.cards.is_some()),
        ("card_files", written.card_files.is_some()),
    ];
    let thresholds = [
        ("scale_up_threshold", written.scale_up_threshold.is_some()),
        ("scale_down_boundary", written.scale_down_boundary.is_some()),
    ];
    let sharing = [("share_cards", written.share_cards.is_some())];

    for (keys, readers, lack) in [
        (&of_foresight[..], &[Analyzer::Foresight][..], "does not name foresight"),
        (
            &thresholds,
            &[Analyzer::Tokens, Analyzer::Throughput],
            "names neither tokens nor throughput",
        ),
        (&sharing, &[Analyzer::Foresight, Analyzer::Tokens], "names neither foresight nor tokens"),
    ] {
        if !readers.iter().any(|reader| analyzers.contains(reader)) {
            checks.problems.unused(PATH, keys, &format!("capacity.analyzers {lack}"));
        }
    }
}

/// The policy of `foresight`, including the section's keys that it shares with other analyzers.
fn foreseen(keys: &CapacityKeys, targets: LatencyTargets) -> foresight::ForesightPolicy {
    let usual = keys.foresight.unwrap_or_default();
    let slo = keys.slo.clone().unwrap_or_default();

    foresight::ForesightPolicy {
        used: keys.utilization,
        share_cards: keys.share_cards,
        startup: keys.start_time,
        ttft: targets.ttft.map_or(usual.ttft, |target| target.limit),
        ttft_per_token: slo.ttft_per_token.unwrap_or_default(),
        long_prompt: slo.long_prompt.unwrap_or(usual.long_prompt),
        itl: targets.itl,
        ..usual
    }
}

fn analyzers(written: Option<&[Option<Analyzer>]>, checks: &mut Checks<'_>) -> Vec<Analyzer> {
    let Some(written) = written else { return vec![Analyzer::Foresight] };
    let mut analyzers = Vec::new();
    for (at, one) in written.iter().enumerate() {
        let Some(analyzer) = *one else { continue };
        if analyzers.contains(&analyzer) {
            let path = format!("{PATH}.analyzers[{at}]");
            checks.problems.warning(path, "is already in the list");
        } else {
            analyzers.push(analyzer);
        }
    }

    if analyzers.is_empty() {
        let names: Vec<&str> = Analyzer::ALL.iter().map(|analyzer| analyzer.label()).collect();
        let rule = format!("must name at least one of {}", names.join(", "));
        checks.problems.error_at(format!("{PATH}.analyzers"), rule);
    }

    analyzers
}

/// The objectives. Percentiles without an objective are removed, and so is a section without
/// objectives.
fn targets(
    written: Option<&Written<SloKeys>>,
    keys: &mut CapacityKeys,
    checks: &mut Checks<'_>,
) -> LatencyTargets {
    let path = format!("{PATH}.slo");
    let is_used = [Analyzer::Queueing, Analyzer::Foresight]
        .iter()
        .any(|analyzer| keys.analyzers.contains(analyzer));
    if written.is_some() && !is_used {
        let rule = "has no effect, because capacity.analyzers names neither queueing nor foresight";
        checks.problems.warning(&path, rule);
    }

    if written.is_some_and(|it| it.ttft_percentile.is_some() && it.ttft.is_none()) {
        let rule = "has no effect without capacity.slo.ttft";
        checks.problems.warning(join(&path, "ttft_percentile"), rule);
    }

    let by_percentile = written.is_some_and(|it| it.ttft_percentile.is_some() && it.ttft.is_some());
    if by_percentile && is_used && !keys.analyzers.contains(&Analyzer::Queueing) {
        let rule = "has no effect, because capacity.analyzers does not name queueing";
        checks.problems.warning(join(&path, "ttft_percentile"), rule);
    }

    if written.is_some_and(|it| it.long_prompt.is_some() && it.ttft_per_token.is_none()) {
        let rule = "has no effect without capacity.slo.ttft_per_token";
        checks.problems.warning(join(&path, "long_prompt"), rule);
    }

    let mut slo = keys.slo.take().unwrap_or_default();
    let SloKeys { ttft, ttft_per_token, itl, .. } = slo;
    slo.ttft_percentile.take_if(|_| ttft.is_none());
    slo.long_prompt.take_if(|_| ttft_per_token.is_none());

    let percentile = slo.ttft_percentile.and_then(|percent| Fraction::new(percent / 100.0));
    keys.slo = (slo != SloKeys::default()).then_some(slo);
    let of = percentile.and_then(Percentile::new).map_or(Statistic::Mean, Statistic::Percentile);
    LatencyTargets { ttft: ttft.map(|limit| LatencyTarget { limit, of }), itl }
}
