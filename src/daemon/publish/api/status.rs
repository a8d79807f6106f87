//! How the daemon and its fleet are, on one page, as JSON.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::api::Asked;
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::observe::Freshness;
use plimsoll_core::units::{Replicas, Seconds};

/// What the status says that is not in [`Published`].
#[derive(Clone, Debug, PartialEq)]
pub struct Vitals {
    /// Version of the running binary.
    pub version: &'static str,
    /// When the process started, on the monotonic clock.
    pub started: Duration,
    /// Time between ticks.
    pub tick_interval: Duration,
    /// Every readiness check, and what is wrong if something is.
    pub checks: Vec<(&'static str, Result<(), String>)>,
    /// The configuration in force.
    pub config: ConfigInForce,
    /// The state of the `APIService` and what is wrong with it; `None` where it is not watched.
    pub api_service: Option<(&'static str, Option<String>)>,
}

/// The configuration in force, and the last attempt to load another.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigInForce {
    /// Where it came from; `None` where it is from no file.
    pub file: Option<String>,
    /// Its hash.
    pub hash: String,
    /// When it was loaded: wall clock and monotonic clock.
    pub loaded: (Timestamp, Duration),
    /// The last attempt to load it again, and why it was refused; `None` where there was none.
    pub last_reload: Option<(Timestamp, Result<(), String>)>,
}

/// How the daemon and its fleet are.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Status {
    /// Version of the daemon.
    version: &'static str,
    /// The daemon's clock when it answered.
    now: String,
    /// How long the daemon has run, in seconds.
    uptime_seconds: f64,
    /// The last tick of the decision loop; null before the first.
    tick: Option<Tick>,
    /// Time between ticks, in seconds.
    tick_interval_seconds: f64,
    /// Whether every readiness check passes, as `/readyz` answers.
    ready: bool,
    /// Every readiness check.
    checks: Vec<Check>,
    /// The configuration in force.
    config: Config,
    /// The fleet as a whole.
    fleet: Fleet,
    /// What the numbers rest on.
    sources: Sources,
    /// The registration of the external metrics API; null where it is not watched.
    api_service: Option<ApiService>,
}

/// The last tick of the decision loop.
#[derive(Serialize, JsonSchema)]
struct Tick {
    /// Counts the ticks since the daemon started.
    generation: u64,
    /// When it was.
    at: String,
    /// The same, as an age in seconds; many times the interval means that nothing is decided.
    age_seconds: f64,
}

/// One readiness check.
#[derive(Serialize, JsonSchema)]
struct Check {
    /// Its name.
    name: &'static str,
    /// Whether it passes.
    ok: bool,
    /// What is wrong; null when it passes.
    problem: Option<String>,
}

/// The configuration in force.
#[derive(Serialize, JsonSchema)]
struct Config {
    /// The file that it came from; null when it is from no file.
    file: Option<String>,
    /// Hash of the effective configuration, as in `plimsoll_config_info`.
    hash: String,
    /// When it was loaded.
    loaded_at: String,
    /// The same, as an age in seconds.
    loaded_age_seconds: f64,
    /// The last attempt to load it again; null when there was none.
    last_reload: Option<Reload>,
}

/// An attempt to load the configuration again.
#[derive(Serialize, JsonSchema)]
struct Reload {
    /// When it was.
    at: String,
    /// Whether the configuration was accepted; if not, the last good one is in force.
    accepted: bool,
    /// Every problem of the configuration, one a line; null when it was accepted.
    problem: Option<String>,
}

/// The fleet as a whole.
#[derive(Serialize, JsonSchema)]
struct Fleet {
    /// Models, each counted once in a namespace.
    models: usize,
    /// Variants.
    variants: usize,
    /// Variants whose number is kept from before for want of data.
    held: usize,
    /// Variants without a number.
    undecided: usize,
    /// Variants with at least one saturated replica.
    saturated: usize,
    /// Replicas that all variants with a number should have; null when none has one.
    desired_replicas: Option<u32>,
    /// Replicas that exist, of the variants where that is known; null when it is of none.
    current_replicas: Option<u32>,
    /// Replicas that are ready, of the variants where that is known; null when it is of none.
    ready_replicas: Option<u32>,
    /// Variants of which nobody can say how many replicas exist.
    current_unknown: usize,
    /// What the current replicas cost in an hour, in the configuration's currency; null when no
    /// count is known.
    cost_per_hour: Option<f64>,
    /// What the desired replicas would cost in an hour; null when no variant has a number.
    desired_cost_per_hour: Option<f64>,
}

/// What the numbers rest on.
#[derive(Serialize, JsonSchema)]
struct Sources {
    /// Replicas whose page is recent enough to act on.
    replicas_fresh: usize,
    /// Replicas whose last page is too old to act on.
    replicas_stale: usize,
    /// Replicas that never had a page.
    replicas_never: usize,
    /// Age of the oldest page that is acted on, in seconds; null when there is none.
    oldest_page_age_seconds: Option<f64>,
    /// Variants whose replicas have not been listed yet.
    unlisted: usize,
    /// Age of the oldest list of replicas, in seconds; null when there is none.
    oldest_list_age_seconds: Option<f64>,
    /// Variants whose scale target is not known.
    scale_unknown: usize,
}

/// The registration of the external metrics API with its cluster.
#[derive(Serialize, JsonSchema)]
struct ApiService {
    /// `ours`, `absent`, `foreign_service`, `foreign_ca_bundle`, `unavailable`, or `unknown` until
    /// the cluster has said.
    state: &'static str,
    /// What is wrong, as a sentence; null when it is ours.
    problem: Option<String>,
}

impl Status {
    pub(crate) fn new(asked: &Asked<'_>, vitals: Vitals) -> Self {
        let Vitals { version, started, tick_interval, checks, config, api_service } = vitals;
        let since = |then: Duration| asked.elapsed.saturating_sub(then).as_secs_f64();
        let ConfigInForce { file, hash, loaded: (loaded_at, loaded), last_reload } = config;
        let last_reload = last_reload.map(|(at, outcome)| Reload {
            at: at.to_string(),
            accepted: outcome.is_ok(),
            problem: outcome.err(),
        });
        let checks = checks.into_iter();
        let checks = checks.map(|(name, it)| Check { name, ok: it.is_ok(), problem: it.err() });
        let checks: Vec<_> = checks.collect();
        Self {
            version,
            now: asked.now.to_string(),
            uptime_seconds: since(started),
            tick: asked.history.last_tick().map(|tick| Tick {
                generation: tick.generation,
                at: tick.at.to_string(),
                age_seconds: since(tick.elapsed),
            }),
            tick_interval_seconds: tick_interval.as_secs_f64(),
            ready: checks.iter().all(|check| check.ok),
            checks,
            config: Config {
                file,
                hash,
                loaded_at: loaded_at.to_string(),
                loaded_age_seconds: since(loaded),
                last_reload,
            },
            fleet: Fleet::of(asked.published),
            sources: Sources::of(asked.published, asked.now),
            api_service: api_service.map(|(state, problem)| ApiService { state, problem }),
        }
    }
}

impl Fleet {
    fn of(published: &Published) -> Self {
        let all = || published.variants.values();
        let decision = |it: &PublishedVariant| it.decided.as_ref().map(|it| it.decision.clone());
        let desired = |it: &PublishedVariant| it.decided.as_ref().map(|it| it.decision.desired());
        let held = |it: &&PublishedVariant| {
            decision(it).is_some_and(|decision: Decision| decision.basis == Basis::Held)
        };
        let saturated = |it: &&PublishedVariant| {
            it.report.as_ref().is_some_and(|report| report.saturated > Replicas::ZERO)
        };
        let sum = |count: &dyn Fn(&PublishedVariant) -> Option<Replicas>| {
            all().filter_map(count).reduce(|a, b| a + b).map(Replicas::count)
        };
        let cost = |count: &dyn Fn(&PublishedVariant) -> Option<Replicas>| {
            let costs = all()
                .filter_map(|it| Some(f64::from(count(it)?.count()) * it.spec.cost.per_hour()));
            costs.reduce(|a, b| a + b)
        };
        Self {
            models: all().map(|it| it.spec.model_key()).collect::<BTreeSet<_>>().len(),
            variants: published.variants.len(),
            held: all().filter(held).count(),
            undecided: all().filter(|it| it.decided.is_none()).count(),
            saturated: all().filter(saturated).count(),
            desired_replicas: sum(&desired),
            current_replicas: sum(&|it| it.observation.current),
            ready_replicas: sum(&|it| it.observation.ready),
            current_unknown: all().filter(|it| it.observation.current.is_none()).count(),
            cost_per_hour: cost(&|it| it.observation.current),
            desired_cost_per_hour: cost(&desired),
        }
    }
}

impl Sources {
    fn of(published: &Published, now: Timestamp) -> Self {
        let mut sources = Self {
            replicas_fresh: 0,
            replicas_stale: 0,
            replicas_never: 0,
            oldest_page_age_seconds: None,
            unlisted: 0,
            oldest_list_age_seconds: None,
            scale_unknown: 0,
        };
        let older = |known: Option<f64>, age: Seconds| {
            Some(known.map_or(age.seconds(), |known| known.max(age.seconds())))
        };
        for PublishedVariant { observation, .. } in published.variants.values() {
            for replica in &observation.replicas {
                match replica.freshness {
                    Freshness::Fresh { age } => {
                        sources.replicas_fresh += 1;
                        sources.oldest_page_age_seconds =
                            older(sources.oldest_page_age_seconds, age);
                    }
                    Freshness::Stale { .. } => sources.replicas_stale += 1,
                    Freshness::Never { .. } => sources.replicas_never += 1,
                }
            }
            match observation.listed_at {
                Some(at) => {
                    let age = Seconds::from_span(now.duration_since(at)).unwrap_or_default();
                    sources.oldest_list_age_seconds = older(sources.oldest_list_age_seconds, age);
                }
                None => sources.unlisted += 1,
            }
            sources.scale_unknown += usize::from(observation.scale_unknown.is_some());
        }
        sources
    }
}
