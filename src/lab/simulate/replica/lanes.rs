//! The batches of an engine with pipeline stages.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::replica::decodes::Decodes;
use crate::simulate::replica::pace::EngineStep;
use crate::simulate::replica::rings::DecodeBatch;
use crate::simulate::replica::servers::ApiServers;

/// The batches of an engine, except the one that the engine currently has in hand.
#[derive(Clone, Debug)]
pub(super) struct StagePipeline {
    /// All batches; the place of the batch in hand is empty.
    pub(super) lanes: Vec<Option<Lane>>,
    /// The place of the batch in hand.
    pub(super) in_hand: usize,
    /// Batches in flight, in the order in which they end.
    pub(super) flight: VecDeque<usize>,
    /// The time of the next check without waiting for a batch.
    pub(super) look: Option<Micros>,
    /// The end of the step that began last.
    pub(super) last_end: Micros,
}

/// The state of one batch.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) running: DecodeBatch,
    pub(super) decodes: Decodes,
    pub(super) prefilled: Vec<usize>,
    pub(super) step: Option<EngineStep>,
    pub(super) servers: Option<Box<ApiServers>>,
}

// === impl StagePipeline ===

impl StagePipeline {
    /// The pipeline of an engine without requests.
    pub(super) fn new(stages: u32, block_size: u32, servers: Option<&ApiServers>) -> Self {
        let others = (1..stages).map(|_| {
            Some(Lane {
                running: DecodeBatch::new(),
                decodes: Decodes::new(block_size),
                prefilled: Vec::new(),
                step: None,
                servers: servers.cloned().map(Box::new),
            })
        });

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

    /// The fewest steps until a request ends in the batches that are not in hand; `None` if one of
    /// their requests does not decode yet.
    pub(super) fn steps_to_end(&self) -> Option<u64> {
        let mut lanes = self.lanes.iter().flatten();
        lanes.try_fold(u64::MAX, |fewest, Lane { running, decodes, .. }| {
            let steps = decodes.steps_to_end().unwrap_or(u64::MAX);
            (running.len() == decodes.count()).then_some(fewest.min(steps))
        })
    }

    /// The maximum number of batches.
    pub(super) fn stages(&self) -> usize {
        self.lanes.len()
    }

    /// A batch that is not in flight, preferably one with requests.
    pub(super) fn idle(&self, running: u32) -> Option<usize> {
        let mut idle = (0..self.lanes.len()).filter(|lane| !self.flight.contains(lane));
        idle.clone().find(|lane| self.has_requests(*lane, running)).or_else(|| idle.next())
    }

    /// Returns true if a lane has requests; those of the lane in hand are passed.
    fn has_requests(&self, lane: usize, running: u32) -> bool {
        match &self.lanes[lane] {
            Some(lane) => lane.running.len() > 0,
            None => running > 0,
        }
    }

    /// The end of the oldest batch in flight; `step` is the step of the batch in hand.
    pub(super) fn oldest_end(&self, step: Option<EngineStep>) -> Option<Micros> {
        let oldest = *self.flight.front()?;
        match &self.lanes[oldest] {
            Some(lane) => lane.step.map(|step| step.end),
            None => step.map(|step| step.end),
        }
    }
}
