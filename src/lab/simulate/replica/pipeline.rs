//! Pipeline parallelism: several steps of one engine are in flight at a time.
//!
//! # Model
//!
//! The scheduler builds a batch and sends it off. While fewer batches are in flight than there are
//! stages, it looks once more for requests that are in none, which takes it [`LOOK`]; if it finds some,
//! they are a batch of their own. Otherwise it waits for the oldest batch in flight, whose requests
//! then make up the next one, together with those that have come. So requests split into batches as
//! they happen to come between two looks, and those of one batch stay together: few requests are all
//! in one, and many are in as many as there are stages.
//!
//! A step takes its whole time, through all stages. It ends no sooner after the step before it than
//! its last stage takes, which is an equal share of that time.
//!
//! # Source
//!
//! vLLM 0.32: `EngineCore.step_with_batch_queue`, whose queue is as long as the pipeline.
//! `Scheduler.schedule` passes over requests whose tokens are in flight.
//!
//! # Limits
//!
//! A prompt that is cut into chunks has one of them in flight at a time. A request without room
//! preempts another one of its own batch, or itself.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::replica::decodes::Decodes;
use crate::simulate::replica::rings::Batch;
use crate::simulate::replica::servers::ApiServers;
use crate::simulate::replica::{Event, Replica, Step};

/// The time from one look into the input queue to the next, if no batch is waited for: the scheduler
/// builds a batch and sends it off meanwhile. With this time, a simulated engine of two stages has two
/// batches as often as a recorded one (`a_pipeline_has_few_requests_in_one_batch_and_many_in_two`).
const LOOK: Micros = Micros::new(2_000);

/// The batches of an engine but for the one that its [`Replica`] has in its hands.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    /// All batches; the place of the one in hand is empty.
    lanes: Vec<Option<Lane>>,
    /// The place of the one in hand.
    in_hand: usize,
    /// Batches in flight, in the order in which they end.
    flight: VecDeque<usize>,
    /// When the scheduler looks next without waiting for a batch.
    look: Option<Micros>,
    /// When the step ends that was begun last.
    last_end: Micros,
}

/// What a batch has to itself.
#[derive(Clone, Debug)]
struct Lane {
    running: Batch,
    decodes: Decodes,
    prefilled: Vec<usize>,
    step: Option<Step>,
    servers: Option<Box<ApiServers>>,
}

/// What happens next in a pipeline.
enum Next {
    /// The oldest batch in flight ends.
    End(Micros),
    /// The scheduler looks for requests that are in no batch.
    Look(Micros),
}

// === impl Pipeline ===

impl Pipeline {
    /// The pipeline of an engine without requests.
    pub(super) fn new(stages: u32, block_size: u32, servers: Option<&ApiServers>) -> Self {
        let lane = || Lane {
            running: Batch::new(),
            decodes: Decodes::new(block_size),
            prefilled: Vec::new(),
            step: None,
            servers: servers.cloned().map(Box::new),
        };
        let others = (1..stages).map(|_| Some(lane()));
        Self {
            lanes: [None].into_iter().chain(others).collect(),
            in_hand: 0,
            flight: VecDeque::new(),
            look: None,
            last_end: Micros::ZERO,
        }
    }

    /// Requests in the batches that are not in hand.
    pub(super) fn running(&self) -> u32 {
        self.lanes.iter().flatten().map(|lane| lane.running.len()).sum()
    }

    /// The fewest steps to the first end of a request in the batches that are not in hand; `None` if a
    /// request of theirs does not decode yet.
    fn steps_to_end(&self) -> Option<u64> {
        let mut lanes = self.lanes.iter().flatten();
        lanes.try_fold(u64::MAX, |fewest, Lane { running, decodes, .. }| {
            let steps = decodes.steps_to_end().unwrap_or(u64::MAX);
            (running.len() == decodes.count()).then_some(fewest.min(steps))
        })
    }

    /// How many batches there may be.
    pub(super) fn stages(&self) -> usize {
        self.lanes.len()
    }

    /// A batch that is not in flight; rather one that has requests.
    fn idle(&self, running: u32) -> Option<usize> {
        let mut idle = (0..self.lanes.len()).filter(|lane| !self.flight.contains(lane));
        let has_requests = |lane: &usize| match &self.lanes[*lane] {
            Some(lane) => lane.running.len() > 0,
            None => running > 0,
        };
        idle.clone().find(has_requests).or_else(|| idle.next())
    }

    /// When the oldest batch in flight ends, if `step` is that of the one in hand.
    fn oldest_end(&self, step: Option<Step>) -> Option<Micros> {
        let oldest = *self.flight.front()?;
        let step = match &self.lanes[oldest] {
            Some(lane) => lane.step,
            None => step,
        };
        step.map(|step| step.end)
    }
}

// === impl Replica ===

impl Replica {
    /// Does what [`Replica::advance_to`] does for an engine with a pipeline.
    pub(super) fn advance_pipeline(&mut self, until: Micros, events: &mut Vec<Event>) {
        while let Some(next) = self.next_in_pipeline() {
            match next {
                Next::End(at) if at <= until => self.end_oldest(events),
                Next::Look(at) if at < until => self.look_at_queue(at, events),
                Next::End(_) | Next::Look(_) => break,
            }
        }
    }

    /// When the next batch ends or the scheduler looks next; `None` when there is nothing to do.
    pub(super) fn next_pipeline_change(&self) -> Option<Micros> {
        match self.next_in_pipeline()? {
            Next::End(at) | Next::Look(at) => Some(at),
        }
    }

    /// The earliest time at which a request of a pipeline may finish, whose next step ends or begins at
    /// `next`.
    pub(super) fn pipeline_quiet_until(&self, next: Micros) -> Micros {
        let others = self.pipeline.as_ref().and_then(|pipeline| pipeline.steps_to_end());
        let all_decode = self.waiting.is_empty()
            && self.arrivals.is_empty()
            && self.running.len() == self.decodes.count();
        let Some(others) = others.filter(|_| all_decode) else { return next };
        let steps = self.decodes.steps_to_end().unwrap_or(u64::MAX).min(others);
        let most = self.speculator.as_ref().map_or(1, |speculator| speculator.most());
        let shortest = self.shortest_step(1, 0).micros();
        let later = steps.div_ceil(u64::from(most)).saturating_sub(1);
        Micros::new(next.micros().saturating_add(shortest.saturating_mul(later)))
    }

    /// Has in hand the batch that holds a request, if one does.
    pub(super) fn take_batch_of(&mut self, id: u64) {
        let stages = self.pipeline.as_ref().map_or(0, |pipeline| pipeline.stages());
        for lane in 0..stages {
            self.take_in_hand(lane);
            if self.running.iter().any(|index| self.lives[index].request.id == id) {
                return;
            }
        }
    }

    fn next_in_pipeline(&self) -> Option<Next> {
        let pipeline = self.pipeline.as_ref()?;
        let look = match (pipeline.look, pipeline.flight.is_empty()) {
            (None, true) => self.next_start(),
            (look, _) => look,
        };
        match (pipeline.oldest_end(self.step), look) {
            (Some(end), Some(look)) if end < look => Some(Next::End(end)),
            (_, Some(look)) => Some(Next::Look(look)),
            (Some(end), None) => Some(Next::End(end)),
            (None, None) => None,
        }
    }

    /// Ends the oldest batch in flight; its requests may be in the next one at once.
    fn end_oldest(&mut self, events: &mut Vec<Event>) {
        let Some(pipeline) = &mut self.pipeline else { return };
        let Some(oldest) = pipeline.flight.pop_front() else { return };
        self.take_in_hand(oldest);
        let Some(step) = self.step else { return };
        self.end_step(step, events);
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.look = Some(step.end);
        }
    }

    /// Builds a batch of requests that are in none, if there are any.
    fn look_at_queue(&mut self, now: Micros, events: &mut Vec<Event>) {
        let Some(pipeline) = &mut self.pipeline else { return };
        pipeline.look = None;
        let Some(lane) = pipeline.idle(self.running.len()) else { return };
        self.take_in_hand(lane);
        self.begin_step(now, events);
        self.step = self.step.filter(|step| step.prefill_tokens + step.decodes > 0);

        let Some(pipeline) = &mut self.pipeline else { return };
        let Some(step) = &mut self.step else { return };
        let stages = pipeline.stages();
        let last_stage = step.end.since(step.start).micros() / stages as u64;
        step.end = step.end.max(pipeline.last_end + Micros::new(last_stage));
        pipeline.last_end = step.end;
        pipeline.flight.push_back(lane);
        if pipeline.flight.len() < stages {
            pipeline.look = Some(now + LOOK);
        }
    }

    /// Lays aside the batch in hand and takes another.
    fn take_in_hand(&mut self, lane: usize) {
        let Some(pipeline) = &mut self.pipeline else { return };
        let Some(taken) = pipeline.lanes[lane].take() else { return };
        let Lane { running, decodes, prefilled, step, servers } = taken;
        let aside = Lane {
            running: std::mem::replace(&mut self.running, running),
            decodes: std::mem::replace(&mut self.decodes, decodes),
            prefilled: std::mem::replace(&mut self.prefilled, prefilled),
            step: std::mem::replace(&mut self.step, step),
            servers: std::mem::replace(&mut self.servers, servers),
        };
        let before = std::mem::replace(&mut pipeline.in_hand, lane);
        pipeline.lanes[before] = Some(aside);
    }
}
