//! Pipeline parallelism: several steps of one engine are in flight at the same time.
//!
//! # Model
//!
//! The scheduler builds a batch and sends it off. While fewer batches are in flight than there are
//! stages, it checks once more for requests outside of any batch, after [`LOOK`]. If it finds some,
//! they become a batch of their own. Otherwise it waits for the oldest batch in flight, whose
//! requests form the next batch together with new arrivals.
//!
//! So requests split into batches by their arrival between two checks, and the requests of one
//! batch stay together. A few requests are all in one batch; many requests are in one batch per
//! stage.
//!
//! A step takes its whole time, through all stages. The interval between the ends of two steps is
//! at least the time of the last stage, which is an equal share of the step.
//!
//! # Source
//!
//! vLLM 0.32: `EngineCore.step_with_batch_queue`, whose queue is as long as the pipeline.
//! `Scheduler.schedule` skips requests whose tokens are in flight.
//!
//! # Limits
//!
//! A prompt that is split into chunks has one chunk in flight at a time. A request without room
//! preempts another request of its own batch, or itself.

use crate::simulate::Micros;
use crate::simulate::replica::lanes::Lane;
use crate::simulate::replica::{EngineEvent, Replica};

/// The time between two checks of the input queue, unless the scheduler waits for a batch. The
/// scheduler builds a batch and sends it off during this time. With this value, a simulated engine
/// of two stages has two batches in flight as often as a recorded one
/// (`a_pipeline_has_few_requests_in_one_batch_and_many_in_two`).
const LOOK: Micros = Micros::new(2_000);

/// The next event of a pipeline.
enum Next {
    /// The oldest batch in flight ends.
    End(Micros),
    /// The scheduler checks for requests outside of any batch.
    Look(Micros),
}

// === impl Replica ===

impl Replica {
    /// As [`Replica::advance_to`], for an engine with a pipeline.
    pub(super) fn advance_pipeline(&mut self, until: Micros, events: &mut Vec<EngineEvent>) {
        while let Some(next) = self.next_in_pipeline() {
            match next {
                Next::End(at) if at <= until => self.end_oldest(events),
                Next::Look(at) if at < until => self.look_at_queue(at, events),
                Next::End(_) | Next::Look(_) => break,
            }
        }
    }

    /// The time at which the next batch ends or the scheduler checks the queue; `None` if the
    /// engine is idle.
    pub(super) fn next_pipeline_change(&self) -> Option<Micros> {
        match self.next_in_pipeline()? {
            Next::End(at) | Next::Look(at) => Some(at),
        }
    }

    /// A lower bound for the time at which a request of a pipeline may finish; the pipeline's next
    /// step ends or begins at `next`.
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

    /// Takes the batch that holds a request in hand, if there is one.
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
            (planned, _) => planned,
        };

        match (pipeline.oldest_end(self.step), look) {
            (Some(end), Some(look)) if end < look => Some(Next::End(end)),
            (_, Some(look)) => Some(Next::Look(look)),
            (Some(end), None) => Some(Next::End(end)),
            (None, None) => None,
        }
    }

    /// Ends the oldest batch in flight; its requests may be in the next batch at once.
    fn end_oldest(&mut self, events: &mut Vec<EngineEvent>) {
        let Some(pipeline) = &mut self.pipeline else { return };
        let Some(oldest) = pipeline.flight.pop_front() else { return };
        self.take_in_hand(oldest);
        let Some(step) = self.step else { return };
        self.end_step(step, events);

        if let Some(pipeline) = &mut self.pipeline {
            pipeline.look = Some(step.end);
        }
    }

    /// Builds a batch of requests outside of any batch, if there are any.
    fn look_at_queue(&mut self, now: Micros, events: &mut Vec<EngineEvent>) {
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

    /// Puts the batch in hand aside and takes another.
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
