//! A clairvoyant schedule: what somebody could do who knew all requests beforehand.
//!
//! It is found by simulated repair and is feasible: it was simulated with the same requests, starts
//! and failures as the others meet, and what it cost is what it costs. The true optimum may be lower,
//! so a ratio to it says at most how much could be saved.
//!
//! # Model
//!
//! The load of a step of 15 s, in replicas, is the work of its requests over what a replica sustains
//! by its engine's coefficients. For each of a few [`SCALES`], the schedule has that many times the
//! load ready at each step. It is simulated, and where the requests of a minute were not served well
//! it gets more replicas from the step before on, until [`GOAL`] of all requests are, or
//! [`REPAIRS`] have been tried. Then stretches of five minutes are lowered by one replica each where
//! that keeps the goal. The cheapest schedule that meets the goal wins, or, when none does, the one
//! that serves the most.
//!
//! A replica is asked for a start-up time ahead, and kept where it would be needed again within
//! one. What there is at time zero was asked for before it, and is paid for from zero on.
//!
//! # Limits
//!
//! Models with several variants fill them in the order of what their capacity costs. How long a start
//! takes is known by its median, so what varies is repaired. Closed workloads cannot be known.

use crate::simulate::Micros;
use crate::simulate::peers::Unplayable;
use crate::simulate::peers::demand;
use crate::simulate::peers::law::{Rule, whole};
use crate::simulate::peers::schedule::{STEP, Schedule};
use crate::simulate::run::{self, Watch};
use crate::simulate::scenario::{Actuator, Scenario, Startup, Variant};
use crate::simulate::score::{MINUTE, Minute, Outcome, Service};
use crate::simulate::workload::load::Size;
use plimsoll_core::units::Replicas;

/// The share of requests that is to be served well.
pub(crate) const GOAL: f64 = 0.99;
/// A minute below this is repaired.
const GOOD_MINUTE: f64 = 0.985;
/// Shares of the load that are tried. A fleet below its load by the mean may do where queues drain
/// within the objective, and bursts need more.
const SCALES: [f64; 5] = [0.85, 1.0, 1.15, 1.3, 1.5];
/// Repairs of one schedule.
const REPAIRS: usize = 12;
/// Steps of a stretch that is lowered at once: five minutes.
const STRETCH: usize = 20;

/// What is ready of a model at each step, in requests a second.
type Needs = Vec<Vec<f64>>;

/// A schedule that was simulated.
struct Tried {
    needs: Needs,
    attained: f64,
    cost: f64,
    /// For each model and minute of arrival, the share of requests that were served well.
    minutes: Vec<Vec<Option<f64>>>,
}

struct Search<'s, W> {
    scenario: &'s Scenario,
    seed: u64,
    watch: &'s mut W,
    /// The variants of each model, cheapest first: index, and requests a second of a replica.
    variants: Vec<Vec<(usize, f64)>>,
}

/// Makes a scenario follow the best schedule that is found.
///
/// # Errors
///
/// The workload cannot be known, or an engine has settings that no engine can have.
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
        // The work of a request counts by its size: its share of the first variant's step.
        let work = |size: Size| match ordered.first() {
            Some((_, _, variant)) => {
                let step = variant.engine.step;
                let (prompt, output) = (f64::from(size.prompt), f64::from(size.output));
                let read = step.gamma * output * (prompt + output / 2.0);
                step.beta * prompt + step.delta * output + read
            }
            None => 1.0,
        };
        let all: f64 = requests.iter().map(|(_, size)| work(*size)).sum();
        let mean = (all / requests.len().max(1) as f64).max(1e-9);
        for (at, size) in &requests {
            if let Some(step) = steps.get_mut(index(*at)) {
                *step += work(*size) / mean / STEP.seconds();
            }
        }
        loads.push(steps);
    }
    let mut search = Search { scenario, seed, watch, variants };
    let found = search.best(&loads)?;
    let plan = search.plan(&found.needs);
    for (variant, numbers) in scenario.variants.iter_mut().zip(plan) {
        follow(variant, numbers);
    }
    Ok(())
}

impl<W: Watch> Search<'_, W> {
    fn best(&mut self, loads: &[Vec<f64>]) -> Result<Tried, Unplayable> {
        let mut best: Option<Tried> = None;
        for scale in SCALES {
            let needs = loads.iter().map(|steps| smoothed(steps, scale)).collect();
            let tried = self.repaired(needs)?;
            if best.as_ref().is_none_or(|best| tried.beats(best)) {
                best = Some(tried);
            }
            if !self.watch.goes_on(Micros::ZERO) {
                break;
            }
        }
        let best = match best {
            Some(best) => best,
            None => self.simulate(loads.to_vec())?,
        };
        self.lowered(best)
    }

    /// Adds replicas where requests were not served well.
    fn repaired(&mut self, needs: Needs) -> Result<Tried, Unplayable> {
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
                    // What follows a bad minute is often only its queue.
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

    /// Takes replicas away where the goal is met without them.
    fn lowered(&mut self, mut best: Tried) -> Result<Tried, Unplayable> {
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

    /// Requests a second of the replica that carries the least.
    fn smallest(&self, model: usize) -> f64 {
        self.variants[model].iter().map(|(_, rate)| *rate).reduce(f64::min).unwrap_or(1.0)
    }

    fn simulate(&mut self, needs: Needs) -> Result<Tried, Unplayable> {
        let mut scenario = self.scenario.clone();
        for (variant, numbers) in scenario.variants.iter_mut().zip(self.plan(&needs)) {
            follow(variant, numbers);
        }
        let outcome = run::run(&scenario, self.seed, self.watch)?;
        Ok(Tried::new(needs, &scenario, &outcome))
    }

    /// What is asked for of each variant at each step.
    fn plan(&self, needs: &[Vec<f64>]) -> Vec<Vec<Replicas>> {
        let count = steps(self.scenario.length);
        let mut plan = vec![vec![Replicas::ZERO; count]; self.scenario.variants.len()];
        for (needs, variants) in needs.iter().zip(&self.variants) {
            for (step, need) in needs.iter().enumerate() {
                let mut left = *need;
                for &(variant, rate) in variants {
                    let bounds = self.scenario.variants[variant].spec.bounds;
                    let number = whole((left / rate - 1e-9).max(0.0)).max(bounds.min());
                    let number = bounds.max().map_or(number, |max| number.min(max));
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

impl Tried {
    fn new(needs: Needs, scenario: &Scenario, outcome: &Outcome) -> Self {
        let attained = attained(outcome);
        let crews = outcome.variants.iter().zip(&scenario.variants);
        let cost = crews
            .map(|(crew, variant)| crew.replica_time.seconds() * variant.spec.cost.per_hour())
            .sum();
        let minutes = outcome
            .models
            .iter()
            .map(|service| {
                let share = |minute: &Minute| {
                    let judged = f64::from(minute.judged - minute.unservable);
                    (judged > 0.0).then(|| f64::from(minute.good) / judged)
                };
                service.minutes.iter().map(share).collect()
            })
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

/// The share of requests that were served well.
pub(crate) fn attained(outcome: &Outcome) -> f64 {
    let sum =
        |of: fn(&Service) -> u64| -> f64 { outcome.models.iter().map(of).sum::<u64>() as f64 };
    // What an engine cannot hold is no better served by more of them.
    let judged = sum(Service::judged) - sum(|it| it.unservable);
    sum(|it| it.good) / judged.max(1.0)
}

fn follow(variant: &mut Variant, numbers: Vec<Replicas>) {
    variant.initial = numbers.first().copied().unwrap_or(Replicas::ONE).max(Replicas::ONE);
    variant.actuator = Actuator::Law(Rule::Schedule(Schedule::new(numbers)));
}

/// More for a minute and the step before it: at least a replica, and the more the worse it was.
fn raise(steps: &mut [f64], minute: usize, each: f64, share: f64) {
    let in_minute = usize::try_from(MINUTE.micros() / STEP.micros()).unwrap_or(1);
    let start = (minute * in_minute).saturating_sub(1);
    let end = ((minute + 1) * in_minute).min(steps.len());
    for step in &mut steps[start.min(end)..end] {
        *step += each.max(*step * 0.1 * (1.0 - share));
    }
}

/// The load of each step with that of the step before it, whose answers are still being written.
fn smoothed(steps: &[f64], scale: f64) -> Vec<f64> {
    (0..steps.len())
        .map(|at| {
            let before = steps[at.saturating_sub(1)];
            scale * f64::midpoint(before, steps[at])
        })
        .collect()
}

/// Asks a start-up time ahead for what is needed.
fn ahead(numbers: &mut [Replicas], startup: &Startup) {
    let median = startup.image + startup.load + startup.warmup;
    let lead = index(median) + 1;
    for at in 0..numbers.len() {
        let end = (at + lead + 1).min(numbers.len());
        numbers[at] = numbers[at..end].iter().copied().max().unwrap_or(numbers[at]);
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
        // 29 s are within two steps, so what is needed at step 4 is asked for at step 2.
        ahead(&mut numbers, &startup);
        assert_eq!(numbers, [1, 1, 3, 3, 3, 3, 3, 3, 1, 1].map(n));
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
