//! Requests that leave before their answer is complete, because the client has gone away.

use crate::simulate::replica::decodes::Phase;
use crate::simulate::replica::prefix::Return;
use crate::simulate::replica::{Life, Replica};

impl Replica {
    /// Drops a request, wherever it is; its place in the batch and its blocks are free at once.
    /// Returns whether it was there.
    pub fn abort(&mut self, id: u64) -> bool {
        if let Some(at) = self.arrivals.iter().position(|arrival| arrival.request.id == id) {
            self.arrivals.remove(at);
            if let Some(adapters) = &mut self.adapters {
                adapters.forget(id);
            }
            self.give_back(id, 0, Return::Never);
            return true;
        }
        if self.pipeline.is_some() {
            self.take_batch_of(id);
        }
        let lives = &self.lives;
        let is = |index: &usize| lives[*index].request.id == id;
        let runs = self.running.iter().find(is);
        let index = if let Some(at) = self.waiting.iter().position(is) {
            self.waiting.remove(at)
        } else if let Some(index) = runs {
            if let Some(adapters) = &mut self.adapters {
                adapters.leave(id);
            }
            self.running.remove(index);
            Some(index)
        } else {
            None
        };
        let Some(index) = index else { return false };
        if let Some(adapters) = &mut self.adapters {
            adapters.forget(id);
        }
        let stayed = self.now.since(self.lives[index].arrived);
        self.release(index);
        self.counters.leave(stayed);
        true
    }

    fn release(&mut self, index: usize) {
        let Life { phase, request, .. } = self.lives[index];
        let held = match phase {
            Phase::Prefill { computed } => computed,
            Phase::Decode => {
                let stored = self.leave_decodes(index).stored;
                // A step that is being computed has taken the room for its token already.
                stored + u32::from(self.step.is_some())
            }
        };
        self.give_back(request.id, held, Return::Never);
        self.prefilled.retain(|&other| other != index);
        self.holes.push(index);
    }
}
