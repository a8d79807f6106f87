//! Autoscalers that write the scale themselves, without an HPA or with one of their own.
//!
//! A [`Rule`] is what a scenario says of one; [`Law`] is the rule with its memory, which sees a
//! variant from time to time and says how many replicas it should have.

use crate::simulate::Micros;
use crate::simulate::peers::{apa, dynamo, kpa, schedule, slo_aware};
use crate::simulate::replica::settings::Settings;
use crate::simulate::scaler::Scale;
use crate::simulate::scenario::Slo;
use crate::simulate::score::Service;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Replicas;

/// An autoscaler of one variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Knative's pod autoscaler.
    Kpa(kpa::Settings),
    /// `AIBrix`' autoscaler for applications.
    Apa(apa::Settings),
    /// llm-d's control law on latency against its objectives.
    SloAware,
    /// Dynamo's planner, by the load of its engines.
    DynamoLoad,
    /// Dynamo's planner, by predicted traffic.
    DynamoThroughput,
    /// Numbers that were planned before.
    Schedule(schedule::Schedule),
}

/// What a rule is told of its variant when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How many replicas it may have.
    pub bounds: Bounds,
    /// What requests must meet.
    pub slo: Slo,
    /// The engine, for rules that rest on a profile of it.
    pub engine: Settings,
}

/// What is seen of a variant at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// When.
    pub now: Micros,
    /// What is asked for, and what exists.
    pub scale: Scale,
    /// Replicas that serve.
    pub replicas: &'a [ReplicaSight],
    /// Requests that were sent to the variant so far.
    pub sent: u64,
    /// How the requests of its model have fared so far.
    pub service: &'a Service,
}

/// What is seen of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaSight {
    /// Requests in its batch.
    pub running: f64,
    /// Requests in its queue.
    pub waiting: f64,
    /// The share of its KV cache in use.
    pub kv_usage: f64,
    /// Tokens in its KV cache.
    pub kv_tokens: f64,
    /// Prompt tokens of the requests that wait.
    pub queued_tokens: f64,
    /// Prompt tokens that it has computed since its start.
    pub prefill_tokens: u64,
    /// Steps since its start.
    pub steps: u64,
}

/// A rule at work.
#[derive(Clone, Debug)]
pub(crate) enum Law {
    Kpa(kpa::Autoscaler),
    Apa(apa::Autoscaler),
    SloAware(Box<slo_aware::Loop>),
    DynamoLoad(dynamo::load::Planner),
    DynamoThroughput(dynamo::throughput::Planner),
    Schedule(schedule::Schedule),
}

// === impl Rule ===

impl Rule {
    /// The time between two looks.
    pub(crate) const fn every(&self) -> Micros {
        match self {
            Self::Kpa(_) => kpa::TICK,
            Self::Apa(_) => apa::PERIOD,
            Self::SloAware => slo_aware::PERIOD,
            Self::DynamoLoad => dynamo::load::INTERVAL,
            Self::DynamoThroughput => dynamo::throughput::INTERVAL,
            Self::Schedule(_) => schedule::STEP,
        }
    }

    pub(crate) fn begin(&self, terms: &Terms) -> Law {
        match self {
            Self::Kpa(settings) => Law::Kpa(kpa::Autoscaler::new(*settings)),
            Self::Apa(settings) => Law::Apa(apa::Autoscaler::new(*settings)),
            Self::SloAware => Law::SloAware(Box::new(slo_aware::Loop::new(terms))),
            Self::DynamoLoad => Law::DynamoLoad(dynamo::load::Planner::new(terms)),
            Self::DynamoThroughput => {
                Law::DynamoThroughput(dynamo::throughput::Planner::new(terms))
            }
            Self::Schedule(schedule) => Law::Schedule(schedule.clone()),
        }
    }
}

// === impl Law ===

impl Law {
    /// How many replicas there should be, within bounds; `None` for as many as there are.
    pub(crate) fn decide(&mut self, sight: &Sight<'_>, bounds: Bounds) -> Option<Replicas> {
        let wanted = match self {
            Self::Kpa(it) => Some(it.decide(sight)),
            Self::Apa(it) => it.decide(sight),
            Self::SloAware(it) => it.decide(sight),
            Self::DynamoLoad(it) => it.decide(sight),
            Self::DynamoThroughput(it) => it.decide(sight),
            Self::Schedule(schedule) => Some(schedule.at(sight.now)),
        }?;
        // None of them can come back from zero by what replicas say.
        let min = bounds.min().max(Replicas::ONE);
        Some(wanted.max(min).min(bounds.max().unwrap_or(wanted.max(min))))
    }
}

/// A number of replicas from arithmetic, rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and takes NaN and negatives to zero"
)]
pub(crate) fn whole(value: f64) -> Replicas {
    Replicas::saturating(value.ceil() as u32)
}
