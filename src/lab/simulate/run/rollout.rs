//! Roll-outs: others take the place of all replicas of a variant, some at a time.
//!
//! # Model
//!
//! With `W` replicas that are asked for, a surge of `S` and `U` that need not be available, as the
//! deployment controller of Kubernetes 1.36 does it (`rolling.go`): new ones are created while there
//! are fewer than `W + S` in all and fewer than `W` new ones; old ones that do not serve are taken
//! away first; and old ones that serve while more than `W - U` do. What terminates does not count.
//!
//! # Limits
//!
//! When the number that is asked for changes meanwhile, it changes for the new replicas; the
//! controller spreads a change over both in proportion.

use crate::simulate::run::Simulation;
use crate::simulate::run::pods::State;

/// The replicas of one variant that exist and are not on their way out.
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
    /// The pod template of a variant changes.
    pub(crate) fn roll_out(&mut self, variant: usize) {
        self.crews[variant].revision += 1;
        self.reconcile(variant);
    }

    /// Goes on with a roll-out. Returns whether there is one.
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
                (State::Starting, false) => count.old_starting += 1,
                (State::Ready, false) => count.old_ready += 1,
                (State::Starting, true) => count.new_starting += 1,
                (State::Ready, true) => count.new_ready += 1,
                (State::Draining | State::Gone, _) => {}
            }
        }
        count
    }

    /// Takes the youngest replica of an age away, those first that do not serve.
    fn end_one(&mut self, variant: usize, age: Age) {
        let crew = &self.crews[variant];
        let youngest = |state: State| {
            let of = |pod: &&usize| {
                let pod = &self.pods[**pod];
                pod.state == state && (pod.revision == crew.revision) == (age == Age::New)
            };
            crew.pods.iter().rev().find(of).copied()
        };
        let starting = if age == Age::OldReady { None } else { youngest(State::Starting) };
        let Some(pod) = starting.or_else(|| youngest(State::Ready)) else { return };
        let grace = self.scenario.variants[variant].lifecycle.grace;
        self.drain(pod, grace);
    }
}

/// Which replicas are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Old,
    OldReady,
}
