//! The capacity of one replica over time, in requests per second.

use crate::simulate::peers::profile;
use crate::simulate::workload::rate::Rate;
use crate::study::worlds::drift::{DriftSpan, Factors, LengthDrift};
use crate::study::worlds::faults::{SlowSpell, Slowdowns};
use crate::study::worlds::machines::Machine;
use crate::study::worlds::requests::Requests;

/// The constant conditions under which replicas serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) requests: Requests,
    /// The objective for the time between tokens, in seconds.
    pub(crate) itl: f64,
    /// Requests that a replica gets at once.
    pub(crate) at_once: u32,
}

/// Changes in the capacity of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changes {
    pub(crate) drift: LengthDrift,
    pub(crate) slowdowns: Slowdowns,
}

/// The capacity of one replica, as a piecewise linear function.
#[derive(Clone, Debug)]
pub(crate) struct Capacity(Rate);

// === impl Conditions ===

impl Conditions {
    /// Requests per second that one replica sustains, with iterations `slowness` times as long and
    /// lengths scaled by `factors`.
    pub(crate) fn sustained(&self, machine: &Machine, factors: Factors, slowness: f64) -> f64 {
        let Self { requests, itl, at_once } = *self;
        let mut engine = machine.slowed(slowness).engine;
        engine.max_num_seqs = engine.max_num_seqs.min(at_once);
        let options = machine.tuning.options();
        let size = requests.mean(factors);
        profile::sustained_by(&engine, &options, requests.hits, itl, size)
    }
}

// === impl Capacity ===

impl Capacity {
    /// The capacity while lengths drift, and while engines slow down if all of them do.
    pub(crate) fn new(
        conditions: &Conditions,
        machine: &Machine,
        drift: Option<DriftSpan>,
        slowed: Option<SlowSpell>,
    ) -> Self {
        let slowed_all = slowed.filter(SlowSpell::is_of_all);
        let begins_and_ends = slowed_all.map(|it| [it.spell.begin, it.spell.end]);
        let drifts = drift.iter().flat_map(DriftSpan::times);
        let mut times: Vec<f64> = std::iter::once(0.0)
            .chain(begins_and_ends.into_iter().flatten())
            .chain(drifts)
            .collect();
        times.sort_by(f64::total_cmp);

        let mut points = Vec::new();
        for time in times {
            let factors = drift.map_or(Factors::NONE, |it| it.at(time));
            let before = slowed_all.filter(|it| it.spell.begin < time && time <= it.spell.end);
            let after = slowed_all.filter(|it| it.spell.begin <= time && time < it.spell.end);
            let [before, after] = [before, after].map(|it| it.map_or(1.0, |it| it.factor));
            points.push((time, conditions.sustained(machine, factors, before)));
            points.push((time, conditions.sustained(machine, factors, after)));
        }

        Self(Rate::through(points, None).expect("times were sorted, and capacities are finite"))
    }

    /// The capacity at a time in seconds.
    pub(crate) fn at(&self, time: f64) -> f64 {
        self.0.of(time)
    }

    #[cfg(test)]
    pub(crate) fn constant(capacity: f64) -> Self {
        Self(Rate::constant(capacity).expect("a capacity of a test is positive"))
    }
}
