//! The best fixed replica count: a constant fleet chosen with knowledge of all requests.
//!
//! # Model
//!
//! As [`fixed`], with the cheapest replica counts with which [`GOAL`] of all requests are served
//! well. A search finds them by simulation with the same requests and failures as the other
//! policies get. So it also works for closed workloads and for separate prefill and decode. All
//! replicas are ready at the start.
//!
//! A single variant's replica count is bisected between its bounds, and is at least one. With
//! several variants, the one with the widest bounds is bisected for each combination of the others.
//! The combinations are tried in ascending order of cost, while the fleet costs less than the best
//! fleet so far. Every model has at least one replica.
//!
//! # Source
//!
//! Kubernetes 1.36, "Deployments": `spec.replicas` without an autoscaler. The search for the best
//! count is Plimsoll's own.
//!
//! # Limits
//!
//! The search assumes that more replicas of one variant never serve fewer requests. With several
//! variants, more replicas of a slow one may serve worse, so the minimum is also tried if the
//! maximum is not enough. At most [`FLEETS_MAX`] fleets are simulated, and the cheapest found so
//! far is the result. With three or more variants a cheaper fleet may exist.

use crate::simulate::Micros;
use crate::simulate::peers::fixed;
use crate::simulate::peers::goal::{self, GOAL};
use crate::simulate::peers::unplayable::{NoFleet, Unplayable};
use crate::simulate::run::{self, Watch};
use crate::simulate::scenario::Scenario;
use plimsoll_core::units::Replicas;

/// The most fleets to simulate. One variant with at most 40 replicas takes seven, two such variants
/// about a hundred.
const FLEETS_MAX: u32 = 300;
/// The maximum replicas of a variant without an upper bound.
const UNBOUNDED: Replicas = Replicas::saturating(1_000);

/// The replica count of each variant.
type ReplicaCounts = Vec<u32>;

struct FixedCountSearch<'s, W> {
    scenario: &'s Scenario,
    seed: u64,
    watch: &'s mut W,
    /// The minimum and maximum replicas of each variant.
    bounds: Vec<(u32, u32)>,
    /// The variant whose replica count is bisected.
    bisected: usize,
    best: Option<ReplicaCounts>,
    tried: u32,
    /// The largest share of requests served well so far.
    served: f64,
    interrupted: bool,
}

/// Gives the variants of a scenario the cheapest replica counts that meet the goal.
///
/// # Errors
///
/// No replica counts meet the goal, or an engine's settings are invalid.
pub(crate) fn apply(
    scenario: &mut Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<(), Unplayable> {
    let mut search = FixedCountSearch::new(scenario, seed, watch);
    search.look()?;
    let FixedCountSearch { best, served, interrupted, .. } = search;
    match best {
        Some(fleet) => hire(scenario, &fleet),
        // An interrupted search leaves the scenario unchanged.
        None if interrupted => {}
        None => return Err(NoFleet { served }.into()),
    }

    Ok(())
}

fn hire(scenario: &mut Scenario, fleet: &[u32]) {
    for (variant, count) in scenario.variants.iter_mut().zip(fleet) {
        fixed::keep(variant, Replicas::saturating(*count));
    }
}

// === impl FixedCountSearch ===

impl<'s, W: Watch> FixedCountSearch<'s, W> {
    fn new(scenario: &'s Scenario, seed: u64, watch: &'s mut W) -> Self {
        let bounds: Vec<(u32, u32)> = scenario
            .variants
            .iter()
            .map(|variant| {
                let most = variant.spec.bounds.max().unwrap_or(UNBOUNDED).count();
                let least = variant.spec.bounds.min().count();
                let peers = scenario.variants.iter().filter(|it| it.model == variant.model);
                (least.max(u32::from(peers.count() == 1)).min(most), most)
            })
            .collect();

        let bisected = (0..bounds.len()).max_by_key(|&at| bounds[at].1 - bounds[at].0).unwrap_or(0);
        let best = None;
        let tried = 0;
        let served = 0.0;
        let interrupted = false;
        Self { scenario, seed, watch, bounds, bisected, best, tried, served, interrupted }
    }

    /// Tries the combinations of the other variants, cheapest first.
    fn look(&mut self) -> Result<(), Unplayable> {
        let mut open: Vec<ReplicaCounts> =
            vec![self.bounds.iter().map(|(least, _)| *least).collect()];
        while let Some(at) = self.cheapest(&open) {
            let fleet = open.swap_remove(at);
            if !self.is_cheaper(&fleet) || self.is_over() {
                break;
            }
            open.extend(next(&fleet, &self.bounds, self.bisected));
            self.bisect(&fleet)?;
        }

        Ok(())
    }

    /// The index of the cheapest fleet; on a tie, the one with the fewest replicas of the first
    /// variant.
    fn cheapest(&self, open: &[ReplicaCounts]) -> Option<usize> {
        (0..open.len()).min_by(|&a, &b| {
            let by_cost = self.cost(&open[a]).total_cmp(&self.cost(&open[b]));
            by_cost.then_with(|| open[a].cmp(&open[b]))
        })
    }

    /// Finds the fewest replicas of the bisected variant that are enough with these counts of the
    /// others.
    fn bisect(&mut self, fleet: &ReplicaCounts) -> Result<(), Unplayable> {
        let at = self.bisected;
        let (least, upper) = self.bounds[at];
        let affordable = (least..=upper).take_while(|it| self.is_cheaper(&with(fleet, at, *it)));
        let Some(most) = affordable.last() else { return Ok(()) };
        let mut low = least;
        let mut high = most;
        if !self.holds(&with(fleet, at, most))? {
            if least == most || !self.holds(&with(fleet, at, least))? {
                return Ok(());
            }
            high = least;
        }

        while low < high {
            let middle = u32::midpoint(low, high);
            if self.holds(&with(fleet, at, middle))? { high = middle } else { low = middle + 1 }
        }

        self.best = Some(with(fleet, at, high));
        Ok(())
    }

    /// The factor by which time runs faster.
    fn holds(&mut self, fleet: &ReplicaCounts) -> Result<bool, Unplayable> {
        if !self.serves_all(fleet) || self.is_over() {
            return Ok(false);
        }

        self.interrupted = !self.watch.goes_on(Micros::ZERO);
        if self.interrupted {
            return Ok(false);
        }

        let mut scenario = self.scenario.clone();
        hire(&mut scenario, fleet);
        let outcome = run::run(&scenario, self.seed, self.watch)?;
        self.tried += 1;
        self.interrupted = !outcome.complete;
        let share = goal::attained(&outcome);
        self.served = self.served.max(share);
        Ok(share >= GOAL && !self.interrupted)
    }

    /// Returns true if every model has a replica.
    fn serves_all(&self, fleet: &ReplicaCounts) -> bool {
        self.scenario.variants.iter().all(|variant| self.serves(fleet, variant.model))
    }

    fn serves(&self, fleet: &ReplicaCounts, model: usize) -> bool {
        let mut variants = self.scenario.variants.iter().zip(fleet);
        variants.any(|(it, count)| it.model == model && *count > 0)
    }

    fn is_over(&self) -> bool {
        self.interrupted || self.tried >= FLEETS_MAX
    }

    fn is_cheaper(&self, fleet: &ReplicaCounts) -> bool {
        self.best.as_ref().is_none_or(|best| self.cost(fleet) < self.cost(best))
    }

    /// The cost of a fleet per hour.
    fn cost(&self, fleet: &ReplicaCounts) -> f64 {
        let each = self.scenario.variants.iter().zip(fleet);
        each.map(|(variant, count)| variant.spec.cost.per_hour() * f64::from(*count)).sum()
    }
}

/// The successors of this fleet: one more replica of one variant, except the bisected variant. It
/// starts at the last variant above its minimum, so that each combination occurs once.
fn next(fleet: &ReplicaCounts, bounds: &[(u32, u32)], bisected: usize) -> Vec<ReplicaCounts> {
    let others = (0..fleet.len()).filter(|&at| at != bisected);
    let raised = others.clone().rfind(|&at| fleet[at] > bounds[at].0).unwrap_or(0);
    others
        .filter(|&at| at >= raised && fleet[at] < bounds[at].1)
        .map(|at| with(fleet, at, fleet[at] + 1))
        .collect()
}

/// A fleet with a different replica count of one variant.
fn with(fleet: &ReplicaCounts, at: usize, count: u32) -> ReplicaCounts {
    let mut changed = fleet.clone();
    changed[at] = count;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_the_others_comes_once() {
        let bounds = [(1, 3), (0, 9), (0, 2), (2, 2), (1, 4)];
        let mut open = vec![vec![1, 0, 0, 2, 1]];
        let mut seen = Vec::new();
        while let Some(fleet) = open.pop() {
            open.extend(next(&fleet, &bounds, 1));
            seen.push(fleet);
        }

        let all = seen.len();
        assert!(seen.iter().all(|it| it[1] == 0), "the second is bisected: {seen:?}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), all), (3 * 3 * 4, 3 * 3 * 4));
    }
}
