//! A run: all events of a scenario, in order of time.
//!
//! The next event is either the arrival of a request or an entry of the agenda, which holds all
//! other events. Engines are not on the agenda. The router, a scrape or a client that gives up
//! advances an engine, which then returns the time until which it may be left alone
//! ([`Replica::quiet_until`](crate::simulate::replica::Replica::quiet_until)). The engine's events
//! in between have their own times.
//!
//! The order of simultaneous events is their order in [`Happening`], so a run has exactly one
//! order.

mod control;
mod controller;
mod faults;
mod judge;
mod lifecycle;
mod live;
mod pods;
mod rollout;
mod sample;
mod sampler;
mod traffic;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use crate::simulate::replica;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::run::controller::Controller;
pub use crate::simulate::run::pods::PodState;
use crate::simulate::run::pods::{PodSet, SimulatedPod};
use crate::simulate::run::sampler::Sampler;
use crate::simulate::run::traffic::requests::{Class, Traffic};
use crate::simulate::scenario::Scenario;
use crate::simulate::score::{DecisionChange, Outcome, Service};
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::Decisions;

/// The wall-clock time at which a simulation starts. The instant is arbitrary; this one is easy to
/// read.
const EPOCH: i64 = 1_767_225_600;

/// Events between two calls of [`Watch::goes_on`].
const WATCH_EVERY: u32 = 4096;

/// An event on the agenda. The indices are of pods, models, variants and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A replica is ready.
    Ready(usize),
    /// A replica's start fails.
    Unready(usize, u32),
    /// A draining replica may have finished its requests.
    Emptied(usize),
    /// A replica must end.
    Killed(usize),
    /// A replica's process ends.
    Crashed(usize),
    /// A replica's node is about to be taken back.
    Interrupted(usize),
    /// The process of a crash-looping replica ends.
    Died(usize, u32),
    /// The replicas of a variant begin to crash-loop.
    Looped(usize),
    /// The engines of a variant become slow, or recover.
    Paced(usize),
    /// A variant's pod template changes.
    Rollout(usize),
    /// Requests of a model that others wait for may have finished.
    Release(usize),
    /// The KV cache of a request's prompt has arrived at its destination; the last field is the
    /// attempt.
    Handed(usize, u64, u32),
    /// The earliest deadline of a model's clients has passed.
    Deadline(usize),
    /// A client retries.
    Retry(usize, u64),
    /// A client's think time is over.
    Ask(usize, u32),
    /// The daemon scrapes and decides.
    Tick,
    /// KEDA polls for a variant.
    Poll(usize),
    /// A variant's HPA syncs.
    Sync(usize),
    /// A variant's own autoscaler decides.
    Judge(usize),
    /// The series get their next sample.
    Sample,
}

/// A check that a run makes from time to time, to stop early.
pub trait Watch {
    /// Returns true if the run should continue after the time that it has reached.
    fn goes_on(&mut self, reached: Micros) -> bool;
}

impl<F: FnMut(Micros) -> bool> Watch for F {
    fn goes_on(&mut self, reached: Micros) -> bool {
        self(reached)
    }
}

/// A callback that gets the daemon's inputs and decisions of each tick.
pub type Ledger<'l> = dyn FnMut(Timestamp, Inputs, &Decisions) + Send + 'l;

/// The state of a scenario at an instant.
pub struct Simulation<'s> {
    scenario: &'s Scenario,
    ledger: Option<&'s mut Ledger<'s>>,
    now: Micros,
    agenda: BinaryHeap<Reverse<(Micros, Happening)>>,
    traffic: Vec<Traffic>,
    crews: Vec<PodSet>,
    pods: Vec<SimulatedPod>,
    controller: Controller,
    sampler: Sampler,
    services: Vec<Service>,
    batches: Vec<Service>,
    changes: Vec<DecisionChange>,
    changes_left_out: u64,
    violations: u64,
    events: Vec<replica::EngineEvent>,
}

/// Simulates a scenario with the random numbers of a seed. If `watch` stops it, the outcome covers
/// the time up to then.
///
/// # Errors
///
/// A variant's engine has invalid settings.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<Outcome, SettingsError> {
    run_with(scenario, seed, watch, None)
}

/// As [`run`], and passes the daemon's inputs and decisions to a ledger, if there is one.
///
/// # Errors
///
/// A variant's engine has invalid settings.
pub fn run_with<'s>(
    scenario: &'s Scenario,
    seed: u64,
    watch: &mut impl Watch,
    ledger: Option<&'s mut Ledger<'s>>,
) -> Result<Outcome, SettingsError> {
    let mut simulation = Simulation::new(scenario, seed)?;
    simulation.ledger = ledger;
    simulation.begin_control();
    simulation.plan(Micros::ZERO, Happening::Sample);
    let mut until_look = WATCH_EVERY;
    while simulation.step(scenario.length) {
        until_look -= 1;
        if until_look == 0 {
            until_look = WATCH_EVERY;
            if !watch.goes_on(simulation.now) {
                return Ok(simulation.finish(false));
            }
        }
    }

    Ok(simulation.finish(true))
}

// === impl Simulation ===

impl<'s> Simulation<'s> {
    /// The start of a scenario, before the daemon and the autoscalers begin.
    ///
    /// # Errors
    ///
    /// A variant's engine has invalid settings.
    pub fn new(scenario: &'s Scenario, seed: u64) -> Result<Self, SettingsError> {
        let mut simulation = Self {
            scenario,
            ledger: None,
            now: Micros::ZERO,
            agenda: BinaryHeap::new(),
            traffic: (0..scenario.models.len())
                .map(|at| Traffic::new(scenario, seed, at))
                .collect(),
            crews: (0..scenario.variants.len()).map(|at| PodSet::new(scenario, seed, at)).collect(),
            pods: Vec::new(),
            controller: Controller::new(scenario, seed),
            sampler: Sampler::new(scenario.models.len()),
            services: vec![Service::default(); scenario.models.len()],
            batches: vec![Service::default(); scenario.models.len()],
            changes: Vec::new(),
            changes_left_out: 0,
            violations: 0,
            events: Vec::new(),
        };

        simulation.staff()?;
        simulation.begin_traffic();
        simulation.begin_faults();
        for (index, variant) in scenario.variants.iter().enumerate() {
            if let Some(rollout) = variant.rollout {
                simulation.plan(rollout.at, Happening::Rollout(index));
            }
        }

        Ok(simulation)
    }

    /// Processes the next event at or before an instant; returns `false` if there is none.
    fn step(&mut self, until: Micros) -> bool {
        let planned = self.agenda.peek().map(|Reverse((at, _))| *at);
        let arrival = self.next_arrival();
        let (at, model) = match (planned, arrival) {
            (Some(planned), Some((arrival, model))) if arrival < planned => (arrival, Some(model)),
            (None, Some((arrival, model))) => (arrival, Some(model)),
            (Some(planned), _) => (planned, None),
            (None, None) => return false,
        };

        // Requests that arrive at the end are not part of the scenario; observations at the end see
        // all of it.
        if at > until || model.is_some() && at == until {
            return false;
        }

        self.now = at;
        match model {
            Some(model) => self.arrive(model),
            None => {
                if let Some(Reverse((_, happening))) = self.agenda.pop() {
                    self.happen(happening);
                }
            }
        }

        true
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Ready(pod) => self.open(pod),
            Happening::Unready(pod, life) => self.fail_to_start(pod, life),
            Happening::Emptied(pod) => self.look_whether_empty(pod),
            Happening::Killed(pod) => self.kill(pod),
            Happening::Crashed(pod) => self.crash(pod),
            Happening::Interrupted(pod) => self.interrupt(pod),
            Happening::Died(pod, life) => self.die(pod, life),
            Happening::Looped(variant) => self.begin_loop(variant),
            Happening::Paced(variant) => self.change_pace(variant),
            Happening::Rollout(variant) => self.roll_out(variant),
            Happening::Release(model) => self.release(model),
            Happening::Handed(model, id, attempt) => self.hand_over(model, id, attempt),
            Happening::Deadline(model) => self.give_up(model),
            Happening::Retry(model, id) => self.dispatch(model, id),
            Happening::Ask(model, client) => self.ask(model, client),
            Happening::Tick => self.tick(),
            Happening::Poll(variant) => self.poll(variant),
            Happening::Sync(variant) => self.sync(variant),
            Happening::Judge(variant) => self.judge(variant),
            Happening::Sample => self.sample(),
        }
    }

    fn plan(&mut self, at: Micros, happening: Happening) {
        self.agenda.push(Reverse((at.max(self.now), happening)));
    }

    fn finish(mut self, complete: bool) -> Outcome {
        if complete {
            self.now = self.scenario.length;
        }
        for pod in 0..self.pods.len() {
            self.advance(pod);
        }
        self.outcome(complete)
    }

    /// The outcome of the run as of now.
    fn outcome(&self, complete: bool) -> Outcome {
        let mut models = self.judged(Class::Interactive);
        for pod in &self.pods {
            models[self.scenario.variants[pod.variant].model].adapter_loads += pod.adapter_loads();
        }

        Outcome {
            ended: self.now,
            complete,
            models,
            batches: self.judged(Class::Batch),
            variants: self.crew_scores(),
            series: self.sampler.samples.clone(),
            changes: self.changes.clone(),
            changes_left_out: self.changes_left_out,
            violations: self.violations,
            cards: self.controller.cards(),
        }
    }
}

impl fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The wall-clock time at a simulated time.
fn wall_clock(time: Micros) -> Timestamp {
    after(Timestamp::from_second(EPOCH).unwrap_or(Timestamp::UNIX_EPOCH), time)
}

/// The wall-clock time at a simulated time, if the clock showed `epoch` at the start.
fn after(epoch: Timestamp, time: Micros) -> Timestamp {
    let passed = SignedDuration::from_micros(i64::try_from(time.micros()).unwrap_or(i64::MAX));
    epoch.checked_add(passed).unwrap_or(Timestamp::MAX)
}
