//! The time of a full decision, from replica reports to desired replicas within an inventory, by
//! voting analyzers; and the time of the plans alone.
//!
//! The goals apply to 1,000 variants of four replicas, with four variants per model. They are a
//! tenth of the Workload Variant Autoscaler's time for the same work. The limits are 1.4 ms by
//! tokens, 2.5 ms with throughput, 17 ms by queueing, and 153 ms while it learns. Further limits
//! are 100 ms when all vote, and 5 ms for the plans of 50 models with six variants each. Four times
//! the variants must take four times as long.

#![expect(clippy::print_stdout, reason = "the numbers of allocations are a result")]

mod work;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

use crate::work::{VARIANTS, VOTINGS, World};

/// Models with [`VARIANTS`] variants each.
const MODELS: [u32; 2] = [250, 1_000];

/// The models of the plan-only benchmark, and the variants of each.
const PLANNED: (u32, usize) = (50, 6);

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core");
    group.sample_size(20);
    for voting in VOTINGS {
        for models in MODELS {
            let mut world = World::new(models, VARIANTS, voting);
            let info = allocation_counter::measure(|| drop(world.decide()));
            let (count, most) = (info.count_total, info.bytes_max);
            println!("{}, {models} models: {count} allocations, {most} bytes at most", voting.name);
            group.bench_function(BenchmarkId::new(voting.name, models), |bencher| {
                bencher.iter(|| {
                    world.advance();
                    black_box(world.decide())
                });
            });
        }
    }
    group.finish();
}

fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    let (models, variants) = PLANNED;
    for voting in VOTINGS {
        let mut plan = World::new(models, variants, voting).planner();
        group.bench_function(voting.name, |bencher| bencher.iter(|| black_box(plan())));
    }
    group.finish();
}

criterion_group!(benches, decide, plan);
criterion_main!(benches);
