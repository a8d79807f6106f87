//! From the file as written to a configuration: defaults, ranges, and what must fit together.
//!
//! The defaults are the constants of this file and of [`scrape`]; the schema and the documents
//! take them from here.

mod capacity;
mod certificate;
mod leader_election;
mod prometheus;
mod saturation;
mod scrape;
mod variants;
mod wake;
pub(crate) mod zero;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::analyze::saturation::TransitionRule;
use crate::config::check::{Checks, Durations};
use crate::config::file::{self, File};
use crate::config::names;
use crate::config::problem::join;
use crate::config::resolve::saturation::{Numbers, resolve_overrides};
use crate::config::resolve::scrape::Scraped;
use crate::config::written::WrittenDuration;
use crate::config::wva::{self, Wva};
use crate::config::{
    Authorization, Config, Discovery, ExternalMetrics, Kubernetes, ReadBy, Shutdown, Variant,
};
use crate::decide::enforce::{Amount, Behavior, Rules, Select, StepPolicy};
use crate::fleet::Namespace;
use crate::pipeline::Policy;
use crate::pipeline::zero::Zero;
use crate::units::Seconds;

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Decisions are cheap, and a second is what an overload needs to be seen in time.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// More often than ten times a second, the pages themselves do not change.
const TICK_INTERVALS: Durations = Duration::from_millis(100)..=MINUTE;

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);
const EXTERNAL_METRICS_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 6443);

/// Three periods of the HPA's loop, 15 s each.
const FRESH: Duration = Duration::from_secs(45);
/// The HPA's own stabilisation of scaling down: a shorter outage must not be felt.
const HOLD: Duration = Duration::from_mins(5);
const AGES: Durations = Duration::from_secs(1)..=DAY;

/// The time in which endpoints are usually withdrawn from load balancers.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(5);
/// With the delay, below the 30 s that Kubernetes waits before it kills.
const SHUTDOWN_DRAIN: Duration = Duration::from_secs(20);
const SHUTDOWNS: Durations = Duration::ZERO..=HOUR;

const WINDOW: Duration = MINUTE;
const WINDOWS: Durations = Duration::from_secs(1)..=HOUR;
/// Ten missed scrapes at the default interval.
const STALE_AFTER: Duration = Duration::from_secs(10);
const STALE_AFTERS: Durations = Duration::from_millis(100)..=HOUR;

/// The time in which a replica of a large model starts.
const TRANSITION_PATIENCE: Duration = Duration::from_mins(5);

/// The longest window and the longest period that an HPA accepts.
const STABILIZATIONS: Durations = Duration::ZERO..=HOUR;
const PERIODS: Durations = Duration::from_secs(1)..=Duration::from_mins(30);
/// The period of the HPA's loop.
const PERIOD: Duration = Duration::from_secs(15);
/// What an HPA waits before it scales down.
const SCALE_DOWN_STABILIZATION: Duration = Duration::from_mins(5);

/// Makes a configuration of a file. The value is usable only when there is no error; `None` is
/// returned when there is none that could be built at all.
pub(crate) fn resolve(file: &File, checks: &mut Checks<'_>) -> Option<Config> {
    let File {
        tick_interval,
        server,
        external_metrics,
        shutdown,
        kubernetes,
        compatibility,
        state_file,
        observe,
        saturation,
        analysis,
        capacity,
        enforce,
        scale_to_zero,
        scrape,
        prometheus,
        variants,
    } = file;
    let tick_interval =
        checks.duration("tick_interval", *tick_interval, &TICK_INTERVALS).unwrap_or(TICK_INTERVAL);
    let listen =
        checks.listen("server.listen", server.as_ref().and_then(|it| it.listen.as_deref()));
    let listen = listen.unwrap_or(LISTEN);
    let kubernetes = resolve_kubernetes(kubernetes.clone().unwrap_or_default(), checks);
    let external_metrics = external_metrics.as_ref().and_then(|section| {
        resolve_external_metrics(section, checks, kubernetes.is_some(), tick_interval)
    });
    if external_metrics.as_ref().is_some_and(|served| overlaps(served.listen, listen)) {
        let rule = "must not be the address of server.listen";
        checks.problems.error("external_metrics.listen", rule, listen);
    }
    let shutdown = resolve_shutdown(&shutdown.clone().unwrap_or_default(), checks);
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
    let Names { wva_metrics, wva_config, wva } =
        resolve_names(compatibility.clone().unwrap_or_default(), checks);
    let relayed = prometheus.as_ref().map(|settings| settings.stale_after);
    let sizing = (*analysis, capacity.as_ref());
    let known = (!discovery).then_some(variants.as_slice());
    let around = wake::Around { prometheus: prometheus.is_some(), known };
    let (zero, wake) = zero::resolve(scale_to_zero.as_ref(), &wva, &around, checks);
    let policies = Policies { discovery, observe, saturation, sizing, enforce, zero, wva, relayed };
    let policy = policies.resolve(&global, &variants, checks)?;
    let Scraped { scrape, concurrency } = global;
    Some(Config {
        tick_interval,
        listen,
        external_metrics,
        shutdown,
        kubernetes,
        wva_metrics,
        wva_config,
        state_file,
        policy,
        scrape_concurrency: concurrency,
        variants,
        scrape,
        prometheus,
        wake,
    })
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

fn resolve_names(section: file::Compatibility, checks: &mut Checks<'_>) -> Names {
    let file::Compatibility { wva_metrics, wva_config } = section;
    let wva_config = checks.path(wva::KEY, wva_config.as_ref());
    let entries = checks.wva_entries(wva::KEY, wva_config.as_deref());
    let wva = wva::parse(&entries, checks);
    Names { wva_metrics: wva_metrics.unwrap_or(false), wva_config, wva }
}

fn resolve_kubernetes(section: file::Kubernetes, checks: &mut Checks<'_>) -> Option<Kubernetes> {
    let file::Kubernetes { enabled, kubeconfig, context, events, discovery, leader_election } =
        section;
    let election = leader_election::resolve(leader_election.clone().unwrap_or_default(), checks);
    if enabled.unwrap_or(false) {
        let kubeconfig = checks.file("kubernetes.kubeconfig", kubeconfig.as_ref());
        let rule = "must be the name of a context";
        let context =
            checks.text("kubernetes.context", context.as_deref(), names::is_label_text, rule);
        let discovery = resolve_discovery(discovery.unwrap_or_default(), checks);
        let context = context.map(ToOwned::to_owned);
        let (events, leader_election) = (events.unwrap_or(true), election);
        return Some(Kubernetes { kubeconfig, context, events, discovery, leader_election });
    }
    let discovers = discovery.is_some_and(|section| section.enabled == Some(true));
    if discovers {
        let rule = "needs kubernetes.enabled to be true";
        checks.problems.error_at("kubernetes.discovery.enabled", rule);
    }
    for (key, written) in [
        ("kubeconfig", kubeconfig.is_some()),
        ("context", context.is_some()),
        ("events", events.is_some()),
        ("leader_election", leader_election.is_some()),
    ] {
        if written {
            let rule = "has no effect, because kubernetes.enabled is not true";
            checks.problems.warning(join("kubernetes", key), rule);
        }
    }
    None
}

fn resolve_discovery(section: file::Discovery, checks: &mut Checks<'_>) -> Option<Discovery> {
    let file::Discovery { enabled, namespaces, selector, wva } = section;
    let path = |key| join("kubernetes.discovery", key);
    let mut resolved: Vec<Namespace> = Vec::new();
    for (at, namespace) in namespaces.as_deref().unwrap_or_default().iter().enumerate() {
        let path = format!("{}[{at}]", path("namespaces"));
        let text = checks.text(&path, namespace.as_deref(), names::is_dns_label, names::DNS_LABEL);
        let Some(namespace) = text.and_then(Namespace::new) else { continue };
        if resolved.contains(&namespace) {
            checks.problems.warning(path, "is in the list already");
        } else {
            resolved.push(namespace);
        }
    }
    let rule = "must be a label selector, such as \"team=chat,tier in (gold, silver)\"";
    let selector = checks.text(&path("selector"), selector.as_deref(), names::is_selector, rule);
    let selector = selector.map(ToOwned::to_owned);
    let enabled = enabled.unwrap_or(false);
    let wva = wva.unwrap_or(true);
    let written =
        [("namespaces", !resolved.is_empty()), ("selector", selector.is_some()), ("wva", !wva)];
    for (key, _) in written.iter().filter(|(_, written)| *written && !enabled) {
        let rule = "has no effect, because kubernetes.discovery.enabled is not true";
        checks.problems.warning(path(key), rule);
    }
    enabled.then_some(Discovery { namespaces: resolved, selector, wva })
}

fn resolve_external_metrics(
    section: &file::ExternalMetrics,
    checks: &mut Checks<'_>,
    cluster: bool,
    tick_interval: Duration,
) -> Option<ExternalMetrics> {
    let file::ExternalMetrics { enabled, listen, tls, authorization, fresh, hold } = section;
    if !enabled.unwrap_or(true) {
        return None;
    }
    let listen = checks
        .listen("external_metrics.listen", listen.as_deref())
        .unwrap_or(EXTERNAL_METRICS_LISTEN);
    let fresh = checks.duration("external_metrics.fresh", *fresh, &AGES).unwrap_or(FRESH);
    let hold = checks.duration("external_metrics.hold", *hold, &AGES).unwrap_or(HOLD);
    if fresh > hold {
        let rule = format!(
            "must not be longer than external_metrics.hold, which is {}",
            WrittenDuration(hold)
        );
        checks.problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }
    if fresh <= tick_interval {
        let rule = format!(
            "must be longer than tick_interval, which is {}",
            WrittenDuration(tick_interval)
        );
        checks.problems.error("external_metrics.fresh", rule, WrittenDuration(fresh));
    }
    let authorization = match authorization {
        Some(file::Authorization::TrustFrontProxy) => Authorization::TrustFrontProxy,
        Some(file::Authorization::SubjectAccessReview) | None => Authorization::SubjectAccessReview,
    };
    if authorization == Authorization::SubjectAccessReview && !cluster {
        checks.problems.error(
            "external_metrics.authorization",
            "must be trust_front_proxy unless kubernetes.enabled is true, because there is no API \
             server to ask",
            "subject_access_review",
        );
    }
    let certificate = certificate::resolve(tls.as_ref(), cluster, checks);
    Some(ExternalMetrics { listen, certificate, authorization, fresh, hold })
}

/// Whether two listeners would want the same port of the same address.
fn overlaps(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

fn resolve_shutdown(section: &file::Shutdown, checks: &mut Checks<'_>) -> Shutdown {
    let file::Shutdown { delay, drain } = *section;
    let delay = checks.duration("shutdown.delay", delay, &SHUTDOWNS).unwrap_or(SHUTDOWN_DELAY);
    let drain = checks.duration("shutdown.drain", drain, &SHUTDOWNS).unwrap_or(SHUTDOWN_DRAIN);
    Shutdown { delay, drain }
}

/// The sections that become the policy.
struct Policies<'a> {
    /// Whether there may be variants that are not in the file.
    discovery: bool,
    observe: &'a Option<file::Observe>,
    saturation: &'a Option<file::Saturation>,
    /// Whether models are sized, and by what.
    sizing: (Option<file::Analysis>, Option<&'a file::Capacity>),
    enforce: &'a Option<file::Enforce>,
    /// Which models may have no replicas.
    zero: Zero,
    /// What lies under the section of the saturation.
    wva: Wva,
    /// Age from which data from Prometheus is too old, where there is one.
    relayed: Option<Duration>,
}

impl Policies<'_> {
    fn resolve(
        self,
        global: &Scraped,
        variants: &[Variant],
        checks: &mut Checks<'_>,
    ) -> Option<Policy> {
        let (window, stale_after) =
            resolve_observe(&self.observe.clone().unwrap_or_default(), global, variants, checks);
        let saturation = self.saturation.clone().unwrap_or_default();
        let written = file::Thresholds {
            kv_cache_threshold: saturation.kv_cache_threshold,
            queue_length_threshold: saturation.queue_length_threshold,
            kv_spare_trigger: saturation.kv_spare_trigger,
            queue_spare_trigger: saturation.queue_spare_trigger,
        };
        let beneath = Numbers::DEFAULT.overlaid(wva::KEY, &self.wva.default, checks);
        let numbers = beneath.overlaid("saturation", &written, checks);
        numbers.check_together("saturation", checks);
        let overrides = saturation.overrides.unwrap_or_default();
        let known = (!self.discovery).then_some(variants);
        let overrides = resolve_overrides(&overrides, &self.wva.overrides, &numbers, known, checks);
        let patience = "saturation.transition_patience";
        let transition_patience = checks
            .duration(patience, saturation.transition_patience, &AGES)
            .unwrap_or(TRANSITION_PATIENCE);
        let file::Enforce { scale_up, scale_down } = self.enforce.clone().unwrap_or_default();
        let scale_up = resolve_rules("enforce.scale_up", scale_up, &scale_up_default(), checks);
        let scale_down =
            resolve_rules("enforce.scale_down", scale_down, &scale_down_default(), checks);
        let thresholds = numbers.thresholds();
        let (analysis, section) = self.sizing;
        let sizing = capacity::resolve(analysis, section, thresholds.as_ref(), checks);
        let thresholds = thresholds?;
        Some(Policy {
            window: seconds(window),
            stale_after: seconds(stale_after),
            stale_after_relayed: seconds(self.relayed.unwrap_or(stale_after)),
            thresholds,
            overrides,
            transition: match saturation.transition {
                Some(file::Transition::ModelWide) => TransitionRule::ModelWide,
                Some(file::Transition::PerVariant) => TransitionRule::PerVariant,
                Some(file::Transition::PendingOnly) | None => TransitionRule::PendingOnly,
            },
            transition_patience: seconds(transition_patience),
            behavior: Behavior { scale_up, scale_down },
            sizing,
            zero: self.zero,
        })
    }
}

fn resolve_observe(
    section: &file::Observe,
    global: &Scraped,
    variants: &[Variant],
    checks: &mut Checks<'_>,
) -> (Duration, Duration) {
    let file::Observe { window, stale_after } = *section;
    let window = checks.duration("observe.window", window, &WINDOWS).unwrap_or(WINDOW);
    let stale_after =
        checks.duration("observe.stale_after", stale_after, &STALE_AFTERS).unwrap_or(STALE_AFTER);
    let scraped = variants.iter().filter(|variant| variant.read_by == ReadBy::Scrape);
    let used = scraped.map(|variant| variant.scrape.interval);
    let all = if variants.is_empty() { global.scrape.settings.interval } else { Duration::ZERO };
    let longest = used.max().unwrap_or(all);
    let longest_written = WrittenDuration(longest);
    if window < longest.saturating_mul(2) {
        let rule = format!(
            "must be at least twice the longest scrape interval, which is {longest_written}"
        );
        checks.problems.error("observe.window", rule, WrittenDuration(window));
    }
    if stale_after < longest {
        let rule = format!(
            "must not be shorter than the longest scrape interval, which is {longest_written}"
        );
        checks.problems.error("observe.stale_after", rule, WrittenDuration(stale_after));
    } else if stale_after < longest.saturating_mul(2) {
        let rule = format!(
            "is less than twice the longest scrape interval, which is {longest_written}, so one \
             missed scrape makes a replica stale"
        );
        checks.problems.warning("observe.stale_after", rule);
    }
    (window, stale_after)
}

/// What may be added in a period: a few replicas at once, and doubling beyond.
fn scale_up_default() -> Rules {
    let policy = |amount| StepPolicy { amount, period: seconds(PERIOD) };
    Rules {
        stabilization_window: Seconds::ZERO,
        select: Select::Max,
        policies: vec![policy(Amount::Pods(4)), policy(Amount::Percent(100))],
    }
}

/// What may be taken away in a period: everything, after the window.
fn scale_down_default() -> Rules {
    Rules {
        stabilization_window: seconds(SCALE_DOWN_STABILIZATION),
        select: Select::Max,
        policies: vec![StepPolicy { amount: Amount::Percent(100), period: seconds(PERIOD) }],
    }
}

fn resolve_rules(
    path: &str,
    section: Option<file::Rules>,
    default: &Rules,
    checks: &mut Checks<'_>,
) -> Rules {
    let file::Rules { stabilization_window, select_policy, policies } = section.unwrap_or_default();
    let window = join(path, "stabilization_window");
    let policies_path = join(path, "policies");
    Rules {
        stabilization_window: checks
            .duration(&window, stabilization_window, &STABILIZATIONS)
            .map_or(default.stabilization_window, seconds),
        select: match select_policy {
            Some(file::SelectPolicy::Max) => Select::Max,
            Some(file::SelectPolicy::Min) => Select::Min,
            Some(file::SelectPolicy::Disabled) => Select::Disabled,
            None => default.select,
        },
        policies: policies.map_or_else(
            || default.policies.clone(),
            |written| {
                written
                    .iter()
                    .enumerate()
                    .filter_map(|(at, policy)| Some((at, policy.clone()?)))
                    .filter_map(|(at, policy)| {
                        resolve_policy(&format!("{policies_path}[{at}]"), &policy, checks)
                    })
                    .collect()
            },
        ),
    }
}

fn resolve_policy(
    path: &str,
    written: &file::StepPolicy,
    checks: &mut Checks<'_>,
) -> Option<StepPolicy> {
    let file::StepPolicy { r#type, value, period } = written;
    let missing =
        [("type", r#type.is_none()), ("value", value.is_none()), ("period", period.is_none())];
    for (key, missing) in missing {
        if missing {
            checks.problems.missing(join(path, key), "is missing");
        }
    }
    let value = checks.number(&join(path, "value"), *value, &(1..=1_000_000));
    let period = checks.duration(&join(path, "period"), *period, &PERIODS);
    let amount = match (*r#type)? {
        file::StepType::Pods => Amount::Pods(value?),
        file::StepType::Percent => Amount::Percent(value?),
    };
    Some(StepPolicy { amount, period: seconds(period?) })
}

/// A duration in the unit of the models; a `Duration` always is one.
fn seconds(duration: Duration) -> Seconds {
    Seconds::new(duration.as_secs_f64()).unwrap_or_default()
}
