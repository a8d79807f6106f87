//! What one replica of a variant carries, and how sure that is.
//!
//! # Model
//!
//! The learner keeps a covariance `P` of the logarithms of the three coefficients `theta`. The rate
//! `mu` that a replica carries (see [`capacity`](crate::analyze::foresight::capacity)) is found again
//! with each of them a little larger, which says how much of it depends on that one, `g`. So `mu` is
//! known up to a share `r`, a standard deviation:
//!
//! ```text
//! g = d ln(mu) / d ln(theta)                each by itself
//! r = sqrt(g' P g)
//! low  = mu * exp(-1.96 r)
//! high = mu * exp(+1.96 r)
//! ```
//!
//! Single coefficients may be far off where only their sum was learned; `g' P g` stays small there,
//! and grows where what limits the replica is unlike what was learned from.
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

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::{
    Bound, Carried, FirstToken, Limits, Requested, carried, usual_itl,
};
use crate::analyze::foresight::demand::strides;
use crate::analyze::foresight::drift::{Elasticity, Mix};
use crate::analyze::foresight::pace::{Iteration, Pace};
use crate::analyze::foresight::seen::Seen;
use crate::analyze::foresight::{Foresight, Policy, RATE_MIN, Side, VariantStrides, standby};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Fraction, RequestRate, Tokens};

/// Standard deviations on either side of a mean that 95 in 100 of a normal distribution lie within.
const DEVIATIONS: f64 = 1.96;

/// By how much a coefficient is changed to see how much depends on it.
const NUDGE: f64 = 1.01;

/// What one replica of a variant carries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// What its engine lets it carry.
    pub rate: RequestRate,
    /// The share of it that the router lets it carry, on which decisions count; zero where the
    /// variant is not to be used.
    #[serde(default = "all")]
    pub usable: Fraction,
    /// Where it lies in 95 of 100 cases; `None` where the doubt is beyond all numbers.
    pub interval: Option<Interval>,
    /// What keeps it from being more.
    pub bound: Bound,
    /// Who says so.
    pub said_by: Teacher,
}

const fn all() -> Fraction {
    Fraction::ONE
}

/// The ends between which something lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// It is not less.
    pub low: RequestRate,
    /// It is not more.
    pub high: RequestRate,
}

/// Who says what a replica carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Teacher {
    /// Replicas of the variant, by what they did.
    Replicas,
    /// A capacity card, until they have.
    Card,
}

impl Teacher {
    /// The word for it, in labels and answers.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Replicas => "replicas",
            Self::Card => "card",
        }
    }
}

impl Interval {
    /// 95 in 100 of what lies around a rate, with this standard deviation as a share of it.
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
    /// The variants of each role with what one replica carries. Of `bound` ones a card takes nothing
    /// away.
    pub(super) fn sides<'a>(
        &self,
        policy: &Policy,
        model: &ModelKey,
        variants: &'a [VariantStrides<'a>],
        bound: &BTreeSet<VariantKey>,
    ) -> BTreeMap<Role, Side<'a>> {
        let mut sides: BTreeMap<Role, Side<'_>> = BTreeMap::new();
        for variant in variants {
            let role = variant.spec.role;
            let side = sides.entry(role).or_insert_with(|| Side {
                role,
                variants: Vec::new(),
                by_card: false,
            });
            side.by_card |= bound.contains(&variant.spec.key);
            let known = self.known(policy, model, variant);
            side.variants.push((variant, known.and_then(|it| it.carried())));
        }
        sides
    }

    /// What one replica of each variant carries and how sure that is, where it is something.
    pub(super) fn estimates(
        &self,
        policy: &Policy,
        model: &ModelKey,
        sides: &BTreeMap<Role, Side<'_>>,
    ) -> BTreeMap<VariantKey, Estimate> {
        let estimate = |(variant, carried): &(&VariantStrides<'_>, Option<Carried>)| {
            let known = self.known(policy, model, variant)?;
            Some((variant.spec.key.clone(), known.estimate((*carried)?)?))
        };
        sides.values().flat_map(|side| &side.variants).filter_map(estimate).collect()
    }

    /// The work of requests of the past, if their lengths have changed within a start.
    pub(super) fn work(&self, policy: &Policy, model: &ModelKey, side: &Side<'_>) -> Vec<f64> {
        self.drifted(policy, model, side).unwrap_or_default()
    }

    fn drifted(&self, policy: &Policy, model: &ModelKey, side: &Side<'_>) -> Option<Vec<f64>> {
        let drift = policy.drift?;
        let demand = self.demands.get(&(model.clone(), side.role))?;
        let largest = side.known().max_by_key(|(variant, _)| variant.current)?;
        let known = self.known(policy, model, largest.0)?;
        let horizon = policy.horizon(standby::startup(side, policy).seconds());
        let before =
            demand.mixes.drifted(strides(horizon), &known.requested, &demand.lengths, drift)?;
        let elasticity = known.elasticity(before)?;
        Some(demand.mixes.weights(demand.arrivals.points(), elasticity))
    }

    /// By what is judged what one replica of a variant carries.
    fn known(
        &self,
        policy: &Policy,
        model: &ModelKey,
        variant: &VariantStrides<'_>,
    ) -> Option<Known<'_>> {
        let VariantStrides { spec, told, .. } = variant;
        let seen = self.variants.get(&spec.key)?;
        let iteration = seen.iteration()?;
        let shared = &self.demands.get(&(model.clone(), spec.role))?.lengths;
        let requested = seen.requested(shared)?;
        let itl = policy.itl.or_else(|| usual_itl(iteration, requested.pieces));
        let budget = told.budget.map_or(policy.budget, |told| told.tokens().min(policy.budget));
        let first = FirstToken {
            within: policy.ttft,
            per_token: policy.ttft_per_token,
            long: policy.long_prompt,
        };
        let limits = Limits {
            itl: itl.filter(|_| spec.role != Role::Prefill),
            first: (spec.role != Role::Decode).then_some(first),
            seats: seen.seats(told.seats.unwrap_or(policy.seats).requests()),
            kv: seen.kv_of_a_rank(),
            budget: budget.max(seen.busiest()),
            share: policy.limit_share,
            shared: seen
                .dispersion
                .shared(f64::from(variant.current.beyond(variant.pending).count())),
        };
        Some(Known { seen, iteration, requested, limits })
    }
}

/// By what is judged what one replica carries.
struct Known<'a> {
    seen: &'a Seen,
    iteration: Iteration,
    requested: Requested,
    limits: Limits,
}

impl Known<'_> {
    /// What one replica carries.
    fn carried(&self) -> Option<Carried> {
        let Self { seen, iteration, requested, limits } = self;
        let each = carried(*iteration, requested, limits)?;
        let rate = self.corrected(each);
        // What only a card finds impossible may be possible.
        if seen.card().is_some() && each.rate.requests_per_second() <= RATE_MIN {
            return None;
        }
        Some(Carried { rate: self.of_all_ranks(rate)?, ..each })
    }

    /// The rate of a rank, by what full replicas showed. An objective binds below their throughput.
    fn corrected(&self, each: Carried) -> RequestRate {
        let Self { seen, iteration, requested, limits } = self;
        let Some(throughput) = seen.throughput() else { return each.rate };

        let correction = throughput.correction(*iteration, requested, limits);
        let rate = each.rate.requests_per_second();
        let corrected = match each.bound {
            Bound::Seats | Bound::Kv | Bound::Budget => correction * rate,
            Bound::Itl | Bound::Ttft => {
                let most = correction * limits.most(*iteration, requested);
                rate.min(limits.share.fraction() * most)
            }
        };
        RequestRate::new(corrected).unwrap_or(each.rate)
    }

    /// The share by which the work of a request grows with each of its lengths, since they were these.
    fn elasticity(&self, before: Mix) -> Option<Elasticity> {
        let Self { iteration, requested, limits, .. } = self;
        let rate = |requested: &Requested| {
            Some(carried(*iteration, requested, limits)?.rate.requests_per_second())
        };
        let now = rate(requested)?;
        let computed = requested.computed.tokens() / requested.prompt.tokens().max(1.0);
        let prompt = Tokens::new(before.prompt)?;
        let shorter_prompt =
            Requested { prompt, computed: Tokens::new(before.prompt * computed)?, ..*requested };
        let shorter_answer = Requested { output: Tokens::new(before.output)?, ..*requested };
        Some(Elasticity {
            prompt: Elasticity::between(
                requested.prompt.tokens(),
                before.prompt,
                now,
                rate(&shorter_prompt)?,
            ),
            output: Elasticity::between(
                requested.output.tokens(),
                before.output,
                now,
                rate(&shorter_answer)?,
            ),
        })
    }

    /// The same with how sure that is; `None` where it is nothing.
    fn estimate(&self, carried: Carried) -> Option<Estimate> {
        let Self { seen, iteration, requested, limits } = self;
        let Carried { rate, by_formula, usable, bound, .. } = carried;
        if rate.requests_per_second() <= RATE_MIN {
            return None;
        }

        let of_a_rank = by_formula.requests_per_second();
        let doubt = doubt(&seen.pace, (*iteration, requested, limits), of_a_rank);
        let interval = doubt.and_then(|doubt| Interval::around(rate, doubt));
        let said_by = if seen.card().is_some() { Teacher::Card } else { Teacher::Replicas };
        Some(Estimate { rate, usable, interval, bound, said_by })
    }

    fn of_all_ranks(&self, rate: RequestRate) -> Option<RequestRate> {
        RequestRate::new(rate.requests_per_second() * f64::from(self.seen.ranks()))
    }
}

/// How far off the rate may be that one rank carries: a standard deviation, as a share of it.
fn doubt(
    pace: &Pace,
    (iteration, requested, limits): (Iteration, &Requested, &Limits),
    rate: f64,
) -> Option<f64> {
    let Iteration { alpha, beta, delta } = iteration;
    let changed = [
        Iteration { alpha: NUDGE * alpha, ..iteration },
        Iteration { beta: NUDGE * beta, ..iteration },
        Iteration { delta: NUDGE * delta, ..iteration },
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

    #[test]
    fn the_truth_is_within_as_often_as_is_said_where_lessons_are_as_noisy_as_is_assumed() {
        let learning = Learning::default();
        let tokens = |count: f64| Tokens::new(count).unwrap();
        let requested = Requested {
            prompt: tokens(1000.0),
            computed: tokens(1000.0),
            output: tokens(200.0),
            prompt_squares: 2.0,
            answer_squares: 2.0,
            pieces: 1.0,
            held: tokens(1100.0),
        };
        let share = Fraction::new(0.92).unwrap();
        let limits = Limits {
            itl: Seconds::new(0.03),
            first: None,
            seats: 1e4,
            kv: None,
            budget: 8192.0,
            share,
            shared: 1.0,
        };
        let rate = |it: Iteration| carried(it, &requested, &limits).unwrap().rate;
        let truth = rate(TRUTH);
        let (mut within, mut below) = (0, 0);
        for seed in 0..400 {
            let mut random = Pcg64::seed_from_u64(seed);
            let mut pace = Pace::default();
            for _ in 0..40 {
                let load: f64 = random.random_range(0.1..0.6);
                let normal = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
                let times = 1.0 + learning.noise.fraction() * normal;
                let Iteration { alpha, beta, delta } = TRUTH;
                let [alpha, beta, delta] = [alpha, beta, delta].map(|it| times * it);
                let noisy = Iteration { alpha, beta, delta };
                pace.learn(&lesson(noisy, 1000.0 * load, 200.0 * load), &learning);
            }
            let iteration = pace.iteration().unwrap();
            let found = rate(iteration);
            let of_this = (iteration, &requested, &limits);
            let doubt = doubt(&pace, of_this, found.requests_per_second()).unwrap();
            let Interval { low, high } = Interval::around(found, doubt).unwrap();
            within += u32::from(low <= truth && truth <= high);
            below += u32::from(truth < low);
        }
        // 95 in 100 of 400, and three standard deviations of that.
        assert!((367..=393).contains(&within), "{within} of 400 are within, {below} below");
    }
}
