//! Learning: the counters of replicas update the model's arrivals and the records of its variants.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::Serving;
use crate::analyze::foresight::batch::{ReplicaContext, UpstreamQueue};
use crate::analyze::foresight::gateway::{GatewaySignals, QueueReading};
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::role_demand::{RoleDemand, UpstreamArrivals};
use crate::analyze::foresight::schedule::ArrivalCoverage;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{ModelKey, ReplicaKey, Role};
use crate::observe::stride::IntervalDelta;
use crate::units::Seconds;

// === impl Foresight ===

impl Foresight {
    /// Learns from the counters of a model's replicas.
    pub(super) fn learn(
        &mut self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        through: Timestamp,
        front: GatewaySignals,
    ) {
        let before = self.learned.insert(model.clone(), through);
        let span = before.and_then(|before| Seconds::from_span(through.duration_since(before)));
        let elapsed = span.unwrap_or_default();
        for ((known, _), demand) in &mut self.demands {
            if known == model {
                demand.lengths.age(elapsed, &policy.memory);
            }
        }

        let behind = behind(policy, variants, front.queued);
        let sized = self.sized_roles(variants);
        for variant in variants {
            let key = (model.clone(), variant.spec.role);
            let demand = self.demands.entry(key).or_default();
            let seen = self.variants.entry(variant.spec.key.clone()).or_default();
            seen.age(elapsed, &policy.memory);
            seen.meet(variant);
            seen.dispersion.look(&variant.replicas, elapsed);

            // Without a capacity its replicas are no supply, so requests to them don't count as
            // demand.
            let counts = seen.iteration().is_some() || !sized.contains(&variant.spec.role);
            if counts {
                demand.arrive(variant);
            }

            let around = ReplicaContext {
                behind,
                told: variant.told,
                budget: seen.budget(variant.told.budget, policy.budget),
                learning: &policy.learning,
            };

            for replica in &variant.replicas {
                for stride in replica.strides {
                    if stride.arrived.is_some() {
                        self.uncounted.remove(replica.replica);
                    } else {
                        self.uncounted.insert(replica.replica.clone());
                    }
                    demand.lengths.take(stride);
                    seen.take(replica.replica, stride, around);
                }
            }
        }

        self.share_places(variants);

        self.forget_uncounted(variants);

        let uncounted = &self.uncounted;
        let sight = if variants.iter().all(|it| is_heard(it, counting(it, uncounted))) {
            front.sight
        } else {
            ArrivalCoverage::Partial
        };
        let teaches = policy.schedule.is_some().then_some(sight);
        for ((known, role), demand) in &mut self.demands {
            if known == model {
                let of_role = variants.iter().filter(|it| it.spec.role == *role);
                let serving = of_role.map(|it| serving(it, counting(it, uncounted))).sum();
                demand.close(through, front, serving, teaches);
            }
        }
    }

    /// Forgets replicas that do not count their arrivals and are gone.
    fn forget_uncounted(&mut self, variants: &[VariantStrides<'_>]) {
        self.uncounted.retain(|it| {
            let of_variant = variants.iter().find(|variant| variant.spec.key == it.variant);
            of_variant
                .is_none_or(|variant| variant.replicas.iter().any(|known| known.replica == it))
        });
    }

    /// Lets variants assume the places in a batch that others on the same accelerator have shown.
    /// Engines of one model on one accelerator are usually started alike.
    fn share_places(&mut self, variants: &[VariantStrides<'_>]) {
        for variant in variants {
            let alike = variants.iter().filter(|it| is_alike(it, variant));
            let places = alike.filter_map(|it| self.variants.get(&it.spec.key)?.shown_places());
            let most = places.max_by(f64::total_cmp);

            if let Some(seen) = self.variants.get_mut(&variant.spec.key) {
                seen.assume_places(most);
            }
        }
    }

    /// The roles in which some variant with replicas has a known capacity.
    fn sized_roles(&self, variants: &[VariantStrides<'_>]) -> BTreeSet<Role> {
        let mut roles = BTreeSet::new();
        for variant in variants.iter().filter(|it| !it.replicas.is_empty()) {
            let seen = self.variants.get(&variant.spec.key);
            if seen.is_some_and(|seen| seen.iteration().is_some()) {
                roles.insert(variant.spec.role);
            }
        }

        roles
    }

    /// Gives decode the arrivals of prefill, while these are more. All of them reach decode once
    /// more prefill replicas serve, so both roles scale up at the same time.
    pub(super) fn look_upstream(&mut self, through: Timestamp, model: &ModelKey, role: Role) {
        if role != Role::Decode {
            return;
        }

        let upstream = self.demands.get(&(model.clone(), Role::Prefill));
        let prefill = upstream.map(|it| UpstreamArrivals {
            arrivals: it.arrivals.clone(),
            known_through: it.known_through(through),
        });
        let Some(decode) = self.demands.get_mut(&(model.clone(), role)) else { return };

        let own = decode.arrivals.rate(decode.known_through(through)).unwrap_or_default();
        decode.upstream =
            prefill.filter(|it| it.arrivals.rate(it.known_through).is_some_and(|rate| rate > own));
    }
}

// === impl RoleDemand ===

impl RoleDemand {
    /// Adds the requests that came to the replicas of a variant, ready or not.
    fn arrive(&mut self, variant: &VariantStrides<'_>) {
        let ready = variant.replicas.iter().map(|replica| replica.strides);
        let all = ready.chain(variant.unready.iter().copied()).flatten();

        for IntervalDelta { at, elapsed, arrived, unserved, .. } in all {
            if let Some(arrived) = arrived {
                self.arrivals.add(*at, *elapsed, arrived.requests());
            }
            if let Some(unserved) = unserved {
                self.arrivals.add_unserved(*at, *elapsed, unserved.requests());
            }
        }
    }

    /// Closes the time up to this instant, of which all arrivals are known. The schedule learns
    /// from it, if there is one.
    fn close(
        &mut self,
        through: Timestamp,
        front: GatewaySignals,
        serving: Serving,
        teaches: Option<ArrivalCoverage>,
    ) {
        // All roles of a model serve its gateway's queue, and would have served the rejected
        // requests.
        for grown in [front.grown, front.rejected].into_iter().flatten() {
            self.arrivals.add_queued(grown.at, grown.elapsed, grown.requests);
        }

        // While no replica shows its arrivals, they are unknown, and not 0. The next counters cover
        // this time.
        if serving.reporting <= 0.0 && serving.silent > 0.0 {
            return;
        }

        self.counted_until = Some(through);
        self.arrivals.note(through, serving);
        self.arrivals.close(through);
        self.mixes.close(self.arrivals.points().back(), &self.lengths);

        if let Some(sight) = teaches {
            self.week.close(self.arrivals.points(), sight);
        }
    }
}

/// Returns true if two variants run on as many accelerators of one kind, and the places of neither
/// are known from arguments.
fn is_alike(one: &VariantStrides<'_>, other: &VariantStrides<'_>) -> bool {
    one.spec.key != other.spec.key
        && one.spec.role == other.spec.role
        && one.spec.accelerator.is_some()
        && one.spec.accelerator == other.spec.accelerator
        && one.gpus == other.gpus
        && one.told.seats.is_none()
        && other.told.seats.is_none()
}

/// The gateway in front of the replicas. It counts as full if it queues more requests than usually
/// wait at all replicas. Each replica then runs as many requests as the gateway allows.
fn behind(
    policy: &ForesightPolicy,
    variants: &[VariantStrides<'_>],
    queued: Option<QueueReading>,
) -> UpstreamQueue {
    let replicas = variants.iter().map(|variant| variant.replicas.len()).sum::<usize>() as f64;
    let usual = policy.backlog.unwrap_or_default().usual.requests();
    match queued {
        Some(queued) if queued.requests.requests() > usual * replicas => UpstreamQueue::FullGateway,
        Some(_) | None => UpstreamQueue::Nothing,
    }
}

/// The measured replicas of a variant that count their arrivals.
fn counting(variant: &VariantStrides<'_>, uncounted: &BTreeSet<ReplicaKey>) -> usize {
    variant.replicas.iter().filter(|it| !uncounted.contains(it.replica)).count()
}

/// Returns true if as many replicas of a variant count their arrivals as serve.
fn is_heard(variant: &VariantStrides<'_>, counted: usize) -> bool {
    let there = variant.current.beyond(variant.pending).count();
    u32::try_from(counted).is_ok_and(|counted| counted >= there)
}

/// The serving replicas of a variant, of which so many count their arrivals.
fn serving(variant: &VariantStrides<'_>, counted: usize) -> Serving {
    let uncounted = variant.replicas.len().saturating_sub(counted) as f64;
    let silent = f64::from(variant.silent.count()) + uncounted;
    Serving { reporting: counted as f64, silent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::foresight::seen::VariantModel;
    use crate::analyze::foresight::strides::{EngineLimits, ReplicaStrides};
    use crate::fleet::{Accelerator, ReplicaName, VariantSpec};
    use crate::units::{Fraction, Gpus, Replicas, Requests};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    #[test]
    fn a_time_in_which_no_replica_reports_is_not_one_without_requests() {
        let mut demand = RoleDemand::default();
        let mut look = |second: i64, elapsed: Option<u32>, serving: Serving| {
            if let Some(elapsed) = elapsed {
                demand.arrivals.add(
                    at(second),
                    Seconds::literal(elapsed),
                    10.0 * f64::from(elapsed),
                );
            }
            demand.close(at(second), GatewaySignals::UNSEEN, serving, None);
        };
        let heard = Serving { reporting: 2.0, silent: 0.0 };
        let silent = Serving { reporting: 0.0, silent: 2.0 };

        for second in 1..=200 {
            look(second, Some(1), heard);
        }
        for second in 201..=290 {
            look(second, None, silent);
        }
        look(291, Some(91), heard);
        for second in 292..=400 {
            look(second, Some(1), heard);
        }

        let rates: Vec<f64> = demand.arrivals.points().iter().map(|point| point.rate).collect();
        assert!(rates.len() > 20 && rates.iter().all(|it| (it - 10.0).abs() < 1e-6), "{rates:?}");
    }

    #[test]
    fn the_last_known_arrivals_at_prefill_count_for_decode_until_prefill_counts_again() {
        let model = VariantSpec::example("a").model_key();
        let counted = |rate: f64, until: i64| {
            let mut demand = RoleDemand::default();
            for second in 1..=until {
                demand.arrivals.add(at(second), Seconds::literal(1), rate);
                let serving = Serving { reporting: 2.0, silent: 0.0 };
                demand.close(at(second), GatewaySignals::UNSEEN, serving, None);
            }
            demand
        };

        let mut foresight = Foresight::default();
        foresight.demands.insert((model.clone(), Role::Prefill), counted(6.0, 300));
        foresight.demands.insert((model.clone(), Role::Decode), counted(4.0, 400));
        foresight.look_upstream(at(400), &model, Role::Decode);
        let decode = &foresight.demands[&(model.clone(), Role::Decode)];
        let (arrivals, known) = decode.arriving(at(400));
        let rate = arrivals.rate(known).unwrap();
        assert!((rate - 6.0).abs() < 1e-9 && known == at(300), "{rate} {known}");

        foresight.demands.insert((model.clone(), Role::Prefill), counted(3.0, 400));
        foresight.look_upstream(at(400), &model, Role::Decode);
        let decode = &foresight.demands[&(model, Role::Decode)];
        let (arrivals, known) = decode.arriving(at(400));
        let rate = arrivals.rate(known).unwrap();
        assert!((rate - 4.0).abs() < 1e-9 && known == at(400), "{rate} {known}");
    }

    #[test]
    fn variants_on_one_accelerator_assume_the_places_that_one_of_them_has_shown() {
        let [full, other] = ["a", "b"].map(|name| VariantSpec {
            accelerator: Some(Accelerator::new("H100").unwrap()),
            ..VariantSpec::example(name)
        });
        let key = ReplicaKey {
            variant: full.key.clone(),
            replica: ReplicaName::new("a").unwrap(),
            incarnation: None,
        };

        let mut foresight = Foresight::default();
        foresight.variants.insert(other.key.clone(), VariantModel::default());
        let policy = ForesightPolicy::default();
        let behind = UpstreamQueue::FullGateway;
        let around = ReplicaContext { behind, ..ReplicaContext::example(&policy) };
        let stride = IntervalDelta {
            running: Requests::new(13.0),
            kv_usage: Fraction::new(0.1),
            ..IntervalDelta::over(at(1), Seconds::literal(1))
        };

        for _ in 0..5 {
            foresight.variants.entry(full.key.clone()).or_default().take(&key, &stride, around);
        }

        let elsewhere = VariantSpec { accelerator: Accelerator::new("L4"), ..other.clone() };
        for (spec, seats, places) in
            [(&other, None, 13.0), (&other, Requests::new(64.0), 64.0), (&elsewhere, None, 256.0)]
        {
            let told = EngineLimits { seats, ..EngineLimits::default() };
            let second = VariantStrides { told, ..VariantStrides::example(spec) };
            foresight.share_places(&[VariantStrides::example(&full), second]);

            let found = foresight.variants[&other.key].seats(seats, 256.0);
            assert!((found - places).abs() < 1e-9, "{found} of {places}");
        }

        for (gpus, places) in [(1, 13.0), (4, 256.0)] {
            let first = VariantStrides { gpus: Some(Gpus::ONE), ..VariantStrides::example(&full) };
            let second =
                VariantStrides { gpus: Some(Gpus::new(gpus)), ..VariantStrides::example(&other) };
            foresight.share_places(&[first, second]);

            let found = foresight.variants[&other.key].seats(None, 256.0);
            assert!((found - places).abs() < 1e-9, "{found} of {places} on {gpus} accelerators");
        }
    }

    #[test]
    fn a_variant_assumes_the_places_of_a_similar_one_once_counters_show_them() {
        let [full, other] = ["a", "b"].map(|name| VariantSpec {
            accelerator: Accelerator::new("H100"),
            ..VariantSpec::example(name)
        });
        let key = ReplicaKey {
            variant: full.key.clone(),
            replica: ReplicaName::new("a").unwrap(),
            incarnation: None,
        };
        let strides = [1, 2, 3, 4, 5].map(|second| IntervalDelta {
            running: Requests::new(13.0),
            kv_usage: Fraction::new(0.1),
            ..IntervalDelta::over(at(second), Seconds::literal(1))
        });
        let one = ReplicaStrides { replica: &key, strides: &strides, waiting: None, running: None };
        let shown = VariantStrides { replicas: vec![one], ..VariantStrides::example(&full) };

        let requests = Requests::new(1000.0).unwrap();
        let queued = Some(QueueReading { requests, at: at(5) });
        let front = GatewaySignals { queued, ..GatewaySignals::UNSEEN };
        let variants = [shown, VariantStrides::example(&other)];
        let mut foresight = Foresight::default();
        foresight.learn(&ForesightPolicy::default(), &full.model_key(), &variants, at(5), front);

        let found = foresight.variants[&other.key].seats(None, 256.0);
        assert!((found - 13.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_replica_that_does_not_count_arrivals_counts_as_silent() {
        let spec = VariantSpec::example("a");
        let key = ReplicaKey {
            variant: spec.key.clone(),
            replica: ReplicaName::new("a").unwrap(),
            incarnation: None,
        };
        let one = || ReplicaStrides { replica: &key, strides: &[], waiting: None, running: None };
        let current = Replicas::saturating(2);
        let replicas = vec![one(), one()];
        let variant = VariantStrides { current, replicas, ..VariantStrides::example(&spec) };

        assert!(is_heard(&variant, 2) && !is_heard(&variant, 1));
        assert_eq!(serving(&variant, 1), Serving { reporting: 1.0, silent: 1.0 });
    }
}
