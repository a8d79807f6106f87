//! Replicas: how they are created, start, drain and fail.

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::replica::Replica;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::replica::stats::Gauges;
use crate::simulate::run::pods::{Crowd, PodSet, PodState, SimulatedPod};
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scaler::ScaleCounts;
use crate::simulate::scenario::{Lifecycle, Prefix, Scenario};
use crate::simulate::score;
use crate::simulate::workload::load::Load;
use plimsoll_core::decide::enforce::ScalingDirection;
use plimsoll_core::fleet::{ReplicaKey, ReplicaName, Role};
use plimsoll_core::units::{Fraction, Replicas};

impl Simulation<'_> {
    /// Creates the replicas that are ready at the start.
    pub(crate) fn staff(&mut self) -> Result<(), SettingsError> {
        for variant in 0..self.crews.len() {
            // The first engine shows if the settings are valid.
            Replica::new(self.scenario.variants[variant].engine)?;
            let startup = self.scenario.variants[variant].startup;
            for _ in 0..self.crews[variant].wanted.count() {
                if let Some(pod) = self.create(variant) {
                    let starts = &mut self.crews[variant].earlier_starts;
                    let phases = [startup.image, startup.load, startup.warmup].into_iter();
                    self.pods[pod].earlier = phases
                        .map(|median| startup.draw(median, starts))
                        .fold(Micros::ZERO, |sum, phase| sum + phase);

                    self.open(pod);
                }
            }
        }

        Ok(())
    }

    fn create(&mut self, variant: usize) -> Option<usize> {
        let described = &self.scenario.variants[variant];
        let crew = &mut self.crews[variant];
        crew.created += 1;
        let name = format!("{}-{}", described.spec.key.variant, crew.created);
        let replica = engine(self.scenario, variant, &mut crew.steps)?;
        let seats = replica.seats();
        let pod = self.pods.len();
        let lifecycle = described.lifecycle;
        let crash = lifecycle.crash_every.map(|mean| after_about(mean, &mut crew.faults));
        let interruption =
            lifecycle.interrupt_every.map(|mean| after_about(mean, &mut crew.faults));

        self.pods.push(SimulatedPod {
            variant,
            key: ReplicaKey {
                variant: described.spec.key.clone(),
                replica: ReplicaName::new(&name)?,
                incarnation: None,
            },
            state: PodState::Starting,
            revision: crew.revision,
            number: crew.created,
            created: self.now,
            earlier: Micros::ZERO,
            scheduled: self.now,
            reachable: self.now,
            process: self.now,
            ready: None,
            life: 0,
            back_off: Micros::ZERO,
            replica: Some(Box::new(replica)),
            quiet: Micros::new(u64::MAX),
            crowd: Crowd { outstanding: 0, seats },
            seen: Gauges { running: 0, waiting: 0, kv_usage: 0.0 },
        });

        crew.pods.push(pod);
        self.set_pace(pod);
        let crew = &mut self.crews[variant];
        let exist = u32::try_from(crew.pods.len()).unwrap_or(u32::MAX);
        crew.score.peak = crew.score.peak.max(exist);
        if let Some(crash) = crash {
            self.plan(self.now + crash, Happening::Crashed(pod));
        }
        if let Some(interruption) = interruption {
            self.plan(self.now + interruption, Happening::Interrupted(pod));
        }

        Some(pod)
    }

    /// Sets the desired replicas and acts as a Deployment's controller: it starts new replicas or
    /// removes surplus ones. It removes unready replicas before ready ones, and young ones before
    /// old ones.
    pub fn scale(&mut self, variant: usize, wanted: Replicas) {
        let crew = &mut self.crews[variant];
        if wanted == crew.wanted {
            return;
        }

        crew.score.turn(if wanted > crew.wanted {
            ScalingDirection::Up
        } else {
            ScalingDirection::Down
        });
        crew.wanted = wanted;
        self.reconcile(variant);
    }

    /// Creates a replica after the start.
    pub(crate) fn begin_one(&mut self, variant: usize) -> bool {
        let Some(pod) = self.create(variant) else { return false };
        self.crews[variant].score.starts += 1;
        self.start(pod);
        true
    }

    pub(crate) fn reconcile(&mut self, variant: usize) {
        if self.goes_on_rolling(variant) {
            return;
        }

        let wanted = self.crews[variant].wanted.count();
        while self.existing(variant) < wanted {
            if !self.begin_one(variant) {
                return;
            }
        }

        while self.existing(variant) > wanted {
            let starting = self.youngest(variant, PodState::Starting);
            let Some(pod) = starting.or_else(|| self.youngest(variant, PodState::Ready)) else {
                return;
            };
            let grace = self.scenario.variants[variant].lifecycle.grace;
            self.drain(pod, grace);
        }
    }

    fn youngest(&self, variant: usize, state: PodState) -> Option<usize> {
        let mut pods = self.crews[variant].pods.iter().rev();
        pods.find(|&&pod| self.pods[pod].state == state).copied()
    }

    /// Plans the readiness of a replica that was just created.
    fn start(&mut self, pod: usize) {
        let variant = self.pods[pod].variant;
        let startup = self.scenario.variants[variant].startup;
        let PodSet { starts, pods, .. } = &mut self.crews[variant];
        let node = startup.draw(startup.node, starts);
        let warm = startup.has_warm_node(pods.len());
        self.pods[pod].scheduled = if warm { self.now } else { self.now + node };

        let process = self.pods[pod].scheduled + startup.draw(startup.image, starts);
        let loaded = process + startup.draw(startup.load, starts);
        let ready = loaded + startup.draw(startup.warmup, starts);
        self.pods[pod].reachable = process;
        self.pods[pod].process = process;
        self.plan_readiness(pod, ready);
    }

    /// Plans the end of a start: the replica serves, or its process ends and restarts.
    fn plan_readiness(&mut self, pod: usize, at: Micros) {
        let SimulatedPod { variant, life, .. } = self.pods[pod];
        let failures = self.scenario.variants[variant].startup.failures;
        // A share of zero draws no number, so the other faults of the variant do not change.
        let fails = failures > Fraction::ZERO
            && random::uniform(&mut self.crews[variant].faults) <= failures.fraction();
        self.plan(at, if fails { Happening::Unready(pod, life) } else { Happening::Ready(pod) });
    }

    /// Restarts a replica whose start failed, unless it is gone.
    pub(crate) fn fail_to_start(&mut self, pod: usize, life: u32) {
        if self.pods[pod].state == PodState::Starting && self.pods[pod].life == life {
            self.fall(pod);
        }
    }

    /// Returns true if a starting replica serves from now on.
    pub(crate) fn become_ready(&mut self, pod: usize) -> bool {
        let starts = self.pods[pod].state == PodState::Starting && !self.dies_at_once(pod);
        if starts {
            self.pods[pod].state = PodState::Ready;
            self.pods[pod].ready = Some(self.now);
        }
        starts
    }

    /// Lets a replica finish its requests, for at most `grace`.
    pub(crate) fn drain(&mut self, pod: usize, grace: Micros) {
        let ready = self.pods[pod].state == PodState::Ready;
        self.pods[pod].state = PodState::Draining;

        if ready {
            self.close(pod);
            self.plan(self.now + grace, Happening::Killed(pod));
            self.plan(self.now, Happening::Emptied(pod));
        } else {
            self.remove(pod);
        }
    }

    pub(crate) fn look_whether_empty(&mut self, pod: usize) {
        if self.pods[pod].state != PodState::Draining {
            return;
        }

        self.advance(pod);
        if self.pods[pod].crowd.outstanding == 0 {
            self.remove(pod);
        } else {
            let next = self.pods[pod].quiet.max(self.now + Micros::new(1));
            self.plan(next, Happening::Emptied(pod));
        }
    }

    pub(crate) fn kill(&mut self, pod: usize) {
        if self.pods[pod].state == PodState::Draining {
            self.advance(pod);
            self.remove(pod);
        }
    }

    /// The process of a replica ends and restarts in place.
    pub(crate) fn crash(&mut self, pod: usize) {
        let variant = self.pods[pod].variant;
        let described = &self.scenario.variants[variant];
        let Some(mean) = described.lifecycle.crash_every else { return };
        if self.pods[pod].state == PodState::Gone {
            return;
        }

        let crew = &mut self.crews[variant];
        let again = Micros::from_secs_f64(mean.seconds() * random::exponential(&mut crew.faults));
        if self.pods[pod].state != PodState::Ready {
            self.plan(self.now + again, Happening::Crashed(pod));
            return;
        }

        let ready = self.restart(pod, Micros::ZERO);
        self.plan(ready + again, Happening::Crashed(pod));
    }

    /// Ends the process of a replica, which restarts in place after `back_off`. Returns the time at
    /// which it is ready again.
    pub(crate) fn restart(&mut self, pod: usize, back_off: Micros) -> Micros {
        let variant = self.pods[pod].variant;
        let described = &self.scenario.variants[variant];
        let crew = &mut self.crews[variant];
        crew.score.crashes += 1;
        let process = self.now + back_off;
        let startup = described.startup;
        let loaded = process + startup.draw(startup.load, &mut crew.starts);
        let ready = loaded + startup.draw(startup.warmup, &mut crew.starts);

        self.advance(pod);
        self.close(pod);
        self.count_loads(pod);

        let steps = &mut self.crews[variant].steps;
        let taken = &mut self.pods[pod];
        taken.state = PodState::Starting;
        taken.life += 1;
        taken.process = process;
        taken.ready = None;
        taken.crowd.outstanding = 0;
        taken.quiet = Micros::new(u64::MAX);
        taken.replica = engine(self.scenario, variant, steps).map(Box::new);

        self.set_pace(pod);
        self.plan_readiness(pod, ready);
        self.cut_off(described.model, pod);
        ready
    }

    /// A node is about to be taken back, and some other nodes with it. Their replicas drain, and
    /// new ones replace them.
    pub(crate) fn interrupt(&mut self, pod: usize) {
        if !self.pods[pod].counts() {
            return;
        }

        let variant = self.pods[pod].variant;
        let Lifecycle { notice, interrupt_together: together, .. } =
            self.scenario.variants[variant].lifecycle;
        let mut taken = vec![pod];
        if together > Fraction::ZERO {
            let PodSet { pods, faults, .. } = &mut self.crews[variant];
            let others = pods.iter().copied().filter(|other| *other != pod);
            taken.extend(others.filter(|_| random::uniform(faults) <= together.fraction()));
        }

        for pod in taken.into_iter().filter(|pod| self.pods[*pod].counts()).collect::<Vec<_>>() {
            self.crews[variant].score.interruptions += 1;
            self.drain(pod, notice);
        }

        self.reconcile(variant);
    }

    /// Counts the adapter loads of an engine that ends.
    fn count_loads(&mut self, pod: usize) {
        let ended = &self.pods[pod];
        self.services[self.scenario.variants[ended.variant].model].adapter_loads +=
            ended.adapter_loads();
    }

    fn remove(&mut self, pod: usize) {
        self.count_loads(pod);
        let variant = self.pods[pod].variant;
        let crew = &mut self.crews[variant];
        crew.pods.retain(|&other| other != pod);
        crew.score.replica_time += self.now.since(self.pods[pod].scheduled);

        let taken = &mut self.pods[pod];
        taken.state = PodState::Gone;
        taken.replica = None;
        let unfinished = taken.crowd.outstanding > 0;
        taken.crowd.outstanding = 0;

        if unfinished {
            self.cut_off(self.scenario.variants[variant].model, pod);
        }
    }

    /// Replicas that exist and are not terminating.
    pub(crate) fn existing(&self, variant: usize) -> u32 {
        let pods = self.crews[variant].pods.iter();
        u32::try_from(pods.filter(|&&pod| self.pods[pod].counts()).count()).unwrap_or(u32::MAX)
    }

    /// The scale subresource of a variant.
    pub(crate) fn scale_of(&self, variant: usize) -> ScaleCounts {
        let status = Replicas::saturating(self.existing(variant));
        ScaleCounts { spec: self.crews[variant].wanted, status }
    }

    /// The scores of all variants, with the time of the replicas that exist now.
    pub(crate) fn crew_scores(&self) -> Vec<score::VariantScore> {
        let mut scores = Vec::new();
        for crew in &self.crews {
            let mut score = crew.score.clone();
            for &pod in &crew.pods {
                score.replica_time += self.now.since(self.pods[pod].scheduled);
            }
            scores.push(score);
        }

        scores
    }
}

/// An idle engine of a variant, whose random numbers are forked from those of its crew.
fn engine(scenario: &Scenario, variant: usize, steps: &mut Pcg64) -> Option<Replica> {
    let described = &scenario.variants[variant];
    let mut replica = Replica::new(described.engine).ok()?;
    if described.spec.role == Role::Decode {
        replica = replica.for_computed_prompts();
    }

    replica = replica.with_options(described.options, random::fork(steps));
    if let Some(adapters) = described.adapters {
        replica = replica.with_adapters(adapters);
    }
    if !scenario.is_followed() {
        replica = replica.without_histograms();
    }

    Some(match described.prefix {
        Prefix::Share(share) => replica.with_prefix_hits(share),
        Prefix::Blocks => match &scenario.models[described.model].load {
            Load::Replay(replay) => replica.with_prefix_cache(replay.prompts.clone()),
            Load::Drawn(_) | Load::Closed(_) | Load::Described(_) => {
                replica.with_prefix_cache(None)
            }
        },
    })
}

/// Draws the time until a fault that happens once in this time on average.
fn after_about(mean: Micros, faults: &mut Pcg64) -> Micros {
    Micros::from_secs_f64(mean.seconds() * random::exponential(faults))
}
