//! Decode rate: the tokens/s that a model's replicas can generate, and the tokens/s in demand.
//!
//! [`analyze`] turns the pace of each replica into an [`ThroughputAnalysis`]: a [`CapacityReport`]
//! in generated tokens/s, with the derivation of each variant's capacity. [`Curves`] keeps the line
//! learned for each variant.
//!
//! # Model
//!
//! The time between two tokens grows with the batch, and the batch grows with the share `k` of the
//! KV cache that is in use:
//!
//! ```text
//! itl(k)  = A * k + B                       seconds, learned for each variant
//! held    = I * (1 - h) + O / 2             KV tokens that a request holds on average
//! rate(k) = (k * kv capacity / held) / itl(k)        requests in the batch, one token a step each
//! ```
//!
//! with `I` prompt tokens, `h` the share of them found in the prefix cache and `O` output tokens.
//! The capacity of a replica is `rate(0.85)`: beyond that share the engine preempts requests.
//! Demand is arrivals times output tokens. Requests that wait in front of the replicas are added,
//! to be drained in the time that the policy sets.
//!
//! The line is a least-squares fit through the readings of the last half hour, if there are at
//! least ten and they are spread out. Otherwise it goes through the current readings with the
//! intercept held fixed. The readings are dropped when the shape of requests changes, or when the
//! measured rate disagrees with the line's prediction.
//!
//! # Units
//!
//! Tokens/s; seconds; shares of the KV cache. Prefill replicas generate no output tokens, so this
//! analyzer reports neither a shortfall nor headroom for them.
//!
//! # Domain
//!
//! Memory-bound decoding, `k` from 0.15 to 0.85. Below that range fixed costs dominate; above it
//! preemption dominates.
//!
//! # Source
//!
//! The throughput analyzer of llm-d's Workload Variant Autoscaler; `docs/decisions.md` lists the
//! differences and their reasons.

mod curve;
mod pace;

#[cfg(test)]
mod tests;

use std::fmt;

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, Utilization, VariantCapacity, amount,
};
use crate::fleet::{Role, VariantSpec};
use crate::units::{NounCount, Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};

pub use crate::analyze::throughput::curve::{Curve, CurveLine, Curves, LineFit};
pub use crate::analyze::throughput::pace::{ReplicaPace, VariantPace};

/// The policy of the throughput analyzer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThroughputPolicy {
    /// The share of the capacity that may be used.
    pub utilization: Utilization,
    /// The time in which requests that wait in front of the replicas should be drained.
    pub drain: Seconds,
}

impl Default for ThroughputPolicy {
    /// The default drains waiting requests within 30 seconds. That is shorter than a replica's
    /// startup, so a queue that the current replicas can clear on their own causes no scale-up.
    fn default() -> Self {
        Self { utilization: Utilization::default(), drain: Seconds::new(30.0).unwrap_or_default() }
    }
}

/// A model's demand in front of its replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrontDemand {
    /// The arrival rate; `None` if no component in front of the replicas counts requests.
    pub rate: Option<RequestRate>,
    /// Waiting requests.
    pub waiting: Requests,
}

/// The capacity of a model's replicas and the demand on them, in tokens/s.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputAnalysis {
    /// The capacity report.
    pub report: CapacityReport,
    /// The derivation of each variant's numbers, in the order of the report's variants.
    pub variants: Vec<VariantThroughput>,
    /// The reason why no headroom counts, if there is one.
    pub spare_withheld: Option<SpareWithheld>,
}

/// The derivation of a variant's capacity.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct VariantThroughput {
    /// Tokens/s that one full replica generates; `None` if unknown.
    pub capacity: Option<TokenRate>,
    /// The line behind `capacity`.
    pub line: Option<CurveLine>,
    /// KV tokens that a request holds on average.
    pub held: Option<Tokens>,
    /// Replicas that take load.
    pub carrying: Replicas,
    /// Pending replicas.
    pub pending: Replicas,
    /// Replicas that stay only until their replacements take load.
    pub leaving: Replicas,
    /// The demand on the variant's replicas, as far as they report it.
    pub demand: Option<TokenRate>,
}

/// Learns from the measurements of a model's replicas, and reports capacity and demand.
pub fn analyze(
    now: Timestamp,
    policy: &ThroughputPolicy,
    variants: &[VariantPace<'_>],
    arrivals: FrontDemand,
    curves: &mut Curves,
) -> ThroughputAnalysis {
    for variant in variants.iter().filter(|variant| !variant.replicas.is_empty()) {
        let curve = curves.of(&variant.spec.key, now);
        curve.observe(now, variant.replicas);
        curve.conclude(variant.replicas);
    }

    let mut capacities = Vec::with_capacity(variants.len());
    let mut found = Vec::with_capacity(variants.len());
    let mut withheld = None;
    let mut asked = GenerationSums::default();
    for variant in variants.iter().filter(|variant| variant.spec.role != Role::Prefill) {
        let curve = curves.get(&variant.spec.key);
        let seen = throughput_of(variant, curve);
        asked.include(variant, &seen, curve);
        withheld = withheld.or_else(|| withheld_for(variant, curve));
        capacities.push(seen.as_capacity(variant.spec));
        found.push(seen);
    }

    let demand = asked.demand(arrivals, policy.drain);
    if demand.is_none() {
        withheld = Some(SpareWithheld::DemandUnknown);
    }

    let judged = report(capacities, demand.unwrap_or_default(), policy.utilization);
    let report = if withheld.is_some() { judged.without_spare() } else { judged };
    ThroughputAnalysis { report, variants: found, spare_withheld: withheld }
}

/// Builds the report. The demand is split evenly over the roles that generate tokens.
fn report(
    variants: Vec<VariantCapacity>,
    demand: TokenRate,
    utilization: Utilization,
) -> CapacityReport {
    let rate = demand.tokens_per_second();
    let mut total = Totals::of(&variants);
    total.demand = amount(rate);

    let mut roles = Totals::by_role(&variants);
    let generating = roles.keys().filter(|role| **role != Role::Prefill).count();
    for (role, totals) in &mut roles {
        let share = match role {
            Role::Prefill => 0.0,
            Role::Both | Role::Decode => 1.0 / generating as f64,
        };
        totals.demand = amount(rate * share);
        *totals = totals.judged(utilization);
    }

    CapacityReport {
        unit: Unit::OutputTokensPerSecond,
        variants,
        total: total.judged(utilization),
        roles,
    }
}

/// The capacity of a variant according to its curve, and the demand on it.
///
/// All ready replicas count, including those that are not reporting. Each adds the capacity of one
/// replica, and their demand is counted before it reaches them.
fn throughput_of(variant: &VariantPace<'_>, curve: Option<&Curve>) -> VariantThroughput {
    VariantThroughput {
        capacity: curve.and_then(Curve::capacity),
        line: curve.and_then(Curve::line),
        held: curve.and_then(Curve::held),
        carrying: variant.current.beyond(variant.pending),
        pending: variant.pending,
        leaving: variant.leaving,
        demand: generated(variant.replicas),
    }
}

/// The known demand on a variant's replicas: for each replica, the larger of its arrivals and its
/// generated tokens. `None` if no replica reports either.
fn generated(replicas: &[ReplicaPace]) -> Option<TokenRate> {
    replicas.iter().filter_map(generated_by).reduce(|sum, rate| sum + rate)
}

fn generated_by(replica: &ReplicaPace) -> Option<TokenRate> {
    let output = replica.requests.output.map(Tokens::tokens);
    let arriving = replica
        .arrivals
        .zip(output)
        .and_then(|(arrivals, output)| TokenRate::new(arrivals.requests_per_second() * output));

    match (arriving, replica.generation) {
        (Some(arriving), Some(generation)) => Some(arriving.max(generation)),
        (arriving, generation) => arriving.or(generation),
    }
}

/// The reason why a variant's headroom does not count, if there is one.
fn withheld_for(variant: &VariantPace<'_>, curve: Option<&Curve>) -> Option<SpareWithheld> {
    let key = &variant.spec.key;
    let ready = variant.current.beyond(variant.pending);
    if ready > Replicas::capped(variant.replicas.len()) {
        return Some(SpareWithheld::Silent(key.clone()));
    }

    let disagrees = curve.is_some_and(Curve::disagrees);
    disagrees.then(|| SpareWithheld::Disagrees(key.clone()))
}

/// Sums over the generating variants, from which the demand on the model is computed.
#[derive(Default)]
struct GenerationSums {
    /// The sum of output tokens per request, weighted by replicas, and the sum of the weights.
    output: f64,
    weight: f64,
    /// The known demand on the replicas.
    generated: Option<TokenRate>,
}

impl GenerationSums {
    fn include(
        &mut self,
        variant: &VariantPace<'_>,
        seen: &VariantThroughput,
        curve: Option<&Curve>,
    ) {
        if let Some(generated) = generated(variant.replicas) {
            self.generated = Some(self.generated.unwrap_or_default() + generated);
        }

        let weight = f64::from(seen.carrying.count());
        if let Some(output) = curve.and_then(|curve| curve.shape().output) {
            self.output += output.tokens() * weight;
            self.weight += weight;
        }
    }

    fn output_mean(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.output / self.weight)
    }

    /// Arrivals times output tokens, plus the rate at which waiting requests must be drained.
    ///
    /// If no component counts arrivals, the known demand on the replicas takes their place. Without
    /// that the demand is unknown.
    fn demand(&self, arrivals: FrontDemand, drain: Seconds) -> Option<TokenRate> {
        let output = self.output_mean();
        let arriving = arrivals
            .rate
            .zip(output)
            .and_then(|(rate, output)| TokenRate::new(rate.requests_per_second() * output));
        let asked = arriving.or(self.generated)?;

        let waiting = arrivals
            .waiting
            .per(drain)
            .zip(output)
            .and_then(|(rate, output)| TokenRate::new(rate.requests_per_second() * output));
        Some(asked + waiting.unwrap_or_default())
    }
}

// === impl VariantThroughput ===

impl VariantThroughput {
    fn as_capacity(&self, spec: &VariantSpec) -> VariantCapacity {
        VariantCapacity {
            key: spec.key.clone(),
            role: spec.role,
            cost: spec.cost,
            replicas: self.carrying.beyond(self.leaving),
            pending: self.pending.beyond(self.leaving.beyond(self.carrying)),
            per_replica: self.capacity.map(|rate| amount(rate.tokens_per_second())),
            demand: amount(self.demand.unwrap_or_default().tokens_per_second()),
            confidence: match self.line.map(|line| line.fit) {
                Some(LineFit::Window) => Confidence::Measured,
                Some(LineFit::InterceptKept) => Confidence::Remembered,
                Some(LineFit::InterceptAssumed) | None => Confidence::Assumed,
            },
        }
    }
}

impl fmt::Display for VariantThroughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, line, held, carrying, pending, leaving, demand } = self;
        match capacity {
            Some(capacity) => write!(f, "a full replica generates {capacity:.0} tokens/s")?,
            None => f.write_str("the throughput of a full replica is unknown")?,
        }

        if let Some(line) = line {
            write!(f, ", with {line}, {}", line.fit)?;
        }
        if let Some(held) = held {
            write!(f, ", and {held:.0} KV tokens per request")?;
        }
        match demand {
            Some(demand) => {
                write!(f, "; demand {demand:.0} tokens/s on {}", carrying.counted())?;
            }
            None => write!(f, "; the demand on {} is unknown", carrying.counted())?,
        }

        if *pending > Replicas::ZERO {
            write!(f, "; {}", NounCount(pending.count(), "more is pending", "more are pending"))?;
        }
        if *leaving > Replicas::ZERO {
            let stay = NounCount(
                leaving.count(),
                "stays only until its replacement serves",
                "stay only until their replacements serve",
            );
            write!(f, "; {stay}")?;
        }

        Ok(())
    }
}
