//! Decode rate: how many tokens a second a model's replicas generate, and how many are asked for.
//!
//! [`analyze`] turns what replicas show of their pace into an [`Analysis`]: a [`CapacityReport`] in
//! generated tokens a second, with how each variant's figure comes about. What it learns of each
//! variant is kept in [`Curves`].
//!
//! # Model
//!
//! The time between two tokens grows with the batch, and the batch with the share `k` of the KV
//! cache that is in use:
//!
//! ```text
//! itl(k)  = A * k + B                       seconds, learned for each variant
//! held    = I * (1 - h) + O / 2             KV tokens that a request holds on average
//! rate(k) = (k * kv capacity / held) / itl(k)        requests in the batch, one token a step each
//! ```
//!
//! with `I` prompt tokens, `h` the share of them found in the prefix cache and `O` output tokens. A
//! replica carries `rate(0.85)`: beyond that share requests are preempted. What is asked for is
//! arrivals times output tokens, and what waits before the replicas, to be worked off in the time
//! that the policy states.
//!
//! The line is fitted by least squares through the readings of the last half hour, where they are
//! at least ten and lie apart; else through the present readings with the intercept held fixed. The
//! readings are dropped when requests change their shape, and when the rate that the line predicts
//! is not the rate that is seen.
//!
//! # Units
//!
//! Tokens a second; seconds; shares of the KV cache. Prefill replicas generate nothing that counts,
//! so this analyzer says nothing of them: neither that they are needed nor that they are spare.
//!
//! # Domain
//!
//! Decoding that is bound by memory, `k` from 0.15 to 0.85. Below, fixed costs dominate; above,
//! preemption does.
//!
//! # Source
//!
//! The throughput analyzer of llm-d's Workload Variant Autoscaler; `docs/decisions.md` has the
//! differences and their reasons.

mod curve;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, Counted, SpareWithheld, Totals, Unit, Utilisation, VariantCapacity,
    amount,
};
use crate::analyze::tokens::capacity::RequestShape;
use crate::fleet::{Role, VariantSpec};
use crate::units::{Fraction, Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};

pub use crate::analyze::throughput::curve::{Curve, Curves, Fit, Line};

/// How full a KV cache is when a replica carries all that it can.
const FULL: f64 = 0.85;

/// What is asked for, and how full is full enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// How much of the capacity may be used.
    pub utilisation: Utilisation,
    /// In which time requests that wait before the replicas should be worked off.
    pub drain: Seconds,
}

impl Default for Policy {
    /// What waits is to be worked off in half a minute: sooner than a replica starts, so that a
    /// queue which the present replicas will clear by themselves asks for none.
    fn default() -> Self {
        Self { utilisation: Utilisation::default(), drain: Seconds::new(30.0).unwrap_or_default() }
    }
}

/// What one replica shows of its pace; absent is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaPace {
    /// Share of its KV cache that is in use.
    pub kv_usage: Option<Fraction>,
    /// The size of its KV cache.
    pub kv_capacity: Option<Tokens>,
    /// Mean time between tokens.
    pub itl: Option<Seconds>,
    /// What its requests look like.
    pub requests: RequestShape,
    /// Requests that arrive.
    pub arrivals: Option<RequestRate>,
    /// Requests that finish.
    pub completions: Option<RequestRate>,
    /// Tokens that it generates.
    pub generation: Option<TokenRate>,
}

/// One variant and what its replicas show.
#[derive(Clone, Debug)]
pub struct VariantPace<'a> {
    /// Which variant.
    pub spec: &'a VariantSpec,
    /// Replicas that exist, ready or not.
    pub current: Replicas,
    /// Replicas that are not ready, or have never answered.
    pub pending: Replicas,
    /// Those that stay only until others carry load, and are no supply.
    pub leaving: Replicas,
    /// The replicas that were measured, in the order of their keys.
    pub replicas: &'a [ReplicaPace],
}

/// What is asked of a model before it reaches a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arrivals {
    /// Requests that arrive; `None` when nothing in front of the replicas counts them.
    pub rate: Option<RequestRate>,
    /// Requests that wait.
    pub waiting: Requests,
}

/// What the replicas of a model generate and are asked for, in tokens a second.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The numbers.
    pub report: CapacityReport,
    /// How the numbers of each variant come about, in the order of the report's variants.
    pub variants: Vec<VariantThroughput>,
    /// Why nothing counts as spare whatever the numbers say, if so.
    pub spare_withheld: Option<SpareWithheld>,
}

/// How the capacity of a variant comes about.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct VariantThroughput {
    /// What one replica generates when it is full; `None` when nobody can say.
    pub capacity: Option<TokenRate>,
    /// Which line says so.
    pub line: Option<Line>,
    /// KV tokens that a request holds on average.
    pub held: Option<Tokens>,
    /// Replicas that carry load.
    pub carrying: Replicas,
    /// Replicas that are coming.
    pub pending: Replicas,
    /// Those that stay only until others carry load.
    pub leaving: Replicas,
    /// What is asked of its replicas, as far as they show it.
    pub demand: Option<TokenRate>,
}

/// Learns from what the replicas of a model show, and judges it.
pub fn analyze(
    now: Timestamp,
    policy: &Policy,
    variants: &[VariantPace<'_>],
    arrivals: Arrivals,
    curves: &mut Curves,
) -> Analysis {
    for variant in variants.iter().filter(|variant| !variant.replicas.is_empty()) {
        let curve = curves.of(&variant.spec.key, now);
        curve.observe(now, variant.replicas);
        curve.conclude(variant.replicas);
    }
    let mut capacities = Vec::with_capacity(variants.len());
    let mut found = Vec::with_capacity(variants.len());
    let mut withheld = None;
    let mut asked = Asked::default();
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
    let report = report(capacities, demand.unwrap_or_default(), policy.utilisation);
    let report = if withheld.is_some() { report.without_spare() } else { report };
    Analysis { report, variants: found, spare_withheld: withheld }
}

/// Puts the report together; what is asked for is split evenly over the roles that generate.
fn report(
    variants: Vec<VariantCapacity>,
    demand: TokenRate,
    utilisation: Utilisation,
) -> CapacityReport {
    let asked = |totals: Totals, share: f64| {
        let demand = amount(demand.tokens_per_second() * share);
        Totals { demand, ..totals }.judged(utilisation)
    };
    let total = asked(Totals::of(&variants), 1.0);
    let roles = Totals::by_role(&variants);
    let generating = roles.keys().filter(|role| **role != Role::Prefill).count();
    let roles: BTreeMap<Role, Totals> = roles
        .into_iter()
        .map(|(role, totals)| {
            let share = match role {
                Role::Prefill => 0.0,
                Role::Both | Role::Decode => 1.0 / generating as f64,
            };
            (role, asked(totals, share))
        })
        .collect();
    CapacityReport { unit: Unit::OutputTokensPerSecond, variants, total, roles }
}

/// What a variant generates and is asked for, as far as its curve says.
///
/// All ready replicas count, those that show nothing too: they carry what one replica carries, and
/// what is asked for is counted before it reaches them.
fn throughput_of(variant: &VariantPace<'_>, curve: Option<&Curve>) -> VariantThroughput {
    let line = curve.and_then(Curve::line);
    VariantThroughput {
        capacity: curve.and_then(Curve::capacity),
        line,
        held: curve.and_then(Curve::held),
        carrying: variant.current.beyond(variant.pending),
        pending: variant.pending,
        leaving: variant.leaving,
        demand: generated(variant.replicas),
    }
}

/// What the replicas of a variant are known to be asked for: what arrives, or what they generate,
/// whichever is more; `None` when none of them shows either.
fn generated(replicas: &[ReplicaPace]) -> Option<TokenRate> {
    let each = |replica: &ReplicaPace| {
        let output = replica.requests.output.map(Tokens::tokens);
        let arriving = replica
            .arrivals
            .zip(output)
            .and_then(|(arrivals, output)| TokenRate::new(arrivals.requests_per_second() * output));
        match (arriving, replica.generation) {
            (Some(arriving), Some(generation)) => Some(arriving.max(generation)),
            (arriving, generation) => arriving.or(generation),
        }
    };
    replicas.iter().filter_map(each).reduce(|sum, rate| sum + rate)
}

/// Why nothing of a variant counts as spare, if so.
fn withheld_for(variant: &VariantPace<'_>, curve: Option<&Curve>) -> Option<SpareWithheld> {
    let key = &variant.spec.key;
    let ready = variant.current.beyond(variant.pending);
    let measured = u32::try_from(variant.replicas.len()).unwrap_or(u32::MAX);
    if ready > Replicas::saturating(measured) {
        return Some(SpareWithheld::Silent(key.clone()));
    }
    let disagrees = curve.is_some_and(Curve::disagrees);
    disagrees.then(|| SpareWithheld::Disagrees(key.clone()))
}

/// What is needed of the generating variants to say what is asked of the model.
#[derive(Default)]
struct Asked {
    /// Output tokens of a request, weighted by replicas, and the weights.
    output: f64,
    weight: f64,
    /// What the replicas are known to be asked for.
    generated: Option<TokenRate>,
}

impl Asked {
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

    /// Arrivals times output tokens, and what waits, worked off in the time that there is for it.
    ///
    /// Where nothing counts arrivals, what the replicas are known to be asked for; without that,
    /// nobody can say.
    fn demand(&self, arrivals: Arrivals, drain: Seconds) -> Option<TokenRate> {
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

/// The share of the KV cache in use of a full replica.
fn full() -> Fraction {
    Fraction::new(FULL).unwrap_or(Fraction::ONE)
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
                Some(Fit::Window) => Confidence::Measured,
                Some(Fit::InterceptKept) => Confidence::Remembered,
                Some(Fit::InterceptAssumed) | None => Confidence::Assumed,
            },
        }
    }
}

impl fmt::Display for VariantThroughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, line, held, carrying, pending, leaving, demand } = self;
        match capacity {
            Some(capacity) => write!(f, "a full replica generates {capacity:.0} tokens/s")?,
            None => f.write_str("nobody can say what a full replica generates")?,
        }
        if let Some(line) = line {
            write!(f, ", with {line}, {}", line.fit)?;
        }
        if let Some(held) = held {
            write!(f, ", and {held:.0} KV tokens a request")?;
        }
        match demand {
            Some(demand) => {
                write!(f, "; {demand:.0} tokens/s are asked of {}", Counted(*carrying))?;
            }
            None => write!(f, "; nobody can say what is asked of {}", Counted(*carrying))?,
        }
        if *pending > Replicas::ZERO {
            write!(f, "; {pending} more are coming")?;
        }
        if *leaving > Replicas::ZERO {
            write!(f, "; {leaving} stay only until what replaces them carries load")?;
        }
        Ok(())
    }
}
