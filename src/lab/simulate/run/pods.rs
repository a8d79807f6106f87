//! Replicas: how they come into being, start, drain and fail.

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{self, Purpose, generator};
use crate::simulate::replica::Replica;
use crate::simulate::replica::settings::SettingsError;
use crate::simulate::replica::stats::Gauges;
use crate::simulate::run::{Happening, Simulation};
use crate::simulate::scaler::Scale;
use crate::simulate::scenario::{Lifecycle, Prefix, Scenario};
use crate::simulate::score;
use crate::simulate::workload::load::Load;
use plimsoll_core::decide::enforce::Direction;
use plimsoll_core::fleet::{ReplicaKey, ReplicaName, Role};
use plimsoll_core::units::{Fraction, Replicas};

/// The replicas of one variant.
pub(crate) struct Crew {
    /// What the scale target asks for.
    pub(crate) wanted: Replicas,
    /// Those that exist, oldest first.
    pub(crate) pods: Vec<usize>,
    pub(crate) score: score::Crew,
    /// Requests that were sent to them.
    pub(crate) sent: u64,
    /// How often the pod template has changed.
    pub(crate) revision: u32,
    created: u32,
    starts: Pcg64,
    faults: Pcg64,
    /// What the random numbers of its engines start from.
    steps: Pcg64,
}

/// One replica.
pub(crate) struct Pod {
    pub(crate) variant: usize,
    pub(crate) key: ReplicaKey,
    pub(crate) state: State,
    /// Of which pod template it is.
    pub(crate) revision: u32,
    /// Its number among those of its variant, in the order in which they were created, from 1 on.
    pub(crate) number: u32,
    /// When it was created.
    pub(crate) created: Micros,
    /// Since when it has a node.
    pub(crate) scheduled: Micros,
    /// Since when it has an address.
    pub(crate) reachable: Micros,
    /// When its process started.
    pub(crate) process: Micros,
    /// Since when it is ready, while it is.
    pub(crate) ready: Option<Micros>,
    /// How often the process has started again.
    pub(crate) life: u32,
    /// How long it waits for its next start if its process ends.
    pub(crate) back_off: Micros,
    /// `None` once it has ended.
    pub(crate) replica: Option<Box<Replica>>,
    /// Until when nothing that a router counts changes.
    pub(crate) quiet: Micros,
    pub(crate) crowd: Crowd,
    /// What a router that looks from time to time last saw.
    pub(crate) seen: Gauges,
}

/// How many requests a replica has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) outstanding: u32,
    seats: u32,
}

/// Where a replica is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its process loads the model.
    Starting,
    /// It serves.
    Ready,
    /// It finishes its requests and takes no new ones.
    Draining,
    /// It has ended.
    Gone,
}

impl Crew {
    pub(crate) fn new(scenario: &Scenario, seed: u64, variant: usize) -> Self {
        Self {
            wanted: scenario.variants[variant].initial,
            pods: Vec::new(),
            score: score::Crew::default(),
            sent: 0,
            revision: 0,
            created: 0,
            starts: generator(seed, Purpose::Starts, variant),
            faults: generator(seed, Purpose::Faults, variant),
            steps: generator(seed, Purpose::Steps, variant),
        }
    }
}

impl Crowd {
    /// The requests for each seat.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.outstanding) / f64::from(self.seats)
    }

    /// Whether there are fewer for the seats that there are.
    pub(crate) fn is_less_than(self, other: Self) -> bool {
        let (mine, theirs) = (u64::from(self.outstanding), u64::from(other.outstanding));
        mine * u64::from(other.seats) < theirs * u64::from(self.seats)
    }
}

impl Pod {
    /// Reads again what changes when the replica does.
    pub(crate) fn refresh(&mut self) {
        if let Some(replica) = &self.replica {
            self.quiet = replica.quiet_until();
            self.crowd.outstanding = u32::try_from(replica.outstanding()).unwrap_or(u32::MAX);
        }
    }

    /// Adapters that its engine has loaded.
    pub(crate) fn adapter_loads(&self) -> u64 {
        self.replica.as_ref().map_or(0, |replica| replica.adapter_loads())
    }

    /// Whether it has fewer requests than it may be sent at a time.
    pub(crate) fn has_room(&self, limit: Option<u32>) -> bool {
        limit.is_none_or(|limit| self.crowd.outstanding < limit)
    }

    /// Notes what a router sees.
    pub(crate) fn look(&mut self) {
        if let Some(replica) = &self.replica {
            self.seen = replica.gauges();
        }
    }

    /// Whether it exists and is not on its way out.
    pub(crate) const fn counts(&self) -> bool {
        matches!(self.state, State::Starting | State::Ready)
    }
}

impl Simulation<'_> {
    /// Creates the replicas that are ready at the start.
    pub(crate) fn staff(&mut self) -> Result<(), SettingsError> {
        for variant in 0..self.crews.len() {
            // Whether settings are sound is known from the first engine on.
            Replica::new(self.scenario.variants[variant].engine)?;
            for _ in 0..self.crews[variant].wanted.count() {
                if let Some(pod) = self.create(variant) {
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
        let mut mean = |mean: Micros| {
            Micros::from_secs_f64(mean.seconds() * random::exponential(&mut crew.faults))
        };
        let (crash, interruption) =
            (lifecycle.crash_every.map(&mut mean), lifecycle.interrupt_every.map(&mut mean));
        self.pods.push(Pod {
            variant,
            key: ReplicaKey {
                variant: described.spec.key.clone(),
                replica: ReplicaName::new(&name)?,
                incarnation: None,
            },
            state: State::Starting,
            revision: crew.revision,
            number: crew.created,
            created: self.now,
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
            self.plan(self.now + crash, Happening::Crashed(pod, 0));
        }
        if let Some(interruption) = interruption {
            self.plan(self.now + interruption, Happening::Interrupted(pod));
        }
        Some(pod)
    }

    /// Asks for a number of replicas, as a deployment's controller would carry it out: new ones
    /// start, and of those that are too many the unready go before the ready, and the young before
    /// the old.
    pub fn scale(&mut self, variant: usize, wanted: Replicas) {
        let crew = &mut self.crews[variant];
        if wanted == crew.wanted {
            return;
        }
        crew.score.turn(if wanted > crew.wanted { Direction::Up } else { Direction::Down });
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
            let pods = &self.pods;
            let youngest = |state: State| {
                let of = |pod: &&usize| pods[**pod].state == state;
                self.crews[variant].pods.iter().rev().find(of).copied()
            };
            let Some(pod) = youngest(State::Starting).or_else(|| youngest(State::Ready)) else {
                return;
            };
            let grace = self.scenario.variants[variant].lifecycle.grace;
            self.drain(pod, grace);
        }
    }

    /// Plans when a replica that was created now is ready.
    fn start(&mut self, pod: usize) {
        let variant = self.pods[pod].variant;
        let startup = self.scenario.variants[variant].startup;
        let Crew { starts, pods, .. } = &mut self.crews[variant];
        let node = startup.draw(startup.node, starts);
        let warm = startup.warm_nodes.is_none_or(|warm| pods.len() <= warm as usize);
        self.pods[pod].scheduled = if warm { self.now } else { self.now + node };
        let process = self.pods[pod].scheduled + startup.draw(startup.image, starts);
        let loaded = process + startup.draw(startup.load, starts);
        let ready = loaded + startup.draw(startup.warmup, starts);
        self.pods[pod].reachable = process;
        self.pods[pod].process = process;
        self.plan_readiness(pod, ready);
    }

    /// Plans the end of a start: the replica serves, or its process ends and starts again.
    fn plan_readiness(&mut self, pod: usize, at: Micros) {
        let Pod { variant, life, .. } = self.pods[pod];
        let failures = self.scenario.variants[variant].startup.failures;
        // A share of none draws no number, so that other faults of the variant stay as they are.
        let fails = failures > Fraction::ZERO
            && random::uniform(&mut self.crews[variant].faults) <= failures.fraction();
        self.plan(at, if fails { Happening::Unready(pod, life) } else { Happening::Ready(pod) });
    }

    /// A replica whose start fails starts again, unless it is gone.
    pub(crate) fn fail_to_start(&mut self, pod: usize, life: u32) {
        if self.pods[pod].state == State::Starting && self.pods[pod].life == life {
            self.fall(pod);
        }
    }

    /// Returns whether a replica that was starting serves now.
    pub(crate) fn become_ready(&mut self, pod: usize) -> bool {
        let starts = self.pods[pod].state == State::Starting && !self.dies_at_once(pod);
        if starts {
            self.pods[pod].state = State::Ready;
            self.pods[pod].ready = Some(self.now);
        }
        starts
    }

    /// Lets a replica finish what it has, for at most `grace`.
    pub(crate) fn drain(&mut self, pod: usize, grace: Micros) {
        let ready = self.pods[pod].state == State::Ready;
        self.pods[pod].state = State::Draining;
        if ready {
            self.close(pod);
            self.plan(self.now + grace, Happening::Killed(pod));
            self.plan(self.now, Happening::Emptied(pod));
        } else {
            self.remove(pod);
        }
    }

    pub(crate) fn look_whether_empty(&mut self, pod: usize) {
        if self.pods[pod].state != State::Draining {
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
        if self.pods[pod].state == State::Draining {
            self.advance(pod);
            self.remove(pod);
        }
    }

    /// The process of a replica ends, and starts again where it is.
    pub(crate) fn crash(&mut self, pod: usize, life: u32) {
        let variant = self.pods[pod].variant;
        let described = &self.scenario.variants[variant];
        let Some(mean) = described.lifecycle.crash_every else { return };
        if self.pods[pod].life != life || self.pods[pod].state == State::Gone {
            return;
        }
        let crew = &mut self.crews[variant];
        let again = Micros::from_secs_f64(mean.seconds() * random::exponential(&mut crew.faults));
        if self.pods[pod].state != State::Ready {
            self.plan(self.now + again, Happening::Crashed(pod, life));
            return;
        }
        let ready = self.restart(pod, Micros::ZERO);
        self.plan(ready + again, Happening::Crashed(pod, life + 1));
    }

    /// Ends the process of a replica, which starts again where it is after a while. Returns when it is
    /// ready then.
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
        taken.state = State::Starting;
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

    /// A node is to be taken back, and some of the others with it: their replicas drain, and others
    /// take their places.
    pub(crate) fn interrupt(&mut self, pod: usize) {
        if !self.pods[pod].counts() {
            return;
        }
        let variant = self.pods[pod].variant;
        let Lifecycle { notice, interrupt_together: together, .. } =
            self.scenario.variants[variant].lifecycle;
        let mut taken = vec![pod];
        if together > Fraction::ZERO {
            let Crew { pods, faults, .. } = &mut self.crews[variant];
            let pods = pods.iter().copied().filter(|other| *other != pod);
            taken.extend(pods.filter(|_| random::uniform(faults) <= together.fraction()));
        }
        for pod in taken.into_iter().filter(|pod| self.pods[*pod].counts()).collect::<Vec<_>>() {
            self.crews[variant].score.interruptions += 1;
            self.drain(pod, notice);
        }
        self.reconcile(variant);
    }

    /// Counts what an engine has loaded that ends.
    fn count_loads(&mut self, pod: usize) {
        let pod = &self.pods[pod];
        self.services[self.scenario.variants[pod.variant].model].adapter_loads +=
            pod.adapter_loads();
    }

    fn remove(&mut self, pod: usize) {
        self.count_loads(pod);
        let variant = self.pods[pod].variant;
        let crew = &mut self.crews[variant];
        crew.pods.retain(|&other| other != pod);
        crew.score.replica_time += self.now.since(self.pods[pod].scheduled);
        let taken = &mut self.pods[pod];
        taken.state = State::Gone;
        taken.replica = None;
        let unfinished = taken.crowd.outstanding > 0;
        taken.crowd.outstanding = 0;
        if unfinished {
            self.cut_off(self.scenario.variants[variant].model, pod);
        }
    }

    /// Replicas that exist and are not on their way out.
    pub(crate) fn existing(&self, variant: usize) -> u32 {
        let pods = self.crews[variant].pods.iter();
        u32::try_from(pods.filter(|&&pod| self.pods[pod].counts()).count()).unwrap_or(u32::MAX)
    }

    /// The scale subresource of a variant.
    pub(crate) fn scale_of(&self, variant: usize) -> Scale {
        let status = Replicas::saturating(self.existing(variant));
        Scale { spec: self.crews[variant].wanted, status }
    }

    /// The scores of all variants, with the time of the replicas that exist now.
    pub(crate) fn crew_scores(&self) -> Vec<score::Crew> {
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

/// An idle engine of a variant, whose random numbers start from those of its crew.
fn engine(scenario: &Scenario, variant: usize, steps: &mut Pcg64) -> Option<Replica> {
    let described = &scenario.variants[variant];
    let replica = Replica::new(described.engine).ok()?;
    let replica = match described.spec.role {
        Role::Both | Role::Prefill => replica,
        Role::Decode => replica.for_computed_prompts(),
    };
    let replica = replica.with_options(described.options, random::fork(steps));
    let replica = match described.adapters {
        Some(adapters) => replica.with_adapters(adapters),
        None => replica,
    };
    let replica = if scenario.is_followed() { replica } else { replica.without_histograms() };
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
