//! Every variant in one line, as JSON, for lists of large fleets.
//!
//! No field is an age or a clock, except `now` and `generation`. So the answer stays the same while
//! nothing changes, and a reader that has it gets 304.

use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::PublishedVariant;
use crate::publish::api::context::ResponseContext;
use crate::publish::api::query::VariantFilter;
use crate::publish::attention::{self, AttentionCause};
use crate::publish::balance::{Balances, CapacityBalance, balances};
use crate::publish::explain::{OverrideLine, missing_data};
use crate::publish::explanation::autoscaler::Reaction;
use crate::publish::history::DesiredBasis;
use crate::publish::load::ObservedLoad;
use plimsoll_core::decide::{Decision, Step};
use plimsoll_core::fleet::{Accelerator, VariantKey};
use plimsoll_core::units::{Fraction, Replicas, RequestRate, Requests};

/// Returns the reaction of a variant's autoscaler to these desired replicas; `None` if no cluster is
/// watched.
type ReactionHook<'a> = dyn Fn(&VariantKey, Option<Replicas>) -> Option<Reaction> + 'a;

/// Every variant in one line.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Summary")]
pub(crate) struct FleetSummary<'a> {
    /// Number of the tick.
    generation: u64,
    /// The replica of Plimsoll that decided; null without leader election, or before a decision.
    decided_by: Option<&'a str>,
    /// The daemon's clock when it answered.
    now: String,
    /// Every variant, with desired replicas or without, in the order of their names.
    variants: Vec<VariantSummary<'a>>,
}

/// One variant in one line.
#[derive(Serialize, JsonSchema)]
struct VariantSummary<'a> {
    /// The namespace.
    namespace: &'a str,
    /// The variant's name, unique in its namespace.
    variant: &'a str,
    /// The model that it serves.
    model: &'a str,
    /// The kind of its accelerators; null if unknown.
    accelerator: Option<&'a str>,
    /// Its role: `both`, `prefill` or `decode`.
    role: &'static str,
    /// Desired replicas; null without a decision.
    desired: Option<u32>,
    /// Replicas that exist, ready or not; null if unknown.
    current: Option<u32>,
    /// Replicas that are ready; without an orchestrator, responding replicas; null if unknown.
    ready: Option<u32>,
    /// Replicas that exist or are asked for, and are not ready yet or have never reported; null if
    /// unknown.
    pending: Option<u32>,
    /// The lower bound that holds, in replicas.
    min: u32,
    /// The upper bound that holds, in replicas; null without a limit.
    max: Option<u32>,
    /// `fresh` if it was decided on fresh data, `held` if the last decision stays within bounds
    /// and pins, usually because data is missing, `none` without a decision.
    basis: &'static str,
    /// The binding step in at most 80 characters; without a decision, why there is none.
    headline: String,
    /// Causes that need a person, by their names in `attention` of the status; empty without any.
    attention: Vec<&'static str>,
    /// Replicas that are listed.
    replicas: usize,
    /// Replicas whose data is too old, and those without any beyond the pending ones.
    silent: usize,
    /// Replicas at or above a saturation threshold; null if unknown.
    saturated: Option<u32>,
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
    /// Need against capacity of its model and role; null without a forecast.
    balance: Option<BalanceLine>,
    /// Cost of the current replicas per hour, in the configuration's currency; null if their number
    /// is unknown.
    cost_per_hour: Option<f64>,
    /// The pin or pause in effect; null without one.
    #[serde(rename = "override")]
    overridden: Option<OverrideLine>,
    /// Reaction of its autoscaler, as `reaction` of an explanation; null if no cluster is watched.
    #[schemars(with = "Option<String>")]
    autoscaler: Option<Reaction>,
}

/// Need against capacity of one model and role, over all its variants, in requests per second.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Balance")]
pub(crate) struct BalanceLine {
    /// Requests that arrive now.
    arriving_per_second: f64,
    /// Arrivals that are forecast for the end of the horizon.
    forecast_per_second: f64,
    /// Capacity that the forecast requires.
    need_per_second: f64,
    /// The highest need that is held, which `foresight` compares with the capacity.
    held_per_second: f64,
    /// Start-up time plus reaction time, in seconds, at most 3600.
    horizon_seconds: f64,
    /// Capacity of the replicas that serve; null if unknown.
    capacity_per_second: Option<f64>,
    /// The same once pending replicas serve, without stuck ones; null if unknown.
    capacity_pending_per_second: Option<f64>,
    /// Capacity at the maximum of each variant, without stuck replicas; null if unknown or without
    /// a maximum.
    capacity_maximum_per_second: Option<f64>,
}

impl<'a> FleetSummary<'a> {
    /// Creates the document for the variants that match the filter.
    pub(crate) fn new(
        asked: &'a ResponseContext<'_>,
        filter: &VariantFilter,
        reaction: &ReactionHook<'_>,
    ) -> Self {
        let published = asked.published;
        let balances = balances(published);
        let variants = published
            .variants
            .values()
            .filter(|it| filter.wants(&it.spec.key, &it.spec.model))
            .map(|it| line(asked, it, &balances, reaction))
            .collect();

        Self {
            generation: published.generation,
            decided_by: published.decided_by.as_deref(),
            now: asked.now.to_string(),
            variants,
        }
    }

    /// The parts that change only when something changes.
    ///
    /// # Errors
    ///
    /// None in practice, because every value has a JSON representation.
    pub(crate) fn content(&self) -> serde_json::Result<String> {
        serde_json::to_string(&(self.decided_by, &self.variants))
    }
}

fn line<'a>(
    asked: &ResponseContext<'_>,
    variant: &'a PublishedVariant,
    balances: &Balances,
    reaction: &ReactionHook<'_>,
) -> VariantSummary<'a> {
    let PublishedVariant { spec, observation, report, decided, undecided: _ } = variant;
    let decision = decided.as_ref().map(|decided| &decided.decision);
    let desired = decision.map(Decision::desired);
    let headline = decision.and_then(Decision::because).map(Step::headline);
    let load = ObservedLoad::of(&observation.replicas);
    let mut causes = attention::causes(asked.published, variant);
    causes.extend(asked.expired(variant).map(|_| AttentionCause::Expired));

    VariantSummary {
        namespace: spec.key.namespace.as_str(),
        variant: spec.key.variant.as_str(),
        model: spec.model.as_str(),
        accelerator: spec.accelerator.as_ref().map(Accelerator::as_str),
        role: spec.role.label(),
        desired: desired.map(Replicas::count),
        current: observation.current.map(Replicas::count),
        ready: observation.ready.map(Replicas::count),
        pending: observation.current.map(|_| observation.pending.count()),
        min: variant.bounds().min().count(),
        max: variant.bounds().max().map(Replicas::count),
        basis: DesiredBasis::of(variant).label(),
        headline: headline.unwrap_or_else(|| missing_data(variant)),
        attention: causes.into_iter().map(AttentionCause::label).collect(),
        replicas: observation.replicas.len(),
        silent: attention::silent(variant),
        saturated: report.as_ref().map(|report| report.saturated.count()),
        saturation: report.as_ref().map(|report| report.saturation.fraction()),
        kv_cache_usage: load.kv_usage.map(Fraction::fraction),
        waiting: load.waiting.map(Requests::requests),
        running: load.running.map(Requests::requests),
        arrivals_per_second: load.arrivals.map(RequestRate::requests_per_second),
        balance: balances.get(&(spec.model_key(), spec.role)).map(BalanceLine::new),
        cost_per_hour: observation.current.map(|it| f64::from(it.count()) * spec.cost.per_hour()),
        overridden: decision.and_then(Decision::overridden).map(OverrideLine::new),
        autoscaler: reaction(&spec.key, desired),
    }
}

impl BalanceLine {
    fn new(balance: &CapacityBalance) -> Self {
        let CapacityBalance { arriving, forecast, need, held, horizon, .. } = *balance;
        Self {
            arriving_per_second: arriving,
            forecast_per_second: forecast,
            need_per_second: need,
            held_per_second: held,
            horizon_seconds: horizon,
            capacity_per_second: balance.ready,
            capacity_pending_per_second: balance.with_pending,
            capacity_maximum_per_second: balance.at_maximum,
        }
    }
}
