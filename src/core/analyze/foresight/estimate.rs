//! The estimated capacity per replica of a variant, with its uncertainty, which decides nothing.
//!
//! The capacity itself, which decisions count on, is computed in `variant_capacity.rs`.
//!
//! # Model
//!
//! The learner keeps a covariance `P` of the logarithms of the three coefficients `theta`. The
//! capacity per replica `mu` (see [`capacity`](crate::analyze::foresight::capacity)) is computed
//! again with each of them a little larger. That gives its elasticity to each, `g`. So `mu` is
//! known up to a share `r`, a standard deviation:
//!
//! ```text
//! g = d ln(mu) / d ln(theta)                one coefficient at a time
//! r = sqrt(g' P g)
//! low  = mu * exp(-1.96 r)
//! high = mu * exp(+1.96 r)
//! ```
//!
//! Single coefficients may be far off if only their sum was learned. Then `g' P g` stays small, and
//! grows if the replica's limit depends on iterations unlike those of the lessons.
//!
//! # Domain
//!
//! 95 in 100, by the noise and the drift that the learner assumes. The lengths of requests, the KV
//! tokens that they hold and the limits of the engine are taken as they are.
//!
//! # Source
//!
//! The variance of a prediction by regression, and the delta method: Casella and Berger,
//! *Statistical Inference* (2002), 11.3 and 5.5.4. The covariance: [`pace`].
//!
//! [`pace`]: crate::analyze::foresight::pace

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::{CapacityBound, RATE_MIN, ReplicaCapacity, carried};
use crate::analyze::foresight::limits::CapacityLimits;
use crate::analyze::foresight::pace::{IterationCost, PaceFilter};
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::variant_capacity::CapacityBasis;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Fraction, RequestRate};

/// Standard deviations on either side of a mean that 95 in 100 of a normal distribution lie within.
const DEVIATIONS: f64 = 1.96;

/// The factor by which a coefficient is changed to measure the dependence on it.
const NUDGE: f64 = 1.01;

/// The capacity per replica of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityEstimate {
    /// The capacity that its engine permits.
    pub rate: RequestRate,
    /// The share of it that the router lets a replica use, which decisions count on. Zero if the
    /// variant is not to be used.
    #[serde(default = "all")]
    pub usable: Fraction,
    /// The range of the rate in 95 of 100 cases; `None` if the doubt is too large for a number.
    pub interval: Option<CapacityInterval>,
    /// The limit that binds it.
    pub bound: CapacityBound,
    /// The source of the estimate.
    pub said_by: Teacher,
}

impl CapacityEstimate {
    /// The requests per second that a replica counts for in decisions.
    #[must_use]
    pub fn counts(&self) -> f64 {
        self.rate.requests_per_second() * self.usable.fraction()
    }
}

const fn all() -> Fraction {
    Fraction::ONE
}

/// The ends of a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityInterval {
    /// The lower end.
    pub low: RequestRate,
    /// The upper end.
    pub high: RequestRate,
}

/// The source of an estimated capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Teacher {
    /// Measurements of the variant's own replicas.
    Replicas,
    /// A capacity card, until its own replicas have taught enough.
    Card,
}

impl Teacher {
    /// The word for it, in labels and API responses.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::Card => "card",
        }
    }
}

impl CapacityInterval {
    /// The range of 95 in 100 values around a rate, given its standard deviation as a share of it.
    fn around(rate: RequestRate, doubt: f64) -> Option<Self> {
        let times = (DEVIATIONS * doubt).exp();
        Some(Self {
            low: RequestRate::new(rate.requests_per_second() / times)?,
            high: RequestRate::new(rate.requests_per_second() * times)?,
        })
    }
}

// === impl Foresight ===

impl Foresight {
    /// The capacity per replica of each variant with its uncertainty, if it is not zero.
    pub(super) fn estimates(
        &self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        sides: &BTreeMap<Role, RoleFleet<'_>>,
    ) -> BTreeMap<VariantKey, CapacityEstimate> {
        let mut estimates = BTreeMap::new();
        for (variant, carried) in sides.values().flat_map(RoleFleet::known) {
            let known = self.known(policy, model, variant);
            if let Some(estimate) = known.and_then(|it| it.estimate(carried)) {
                estimates.insert(variant.spec.key.clone(), estimate);
            }
        }

        estimates
    }
}

// === impl CapacityBasis ===

impl CapacityBasis<'_> {
    /// The estimate with its uncertainty; `None` if the replica has no capacity.
    fn estimate(&self, carried: ReplicaCapacity) -> Option<CapacityEstimate> {
        let Self { seen, iteration, requested, limits } = self;
        let ReplicaCapacity { rate, by_formula, usable, bound, .. } = carried;
        if rate.requests_per_second() <= RATE_MIN {
            return None;
        }

        let of_a_rank = by_formula.requests_per_second();
        let doubt = doubt(&seen.pace, *iteration, requested, limits, of_a_rank);
        let interval = doubt.and_then(|doubt| CapacityInterval::around(rate, doubt));
        let said_by = if seen.card().is_some() { Teacher::Card } else { Teacher::Replicas };
        Some(CapacityEstimate { rate, usable, interval, bound, said_by })
    }
}

/// The doubt about the rate of one rank: a standard deviation, as a share of it.
fn doubt(
    pace: &PaceFilter,
    iteration: IterationCost,
    requested: &RequestProfile,
    limits: &CapacityLimits,
    rate: f64,
) -> Option<f64> {
    let IterationCost { alpha, beta, delta } = iteration;
    let changed = [
        IterationCost { alpha: NUDGE * alpha, ..iteration },
        IterationCost { beta: NUDGE * beta, ..iteration },
        IterationCost { delta: NUDGE * delta, ..iteration },
    ];

    let mut shares = [0.0; 3];
    for (share, iteration) in shares.iter_mut().zip(changed) {
        let changed = carried(iteration, requested, limits)?.rate.requests_per_second();
        *share = (changed / rate).ln() / NUDGE.ln();
    }

    Some(pace.deviation(shares))
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::analyze::foresight::pace::tests::{TRUTH, lesson};
    use crate::analyze::foresight::policy::Learning;
    use crate::units::{Fraction, Seconds, Tokens};

    fn tokens(count: f64) -> Tokens {
        Tokens::new(count).unwrap()
    }

    #[test]
    fn the_truth_is_within_as_often_as_is_said_where_lessons_are_as_noisy_as_is_assumed() {
        let learning = Learning::default();
        let requested = RequestProfile {
            prompt: tokens(1000.0),
            computed: tokens(1000.0),
            output: tokens(200.0),
            prompt_squares: 2.0,
            computed_squares: 2.0,
            answer_squares: 2.0,
            pieces: 1.0,
            held: tokens(1100.0),
        };

        let share = Fraction::new(0.92).unwrap();
        let limits = CapacityLimits {
            itl: Seconds::new(0.03),
            first: None,
            seats: 1e4,
            kv: None,
            budget: 8192.0,
            share,
            shared: 1.0,
        };

        let truth = carried(TRUTH, &requested, &limits).unwrap().rate;
        let mut within = 0;
        let mut below = 0;
        for seed in 0..400 {
            let mut random = Pcg64::seed_from_u64(seed);
            let mut pace = PaceFilter::default();
            for _ in 0..40 {
                let load: f64 = random.random_range(0.1..0.6);
                let normal = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
                let times = 1.0 + learning.noise.fraction() * normal;
                let IterationCost { alpha, beta, delta } = TRUTH;
                let [alpha, beta, delta] = [alpha, beta, delta].map(|it| times * it);
                let noisy = IterationCost { alpha, beta, delta };
                pace.learn(&lesson(noisy, 1000.0 * load, 200.0 * load), &learning);
            }

            let iteration = pace.iteration().unwrap();
            let found = carried(iteration, &requested, &limits).unwrap().rate;
            let rate = found.requests_per_second();
            let doubt = doubt(&pace, iteration, &requested, &limits, rate).unwrap();
            let CapacityInterval { low, high } = CapacityInterval::around(found, doubt).unwrap();
            within += u32::from(low <= truth && truth <= high);
            below += u32::from(truth < low);
        }

        // 95 in 100 of 400, and three standard deviations of that.
        assert!((367..=393).contains(&within), "{within} of 400 are within, {below} below");
    }
}
