//! How long deciding takes: the saturation analysis on prepared observations, and a whole tick
//! from scrapes to decisions, with the allocator of the program.
//!
//! Wanted for 1,000 variants of four replicas: at most 0.4 ms for the analysis and 10 ms for the
//! tick, which comes once a second; and four times the replicas must take four times as long.

mod analysis;
mod world;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use mimalloc::MiMalloc;
use plimsoll::clock::Clock;

use crate::analysis::{prepared, saturation};
use crate::world::{World, thresholds};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn decide(criterion: &mut Criterion) {
    let thresholds = thresholds();
    let mut group = criterion.benchmark_group("saturation");
    for variants in [250, 1_000, 4_000] {
        let prepared = prepared(variants);
        group.bench_function(BenchmarkId::from_parameter(variants), |bencher| {
            bencher.iter(|| saturation(black_box(&prepared), &thresholds));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("tick");
    group.sample_size(20);
    for variants in [250, 1_000, 4_000] {
        let mut world = World::new(variants);
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
