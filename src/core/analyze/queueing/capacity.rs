//! The replicas that a model's variants need to meet its latency targets.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use crate::analyze::queueing::coefficients::Coefficients;
use crate::analyze::queueing::explain::{Sizing, SizingFailure};
use crate::analyze::queueing::request::{MeanLengths, MeanRequest};
use crate::analyze::queueing::slo::{ObservedLatencies, Slo, TargetInference, resolve};
use crate::analyze::queueing::solve::{BATCH_DEFAULT, QUEUE_DEFAULT, QueueingModel, ReplicaRoom};
use crate::analyze::queueing::target::LatencyTargets;
use crate::fleet::{ReplicaKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Replicas, RequestRate, Seconds, Tokens};

/// The sizing policy of a model's variants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueingPolicy {
    /// The configured targets.
    pub targets: LatencyTargets,
    /// The inference of targets that are not configured.
    pub infer: TargetInference,
    /// Requests that may wait in the queueing model.
    pub queue: u32,
}

/// The load of one replica. Leave out a replica that reports no arrivals: its load is unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueingReplicaLoad {
    /// The replica.
    pub replica: ReplicaKey,
    /// The rate of arriving requests.
    pub arrival: RequestRate,
    /// The shape of the requests.
    pub shape: Option<MeanRequest>,
    /// The mean time to first token.
    pub ttft: Option<Seconds>,
    /// The mean time between tokens.
    pub itl: Option<Seconds>,
    /// The number of requests that share an iteration.
    pub batch: Option<NonZeroU32>,
}

/// One variant of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueingVariantLoad {
    /// The variant.
    pub key: VariantKey,
    /// The part of a request that the variant serves.
    pub role: Role,
    /// The cost per replica.
    pub cost: CostPerHour,
    /// Replicas that take load.
    pub replicas: Replicas,
    /// Pending replicas.
    pub pending: Replicas,
    /// The coefficients learned for the variant, and their reliability.
    pub learned: Option<(Coefficients, Confidence)>,
    /// The load of each replica.
    pub loads: Vec<QueueingReplicaLoad>,
}

/// The combined load of a variant's or a model's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueingWorkload {
    /// The total arrival rate.
    pub arrival: RequestRate,
    /// The mean request shape, over the replicas that report one.
    pub shape: Option<MeanRequest>,
    /// The mean time to first token, over the replicas that report it.
    pub ttft: Option<Seconds>,
    /// The mean time between tokens, over the replicas that report it.
    pub itl: Option<Seconds>,
    /// The batch size of the first replica that reports one.
    pub batch: Option<NonZeroU32>,
}

/// The workload and the sizing of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantSizing {
    /// The variant.
    pub key: VariantKey,
    /// The load of its replicas.
    pub workload: QueueingWorkload,
    /// The result of the sizing.
    pub sizing: Sizing,
}

/// The sizing of a model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct QueueingAnalysis {
    /// The targets in effect, if any.
    pub slo: Option<Slo>,
    /// The variants, in key order.
    pub variants: Vec<VariantSizing>,
    /// Supply and demand, in requests per second.
    pub report: CapacityReport,
}

/// Sizes the variants of one model. The order of the input has no effect.
pub fn analyze(variants: &[QueueingVariantLoad], policy: &QueueingPolicy) -> QueueingAnalysis {
    let mut sorted: Vec<&QueueingVariantLoad> = variants.iter().collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key));

    let all: Vec<&QueueingReplicaLoad> = sorted.iter().flat_map(|variant| &variant.loads).collect();
    let model = aggregate(all.iter().copied());
    let learned: Vec<QueueingModel> = sorted
        .iter()
        .filter_map(|variant| Some(slowed(variant.learned?.0, model.shape?, variant, policy)))
        .collect();
    let observed = ObservedLatencies { ttft: model.ttft, itl: model.itl };
    let slo = resolve(&policy.targets, &policy.infer, &learned, &observed);

    let sizings: Vec<VariantSizing> = sorted
        .iter()
        .map(|variant| {
            let workload = aggregate(&variant.loads);
            let sizing = size(variant, &workload, &QueueingContext { model: &model, slo, policy })
                .unwrap_or_else(Sizing::Unsized);
            VariantSizing { key: variant.key.clone(), workload, sizing }
        })
        .collect();

    let report = report(&sorted, &sizings);
    QueueingAnalysis { slo, variants: sizings, report }
}

/// Combines the loads of replicas. Means are weighted by arrivals, and each mean is taken over the
/// replicas that report it.
#[must_use]
pub fn aggregate<'a>(loads: impl IntoIterator<Item = &'a QueueingReplicaLoad>) -> QueueingWorkload {
    let mut busy: Vec<&QueueingReplicaLoad> =
        loads.into_iter().filter(|load| load.arrival > RequestRate::ZERO).collect();
    // The last digits of a sum depend on the order of its terms.
    busy.sort_by(|a, b| a.replica.cmp(&b.replica));

    QueueingWorkload {
        arrival: busy.iter().map(|load| load.arrival).sum(),
        shape: mean_shape(&busy),
        ttft: mean(&busy, |load| Some(load.ttft?.seconds())).and_then(Seconds::new),
        itl: mean(&busy, |load| Some(load.itl?.seconds())).and_then(Seconds::new),
        batch: busy.iter().find_map(|load| load.batch),
    }
}

/// The mean of a value, weighted by arrivals, over the replicas that report it. `None` if no
/// replica reports more than zero.
fn mean(
    loads: &[&QueueingReplicaLoad],
    of: fn(&QueueingReplicaLoad) -> Option<f64>,
) -> Option<f64> {
    let mut sum = 0.0;
    let mut weight = 0.0;
    for load in loads {
        if let Some(value) = of(load) {
            sum += value * load.arrival.requests_per_second();
            weight += load.arrival.requests_per_second();
        }
    }

    (sum > 0.0).then(|| sum / weight)
}

/// The shape with the mean lengths. If no prompt has a token, the input length and its variation
/// are zero.
fn mean_shape(loads: &[&QueueingReplicaLoad]) -> Option<MeanRequest> {
    let output = mean(loads, |load| Some(load.shape?.output().tokens()))?;
    let input = mean(loads, |load| Some(load.shape?.input().tokens())).unwrap_or(0.0);
    let variation =
        mean(loads, |load| Some(load.shape?.input_variation().fraction())).unwrap_or(0.0);

    let lengths = MeanLengths { input: Tokens::new(input)?, output: Tokens::new(output)? };
    Some(MeanRequest::new(lengths)?.with_input_variation(Fraction::new(variation)?))
}

/// The queueing model that turns a slowdown into latency targets for a variant.
fn slowed(
    coefficients: Coefficients,
    shape: MeanRequest,
    variant: &QueueingVariantLoad,
    policy: &QueueingPolicy,
) -> QueueingModel {
    let batch = variant.loads.iter().find_map(|load| load.batch).unwrap_or(BATCH_DEFAULT);
    QueueingModel::new(coefficients, shape, ReplicaRoom { batch, queue: policy.queue })
}

/// The values that are common to all variants of a model.
struct QueueingContext<'a> {
    model: &'a QueueingWorkload,
    slo: Option<Slo>,
    policy: &'a QueueingPolicy,
}

/// Computes the capacity per replica of a variant, and the replicas that it needs.
fn size(
    variant: &QueueingVariantLoad,
    workload: &QueueingWorkload,
    context: &QueueingContext<'_>,
) -> Result<Sizing, SizingFailure> {
    let QueueingContext { model, slo, policy } = context;
    let targets = slo.ok_or(SizingFailure::NoTarget)?.targets;
    // An idle variant would serve the same requests as the other variants.
    let served = workload.shape.or(model.shape);
    let shape = served.ok_or(if workload.arrival > RequestRate::ZERO {
        SizingFailure::NoShape
    } else {
        SizingFailure::NoTraffic
    })?;
    let (coefficients, _) = variant.learned.ok_or(SizingFailure::NotLearned)?;

    let batch = workload.batch.unwrap_or(BATCH_DEFAULT);
    let room = ReplicaRoom { batch, queue: policy.queue };
    let capacity = QueueingModel::new(coefficients, shape, room)
        .rate_for(&targets_of(variant.role, targets))
        .map_err(SizingFailure::Refused)?;

    let demand = workload.arrival;
    let count = demand.requests_per_second() / capacity.at.throughput.requests_per_second();
    Ok(Sizing::Sized { capacity, demand, needed: whole(count).max(Replicas::ONE) })
}

/// The targets that a role is responsible for. Prefill produces the first token, and decode
/// produces the rest.
fn targets_of(role: Role, targets: LatencyTargets) -> LatencyTargets {
    match role {
        Role::Both => targets,
        Role::Prefill => LatencyTargets { itl: None, ..targets },
        Role::Decode => LatencyTargets { ttft: None, ..targets },
    }
}

/// The report on these sizings, which are in the order of the variants.
fn report(variants: &[&QueueingVariantLoad], sizings: &[VariantSizing]) -> CapacityReport {
    let capacities: Vec<VariantCapacity> = variants
        .iter()
        .zip(sizings)
        .map(|(variant, found)| {
            let per_replica = match found.sizing {
                Sizing::Sized { capacity, .. } => Some(amount(capacity.at.throughput)),
                Sizing::Unsized(_) => None,
            };

            let learned = variant.learned.map_or(Confidence::Assumed, |(_, confidence)| confidence);
            VariantCapacity {
                key: variant.key.clone(),
                role: variant.role,
                cost: variant.cost,
                replicas: variant.replicas,
                pending: variant.pending,
                per_replica,
                demand: amount(found.workload.arrival),
                confidence: match found.workload.shape {
                    Some(_) => learned,
                    None => learned.min(Confidence::Remembered),
                },
            }
        })
        .collect();

    let total = totals(capacities.iter());

    let mut roles = BTreeMap::new();
    if capacities.iter().any(|variant| variant.role != Role::Both) {
        for role in [Role::Both, Role::Prefill, Role::Decode] {
            let mut of = capacities.iter().filter(|variant| variant.role == role).peekable();
            if of.peek().is_some() {
                roles.insert(role, totals(of));
            }
        }
    }

    CapacityReport { unit: Unit::RequestsPerSecond, variants: capacities, total, roles }
}

/// The sums over variants. A variant with unknown capacity is left out: its demand without its
/// supply would request replicas that already exist.
fn totals<'a>(variants: impl Iterator<Item = &'a VariantCapacity>) -> Totals {
    let mut totals = Totals::default();
    for variant in variants {
        if variant.per_replica.is_some() {
            totals.supply += variant.carried_by(variant.replicas);
            totals.anticipated += variant.carried_by(variant.replicas + variant.pending);
            totals.demand += variant.demand;
        }
    }

    totals.required = nearest(totals.demand.amount() - totals.anticipated.amount());
    totals.spare = nearest(totals.supply.amount() - totals.demand.amount());
    totals
}

/// A rate as an amount of capacity.
fn amount(rate: RequestRate) -> Amount {
    nearest(rate.requests_per_second())
}

/// The valid amount that is closest to this value.
fn nearest(value: f64) -> Amount {
    Amount::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// The value rounded up to a replica count.
fn whole(count: f64) -> Replicas {
    let limit = f64::from(Replicas::LIMIT.count());

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the range of replica counts"
    )]
    let whole = count.ceil().clamp(0.0, limit) as u32;
    Replicas::saturating(whole)
}

// === impl QueueingPolicy ===

impl Default for QueueingPolicy {
    fn default() -> Self {
        Self {
            targets: LatencyTargets::default(),
            infer: TargetInference::default(),
            queue: QUEUE_DEFAULT,
        }
    }
}
