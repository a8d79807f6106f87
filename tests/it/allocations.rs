//! How often memory is asked for where it would be felt: for each sample of a page, and for each
//! replica in a tick. Counted, not timed, so that it holds on any machine.

use std::fmt::Write;
use std::sync::Arc;

use plimsoll::clock::Clock;
use plimsoll::collect::exposition::{LayoutMemory, read};
use plimsoll::publish::gauges::{DecisionGauges, WvaPublication};
use tokio::sync::watch;

use crate::pages::page;
use crate::pipeline::{World, at, spec};
use crate::restart::published;

/// Allocations while a page is read.
fn reading(page: &str) -> u64 {
    let body = page.as_bytes();
    read(body, None).expect("the page can be read");
    allocation_counter::measure(|| drop(read(body, None))).count_total
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    let mut page = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3\n".to_owned();
    for index in 0..count {
        writeln!(page, "{}", line(index)).unwrap();
    }
    page
}

#[test]
fn unread_lines_allocate_nothing() {
    let unwanted = |index: usize| format!("other_total{{a=\"{index}\"}} {index}");
    let names = |index: usize| format!("# HELP m{index} x\n# TYPE m{index} gauge\nm{index} 1.5");
    let few = reading(&lines(1, unwanted));
    assert_eq!(reading(&lines(10_000, unwanted)), few);
    assert_eq!(reading(&lines(10_000, names)), few);
}

#[test]
fn buckets_allocate_nothing_but_the_histogram_that_they_make() {
    let histogram = |buckets: usize| {
        let name = "vllm:e2e_request_latency_seconds";
        let labels = "engine=\"0\",model_name=\"m\"";
        let page = lines(buckets, |index| {
            format!("{name}_bucket{{engine=\"0\",le=\"{index}.5\",model_name=\"m\"}} {index}.0")
        });
        page + &format!(
            "{name}_bucket{{engine=\"0\",le=\"+Inf\",model_name=\"m\"}} 1e3\n\
             {name}_sum{{{labels}}} 1.5\n{name}_count{{{labels}}} 1e3\n"
        )
    };
    let (few, many) = (reading(&histogram(20)), reading(&histogram(1_000)));
    // The list of buckets doubles from 24 to 48, 96, 192, 384, 768, 1536.
    assert!(many <= few + 6, "{few} allocations for 20 buckets, {many} for 1,000");
}

#[test]
fn a_real_page_of_666_lines_takes_few_allocations() {
    let page = String::from_utf8(page("vllm-0.33.0-dp1-single.txt.gz")).unwrap();
    let count = reading(&page);
    assert!(count <= 60, "{count} allocations");
}

#[test]
fn a_page_after_another_allocates_nothing_but_the_reading_that_it_gives() {
    for (name, ranks) in [("vllm-0.33.0-dp1-single", 1), ("vllm-0.33.0-dp8-multi", 8)] {
        let body = page(&format!("{name}.txt.gz"));
        let mut memory = LayoutMemory::default();
        memory.read(&body, None).expect("the page can be read");
        let count = allocation_counter::measure(|| drop(memory.read(&body, None))).count_total;
        // Eleven histograms, two lists of what becomes of each rank, and the models' names.
        assert!(count <= 4 + 13 * ranks, "{count} allocations for {ranks} ranks");
    }
}

#[test]
fn allocations_of_a_tick_grow_with_the_replicas_and_no_faster() {
    let tick = |variants: usize| {
        let names: Vec<String> = (0..variants).map(|index| format!("v{index}")).collect();
        let mut world = World::new(names.iter().map(|name| spec(name, 1.0, (1, 9))).collect());
        for name in &names {
            world.set(name, 4, (0.4, 0.0));
        }
        for _ in 0..20 {
            let _decisions = world.tick();
        }
        let (inputs, now) = (world.inputs(), at(world.second));
        allocation_counter::measure(|| drop(world.pipeline.tick(now, &inputs))).count_total
    };
    let (small, large) = (tick(25), tick(100));
    assert!(large <= 4 * small + 100, "{small} allocations for 100 replicas, {large} for 400");
    assert!(large <= 400 * 2, "{large} allocations for 400 replicas");
}

#[test]
fn the_metrics_of_a_fleet_take_little_more_memory_than_their_text() {
    let names: Vec<String> = (0..200).map(|index| format!("v{index}")).collect();
    let mut world = World::new(names.iter().map(|name| spec(name, 1.0, (1, 9))).collect());
    for name in &names {
        world.set(name, 1, (0.4, 0.0));
    }
    let decisions = world.tick();
    let (_, published) = watch::channel(Arc::new(published(&world, &decisions)));
    let gauges = DecisionGauges::new(published, Clock::start(), WvaPublication::Off);

    let mut page = String::new();
    let peak = allocation_counter::measure(|| gauges.write(&mut page)).bytes_max;
    let text = page.len() as u64;
    assert!(page.lines().count() > 200 * 10, "{page}");
    // A text that grows has room for at most as much again.
    assert!(peak < 4 * text, "{peak} bytes for {text} bytes of text");
}
