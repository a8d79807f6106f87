//! What a workload will ask for, for peers that know it beforehand.

use crate::simulate::Micros;
use crate::simulate::peers::profile::{self, Size};
use crate::simulate::scenario::{Model, Scenario, Variant};
use crate::simulate::workload::load::{self, Load};
use plimsoll_core::fleet::ModelName;

/// Why nobody can plan for a model beforehand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// Its clients wait for their answers.
    #[error("cannot plan for {0}, whose workload is closed: its requests depend on their answers")]
    Closed(ModelName),
    /// What one replica carries depends on the others.
    #[error("cannot plan for {0}, whose variants have the roles prefill and decode")]
    Disaggregated(ModelName),
}

/// Whether the requests of a model can be known and planned for.
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

/// The requests of a model, batch work among them, in order of time.
pub(crate) fn requests(
    scenario: &Scenario,
    seed: u64,
    model: usize,
) -> Result<Vec<(Micros, load::Size)>, Unplannable> {
    plannable(scenario, model)?;
    let end = scenario.length;
    let Model { load, batch, .. } = &scenario.models[model];
    let batch = batch.as_ref().map(|batch| batch.arrivals(seed, model));
    let streams = std::iter::once(load.arrivals(seed, model)).chain(batch);
    let arrivals = streams.flat_map(|stream| stream.take_while(|arrival| arrival.at < end));
    let mut requests: Vec<_> = arrivals.map(|arrival| (arrival.at, arrival.size)).collect();
    requests.sort_by_key(|(at, _)| *at);
    Ok(requests)
}

/// The mean size of requests.
pub(crate) fn mean(requests: &[(Micros, load::Size)]) -> Size {
    let count = requests.len().max(1) as f64;
    let sum = |of: fn(&load::Size) -> u32| -> f64 {
        requests.iter().map(|(_, size)| f64::from(of(size))).sum()
    };
    Size { prompt: sum(|it| it.prompt) / count, output: sum(|it| it.output) / count }
}

/// The variants of a model, cheapest first for what they carry of requests of a size: the index,
/// what a replica carries a second, and the variant.
pub(crate) fn cheapest_first(
    scenario: &Scenario,
    model: usize,
    size: Size,
) -> Vec<(usize, f64, &Variant)> {
    let itl = scenario.models[model].slo.itl.seconds();
    let mut variants: Vec<(usize, f64, &Variant)> = scenario
        .variants
        .iter()
        .enumerate()
        .filter(|(_, variant)| variant.model == model)
        .map(|(at, variant)| (at, profile::sustained(variant, itl, size), variant))
        .collect();
    let price = |rate: f64, variant: &Variant| variant.spec.cost.per_hour() / rate.max(1e-9);
    variants.sort_by(|a, b| price(a.1, a.2).total_cmp(&price(b.1, b.2)));
    variants
}
