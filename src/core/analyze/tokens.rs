//! Tokens in the KV cache: the tokens that a model's replicas can hold, and the tokens in demand.
//!
//! [`analyze`] turns the load of a model's variants into an [`TokenAnalysis`]. It contains a
//! [`CapacityReport`] in KV tokens, and for each variant the bound on its capacity, in numbers that
//! display as a sentence.
//!
//! # Model
//!
//! A request holds KV cache while it is served: its prompt, and one more token with each step. So
//! the resident tokens measure the work in progress on a replica. Two bounds limit it:
//!
//! ```text
//! k1 = kv capacity * threshold           memory: beyond it, requests are preempted
//! k2 = tokens resident when compute is the limit
//! capacity = min(k1, k2)
//! demand   = tokens in use + waiting requests * tokens of a request
//! ```
//!
//! `k2` is learned when it shows. If requests wait although memory is free and tokens are
//! generated, the tokens in use are the compute bound. A single reading may be a spike and is not
//! used; three readings at different times are. Evidence fades, and a replica that holds more
//! tokens without a queue refutes it. Without evidence `k2` is derived from the engine's arguments.
//!
//! The capacity of a variant is the median over its replicas. A variant without replicas keeps its
//! last capacity. Failing that, it takes the capacity of a variant with equivalent arguments, or
//! has none. By [`TokenPolicy::sharing`], variants share what they measured within their namespace
//! or within the cluster.
//!
//! # Units
//!
//! All values are KV tokens of one replica, all its data-parallel ranks together, because Plimsoll
//! scales whole replicas. Tokens that an engine computes per step are a different quantity and are
//! never used as a capacity.
//!
//! # Source
//!
//! The token-based saturation analyzer of llm-d's Workload Variant Autoscaler. [`TokenRules::Wva`]
//! reproduces it; `docs/decisions.md` explains the differences of the default.

pub mod capacity;
mod explain;
pub mod knowledge;
mod load;
mod memory;
mod policy;
mod replica;
mod wva;

#[cfg(test)]
mod tests;

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, Utilization, VariantCapacity, amount,
};
use crate::analyze::tokens::capacity::{RequestShape, SchedulerQueue, tokens};
use crate::analyze::tokens::knowledge::{Knowledge, ModelKnowledge, median};
use crate::analyze::tokens::load::TokenContext;
use crate::analyze::tokens::memory::{declared_size, remember, remembered};
use crate::analyze::tokens::replica::now_or_on_average;
use crate::fleet::{ModelKey, Role, VariantSpec};
use crate::units::{Amount, Fraction, Replicas, Requests, Tokens};

pub use crate::analyze::tokens::explain::{
    CapacitySource, MissingCapacity, QueueDemand, ReplicaTokens, VariantTokens,
};
pub use crate::analyze::tokens::load::{TokenReplicaLoad, TokenVariantLoad};
pub use crate::analyze::tokens::policy::{TokenPolicy, TokenRules};

/// The capacity of a model's replicas and the demand on them, in KV tokens.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct TokenAnalysis {
    /// The capacity report.
    pub report: CapacityReport,
    /// The derivation of each variant's numbers, in the order of the report's variants.
    pub variants: Vec<VariantTokens>,
    /// The demand of requests that wait in front of the replicas, if there are any.
    pub queue: Option<QueueDemand>,
    /// The reason why no headroom counts, if there is one.
    pub spare_withheld: Option<SpareWithheld>,
}

/// Analyzes the variants of one model in their order, and learns from their measurements.
pub fn analyze(
    now: Timestamp,
    policy: &TokenPolicy,
    model: &ModelKey,
    variants: &[TokenVariantLoad<'_>],
    queue: Option<SchedulerQueue>,
    knowledge: &mut Knowledge,
) -> TokenAnalysis {
    let known = knowledge.of(&model.model);
    let requests = mean_shape(variants);

    let mut capacities = Vec::with_capacity(variants.len());
    let mut found = Vec::with_capacity(variants.len());
    for variant in variants {
        let context = TokenContext { now, policy, requests: &requests, variant };
        let tokens = match policy.rules {
            TokenRules::Plimsoll => analyze_variant(&context, known),
            TokenRules::Wva => wva::analyze_variant(&context, known),
        };
        capacities.push(tokens.as_capacity(variant.spec));
        found.push(tokens);
    }

    let waiting = queue
        .filter(|queue| *queue != SchedulerQueue::default())
        .map(|queue| QueueDemand::of(queue, &requests, policy.rules));
    let judged = report(capacities, waiting.as_ref(), policy.utilization);
    let spare_withheld = match policy.rules {
        TokenRules::Plimsoll => withheld(variants, &found, waiting.as_ref()),
        TokenRules::Wva => None,
    };
    let report = if spare_withheld.is_some() { judged.without_spare() } else { judged };
    TokenAnalysis { report, variants: found, queue: waiting, spare_withheld }
}

/// The reason why no headroom counts, if there is one: replicas or requests whose KV tokens are
/// unknown.
fn withheld(
    variants: &[TokenVariantLoad<'_>],
    found: &[VariantTokens],
    queue: Option<&QueueDemand>,
) -> Option<SpareWithheld> {
    for (variant, tokens) in variants.iter().zip(found) {
        if tokens.silent > Replicas::ZERO {
            return Some(SpareWithheld::Silent(variant.spec.key.clone()));
        }
        if tokens.replicas.iter().any(|replica| replica.waiting.is_none()) {
            return Some(SpareWithheld::DemandUnknown);
        }
    }

    queue.is_some_and(QueueDemand::is_unknown).then_some(SpareWithheld::DemandUnknown)
}

/// The mean request over all replicas that report request lengths, each with the same weight.
fn mean_shape(variants: &[TokenVariantLoad<'_>]) -> RequestShape {
    let mut prompt = RunningMean::default();
    let mut output = RunningMean::default();
    let mut hits = RunningMean::default();
    for replica in variants.iter().flat_map(|variant| variant.replicas) {
        let requests = &replica.requests;
        if is_known(requests.prompt) || is_known(requests.output) {
            prompt.add(requests.prompt.map(Tokens::tokens));
            output.add(requests.output.map(Tokens::tokens));
            // A replica that does not report prefix cache hits counts as one without hits.
            hits.add(Some(requests.prefix_hits.unwrap_or_default().fraction()));
        }
    }

    RequestShape {
        prompt: prompt.mean().and_then(Tokens::new),
        output: output.mean().and_then(Tokens::new),
        prefix_hits: hits.mean().and_then(Fraction::new),
    }
}

fn is_known(length: Option<Tokens>) -> bool {
    length.is_some_and(|length| length > Tokens::ZERO)
}

/// A running mean.
#[derive(Default)]
struct RunningMean {
    sum: f64,
    number: u32,
}

impl RunningMean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.number += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.number > 0).then(|| self.sum / f64::from(self.number))
    }
}

/// Builds the report. Requests that wait in front of the replicas add to the demand on the model
/// and on its roles.
///
/// With separate prefill and decode, a waiting prompt counts for both roles: prefill computes it,
/// and decode holds it. So the roles may sum to more than the model.
fn report(
    variants: Vec<VariantCapacity>,
    queue: Option<&QueueDemand>,
    utilization: Utilization,
) -> CapacityReport {
    let mut total = Totals::of(&variants);
    total.demand += queue.map_or(Amount::ZERO, |queue| queue.asked_of(Role::Both));

    let mut roles = Totals::by_role(&variants);
    for (role, totals) in &mut roles {
        totals.demand += queue.map_or(Amount::ZERO, |queue| queue.asked_of(*role));
        *totals = totals.judged(utilization);
    }

    CapacityReport { unit: Unit::KvTokens, variants, total: total.judged(utilization), roles }
}

/// Analyzes one variant.
fn analyze_variant(context: &TokenContext<'_>, known: &mut ModelKnowledge) -> VariantTokens {
    let TokenContext { variant, .. } = context;
    let ready = variant.current.beyond(variant.pending);
    if let (Some(arguments), Some(_)) = (variant.arguments, &variant.spec.accelerator) {
        known.adopt(&variant.spec.key, arguments, context.sharing());
    }

    let size = declared_size(context, known);
    let mut replicas = Vec::with_capacity(variant.replicas.len());
    let mut waiting = Requests::ZERO;
    for load in variant.replicas {
        if let Some(replica) = replica::analyze(context, known, load, size) {
            waiting += load.waiting.map_or(Requests::ZERO, now_or_on_average);
            replicas.push(replica);
        }
    }

    let measured = Replicas::capped(replicas.len());
    let Some(capacity) = median_by(&replicas, ReplicaTokens::capacity) else {
        return without_replicas(context, known, ready);
    };

    let silent = ready.beyond(measured);
    let demand: Tokens = replicas.iter().map(ReplicaTokens::demand).sum();
    let carrying = measured + silent;

    // A replica that is not reporting is assumed to have the average load of the others. Counted as
    // idle it would add headroom, and left out it would cause a shortfall.
    let share = f64::from(carrying.count()) / f64::from(measured.count());
    let source = source_of(&replicas, capacity);
    remember(context, known, median_by(&replicas, |replica| replica.kv_capacity), capacity);

    VariantTokens {
        replicas,
        capacity: Some(capacity),
        source,
        confidence: Confidence::Measured,
        carrying,
        silent,
        pending: variant.pending,
        leaving: variant.leaving,
        waiting,
        demand: tokens(demand.tokens() * share),
    }
}

/// The result for a variant without a measured replica.
///
/// Ready replicas that are not reporting count neither as supply nor as demand, because both are
/// unknown.
fn without_replicas(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
    ready: Replicas,
) -> VariantTokens {
    let (capacity, source) = match remembered(context, known) {
        Some((capacity, source)) => (Some(capacity), source),
        None => (None, CapacitySource::Unknown(MissingCapacity::NeverMeasured)),
    };

    let confidence = match source {
        CapacitySource::Remembered => Confidence::Remembered,
        _ => Confidence::Assumed,
    };

    VariantTokens {
        replicas: Vec::new(),
        capacity,
        source,
        confidence,
        carrying: Replicas::ZERO,
        silent: ready,
        pending: context.variant.pending,
        leaving: context.variant.leaving,
        waiting: Requests::ZERO,
        demand: Tokens::ZERO,
    }
}

/// The bound on the replica closest to the median; of several, the first.
fn source_of(replicas: &[ReplicaTokens], capacity: Tokens) -> CapacitySource {
    let nearest =
        replicas.iter().min_by(|a, b| distance(a, capacity).total_cmp(&distance(b, capacity)));
    nearest
        .map_or(CapacitySource::Unknown(MissingCapacity::NeverMeasured), |replica| replica.source)
}

fn distance(replica: &ReplicaTokens, capacity: Tokens) -> f64 {
    (replica.capacity().tokens() - capacity.tokens()).abs()
}

/// The median of a quantity over the replicas.
fn median_by(replicas: &[ReplicaTokens], of: impl Fn(&ReplicaTokens) -> Tokens) -> Option<Tokens> {
    // Most variants have few replicas, and then the values need no allocation.
    let mut few = [Tokens::ZERO; 16];
    let mut many = Vec::new();
    let values = if let Some(few) = few.get_mut(..replicas.len()) {
        few
    } else {
        many.resize(replicas.len(), Tokens::ZERO);
        many.as_mut_slice()
    };
    for (value, replica) in values.iter_mut().zip(replicas) {
        *value = of(replica);
    }

    values.sort_unstable_by(|a, b| a.compare(*b));
    median(values)
}

// === impl VariantTokens, QueueDemand ===

impl VariantTokens {
    fn as_capacity(&self, spec: &VariantSpec) -> VariantCapacity {
        VariantCapacity {
            key: spec.key.clone(),
            role: spec.role,
            cost: spec.cost,
            replicas: self.carrying.beyond(self.leaving),
            pending: self.pending.beyond(self.leaving.beyond(self.carrying)),
            per_replica: self.capacity.map(|capacity| amount(capacity.tokens())),
            demand: amount(self.demand.tokens()),
            confidence: self.confidence,
        }
    }
}

impl QueueDemand {
    /// The prompt length is the larger of the length from the queue's bytes and the average prompt
    /// length.
    fn of(queue: SchedulerQueue, requests: &RequestShape, rules: TokenRules) -> Self {
        let number = queue.requests.requests();
        let average = requests.prompt.unwrap_or_default().tokens() * number;
        let missed = 1.0 - requests.prefix_hits.unwrap_or_default().fraction();
        let held = match rules {
            TokenRules::Plimsoll => 0.5,
            TokenRules::Wva => 1.0,
        };

        Self {
            requests: queue.requests,
            prompt: tokens(queue.prompt.tokens().max(average) * missed),
            output: tokens(requests.output.unwrap_or_default().tokens() * number * held),
        }
    }

    /// Returns true if waiting requests have an unknown length.
    fn is_unknown(&self) -> bool {
        self.requests > Requests::ZERO && self.prompt + self.output == Tokens::ZERO
    }

    fn asked_of(&self, role: Role) -> Amount {
        match role {
            Role::Prefill => amount(self.prompt.tokens()),
            Role::Both | Role::Decode => amount((self.prompt + self.output).tokens()),
        }
    }
}
