//! The last hour of one variant and the events of the fleet, as JSON.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::api::context::ResponseContext;
use crate::publish::api::query::VariantFilter;
use crate::publish::history::sample::LoadSample;
use crate::publish::history::{self, ReplicaLevel, VariantTrack};
use plimsoll_core::fleet::{ModelName, VariantKey};
use plimsoll_core::units::Replicas;

/// The last hour of one variant.
#[derive(Serialize, JsonSchema)]
pub(crate) struct History<'a> {
    /// The namespace.
    namespace: &'a str,
    /// The variant's name.
    variant: &'a str,
    /// The model that it serves.
    model: &'a str,
    /// The daemon's clock when it answered.
    now: String,
    /// How far back the history goes, in seconds.
    kept_seconds: u64,
    /// The least time between two entries of `load`, in seconds.
    sample_interval_seconds: u64,
    /// How long ago the history of this variant begins, in seconds; before that not all is known.
    since_age_seconds: f64,
    /// How long ago the last tick was, in seconds; null before the first.
    tick_age_seconds: Option<f64>,
    /// Replica counts and verdict at each change, the oldest first; an entry holds until the next,
    /// and the last until the last tick.
    replicas: Vec<LevelLine>,
    /// Samples of the load, the oldest first.
    load: Vec<SampleLine>,
}

/// The replica counts of a variant from one instant until the next entry.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Level")]
struct LevelLine {
    /// Since when, by the daemon's present clock; where that was set since, it differs from the
    /// log.
    at: String,
    /// The same, as an age in seconds.
    age_seconds: f64,
    /// Replicas that the variant should have; null when there was no number.
    desired: Option<u32>,
    /// Replicas that the analysis alone asks for, or that are held; null when there was no number.
    unconstrained: Option<u32>,
    /// Replicas that exist, ready or not; null if unknown.
    current: Option<u32>,
    /// Replicas that are ready; null if unknown.
    ready: Option<u32>,
    /// Replicas that are not ready yet, or have never reported; null if unknown.
    pending: Option<u32>,
    /// `fresh`, `held` or `none`, as `basis` of a decision; `silent` while the daemon did not
    /// decide.
    basis: &'static str,
}

/// The load of a variant at one instant.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Load")]
struct SampleLine {
    /// When, by the daemon's present clock.
    at: String,
    /// The same, as an age in seconds.
    age_seconds: f64,
    /// Nearness of the replicas to saturation; 1 is the threshold; null if unknown.
    saturation: Option<f64>,
    /// Mean KV cache usage of the replicas with fresh data over the window, as a share of the
    /// cache; null if unknown.
    kv_cache_usage: Option<f64>,
    /// Requests waiting on the replicas with fresh data; null if unknown.
    waiting: Option<f64>,
    /// Requests running on the replicas with fresh data; null if unknown.
    running: Option<f64>,
    /// Requests per second that arrive at the replicas with fresh data, over the window; null if
    /// unknown.
    arrivals_per_second: Option<f64>,
    /// Arrivals of its model and role that are forecast for the end of the horizon, in requests per
    /// second; null without a forecast.
    forecast_per_second: Option<f64>,
    /// The need of its model and role, in requests per second; null without a forecast.
    need_per_second: Option<f64>,
    /// The highest need that is held, which `foresight` compares with the capacity; null without a
    /// forecast.
    held_per_second: Option<f64>,
    /// Capacity of the replicas that serve its model and role, in requests per second; null if
    /// unknown.
    capacity_per_second: Option<f64>,
    /// The same once pending replicas serve, without stuck ones; null if unknown.
    capacity_pending_per_second: Option<f64>,
    /// The same at the maximum of each variant, without stuck replicas; null if unknown or without
    /// a maximum.
    capacity_maximum_per_second: Option<f64>,
}

/// Events of all variants.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Events {
    /// The daemon's clock when it answered.
    now: String,
    /// The newest first.
    events: Vec<Event>,
}

/// One thing that has happened to a variant.
#[derive(Serialize, JsonSchema)]
struct Event {
    /// Counts the events since the daemon started.
    number: u64,
    /// When the tick was in which it happened.
    at: String,
    /// The same, as an age in seconds.
    age_seconds: f64,
    /// `desired` if desired replicas changed, `held` if they are held from now on, `released` if
    /// they are decided on fresh data again, `removed` if the variant is gone.
    change: &'static str,
    /// The namespace.
    namespace: String,
    /// The variant's name.
    variant: String,
    /// The model that it serves.
    model: String,
    /// Replicas before; null if there were no desired replicas.
    before: Option<u32>,
    /// Replicas after; null if there are no desired replicas.
    after: Option<u32>,
    /// Replicas that exist, ready or not; null if unknown.
    current: Option<u32>,
    /// The stage of the step that explains the decision best; null without a decision.
    stage: Option<&'static str>,
    /// Its reason, as a word; null without a number.
    reason: Option<&'static str>,
    /// The step that explains the decision best, in at most 80 characters; null without a decision.
    headline: Option<String>,
    /// Its reason, as a sentence; null without a number.
    text: Option<String>,
}

impl<'a> History<'a> {
    pub(crate) fn new(
        asked: &ResponseContext<'_>,
        variant: &'a VariantKey,
        model: &'a ModelName,
        track: &VariantTrack,
    ) -> Self {
        let last = asked.history.last_tick();
        let tick_age = last.map(|tick| asked.elapsed.saturating_sub(tick.elapsed));
        let since = track.since.age(asked.elapsed).min(history::KEPT);

        Self {
            namespace: variant.namespace.as_str(),
            variant: variant.variant.as_str(),
            model: model.as_str(),
            now: asked.now.to_string(),
            kept_seconds: history::KEPT.as_secs(),
            sample_interval_seconds: history::SAMPLE_INTERVAL.as_secs(),
            since_age_seconds: since.as_secs_f64(),
            tick_age_seconds: tick_age.map(|age| age.as_secs_f64()),
            replicas: track.levels.iter().map(|level| level_line(asked, level)).collect(),
            load: track.samples.iter().map(|sample| sample_line(asked, sample)).collect(),
        }
    }
}

fn level_line(asked: &ResponseContext<'_>, level: &ReplicaLevel) -> LevelLine {
    let age = level.age(asked.elapsed);

    LevelLine {
        at: ago(asked.now, age),
        age_seconds: age.as_secs_f64(),
        desired: level.desired(),
        unconstrained: level.unconstrained(),
        current: level.current(),
        ready: level.ready(),
        pending: level.pending(),
        basis: level.verdict.label(),
    }
}

fn sample_line(asked: &ResponseContext<'_>, sample: &LoadSample) -> SampleLine {
    let age = sample.age(asked.elapsed);

    SampleLine {
        at: ago(asked.now, age),
        age_seconds: age.as_secs_f64(),
        saturation: sample.saturation(),
        kv_cache_usage: sample.kv_usage(),
        waiting: sample.waiting(),
        running: sample.running(),
        arrivals_per_second: sample.arrivals(),
        forecast_per_second: sample.forecast(),
        need_per_second: sample.need(),
        held_per_second: sample.held(),
        capacity_per_second: sample.capacity(),
        capacity_pending_per_second: sample.capacity_pending(),
        capacity_maximum_per_second: sample.capacity_maximum(),
    }
}

/// Returns the instant that is `age` before `now`, rounded down to a millisecond, the resolution of
/// ages.
fn ago(now: Timestamp, age: Duration) -> String {
    let earlier = SignedDuration::try_from(age).ok().and_then(|age| now.checked_sub(age).ok());
    let at = earlier.unwrap_or(now);
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at).to_string()
}

impl Events {
    /// The parts that change only when something happens: the numbers and times of the events.
    pub(crate) fn content(&self) -> Vec<(u64, &str)> {
        self.events.iter().map(|event| (event.number, event.at.as_str())).collect()
    }

    pub(crate) fn new(asked: &ResponseContext<'_>, filter: &VariantFilter, limit: usize) -> Self {
        let events = asked
            .history
            .events(limit, |event| filter.wants(&event.variant, &event.model))
            .into_iter()
            .map(|event| line(asked, event))
            .collect();
        Self { now: asked.now.to_string(), events }
    }
}

fn line(asked: &ResponseContext<'_>, event: history::PastEvent) -> Event {
    let history::PastEvent {
        number,
        at,
        elapsed,
        change,
        variant,
        model,
        before,
        after,
        current,
        because,
    } = event;
    let (stage, reason) = because.as_ref().map(|it| (it.stage, it.reason)).unzip();
    let (headline, text) = because.map(|it| (it.headline, it.text)).unzip();

    Event {
        number,
        at: at.to_string(),
        age_seconds: asked.seconds_since(elapsed),
        change: change.label(),
        namespace: variant.namespace.to_string(),
        variant: variant.variant.to_string(),
        model: model.to_string(),
        before: before.map(Replicas::count),
        after: after.map(Replicas::count),
        current: current.map(Replicas::count),
        stage,
        reason,
        headline,
        text,
    }
}
