//! A policy, in effect or a shadow: the sections that decisions depend on.

use std::time::Duration;

use crate::config::check::Checks;
use crate::config::effective::PolicySignals;
use crate::config::file::{Analysis, ConfigFile, FileKeys, ReadBy};
use crate::config::resolve::policy_context::PolicyContext;
use crate::config::resolve::pools::ResolvedPools;
use crate::config::resolve::saturation::{check_together, resolve_overrides};
use crate::config::resolve::{capacity, enforce, kubernetes, limits, pools, zero};
use crate::config::wva::{self, WvaDefaults};
use plimsoll_core::analyze::saturation::{Saturation, Thresholds};
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::settings::written::WrittenDuration;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Seconds;

/// Every key with the value that it has on its own: the written value or its default. Variants and
/// shadows are resolved later, because they are merged over other sections.
pub(crate) fn fill(file: &ConfigFile, wva: &WvaDefaults, checks: &mut Checks<'_>) -> FileKeys {
    let kubernetes = file.kubernetes.as_ref().map(kubernetes::effective);
    warn_of_unserved_ages(file, checks);
    let served = file.external_metrics.clone();
    let external_metrics = served.filter(|section| section.enabled != Some(false));
    let served = file.external_scaler.clone();
    let external_scaler = served.filter(|section| section.enabled != Some(false));
    let own = ConfigFile {
        kubernetes,
        external_metrics,
        external_scaler,
        variants: None,
        shadow: None,
        ..file.clone()
    };
    let usual = usual(file, wva, checks);
    settings::resolve_over(Some(&own), &usual, "", &mut checks.problems)
}

/// Warns of ages for an API that is not served. Other surfaces then have the usual ones.
fn warn_of_unserved_ages(file: &ConfigFile, checks: &mut Checks<'_>) {
    let Some(section) = &file.external_metrics else { return };
    if section.enabled != Some(false) {
        return;
    }

    let ages = [("fresh", section.fresh.is_some()), ("hold", section.hold.is_some())];
    checks.problems.unused("external_metrics", &ages, "external_metrics.enabled is false");
}

/// The values of unset keys.
fn usual(file: &ConfigFile, wva: &WvaDefaults, checks: &mut Checks<'_>) -> FileKeys {
    let mut usual = FileKeys::default();
    let thresholds = settings::resolve(Some(&wva.default), wva::KEY, &mut checks.problems);
    let Thresholds { kv_cache, queue_length, kv_spare, queue_spare } = thresholds;
    let saturation = std::mem::take(&mut usual.saturation);
    usual.saturation = Saturation { kv_cache, queue_length, kv_spare, queue_spare, ..saturation };
    usual.scale_to_zero.enabled = wva.zero.unwrap_or(false);

    let capacity = usual.capacity.get_or_insert_default();
    let foresight = capacity.foresight.get_or_insert_default();
    foresight.replaces_steps = enforce::steps(file.enforce.as_ref());
    if let Some(hold) = &mut foresight.hold {
        hold.replaces_window = enforce::window(file.enforce.as_ref());
    }

    usual
}

/// The policy of the file's sections, and the signals that it needs. Completes the sections.
pub(crate) fn resolve_policy(
    file: &ConfigFile,
    keys: &mut FileKeys,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> (Policy, PolicySignals) {
    let PolicyContext { known, relayed, wva, .. } = *around;
    let section = file.scale_to_zero.as_ref();
    let (zero, wake) = zero::resolve(section, &mut keys.scale_to_zero, around, checks);
    check_observe(&keys.observe, around, checks);

    let Saturation { kv_cache, queue_length, kv_spare, queue_spare, .. } = keys.saturation;
    let thresholds = Thresholds { kv_cache, queue_length, kv_spare, queue_spare };
    check_together(&thresholds, "saturation", &mut checks.problems);
    let limits = limits::resolve(&mut keys.limits, around, checks);
    let written = &mut keys.saturation.overrides;
    let overrides = resolve_overrides(written, &wva.overrides, &thresholds, known, checks);
    let sizing = size(file, keys, &thresholds, wva, checks);
    enforce::check(&keys.enforce, checks);
    let Observe { window, stale_after } = keys.observe;
    let ResolvedPools { pools, gateways } = pools::resolve(&mut keys.pools, known, window, checks);
    let policy = Policy {
        window,
        stale_after,
        stale_after_relayed: relayed.map_or(stale_after, seconds),
        thresholds,
        overrides,
        transition: keys.saturation.transition,
        transition_patience: keys.saturation.transition_patience,
        behavior: keys.enforce.clone(),
        sizing,
        zero,
        pools,
        limits,
    };

    (policy, PolicySignals { wake, gateways })
}

/// The analyzers that size models; `None` if the saturation of replicas changes desired replicas by
/// one.
///
/// Written thresholds are meant to decide. With thresholds and without a configured analysis, the
/// saturation analysis therefore decides.
fn size(
    file: &ConfigFile,
    keys: &mut FileKeys,
    thresholds: &Thresholds,
    wva: &WvaDefaults,
    checks: &mut Checks<'_>,
) -> Option<Sizing> {
    let section = file.capacity.as_ref();
    let has_thresholds = wva.mounted
        || file.saturation.as_ref().is_some_and(|it| *it != Written::<Saturation>::default());
    let (analysis, why) = match file.analysis {
        Some(analysis) => (analysis, "analysis is not capacity"),
        None if has_thresholds => {
            (Analysis::Saturation, "thresholds are given, and analysis is not")
        }
        None => (Analysis::Capacity, ""),
    };

    keys.analysis = Some(analysis);
    let used = keys.capacity.get_or_insert_default();
    match analysis {
        Analysis::Capacity => Some(capacity::resolve(section, used, thresholds, checks)),
        Analysis::Saturation => {
            if section.is_some() {
                let rule = format!("has no effect, because {why}");
                checks.problems.warning(capacity::PATH, rule);
                // The problems of the unused section are still reported.
                let _unused = capacity::resolve(section, used, thresholds, checks);
            }

            keys.capacity = None;
            None
        }
    }
}

fn check_observe(observe: &Observe, around: &PolicyContext<'_>, checks: &mut Checks<'_>) {
    let PolicyContext { global, variants, .. } = around;
    let problems = &mut checks.problems;
    let [window, stale_after] = [observe.window, observe.stale_after].map(WrittenDuration::of);

    let scraped = variants.iter().filter(|variant| variant.read_by == ReadBy::Scrape);
    let used = scraped.map(|variant| variant.scrape.interval);
    let all = if variants.is_empty() { global.scrape.settings.interval } else { Duration::ZERO };
    let longest = WrittenDuration(used.max().unwrap_or(all));
    let twice = longest.0.saturating_mul(2);
    if window.0 < twice {
        let rule =
            format!("must be at least twice the longest scrape interval, which is {longest}");
        problems.error("observe.window", rule, window);
    }

    if stale_after < longest {
        let rule =
            format!("must not be shorter than the longest scrape interval, which is {longest}");
        problems.error("observe.stale_after", rule, stale_after);
    } else if stale_after.0 < twice {
        let rule = format!(
            "is less than twice the longest scrape interval, which is {longest}, so one missed \
             scrape makes a replica stale"
        );
        problems.warning("observe.stale_after", rule);
    }
}

/// Converts a duration to the unit of the models; every `Duration` fits.
fn seconds(duration: Duration) -> Seconds {
    Seconds::new(duration.as_secs_f64()).unwrap_or_default()
}
