//! The fleet of a trace, as levers see it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::advise::args::AdviseArgs;
use crate::advise::engines::{self, KnownEngine};
use crate::advise::play::TrialOutcome;
use crate::advise::span::{self, Blocks, hours};
use crate::backtest::BacktestError;
use crate::backtest::args::AssumptionArgs;
use crate::backtest::demand::{RecordedLoad, RecordedVariant, TraceDemand};
use crate::backtest::fleet::{self, TraceScenario};
use crate::backtest::policies::Candidates;
use crate::simulate::Micros;
use crate::simulate::scenario::{Scenario, Slo, Variant};
use plimsoll_core::analyze::foresight::card::Card;

/// The time between two decisions and two scrapes of a simulation, if the recorded one is shorter.
const TICK: Micros = Micros::from_secs(5);

/// The time between two samples of the fleet.
const SAMPLE: Micros = Micros::from_secs(60);

/// The most samples of a run; of a longer one, they are further apart.
const SAMPLES_MAX: u64 = 20_000;

/// The fleet of a trace, and its scenario.
pub(crate) struct AdvisedFleet {
    /// The load and the engines.
    pub(crate) gathered: TraceDemand,
    /// The scenario, with the requests of each seed.
    scenarios: Vec<Scenario>,
    /// The first seed.
    pub(crate) seed: u64,
    /// The objectives of all requests.
    pub(crate) slo: Slo,
    /// What the simulation assumes.
    pub(crate) notes: Vec<String>,
    /// The first and the last tick of the trace.
    pub(crate) recorded: (Timestamp, Timestamp),
    /// The start and the end of the simulation.
    pub(crate) simulated: (Timestamp, Timestamp),
    /// The parts of the simulated time.
    pub(crate) blocks: Blocks,
    /// Engines that could serve models.
    pub(crate) engines: Vec<KnownEngine>,
}

/// Models that are simulated together, by their places in the scenario.
pub(crate) type ModelGroup = Vec<usize>;

/// One group of models, as levers see it.
pub(crate) struct ModelScene<'a> {
    /// The whole fleet.
    pub(crate) fleet: &'a AdvisedFleet,
    /// The scenario of the group.
    pub(crate) scenario: &'a Scenario,
    /// The outcome of the fleet of today.
    pub(crate) today: &'a TrialOutcome,
    /// The arguments.
    pub(crate) args: &'a AdviseArgs,
}

// === impl AdvisedFleet ===

impl AdvisedFleet {
    /// The fleet of a trace.
    ///
    /// # Errors
    ///
    /// The trace has too little data about its load or engines.
    pub(crate) fn new(
        mut gathered: TraceDemand,
        candidates: &Candidates,
        cards: Vec<Arc<Card>>,
        args: &AdviseArgs,
    ) -> Result<Self, BacktestError> {
        let recorded = gathered.span.ok_or_else(|| unscored("it has no ticks"))?;
        let tick = tick(candidates);
        let begin = match args.span {
            Some(span) => {
                let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
                recorded.1.checked_sub(span).unwrap_or(recorded.0).max(recorded.0)
            }
            None => span::begin(&gathered, tick, args.seeds).unwrap_or(recorded.0),
        };
        gathered.begin_at(begin);

        let mut scenarios = Vec::new();
        let mut found = None;
        let seed = args.assumptions.seed;
        for seed in seed..seed.saturating_add(u64::from(args.seeds)) {
            let assumptions = AssumptionArgs { seed, ..args.assumptions.clone() };
            let TraceScenario { mut scenario, slo, notes } =
                fleet::scenario(&gathered, candidates, &assumptions)?;
            scenario.control.policy = fleet::playable(&candidates.config.policy);
            (scenario.control.tick, scenario.control.scrape) = (tick, tick);
            let spread = Micros::new(scenario.length.micros() / SAMPLES_MAX);
            scenario.sample = SAMPLE.max(spread).min(Blocks::of(scenario.length).length);
            scenarios.push(scenario);
            found.get_or_insert((slo, notes));
        }

        let (slo, notes) = found.ok_or_else(|| unscored("no seed"))?;
        let first = scenarios.first().ok_or_else(|| unscored("no seed"))?;
        let blocks = Blocks::of(first.length);
        let configured = candidates.config.policy.sizing.as_ref().map(|it| it.cards.to_vec());
        let cards: Vec<Arc<Card>> =
            cards.into_iter().chain(configured.into_iter().flatten()).collect();
        let engines = engines::known(first, &cards, &args.price);
        let simulated = gathered.span.unwrap_or(recorded);
        Ok(Self { gathered, scenarios, seed, slo, notes, recorded, simulated, blocks, engines })
    }

    /// The groups of models, those with the highest recorded cost first. Models that share limits
    /// are one group.
    pub(crate) fn groups(&self) -> Vec<ModelGroup> {
        let Some(scenario) = self.scenarios.first() else { return Vec::new() };
        let all: ModelGroup = (0..scenario.models.len()).collect();
        if !scenario.control.policy.limits.configured.is_empty() {
            return vec![all];
        }

        let cost = |model: usize| {
            let own = scenario.variants.iter().filter(|it| it.model == model);
            own.map(|it| self.recorded_cost(it)).sum::<f64>()
        };
        let mut by_cost: Vec<(f64, usize)> = all.into_iter().map(|at| (cost(at), at)).collect();
        by_cost.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        by_cost.into_iter().map(|(_, model)| vec![model]).collect()
    }

    /// The recorded cost of a variant in the counted time.
    pub(crate) fn recorded_cost(&self, variant: &Variant) -> f64 {
        let (from, to) = self.counted();
        let crew = self.gathered.variants.get(&variant.spec.key);
        crew.map_or(0.0, |crew| crew.hours_between(from, to)) * variant.spec.cost.per_hour()
    }

    /// The start and the end of the counted time.
    pub(crate) fn counted(&self) -> (Timestamp, Timestamp) {
        let (from, to) = self.simulated;
        let warm_up = SignedDuration::from_secs_f64(self.blocks.from.seconds());
        (from.saturating_add(warm_up).unwrap_or(to).min(to), to)
    }

    /// The scenario of a group, with the requests of each seed.
    pub(crate) fn scenarios_of(&self, group: &ModelGroup) -> Vec<Scenario> {
        self.scenarios.iter().map(|scenario| only(scenario, group)).collect()
    }

    /// The number of seeds.
    pub(crate) fn seeds(&self) -> usize {
        self.scenarios.len()
    }

    /// The recorded data of a variant.
    pub(crate) fn crew(&self, variant: &Variant) -> Option<&RecordedVariant> {
        self.gathered.variants.get(&variant.spec.key)
    }

    /// The work that is about to be done, in words.
    pub(crate) fn announcement(&self) -> String {
        let length =
            |(from, to): (Timestamp, Timestamp)| hours(to.duration_since(from).as_secs_f64());
        format!(
            "simulating {} of the {} of the trace, with {} seeds",
            length(self.simulated),
            length(self.recorded),
            self.seeds()
        )
    }
}

/// The time between two decisions: that of the trace, and at least [`TICK`], so long as data is not
/// stale before the next scrape.
fn tick(candidates: &Candidates) -> Micros {
    let config = &candidates.config;
    let recorded = Micros::from_duration(config.keys.tick_interval);
    let fresh = Micros::from_secs_f64(config.policy.stale_after.seconds() / 2.0);
    recorded.max(TICK.min(fresh)).max(Micros::from_secs(1))
}

fn unscored(why: &str) -> BacktestError {
    BacktestError::Unscored(why.to_owned())
}

/// The scenario with only some of its models.
fn only(scenario: &Scenario, group: &ModelGroup) -> Scenario {
    let models = group.iter().map(|at| scenario.models[*at].clone()).collect();
    let variants = scenario.variants.iter().filter_map(|variant| {
        let model = group.iter().position(|at| *at == variant.model)?;
        Some(Variant { model, ..variant.clone() })
    });
    Scenario { models, variants: variants.collect(), ..scenario.clone() }
}

// === impl ModelScene ===

impl<'a> ModelScene<'a> {
    /// The scene of a group.
    pub(crate) fn new(
        fleet: &'a AdvisedFleet,
        scenario: &'a Scenario,
        today: &'a TrialOutcome,
        args: &'a AdviseArgs,
    ) -> Self {
        Self { fleet, scenario, today, args }
    }

    /// The names of the models.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self.scenario.models.iter().map(|it| it.key.to_string()).collect();
        names.join(", ")
    }

    /// The variants of a model.
    pub(crate) fn variants_of(&self, model: usize) -> impl Iterator<Item = &'a Variant> {
        self.scenario.variants.iter().filter(move |it| it.model == model)
    }

    /// The variant of a model with the highest recorded cost.
    pub(crate) fn main_variant(&self, model: usize) -> Option<&'a Variant> {
        let cost = |it: &&Variant| self.fleet.recorded_cost(it);
        self.variants_of(model).max_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// The recorded load of a model.
    pub(crate) fn load(&self, model: usize) -> Option<&'a RecordedLoad> {
        self.fleet.gathered.models.get(&self.scenario.models[model].key)
    }

    /// Returns true if too few requests are within their objectives.
    pub(crate) fn is_short(&self) -> bool {
        self.today.attainment().is_some_and(|it| it < self.args.target())
    }
}
