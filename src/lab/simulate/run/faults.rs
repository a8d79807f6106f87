//! Replicas that are in trouble: slow ones, ones that die again and again, silent ones.

use crate::simulate::Micros;
use crate::simulate::run::pods::State;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::{CrashLoop, Lifecycle};

/// How long the kubelet waits before it starts a container again that has died twice; as long again
/// after each further death (`MaxContainerBackOff` and `backOffPeriod` of Kubernetes 1.36).
const BACK_OFF: Micros = Micros::from_secs(10);

/// The longest that it waits.
const BACK_OFF_MAX: Micros = Micros::from_secs(300);

/// How long a container must live for its deaths to be forgotten.
const FORGOTTEN: Micros = Micros::from_secs(600);

impl Simulation<'_> {
    /// Plans what befalls the replicas of all variants.
    pub(crate) fn begin_faults(&mut self) {
        for (variant, described) in self.scenario.variants.iter().enumerate() {
            let Lifecycle { slowdown, crash_loop, .. } = described.lifecycle;
            if let Some(slowdown) = slowdown {
                self.plan(slowdown.from, Happening::Paced(variant));
                if let Some(until) = slowdown.until {
                    self.plan(until, Happening::Paced(variant));
                }
            }
            if let Some(crash_loop) = crash_loop {
                self.plan(crash_loop.from, Happening::Looped(variant));
            }
        }
    }

    /// The engines of a variant become slow, or are so no more.
    pub(crate) fn change_pace(&mut self, variant: usize) {
        for pod in self.crews[variant].pods.clone() {
            self.advance(pod);
            self.set_pace(pod);
        }
        self.release(self.scenario.variants[variant].model);
    }

    /// Makes an engine as slow as it is at this time.
    pub(crate) fn set_pace(&mut self, pod: usize) {
        let taken = &mut self.pods[pod];
        let Some(slowdown) = self.scenario.variants[taken.variant].lifecycle.slowdown else {
            return;
        };
        let slow = slowdown.covers(self.now, taken.number);
        if let Some(replica) = &mut taken.replica {
            replica.set_slowness(if slow { slowdown.factor } else { 1.0 });
        }
        taken.refresh();
    }

    /// Replicas begin to die again and again.
    pub(crate) fn begin_loop(&mut self, variant: usize) {
        for pod in self.crews[variant].pods.clone() {
            self.die(pod, self.pods[pod].life);
        }
    }

    /// Decides how long a replica that could serve now lives that dies again and again. Returns whether
    /// it dies before it serves.
    pub(crate) fn dies_at_once(&mut self, pod: usize) -> bool {
        let Some(CrashLoop { serves, .. }) = self.crash_loop_of(pod) else { return false };
        let life = self.pods[pod].life;
        if serves > Micros::ZERO {
            self.plan(self.now + serves, Happening::Died(pod, life));
            return false;
        }
        self.fall(pod);
        true
    }

    /// A replica dies that does so again and again, unless it has died since, or is to live.
    pub(crate) fn die(&mut self, pod: usize, life: u32) {
        let lives = self.pods[pod].state == State::Ready && self.pods[pod].life == life;
        if lives && self.crash_loop_of(pod).is_some() {
            self.fall(pod);
        }
    }

    /// The loop that a replica is in at this time.
    fn crash_loop_of(&self, pod: usize) -> Option<CrashLoop> {
        let pod = &self.pods[pod];
        let crash_loop = self.scenario.variants[pod.variant].lifecycle.crash_loop;
        crash_loop.filter(|it| it.covers(self.now, pod.number))
    }

    /// The process of a replica ends; it starts again after the back-off.
    pub(crate) fn fall(&mut self, pod: usize) {
        let taken = &mut self.pods[pod];
        if self.now.since(taken.process) > FORGOTTEN {
            taken.back_off = Micros::ZERO;
        }
        let back_off = taken.back_off;
        let doubled = Micros::new(back_off.micros() * 2);
        taken.back_off = doubled.clamp(BACK_OFF, BACK_OFF_MAX);
        self.restart(pod, back_off);
    }

    /// Whether a replica's metrics cannot be read at this time, though it may serve.
    pub(crate) fn is_silent(&self, pod: usize) -> bool {
        let pod = &self.pods[pod];
        let silence = self.scenario.variants[pod.variant].lifecycle.silence;
        silence.is_some_and(|silence| silence.covers(self.now, pod.number))
    }
}
