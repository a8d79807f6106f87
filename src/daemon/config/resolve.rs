//! From the file as written to a configuration: files that are named, and keys that must fit
//! together. Defaults and ranges of single keys are declared with the keys.

pub(crate) mod capacity;
pub(crate) mod cards;
mod certificate;
mod discovery;
mod enforce;
mod leader_election;
mod limits;
mod pools;
mod prometheus;
mod saturation;
pub(crate) mod scrape;
mod trace;
mod variants;
pub(crate) mod wake;
pub(crate) mod zero;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::collect::demand::Signal;
use crate::config::check::Checks;
use crate::config::file::{
    Analysis, CapacityKeys, CompatibilityKeys, ExternalMetricsKeys, File, FileKeys, KubernetesKeys,
    LimitKeys, ServerKeys,
};
use crate::config::problem::{Problems, join};
use crate::config::resolve::saturation::{check_together, resolve_overrides};
use crate::config::resolve::scrape::Scraped;
use crate::config::written::WrittenDuration;
use crate::config::wva::{self, Wva};
use crate::config::{Authorization, Config, ExternalMetrics, Kubernetes, ReadBy, Variant};
use plimsoll_core::analyze::foresight::policy::Window;
use plimsoll_core::analyze::saturation::{Saturation, Thresholds};
use plimsoll_core::decide::enforce::Behavior;
use plimsoll_core::observe::policy::Observe;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::pipeline::zero::Zero;
use plimsoll_core::settings::{self, Written};
use plimsoll_core::units::Seconds;

/// Makes a configuration of a file. The value is usable only when there is no error.
pub(crate) fn resolve(file: &File, checks: &mut Checks<'_>) -> Config {
    let File {
        tick_interval,
        server,
        external_metrics,
        shutdown,
        kubernetes,
        compatibility,
        state_file,
        trace,
        scrape,
        prometheus,
        variants,
        capacity,
        // The others are the policy's, and of those beside it.
        ..
    } = file;
    let problems = &mut checks.problems;
    let root = File { tick_interval: *tick_interval, ..File::default() };
    let FileKeys { tick_interval, .. } = settings::resolve(Some(&root), "", problems);
    let ServerKeys { listen } = settings::resolve(server.as_ref(), "server", problems);
    let shutdown = settings::resolve(shutdown.as_ref(), "shutdown", problems);
    let kubernetes = resolve_kubernetes(kubernetes.as_ref(), checks);
    let external_metrics = external_metrics.as_ref().and_then(|section| {
        resolve_external_metrics(section, checks, kubernetes.is_some(), tick_interval)
    });
    refuse_overlap(external_metrics.as_ref(), listen, checks);
    let state_file = resolve_state_file(state_file.as_ref(), kubernetes.as_ref(), checks);
    let global = scrape::resolve(scrape.as_ref(), checks);
    let discovery = kubernetes.as_ref().is_some_and(|it| it.discovery.is_some());
    let prometheus = prometheus.as_ref().map(|section| prometheus::resolve(section, checks));
    let around = variants::Around {
        global: &global,
        cluster: kubernetes.is_some(),
        discovery,
        prometheus: prometheus.is_some(),
    };
    let variants = variants::resolve(variants.as_deref(), around, checks);
    let Names { wva_metrics, wva_config, wva } = resolve_names(compatibility.as_ref(), checks);
    let trace = trace::resolve(trace.as_ref(), checks);
    let around = Around {
        discovery,
        cluster: kubernetes.is_some(),
        relayed: prometheus.as_ref().map(|settings| settings.stale_after),
        wva: &wva,
        global: &global,
        variants: &variants,
    };
    let resolved = resolve_policy(file, &around, checks);
    let shadows = trace::resolve_shadows(file, &around, checks);
    let (policy, wake) = resolved;
    let card_files = cards::files(capacity.as_ref(), policy.sizing.as_ref(), checks);
    let Scraped { scrape, concurrency } = global;
    Config {
        tick_interval,
        listen,
        external_metrics,
        shutdown,
        kubernetes,
        wva_metrics,
        wva_config,
        state_file,
        trace,
        policy,
        card_files,
        shadows,
        scrape_concurrency: concurrency,
        variants,
        scrape,
        prometheus,
        wake,
    }
}

/// Refuses one address for both servers.
fn refuse_overlap(served: Option<&ExternalMetrics>, listen: SocketAddr, checks: &mut Checks<'_>) {
    if served.is_some_and(|served| overlaps(served.listen, listen)) {
        let rule = "must not be the address of server.listen";
        checks.problems.error("external_metrics.listen", rule, listen);
    }
}

fn resolve_state_file(
    written: Option<&PathBuf>,
    kubernetes: Option<&Kubernetes>,
    checks: &mut Checks<'_>,
) -> Option<PathBuf> {
    let state_file = checks.file_to_write("state_file", written);
    let elects = kubernetes.is_some_and(|it| it.leader_election.is_some());
    if state_file.is_some() && elects {
        let rule = "has no effect, because with kubernetes.leader_election.enabled the replicas \
                    share their decisions in a ConfigMap";
        checks.problems.warning("state_file", rule);
    }
    state_file
}

/// Names that other programs know.
struct Names {
    wva_metrics: bool,
    wva_config: Option<PathBuf>,
    wva: Wva,
}

fn resolve_names(section: Option<&Written<CompatibilityKeys>>, checks: &mut Checks<'_>) -> Names {
    let CompatibilityKeys { wva_metrics, wva_config } =
        settings::resolve(section, "compatibility", &mut checks.problems);
    let wva_config = checks.path(wva::KEY, wva_config.as_ref());
    let entries = checks.wva_entries(wva::KEY, wva_config.as_deref());
    let wva = Wva { mounted: wva_config.is_some(), ..wva::parse(&entries, checks) };
    Names { wva_metrics, wva_config, wva }
}

fn resolve_kubernetes(
    section: Option<&Written<KubernetesKeys>>,
    checks: &mut Checks<'_>,
) -> Option<Kubernetes> {
    let written = section.cloned().unwrap_or_default();
    let is_enabled = written.enabled == Some(true);
    let mut kept = written.clone();
    if !is_enabled {
        // They have no effect, so nothing can be wrong with them.
        kept.context = None;
        kept.discovery = None;
    }
    let KubernetesKeys { context, events, discovery, leader_election: election, .. } =
        settings::resolve(Some(&kept), "kubernetes", &mut checks.problems);
    leader_election::check_order(&election, checks);
    if is_enabled {
        let kubeconfig = checks.file("kubernetes.kubeconfig", written.kubeconfig.as_ref());
        let discovery = discovery::resolve(written.discovery.as_ref(), discovery, checks);
        let leader_election = election.enabled.then_some(election);
        return Some(Kubernetes { kubeconfig, context, events, discovery, leader_election });
    }
    let discovers = written.discovery.is_some_and(|section| section.enabled == Some(true));
    if discovers {
        let rule = "needs kubernetes.enabled to be true";
        checks.problems.error_at("kubernetes.discovery.enabled", rule);
    }
    for (key, written) in [
        ("kubeconfig", written.kubeconfig.is_some()),
        ("context", written.context.is_some()),
        ("events", written.events.is_some()),
        ("leader_election", written.leader_election.is_some()),
    ] {
        if written {
            let rule = "has no effect, because kubernetes.enabled is not true";
            checks.problems.warning(join("kubernetes", key), rule);
        }
    }
    None
}

fn resolve_external_metrics(
    section: &Written<ExternalMetricsKeys>,
    checks: &mut Checks<'_>,
    cluster: bool,
    tick_interval: Duration,
) -> Option<ExternalMetrics> {
    if section.enabled == Some(false) {
        return None;
    }
    let problems = &mut checks.problems;
    let ExternalMetricsKeys { listen, authorization, fresh, hold, .. } =
        settings::resolve(Some(section), "external_metrics", problems);
    if fresh > hold {
        let rule = format!(
            "must not be longer than external_metrics.hold, which is {}",
            WrittenDuration(hold)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }
    if fresh <= tick_interval {
        let rule = format!(
            "must be longer than tick_interval, which is {}",
            WrittenDuration(tick_interval)
        );
        problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }
    if authorization == Authorization::SubjectAccessReview && !cluster {
        problems.error(
            "external_metrics.authorization",
            "must be trust_front_proxy unless kubernetes.enabled is true, because there is no API \
             server to ask",
            "subject_access_review",
        );
    }
    let certificate = certificate::resolve(section.tls.as_ref(), cluster, checks);
    Some(ExternalMetrics { listen, certificate, authorization, fresh, hold })
}

/// Whether two listeners would want the same port of the same address.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// What a policy is resolved in.
pub(crate) struct Around<'a> {
    /// Whether there may be variants that are not in the file.
    discovery: bool,
    /// Whether there is a cluster.
    cluster: bool,
    /// Age from which data from Prometheus is too old, where there is one.
    relayed: Option<Duration>,
    /// What lies under the sections.
    wva: &'a Wva,
    global: &'a Scraped,
    variants: &'a [Variant],
}

/// The policy of the file's sections, and the signals that wake models.
fn resolve_policy(
    file: &File,
    around: &Around<'_>,
    checks: &mut Checks<'_>,
) -> (Policy, Vec<Signal>) {
    let Around { discovery, cluster, relayed, wva, global, variants } = *around;
    let File {
        observe, saturation, analysis, capacity, enforce, scale_to_zero, pools, limits, ..
    } = file;
    let known = (!discovery).then_some(variants);
    let around = wake::Around { prometheus: relayed.is_some(), known };
    let (zero, wake) = zero::resolve(scale_to_zero.as_ref(), wva, &around, checks);
    let (sizing, limits) = ((*analysis, capacity.as_ref()), (limits.as_ref(), cluster));
    let policies =
        Policies { discovery, observe, saturation, sizing, enforce, zero, limits, wva, relayed };
    let policy = policies.resolve(global, variants, checks);
    let pools = pools::resolve(pools.as_ref(), known, policy.window, checks);
    (Policy { pools, ..policy }, wake)
}

/// The sections that become the policy.
struct Policies<'a> {
    /// Whether there may be variants that are not in the file.
    discovery: bool,
    observe: &'a Option<Written<Observe>>,
    saturation: &'a Option<Written<Saturation>>,
    /// Whether models are sized, and by what.
    sizing: (Option<Analysis>, Option<&'a Written<CapacityKeys>>),
    enforce: &'a Option<Written<Behavior>>,
    /// Which models may have no replicas.
    zero: Zero,
    /// What may be used, and whether there is a cluster that could say it.
    limits: (Option<&'a Written<LimitKeys>>, bool),
    /// What lies under the section of the saturation.
    wva: &'a Wva,
    /// Age from which data from Prometheus is too old, where there is one.
    relayed: Option<Duration>,
}

impl Policies<'_> {
    fn resolve(self, global: &Scraped, variants: &[Variant], checks: &mut Checks<'_>) -> Policy {
        let observe = resolve_observe(self.observe.as_ref(), global, variants, checks);
        let written = self.saturation.as_ref();
        let saturation = resolve_saturation(written, &self.wva.default, &mut checks.problems);
        let Saturation { kv_cache, queue_length, kv_spare, queue_spare, .. } = saturation;
        let thresholds = Thresholds { kv_cache, queue_length, kv_spare, queue_spare };
        check_together(&thresholds, "saturation", &mut checks.problems);

        let known = (!self.discovery).then_some(variants);
        let (limits, cluster) = self.limits;
        let limits = limits::resolve(limits, (known, cluster), checks);
        let overrides = &saturation.overrides;
        let overrides =
            resolve_overrides(overrides, &self.wva.overrides, &thresholds, known, checks);
        let section = self.enforce.as_ref();
        let sizing = self.size(&thresholds, enforce::window(section), checks);
        let behavior = enforce::resolve(section, checks);
        Policy {
            window: observe.window,
            stale_after: observe.stale_after,
            stale_after_relayed: self.relayed.map_or(observe.stale_after, seconds),
            thresholds,
            overrides,
            transition: saturation.transition,
            transition_patience: saturation.transition_patience,
            behavior,
            sizing,
            zero: self.zero,
            pools: BTreeMap::new(),
            limits,
        }
    }
}

impl Policies<'_> {
    /// By what models are sized; `None` where the saturation of replicas moves numbers by one.
    ///
    /// Whoever writes thresholds means that they decide, so with them and without a word about the
    /// analysis it is that of the saturation.
    fn size(
        &self,
        thresholds: &Thresholds,
        window: Window,
        checks: &mut Checks<'_>,
    ) -> Option<Sizing> {
        let has_thresholds = self.wva.mounted
            || self.saturation.as_ref().is_some_and(|it| *it != Written::<Saturation>::default());
        let (written, section) = self.sizing;
        let (analysis, why) = match written {
            Some(analysis) => (analysis, "analysis is not capacity"),
            None if has_thresholds => {
                (Analysis::Saturation, "thresholds are given, and analysis is not")
            }
            None => (Analysis::Capacity, ""),
        };
        match analysis {
            Analysis::Capacity => Some(capacity::resolve(section, thresholds, window, checks)),
            Analysis::Saturation => {
                if section.is_some() {
                    let rule = format!("has no effect, because {why}");
                    checks.problems.warning(capacity::PATH, rule);
                    // What is wrong with it is said all the same.
                    let _unused = capacity::resolve(section, thresholds, window, checks);
                }
                None
            }
        }
    }
}

fn resolve_saturation(
    written: Option<&Written<Saturation>>,
    beneath: &Written<Thresholds>,
    problems: &mut Problems,
) -> Saturation {
    let beneath: Thresholds = settings::resolve(Some(beneath), wva::KEY, problems);
    let Thresholds { kv_cache, queue_length, kv_spare, queue_spare } = beneath;
    let usual =
        Saturation { kv_cache, queue_length, kv_spare, queue_spare, ..Saturation::default() };
    settings::resolve_over(written, &usual, "saturation", problems)
}

fn resolve_observe(
    section: Option<&Written<Observe>>,
    global: &Scraped,
    variants: &[Variant],
    checks: &mut Checks<'_>,
) -> Observe {
    let problems = &mut checks.problems;
    let observe: Observe = settings::resolve(section, "observe", problems);
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
    observe
}

/// A duration in the unit of the models; a `Duration` always is one.
fn seconds(duration: Duration) -> Seconds {
    Seconds::new(duration.as_secs_f64()).unwrap_or_default()
}
