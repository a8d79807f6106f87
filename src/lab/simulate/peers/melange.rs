//! A static fleet as Mélange would select it: the cheapest mix of variants for a known workload.
//!
//! # Model
//!
//! Requests are put into buckets by the lengths of prompt and answer. A bucket of `r` requests/s is
//! a load of `r / tput` replicas on a variant. `tput` is the variant's sustained throughput for
//! requests of that size within the ITL objective. Each bucket is cut into slices, each of which
//! goes to one variant, so that
//!
//! ```text
//! minimize  sum of cost_v * N_v     such that  the slices of v are a load of at most N_v
//! ```
//!
//! The rate is that of the busiest minute. The rate and the lengths are known beforehand. The
//! replica counts never change.
//!
//! # Source
//!
//! Griggs et al., "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU
//! Heterogeneity", arXiv 2404.14527; tyler-griggs/melange-release, `melange/solver.py` at commit
//! 5dd1b3c.
//!
//! # Limits
//!
//! Throughputs come from the engines' coefficients rather than from a benchmark. The search does
//! not cover mixes of more than two variants.

use std::collections::BTreeMap;

use crate::simulate::Micros;
use crate::simulate::peers::demand::{self, Unplannable};
use crate::simulate::peers::profile::{self, SizeSums};
use crate::simulate::peers::sight::whole;
use crate::simulate::scenario::{Actuator, Scenario};
use crate::simulate::workload::load;
use plimsoll_core::units::Replicas;

/// Upper edges of the buckets, in tokens, as in the paper's figures.
const PROMPT_EDGES: [u32; 9] = [25, 100, 250, 500, 1_000, 2_000, 4_000, 8_000, 32_000];
const OUTPUT_EDGES: [u32; 6] = [25, 100, 250, 500, 1_000, 2_000];
/// `slice_factor`.
const SLICES: usize = 8;
const MINUTE: Micros = Micros::from_secs(60);

/// A slice's load on each of two variants, in replicas.
type Slice = (f64, f64);

/// Gives each model of a scenario its cheapest mix, which never changes.
pub(crate) fn apply(scenario: &mut Scenario, seed: u64) -> Result<(), Unplannable> {
    let mut numbers = vec![Replicas::ZERO; scenario.variants.len()];
    for model in 0..scenario.models.len() {
        let requests = demand::requests(scenario, seed, model)?;
        for (variant, number) in mix(scenario, model, &requests) {
            numbers[variant] = number;
        }
    }

    for (variant, number) in scenario.variants.iter_mut().zip(numbers) {
        let bounds = variant.spec.bounds;
        let most = bounds.max().unwrap_or(number);
        variant.initial = number.max(bounds.min()).min(most);
        variant.actuator = Actuator::Fixed;
    }

    Ok(())
}

/// The replica count of each variant of a model.
fn mix(
    scenario: &Scenario,
    model: usize,
    requests: &[(Micros, load::Size)],
) -> Vec<(usize, Replicas)> {
    let itl = scenario.models[model].slo.itl.seconds();
    let buckets = buckets(requests);
    let rate = busiest(requests) / requests.len().max(1) as f64;
    let of = scenario.variants.iter().enumerate().filter(|(_, variant)| variant.model == model);
    let variants: Vec<(usize, f64, Vec<f64>)> = of
        .map(|(at, variant)| {
            let mut loads = Vec::with_capacity(buckets.len());
            for bucket in &buckets {
                let tput = profile::sustained(variant, itl, bucket.mean());
                loads.push(rate * bucket.count / tput.max(1e-9));
            }

            (at, variant.spec.cost.per_hour(), loads)
        })
        .collect();
    let mut best: Option<(f64, Vec<(usize, Replicas)>)> = None;
    for (at, one) in variants.iter().enumerate() {
        for other in &variants[at..] {
            let (cost, numbers) = if one.0 == other.0 {
                let number = number(one.2.iter().sum());
                (f64::from(number.count()) * one.1, vec![(one.0, number)])
            } else {
                let loads: Vec<Slice> =
                    one.2.iter().copied().zip(other.2.iter().copied()).collect();
                let (a, b) = pair(&loads, one.1, other.1);
                let cost = f64::from(a.count()) * one.1 + f64::from(b.count()) * other.1;
                (cost, vec![(one.0, a), (other.0, b)])
            };

            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, numbers));
            }
        }
    }

    best.map(|(_, numbers)| numbers).unwrap_or_default()
}

/// Rounds a load up to whole replicas. The tolerance keeps rounding errors in sums from adding a
/// replica.
fn number(load: f64) -> Replicas {
    whole((load - 1e-9).max(0.0))
}

/// The cheapest replica counts of two variants for these loads, at these costs.
fn pair(loads: &[Slice], cost: f64, other: f64) -> (Replicas, Replicas) {
    let mut slices: Vec<Slice> = loads
        .iter()
        .flat_map(|&(a, b)| {
            let slice = (a / SLICES as f64, b / SLICES as f64);
            std::iter::repeat_n(slice, SLICES)
        })
        .collect();
    // Ascending by the ratio of the load on the first variant to the load on the other.
    slices.sort_by(|x, y| (x.0 * y.1).total_cmp(&(y.0 * x.1)));
    let mut rest: f64 = slices.iter().map(|slice| slice.1).sum();
    let mut taken = 0.0;
    let mut best = (number(0.0), number(rest));
    for slice in &slices {
        taken += slice.0;
        rest -= slice.1;
        let next = (number(taken), number(rest));
        if price(next, cost, other) < price(best, cost, other) {
            best = next;
        }
    }

    best
}

/// The cost of both numbers in an hour.
fn price(numbers: (Replicas, Replicas), cost: f64, other: f64) -> f64 {
    f64::from(numbers.0.count()) * cost + f64::from(numbers.1.count()) * other
}

/// The requests of each bucket.
fn buckets(requests: &[(Micros, load::Size)]) -> Vec<SizeSums> {
    let mut buckets: BTreeMap<(usize, usize), SizeSums> = BTreeMap::new();
    for (_, size) in requests {
        let prompt = PROMPT_EDGES.partition_point(|&edge| edge < size.prompt);
        let output = OUTPUT_EDGES.partition_point(|&edge| edge < size.output);
        buckets.entry((prompt, output)).or_default().add(*size);
    }

    buckets.into_values().collect()
}

/// The requests/s of the busiest minute.
fn busiest(requests: &[(Micros, load::Size)]) -> f64 {
    let mut minutes: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, _) in requests {
        *minutes.entry(at.micros() / MINUTE.micros()).or_default() += 1;
    }
    minutes.into_values().max().unwrap_or(0) as f64 / MINUTE.seconds()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_variants_share_the_buckets_so_that_whole_replicas_cost_the_least() {
        let n = Replicas::saturating;
        // Each bucket's load on the first and second variant, costs, replica counts.
        for (loads, cost, other, wanted) in [
            // One variant is cheaper for every bucket.
            (vec![(1.5, 1.5)], 1.0, 2.0, (n(2), n(0))),
            (vec![(1.5, 1.5)], 2.0, 1.0, (n(0), n(2))),
            // Each variant gets the bucket that it handles best.
            (vec![(1.0, 4.0), (4.0, 1.0)], 1.0, 1.0, (n(1), n(1))),
            // Small replicas fill up large ones. 7 slices of 2.25 / 8 are a load of 2, and the
            // eighth is a load of 1.125 on the small ones.
            (vec![(2.25, 9.0)], 4.0, 1.3, (n(2), n(2))),
            (vec![], 1.0, 1.0, (n(0), n(0))),
        ] {
            assert_eq!(pair(&loads, cost, other), wanted, "{loads:?}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_busiest_minute() {
        let size = load::Size { prompt: 1, output: 1 };
        let requests = [0, 1, 61].map(|second| (Micros::from_secs(second), size));
        assert!((busiest(&requests) - 2.0 / 60.0).abs() < 1e-12);
        assert!(busiest(&[]) < 1e-12);
    }
}
