//! A run: everything that happens in a scenario, in order of time.
//!
//! There are two sources of what happens next: requests that arrive, and an agenda of everything
//! else. Engines are not on it. Each is advanced when somebody looks at it — the router, a scrape, a
//! client that gives up — and says until when it need not be looked at
//! ([`Replica::quiet_until`](crate::simulate::replica::Replica::quiet_until)); what it did meanwhile
//! carries its own time. Of several things at one instant, those come first that are listed first in
//! [`Happening`], so a run has one order.

mod control;
mod faults;
mod judge;
mod live;
mod pods;
mod rollout;
mod sample;
mod traffic;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::simulate::Micros;
use crate::simulate::replica;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::run::control::Controller;
pub use crate::simulate::run::pods::State;
use crate::simulate::run::pods::{Crew, Pod};
use crate::simulate::run::sample::Sampler;
use crate::simulate::run::traffic::{Class, Traffic};
use crate::simulate::scenario::Scenario;
use crate::simulate::score::{Change, Outcome, Service};
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::Decisions;

/// When a simulation starts by the wall clock. Any instant will do; this one is easy to read.
const EPOCH: i64 = 1_767_225_600;

/// Requests and other things that happen between two looks at whether to stop.
const WATCH_EVERY: u32 = 4096;

/// Something on the agenda. The indices are of pods, models, variants and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A replica answers.
    Ready(usize),
    /// A replica's start fails.
    Unready(usize, u32),
    /// A replica that takes nothing new may have finished what it has.
    Emptied(usize),
    /// A replica must end.
    Killed(usize),
    /// A replica's process ends.
    Crashed(usize, u32),
    /// A replica's node is to be taken back.
    Interrupted(usize),
    /// A replica's process ends that dies again and again.
    Died(usize, u32),
    /// Replicas of a variant begin to die again and again.
    Looped(usize),
    /// The engines of a variant become slow, or are so no more.
    Paced(usize),
    /// A variant's pod template changes.
    Rollout(usize),
    /// Requests of a model may have finished, which somebody waits for.
    Release(usize),
    /// The cache of a request's prompt has been moved; which attempt it is.
    Handed(usize, u64, u32),
    /// The oldest wait of a model's clients is over.
    Deadline(usize),
    /// A client tries again.
    Retry(usize, u64),
    /// A client has thought enough.
    Ask(usize, u32),
    /// The daemon looks and decides.
    Tick,
    /// KEDA polls for a variant.
    Poll(usize),
    /// A variant's HPA syncs.
    Sync(usize),
    /// A variant's own autoscaler looks at it.
    Judge(usize),
    /// The series get another sample.
    Sample,
}

/// Whether to go on, asked from time to time with the time that has been reached.
pub trait Watch {
    /// Returns whether to go on.
    fn goes_on(&mut self, reached: Micros) -> bool;
}

impl<F: FnMut(Micros) -> bool> Watch for F {
    fn goes_on(&mut self, reached: Micros) -> bool {
        self(reached)
    }
}

/// Is told what the daemon got in each tick, and what it decided.
pub type Ledger<'l> = dyn FnMut(Timestamp, Inputs, &Decisions) + Send + 'l;

/// A scenario up to an instant.
pub struct Simulation<'s> {
    scenario: &'s Scenario,
    ledger: Option<&'s mut Ledger<'s>>,
    now: Micros,
    agenda: BinaryHeap<Reverse<(Micros, Happening)>>,
    traffic: Vec<Traffic>,
    crews: Vec<Crew>,
    pods: Vec<Pod>,
    controller: Controller,
    sampler: Sampler,
    services: Vec<Service>,
    batches: Vec<Service>,
    changes: Vec<Change>,
    changes_left_out: u64,
    violations: u64,
    events: Vec<replica::Event>,
}

/// Plays a scenario with the random numbers of a seed. When `watch` says to stop, the outcome is
/// that of the time up to then.
///
/// # Errors
///
/// A variant's engine has settings that no engine can have.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<Outcome, SettingsError> {
    run_with(scenario, seed, watch, None)
}

/// Does the same, and tells a ledger what the daemon does, where there is one.
///
/// # Errors
///
/// A variant's engine has settings that no engine can have.
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
    /// The start of a scenario, without the daemon and autoscalers in it.
    ///
    /// # Errors
    ///
    /// A variant's engine has settings that no engine can have.
    pub fn new(scenario: &'s Scenario, seed: u64) -> Result<Self, SettingsError> {
        let mut simulation = Self {
            scenario,
            ledger: None,
            now: Micros::ZERO,
            agenda: BinaryHeap::new(),
            traffic: (0..scenario.models.len())
                .map(|at| Traffic::new(scenario, seed, at))
                .collect(),
            crews: (0..scenario.variants.len()).map(|at| Crew::new(scenario, seed, at)).collect(),
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

    /// Lets the next thing happen that happens until an instant; `false` when there is none.
    fn step(&mut self, until: Micros) -> bool {
        let planned = self.agenda.peek().map(|Reverse((at, _))| *at);
        let arrival = self.next_arrival();
        let (at, model) = match (planned, arrival) {
            (Some(planned), Some((arrival, model))) if arrival < planned => (arrival, Some(model)),
            (None, Some((arrival, model))) => (arrival, Some(model)),
            (Some(planned), _) => (planned, None),
            (None, None) => return false,
        };
        // What arrives at the end is no part of the scenario; who looks then sees all of it.
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
            Happening::Crashed(pod, life) => self.crash(pod, life),
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

    /// The outcome of the run, if it ended now.
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

/// The wall clock's reading at a time.
fn wall_clock(time: Micros) -> Timestamp {
    after(Timestamp::from_second(EPOCH).unwrap_or(Timestamp::UNIX_EPOCH), time)
}

/// The reading at a time of a wall clock that showed this at the start.
fn after(epoch: Timestamp, time: Micros) -> Timestamp {
    let passed = SignedDuration::from_micros(i64::try_from(time.micros()).unwrap_or(i64::MAX));
    epoch.checked_add(passed).unwrap_or(Timestamp::MAX)
}
