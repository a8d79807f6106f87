//! Replicas that work: their pages count requests, tokens and latencies as an engine whose
//! iterations cost what the queueing model says, so that all analyzers have something to learn.

use std::collections::BTreeMap;

use plimsoll::analyze::queueing::{
    BATCH_DEFAULT, Coefficients, MeanLengths, MeanRequest, QueueingModel, ReplicaRoom,
    SharedCoefficients,
};
use plimsoll::fleet::VariantSpec;
use plimsoll::observe::histogram::Histogram;
use plimsoll::observe::{
    DemandSignal, FinishedReading, Reading, ReplicaStart, Scale, ScrapeFailure,
};
use plimsoll::pipeline::repeat::TickScene;
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{Fraction, RequestRate, Requests, Seconds, TimePerToken, Tokens};

use crate::pipeline::{KV_CAPACITY, World, at, known, n, page, replica};

/// What the requests are like, and what an iteration costs.
#[derive(Clone, Copy)]
pub(crate) struct Engine {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
    pub(crate) coefficients: Coefficients,
}

impl Default for Engine {
    /// Half a thousand tokens in and a hundred out, on an accelerator of middle size.
    fn default() -> Self {
        let per_token = |seconds| TimePerToken::new(seconds).unwrap();
        let coefficients = SharedCoefficients {
            alpha: Seconds::new(0.006).unwrap(),
            beta: per_token(4e-5),
            gamma: per_token(6e-8),
        };
        Self { prompt: 500.0, output: 100.0, coefficients: coefficients.into() }
    }
}

/// A fleet whose replicas work.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) world: World,
    engine: Engine,
    counted: BTreeMap<(String, u32), Counted>,
    /// By how much what arrives is out of order.
    pub(crate) rotation: usize,
    /// Replicas of each variant that do not answer.
    pub(crate) failing: BTreeMap<String, u32>,
    /// Replicas of each variant that were asked for and do not serve.
    pub(crate) starting: BTreeMap<String, u32>,
    /// Replicas of each variant that sleep.
    pub(crate) asleep: BTreeMap<String, u32>,
    /// Whether replicas are known by their answers alone.
    pub(crate) listed: bool,
    /// Since which second no node has room for those of a variant.
    pub(crate) unschedulable: BTreeMap<String, i64>,
    /// Replicas beyond those that were asked for, while some start in a rollout.
    pub(crate) surge: u32,
    /// Variants whose engines do not count how long outputs take.
    pub(crate) mute: Vec<String>,
    /// What each replica has beside what its rate explains.
    pub(crate) beside: Beside,
    /// What signals say of requests that no replica has.
    pub(crate) front: Vec<DemandSignal>,
    /// The scene of the last tick.
    pub(crate) scene: Option<TickScene>,
}

/// Requests that a replica has beside those that its rate explains: they have come and got nothing
/// yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    pub(crate) running: f64,
    pub(crate) waiting: f64,
}

/// A variant, its replicas, and the requests a second that each of them gets.
pub(crate) type Busy<'a> = (&'a str, u32, f64);

/// What one replica has counted since it began.
#[derive(Clone, Debug, Default)]
struct Counted {
    running: f64,
    waiting: f64,
    finished: f64,
    generated: f64,
    prompted: f64,
    steps: Histogram,
    ttft: Histogram,
    itl: Histogram,
    prompt_length: Histogram,
    generation_length: Histogram,
}

impl Work {
    pub(crate) fn with(policy: Policy, specs: Vec<VariantSpec>, engine: Engine) -> Self {
        Self {
            world: World::with(policy, specs),
            engine,
            counted: BTreeMap::new(),
            rotation: 0,
            failing: BTreeMap::new(),
            starting: BTreeMap::new(),
            asleep: BTreeMap::new(),
            listed: false,
            unschedulable: BTreeMap::new(),
            surge: 0,
            mute: Vec::new(),
            beside: Beside::default(),
            front: Vec::new(),
            scene: None,
        }
    }

    /// Ticks once a second while so many requests a second are shared by so many replicas of `a`.
    pub(crate) fn run(&mut self, replicas: u32, rate: f64, seconds: u32) -> Decisions {
        self.run_all(&[("a", replicas, rate / f64::from(replicas))], seconds)
    }

    /// Ticks once a second under this load.
    pub(crate) fn run_all(&mut self, busy: &[Busy<'_>], seconds: u32) -> Decisions {
        let mut last = Decisions::default();
        for _ in 0..seconds {
            last = self.second(busy);
        }
        last
    }

    fn second(&mut self, busy: &[Busy<'_>]) -> Decisions {
        let mut pages: Vec<Reading> = Vec::new();
        let mut sorted: Vec<&Busy<'_>> = busy.iter().collect();
        sorted.sort_by_key(|(name, _, _)| *name);
        for &&(name, replicas, rate) in &sorted {
            self.counted.retain(|(variant, index), _| variant != name || *index < replicas);
            let mut load = (0.0, 0.0);
            for index in 0..replicas {
                let counted = self.counted.entry((name.to_owned(), index)).or_default();
                let pace = self.engine.pace(rate + counted.waiting);
                counted.add(&pace, self.engine);
                let Beside { running, waiting } = self.beside;
                let (running, waiting) = (counted.running + running, counted.waiting + waiting);
                let kv = self.engine.kv(running);
                let mut said = counted.page(kv, waiting, running);
                if self.mute.iter().any(|mute| mute == name) {
                    said.ranks[0].itl = None;
                }
                let asleep = self.asleep.get(name).copied().unwrap_or_default();
                said.ranks[0].asleep = Some(index < asleep);
                pages.push(said);
                load = (kv, waiting);
            }
            self.world.set(name, replicas, load);
        }
        for (name, failing) in &self.failing {
            let Some(variant) = self.world.variants.get_mut(name) else { continue };
            variant.failing = (0..*failing).map(|index| (index, ScrapeFailure::Timeout)).collect();
        }
        for (name, starting) in &self.starting {
            let Some(variant) = self.world.variants.get_mut(name) else { continue };
            variant.scale = known(variant.listed + starting, variant.listed);
            if let Scale::Known(state) = &mut variant.scale {
                state.current += n(self.surge);
            }
        }
        for variant in self.world.variants.values_mut().filter(|_| self.listed) {
            variant.scale = Scale::Targets;
        }
        let mut inputs = self.world.inputs();
        for (name, second) in &self.unschedulable {
            let listed = self.world.variants[name].listed;
            let starting = self.starting.get(name).copied().unwrap_or_default();
            let (created, unschedulable) = (at(*second), Some(at(*second)));
            for index in listed..listed + starting {
                let start = ReplicaStart { created, ready: None, unschedulable };
                inputs.starts.insert(replica(name, index), start);
            }
        }
        for (scrape, page) in inputs.scrapes.iter_mut().zip(pages) {
            if scrape.outcome.is_ok() {
                scrape.outcome = Ok(page);
            }
        }
        let models = self.world.fleet.variants().map(VariantSpec::model_key);
        inputs.demand = models.map(|model| (model, self.front.clone())).collect();
        let scrapes = inputs.scrapes.len().max(1);
        inputs.scrapes.rotate_left(self.rotation % scrapes);
        for listing in inputs.listings.values_mut() {
            let replicas = listing.replicas.len().max(1);
            listing.replicas.rotate_left(self.rotation % replicas);
        }
        let (now, pipeline) = (at(self.world.second), self.world.pipeline.clone());
        self.scene = Some(TickScene { pipeline, now, inputs: inputs.clone(), follows: None });
        let decisions = self.world.pipeline.tick(now, &inputs);
        self.world.second += 1;
        decisions
    }
}

/// What one replica does in a second in which so much is asked of it.
struct Pace {
    served: f64,
    latencies: (f64, f64),
    running: f64,
    waiting: f64,
}

impl Engine {
    fn pace(self, asked: f64) -> Pace {
        let Self { prompt, output, coefficients } = self;
        let lengths = MeanLengths {
            input: Tokens::new(prompt).unwrap(),
            output: Tokens::new(output).unwrap(),
        };
        let room = ReplicaRoom { batch: BATCH_DEFAULT, ..ReplicaRoom::default() };
        let model = QueueingModel::new(coefficients, MeanRequest::new(lengths).unwrap(), room);
        // More than the engine finishes is answered as fast as it can, and the rest waits.
        let most = model.rate_max().map_or(f64::INFINITY, RequestRate::requests_per_second);
        let served = asked.min(0.98 * most);
        if served <= 0.0 {
            // What runs ends.
            return Pace { served: 0.0, latencies: (0.01, 0.01), running: 0.0, waiting: 0.0 };
        }
        let latency = model.at(RequestRate::new(served).unwrap()).unwrap();
        let latencies = (latency.ttft.seconds(), latency.itl.seconds());
        let running = served * self.stay(latencies);
        Pace { served, latencies, running, waiting: asked - served }
    }

    /// How long a request is in the batch.
    fn stay(self, (ttft, itl): (f64, f64)) -> f64 {
        ttft + self.output * itl
    }

    /// The share of the cache that so many requests hold.
    fn kv(self, running: f64) -> f64 {
        (running * (self.prompt + self.output / 2.0) / KV_CAPACITY).min(1.0)
    }
}

impl Counted {
    /// No request is lost: what has come is running, waits, or has finished.
    fn add(&mut self, pace: &Pace, engine: Engine) {
        let Pace { served, latencies, running, waiting } = *pace;
        let ((ttft, itl), Engine { prompt, output, .. }) = (latencies, engine);
        let add = |histogram: &mut Histogram, value: f64, times: f64| {
            histogram.sum += value * times;
            histogram.count += times;
        };
        let grown = (running - self.running).min(served);
        let finished = served - grown;
        (self.running, self.waiting) = (self.running + grown, waiting);
        self.finished += finished;
        self.generated += served * output;
        self.prompted += served * prompt;
        // Each running request gets a token in each step, and nothing is stepped while none runs.
        let busy = (served * engine.stay(latencies)).min(1.0);
        self.steps.count += busy / itl;
        self.steps.sum += served * (prompt + output);
        add(&mut self.ttft, ttft, served);
        add(&mut self.itl, itl, served * (output - 1.0));
        add(&mut self.prompt_length, prompt, finished);
        add(&mut self.generation_length, output, finished);
    }

    fn page(&self, kv: f64, waiting: f64, running: f64) -> Reading {
        let mut reading = page(Some(kv), Some(waiting));
        let rank = &mut reading.ranks[0];
        rank.kv_usage = Fraction::new(kv);
        rank.running = Requests::new(running);
        rank.generation_tokens = Tokens::new(self.generated);
        rank.prompt_tokens = Tokens::new(self.prompted);
        rank.finished = FinishedReading { stop: Requests::new(self.finished), ..rank.finished };
        rank.ttft = Some(self.ttft.clone());
        rank.itl = Some(self.itl.clone());
        rank.step_tokens = Some(self.steps.clone());
        rank.prompt_length = Some(self.prompt_length.clone());
        rank.generation_length = Some(self.generation_length.clone());
        reading
    }
}
