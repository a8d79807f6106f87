//! Faulty replicas: slow ones, crash-looping ones, and ones whose metrics cannot be read.

use crate::simulate::Micros;
use crate::simulate::run::pods::{PodState, SimulatedPod};
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scenario::{CrashLoop, Lifecycle};

/// The kubelet's back-off before it restarts a container that has died twice; it doubles with each
/// further death (`MaxContainerBackOff` and `backOffPeriod` of Kubernetes 1.36).
const BACK_OFF: Micros = Micros::from_secs(10);

/// The longest back-off.
const BACK_OFF_MAX: Micros = Micros::from_secs(300);

/// The time that a container must live for the kubelet to reset its back-off.
const FORGOTTEN: Micros = Micros::from_secs(600);

impl Simulation<'_> {
    /// Plans the faults of all variants' replicas.
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

    /// Updates the engines of a variant that become slow or recover.
    pub(crate) fn change_pace(&mut self, variant: usize) {
        for pod in self.crews[variant].pods.clone() {
            self.advance(pod);
            self.set_pace(pod);
        }
        self.release(self.scenario.variants[variant].model);
    }

    /// Gives an engine its slowness at this time.
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

    /// Starts the crash loop of replicas.
    pub(crate) fn begin_loop(&mut self, variant: usize) {
        for pod in self.crews[variant].pods.clone() {
            self.die(pod, self.pods[pod].life);
        }
    }

    /// Plans the next death of a crash-looping replica that is about to serve. Returns true if it
    /// dies before it serves.
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

    /// Ends the process of a crash-looping replica, unless it has died since or its loop is over.
    pub(crate) fn die(&mut self, pod: usize, life: u32) {
        let lives = self.pods[pod].state == PodState::Ready && self.pods[pod].life == life;
        if lives && self.crash_loop_of(pod).is_some() {
            self.fall(pod);
        }
    }

    /// The crash loop that affects a replica at this time.
    fn crash_loop_of(&self, pod: usize) -> Option<CrashLoop> {
        let SimulatedPod { variant, number, .. } = self.pods[pod];
        let crash_loop = self.scenario.variants[variant].lifecycle.crash_loop;
        crash_loop.filter(|it| it.covers(self.now, number))
    }

    /// Ends the process of a replica, which restarts after the back-off.
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

    /// Returns true if a replica's metrics cannot be read at this time, although it may serve.
    pub(crate) fn is_silent(&self, pod: usize) -> bool {
        let SimulatedPod { variant, number, .. } = self.pods[pod];
        let silence = self.scenario.variants[variant].lifecycle.silence;
        silence.is_some_and(|silence| silence.covers(self.now, number))
    }
}
