//! From the file as written to a configuration: files that are named, and keys that must fit
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

use crate::collect::demand::Signal;
use crate::config::check::Checks;
use crate::config::file::{Analysis, CompatibilityKeys, ExternalMetrics, File, FileKeys};
use crate::config::resolve::saturation::{check_together, resolve_overrides};
use crate::config::resolve::scrape::Scraped;
use crate::config::written::WrittenDuration;
use crate::config::wva::{self, Wva};
use crate::config::{Authorization, Config, ReadBy, Variant};
use plimsoll_core::analyze::saturation::{Saturation, Thresholds};
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Seconds;

/// Makes a configuration of a file. The value is usable only when there is no error.
pub(crate) fn resolve(file: &File, checks: &mut Checks<'_>) -> Config {
    let wva = resolve_wva(file.compatibility.as_ref(), checks);
    let mut keys = fill(file, &wva, checks);
    kubernetes::complete(file.kubernetes.as_ref(), &mut keys.kubernetes, checks);
    check_external_metrics(&keys, checks);
    check_state_file(&keys, checks);
    checks.folder_to_write("trace.dir", keys.trace.as_ref().map(|trace| &trace.dir));
    let global = scrape::resolve(file.scrape.as_ref(), checks);
    let prometheus = file.prometheus.as_ref().zip(keys.prometheus.as_mut());
    let prometheus = prometheus.map(|(section, keys)| prometheus::resolve(section, keys, checks));
    let cluster = keys.kubernetes.enabled;
    let discovery = keys.kubernetes.discovery().is_some();
    let around =
        variants::Around { global: &global, cluster, discovery, prometheus: prometheus.is_some() };
    let (entries, variants): (Vec<_>, Vec<_>) =
        variants::resolve(file.variants.as_deref(), around, checks).into_iter().unzip();
    keys.variants = Some(entries);

    let around = Around {
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

/// Every key with the value that it has by itself: what is written, or what holds otherwise.
/// Variants and shadows lie over other sections.
pub(crate) fn fill(file: &File, wva: &Wva, checks: &mut Checks<'_>) -> FileKeys {
    let kubernetes = file.kubernetes.as_ref().map(kubernetes::effective);
    let external_metrics = file.external_metrics.clone();
    let external_metrics = external_metrics.filter(|section| section.enabled != Some(false));
    let own = File { kubernetes, external_metrics, variants: None, shadow: None, ..file.clone() };
    let usual = usual(file, wva, checks);
    settings::resolve_over(Some(&own), &usual, "", &mut checks.problems)
}

/// The values of keys that are not written.
fn usual(file: &File, wva: &Wva, checks: &mut Checks<'_>) -> FileKeys {
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

/// What the other autoscaler's entries say.
fn resolve_wva(section: Option<&Written<CompatibilityKeys>>, checks: &mut Checks<'_>) -> Wva {
    let CompatibilityKeys { wva_config, .. } =
        settings::resolve(section, "compatibility", &mut checks.problems);
    let entries = checks.wva_entries(wva::KEY, wva_config.as_deref());
    Wva { mounted: wva_config.is_some(), ..wva::parse(&entries, checks) }
}

fn check_state_file(keys: &FileKeys, checks: &mut Checks<'_>) {
    let state_file = checks.file_to_write("state_file", keys.state_file.as_ref());
    if state_file.is_some() && keys.kubernetes.leader_election().is_some() {
        let rule = "has no effect, because with kubernetes.leader_election.enabled the replicas \
                    share their decisions in a ConfigMap";
        checks.problems.warning("state_file", rule);
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

/// Whether two listeners would want the same port of the same address.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// What a policy is resolved in.
pub(crate) struct Around<'a> {
    /// All variants, where all are in the file.
    known: Option<&'a [Variant]>,
    /// Whether there is a cluster.
    cluster: bool,
    /// Age from which data from Prometheus is too old, where there is one.
    relayed: Option<Duration>,
    /// What lies under the sections.
    wva: &'a Wva,
    global: &'a Scraped,
    variants: &'a [Variant],
}

/// The policy of the file's sections, and the signals that wake models. Completes the sections.
pub(crate) fn resolve_policy(
    file: &File,
    keys: &mut FileKeys,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> (Policy, Vec<Signal>) {
    let Around { known, cluster, relayed, wva, .. } = *around;
    let section = file.scale_to_zero.as_ref();
    let (zero, wake) = zero::resolve(section, &mut keys.scale_to_zero, around, checks);
    check_observe(&keys.observe, around, checks);
    let Saturation { kv_cache, queue_length, kv_spare, queue_spare, .. } = keys.saturation;
    let thresholds = Thresholds { kv_cache, queue_length, kv_spare, queue_spare };
    check_together(&thresholds, "saturation", &mut checks.problems);
    let limits = limits::resolve(&mut keys.limits, (known, cluster), checks);
    let overrides = &mut keys.saturation.overrides;
    let overrides = resolve_overrides(overrides, &wva.overrides, &thresholds, known, checks);
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

/// By what models are sized; `None` where the saturation of replicas moves numbers by one.
///
/// Whoever writes thresholds means that they decide, so with them and without a word about the
/// analysis it is that of the saturation.
fn size(
    file: &File,
    keys: &mut FileKeys,
    thresholds: &Thresholds,
    wva: &Wva,
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
                // What is wrong with it is said all the same.
                let _unused = capacity::resolve(section, used, thresholds, checks);
            }
            keys.capacity = None;
            None
        }
    }
}

fn check_observe(observe: &Observe, around: &Around<'_>, checks: &mut Checks<'_>) {
    let Around { global, variants, .. } = around;
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

/// A duration in the unit of the models; a `Duration` always is one.
fn seconds(duration: Duration) -> Seconds {
    Seconds::new(duration.as_secs_f64()).unwrap_or_default()
}
