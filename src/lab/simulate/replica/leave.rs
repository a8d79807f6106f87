//! Requests that leave before their answer is complete, because the client has disconnected.

use crate::simulate::replica::decodes::RequestPhase;
use crate::simulate::replica::prefix::Return;
use crate::simulate::replica::{Life, Replica};

impl Replica {
    /// Drops a request in any phase; its seat in the batch and its blocks are free at once. Returns
    /// true if the engine had it.
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
        let runs = self.running.iter().find(|&index| lives[index].request.id == id);
        let waits = self.waiting.iter().position(|&index| lives[index].request.id == id);
        let found = if let Some(at) = waits {
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
        let Some(index) = found else { return false };
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
            RequestPhase::Prefill { computed } => computed,
            RequestPhase::Decode => {
                let stored = self.leave_decodes(index).stored;
                // A step in progress has already taken the room for its token.
                stored + u32::from(self.step.is_some())
            }
        };

        self.give_back(request.id, held, Return::Never);
        self.prefilled.retain(|&other| other != index);
        self.holes.push(index);
    }
}
