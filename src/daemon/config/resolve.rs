//! From the file as written to a configuration: resolves named files, and keys that must fit
//! together. Defaults and ranges of single keys are declared with the keys.

pub(crate) mod capacity;
pub(crate) mod cards;
mod certificate;
mod enforce;
mod kubernetes;
mod limits;
mod pools;
mod prometheus;
mod saturation;
mod scrape;
mod shadow;
mod variants;
mod wake;
mod zero;

use std::net::SocketAddr;
use std::time::Duration;

use crate::collect::demand::SignalSettings;
use crate::config::check::Checks;
use crate::config::file::{
    Analysis, CompatibilityKeys, ConfigFile, ExternalMetrics, FileKeys, ServerKeys,
};
use crate::config::resolve::saturation::{check_together, resolve_overrides};
use crate::config::resolve::scrape::ResolvedScrape;
use crate::config::written::WrittenDuration;
use crate::config::wva::{self, WvaDefaults};
use crate::config::{Authorization, Config, ReadBy, VariantConfig};
use plimsoll_core::analyze::saturation::{Saturation, Thresholds};
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Seconds;

/// Resolves a file into a configuration, which is usable only if there is no error.
pub(crate) fn resolve(file: &ConfigFile, checks: &mut Checks<'_>) -> Config {
    let wva = resolve_wva(file.compatibility.as_ref(), checks);
    let mut keys = fill(file, &wva, checks);
    kubernetes::complete(file.kubernetes.as_ref(), &mut keys.kubernetes, checks);
    check_server(&keys.server, checks);
    check_external_metrics(&keys, checks);
    check_state_file(&keys, checks);
    checks.folder_to_write("trace.dir", keys.trace.as_ref().map(|trace| &trace.dir));
    let global = scrape::resolve(file.scrape.as_ref(), checks);
    let written = file.prometheus.as_ref().zip(keys.prometheus.as_mut());
    let prometheus = written.map(|(section, keys)| prometheus::resolve(section, keys, checks));

    let cluster = keys.kubernetes.enabled;
    let discovery = keys.kubernetes.discovery().is_some();
    let around_each = variants::VariantContext {
        global: &global,
        cluster,
        discovery,
        prometheus: prometheus.is_some(),
    };
    let (entries, variants): (Vec<_>, Vec<_>) =
        variants::resolve(file.variants.as_deref(), around_each, checks).into_iter().unzip();
    keys.variants = Some(entries);

    let around = PolicyContext {
        known: (!discovery).then_some(&variants[..]),
        cluster,
        relayed: prometheus.as_ref().map(|settings| settings.stale_after),
        wva: &wva,
        global: &global,
        variants: &variants,
    };

    let (policy, wake) = resolve_policy(file, &mut keys, &around, checks);
    let (entries, shadows): (Vec<_>, Vec<_>) =
        shadow::resolve_shadows(file, &around, checks).into_iter().unzip();
    keys.shadow = Some(entries).filter(|entries| !entries.is_empty());
    let scrape = global.scrape;
    Config { keys: Box::new(keys), policy, shadows, variants, scrape, prometheus, wake }
}

/// Every key with the value that it has on its own: the written value or its default. Variants and
/// shadows are resolved later, because they are merged over other sections.
pub(crate) fn fill(file: &ConfigFile, wva: &WvaDefaults, checks: &mut Checks<'_>) -> FileKeys {
    let kubernetes = file.kubernetes.as_ref().map(kubernetes::effective);
    let served = file.external_metrics.clone();
    let external_metrics = served.filter(|section| section.enabled != Some(false));
    let own =
        ConfigFile { kubernetes, external_metrics, variants: None, shadow: None, ..file.clone() };
    let usual = usual(file, wva, checks);
    settings::resolve_over(Some(&own), &usual, "", &mut checks.problems)
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

/// Resolves the thresholds in the `ConfigMap` entries of the workload variant autoscaler.
fn resolve_wva(
    section: Option<&Written<CompatibilityKeys>>,
    checks: &mut Checks<'_>,
) -> WvaDefaults {
    let CompatibilityKeys { wva_config, .. } =
        settings::resolve(section, "compatibility", &mut checks.problems);
    let entries = checks.wva_entries(wva::KEY, wva_config.as_deref());
    WvaDefaults { mounted: wva_config.is_some(), ..wva::parse(&entries, checks) }
}

fn check_state_file(keys: &FileKeys, checks: &mut Checks<'_>) {
    let state_file = checks.file_to_write("state_file", keys.state_file.as_ref());
    if state_file.is_some() && keys.kubernetes.leader_election().is_some() {
        let rule = "has no effect, because with kubernetes.leader_election.enabled the replicas \
                    share their decisions in a ConfigMap";
        checks.problems.warning("state_file", rule);
    }
}

fn check_server(keys: &ServerKeys, checks: &mut Checks<'_>) {
    checks.file("server.admin_token_file", keys.admin_token_file.as_ref());
    if keys.admin_token_file.is_some() && !keys.admin_enabled {
        let rule = "has no effect, because server.admin_enabled is false";
        checks.problems.warning("server.admin_token_file", rule);
    }
}

fn check_external_metrics(keys: &FileKeys, checks: &mut Checks<'_>) {
    let Some(section) = &keys.external_metrics else { return };
    let ExternalMetrics { listen, authorization, fresh, hold, .. } = *section;
    let problems = &mut checks.problems;
    if fresh > hold {
        let rule = format!(
            "must not be longer than external_metrics.hold, which is {}",
            WrittenDuration(hold)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }

    if fresh <= keys.tick_interval {
        let rule = format!(
            "must be longer than tick_interval, which is {}",
            WrittenDuration(keys.tick_interval)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }

    let cluster = keys.kubernetes.enabled;
    if authorization == Authorization::SubjectAccessReview && !cluster {
        problems.error(
            "external_metrics.authorization",
            "must be trust_front_proxy unless kubernetes.enabled is true, because there is no API \
             server to ask",
            "subject_access_review",
        );
    }

    certificate::check(&section.tls, cluster, checks);
    if overlaps(listen, keys.server.listen) {
        let rule = "must not be the address of server.listen";
        checks.problems.error("external_metrics.listen", rule, keys.server.listen);
    }
}

/// Returns true if two listeners would use the same port of the same address.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// The context in which a policy is resolved.
pub(crate) struct PolicyContext<'a> {
    /// All variants, if the file lists all of them.
    known: Option<&'a [VariantConfig]>,
    /// True if there is a cluster.
    cluster: bool,
    /// The age from which data from Prometheus is stale; `None` without a Prometheus.
    relayed: Option<Duration>,
    /// The defaults below the sections.
    wva: &'a WvaDefaults,
    global: &'a ResolvedScrape,
    variants: &'a [VariantConfig],
}

/// The policy of the file's sections, and the wake signals. Completes the sections.
pub(crate) fn resolve_policy(
    file: &ConfigFile,
    keys: &mut FileKeys,
    around: &PolicyContext<'_>,
    checks: &mut Checks<'_>,
) -> (Policy, Vec<SignalSettings>) {
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
    let pools = pools::resolve(&mut keys.pools, known, window, checks);
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

    (policy, wake)
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
