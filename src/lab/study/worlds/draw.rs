//! A world: everything that is drawn of it, and the scenario file that it is.

use crate::study::file::{File, Kind};
use crate::study::worlds::course::{Course, Need, digits};
use crate::study::worlds::facts::{self, Fact};
use crate::study::worlds::fleet::Fleet;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::{self, Machine};
use crate::study::worlds::priors::{
    Aspect, BUDGET_OF_ONE, BUDGET_OF_SEVERAL, Budget, HOURS, HOURS_MIN, NEED, NEED_MIN,
    NEED_OF_SEVERAL, SHAPES, VARIANTS, VARIATION,
};
use crate::study::worlds::requests::{Objectives, Requests};
use crate::study::worlds::surroundings::Surroundings;
use crate::study::worlds::written;

/// A world.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) lot: Lot,
    /// What `simulate` plays.
    pub(crate) file: File,
    pub(crate) kind: Kind,
    /// What was drawn of each aspect, in a few words.
    pub(crate) facts: Vec<Fact>,
    /// What it takes of the first variant.
    pub(crate) need: Need,
    /// Whether the duration or the mean need was cut to bound the time that it takes to simulate.
    pub(crate) cut: bool,
}

/// Everything of a world that its file says.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) lot: Lot,
    pub(crate) machines: Vec<Machine>,
    pub(crate) requests: Requests,
    pub(crate) objectives: Objectives,
    pub(crate) surroundings: Surroundings,
    pub(crate) arrivals: Arrivals,
    pub(crate) fleet: Fleet,
}

/// Arrivals of a world.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    pub(crate) shape: &'static str,
    /// Requests a second.
    pub(crate) course: Course,
    /// The coefficient of variation of the gaps.
    pub(crate) variation: f64,
    /// Seconds.
    pub(crate) length: f64,
    /// Requests a second.
    pub(crate) mean: f64,
    pub(crate) peak: f64,
    pub(crate) cut: bool,
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
struct Extent {
    hours: f64,
    /// Replicas, on average.
    need: f64,
    cut: bool,
}

/// Draws a world from its seed and its number alone.
pub(crate) fn draw(lot: Lot) -> World {
    let variants = VARIANTS.draw(&mut lot.of(Aspect::Variants)).value;
    let machines = machines::draw(lot, variants);
    let kv_tokens = machines.iter().map(Machine::kv_tokens).fold(f64::INFINITY, f64::min);
    let requests = Requests::draw(lot, kv_tokens);
    let objectives = Objectives::draw(lot, &requests, &machines);
    let surroundings = Surroundings::draw(lot, &machines);

    let at_once = surroundings.gateway.at_once();
    let size = requests.mean();
    let capacity = |it: &Machine| it.capacity(at_once, requests.hits, objectives.itl, size);
    let capacities: Vec<f64> = machines.iter().map(capacity).collect();
    let arrivals = Arrivals::draw(lot, &capacities);
    let need = Need::new(&arrivals.course, capacities[0], arrivals.length);
    let fleet = Fleet::draw(lot, &arrivals, &need, &capacities);

    let kind = need.kind(fleet.startup.longest());
    let draft = Draft { lot, machines, requests, objectives, surroundings, arrivals, fleet };
    let facts = facts::of(&draft);
    let cut = draft.arrivals.cut;
    World { lot, file: written::file(&draft, kind), kind, facts, need, cut }
}

// === impl Arrivals ===

impl Arrivals {
    /// Draws what replicas that carry so much are asked for.
    fn draw(lot: Lot, capacities: &[f64]) -> Self {
        let Extent { hours, need, cut } = Extent::draw(lot, capacities);
        let length = (hours * 60.0).round() * 60.0;
        let mut random = lot.of(Aspect::Shape);
        let shape = SHAPES.draw(&mut random);
        let course = Course::draw(shape.value, length, &mut random);
        let (mean, _) = course.mean_and_peak(length);
        let course = course.times(need * capacities[0] / mean).until(length);

        let (mean, peak) = course.mean_and_peak(length);
        let variation = digits(VARIATION.draw(&mut lot.of(Aspect::Burstiness)), 2);
        Self { shape: shape.name, course, variation, length, mean, peak, cut }
    }
}

// === impl Extent ===

impl Extent {
    fn draw(lot: Lot, capacities: &[f64]) -> Self {
        let (needs, budget) = match capacities {
            [_] => (NEED, BUDGET_OF_ONE),
            _ => (NEED_OF_SEVERAL, BUDGET_OF_SEVERAL),
        };
        let hours = HOURS.draw(&mut lot.of(Aspect::Duration));
        let need = needs.draw(&mut lot.of(Aspect::Fleet));
        Self { hours, need, cut: false }.within(budget, capacities[0] * 3600.0)
    }

    /// The same, but so that it can be simulated; a replica carries so many requests an hour.
    fn within(self, budget: Budget, capacity: f64) -> Self {
        let Self { hours, need, .. } = self;
        // Replica-hours that there may be.
        let most = budget.replica_hours.min(budget.requests / capacity);
        let cut_hours = hours.min((most / need).max(HOURS_MIN));
        let cut_need = need.min((most / cut_hours).max(NEED_MIN));
        let cut = cut_hours < hours || cut_need < need;
        Self { hours: cut_hours, need: cut_need, cut }
    }
}
