//! A simulation that follows a clock, with external scaling and periodic observation.

use jiff::Timestamp;

use crate::simulate::Micros;
use crate::simulate::page::{self, EngineIdentity};
use crate::simulate::run::pods::{PodState, SimulatedPod};
use crate::simulate::run::{Simulation, after};
use crate::simulate::scenario::Scenario;
use crate::simulate::score::{Outcome, VariantSample};

impl<'s> Simulation<'s> {
    /// The scenario of this simulation.
    #[must_use]
    pub const fn scenario(&self) -> &'s Scenario {
        self.scenario
    }

    /// The time up to which all events have been processed.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// Processes all events up to `now`. Callers may advance in any number of steps.
    pub fn advance_to(&mut self, now: Micros) {
        while self.step(now) {}
        self.now = self.now.max(now);
        for pod in self.crews.iter().flat_map(|crew| crew.pods.clone()).collect::<Vec<_>>() {
            self.advance(pod);
        }
    }

    /// The numbers and states of a variant's replicas, oldest first. Numbers are never reused.
    pub fn replicas(&self, variant: usize) -> impl Iterator<Item = (usize, PodState)> {
        self.crews[variant].pods.iter().map(|&pod| (pod, self.pods[pod].state))
    }

    /// The /metrics response of a replica, if the wall clock showed `epoch` at the start; `None`
    /// unless the replica serves.
    #[must_use]
    pub fn page(&self, pod: usize, epoch: Timestamp) -> Option<String> {
        let SimulatedPod { variant, state, ready, process, replica, .. } = self.pods.get(pod)?;
        let ready_at = ready.filter(|_| *state == PodState::Ready)?;
        let served = replica.as_ref()?;
        let model = &self.scenario.models[self.scenario.variants[*variant].model];
        let identity = EngineIdentity {
            model: model.key.model.to_string(),
            started: after(epoch, *process),
            ready: after(epoch, ready_at),
        };

        let mut text = page::render(&identity, &served.snapshot());
        if let Some(adapters) = served.adapters() {
            let names: Vec<String> = model.adapters.iter().map(|it| it.name.to_string()).collect();
            text += &adapters.page(after(epoch, self.now), &names);
        }

        Some(text)
    }

    /// The current state of each variant, in the scenario's order.
    #[must_use]
    pub fn view(&self) -> Vec<VariantSample> {
        (0..self.crews.len()).map(|variant| self.look_at(variant)).collect()
    }

    /// The outcome so far.
    #[must_use]
    pub fn score(&self) -> Outcome {
        self.outcome(false)
    }
}
