//! The future requests of a workload, for peers that know them beforehand.

use crate::simulate::Micros;
use crate::simulate::peers::profile::{self, MeanSize, SizeSums};
use crate::simulate::scenario::{Model, Scenario, Variant};
use crate::simulate::workload::load::{self, Load};
use plimsoll_core::fleet::ModelName;

/// The reason why a peer cannot plan for a model beforehand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// Its clients wait for their answers.
    #[error("cannot plan for {0}, whose workload is closed: its requests depend on their answers")]
    Closed(ModelName),
    /// The capacity of one replica depends on the others.
    #[error("cannot plan for {0}, whose variants have the roles prefill and decode")]
    Disaggregated(ModelName),
}

/// Returns an error if the requests of a model cannot be known and planned for.
pub(crate) fn plannable(scenario: &Scenario, model: usize) -> Result<(), Unplannable> {
    let described = &scenario.models[model];
    if matches!(described.load, Load::Closed(_)) {
        return Err(Unplannable::Closed(described.key.model.clone()));
    }
    if scenario.is_disaggregated(model) {
        return Err(Unplannable::Disaggregated(described.key.model.clone()));
    }

    Ok(())
}

/// The requests of a model, including its batch work, ordered by time.
pub(crate) fn requests(
    scenario: &Scenario,
    seed: u64,
    model: usize,
) -> Result<Vec<(Micros, load::Size)>, Unplannable> {
    plannable(scenario, model)?;
    let end = scenario.length;
    let Model { load, batch, .. } = &scenario.models[model];
    let batched = batch.as_ref().map(|stream| stream.arrivals(seed, model));

    let streams = std::iter::once(load.arrivals(seed, model)).chain(batched);
    let arrivals = streams.flat_map(|stream| stream.take_while(|arrival| arrival.at < end));
    let mut requests: Vec<_> = arrivals.map(|arrival| (arrival.at, arrival.size)).collect();
    requests.sort_by_key(|(at, _)| *at);
    Ok(requests)
}

/// The mean size of requests.
pub(crate) fn mean(requests: &[(Micros, load::Size)]) -> MeanSize {
    let mut sums = SizeSums::default();
    for (_, size) in requests {
        sums.add(*size);
    }

    sums.mean()
}

/// The variants of a model, in ascending order of cost per unit of capacity for requests of this
/// size. Each entry has the index, the capacity per replica in requests/s, and the variant.
pub(crate) fn cheapest_first(
    scenario: &Scenario,
    model: usize,
    size: MeanSize,
) -> Vec<(usize, f64, &Variant)> {
    let itl = scenario.models[model].slo.itl.seconds();
    let mut variants: Vec<(usize, f64, &Variant)> = scenario
        .variants
        .iter()
        .enumerate()
        .filter(|(_, variant)| variant.model == model)
        .map(|(at, variant)| (at, profile::sustained(variant, itl, size), variant))
        .collect();

    variants.sort_by(|a, b| price(a.1, a.2).total_cmp(&price(b.1, b.2)));
    variants
}

/// The cost of an hour for each request per second that a replica sustains.
fn price(rate: f64, variant: &Variant) -> f64 {
    variant.spec.cost.per_hour() / rate.max(1e-9)
}
