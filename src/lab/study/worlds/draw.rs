//! A world: everything that is drawn for it, and its scenario file.

use crate::study::file::{File, Kind};
use crate::study::worlds::arrivals::WorldArrivals;
use crate::study::worlds::capacity::{Changes, Conditions};
use crate::study::worlds::course::Need;
use crate::study::worlds::draft::WorldDraft;
use crate::study::worlds::drift::LengthDrift;
use crate::study::worlds::facts::{self, Fact};
use crate::study::worlds::faults::{Faults, Slowdowns};
use crate::study::worlds::fleet::WorldFleet;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::{self, Machine};
use crate::study::worlds::objectives::Objectives;
use crate::study::worlds::priors::{Aspect, VARIANTS};
use crate::study::worlds::requests::Requests;
use crate::study::worlds::surroundings::WorldSurroundings;
use crate::study::worlds::written;

/// A world.
#[derive(Clone, Debug)]
pub(crate) struct WorldScenario {
    pub(crate) lot: Lot,
    /// The scenario that `simulate` plays.
    pub(crate) file: File,
    pub(crate) kind: Kind,
    /// The drawn value of each aspect, in a few words.
    pub(crate) facts: Vec<Fact>,
    /// Its need in replicas of the first variant.
    pub(crate) need: Need,
    /// True if the duration or the mean need was cut to limit the simulation time.
    pub(crate) cut: bool,
}

/// Draws a world only from its seed and its number.
pub(crate) fn draw(lot: Lot) -> WorldScenario {
    let variants = VARIANTS.draw(&mut lot.of(Aspect::Variants)).value;
    let machines = machines::draw(lot, variants);
    let kv_tokens = machines.iter().map(Machine::kv_tokens).fold(f64::INFINITY, f64::min);
    let requests = Requests::draw(lot, kv_tokens);
    let changes = Changes { drift: LengthDrift::draw(lot), slowdowns: Slowdowns::draw(lot) };
    let objectives = Objectives::draw(lot, &requests, &machines, changes);
    let surroundings = WorldSurroundings::draw(lot, &machines);

    let at_once = surroundings.gateway.at_once();
    let conditions = Conditions { requests, itl: objectives.itl, at_once };
    let arrivals = WorldArrivals::draw(lot, &conditions, &machines, changes);
    let need = arrivals.needs[0].clone();
    let fleet = WorldFleet::draw(lot, &arrivals);
    let faults = Faults::draw(lot, arrivals.length, fleet.need);

    let kind = need.kind(fleet.startup.longest());
    let draft =
        WorldDraft { lot, machines, requests, objectives, surroundings, arrivals, fleet, faults };
    let facts = facts::of(&draft);
    let cut = draft.arrivals.cut;
    WorldScenario { lot, file: written::file(&draft, kind), kind, facts, need, cut }
}

// === impl WorldScenario ===

impl WorldScenario {
    /// The drawn value of an aspect.
    pub(crate) fn fact(&self, aspect: Aspect) -> &'static str {
        let fact = self.facts.iter().find(|it| it.aspect == aspect);
        fact.map_or("", |fact| fact.value)
    }
}
