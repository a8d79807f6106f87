//! A clairvoyant schedule: replica counts chosen with knowledge of all requests.
//!
//! The search repairs schedules in simulation. Its result is feasible: it is simulated with the
//! same requests, starts and failures as the other policies get, and its cost is the simulated
//! cost. The true optimum may be lower, so a ratio to this schedule is an upper bound of the
//! possible savings.
//!
//! # Model
//!
//! The load of a 15 s step, in replicas, is the work of its requests divided by the capacity per
//! replica from the engine's coefficients. For each of a few [`SCALES`], the schedule has that
//! multiple of the load ready at each step.
//!
//! The search simulates the schedule. Each minute whose requests were not served well gets more
//! replicas, from the step before it on. This repeats until [`GOAL`] of all requests are served
//! well, or [`REPAIRS`] repairs are done. Then five-minute stretches lose one replica each if that
//! keeps the goal.
//!
//! The cheapest schedule that meets the goal wins. If none does, the one that serves the most wins.
//!
//! A replica is requested one start-up time ahead, and kept if it is needed again within one
//! start-up time. Beyond the warm nodes, this time includes the wait for a node. Replicas that
//! exist at time zero were requested before it, and their cost counts from zero on.
//!
//! # Limits
//!
//! Models with several variants fill them in ascending order of cost per capacity. The plan uses
//! the median start-up time, so repairs cover the variation. Closed workloads cannot be known.

use crate::simulate::Micros;
use crate::simulate::peers::demand;
use crate::simulate::peers::goal::{self, GOAL};
use crate::simulate::peers::law::Rule;
use crate::simulate::peers::profile;
use crate::simulate::peers::schedule::{ReplicaSchedule, STEP};
use crate::simulate::peers::sight::whole;
use crate::simulate::peers::unplayable::Unplayable;
use crate::simulate::replica::settings::StepTime;
use crate::simulate::run::{self, Watch};
use crate::simulate::scenario::{Actuator, Scenario, Startup, Variant};
use crate::simulate::score::{MINUTE, Minute, Outcome};
use crate::simulate::workload::load::Size;
use plimsoll_core::units::Replicas;

/// The share of requests served well below which a minute is repaired.
const GOOD_MINUTE: f64 = 0.985;
/// Multiples of the load to try. A fleet below the mean load may be enough if queues drain within
/// the objective; bursts need more.
const SCALES: [f64; 5] = [0.85, 1.0, 1.15, 1.3, 1.5];
/// The most repairs of one schedule.
const REPAIRS: usize = 12;
/// The steps of a stretch that loses a replica as a whole: five minutes.
const STRETCH: usize = 20;

/// The ready capacity of each model at each step, in requests/s.
type CapacitySteps = Vec<Vec<f64>>;

/// A simulated schedule.
struct ScheduleTrial {
    needs: CapacitySteps,
    attained: f64,
    cost: f64,
    /// For each model and minute of arrival, the share of requests served well.
    minutes: Vec<Vec<Option<f64>>>,
}

struct ScheduleSearch<'s, W> {
    scenario: &'s Scenario,
    seed: u64,
    watch: &'s mut W,
    /// The variants of each model, cheapest first: index, and requests/s per replica.
    variants: Vec<Vec<(usize, f64)>>,
}

/// Makes a scenario follow the best schedule found.
///
/// # Errors
///
/// The workload cannot be known, or an engine's settings are invalid.
pub(crate) fn apply(
    scenario: &mut Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<(), Unplayable> {
    let mut loads = Vec::new();
    let mut variants = Vec::new();
    for model in 0..scenario.models.len() {
        let requests = demand::requests(scenario, seed, model)?;
        let ordered = demand::cheapest_first(scenario, model, demand::mean(&requests));
        variants.push(ordered.iter().map(|(at, rate, _)| (*at, rate.max(1e-6))).collect());
        let mut steps = vec![0.0; steps(scenario.length)];
        // A request counts by its work relative to the mean, with the step coefficients of the
        // first variant.
        let time = ordered.first().map(|(_, _, variant)| variant.engine.step);
        let all: f64 = requests.iter().map(|(_, size)| work(*size, time)).sum();
        let mean = (all / requests.len().max(1) as f64).max(1e-9);
        for (at, size) in &requests {
            if let Some(step) = steps.get_mut(index(*at)) {
                *step += work(*size, time) / mean / STEP.seconds();
            }
        }

        loads.push(steps);
    }

    let mut search = ScheduleSearch { scenario, seed, watch, variants };
    let found = search.best(&loads)?;
    let plan = search.plan(&found.needs);
    for (variant, numbers) in scenario.variants.iter_mut().zip(plan) {
        follow(variant, numbers);
    }

    Ok(())
}

/// The work of a request, without the fixed part of its steps; one without coefficients.
fn work(size: Size, time: Option<StepTime>) -> f64 {
    let Some(step) = time else { return 1.0 };
    let prompt = step.beta * f64::from(size.prompt);
    prompt + step.delta * f64::from(size.output) + step.gamma * profile::tokens_read(size)
}

impl<W: Watch> ScheduleSearch<'_, W> {
    fn best(&mut self, loads: &[Vec<f64>]) -> Result<ScheduleTrial, Unplayable> {
        let mut best: Option<ScheduleTrial> = None;
        for scale in SCALES {
            let needs = loads.iter().map(|steps| smoothed(steps, scale)).collect();
            let tried = self.repaired(needs)?;
            if best.as_ref().is_none_or(|known| tried.beats(known)) {
                best = Some(tried);
            }
            if !self.watch.goes_on(Micros::ZERO) {
                break;
            }
        }

        let chosen = match best {
            Some(best) => best,
            None => self.simulate(loads.to_vec())?,
        };
        self.lowered(chosen)
    }

    /// Adds replicas in minutes whose requests were not served well.
    fn repaired(&mut self, needs: CapacitySteps) -> Result<ScheduleTrial, Unplayable> {
        let mut tried = self.simulate(needs)?;
        for _ in 0..REPAIRS {
            if tried.attained >= GOAL || !self.watch.goes_on(Micros::ZERO) {
                break;
            }

            let mut needs = tried.needs.clone();
            for (model, minutes) in tried.minutes.iter().enumerate() {
                let each = self.smallest(model);
                let mut before_was_bad = 0_u32;
                for (minute, share) in minutes.iter().enumerate() {
                    let Some(share) = share.filter(|share| *share < GOOD_MINUTE) else {
                        before_was_bad = 0;
                        continue;
                    };
                    // A bad minute after another is often only the queue of the first.
                    if before_was_bad < 3 {
                        raise(&mut needs[model], minute, each, share);
                    }

                    before_was_bad += 1;
                }
            }

            tried = self.simulate(needs)?;
        }

        Ok(tried)
    }

    /// Removes replicas if the goal is met without them.
    fn lowered(&mut self, mut best: ScheduleTrial) -> Result<ScheduleTrial, Unplayable> {
        if best.attained < GOAL {
            return Ok(best);
        }
        for model in 0..best.needs.len() {
            let each = self.smallest(model);
            for start in (0..best.needs[model].len()).step_by(STRETCH) {
                if !self.watch.goes_on(Micros::ZERO) {
                    return Ok(best);
                }

                let mut needs = best.needs.clone();
                let end = (start + STRETCH).min(needs[model].len());
                for need in &mut needs[model][start..end] {
                    *need = (*need - each).max(0.0);
                }

                let tried = self.simulate(needs)?;
                if tried.attained >= GOAL && tried.cost < best.cost {
                    best = tried;
                }
            }
        }

        Ok(best)
    }

    /// The requests/s of the variant with the smallest capacity per replica.
    fn smallest(&self, model: usize) -> f64 {
        self.variants[model].iter().map(|(_, rate)| *rate).reduce(f64::min).unwrap_or(1.0)
    }

    fn simulate(&mut self, needs: CapacitySteps) -> Result<ScheduleTrial, Unplayable> {
        let mut scenario = self.scenario.clone();
        for (variant, numbers) in scenario.variants.iter_mut().zip(self.plan(&needs)) {
            follow(variant, numbers);
        }
        let outcome = run::run(&scenario, self.seed, self.watch)?;
        Ok(ScheduleTrial::new(needs, &scenario, &outcome))
    }

    /// The desired replicas of each variant at each step.
    fn plan(&self, needs: &[Vec<f64>]) -> Vec<Vec<Replicas>> {
        let count = steps(self.scenario.length);
        let mut plan = vec![vec![Replicas::ZERO; count]; self.scenario.variants.len()];
        for (needs, variants) in needs.iter().zip(&self.variants) {
            for (step, need) in needs.iter().enumerate() {
                let mut left = *need;
                for &(variant, rate) in variants {
                    let bounds = self.scenario.variants[variant].spec.bounds;
                    let enough = whole((left / rate - 1e-9).max(0.0)).max(bounds.min());
                    let number = bounds.max().map_or(enough, |max| enough.min(max));
                    left -= f64::from(number.count()) * rate;
                    plan[variant][step] = number;
                }
            }
        }

        for (numbers, variant) in plan.iter_mut().zip(&self.scenario.variants) {
            ahead(numbers, &variant.startup);
        }

        plan
    }
}

impl ScheduleTrial {
    fn new(needs: CapacitySteps, scenario: &Scenario, outcome: &Outcome) -> Self {
        let attained = goal::attained(outcome);
        let crews = outcome.variants.iter().zip(&scenario.variants);
        let cost = crews
            .map(|(crew, variant)| crew.replica_time.seconds() * variant.spec.cost.per_hour())
            .sum();

        let minutes = outcome
            .models
            .iter()
            .map(|service| service.minutes.iter().map(share).collect())
            .collect();
        Self { needs, attained, cost, minutes }
    }

    fn beats(&self, other: &Self) -> bool {
        match (self.attained >= GOAL, other.attained >= GOAL) {
            (true, true) => self.cost < other.cost,
            (false, false) => self.attained > other.attained,
            (mine, _) => mine,
        }
    }
}

/// The share of a minute's requests that was served well; `None` without any that fit an engine.
fn share(minute: &Minute) -> Option<f64> {
    let judged = f64::from(minute.judged - minute.unservable);
    (judged > 0.0).then(|| f64::from(minute.good) / judged)
}

fn follow(variant: &mut Variant, numbers: Vec<Replicas>) {
    variant.initial = numbers.first().copied().unwrap_or(Replicas::ONE);
    variant.actuator = Actuator::Law(Rule::Schedule(ReplicaSchedule::new(numbers)));
}

/// Raises a minute and the step before it: by at least one replica, and by more the worse the
/// minute was.
fn raise(steps: &mut [f64], minute: usize, each: f64, share: f64) {
    let in_minute = usize::try_from(MINUTE.micros() / STEP.micros()).unwrap_or(1);
    let start = (minute * in_minute).saturating_sub(1);
    let end = ((minute + 1) * in_minute).min(steps.len());
    for step in &mut steps[start.min(end)..end] {
        *step += each.max(*step * 0.1 * (1.0 - share));
    }
}

/// The mean load of each step and the one before it, whose answers are still being generated.
fn smoothed(steps: &[f64], scale: f64) -> Vec<f64> {
    (0..steps.len())
        .map(|at| {
            let before = steps[at.saturating_sub(1)];
            scale * f64::midpoint(before, steps[at])
        })
        .collect()
}

/// Requests the needed replicas one start-up time ahead. Beyond the warm nodes, that time includes
/// the wait for a node.
fn ahead(numbers: &mut [Replicas], startup: &Startup) {
    let process = startup.image + startup.load + startup.warmup;
    let leads = [process, process + startup.node].map(|start| index(start) + 1);
    for at in 0..numbers.len() {
        let [near, far] = leads.map(|lead| (at + lead + 1).min(numbers.len()));
        let beyond_warm = numbers[near..far]
            .iter()
            .filter(|number| !startup.has_warm_node(number.count() as usize));
        let needed = numbers[at..near].iter().chain(beyond_warm);
        numbers[at] = needed.copied().max().unwrap_or(numbers[at]);
    }
}

fn steps(length: Micros) -> usize {
    index(length) + 1
}

fn index(at: Micros) -> usize {
    usize::try_from(at.micros() / STEP.micros()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_asked_for_a_start_ahead_and_kept_over_gaps_that_are_shorter() {
        let startup = Startup {
            image: Micros::from_secs(10),
            load: Micros::from_secs(10),
            warmup: Micros::from_secs(9),
            ..Startup::default()
        };

        let n = Replicas::saturating;
        let mut numbers: Vec<Replicas> = [1, 1, 1, 1, 3, 1, 1, 3, 1, 1].map(n).to_vec();
        // 29 s fit within two steps, so the replicas for step 4 are requested at step 2.
        ahead(&mut numbers, &startup);
        assert_eq!(numbers, [1, 1, 3, 3, 3, 3, 3, 3, 1, 1].map(n));
    }

    #[test]
    fn replicas_beyond_the_warm_nodes_are_asked_for_by_the_wait_for_a_node_earlier() {
        for (warm, asked) in [(Some(1), 2), (Some(3), 6), (None, 6)] {
            let startup = Startup {
                warm_nodes: warm,
                node: Micros::from_secs(60),
                load: Micros::from_secs(29),
                ..Startup::default()
            };

            let n = Replicas::saturating;
            let mut numbers: Vec<Replicas> = [1, 1, 1, 1, 1, 1, 1, 1, 3, 1].map(n).to_vec();
            ahead(&mut numbers, &startup);
            let first = numbers.iter().position(|number| *number == n(3));
            assert_eq!(first, Some(asked), "{warm:?}: {numbers:?}");
            assert_eq!(numbers[9], n(1), "{warm:?}");
        }
    }

    #[test]
    fn a_bad_minute_gets_a_replica_from_the_step_before_it_on() {
        let mut steps = vec![10.0; 12];
        raise(&mut steps, 1, 2.0, 0.5);
        let raised: Vec<usize> = (0..12).filter(|&at| steps[at] > 10.0).collect();
        assert_eq!(raised, [3, 4, 5, 6, 7]);
        assert!((steps[4] - 12.0).abs() < 1e-9);
    }
}
