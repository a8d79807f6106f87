//! Fast-forwarding over many steps without events.
//!
//! In most steps every request gets a token and none ends. While no request can be admitted, none
//! ends and every token has room, the next step follows from counts alone.

use crate::simulate::Micros;
use crate::simulate::replica::pace::EngineStep;
use crate::simulate::replica::prefix::CachedPrefix;
use crate::simulate::replica::settings::Admission;
use crate::simulate::replica::stats::Run;
use crate::simulate::replica::{Histograms, Replica};

impl Replica {
    /// Fast-forwards over such steps that begin before `until`, from `start` on. Returns true if
    /// there was one; otherwise the next step must be simulated in full.
    pub(crate) fn coast(&mut self, start: Micros, until: Micros) -> bool {
        // Behind a blocked head of the queue, more requests change nothing.
        let arrival = match (self.waiting.is_empty(), self.arrivals.front()) {
            (true, Some(next)) => next.queued,
            (true, None) | (false, _) => Micros::new(u64::MAX),
        };
        let Some(left) = self.decodes.steps_to_end() else { return false };
        if left == 1 || arrival <= start || !self.is_settled() || self.speculator.is_some() {
            return false;
        }

        let decodes = self.decodes.count();
        let mut now = start;
        let mut steps = 0_u64;
        let mut run = Run::default();
        let mut begun = false;
        while now < until && now < arrival && steps + 1 < left {
            let needed = self.decodes.blocks_needed();
            if needed > self.free() {
                break;
            }

            self.take(needed);
            let kv_tokens = self.decodes.stored() + u64::from(decodes);
            let length = self.length(0, decodes, kv_tokens);
            let end = now + length;
            begun = true;
            if end > until {
                let step = EngineStep {
                    start: now,
                    end,
                    prefill_tokens: 0,
                    decodes,
                    tokens: 1,
                    promised: 0,
                };
                self.step = Some(step);
                break;
            }

            if self.histograms == Histograms::Kept {
                run.observe(length.micros(), u64::from(decodes), &mut self.counters.itl);
            }

            steps += 1;
            now = end;
            self.decodes.tick();
        }

        run.flush(&mut self.counters.itl);
        if steps > 0 {
            self.ready = now;
            if let Some(adapters) = &mut self.adapters {
                adapters.record(now);
            }

            self.counters.steps += steps;
            self.counters.busy += now.since(start);
            self.counters.generation_tokens += steps * u64::from(decodes);
            if self.histograms == Histograms::Kept {
                let iterations = &mut self.counters.iteration_tokens;
                match &self.servers {
                    Some(servers) => servers.count_decodes(steps, iterations),
                    None => iterations.observe(u64::from(decodes), steps),
                }
            }
        }

        begun
    }

    /// A lower bound for the time at which a request may finish, if no other request arrives
    /// before; the latest instant if no request is left.
    ///
    /// Until then, nothing that a router counts changes, so the replica need not be advanced.
    #[must_use]
    pub fn quiet_until(&self) -> Micros {
        let Some(next) = self.next_change() else { return Micros::new(u64::MAX) };
        if self.pipeline.is_some() {
            return self.pipeline_quiet_until(next);
        }

        let joins = self.waiting.is_empty() && !self.arrivals.is_empty();
        if joins || !self.prefilled.is_empty() || !self.is_settled() {
            return next;
        }

        let Some(left) = self.decodes.steps_to_end() else { return next };
        let decodes = self.decodes.count();
        let growth = (left / u64::from(self.settings.block_size) + 1) * u64::from(decodes);
        // A preemption leaves a smaller batch, whose steps are shorter.
        let (decodes, stored) =
            if growth > u64::from(self.free()) { (1, 0) } else { (decodes, self.decodes.stored()) };
        let each = self.shortest_step(decodes, stored).micros();
        let most = self.speculator.as_ref().map_or(1, |speculator| speculator.most());
        let begun = u64::from(self.step.is_some());
        let steps = left.div_ceil(u64::from(most));
        next + Micros::new(each.saturating_mul(steps - begun))
    }

    /// The shortest possible duration of a step with this many decoding requests.
    pub(super) fn shortest_step(&self, decodes: u32, stored: u64) -> Micros {
        let length = self.pace.of(0, decodes, stored);
        self.noise.as_ref().map_or(length, |noise| noise.shortest(length))
    }

    /// Returns true if the batch only decodes, and no waiting request can join it before another
    /// leaves.
    fn is_settled(&self) -> bool {
        self.decodes.count() > 0
            && self.running.len() == self.decodes.count()
            && self.waiting.front().is_none_or(|&head| !self.fits(head))
            // Behind a blocked head of the queue, another request may have a slot for its adapter.
            && (self.adapters.is_none() || self.waiting.is_empty())
    }

    /// Returns true if the next step would admit a waiting request.
    fn fits(&self, index: usize) -> bool {
        let budget = self.budget_beside(self.decodes.count());
        if budget == 0 || self.batched() >= self.settings.max_num_seqs {
            return false;
        }

        let life = &self.lives[index];
        let target = life.prefill_target();
        let CachedPrefix { tokens: cached, held } = self.cached(index);
        let room = match self.settings.admission {
            Admission::WholePrompt => target,
            Admission::FirstChunk => cached + (target - cached).min(budget),
        };
        self.settings.blocks(room) - held <= self.free()
    }
}
