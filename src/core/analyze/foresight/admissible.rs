//! Admissible requests: the rate that a gateway may let through while no replica can be started in
//! time.
//!
//! A jump is over or has done its damage before a new replica serves. Until then a gateway that
//! rejects the excess keeps the rest in time. It needs one number for that, which [`admissible`]
//! derives from the capacity per replica and the requests that wait.
//!
//! # Model
//!
//! ```text
//! capacity   = n * mu
//! free       = n * mean of max(mu - max(w - usual, 0) / horizon, 0)
//! admissible = max(free - q / horizon * capacity / (capacity of the role), FLOOR * capacity)
//! horizon    = max(slo.ttft, min(time between two scrapes, 60 s))
//! ```
//!
//! - `n`: serving replicas of the variant, including replicas that a plan replaces.
//! - `mu`: requests/s that one replica handles at the current request mix, fully used
//!   ([`CapacityEstimate::rate`]).
//! - `w`: waiting requests of one replica; `usual` of them (`backlog.usual`) wait in any case. The
//!   mean is over replicas that report them.
//! - `q`: requests that wait at the gateway.
//!
//! Waiting requests are worked off within the time that a first token may take. A shorter horizon
//! than the time between two scrapes would leave replicas idle until the next one. That time is the
//! longest of all measured replicas, each with the time between its last two scrapes. Ticks between
//! two scrapes use it as well. A queue is bound to its replica, so a long one takes nothing from
//! the others.
//!
//! The rate of a model is the sum over the variants of a role. With prefill and decode apart, a
//! request needs both, so the model has the smaller sum.
//!
//! # Domain
//!
//! If replicas of a variant serve with an unknown capacity or queue, the variant has no rate, and
//! neither has its model. A variant without serving replicas has a rate of 0. A model without any
//! has no rate: a gateway must not keep it asleep.
//!
//! # Source
//!
//! The rate at which a queue of length `w` empties within `horizon` is a flow balance:
//! `w + (rate - mu) * horizon = 0`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::gateway::GatewaySignals;
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{Role, VariantKey};
use crate::units::{Replicas, RequestRate, Seconds};

/// The smallest admissible share of the capacity. A misread queue must not stop all traffic,
/// because requests in service are the evidence of capacity.
const FLOOR: f64 = 0.1;

/// The longest time between two scrapes that counts. Usual intervals are shorter, so a longer time
/// is mostly a gap.
const APART_MAX: Seconds = Seconds::literal(60);

/// The rate of requests that serving replicas can take in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdmissibleRate {
    /// Rate for the variant.
    pub variant: RequestRate,
    /// Rate for its model; `None` if it is unknown for a variant that serves.
    pub model: Option<RequestRate>,
    /// Replicas of the variant that serve.
    pub serving: Replicas,
}

/// The parameters by which queues are judged.
#[derive(Clone, Copy)]
struct QueueRule {
    /// Requests that wait at a replica in any case.
    usual: f64,
    /// The time in which the others are worked off, in seconds.
    horizon: f64,
}

/// The replicas of a variant that serve.
struct ServingVariant {
    key: VariantKey,
    replicas: Replicas,
    /// The capacity and its free part; `None` if either is unknown.
    load: Option<CapacityLeft>,
}

/// The capacity of serving replicas, in requests/s.
#[derive(Clone, Copy)]
struct CapacityLeft {
    capacity: f64,
    /// The part that remains while waiting requests are worked off.
    free: f64,
}

/// Derives the admissible rate of each variant of a model from the capacity per replica. The
/// foresight has learned from these variants.
#[must_use]
pub fn admissible(
    policy: &ForesightPolicy,
    front: GatewaySignals,
    variants: &[VariantStrides<'_>],
    estimates: &BTreeMap<VariantKey, CapacityEstimate>,
    foresight: &Foresight,
) -> BTreeMap<VariantKey, AdmissibleRate> {
    let rule = QueueRule::of(policy, foresight.apart(variants));
    let queued = front.queued.map_or(0.0, |queued| queued.requests.requests());

    let mut roles: BTreeMap<Role, Vec<ServingVariant>> = BTreeMap::new();
    for variant in variants {
        let serving = ServingVariant::of(variant, estimates.get(&variant.spec.key), rule);
        roles.entry(variant.spec.role).or_default().push(serving);
    }

    let mut found = BTreeMap::new();
    let mut totals = Vec::new();
    for members in roles.values() {
        let capacity: f64 = members.iter().filter_map(|it| it.load).map(|it| it.capacity).sum();
        let share = if capacity > 0.0 { queued / rule.horizon / capacity } else { 0.0 };

        let rates: Vec<_> = members.iter().map(|it| it.admissible(share)).collect();
        let serves = members.iter().any(|it| it.replicas > Replicas::ZERO);
        totals.push(total(&rates).filter(|_| serves));

        let keys = members.iter().map(|it| it.key.clone());
        found.extend(keys.zip(rates).filter_map(|(key, rate)| Some((key, rate?))));
    }

    let model = totals.into_iter().reduce(|a, b| Some(a?.min(b?))).flatten();
    if found.values().all(|it| it.serving == Replicas::ZERO) {
        return BTreeMap::new();
    }
    for rate in found.values_mut() {
        rate.model = model.and_then(RequestRate::new);
    }

    found
}

/// The sum over all variants of a role, in requests/s.
fn total(rates: &[Option<AdmissibleRate>]) -> Option<f64> {
    rates.iter().map(|rate| Some(rate.as_ref()?.variant.requests_per_second())).sum()
}

// === impl QueueRule ===

impl QueueRule {
    /// The parameters for replicas whose scrapes are this far apart.
    fn of(policy: &ForesightPolicy, apart: Seconds) -> Self {
        let usual = policy.backlog.unwrap_or_default().usual.requests();
        Self { usual, horizon: policy.ttft.max(apart.min(APART_MAX)).seconds() }
    }

    /// The part of a replica's capacity that remains while this many requests wait, in requests/s.
    fn left(self, capacity: f64, waiting: f64) -> f64 {
        let excess = (waiting - self.usual).max(0.0);
        (capacity - excess / self.horizon).max(0.0)
    }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// Replicas that serve, including leaving ones.
    fn serving(&self) -> Replicas {
        self.current.beyond(self.pending)
    }
}

// === impl ServingVariant ===

impl ServingVariant {
    fn of(
        variant: &VariantStrides<'_>,
        estimate: Option<&CapacityEstimate>,
        rule: QueueRule,
    ) -> Self {
        let replicas = variant.serving();
        let idle = CapacityLeft { capacity: 0.0, free: 0.0 };
        let load = if replicas == Replicas::ZERO {
            Some(idle)
        } else {
            estimate.and_then(|estimate| CapacityLeft::of(variant, replicas, estimate, rule))
        };

        Self { key: variant.spec.key.clone(), replicas, load }
    }

    /// The rate that leaves time for requests at the gateway, which take this share of the
    /// capacity.
    fn admissible(&self, queued: f64) -> Option<AdmissibleRate> {
        let CapacityLeft { capacity, free } = self.load?;
        let rate = (free - queued * capacity).max(FLOOR * capacity);

        let variant = RequestRate::new(rate)?;
        Some(AdmissibleRate { variant, model: None, serving: self.replicas })
    }
}

// === impl CapacityLeft ===

impl CapacityLeft {
    /// The load of some replicas. Replicas that do not report a queue count like the others.
    fn of(
        variant: &VariantStrides<'_>,
        replicas: Replicas,
        estimate: &CapacityEstimate,
        rule: QueueRule,
    ) -> Option<Self> {
        let carries = estimate.rate.requests_per_second() * estimate.usable.fraction();
        let reported = variant.replicas.iter().filter_map(|replica| replica.waiting);
        let free: Vec<f64> = reported.map(|it| rule.left(carries, it.requests())).collect();
        if free.is_empty() {
            return None;
        }

        let count = f64::from(replicas.count());
        let mean = free.iter().sum::<f64>() / free.len() as f64;
        Some(Self { capacity: count * carries, free: count * mean })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::analyze::foresight::ReplicaStrides;
    use crate::analyze::foresight::batch::ReplicaContext;
    use crate::analyze::foresight::capacity::CapacityBound;
    use crate::analyze::foresight::estimate::Teacher;
    use crate::analyze::foresight::gateway::QueueReading;
    use crate::fleet::{ReplicaKey, ReplicaName, VariantSpec};
    use crate::observe::stride::IntervalDelta;
    use crate::units::{Fraction, Requests};

    /// A variant with a capacity of 10 requests/s per replica.
    struct FakeVariant {
        spec: VariantSpec,
        replicas: u32,
        pending: u32,
        leaving: u32,
        waiting: Option<f64>,
        /// Additional requests that wait at the first replica.
        stuck: f64,
        carries: Option<f64>,
        strides: Vec<IntervalDelta>,
        reporting: Vec<ReplicaKey>,
    }

    fn replica(variant: &VariantKey, index: u32) -> ReplicaKey {
        let replica = ReplicaName::new(&format!("r{index}")).unwrap();
        ReplicaKey { variant: variant.clone(), replica, incarnation: None }
    }

    fn fake(name: &str, replicas: u32) -> FakeVariant {
        let spec = VariantSpec::example(name);
        let stride = IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::literal(1));

        FakeVariant {
            reporting: (0..replicas).map(|index| replica(&spec.key, index)).collect(),
            strides: vec![stride],
            spec,
            replicas,
            pending: 0,
            leaving: 0,
            waiting: Some(0.0),
            stuck: 0.0,
            carries: Some(10.0),
        }
    }

    impl FakeVariant {
        fn waiting(mut self, waiting: f64) -> Self {
            self.waiting = Some(waiting);
            self
        }

        fn role(mut self, role: Role) -> Self {
            self.spec.role = role;
            self
        }

        fn strides(&self) -> VariantStrides<'_> {
            let mut replicas = Vec::new();
            for (at, replica) in self.reporting.iter().enumerate() {
                let stuck = if at == 0 { self.stuck } else { 0.0 };
                let waiting = self.waiting.and_then(|it| Requests::new(it + stuck));
                replicas.push(ReplicaStrides {
                    replica,
                    strides: &self.strides,
                    waiting,
                    running: None,
                });
            }

            VariantStrides {
                current: Replicas::saturating(self.replicas + self.pending),
                pending: Replicas::saturating(self.pending),
                leaving: Replicas::saturating(self.leaving),
                replicas,
                ..VariantStrides::example(&self.spec)
            }
        }

        fn estimate(&self) -> Option<(VariantKey, CapacityEstimate)> {
            let estimate = CapacityEstimate {
                rate: RequestRate::new(self.carries?)?,
                usable: Fraction::ONE,
                interval: None,
                bound: CapacityBound::Itl,
                said_by: Teacher::Replicas,
            };

            Some((self.spec.key.clone(), estimate))
        }
    }

    /// Learns from the counters of replicas.
    fn learn(foresight: &mut Foresight, policy: &ForesightPolicy, variants: &[VariantStrides<'_>]) {
        let around = ReplicaContext::example(policy);
        for variant in variants {
            let seen = foresight.variants.entry(variant.spec.key.clone()).or_default();
            seen.meet(variant);
            for ReplicaStrides { replica, strides, .. } in &variant.replicas {
                for stride in *strides {
                    seen.take(replica, stride, around);
                }
            }
        }
    }

    /// The rates of variants by name, and that of the model, with `queued` requests at the gateway.
    fn found(cases: &[FakeVariant], queued: f64) -> (BTreeMap<String, f64>, Option<f64>) {
        found_next(&mut Foresight::default(), cases, queued)
    }

    /// The same at the next tick.
    fn found_next(
        foresight: &mut Foresight,
        cases: &[FakeVariant],
        queued: f64,
    ) -> (BTreeMap<String, f64>, Option<f64>) {
        let policy = ForesightPolicy::default();
        let variants: Vec<_> = cases.iter().map(FakeVariant::strides).collect();
        learn(foresight, &policy, &variants);

        let estimates = cases.iter().filter_map(FakeVariant::estimate).collect();
        let requests = Requests::new(queued).unwrap();
        let waiting = QueueReading { requests, at: Timestamp::UNIX_EPOCH };
        let front = GatewaySignals { queued: Some(waiting), ..GatewaySignals::UNSEEN };

        let found = admissible(&policy, front, &variants, &estimates, foresight);
        let model = found.values().next().and_then(|it| it.model);
        let mut rates = BTreeMap::new();
        for (key, it) in &found {
            rates.insert(key.variant.as_str().to_owned(), it.variant.requests_per_second());
        }

        (rates, model.map(RequestRate::requests_per_second))
    }

    fn rates<const N: usize>(rates: [(&str, f64); N]) -> BTreeMap<String, f64> {
        rates.into_iter().map(|(name, rate)| (name.to_owned(), rate)).collect()
    }

    #[test]
    fn what_serving_replicas_carry_is_admissible_while_nothing_waits() {
        let starting = FakeVariant { pending: 5, leaving: 1, ..fake("a", 3) };
        let usual = found(&[starting.waiting(4.0)], 0.0);
        assert_eq!(usual, (rates([("a", 30.0)]), Some(30.0)), "4 wait as a matter of course");
    }

    /// The admissible rate of three replicas while so many requests wait at each.
    fn rate_behind(waiting: f64) -> f64 {
        found(&[fake("a", 3).waiting(waiting)], 0.0).1.unwrap()
    }

    #[test]
    fn a_backlog_is_worked_off_first_but_not_below_the_floor() {
        let some = rate_behind(9.0);
        assert!((some - (30.0 - 3.0 * 5.0 / 2.0)).abs() < 1e-9, "in the 2 s of a first token");
        assert!((rate_behind(1000.0) - 3.0).abs() < 1e-9, "a tenth of the capacity");

        let long = FakeVariant { reporting: Vec::new(), ..fake("a", 1).waiting(1000.0) };
        assert_eq!(found(&[long], 0.0).1, None, "no replica reports");

        assert!((rate_with_scrapes_of(15) - 29.0).abs() < 1e-9, "until the next scrape");
        let gap = rate_with_scrapes_of(600);
        assert!((gap - 29.75).abs() < 1e-9, "{gap}: a minute at most");
    }

    /// The admissible rate of three replicas with a backlog whose scrapes are so many seconds
    /// apart, at a tick with a new scrape. Ticks without a new one must have the same.
    fn rate_with_scrapes_of(seconds: u32) -> f64 {
        let mut slow = [fake("a", 3).waiting(9.0)];
        slow[0].strides[0].elapsed = Seconds::literal(seconds);

        let mut foresight = Foresight::default();
        let scraped = found_next(&mut foresight, &slow, 0.0);
        slow[0].strides.clear();
        for _ in 0..14 {
            assert_eq!(found_next(&mut foresight, &slow, 0.0), scraped, "nothing has changed");
        }

        scraped.1.unwrap()
    }

    #[test]
    fn a_long_queue_at_one_replica_takes_nothing_from_the_others() {
        let stuck = FakeVariant { stuck: 900.0, ..fake("a", 10) };
        assert_eq!(found(&[stuck], 0.0).1, Some(90.0));
    }

    #[test]
    fn variants_share_the_gateways_queue_by_their_capacity() {
        let expect = (rates([("a", 22.5), ("b", 7.5)]), Some(30.0));
        assert_eq!(found(&[fake("a", 3), fake("b", 1)], 20.0), expect);
    }

    #[test]
    fn an_unknown_capacity_or_queue_is_unknown_for_the_model_and_never_zero() {
        let untaught = FakeVariant { carries: None, ..fake("b", 1) };
        let mute = FakeVariant { waiting: None, ..fake("b", 1) };
        for unknown in [untaught, mute] {
            assert_eq!(found(&[fake("a", 1), unknown], 0.0), (rates([("a", 10.0)]), None));
        }
    }

    fn starting() -> FakeVariant {
        FakeVariant { pending: 2, ..fake("b", 0) }
    }

    #[test]
    fn a_variant_without_serving_replicas_adds_nothing_and_a_model_without_any_has_no_rate() {
        let expect = (rates([("a", 10.0), ("b", 0.0)]), Some(10.0));
        assert_eq!(found(&[fake("a", 1), starting()], 0.0), expect);
        assert_eq!(found(&[starting()], 0.0), (rates([]), None));
    }

    #[test]
    fn a_model_in_parts_has_the_rate_of_its_smaller_part() {
        for (decoding, expected) in [(3, Some(20.0)), (0, None)] {
            let prefill = fake("p", 2).role(Role::Prefill);
            let decode = fake("d", decoding).role(Role::Decode);
            assert_eq!(found(&[prefill, decode], 0.0).1, expected, "{decoding} decode");
        }
    }
}
