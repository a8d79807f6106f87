//! A simulation that follows a clock, scaled from outside, and looked at from time to time.

use jiff::Timestamp;

use crate::simulate::Micros;
use crate::simulate::page::{self, Identity};
use crate::simulate::run::pods::State;
use crate::simulate::run::{Simulation, after};
use crate::simulate::scenario::Scenario;
use crate::simulate::score::{Outcome, VariantSample};

impl<'s> Simulation<'s> {
    /// The scenario that it plays.
    #[must_use]
    pub const fn scenario(&self) -> &'s Scenario {
        self.scenario
    }

    /// The time up to which everything has happened.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// Lets everything happen that happens before `now`, in as many steps as the caller likes.
    pub fn advance_to(&mut self, now: Micros) {
        while self.step(now) {}
        self.now = self.now.max(now);
        for pod in self.crews.iter().flat_map(|crew| crew.pods.clone()).collect::<Vec<_>>() {
            self.advance(pod);
        }
    }

    /// The numbers and states of a variant's replicas, oldest first. No number comes back.
    pub fn replicas(&self, variant: usize) -> impl Iterator<Item = (usize, State)> {
        self.crews[variant].pods.iter().map(|&pod| (pod, self.pods[pod].state))
    }

    /// The metrics page of a replica, if the wall clock showed `epoch` at the start; `None` unless it
    /// serves.
    #[must_use]
    pub fn page(&self, pod: usize, epoch: Timestamp) -> Option<String> {
        let pod = self.pods.get(pod)?;
        let ready = pod.ready.filter(|_| pod.state == State::Ready)?;
        let replica = pod.replica.as_ref()?;
        let model = &self.scenario.models[self.scenario.variants[pod.variant].model];
        let identity = Identity {
            model: model.key.model.to_string(),
            started: after(epoch, pod.process),
            ready: after(epoch, ready),
        };

        let mut text = page::render(&identity, &replica.snapshot());
        if let Some(adapters) = replica.adapters() {
            let names: Vec<String> = model.adapters.iter().map(|it| it.name.to_string()).collect();
            text += &adapters.page(after(epoch, self.now), &names);
        }
        Some(text)
    }

    /// Each variant now, in the scenario's order.
    #[must_use]
    pub fn view(&self) -> Vec<VariantSample> {
        (0..self.crews.len()).map(|variant| self.look_at(variant)).collect()
    }

    /// Its outcome so far.
    #[must_use]
    pub fn score(&self) -> Outcome {
        self.outcome(false)
    }
}
