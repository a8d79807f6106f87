//! A recording, fed to the pipeline with its own timestamps.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll::analyze::saturation::{Thresholds, TransitionRule};
use plimsoll::decide::Decision;
use plimsoll::decide::enforce::{Behavior, Rules, Select};
use plimsoll::fleet::{
    Bounds, Fleet, Namespace, ReplicaKey, ReplicaName, Role, VariantKey, VariantName, VariantSpec,
};
use plimsoll::observe::{Inputs, Observation, ReplicaListing, ReplicaObservation, Scale, Scrape};
use plimsoll::observe::{Reading, ScrapeFailure, ScrapeRoute};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::zero::Zero;
use plimsoll::pipeline::{Decisions, Pipeline, Policy};
use plimsoll::units::{CostPerHour, Fraction, Replicas, Requests, Seconds};

use crate::recordings::recording::{Recording, Server, instant};

/// Time between two ticks, as the daemon has it by default.
const TICK: f64 = 1.0;

/// Age from which data is too old to act on, as the daemon has it by default.
pub(crate) const STALE_AFTER: f64 = 10.0;

/// How a recording is played.
#[derive(Clone, Copy)]
pub(crate) struct Replay<'a> {
    /// What is played.
    pub(crate) recording: &'a Recording,
    /// Length of the window, in seconds.
    pub(crate) window: f64,
    /// What happens that was not recorded.
    pub(crate) crash: Option<Crash>,
}

/// Servers that refuse connections from an instant on.
#[derive(Clone, Copy)]
pub(crate) struct Crash {
    /// When, in seconds of Unix time.
    pub(crate) at: f64,
    /// How long it is played, in seconds.
    pub(crate) lasting: f64,
    /// This server and those after it.
    pub(crate) server: usize,
}

/// One tick.
pub(crate) struct Tick {
    /// When, in seconds of Unix time.
    pub(crate) now: f64,
    /// Whether each server's scrapes since the last tick were answered, in the servers' order; an
    /// entry is missing while there was none.
    pub(crate) answers: BTreeMap<usize, Answer>,
    /// What came of it.
    pub(crate) decisions: Decisions,
}

/// The last answer of one server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    /// When it was asked for, in seconds of Unix time.
    pub(crate) asked: f64,
    /// Requests that waited on its fullest rank; `None` when it refused.
    pub(crate) waiting: Option<f64>,
}

impl Replay<'_> {
    /// Plays it, one tick a second.
    pub(crate) fn run(&self) -> Vec<Tick> {
        let mut pipeline = Pipeline::new(policy(self.window));
        let servers = &self.recording.servers;
        let asked = || servers.iter().flat_map(|server| &server.pages).map(|page| page.asked);
        let (first, last) = (asked().reduce(f64::min).unwrap(), asked().reduce(f64::max).unwrap());
        let end = self.crash.map_or(last + TICK, |crash| crash.at + crash.lasting);
        let mut next = vec![0; servers.len()];
        let (mut ticks, mut now, mut answers) = (Vec::new(), first, BTreeMap::new());
        while now <= end {
            let mut scrapes = Vec::new();
            for (index, server) in servers.iter().enumerate() {
                if self.crash.is_some_and(|crash| now >= crash.at && index >= crash.server) {
                    let outcome = Err(ScrapeFailure::Refused);
                    answers.insert(index, answer(now, &outcome));
                    scrapes.push(Scrape { replica: replica(server), at: instant(now), outcome });
                    continue;
                }
                while let Some(page) = server.pages.get(next[index])
                    && page.answered <= now
                {
                    let outcome = page.outcome.clone();
                    answers.insert(index, answer(page.asked, &outcome));
                    let at = instant(page.asked);
                    scrapes.push(Scrape { replica: replica(server), at, outcome });
                    next[index] += 1;
                }
            }
            let decisions = pipeline.tick(instant(now), &self.inputs(now, scrapes));
            ticks.push(Tick { now, answers: answers.clone(), decisions });
            now += TICK;
        }
        ticks
    }

    fn inputs(&self, now: f64, scrapes: Vec<Scrape>) -> Inputs {
        let listing = ReplicaListing {
            replicas: self.recording.servers.iter().map(replica).collect(),
            unready: Vec::new(),
            scale: Scale::Targets,
            way: ScrapeRoute::Scraped,
            as_of: instant(now),
        };
        let spec = VariantSpec {
            key: variant(),
            model: self.recording.model(),
            accelerator: None,
            gpus: None,
            role: Role::Both,
            cost: CostPerHour::new(1.0).unwrap(),
            list_price: None,
            start_time: None,
            mismatch: Fraction::ONE,
            bounds: Bounds::new(Replicas::ONE, Replicas::new(9)).unwrap(),
        };
        Inputs {
            fleet: Arc::new(Fleet::new([spec])),
            listings: BTreeMap::from([(variant(), listing)]),
            scrapes,
            ..Inputs::default()
        }
    }
}

impl Tick {
    /// What was seen of the variant.
    pub(crate) fn observation(&self) -> &Observation {
        &self.decisions.observations[&variant()]
    }

    /// What was seen of one server.
    pub(crate) fn replica(&self, server: &Server) -> &ReplicaObservation {
        let key = replica(server);
        self.observation().replicas.iter().find(|seen| seen.replica == key).unwrap()
    }

    /// The decision, if there is one.
    pub(crate) fn decision(&self) -> Option<&Decision> {
        self.decisions.decisions.first()
    }

    /// The number that was decided; `None` when none was.
    pub(crate) fn desired(&self) -> Option<u32> {
        self.decision().map(|decision| decision.desired().count())
    }

    /// Servers that exist, as far as can be known.
    pub(crate) fn current(&self) -> u32 {
        self.observation().current.unwrap().count()
    }
}

/// The key of the only variant.
pub(crate) fn variant() -> VariantKey {
    VariantKey {
        namespace: Namespace::new("recordings").unwrap(),
        variant: VariantName::new("cpu").unwrap(),
    }
}

/// The thresholds that the daemon has by default. Numbers may move at once, so that nothing but
/// the pipeline's caution keeps one from falling.
fn policy(window: f64) -> Policy {
    let at_once =
        Rules { stabilization_window: Seconds::ZERO, select: Select::Max, policies: Vec::new() };
    Policy {
        window: Seconds::new(window).unwrap(),
        stale_after: Seconds::new(STALE_AFTER).unwrap(),
        stale_after_relayed: Seconds::new(STALE_AFTER).unwrap(),
        thresholds: Thresholds {
            kv_cache: Fraction::new(0.8).unwrap(),
            queue_length: Requests::new(QUEUE_LENGTH).unwrap(),
            kv_spare: Fraction::new(0.1).unwrap(),
            queue_spare: Requests::new(3.0).unwrap(),
        },
        overrides: BTreeMap::new(),
        pools: BTreeMap::new(),
        transition: TransitionRule::PendingOnly,
        transition_patience: Seconds::new(300.0).unwrap(),
        behavior: Behavior {
            scale_up: at_once.clone(),
            scale_down: at_once,
            flap_budget: u32::MAX,
            ..Behavior::default()
        },
        sizing: None,
        zero: Zero::default(),
        limits: LimitPolicy::default(),
    }
}

/// Waiting requests from which a server is saturated.
pub(crate) const QUEUE_LENGTH: f64 = 5.0;

fn replica(server: &Server) -> ReplicaKey {
    let name = if server.name.is_empty() { "127.0.0.2" } else { &server.name };
    let replica = ReplicaName::new(name).unwrap();
    ReplicaKey { variant: variant(), replica, incarnation: None }
}

fn answer(asked: f64, outcome: &Result<Reading, ScrapeFailure>) -> Answer {
    let waiting = outcome.as_ref().ok().map(|page| {
        let waiting = page.ranks.iter().filter_map(|rank| rank.waiting);
        waiting.map(Requests::requests).fold(0.0, f64::max)
    });
    Answer { asked, waiting }
}
