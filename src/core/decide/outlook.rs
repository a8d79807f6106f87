//! The capacity of a variant now and soon, and the first tokens that came late.
//!
//! Every surface that compares the need of a model with its capacity takes both from here and from
//! [`DemandForecast`](crate::decide::sized::DemandForecast), in requests per second. Nothing here
//! decides.

use crate::analyze::foresight::budget::FirstTokens;
use crate::analyze::foresight::estimate::{CapacityEstimate, Teacher};
use crate::units::{Fraction, Replicas, RequestRate, Seconds};

/// The outlook of one variant that `foresight` votes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VariantOutlook {
    /// The source of its capacity per replica; `None` while the capacity is not known.
    pub said_by: Option<Teacher>,
    /// Its capacity; `None` while the capacity per replica is not known.
    pub capacity: Option<CapacityOutlook>,
    /// The latency objectives.
    pub objectives: LatencyObjectives,
    /// The first tokens of the window; `None` if the engines do not show which came late, and for a
    /// variant that only decodes.
    pub first_tokens: Option<FirstTokens>,
}

/// The capacity of a variant, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityOutlook {
    /// The capacity of the replicas that serve.
    pub now: RequestRate,
    /// The capacity once pending replicas are ready, without those that are stuck or leave.
    pub when_ready: RequestRate,
    /// The capacity at the maximum; `None` without a maximum.
    pub at_maximum: Option<RequestRate>,
}

/// The replicas of a variant as they count for capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedReplicas {
    /// Replicas that serve.
    pub serving: Replicas,
    /// Replicas that serve once pending ones are ready and leaving ones are gone.
    pub soon: Replicas,
    /// The most that may serve.
    pub most: Option<Replicas>,
}

/// The latency objectives of a variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyObjectives {
    /// The time to first token.
    pub ttft: Seconds,
    /// The time between tokens; `None` if the default applies, which depends on the engine.
    pub itl: Option<Seconds>,
    /// The share of first tokens that may come later than `ttft`.
    pub late_share: Fraction,
}

// === impl VariantOutlook ===

impl VariantOutlook {
    /// Returns true if the capacity per replica is measured on its own replicas.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        self.said_by == Some(Teacher::Replicas)
    }
}

// === impl CapacityOutlook ===

impl CapacityOutlook {
    /// The capacity of these replicas. A share that the router leaves unused does not count.
    #[must_use]
    pub fn of(estimate: &CapacityEstimate, replicas: CountedReplicas) -> Option<Self> {
        let CountedReplicas { serving, soon, most } = replicas;
        let at_maximum = match most {
            Some(most) => Some(capacity(estimate, most)?),
            None => None,
        };

        let now = capacity(estimate, serving)?;
        let when_ready = capacity(estimate, soon)?;
        Some(Self { now, when_ready, at_maximum })
    }
}

fn capacity(estimate: &CapacityEstimate, replicas: Replicas) -> Option<RequestRate> {
    let per_replica = estimate.rate.requests_per_second() * estimate.usable.fraction();
    RequestRate::new(f64::from(replicas.count()) * per_replica)
}

#[cfg(test)]
mod tests {
    use crate::analyze::foresight::capacity::CapacityBound;

    use super::*;

    fn rate(per_second: f64) -> RequestRate {
        RequestRate::new(per_second).unwrap()
    }

    #[test]
    fn capacity_counts_replicas_by_the_share_that_the_router_uses() {
        let estimate = CapacityEstimate {
            rate: rate(10.0),
            usable: Fraction::new(0.5).unwrap(),
            interval: None,
            bound: CapacityBound::Itl,
            said_by: Teacher::Replicas,
        };
        let replicas = CountedReplicas {
            serving: Replicas::saturating(2),
            soon: Replicas::saturating(3),
            most: Some(Replicas::saturating(4)),
        };
        let found = CapacityOutlook::of(&estimate, replicas).unwrap();
        let expected = CapacityOutlook {
            now: rate(10.0),
            when_ready: rate(15.0),
            at_maximum: Some(rate(20.0)),
        };
        assert_eq!(found, expected);

        let unlimited = CountedReplicas { most: None, ..replicas };
        assert_eq!(CapacityOutlook::of(&estimate, unlimited).unwrap().at_maximum, None);
    }
}
