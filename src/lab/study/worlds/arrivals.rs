//! Arrivals of a world, within its simulation budget.

use crate::study::worlds::batch::BatchWork;
use crate::study::worlds::capacity::{Capacity, Changes, Conditions};
use crate::study::worlds::course::{Course, Need};
use crate::study::worlds::drift::{DriftSpan, Factors};
use crate::study::worlds::faults::SlowSpell;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::numbers::digits;
use crate::study::worlds::priors::{
    Aspect, BUDGET_OF_ONE, BUDGET_OF_SEVERAL, HOURS, HOURS_MIN, NEED, NEED_MIN, NEED_OF_SEVERAL,
    SHAPES, STAGE_WORK, SimulationBudget, VARIATION,
};

/// Arrivals of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldArrivals {
    pub(crate) shape: &'static str,
    /// Requests per second.
    pub(crate) course: Course,
    /// The coefficient of variation of the gaps.
    pub(crate) variation: f64,
    /// Seconds.
    pub(crate) length: f64,
    pub(crate) cut: bool,
    pub(crate) changes: Changes,
    pub(crate) batch: BatchWork,
    /// Requests per second of the batch work.
    pub(crate) batch_course: Option<Course>,
    pub(crate) slowed: Option<SlowSpell>,
    /// The need of each variant, if it served all requests alone.
    pub(crate) needs: Vec<Need>,
}

/// The size of a world.
#[derive(Clone, Copy, Debug)]
struct Extent {
    hours: f64,
    /// Replicas, on average.
    need: f64,
    cut: bool,
}

// === impl WorldArrivals ===

impl WorldArrivals {
    /// Draws requests for these engines under these conditions, including their changes.
    pub(super) fn draw(
        lot: Lot,
        conditions: &Conditions,
        machines: &[Machine],
        changes: Changes,
    ) -> Self {
        let Changes { drift, slowdowns } = changes;
        let ends = [Factors::NONE, drift.last];
        let [first, last] = ends.map(|factors| conditions.sustained(&machines[0], factors, 1.0));
        let budget = SimulationBudget::of(machines);
        let Extent { hours, need, cut } =
            Extent::draw(lot, machines.len(), budget, first.max(last));

        let length = (hours * 60.0).round() * 60.0;
        let slowed = slowdowns.dated(length);
        let batch = BatchWork::draw(lot, &conditions.requests);
        let of_batch = Conditions { requests: batch.requests, ..*conditions };
        let others = capacities(&of_batch, machines, None, slowed);
        let own = capacities(conditions, machines, drift.dated(length), slowed);

        let mut random = lot.of(Aspect::Shape);
        let shape = SHAPES.draw(&mut random);
        let unscaled = Course::draw(shape.value, length, &mut random);
        let (mean, _) = Need::new(&unscaled, own[0].clone(), length).mean_and_peak();
        let interactive = need / (1.0 + batch.share());
        let course = unscaled.times(interactive / mean).until(length);
        let batch_course = batch.course(length, need - interactive, &others[0]);

        let of_variants = own.into_iter().zip(others).map(|(capacity, others)| {
            let need = Need::new(&course, capacity, length);
            match &batch_course {
                Some(batch) => need.and(batch, others),
                None => need,
            }
        });

        Self {
            shape: shape.name,
            needs: of_variants.collect(),
            course,
            variation: digits(VARIATION.draw(&mut lot.of(Aspect::Burstiness)), 2),
            length,
            cut,
            changes,
            batch,
            batch_course,
            slowed,
        }
    }
}

/// The capacity of each of these machines, the first of which may slow down.
fn capacities(
    conditions: &Conditions,
    machines: &[Machine],
    drift: Option<DriftSpan>,
    slowed: Option<SlowSpell>,
) -> Vec<Capacity> {
    let each = machines
        .iter()
        .enumerate()
        .map(|(at, machine)| Capacity::new(conditions, machine, drift, slowed.filter(|_| at == 0)));
    each.collect()
}

// === impl Extent ===

impl Extent {
    /// Draws the size of a world with this many variants, whose replicas have a capacity of at most
    /// `capacity` requests per second.
    fn draw(lot: Lot, variants: usize, budget: SimulationBudget, capacity: f64) -> Self {
        let needs = if variants == 1 { NEED } else { NEED_OF_SEVERAL };
        let hours = HOURS.draw(&mut lot.of(Aspect::Duration));
        let need = needs.draw(&mut lot.of(Aspect::Fleet));
        Self { hours, need, cut: false }.within(budget, capacity * 3600.0)
    }

    /// The same size, cut to the budget; a replica's capacity is in requests per hour.
    fn within(self, budget: SimulationBudget, capacity: f64) -> Self {
        let Self { hours, need, .. } = self;
        // The replica-hours within the budget.
        let most = budget.replica_hours.min(budget.requests / capacity);
        let cut_hours = hours.min((most / need).max(HOURS_MIN));
        let cut_need = need.min((most / cut_hours).max(NEED_MIN));
        let cut = cut_hours < hours || cut_need < need;
        Self { hours: cut_hours, need: cut_need, cut }
    }
}

// === impl SimulationBudget ===

impl SimulationBudget {
    /// The simulation budget of a world with these engines.
    fn of(machines: &[Machine]) -> Self {
        let budget = if machines.len() == 1 { BUDGET_OF_ONE } else { BUDGET_OF_SEVERAL };
        let work = match machines[0].tuning.stages.value {
            0 | 1 => 1.0,
            stages => STAGE_WORK * f64::from(stages),
        };
        Self { replica_hours: budget.replica_hours / work, ..budget }
    }
}
