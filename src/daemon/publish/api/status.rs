//! The health of the daemon and its fleet in a single document, as JSON.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::api::attention::{self, Attention};
use crate::publish::api::context::ResponseContext;
use crate::publish::api::vitals::{ApiServiceVitals, ConfigInForce, ElectionStatus, Vitals};
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::Basis;
use plimsoll_core::observe::Freshness;
use plimsoll_core::units::{Replicas, Seconds};

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
    tick: Option<TickStatus>,
    /// Time between ticks, in seconds.
    tick_interval_seconds: f64,
    /// Whether every readiness check passes, as `/readyz` answers.
    ready: bool,
    /// Every readiness check.
    checks: Vec<Check>,
    /// The configuration in effect.
    config: Config,
    /// The fleet as a whole.
    fleet: Fleet,
    /// The sources of the data.
    sources: Sources,
    /// The registration of the metrics API; null where it is not watched.
    api_service: Option<ApiService>,
    /// The election among the replicas of Plimsoll; null without leader election.
    leader: Option<Leader>,
    /// Causes that need a person, the most urgent first; empty if nothing does.
    attention: Vec<Attention>,
}

/// The election among the replicas of Plimsoll.
#[derive(Serialize, JsonSchema)]
struct Leader {
    /// The replica that holds the Lease, as last read; null if none is known.
    holder: Option<String>,
    /// The replica that answers.
    answered_by: String,
    /// True if the replica that answers leads.
    leads: bool,
}

/// The last tick of the decision loop.
#[derive(Serialize, JsonSchema)]
struct TickStatus {
    /// Number of the tick; on a replica that does not lead, of the leader's tick that it shows.
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
    /// The problem; null if it passes.
    problem: Option<String>,
}

/// The configuration in effect.
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
    /// Whether the configuration was accepted; if not, the last good one is in effect.
    accepted: bool,
    /// Problems of the configuration, one a line; null when it was accepted.
    problem: Option<String>,
}

/// The fleet as a whole.
#[derive(Serialize, JsonSchema)]
struct Fleet {
    /// Models, each counted once in a namespace.
    models: usize,
    /// Variants.
    variants: usize,
    /// Variants whose desired replicas are held from an earlier tick.
    held: usize,
    /// Variants without a number.
    undecided: usize,
    /// Variants with at least one saturated replica.
    saturated: usize,
    /// Replicas that all variants with a number should have; null when none has one.
    desired_replicas: Option<u32>,
    /// Replicas that exist, of the variants for which that is known; null if it is known for none.
    current_replicas: Option<u32>,
    /// Replicas that are ready, of the variants for which that is known; null if it is known for
    /// none.
    ready_replicas: Option<u32>,
    /// Variants with an unknown number of replicas.
    current_unknown: usize,
    /// Cost of the current replicas per hour, in the configuration's currency; null if no count is
    /// known.
    cost_per_hour: Option<f64>,
    /// Cost of the desired replicas per hour; null if no variant has a number.
    desired_cost_per_hour: Option<f64>,
}

/// The sources of the data.
#[derive(Serialize, JsonSchema)]
struct Sources {
    /// Replicas with fresh data.
    replicas_fresh: usize,
    /// Replicas whose last data is too old.
    replicas_stale: usize,
    /// Replicas that have never reported.
    replicas_never: usize,
    /// Age of the oldest data in use at the last tick, in seconds; null if there is none.
    oldest_page_age_seconds: Option<f64>,
    /// Variants outside of Kubernetes whose replicas have not been listed yet.
    unlisted: usize,
    /// Age of the oldest list of replicas, in seconds; null if there is none.
    oldest_list_age_seconds: Option<f64>,
    /// Variants with an unknown state of their scale target.
    scale_unknown: usize,
}

/// The registration of the metrics API with its cluster.
#[derive(Serialize, JsonSchema)]
struct ApiService {
    /// `ours`, `absent`, `foreign_service`, `foreign_ca_bundle`, `unavailable`, or `unknown` before
    /// the first answer of the cluster.
    state: &'static str,
    /// The problem, as a sentence; null in the state `ours`.
    problem: Option<String>,
}

impl Status {
    pub(crate) fn new(asked: &ResponseContext<'_>, vitals: Vitals) -> Self {
        let attention = attention::items(asked, &vitals);
        let Vitals { version, started, tick_interval, checks, config, api_service, election } =
            vitals;
        let ConfigInForce {
            file,
            hash,
            loaded: (loaded_at, loaded),
            last_reload,
            refused_since: _,
        } = config;
        let shown: Vec<_> = checks
            .into_iter()
            .map(|(name, it)| Check { name, ok: it.is_ok(), problem: it.err() })
            .collect();

        Self {
            version,
            now: asked.now.to_string(),
            uptime_seconds: asked.seconds_since(started),
            tick: asked.history.last_tick().map(|tick| TickStatus {
                generation: tick.generation,
                at: tick.at.to_string(),
                age_seconds: asked.seconds_since(tick.elapsed),
            }),
            tick_interval_seconds: tick_interval.as_secs_f64(),
            ready: shown.iter().all(|check| check.ok),
            checks: shown,
            config: Config {
                file,
                hash,
                loaded_at: loaded_at.to_string(),
                loaded_age_seconds: asked.seconds_since(loaded),
                last_reload: last_reload.map(|(at, outcome)| Reload {
                    at: at.to_string(),
                    accepted: outcome.is_ok(),
                    problem: outcome.err(),
                }),
            },
            fleet: Fleet::of(asked.published),
            sources: Sources::of(asked.published, asked.now),
            api_service: api_service
                .map(|ApiServiceVitals { name: _, state, problem }| ApiService { state, problem }),
            leader: election.map(|ElectionStatus { holder, identity, leads }| Leader {
                holder,
                answered_by: identity,
                leads,
            }),
            attention,
        }
    }
}

impl Fleet {
    fn of(published: &Published) -> Self {
        let variants: Vec<_> = published.variants.values().collect();
        let models: BTreeSet<_> = variants.iter().map(|it| it.spec.model_key()).collect();

        Self {
            models: models.len(),
            variants: variants.len(),
            held: variants.iter().filter(|it| is_held(it)).count(),
            undecided: variants.iter().filter(|it| it.decided.is_none()).count(),
            saturated: variants.iter().filter(|it| is_saturated(it)).count(),
            desired_replicas: sum(&variants, desired),
            current_replicas: sum(&variants, |it| it.observation.current),
            ready_replicas: sum(&variants, |it| it.observation.ready),
            current_unknown: variants.iter().filter(|it| it.observation.current.is_none()).count(),
            cost_per_hour: cost(&variants, |it| it.observation.current),
            desired_cost_per_hour: cost(&variants, desired),
        }
    }
}

fn is_held(variant: &PublishedVariant) -> bool {
    variant.decided.as_ref().is_some_and(|it| it.decision.basis == Basis::Held)
}

fn is_saturated(variant: &PublishedVariant) -> bool {
    variant.report.as_ref().is_some_and(|it| it.saturated > Replicas::ZERO)
}

fn desired(variant: &PublishedVariant) -> Option<Replicas> {
    variant.decided.as_ref().map(|it| it.decision.desired())
}

/// Returns the sum over the variants with a count; `None` if there are none.
fn sum(
    variants: &[&PublishedVariant],
    count: fn(&PublishedVariant) -> Option<Replicas>,
) -> Option<u32> {
    variants.iter().filter_map(|it| count(it)).reduce(|a, b| a + b).map(Replicas::count)
}

/// Returns the cost per hour of the variants with a count; `None` if there are none.
fn cost(
    variants: &[&PublishedVariant],
    count: fn(&PublishedVariant) -> Option<Replicas>,
) -> Option<f64> {
    variants
        .iter()
        .filter_map(|it| Some(f64::from(count(it)?.count()) * it.spec.cost.per_hour()))
        .reduce(|a, b| a + b)
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

        for PublishedVariant { observation, .. } in published.variants.values() {
            for replica in &observation.replicas {
                match replica.freshness {
                    Freshness::Fresh { age } => {
                        sources.replicas_fresh += 1;
                        raise(&mut sources.oldest_page_age_seconds, age);
                    }
                    Freshness::Stale { .. } => sources.replicas_stale += 1,
                    Freshness::Never { .. } => sources.replicas_never += 1,
                }
            }

            match observation.listed_at {
                Some(at) => {
                    let age = Seconds::between(at, now);
                    raise(&mut sources.oldest_list_age_seconds, age);
                }
                None => sources.unlisted += 1,
            }

            sources.scale_unknown += usize::from(observation.scale_unknown.is_some());
        }

        sources
    }
}

/// Keeps the older of two ages.
fn raise(oldest: &mut Option<f64>, age: Seconds) {
    *oldest = Some(oldest.map_or(age.seconds(), |known| known.max(age.seconds())));
}
