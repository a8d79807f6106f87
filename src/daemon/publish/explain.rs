//! Every decision and the steps that led to it, as JSON.
//!
//! # Shape
//!
//! ```json
//! {"generation":812,"decided_by":null,"now":"2026-11-21T09:30:00.4Z","models":[{"namespace":"shop",
//!   "model":"meta/llama","role":"both","spare_kv":0.045,"trigger_kv":0.1,…}],"variants":[{
//!   "namespace":"shop","variant":"llama-l4","model":"meta/llama","accelerator":"L4","role":"both",
//!   "desired":3,"unconstrained":3,"current":2,"ready":2,"pending":0,"min":1,"max":8,
//!   "basis":"fresh","at":"2026-11-21T09:30:00Z","age_seconds":0.4,
//!   "because":"analyze: 2 -> 3, KV spare low (0.045 < 0.100)",
//!   "headline":"Scale up 2 -> 3: low headroom: KV 4.5% < 10%",
//!   "steps":[{"stage":"analyze","before":2,"after":3,"reason":"spare_low",
//!             "headline":"Scale up 2 -> 3: low headroom: KV 4.5% < 10%",
//!             "facts":[{"name":"kv_spare","value":0.045,"unit":"ratio","text":null},…],
//!             "text":"KV spare low …","ranking":[],"foreseen":null,"carries":null,"slowest":null}],
//!   "replicas":[{"replica":"llama-l4-0","freshness":"fresh","age_seconds":0.4,
//!                "failure":null,"failure_detail":null,"kv_cache_usage":0.75,"waiting":1,"running":9}]}]}
//! ```
//!
//! `docs/api.md` documents each field with the text of its doc comment, word for word.

mod foresight;
mod pool;
mod rank;

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::api::context::ResponseContext;
use crate::publish::api::query::VariantFilter;
use crate::publish::explain::foresight::{CarriesLine, ForeseenLine, SlowestLine};
use crate::publish::explain::pool::Pool;
use crate::publish::explain::rank::{RankedOption, options};
use crate::publish::history::DesiredBasis;
use crate::publish::load::ObservedLoad;
use crate::publish::{Published, PublishedVariant, ShadowResult};
use plimsoll_core::decide::limited::LimitedReason;
use plimsoll_core::decide::reason::{FactValue, ReasonFact};
use plimsoll_core::decide::sized::SizingValues;
use plimsoll_core::decide::workload::EngineReport;
use plimsoll_core::decide::{Decision, ModelReport, Reason, ReasonCode, Step};
use plimsoll_core::fleet::{Accelerator, ModelKey, ReplicaKey, Role, VariantKey};
use plimsoll_core::observe::overrides::{Order, Override};
use plimsoll_core::observe::{Freshness, ReplicaObservation, ScrapeFailure};
use plimsoll_core::units::{Fraction, Replicas, RequestRate, Requests, Seconds};

/// All desired replicas and the steps that led to them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Decisions<'a> {
    /// Number of the tick.
    generation: u64,
    /// The replica of Plimsoll that decided; null without leader election, or before a decision.
    decided_by: Option<&'a str>,
    /// The daemon's clock when it answered.
    now: String,
    /// Every model and role that the analysis had fresh data of, in the order of their names.
    models: Vec<Model<'a>>,
    /// Every variant, with a number or without, in the order of their names.
    variants: Vec<Variant<'a>>,
}

/// What the analysis found of one model's variants of one role.
#[derive(Serialize, JsonSchema)]
struct Model<'a> {
    /// The namespace.
    namespace: &'a str,
    /// The model's name in its engines.
    model: &'a str,
    /// The part of a request that these variants serve: `both`, `prefill` or `decode`.
    role: &'static str,
    /// KV cache usage from which a replica is saturated, as a share of the whole.
    threshold_kv: f64,
    /// Waiting requests from which a replica is saturated.
    threshold_queue: f64,
    /// Mean spare KV cache of the replicas that are not saturated, as a share of the whole.
    spare_kv: f64,
    /// Spare KV cache below which saturation scales up, as a share of the whole.
    trigger_kv: f64,
    /// Spare KV cache that is missing up to the trigger; 0 if there is enough.
    required_kv: f64,
    /// Mean spare queue of the replicas that are not saturated, in requests.
    spare_queue: f64,
    /// Spare queue below which saturation scales up, in requests.
    trigger_queue: f64,
    /// Spare queue that is missing up to the trigger, in requests; 0 if there is enough.
    required_queue: f64,
    /// Reason why the model waits with its next decision, as a sentence; null if it does not wait.
    waits_for: Option<String>,
}

/// One variant: its number, what made it, and what it is held against.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Variant<'a> {
    /// The namespace.
    namespace: &'a str,
    /// The variant's name, unique in its namespace.
    variant: &'a str,
    /// The model that it serves.
    model: &'a str,
    /// The kind of its accelerators; null if unknown.
    accelerator: Option<&'a str>,
    /// Accelerators that one replica counts with, all its pods together; null before a tick.
    accelerators_per_replica: Option<u32>,
    /// Source of that count: `declared` in the configuration or an annotation, `template` of the
    /// pods that its scale target makes, `pods` that were seen, or `assumed`, and then it is 1; null
    /// before a tick.
    accelerators_said_by: Option<&'static str>,
    /// Arguments of its engine in its pod template; null without a template.
    engine: Option<Engine>,
    /// Its role: `both`, `prefill` or `decode`.
    role: &'static str,
    /// Desired replicas; null without a decision.
    desired: Option<u32>,
    /// Replicas that the analysis requests, or that are held, before guards, windows and step
    /// limits; capacity plans keep within bounds; null without a decision.
    unconstrained: Option<u32>,
    /// Replicas that exist, ready or not; null if unknown.
    current: Option<u32>,
    /// Ready replicas; without an orchestrator, responding replicas; null if unknown.
    ready: Option<u32>,
    /// Replicas that exist or are asked for, and are not ready yet or have never reported; null if
    /// unknown.
    pending: Option<u32>,
    /// Pending replicas that take too long to start, and no longer count as supply; null if
    /// unknown.
    stuck: Option<u32>,
    /// Pending replicas for which no node has room; null if unknown.
    unschedulable: Option<u32>,
    /// Seconds from the creation of a replica until it serves, the median of the starts that were
    /// seen; null while there was none.
    startup_p50_seconds: Option<f64>,
    /// The same, and nine of ten starts did not take longer.
    startup_p90_seconds: Option<f64>,
    /// The lower bound that holds, in replicas.
    min: u32,
    /// The upper bound that holds, in replicas; null without a limit.
    max: Option<u32>,
    /// `fresh` if it was decided on fresh data, `held` if the last decision stays within bounds
    /// and pins, usually because data is missing, `none` without a decision.
    basis: &'static str,
    /// Time of the data behind the decision; null without a decision.
    at: Option<String>,
    /// Age of the data behind the decision, in seconds; null without a decision.
    age_seconds: Option<f64>,
    /// The step that explains the decision best; without a decision, why there is none.
    because: String,
    /// The same in at most 80 characters; null without a decision.
    headline: Option<String>,
    /// The steps of the decision, in their order; empty without a decision.
    steps: Vec<StepLine>,
    /// Nearness of the replicas to saturation; 1 is the threshold; null if unknown.
    saturation: Option<f64>,
    /// Replicas at or above a saturation threshold; null if unknown.
    saturated: Option<u32>,
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
    /// Requests per second that its serving replicas can take in time, queues worked off first;
    /// null while `foresight` does not know.
    admissible_per_second: Option<f64>,
    /// The same of its model: the rate that a gateway may admit; null if unknown.
    model_admissible_per_second: Option<f64>,
    /// Cost of one replica per hour, in the configuration's currency.
    cost_per_replica_hour: f64,
    /// Cost of the current replicas per hour, in the configuration's currency; null if their number
    /// is unknown.
    cost_per_hour: Option<f64>,
    /// Age of the oldest data of the replicas with known load at the tick, in seconds; null if
    /// there is none.
    data_age_seconds: Option<f64>,
    /// Why the state of the scale target is unknown; null if it is known, or without a target.
    scale_problem: Option<String>,
    /// Every listed replica, in the order of their names.
    replicas: Vec<Replica<'a>>,
    /// The needs and placement of its adapters; null if the variant is not a pool, or without fresh
    /// data.
    pool: Option<Pool<'a>>,
    /// The pin or pause in effect; null without one.
    #[serde(rename = "override")]
    overridden: Option<OverrideLine>,
    /// Results of the policies in `shadow`, in the order of their names; empty without
    /// such policies.
    shadows: Vec<Shadow<'a>>,
    /// Problems that keep its HPA or `ScaledObject` from following, as sentences; empty without
    /// any, or if unknown.
    scaler_problems: &'a [String],
}

/// A pin or a pause of a variant.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Override")]
pub(crate) struct OverrideLine {
    /// `pin` or `pause`.
    kind: &'static str,
    /// The replicas that were asked for; null of a pause.
    replicas: Option<u32>,
    /// When it ends.
    until: String,
    /// Its source: `annotation` or `api`.
    by: String,
}

/// The decision of a shadow policy for a variant.
#[derive(Serialize, JsonSchema)]
struct Shadow<'a> {
    /// The policy's name.
    policy: &'a str,
    /// Replicas that it would ask for; null while it has no number.
    desired: Option<u32>,
    /// The step that explains it best; without a decision, why there is none.
    because: &'a str,
}

/// How a variant's engine is started.
#[derive(Serialize, JsonSchema)]
struct Engine {
    /// `read` when its arguments are known, `no_engine` when no container names one, `elsewhere`
    /// when some of its settings are known only inside the container, `contradicted` when the
    /// engine reports another size of the KV cache.
    arguments: &'static str,
    /// The same as a sentence, with the arguments that limit the capacity of a replica.
    text: String,
}

/// One link of the chain that made a number.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Step")]
struct StepLine {
    /// The stage: `analyze`, `share`, `bridge`, `pool`, `hold`, `guard`, `stabilize`, `dwell`,
    /// `flap_budget`, `panic`, `step_limit`, `zero`, `override`, `bounds`, `limit` or `check`.
    stage: &'static str,
    /// Replicas before it.
    before: u32,
    /// Replicas after it; after the last step, this is `desired`.
    after: u32,
    /// The code of the reason; the same as the label `reason` in the metrics.
    #[schemars(extend("enum" = codes()))]
    reason: &'static str,
    /// The step in at most 80 characters.
    headline: String,
    /// The values that the reason states. Each has another name, except that `absent` is there for
    /// each analyzer without a result.
    facts: Vec<FactLine>,
    /// Why, as a sentence with the numbers that were compared.
    text: String,
    /// The next step for a person, as a sentence; null if nothing needs to be done.
    remedy: Option<&'static str>,
    /// How the variants of the model were ranked by their price, round by round; empty where they
    /// were not.
    ranking: Vec<RankedOption>,
    /// Forecast for the variant's role; null if `foresight` has no result, and in steps other than
    /// that of the analyzers.
    foreseen: Option<ForeseenLine>,
    /// Capacity of one replica of the variant; null while `foresight` does not know it, and in steps
    /// other than that of the analyzers.
    carries: Option<CarriesLine>,
    /// The slowest replica of the variant; null while `foresight` has too few lessons or replicas
    /// to compare, and in steps other than that of the analyzers.
    slowest: Option<SlowestLine>,
}

/// Returns the codes of all reasons.
fn codes() -> Vec<&'static str> {
    ReasonCode::ALL.iter().map(|code| code.label()).collect()
}

/// A value that a reason states.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Fact")]
struct FactLine {
    /// The name.
    name: &'static str,
    /// The value; null for a text.
    value: Option<f64>,
    /// The unit of the value, such as `s`, `replicas`, `requests/s`, `KV tokens` or `ratio`; null
    /// for a text, and for a count of events or of copies to move.
    unit: Option<&'static str>,
    /// The text, such as the name of a variant; null of a number.
    text: Option<String>,
}

/// One replica and how recent its data is.
#[derive(Serialize, JsonSchema)]
struct Replica<'a> {
    /// The replica: a pod's name, or the address of a target.
    replica: &'a str,
    /// `fresh` if its data is recent, `stale` if it is not, `never` without any.
    freshness: &'static str,
    /// Age of its last data at the tick, in seconds; null without any.
    age_seconds: Option<f64>,
    /// The class of the last failed scrape; null while the data is fresh, or without a failure
    /// since.
    failure: Option<&'static str>,
    /// Details of the last scrape's failure; null if it succeeded.
    failure_detail: Option<&'a str>,
    /// KV cache in use, as a share of the whole; null if the replica does not report it.
    kv_cache_usage: Option<f64>,
    /// Requests waiting; null if the replica does not report it.
    waiting: Option<f64>,
    /// Requests running; null if the replica does not report it.
    running: Option<f64>,
}

/// The exact error of each replica whose last scrape failed.
pub type FailureDetails = BTreeMap<ReplicaKey, String>;

impl<'a> Decisions<'a> {
    /// Creates the document for the variants that match the filter.
    pub(crate) fn new(
        asked: &'a ResponseContext<'_>,
        filter: &VariantFilter,
        details: &'a FailureDetails,
    ) -> Self {
        let published = asked.published;
        let variants: Vec<_> = published
            .variants
            .values()
            .filter(|it| filter.wants(&it.spec.key, &it.spec.model))
            .map(|it| whole_variant(published, it, details, asked.elapsed))
            .collect();

        // If the filter names a variant, its model is still shown.
        let models = published
            .models
            .iter()
            .filter(|((key, _), _)| variants.iter().any(|it| it.serves(key)))
            .map(|((key, role), report)| model(key, *role, report))
            .collect();

        Self {
            generation: published.generation,
            decided_by: published.decided_by.as_deref(),
            now: asked.now.to_string(),
            models,
            variants,
        }
    }
}

impl Variant<'_> {
    fn serves(&self, key: &ModelKey) -> bool {
        self.namespace == key.namespace.as_str() && self.model == key.model.as_str()
    }
}

fn model<'a>(key: &'a ModelKey, role: Role, report: &'a ModelReport) -> Model<'a> {
    let ModelReport { thresholds, spare_kv, spare_queue, required_kv, required_queue, transition } =
        report;

    Model {
        namespace: key.namespace.as_str(),
        model: key.model.as_str(),
        role: role.label(),
        threshold_kv: thresholds.kv_cache.fraction(),
        threshold_queue: thresholds.queue_length.requests(),
        spare_kv: spare_kv.fraction(),
        trigger_kv: thresholds.kv_spare.fraction(),
        required_kv: required_kv.fraction(),
        spare_queue: spare_queue.requests(),
        trigger_queue: thresholds.queue_spare.requests(),
        required_queue: required_queue.requests(),
        waits_for: transition.as_ref().map(ToString::to_string),
    }
}

/// Returns a variant with its pool, its workload and its shadows.
pub(crate) fn whole_variant<'a>(
    published: &'a Published,
    shown: &'a PublishedVariant,
    details: &'a FailureDetails,
    now: Duration,
) -> Variant<'a> {
    let key = &shown.spec.key;
    let workload = published.workloads.get(key);

    Variant {
        pool: published.pools.get(key).map(Pool::new),
        shadows: shadows(published, key),
        scaler_problems: published.findings.get(key).map(Vec::as_slice).unwrap_or_default(),
        accelerators_per_replica: workload.map(|it| it.gpus.count()),
        accelerators_said_by: workload.map(|it| it.said_by.label()),
        engine: workload.and_then(|it| it.engine.as_ref()).map(Engine::new),
        ..variant(shown, details, now)
    }
}

fn variant<'a>(
    published: &'a PublishedVariant,
    details: &'a FailureDetails,
    now: Duration,
) -> Variant<'a> {
    let PublishedVariant { spec, observation, report, decided, undecided: _ } = published;
    let decision = decided.as_ref().map(|decided| &decided.decision);
    let admissible = decision.and_then(|it| it.admissible);
    let because = decision.and_then(Decision::because).map(ToString::to_string);
    let ObservedLoad { kv_usage, waiting, running, arrivals } =
        ObservedLoad::of(&observation.replicas);

    Variant {
        namespace: spec.key.namespace.as_str(),
        variant: spec.key.variant.as_str(),
        model: spec.model.as_str(),
        accelerator: spec.accelerator.as_ref().map(Accelerator::as_str),
        accelerators_per_replica: None,
        accelerators_said_by: None,
        engine: None,
        role: spec.role.label(),
        desired: decision.map(|decision| decision.desired().count()),
        unconstrained: decision.map(|decision| decision.unconstrained().count()),
        current: observation.current.map(Replicas::count),
        ready: observation.ready.map(Replicas::count),
        pending: observation.current.map(|_| observation.pending.count()),
        stuck: observation.current.map(|_| observation.startup.stuck.count()),
        unschedulable: observation.current.map(|_| observation.startup.unschedulable.count()),
        startup_p50_seconds: observation.startup.to_serving.map(|it| it.p50.seconds()),
        startup_p90_seconds: observation.startup.to_serving.map(|it| it.p90.seconds()),
        min: published.bounds().min().count(),
        max: published.bounds().max().map(Replicas::count),
        basis: DesiredBasis::of(published).label(),
        at: decided.as_ref().map(|decided| decided.at.to_string()),
        age_seconds: decided
            .as_ref()
            .map(|decided| now.saturating_sub(decided.elapsed).as_secs_f64()),
        because: because.unwrap_or_else(|| missing_data(published)),
        headline: decision.and_then(Decision::because).map(Step::headline),
        steps: decision.map(steps).unwrap_or_default(),
        saturation: report.as_ref().map(|report| report.saturation.fraction()),
        saturated: report.as_ref().map(|report| report.saturated.count()),
        kv_cache_usage: kv_usage.map(Fraction::fraction),
        waiting: waiting.map(Requests::requests),
        running: running.map(Requests::requests),
        arrivals_per_second: arrivals.map(RequestRate::requests_per_second),
        admissible_per_second: admissible.map(|it| it.variant.requests_per_second()),
        model_admissible_per_second: admissible
            .and_then(|it| it.model)
            .map(RequestRate::requests_per_second),
        cost_per_replica_hour: spec.cost.per_hour(),
        cost_per_hour: observation.current.map(|it| f64::from(it.count()) * spec.cost.per_hour()),
        data_age_seconds: observation.oldest_measured().map(Seconds::seconds),
        scale_problem: observation.scale_unknown.as_ref().map(ToString::to_string),
        replicas: observation.replicas.iter().map(|it| replica(it, details)).collect(),
        pool: None,
        overridden: decision.and_then(Decision::overridden).map(OverrideLine::new),
        shadows: Vec::new(),
        scaler_problems: &[],
    }
}

/// The data whose absence prevents a decision about the variant, as a sentence.
pub(crate) fn missing_data(variant: &PublishedVariant) -> String {
    variant.undecided.as_ref().map(|undecided| undecided.0.to_string()).unwrap_or_default()
}

impl OverrideLine {
    pub(crate) fn new(known: Override) -> Self {
        let Override { order, until, by } = known;
        let replicas = match order {
            Order::Pin(replicas) => Some(replicas.count()),
            Order::Pause => None,
        };
        Self { kind: order.label(), replicas, until: until.to_string(), by: by.to_string() }
    }
}

impl Engine {
    fn new(report: &EngineReport) -> Self {
        Self { arguments: report.label(), text: report.to_string() }
    }
}

fn shadows<'a>(published: &'a Published, key: &VariantKey) -> Vec<Shadow<'a>> {
    let mut shadows = Vec::new();
    for (policy, variants) in &published.shadows {
        if let Some(ShadowResult { desired, because }) = variants.get(key) {
            shadows.push(Shadow { policy, desired: desired.map(Replicas::count), because });
        }
    }

    shadows
}

impl FactLine {
    fn new(ReasonFact { name, value, unit }: ReasonFact) -> Self {
        let (value, text) = match value {
            FactValue::Number(number) => (Some(number), None),
            FactValue::Text(text) => (None, Some(text)),
        };
        Self { name, value, unit, text }
    }
}

fn steps(decision: &Decision) -> Vec<StepLine> {
    let sizing = decision.sizing.as_deref();

    decision
        .steps
        .iter()
        .map(|link| step(link, sizing.filter(|_| matches!(link.reason, Reason::Sized(_)))))
        .collect()
}

/// A step, with the values that it states if it is the analyzers'.
fn step(link: &Step, sizing: Option<&SizingValues>) -> StepLine {
    let Step { stage, before, after, reason } = link;
    let rank = match reason {
        Reason::Limited(LimitedReason::Instead { rank, .. }) => rank.as_deref(),
        _ => sizing.and_then(|it| it.rank.as_deref()),
    };

    StepLine {
        stage: stage.label(),
        before: before.count(),
        after: after.count(),
        reason: reason.label(),
        headline: link.headline(),
        facts: reason.facts().into_iter().map(FactLine::new).collect(),
        text: reason.to_string(),
        remedy: reason.code().remedy(),
        ranking: options(rank),
        foreseen: sizing.and_then(|it| it.foreseen.as_ref()).map(ForeseenLine::new),
        carries: sizing.and_then(|it| it.carries.as_ref()).map(CarriesLine::new),
        slowest: sizing.and_then(|it| it.slowest.as_ref()).map(SlowestLine::new),
    }
}

fn replica<'a>(replica: &'a ReplicaObservation, details: &'a FailureDetails) -> Replica<'a> {
    let (freshness, age, failure) = match replica.freshness {
        Freshness::Fresh { age } => ("fresh", Some(age), None),
        Freshness::Stale { age, why } => ("stale", Some(age), why),
        Freshness::Never { why } => ("never", None, why),
    };

    Replica {
        replica: replica.replica.replica.as_str(),
        freshness,
        age_seconds: age.map(Seconds::seconds),
        failure: failure.map(ScrapeFailure::label),
        failure_detail: details.get(&replica.replica).map(String::as_str),
        kv_cache_usage: replica.kv_usage.map(|it| Fraction::fraction(it.last)),
        waiting: replica.waiting.map(|it| Requests::requests(it.last)),
        running: replica.running.map(|it| Requests::requests(it.last)),
    }
}
