//! What the replicas of a model did, taken into what is known of its load and of its variants.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::Serving;
use crate::analyze::foresight::batch::{Around, Behind};
use crate::analyze::foresight::gateway::{Front, Queued};
use crate::analyze::foresight::schedule::Sight;
use crate::analyze::foresight::{Demand, Foresight, Policy, VariantStrides};
use crate::fleet::{ModelKey, Role};
use crate::observe::stride::Stride;
use crate::units::{Replicas, Seconds, Tokens};

// === impl Foresight ===

impl Foresight {
    /// Learns from what the replicas of a model did.
    pub(super) fn learn(
        &mut self,
        policy: &Policy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        (through, front): (Timestamp, Front),
    ) {
        let before = self.learned.insert(model.clone(), through);
        let elapsed = before.and_then(|before| Seconds::from_span(through.duration_since(before)));
        let elapsed = elapsed.unwrap_or_default();
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

            // Without a capacity its replicas are no supply, so requests to them are no demand.
            let counts = seen.iteration().is_some() || !sized.contains(&variant.spec.role);
            if counts {
                demand.arrive(variant);
            }

            let around = Around {
                behind,
                told: variant.told,
                budget: variant.told.budget.map_or(policy.budget, Tokens::tokens),
                learning: &policy.learning,
            };
            for replica in &variant.replicas {
                for stride in replica.strides {
                    demand.lengths.take(stride);
                    seen.take(replica.replica, stride, around);
                }
            }
        }

        let sight = if variants.iter().all(is_heard) { front.sight } else { Sight::Partial };
        let teaches = policy.schedule.is_some().then_some(sight);
        for ((known, role), demand) in &mut self.demands {
            if known == model {
                demand.close(through, front, serving(variants, *role), teaches);
            }
        }
    }

    /// The roles of which some variant with replicas has a known capacity.
    fn sized_roles(&self, variants: &[VariantStrides<'_>]) -> BTreeSet<Role> {
        let is_sized = |it: &&VariantStrides<'_>| {
            let seen = self.variants.get(&it.spec.key).filter(|_| !it.replicas.is_empty());
            seen.is_some_and(|seen| seen.iteration().is_some())
        };
        variants.iter().filter(is_sized).map(|it| it.spec.role).collect()
    }

    /// Lets decode see arrivals at prefill, while they are more. All of them get to decode once more
    /// prefill replicas serve, so both start theirs at the same time.
    pub(super) fn look_upstream(&mut self, through: Timestamp, model: &ModelKey, role: Role) {
        if role != Role::Decode {
            return;
        }
        let key = |role| (model.clone(), role);
        let prefill = self.demands.get(&key(Role::Prefill)).map(|it| &it.arrivals).cloned();
        let Some(decode) = self.demands.get_mut(&key(role)) else { return };

        let own = decode.arrivals.rate(through).unwrap_or_default();
        decode.upstream = prefill.filter(|it| it.rate(through).is_some_and(|rate| rate > own));
    }
}

// === impl Demand ===

impl Demand {
    /// Requests that came to the replicas of a variant, ready or not.
    fn arrive(&mut self, variant: &VariantStrides<'_>) {
        let ready = variant.replicas.iter().map(|replica| replica.strides);
        let all = ready.chain(variant.unready.iter().copied()).flatten();
        for Stride { at, elapsed, arrived, unserved, .. } in all {
            if let Some(arrived) = arrived {
                self.arrivals.add(*at, *elapsed, arrived.requests());
            }
            if let Some(unserved) = unserved {
                self.arrivals.add_unserved(*at, *elapsed, unserved.requests());
            }
        }
    }

    /// All that came up to an instant is known. It teaches the schedule, if there is one.
    fn close(
        &mut self,
        through: Timestamp,
        front: Front,
        serving: Serving,
        teaches: Option<Sight>,
    ) {
        // All roles of a model serve what its gateway holds, and would have served what it rejected.
        for grown in [front.grown, front.rejected].into_iter().flatten() {
            self.arrivals.add_queued(grown.at, grown.elapsed, grown.requests);
        }
        self.arrivals.note(through, serving);
        self.arrivals.close(through);
        self.mixes.close(self.arrivals.points().back(), &self.lengths);

        if let Some(sight) = teaches {
            self.week.close(self.arrivals.points(), sight);
        }
    }
}

/// A gateway that queues more than usually waits at replicas gives each as much as it allows.
fn behind(policy: &Policy, variants: &[VariantStrides<'_>], queued: Option<Queued>) -> Behind {
    let replicas = variants.iter().map(|variant| variant.replicas.len()).sum::<usize>() as f64;
    let usual = policy.backlog.unwrap_or_default().usual.requests();
    match queued {
        Some(queued) if queued.requests.requests() > usual * replicas => Behind::FullGateway,
        Some(_) | None => Behind::Nothing,
    }
}

/// Whether all replicas of a variant that serve were measured.
fn is_heard(variant: &VariantStrides<'_>) -> bool {
    let there = variant.current.beyond(variant.pending).count();
    u32::try_from(variant.replicas.len()).is_ok_and(|heard| heard >= there)
}

/// The replicas of a role that serve.
fn serving(variants: &[VariantStrides<'_>], role: Role) -> Serving {
    let of_role = || variants.iter().filter(|it| it.spec.role == role);
    let reporting: usize = of_role().map(|it| it.replicas.len()).sum();
    let silent: Replicas = of_role().map(|it| it.silent).sum();

    Serving { reporting: reporting as f64, silent: f64::from(silent.count()) }
}
