//! The time to decide: the saturation analysis on prepared observations, and a whole tick from
//! scrapes to decisions. Both also report their allocations.
//!
//! The goals for 1,000 variants of four replicas are 0.4 ms for the analysis and 8 ms for the
//! tick, which runs once per second. Four times the replicas must take four times as long.

#![expect(clippy::print_stdout, reason = "the numbers of allocations are a result")]

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use allocation_counter::AllocationInfo;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use flate2::read::GzDecoder;
use jiff::Timestamp;
use plimsoll::analyze::saturation::{
    self, SaturationReplicaLoad, SaturationVariant, Thresholds, TransitionPatience, TransitionRule,
};
use plimsoll::clock::Clock;
use plimsoll::collect::exposition::read;
use plimsoll::decide::enforce::Behavior;
use plimsoll::fleet::{
    Bounds, Fleet, ModelName, Namespace, ReplicaKey, ReplicaName, Role, VariantKey, VariantName,
    VariantSpec,
};
use plimsoll::observe::{
    Inputs, RankReading, Reading, ReplicaListing, Scale, ScaleState, Scrape, ScrapeRoute,
};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::zero::Zero;
use plimsoll::pipeline::{Decisions, Pipeline, Policy};
use plimsoll::units::{CostPerHour, Fraction, Replicas, Requests, Seconds, Tokens};

const REPLICAS: u32 = 4;

/// Ticks until every window is full; the default window is a minute.
const WARM_UP: i64 = 65;

fn thresholds() -> Thresholds {
    Thresholds {
        kv_cache: Fraction::new(0.8).expect("a share"),
        queue_length: Requests::new(5.0).expect("a number"),
        kv_spare: Fraction::new(0.1).expect("a share"),
        queue_spare: Requests::new(3.0).expect("a number"),
    }
}

fn policy() -> Policy {
    Policy {
        window: Seconds::new(60.0).expect("a length of time"),
        stale_after: Seconds::new(10.0).expect("a length of time"),
        stale_after_relayed: Seconds::new(60.0).expect("a length of time"),
        thresholds: thresholds(),
        overrides: BTreeMap::new(),
        pools: BTreeMap::new(),
        transition: TransitionRule::PendingOnly,
        transition_patience: Seconds::new(300.0).expect("a length of time"),
        behavior: Behavior { flap_budget: u32::MAX, ..Behavior::default() },
        sizing: None,
        zero: Zero::default(),
        limits: LimitPolicy::default(),
    }
}

fn spec(index: u32) -> VariantSpec {
    let namespace = Namespace::new(&format!("team-{}", index % 10)).expect("a name");
    VariantSpec {
        key: VariantKey {
            namespace,
            variant: VariantName::new(&format!("chat-{index}")).expect("a name"),
        },
        model: ModelName::new(&format!("model-{index}")).expect("a name"),
        accelerator: None,
        gpus: None,
        role: Role::Both,
        cost: CostPerHour::new(2.5).expect("a cost"),
        list_price: None,
        start_time: None,
        mismatch: Fraction::ONE,
        bounds: Bounds::new(Replicas::ONE, Some(Replicas::saturating(16))).expect("bounds"),
    }
}

fn replicas(variant: &VariantKey) -> Vec<ReplicaKey> {
    let replica = |index| ReplicaKey {
        variant: variant.clone(),
        replica: ReplicaName::new(&format!("{}-7d9f8b6c5-{index}", variant.variant))
            .expect("a name"),
        incarnation: None,
    };
    (0..REPLICAS).map(replica).collect()
}

/// The reading of a /metrics response from a vLLM server under load.
fn reading() -> Reading {
    let folder = env!("CARGO_MANIFEST_DIR");
    let path = format!("{folder}/tests/data/pages/vllm-0.33.0-dp1-single.txt.gz");
    let mut body = Vec::new();
    let file = File::open(&path).expect("the page is in the repository");
    GzDecoder::new(file).read_to_end(&mut body).expect("the page is gzip");
    read(&body, None).expect("the page can be read")
}

/// The changing metrics of a fleet's engines.
struct World {
    pipeline: Pipeline,
    inputs: Inputs,
    second: i64,
}

impl World {
    /// A fleet of this many variants that has been scraped for longer than a window.
    fn new(variants: u32) -> Self {
        let specs: Vec<VariantSpec> = (0..variants).map(spec).collect();
        let mut listings = BTreeMap::new();
        let mut scrapes = Vec::new();
        for spec in &specs {
            let replicas = replicas(&spec.key);
            for replica in &replicas {
                let at = Timestamp::UNIX_EPOCH;
                scrapes.push(Scrape { replica: replica.clone(), at, outcome: Ok(reading()) });
            }
            let (ready, zero) = (Replicas::saturating(REPLICAS), Replicas::ZERO);
            let state =
                ScaleState { wanted: ready, current: ready, ready, pending: zero, bounds: None };
            let (unready, scale) = (Vec::new(), Scale::Known(state));
            let (way, as_of) = (ScrapeRoute::Scraped, Timestamp::UNIX_EPOCH);
            listings
                .insert(spec.key.clone(), ReplicaListing { replicas, unready, scale, way, as_of });
        }
        let fleet = Arc::new(Fleet::new(specs));
        let inputs = Inputs { fleet, listings, scrapes, ..Inputs::default() };
        let mut world = Self { pipeline: Pipeline::new(policy()), inputs, second: 1_795_000_000 };
        for _ in 0..WARM_UP {
            world.advance();
            let _decisions = world.tick();
        }
        world
    }

    /// Advances one second: scrapes each replica, with a different load.
    fn advance(&mut self) {
        self.second += 1;
        let now = Timestamp::from_second(self.second).expect("a time");
        for (index, scrape) in (0_i64..).zip(&mut self.inputs.scrapes) {
            scrape.at = now;
            if let Ok(reading) = &mut scrape.outcome {
                reading.ranks.iter_mut().for_each(|rank| load(rank, (index + self.second) % 30));
            }
        }
        self.inputs.listings.values_mut().for_each(|listing| listing.as_of = now);
    }

    fn tick(&mut self) -> Decisions {
        let now = Timestamp::from_second(self.second).expect("a time");
        self.pipeline.tick(now, &self.inputs)
    }
}

/// Changes the gauges of a reading, and increases its counters.
fn load(rank: &mut RankReading, level: i64) {
    let level = i32::try_from(level).map_or(0.0, f64::from);
    rank.kv_usage = Fraction::new(0.3 + level / 100.0);
    rank.waiting = Requests::new(level / 10.0);
    let generated = rank.generation_tokens.map_or(0.0, Tokens::tokens);
    rank.generation_tokens = Tokens::new(generated + 100.0);
    for histogram in [&mut rank.ttft, &mut rank.itl].into_iter().flatten() {
        histogram.count += 2.0;
        histogram.sum += 0.5;
        histogram.buckets.iter_mut().for_each(|(_, count)| *count += 2.0);
    }
}

/// The loads and states of one model.
type Prepared = (Vec<SaturationReplicaLoad>, SaturationVariant);

/// The inputs of the analysis for each model, with all measurements available.
fn prepared(variants: u32) -> Vec<Prepared> {
    let prepare = |index: u32| {
        let spec = spec(index);
        let loads =
            (0_u32..).zip(replicas(&spec.key)).map(|(place, replica)| SaturationReplicaLoad {
                replica,
                kv: Fraction::new(0.3 + f64::from((index + 7 * place) % 60) / 100.0)
                    .expect("a share"),
                queue: Requests::new(f64::from((index + place) % 6)).expect("a number"),
            });
        let state = SaturationVariant {
            key: spec.key.clone(),
            current: Replicas::saturating(REPLICAS),
            pending: Replicas::ZERO,
            asleep: Replicas::ZERO,
            desired: None,
            patience: TransitionPatience::Left,
            cost: spec.cost,
            bounds: spec.bounds,
        };
        (loads.collect(), state)
    };
    (0..variants).map(prepare).collect()
}

/// Decides once for every model.
fn saturation(prepared: &[Prepared], thresholds: &Thresholds) {
    for (loads, state) in prepared {
        let analysis = saturation::analyze(loads, thresholds);
        let rule = TransitionRule::PendingOnly;
        black_box(saturation::targets(&analysis, std::slice::from_ref(state), rule));
    }
}

fn say(what: &str, variants: u32, info: &AllocationInfo) {
    let (count, bytes) = (info.count_total, info.bytes_total);
    println!("{what}, {variants} variants: {count} allocations of {bytes} bytes in all");
}

fn decide(criterion: &mut Criterion) {
    let thresholds = thresholds();
    let mut group = criterion.benchmark_group("saturation");
    for variants in [250, 1_000, 4_000] {
        let prepared = prepared(variants);
        let info = allocation_counter::measure(|| saturation(&prepared, &thresholds));
        say("saturation", variants, &info);
        group.bench_function(BenchmarkId::from_parameter(variants), |bencher| {
            bencher.iter(|| saturation(black_box(&prepared), &thresholds));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("tick");
    group.sample_size(20);
    for variants in [250, 1_000, 4_000] {
        let mut world = World::new(variants);
        world.advance();
        let info = allocation_counter::measure(|| drop(world.tick()));
        say("tick", variants, &info);
        group.bench_function(BenchmarkId::from_parameter(variants), |bencher| {
            bencher.iter_custom(|iterations| {
                let clock = Clock::start();
                let mut spent = Duration::ZERO;
                for _ in 0..iterations {
                    world.advance();
                    let began = clock.elapsed();
                    let _decisions = black_box(world.tick());
                    spent += clock.elapsed().saturating_sub(began);
                }
                spent
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decide);
criterion_main!(benches);
