//! The state of the daemon and of the autoscalers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::peers::law::Law;
use crate::simulate::peers::sight::Terms;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::reading::Names;
use crate::simulate::scaler::{MilliValue, Scaler};
use crate::simulate::scenario::{Actuator, Hpa, Scenario, Variant};
use crate::simulate::score::ForesightEstimate;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::fleet::{Fleet, ModelKey};
use plimsoll_core::observe::routed::RoutedCounts;
use plimsoll_core::observe::{DemandSignal, Scrape};
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::units::{Replicas, RequestRate};

/// The daemon, and the autoscaler of each variant.
pub(crate) struct Controller {
    pub(super) pipeline: Pipeline,
    pub(super) fleet: Arc<Fleet>,
    pub(super) names: Vec<Names>,
    pub(super) autoscalers: Vec<VariantAutoscaler>,
    /// The autoscalers that write the scale directly.
    pub(crate) laws: Vec<Option<Law>>,
    /// Scrapes of a Prometheus that the daemon has not received yet, oldest first.
    pub(super) relayed: VecDeque<(Micros, Scrape)>,
    /// The last reading of each model's gateway, if the daemon reads it.
    pub(super) gateways: BTreeMap<ModelKey, GatewayReading>,
    /// The admissible rate that the daemon publishes for each model.
    pub(super) admissible: BTreeMap<ModelKey, RequestRate>,
    pub(super) ticks: u64,
    pub(super) losses: Pcg64,
}

/// A reading of a gateway.
pub(super) struct GatewayReading {
    pub(super) at: Micros,
    pub(super) demand: Vec<DemandSignal>,
    /// The requests that it has sent to replicas, by adapter.
    pub(super) routed: RoutedCounts,
}

/// The autoscaler of one variant.
pub(super) struct VariantAutoscaler {
    pub(super) scaler: Option<Scaler>,
    /// The published desired replicas, and the time of the data behind them.
    pub(super) published: Option<(Replicas, Timestamp)>,
    /// The basis of that decision.
    pub(super) belief: ForesightEstimate,
    /// The signal at each tick, as far back as the autoscaler's delay.
    pub(super) signal: VecDeque<(Micros, Option<MilliValue>)>,
    /// The cumulative requests at each tick, as far back as the rate window.
    pub(super) counted: VecDeque<(Micros, u64)>,
    /// The last time at which KEDA saw a value above its threshold.
    pub(super) active: Option<Micros>,
}

// === impl Controller ===

impl Controller {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let variants = &scenario.variants;
        Self {
            pipeline: Pipeline::new(scenario.control.policy.clone()),
            fleet: Arc::new(Fleet::new(variants.iter().map(|variant| variant.spec.clone()))),
            names: variants.iter().map(|variant| names(scenario, variant)).collect(),
            autoscalers: variants.iter().map(autoscaler).collect(),
            laws: (0..variants.len()).map(|variant| law(scenario, variant)).collect(),
            relayed: VecDeque::new(),
            gateways: BTreeMap::new(),
            admissible: BTreeMap::new(),
            ticks: 0,
            losses: generator(seed, Purpose::Scrapes, 0),
        }
    }

    /// The engine capacities that the daemon has learned.
    pub(crate) fn cards(&self) -> Vec<Arc<Card>> {
        self.pipeline.cards().cloned().collect()
    }

    /// The desired replicas that the daemon publishes for a variant.
    pub(crate) fn desired(&self, variant: usize) -> Option<Replicas> {
        self.autoscalers[variant].published.map(|(desired, _)| desired)
    }

    /// The basis of the daemon's last decision about a variant.
    pub(crate) fn belief(&self, variant: usize) -> ForesightEstimate {
        self.autoscalers[variant].belief
    }
}

fn autoscaler(variant: &Variant) -> VariantAutoscaler {
    VariantAutoscaler {
        scaler: variant.actuator.hpa().map(|hpa| scaler(hpa, variant.initial)),
        published: None,
        belief: ForesightEstimate::default(),
        signal: VecDeque::new(),
        counted: VecDeque::new(),
        active: None,
    }
}

fn scaler(hpa: &Hpa, initial: Replicas) -> Scaler {
    let fresh = Scaler::new(hpa.settings.clone());
    let zero = initial == Replicas::ZERO && hpa.settings.min == Replicas::ZERO;
    if zero { fresh.resting_at_zero() } else { fresh }
}

/// The names in the pages of a variant's replicas.
fn names(scenario: &Scenario, variant: &Variant) -> Names {
    let adapters = scenario.models[variant.model].adapters.iter();
    Names {
        models: vec![variant.spec.model.clone()],
        adapters: adapters.map(|adapter| adapter.name.clone()).collect(),
    }
}

/// The autoscaler of a variant, if it writes the scale directly.
fn law(scenario: &Scenario, variant: usize) -> Option<Law> {
    let described = &scenario.variants[variant];
    let Actuator::Law(rule) = &described.actuator else { return None };

    let terms = Terms {
        bounds: described.spec.bounds,
        slo: scenario.models[described.model].slo,
        engine: described.engine,
    };
    Some(rule.begin(&terms))
}
