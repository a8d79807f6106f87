//! Autoscalers that write the scale directly, without an HPA or with an HPA of their own.
//!
//! A [`Rule`] is the description of an autoscaler in a scenario. A [`Law`] is the rule with its
//! state: it looks at a variant periodically and returns the desired replicas.

use crate::simulate::Micros;
use crate::simulate::peers::sight::{Sight, Terms};
use crate::simulate::peers::{apa, dynamo, kpa, schedule, slo_aware};
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::Replicas;

/// An autoscaler of one variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Knative's pod autoscaler.
    Kpa(kpa::KpaSettings),
    /// `AIBrix`' pod autoscaler (APA).
    Apa(apa::ApaSettings),
    /// llm-d's control law on latency relative to its objectives.
    SloAware,
    /// Dynamo's planner, by engine load.
    DynamoLoad,
    /// Dynamo's planner, by predicted traffic.
    DynamoThroughput,
    /// Replica counts that were planned beforehand.
    Schedule(schedule::ReplicaSchedule),
}

/// A running rule with its state.
#[derive(Clone, Debug)]
pub(crate) enum Law {
    Kpa(kpa::KpaAutoscaler),
    Apa(apa::ApaAutoscaler),
    SloAware(Box<slo_aware::Loop>),
    DynamoLoad(dynamo::load::LoadPlanner),
    DynamoThroughput(dynamo::throughput::ThroughputPlanner),
    Schedule(schedule::ReplicaSchedule),
}

// === impl Rule ===

impl Rule {
    /// The time between two decisions.
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
            Self::Kpa(settings) => Law::Kpa(kpa::KpaAutoscaler::new(*settings)),
            Self::Apa(settings) => Law::Apa(apa::ApaAutoscaler::new(*settings)),
            Self::SloAware => Law::SloAware(Box::new(slo_aware::Loop::new(terms))),
            Self::DynamoLoad => Law::DynamoLoad(dynamo::load::LoadPlanner::new(terms)),
            Self::DynamoThroughput => {
                Law::DynamoThroughput(dynamo::throughput::ThroughputPlanner::new(terms))
            }
            Self::Schedule(schedule) => Law::Schedule(schedule.clone()),
        }
    }
}

// === impl Law ===

impl Law {
    /// The desired replicas within bounds; `None` keeps the current count.
    pub(crate) fn decide(&mut self, sight: &Sight<'_>, bounds: Bounds) -> Option<Replicas> {
        let wanted = match self {
            Self::Kpa(it) => Some(it.decide(sight)),
            Self::Apa(it) => it.decide(sight),
            Self::SloAware(it) => it.decide(sight),
            Self::DynamoLoad(it) => it.decide(sight),
            Self::DynamoThroughput(it) => it.decide(sight),
            Self::Schedule(schedule) => Some(schedule.at(sight.now)),
        }?;

        // Rules whose input comes from replicas cannot scale up from zero.
        let is_schedule = matches!(self, Self::Schedule(_));
        let least = if is_schedule { Replicas::ZERO } else { Replicas::ONE };
        Some(bounds.clamp(wanted.max(least)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::scaler::ScaleCounts;
    use crate::simulate::score::Service;

    #[test]
    fn a_schedule_may_have_no_replica_at_a_time() {
        let bounds = Bounds::new(Replicas::ZERO, Some(Replicas::saturating(6))).unwrap();
        let scale = ScaleCounts { spec: Replicas::ONE, status: Replicas::ONE };
        let service = Service::default();
        let sight = Sight { now: Micros::ZERO, scale, replicas: &[], sent: 0, service: &service };
        let mut law = Law::Schedule(schedule::ReplicaSchedule::new(vec![Replicas::ZERO]));
        assert_eq!(law.decide(&sight, bounds), Some(Replicas::ZERO));
        assert_eq!(law.decide(&sight, Bounds::default()), Some(Replicas::ONE));
    }
}
