//! Facts of a world: the drawn value of each aspect, by which worlds are grouped.

use crate::study::worlds::draft::WorldDraft;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::priors::Aspect;

/// The drawn value of an aspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) aspect: Aspect,
    pub(crate) value: &'static str,
}

/// Ranges of a number: the value below which each ends, and its name. The last has no end.
type Ranges = &'static [(f64, &'static str)];

const SEATS: Ranges =
    &[(64.0, "below 64"), (256.0, "64 to 255"), (257.0, "256"), (f64::INFINITY, "above 256")];

const BUDGETS: Ranges = &[(2048.0, "below 2048"), (2049.0, "2048"), (f64::INFINITY, "above 2048")];

const HITS: Ranges = &[(0.01, "none"), (0.5, "below 0.5"), (f64::INFINITY, "from 0.5 on")];

/// Seconds.
const ITLS: Ranges =
    &[(0.05, "ITL below 50 ms"), (0.1, "ITL 50 to 100 ms"), (f64::INFINITY, "ITL above 100 ms")];

const VARIATIONS: Ranges = &[
    (1.5, "variation below 1.5"),
    (3.0, "variation 1.5 to 3"),
    (f64::INFINITY, "variation above 3"),
];

/// Replicas.
const FLEETS: Ranges =
    &[(1.0, "below 1"), (3.0, "1 to 3"), (10.0, "3 to 10"), (f64::INFINITY, "above 10")];

const UTILIZATIONS: Ranges = &[
    (0.5, "utilization below 0.5"),
    (0.65, "utilization 0.5 to 0.65"),
    (f64::INFINITY, "utilization above 0.65"),
];

const HOURS: Ranges = &[(1.5, "below 1.5 h"), (3.0, "1.5 to 3 h"), (f64::INFINITY, "above 3 h")];

/// Seconds.
const STARTS: Ranges =
    &[(60.0, "below 1 min"), (180.0, "1 to 3 min"), (f64::INFINITY, "above 3 min")];

/// All facts of a world, in the order of the document.
pub(crate) fn of(draft: &WorldDraft) -> Vec<Fact> {
    let WorldDraft {
        machines, requests, objectives, surroundings, arrivals, fleet, faults, ..
    } = draft;
    let Machine { pair, engine, tuning, .. } = machines[0];

    let of_engine = [
        (Aspect::Engine, pair.model),
        (Aspect::Seats, among(f64::from(engine.max_num_seqs), SEATS)),
        (Aspect::TokenBudget, among(f64::from(engine.max_num_batched_tokens), BUDGETS)),
        (Aspect::PrefixHits, among(requests.hits, HITS)),
        (Aspect::Arguments, tuning.arguments.name),
        (Aspect::ApiServers, tuning.api_servers.name),
        (Aspect::Pipeline, tuning.stages.name),
        (Aspect::Speculation, tuning.speculation.name),
        (Aspect::Noise, tuning.noise.name),
        (Aspect::Slowdown, arrivals.changes.slowdowns.which.name),
    ];
    let of_requests = [
        (Aspect::Objectives, among(objectives.itl, ITLS)),
        (Aspect::Lengths, requests.task),
        (Aspect::Batch, arrivals.batch.work.name),
        (Aspect::Drift, arrivals.changes.drift.name),
        (Aspect::Shape, arrivals.shape),
        (Aspect::Burstiness, among(arrivals.variation, VARIATIONS)),
    ];
    let of_fleet = [
        (Aspect::Fleet, among(fleet.need, FLEETS)),
        (Aspect::Initial, among(fleet.utilization, UTILIZATIONS)),
        (Aspect::Duration, among(arrivals.length / 3600.0, HOURS)),
        (Aspect::Variants, variants(machines.len())),
        (Aspect::Startup, among(fleet.startup.median, STARTS)),
        (Aspect::Nodes, fleet.startup.nodes),
        (Aspect::FailedStarts, faults.failed_starts.name),
        (Aspect::Failures, faults.failures.name),
        (Aspect::Rollout, fleet.rollout.name),
    ];
    let of_surroundings = [
        (Aspect::Router, surroundings.router.name),
        (Aspect::Clients, surroundings.clients.name),
        (Aspect::Scrape, surroundings.observation.name),
        (Aspect::ScrapeLoss, surroundings.observation.losses),
        (Aspect::Silence, faults.silence.name),
        (Aspect::Autoscaler, surroundings.follower.name),
        (Aspect::AutoscalerDelay, surroundings.delay.name),
        (Aspect::Gateway, surroundings.gateway.name),
    ];

    let all = of_engine.into_iter().chain(of_requests).chain(of_fleet).chain(of_surroundings);
    all.map(|(aspect, value)| Fact { aspect, value }).collect()
}

/// The name of the range that contains a number.
fn among(value: f64, ranges: Ranges) -> &'static str {
    let range = ranges.iter().find(|(end, _)| value < *end).or(ranges.last());
    range.map_or("", |(_, name)| name)
}

const fn variants(count: usize) -> &'static str {
    match count {
        1 => "one",
        2 => "two",
        _ => "three",
    }
}
