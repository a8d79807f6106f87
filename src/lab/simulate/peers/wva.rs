//! llm-d's Workload Variant Autoscaler, as Plimsoll's own analyzers with its settings.
//!
//! # Model
//!
//! V1 uses the mean headroom of the replicas that are not saturated. Below 10% of the KV cache or 3
//! waiting requests, it adds one replica. It removes one if the others could handle the load with
//! the same headroom. A replica is saturated from 80% KV cache usage or 5 waiting requests on.
//! Nothing happens while replicas are not ready.
//!
//! V2 provides replicas for the tokens in use and waiting, at 85% of the replicas' KV capacity. It
//! scales down below 70%.
//!
//! An HPA follows the published recommendation. It scales up at once, by 10 pods per 150 s; it
//! scales down after 240 s, at the same rate. WVA's benchmarks ran with these settings.
//!
//! # Source
//!
//! llm-d/llm-d-workload-variant-autoscaler: defaults of V1 and V2 as of August 2026. The loop runs
//! every 30 s in V1's releases and every 15 s in later ones. `docs/benchmark.md` of v0.6.0 for the
//! HPA.

use crate::simulate::Micros;
use crate::simulate::scaler::{self, Rules};
use crate::simulate::scenario::{Actuator, Hpa, SYNC, Scenario, Signal};
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::saturation::{Thresholds, TransitionRule};
use plimsoll_core::analyze::sharing::CardSharing;
use plimsoll_core::analyze::tokens;
use plimsoll_core::decide::enforce::{self, Amount, Behavior, Deference, Dwell, Select};
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::units::{Fraction, Replicas, Requests, Seconds};

const LOOP_V1: Micros = Micros::from_secs(30);
const LOOP_V2: Micros = Micros::from_secs(15);
const HPA_PODS: u32 = 10;
const HPA_PERIOD: Micros = Micros::from_secs(150);
const HPA_DOWN: Micros = Micros::from_secs(240);
/// A flap budget that never applies: WVA does not count direction changes.
const TURNS: u32 = 120;

/// The WVA analyzer that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Headroom of KV cache and queue.
    V1,
    /// Tokens in the KV cache.
    V2,
}

/// Makes WVA scale all variants of a scenario.
pub(crate) fn apply(version: Version, scenario: &mut Scenario) {
    let control = &mut scenario.control;
    control.tick = match version {
        Version::V1 => LOOP_V1,
        Version::V2 => LOOP_V2,
    };

    let policy = &mut control.policy;
    policy.thresholds = thresholds();
    policy.overrides.clear();
    policy.transition = TransitionRule::PendingOnly;
    policy.behavior = at_once();
    policy.sizing = match version {
        Version::V1 => None,
        Version::V2 => Some(by_tokens()),
    };

    for variant in &mut scenario.variants {
        let bounds = variant.spec.bounds;
        let min = bounds.min().max(Replicas::ONE);
        let settings = behavior(min, bounds.max().unwrap_or(min).max(min));
        variant.initial = variant.initial.max(Replicas::ONE);
        variant.actuator = Actuator::Hpa(Hpa {
            signal: Signal::Desired,
            settings,
            sync: SYNC,
            delay: Micros::ZERO,
        });
    }
}

fn share(value: f64) -> Fraction {
    Fraction::new(value).unwrap_or(Fraction::ONE)
}

fn thresholds() -> Thresholds {
    Thresholds {
        kv_cache: share(0.8),
        queue_length: Requests::new(5.0).unwrap_or_default(),
        kv_spare: share(0.1),
        queue_spare: Requests::new(3.0).unwrap_or_default(),
    }
}

fn by_tokens() -> Sizing {
    Sizing {
        analyzers: vec![Analyzer::Tokens],
        tokens: tokens::TokenPolicy {
            rules: tokens::TokenRules::Wva,
            sharing: CardSharing::Cluster,
            ..tokens::TokenPolicy::default()
        },
        ..Sizing::default()
    }
}

/// Publishes every decision immediately.
fn at_once() -> Behavior {
    Behavior {
        scale_up: free(),
        scale_down: free(),
        dwell: Dwell { after_up: Seconds::ZERO, after_down: Seconds::ZERO },
        flap_budget: TURNS,
        panic: None,
        deference: Deference::None,
    }
}

/// Rules that limit nothing.
fn free() -> enforce::Rules {
    enforce::Rules {
        stabilization_window: Seconds::ZERO,
        select: Select::Max,
        policies: Vec::new(),
    }
}

fn behavior(min: Replicas, max: Replicas) -> scaler::ScalerSettings {
    scaler::ScalerSettings {
        up: rules(Micros::ZERO),
        down: rules(HPA_DOWN),
        ..scaler::ScalerSettings::following(min, max)
    }
}

fn rules(window: Micros) -> Rules {
    Rules {
        tolerance: 0.1,
        window,
        select: Select::Max,
        policies: vec![scaler::ScalingPolicy {
            amount: Amount::Pods(HPA_PODS),
            period: HPA_PERIOD,
        }],
    }
}
