//! How much deciding allocates: what the other benches take the time of. Counts are the same on
//! every machine, and need a run each.

#![expect(clippy::print_stdout, reason = "the counts are what this prints")]

#[path = "decide/analysis.rs"]
mod analysis;
#[path = "core/work.rs"]
#[expect(dead_code, reason = "plans are timed, not counted")]
mod work;
#[path = "decide/world.rs"]
mod world;

use allocation_counter::{AllocationInfo, measure};

fn main() {
    for variants in [250, 1_000, 4_000] {
        let prepared = analysis::prepared(variants);
        let thresholds = world::thresholds();
        say("saturation", variants, &measure(|| analysis::saturation(&prepared, &thresholds)));
    }
    for variants in [250, 1_000, 4_000] {
        let mut world = world::World::new(variants);
        world.advance();
        say("tick", variants, &measure(|| drop(world.tick())));
    }
    for voting in work::VOTINGS {
        for models in [250, 1_000] {
            let mut world = work::World::new(models, work::VARIANTS, voting);
            let variants = models * 4;
            say(voting.name, variants, &measure(|| drop(world.decide())));
        }
    }
}

fn say(what: &str, variants: u32, info: &AllocationInfo) {
    let AllocationInfo { count_total, bytes_total, bytes_max, .. } = info;
    println!(
        "{what}, {variants} variants: {count_total} allocations of {bytes_total} bytes in all, \
         {bytes_max} at most at a time"
    );
}
