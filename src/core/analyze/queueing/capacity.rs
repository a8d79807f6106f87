//! How many replicas the variants of a model need to keep its latency targets.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use crate::analyze::queueing::explain::{Sizing, Unsized};
use crate::analyze::queueing::slo::{Infer, Observed, Slo, Targets, resolve};
use crate::analyze::queueing::solve::Model;
use crate::analyze::queueing::{BATCH_DEFAULT, Coefficients, Lengths, QUEUE_DEFAULT, Room, Shape};
use crate::fleet::{ReplicaKey, Role, VariantKey};
use crate::units::{Amount, CostPerHour, Fraction, Replicas, RequestRate, Seconds, Tokens};

/// How a model's variants are sized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The targets that somebody stated.
    pub targets: Targets,
    /// How targets are found where none are stated.
    pub infer: Infer,
    /// Requests that may wait in the model.
    pub queue: u32,
}

/// What one replica serves. A replica that reports no arrivals has no load that could be stated
/// here; leaving it out says that it is unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaLoad {
    /// Which replica.
    pub replica: ReplicaKey,
    /// The requests that arrive at it.
    pub arrival: RequestRate,
    /// What they look like.
    pub shape: Option<Shape>,
    /// Their mean time to first token.
    pub ttft: Option<Seconds>,
    /// Their mean time between tokens.
    pub itl: Option<Seconds>,
    /// How many of them share an iteration.
    pub batch: Option<NonZeroU32>,
}

/// One variant of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantLoad {
    /// Which variant.
    pub key: VariantKey,
    /// What part of a request it serves.
    pub role: Role,
    /// What one replica costs.
    pub cost: CostPerHour,
    /// Replicas that carry load.
    pub replicas: Replicas,
    /// Replicas that are coming.
    pub pending: Replicas,
    /// What was learned of its replicas, and how far that can be trusted.
    pub learned: Option<(Coefficients, Confidence)>,
    /// What its replicas serve.
    pub loads: Vec<ReplicaLoad>,
}

/// What the replicas of a variant, or of a model, serve together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Workload {
    /// All that arrives.
    pub arrival: RequestRate,
    /// The mean shape of it, as far as it is reported.
    pub shape: Option<Shape>,
    /// The mean time to first token, as far as it is reported.
    pub ttft: Option<Seconds>,
    /// The mean time between tokens, as far as it is reported.
    pub itl: Option<Seconds>,
    /// The size of the batch of the first replica that reports one.
    pub batch: Option<NonZeroU32>,
}

/// What was found of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantSizing {
    /// Which variant.
    pub key: VariantKey,
    /// What it serves.
    pub workload: Workload,
    /// What it needs.
    pub sizing: Sizing,
}

/// What was found of a model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The targets that hold, if there are any.
    pub slo: Option<Slo>,
    /// Each variant, in the order of their keys.
    pub variants: Vec<VariantSizing>,
    /// Supply and demand, in requests per second.
    pub report: CapacityReport,
}

/// Sizes the variants of one model. The order of the input does not matter.
pub fn analyze(variants: &[VariantLoad], policy: &Policy) -> Analysis {
    let mut sorted: Vec<&VariantLoad> = variants.iter().collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key));
    let all: Vec<&ReplicaLoad> = sorted.iter().flat_map(|variant| &variant.loads).collect();
    let model = aggregate(all.iter().copied());
    let learned: Vec<Model> = sorted
        .iter()
        .filter_map(|variant| Some(slowed(variant.learned?.0, model.shape?, variant, policy)))
        .collect();
    let observed = Observed { ttft: model.ttft, itl: model.itl };
    let slo = resolve(&policy.targets, &policy.infer, &learned, &observed);

    let sizings: Vec<VariantSizing> = sorted
        .iter()
        .map(|variant| {
            let workload = aggregate(&variant.loads);
            let sizing = size(variant, &workload, &Context { model: &model, slo, policy })
                .unwrap_or_else(Sizing::Unsized);
            VariantSizing { key: variant.key.clone(), workload, sizing }
        })
        .collect();
    let report = report(&sorted, &sizings);
    Analysis { slo, variants: sizings, report }
}

/// What replicas serve together. Means are weighted by arrivals, and each is taken over the
/// replicas that report it: a replica without a mean says nothing about the others.
#[must_use]
pub fn aggregate<'a>(loads: impl IntoIterator<Item = &'a ReplicaLoad>) -> Workload {
    let mut busy: Vec<&ReplicaLoad> =
        loads.into_iter().filter(|load| load.arrival > RequestRate::ZERO).collect();
    // The last digits of a sum depend on the order of its terms.
    busy.sort_by(|a, b| a.replica.cmp(&b.replica));
    let mean = |of: fn(&ReplicaLoad) -> Option<f64>| {
        let (mut sum, mut weight) = (0.0, 0.0);
        for load in &busy {
            if let Some(value) = of(load) {
                sum += value * load.arrival.requests_per_second();
                weight += load.arrival.requests_per_second();
            }
        }
        (sum > 0.0).then(|| sum / weight)
    };
    let time = |of| mean(of).and_then(Seconds::new);
    Workload {
        arrival: busy.iter().map(|load| load.arrival).sum(),
        shape: mean_shape(mean),
        ttft: time(|load| Some(load.ttft?.seconds())),
        itl: time(|load| Some(load.itl?.seconds())),
        batch: busy.iter().find_map(|load| load.batch),
    }
}

/// The shape with the mean lengths; where no prompt has a token, that is their mean length.
fn mean_shape(mean: impl Fn(fn(&ReplicaLoad) -> Option<f64>) -> Option<f64>) -> Option<Shape> {
    let output = mean(|load| Some(load.shape?.output().tokens()))?;
    let input = mean(|load| Some(load.shape?.input().tokens())).unwrap_or(0.0);
    let variation = mean(|load| Some(load.shape?.input_variation().fraction())).unwrap_or(0.0);
    let lengths = Lengths { input: Tokens::new(input)?, output: Tokens::new(output)? };
    Some(Shape::new(lengths)?.with_input_variation(Fraction::new(variation)?))
}

/// The model that says what a slowdown means for a variant.
fn slowed(
    coefficients: Coefficients,
    shape: Shape,
    variant: &VariantLoad,
    policy: &Policy,
) -> Model {
    let batch = variant.loads.iter().find_map(|load| load.batch).unwrap_or(BATCH_DEFAULT);
    Model::new(coefficients, shape, Room { batch, queue: policy.queue })
}

/// What holds for all variants of a model.
struct Context<'a> {
    model: &'a Workload,
    slo: Option<Slo>,
    policy: &'a Policy,
}

/// What one replica of a variant takes, and how many that makes.
fn size(
    variant: &VariantLoad,
    workload: &Workload,
    context: &Context<'_>,
) -> Result<Sizing, Unsized> {
    let Context { model, slo, policy } = context;
    let slo = slo.ok_or(Unsized::NoTarget)?;
    // An idle variant would serve what the others serve.
    let served = workload.shape.or(model.shape);
    let shape = served.ok_or(if workload.arrival > RequestRate::ZERO {
        Unsized::NoShape
    } else {
        Unsized::NoTraffic
    })?;
    let (coefficients, _) = variant.learned.ok_or(Unsized::NotLearned)?;
    let batch = workload.batch.unwrap_or(BATCH_DEFAULT);
    let room = Room { batch, queue: policy.queue };
    let capacity = Model::new(coefficients, shape, room)
        .rate_for(&targets_of(variant.role, slo.targets))
        .map_err(Unsized::Refused)?;
    let demand = workload.arrival;
    let count = demand.requests_per_second() / capacity.at.throughput.requests_per_second();
    Ok(Sizing::Sized { capacity, demand, needed: whole(count).max(Replicas::ONE) })
}

/// The targets that a role answers for: the first token is the prefill's, those after it are the
/// decode's.
fn targets_of(role: Role, targets: Targets) -> Targets {
    match role {
        Role::Both => targets,
        Role::Prefill => Targets { itl: None, ..targets },
        Role::Decode => Targets { ttft: None, ..targets },
    }
}

/// The report of sizings, which are in the order of the variants.
fn report(variants: &[&VariantLoad], sizings: &[VariantSizing]) -> CapacityReport {
    let variants: Vec<VariantCapacity> = variants
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
    let total = totals(variants.iter());
    let mut roles = BTreeMap::new();
    if variants.iter().any(|variant| variant.role != Role::Both) {
        for role in [Role::Both, Role::Prefill, Role::Decode] {
            let mut of = variants.iter().filter(|variant| variant.role == role).peekable();
            if of.peek().is_some() {
                roles.insert(role, totals(of));
            }
        }
    }
    CapacityReport { unit: Unit::RequestsPerSecond, variants, total, roles }
}

/// The sums over variants. One whose capacity nobody knows is in none of them: its demand without
/// its supply would ask for replicas that are there.
fn totals<'a>(variants: impl Iterator<Item = &'a VariantCapacity>) -> Totals {
    let mut totals = Totals::default();
    for variant in variants {
        let Some(per_replica) = variant.per_replica else { continue };
        let of = |replicas: Replicas| nearest(per_replica.amount() * f64::from(replicas.count()));
        totals.supply += of(variant.replicas);
        totals.anticipated += of(variant.replicas + variant.pending);
        totals.demand += variant.demand;
    }
    totals.required = nearest(totals.demand.amount() - totals.anticipated.amount());
    totals.spare = nearest(totals.supply.amount() - totals.demand.amount());
    totals
}

/// A rate as an amount of capacity.
fn amount(rate: RequestRate) -> Amount {
    nearest(rate.requests_per_second())
}

/// The amount that is nearest to this number.
fn nearest(value: f64) -> Amount {
    Amount::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// The smallest number of replicas that is not below this.
fn whole(count: f64) -> Replicas {
    let limit = f64::from(Replicas::LIMIT.count());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what is a number of replicas"
    )]
    let whole = count.ceil().clamp(0.0, limit) as u32;
    Replicas::saturating(whole)
}

// === impl Policy ===

impl Default for Policy {
    fn default() -> Self {
        Self { targets: Targets::default(), infer: Infer::default(), queue: QUEUE_DEFAULT }
    }
}
