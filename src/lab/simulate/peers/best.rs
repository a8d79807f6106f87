//! The best fixed number of replicas: what somebody would rent who knew all requests beforehand and
//! never changed it.
//!
//! # Model
//!
//! As [`fixed`], with the numbers that cost the least of those with which [`GOAL`] of all requests
//! are served well. They are found by simulation with the same requests and failures as the others
//! meet, so a closed workload, or one with prefill and decode apart, has them as well. All replicas
//! are ready at the start.
//!
//! The number of one variant is bisected between its bounds, and is at least one. Of several
//! variants, the one with the widest bounds is bisected for each combination of the others, cheapest
//! first, as far as the whole costs less than the best that was found. Every model has at least one
//! replica.
//!
//! # Source
//!
//! Kubernetes 1.36, "Deployments": `spec.replicas` without an autoscaler. That the number is the best
//! one is this project's own search.
//!
//! # Limits
//!
//! The search takes for granted that more replicas of one variant serve no less. Of several variants,
//! where more of a slow one may serve worse, the fewest are tried as well where the most do not do.
//! At most [`FLEETS_MAX`] fleets are simulated, and the cheapest that was found by then counts; with
//! three variants or more there may be a cheaper one.

use crate::simulate::Micros;
use crate::simulate::peers::oracle::{self, GOAL};
use crate::simulate::peers::{Unplayable, fixed};
use crate::simulate::run::{self, Watch};
use crate::simulate::scenario::Scenario;
use plimsoll_core::units::Replicas;

/// Fleets that are simulated at most. A variant with at most 40 replicas takes seven, and two of them
/// about a hundred.
const FLEETS_MAX: u32 = 300;
/// The most replicas of a variant that nothing bounds.
const UNBOUNDED: Replicas = Replicas::saturating(1_000);

/// Why there is no fixed number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "no fixed number of replicas within the bounds of the variants serves {:.0} % within SLO; the best \
     that was tried serves {:.2} %",
    GOAL * 100.0,
    served * 100.0
)]
pub struct NoFleet {
    /// The largest share that one of those served well that were simulated, from 0 to 1.
    pub served: f64,
}

/// The number of each variant.
type Fleet = Vec<u32>;

struct Search<'s, W> {
    scenario: &'s Scenario,
    seed: u64,
    watch: &'s mut W,
    /// The fewest and the most of each variant.
    bounds: Vec<(u32, u32)>,
    /// The variant whose number is bisected.
    bisected: usize,
    best: Option<Fleet>,
    tried: u32,
    /// The largest share that was served well.
    served: f64,
    interrupted: bool,
}

/// Gives the variants of a scenario the cheapest numbers that serve it.
///
/// # Errors
///
/// No numbers do, or an engine has settings that no engine can have.
pub(crate) fn apply(
    scenario: &mut Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<(), Unplayable> {
    let mut search = Search::new(scenario, seed, watch);
    search.look()?;
    let Search { best, served, interrupted, .. } = search;
    match best {
        Some(fleet) => hire(scenario, &fleet),
        // Whoever interrupted it asks for nothing.
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

// === impl Search ===

impl<'s, W: Watch> Search<'s, W> {
    fn new(scenario: &'s Scenario, seed: u64, watch: &'s mut W) -> Self {
        let alone = |model: usize| scenario.variants.iter().filter(|it| it.model == model).count();
        let bounds: Vec<(u32, u32)> = scenario
            .variants
            .iter()
            .map(|variant| {
                let most = variant.spec.bounds.max().unwrap_or(UNBOUNDED).count();
                let least = variant.spec.bounds.min().count();
                (least.max(u32::from(alone(variant.model) == 1)).min(most), most)
            })
            .collect();
        let width = |at: &usize| bounds[*at].1 - bounds[*at].0;
        let bisected = (0..bounds.len()).max_by_key(width).unwrap_or(0);
        let (best, tried, served, interrupted) = (None, 0, 0.0, false);
        Self { scenario, seed, watch, bounds, bisected, best, tried, served, interrupted }
    }

    /// Goes through the combinations of the others, cheapest first.
    fn look(&mut self) -> Result<(), Unplayable> {
        let mut open: Vec<Fleet> = vec![self.bounds.iter().map(|(least, _)| *least).collect()];
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

    /// The place of the cheapest; of several, that with the fewest of the first variant.
    fn cheapest(&self, open: &[Fleet]) -> Option<usize> {
        let dearer = |a: &Fleet, b: &Fleet| self.cost(a).total_cmp(&self.cost(b));
        (0..open.len())
            .min_by(|&a, &b| dearer(&open[a], &open[b]).then_with(|| open[a].cmp(&open[b])))
    }

    /// Finds the fewest replicas of one variant that do beside these of the others.
    fn bisect(&mut self, fleet: &Fleet) -> Result<(), Unplayable> {
        let (at, (least, most)) = (self.bisected, self.bounds[self.bisected]);
        let affordable = (least..=most).take_while(|it| self.is_cheaper(&with(fleet, at, *it)));
        let Some(most) = affordable.last() else { return Ok(()) };
        let (mut low, mut high) = (least, most);
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

    /// Whether enough requests are served well. Nothing is tried any more once the search is over.
    fn holds(&mut self, fleet: &Fleet) -> Result<bool, Unplayable> {
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
        let share = oracle::attained(&outcome);
        self.served = self.served.max(share);
        Ok(share >= GOAL && !self.interrupted)
    }

    /// Whether every model has a replica.
    fn serves_all(&self, fleet: &Fleet) -> bool {
        let variants = || self.scenario.variants.iter().zip(fleet);
        variants().all(|(one, _)| variants().any(|(it, count)| it.model == one.model && *count > 0))
    }

    fn is_over(&self) -> bool {
        self.interrupted || self.tried >= FLEETS_MAX
    }

    fn is_cheaper(&self, fleet: &Fleet) -> bool {
        self.best.as_ref().is_none_or(|best| self.cost(fleet) < self.cost(best))
    }

    /// For an hour.
    fn cost(&self, fleet: &Fleet) -> f64 {
        let each = self.scenario.variants.iter().zip(fleet);
        each.map(|(variant, count)| variant.spec.cost.per_hour() * f64::from(*count)).sum()
    }
}

/// The fleets with one replica more, but for the variant that is bisected, that come after this one.
/// Only from the last variant on that has more than its fewest, so that each comes once.
fn next(fleet: &Fleet, bounds: &[(u32, u32)], bisected: usize) -> Vec<Fleet> {
    let others = (0..fleet.len()).filter(|&at| at != bisected);
    let raised = others.clone().rfind(|&at| fleet[at] > bounds[at].0).unwrap_or(0);
    let room = |at: &usize| *at >= raised && fleet[*at] < bounds[*at].1;
    others.filter(room).map(|at| with(fleet, at, fleet[at] + 1)).collect()
}

/// A fleet with another number of one variant.
fn with(fleet: &Fleet, at: usize, count: u32) -> Fleet {
    let mut fleet = fleet.clone();
    fleet[at] = count;
    fleet
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
