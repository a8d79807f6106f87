//! The end of a step: the tokens that requests get from it, the requests that finish, and the
//! counters.

use crate::simulate::Micros;
use crate::simulate::replica::decodes::{RequestPhase, StoppedDecode};
use crate::simulate::replica::pace::EngineStep;
use crate::simulate::replica::prefix::Return;
use crate::simulate::replica::{EngineEvent, Finished, Histograms, Life, PrefillAt, Replica};

impl Replica {
    /// Ends a step, whose results exist from now on.
    pub(super) fn end_step(&mut self, step: EngineStep, events: &mut Vec<EngineEvent>) {
        let EngineStep { start, end, prefill_tokens, decodes, tokens, promised } = step;
        let duration = end.since(start);
        let computed = self.counters.prompt_computed;
        self.step = None;
        self.ready = end;
        self.promised -= promised;
        self.counters.steps += 1;
        self.counters.busy += duration;
        self.counters.prefill_tokens += u64::from(prefill_tokens);
        if self.histograms == Histograms::Kept {
            // Every decoding request got its previous token when this step began.
            self.counters.itl.observe(duration.micros(), u64::from(decodes));
        }

        if let Some(speculator) = &mut self.speculator {
            speculator.count(decodes, tokens);
        }

        let prefilled = self.prefilled.len() as u64;
        let generated = self.decode(end, step, events) + prefilled;
        self.counters.generation_tokens += generated;
        for place in 0..self.prefilled.len() {
            self.end_prefill(self.prefilled[place], end, events);
        }

        self.prefilled.clear();
        if self.histograms == Histograms::Kept {
            self.count_iteration(generated + self.counters.prompt_computed - computed);
        }
        if let Some(adapters) = &mut self.adapters {
            adapters.record(end);
        }
    }

    /// Gives decoding requests their tokens of a step, and returns the number of tokens.
    fn decode(&mut self, now: Micros, step: EngineStep, events: &mut Vec<EngineEvent>) -> u64 {
        let mut generated = u64::from(step.decodes);
        for token in 0..step.tokens {
            if token > 0 {
                generated += u64::from(self.decodes.count());
                self.take(self.decodes.blocks_needed());
            }

            if let Some(servers) = &mut self.servers {
                servers.tick();
            }

            self.decodes.tick();
            while let Some(index) = self.decodes.complete() {
                let held = self.leave_decodes(index).stored;
                self.finish(index, held, now, events);
            }
        }

        generated
    }

    /// Counts the tokens of a step, unless no request gets one: then no API server gets an output.
    fn count_iteration(&mut self, tokens: u64) {
        let iterations = &mut self.counters.iteration_tokens;
        match &mut self.servers {
            Some(servers) => servers.end_step(iterations),
            None if tokens > 0 => iterations.observe(tokens, 1),
            None => {}
        }
    }

    /// Adds a request to the decoding ones.
    fn join_decodes(&mut self, index: usize, stored: u32, missing: u32) {
        if let Some(servers) = &mut self.servers {
            servers.join(self.lives[index].request.id);
        }
        self.decodes.join(index, stored, missing);
    }

    /// Removes a request from the decoding ones.
    pub(super) fn leave_decodes(&mut self, index: usize) -> StoppedDecode {
        if let Some(servers) = &mut self.servers {
            servers.leave(self.lives[index].request.id);
        }
        self.decodes.leave(index)
    }

    fn end_prefill(&mut self, index: usize, now: Micros, events: &mut Vec<EngineEvent>) {
        let life = &mut self.lives[index];
        let request = life.request;
        let stored = life.prefill_target();
        let computed = if life.first_ever.is_none() { request.prompt - life.cached } else { 0 };
        if let Some(servers) = &mut self.servers {
            servers.add(request.id, u64::from(computed) + 1);
        }
        if life.first_ever.is_none() {
            life.first_ever = Some(now);
            let ttft = now.since(life.arrived);
            if self.histograms == Histograms::Kept {
                self.counters.ttft.observe(ttft.micros(), 1);
            }

            self.counters.prompt_tokens += u64::from(request.prompt);
            self.counters.prompt_computed += u64::from(computed);
            if self.prefill_at == PrefillAt::Elsewhere || self.fetch.is_some() {
                self.counters.prompt_transferred += u64::from(life.cached);
            }

            events.push(EngineEvent::FirstToken { id: request.id, at: now, ttft });
        } else if self.histograms == Histograms::Kept {
            self.counters.itl.observe(now.since(life.last_token).micros(), 1);
        }

        life.first_token.get_or_insert(now);
        life.last_token = now;
        let missing = request.output - life.kept - 1;
        if missing == 0 {
            self.finish(index, stored, now, events);
        } else {
            life.phase = RequestPhase::Decode;
            self.join_decodes(index, stored, missing);
        }
    }

    fn finish(&mut self, index: usize, held: u32, now: Micros, events: &mut Vec<EngineEvent>) {
        self.give_back(self.lives[index].request.id, held, Return::Never);
        self.running.remove(index);
        self.holes.push(index);
        let Life {
            request, arrived, scheduled, first_ever, first_token, preemptions, cached, ..
        } = self.lives[index];
        if let Some(adapters) = &mut self.adapters {
            adapters.leave(request.id);
            adapters.forget(request.id);
        }

        let finished = Finished {
            request,
            arrived,
            at: now,
            queue: scheduled.unwrap_or(now).since(arrived),
            ttft: first_token.unwrap_or(now).since(arrived),
            first_ever: first_ever.unwrap_or(now).since(arrived),
            e2e: now.since(arrived),
            preemptions,
        };

        self.counters.finished += 1;
        if self.histograms == Histograms::Kept {
            self.counters.observe(&finished, request.prompt - cached);
        }

        events.push(EngineEvent::Finished(finished));
    }
}
