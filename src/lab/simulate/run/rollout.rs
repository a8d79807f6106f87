//! Rollouts: new replicas gradually replace all replicas of a variant.
//!
//! # Model
//!
//! With `W` desired replicas, a surge of `S` and `U` that need not be available, it follows the
//! deployment controller of Kubernetes 1.36 (`rolling.go`). New replicas are created while there
//! are fewer than `W + S` in all and fewer than `W` new ones. Old replicas that do not serve are
//! removed first. Old replicas that serve are removed while more than `W - U` serve. Terminating
//! replicas do not count.
//!
//! # Limits
//!
//! If the desired replicas change during a rollout, the change is not spread over old and new
//! replicas in proportion, as by the real controller.

use crate::simulate::run::Simulation;
use crate::simulate::run::pods::PodState;

/// The replicas of one variant that exist and are not terminating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    old_starting: u32,
    old_ready: u32,
    new_starting: u32,
    new_ready: u32,
}

impl Count {
    const fn before(self) -> u32 {
        self.old_starting + self.old_ready
    }

    const fn after(self) -> u32 {
        self.new_starting + self.new_ready
    }
}

impl Simulation<'_> {
    /// Starts a rollout after a change of a variant's pod template.
    pub(crate) fn roll_out(&mut self, variant: usize) {
        self.crews[variant].revision += 1;
        self.reconcile(variant);
    }

    /// Continues a rollout. Returns true if one is in progress.
    pub(crate) fn goes_on_rolling(&mut self, variant: usize) -> bool {
        let Some(rollout) = self.scenario.variants[variant].rollout else { return false };
        loop {
            let count = self.count(variant);
            if count.before() == 0 {
                return false;
            }

            let wanted = self.crews[variant].wanted.count();
            let (surge, unavailable) = rollout.room(wanted);
            let room = (wanted + surge).saturating_sub(count.before() + count.after());
            for _ in 0..room.min(wanted.saturating_sub(count.after())) {
                self.begin_one(variant);
            }
            for _ in 0..count.after().saturating_sub(wanted) {
                self.end_one(variant, Age::New);
            }

            let count = self.count(variant);
            let least = wanted.saturating_sub(unavailable);
            let spare = (count.before() + count.after()).saturating_sub(least + count.new_starting);
            for _ in 0..spare.min(count.old_starting) {
                self.end_one(variant, Age::Old);
            }

            let serving = count.old_ready + count.new_ready;
            for _ in 0..serving.saturating_sub(least).min(count.old_ready) {
                self.end_one(variant, Age::OldReady);
            }
            if self.count(variant) == count {
                return true;
            }
        }
    }

    fn count(&self, variant: usize) -> Count {
        let crew = &self.crews[variant];
        let mut count = Count::default();
        for pod in crew.pods.iter().map(|&pod| &self.pods[pod]) {
            match (pod.state, pod.revision == crew.revision) {
                (PodState::Starting, false) => count.old_starting += 1,
                (PodState::Ready, false) => count.old_ready += 1,
                (PodState::Starting, true) => count.new_starting += 1,
                (PodState::Ready, true) => count.new_ready += 1,
                (PodState::Draining | PodState::Gone, _) => {}
            }
        }

        count
    }

    /// Removes the youngest replica of an age, preferring replicas that do not serve.
    fn end_one(&mut self, variant: usize, age: Age) {
        let starting = match age {
            Age::OldReady => None,
            Age::New | Age::Old => self.youngest_of_age(variant, PodState::Starting, age),
        };

        let found = starting.or_else(|| self.youngest_of_age(variant, PodState::Ready, age));
        let Some(pod) = found else { return };
        let grace = self.scenario.variants[variant].lifecycle.grace;
        self.drain(pod, grace);
    }

    fn youngest_of_age(&self, variant: usize, state: PodState, age: Age) -> Option<usize> {
        let crew = &self.crews[variant];
        let mut pods = crew.pods.iter().rev().copied();
        pods.find(|&at| {
            let pod = &self.pods[at];
            pod.state == state && (pod.revision == crew.revision) == (age == Age::New)
        })
    }
}

/// The replicas to select from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Old,
    OldReady,
}
