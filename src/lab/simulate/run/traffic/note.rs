//! The results of requests: tokens, answers, and a judgment of each.

use crate::simulate::Micros;
use crate::simulate::replica::EngineEvent;
use crate::simulate::run::traffic::requests::{Class, Open, RequestPlace};
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::{Model, Slo};
use crate::simulate::score::{MetObjectives, Service};
use plimsoll_core::fleet::Role;

impl Simulation<'_> {
    /// Advances a replica to the current time, and records its events.
    pub(crate) fn advance(&mut self, pod: usize) {
        let taken = &mut self.pods[pod];
        let Some(replica) = &mut taken.replica else { return };
        let described = &self.scenario.variants[taken.variant];
        let model = described.model;
        let role = described.spec.role;
        let mut events = std::mem::take(&mut self.events);
        replica.advance_to(self.now, &mut events);
        taken.refresh();
        for event in &events {
            match role {
                Role::Both | Role::Decode => self.note(model, event),
                Role::Prefill => self.note_prompt(model, event),
            }
        }

        events.clear();
        self.events = events;
    }

    /// Records an event of a prefill replica.
    fn note_prompt(&mut self, model: usize, event: &EngineEvent) {
        match *event {
            EngineEvent::FirstToken { .. } => {}
            EngineEvent::Preempted { .. } => self.services[model].preemptions += 1,
            EngineEvent::Finished(ref finished) => {
                let id = finished.request.id;
                let Some(open) = self.traffic[model].get(id) else { return };
                open.place = RequestPlace::Moving;
                let attempt = open.attempts;
                let takes = self.scenario.models[model].transfer.of(finished.request.prompt);
                self.plan(finished.at + takes, Happening::Handed(model, id, attempt));
            }
        }
    }

    fn note(&mut self, model: usize, event: &EngineEvent) {
        match *event {
            EngineEvent::FirstToken { id, at, .. } => {
                let Some(open) = self.traffic[model].get(id) else { return };
                open.answers = true;
                if open.first_token.is_none() {
                    open.first_token = Some(at);
                    let Open { class, arrived, .. } = *open;
                    self.service(model, class).ttft.observe(at.since(arrived));
                }
            }
            EngineEvent::Preempted { .. } => self.services[model].preemptions += 1,
            EngineEvent::Finished(ref finished) => {
                let id = finished.request.id;
                let Some(&mut open) = self.traffic[model].get(id) else { return };
                let Open { class, arrived, first_token, .. } = open;
                let first = first_token.unwrap_or(finished.at);
                let gaps = u64::from(finished.request.output.saturating_sub(1));
                let itl = finished.at.since(first).micros().checked_div(gaps).map(Micros::new);
                let slo = self.slo(model, class);
                let met = slo.map_or(MetObjectives::ALL, |slo| {
                    slo.met(finished.request.prompt, first.since(arrived), itl)
                });
                let service = self.service(model, class);
                service.finish(arrived, met);
                service.prompt_tokens += u64::from(finished.request.prompt);
                service.output_tokens += u64::from(finished.request.output);
                service.e2e.observe(finished.at.since(arrived));
                if let Some(itl) = itl {
                    service.itl.observe(itl);
                }

                self.end(model, id);
            }
        }
    }

    /// The objectives of a class's requests, if any.
    fn slo(&self, model: usize, class: Class) -> Option<Slo> {
        let Model { slo, batch, .. } = &self.scenario.models[model];
        match class {
            Class::Interactive => Some(*slo),
            Class::Batch => batch.as_ref()?.slo,
        }
    }

    /// The services of all models for a class, with a judgment of the requests that are still open.
    pub(crate) fn judged(&self, class: Class) -> Vec<Service> {
        let mut services = match class {
            Class::Interactive => self.services.clone(),
            Class::Batch => self.batches.clone(),
        };
        for (model, traffic) in self.traffic.iter().enumerate() {
            let service = &mut services[model];
            let slo = self.slo(model, class);
            for open in traffic.open.iter().filter(|open| open.class == class) {
                if open.place == RequestPlace::Nowhere {
                    continue;
                }

                let allowed = slo.map(|slo| slo.ttft_of(open.size.prompt));
                if open.first_token.is_none()
                    && allowed.is_some_and(|allowed| self.now.since(open.arrived) > allowed)
                {
                    service.overdue += 1;
                    service.judge(open.arrived, false);
                } else {
                    service.open += 1;
                }
            }
        }

        services
    }
}
