//! llm-d's Workload Variant Autoscaler, as this project's own analyzers in its settings.
//!
//! # Model
//!
//! V1: while the mean spare of the replicas that are not saturated is below 10 % of the KV cache or 3
//! waiting requests, one replica more; one fewer when the others could carry the load with the same
//! spare. A replica is saturated from 80 % or 5 on. Nothing happens while replicas are not ready.
//! V2: replicas for the tokens in use and waiting, at 85 % of what they hold, and fewer below 70 %.
//!
//! An HPA follows its number: up at once, by 10 pods in 150 s; down after 240 s, by as many. That is
//! what its benchmarks ran with.
//!
//! # Source
//!
//! llm-d/llm-d-workload-variant-autoscaler: defaults of V1 and V2 as of August 2026, its loop every
//! 30 s in V1's releases and 15 s since, and `docs/benchmark.md` of v0.6.0 for the HPA.

use crate::simulate::Micros;
use crate::simulate::scaler::{self, Rules};
use crate::simulate::scenario::{Actuator, Hpa, SYNC, Scenario, Signal};
use plimsoll_core::analyze::ballot::Analyzer;
use plimsoll_core::analyze::saturation::{Thresholds, TransitionRule};
use plimsoll_core::analyze::tokens;
use plimsoll_core::decide::enforce::{self, Amount, Behavior, Deference, Dwell, Select};
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::units::{Fraction, Replicas, Requests, Seconds};

const LOOP_V1: Micros = Micros::from_secs(30);
const LOOP_V2: Micros = Micros::from_secs(15);
const HPA_PODS: u32 = 10;
const HPA_PERIOD: Micros = Micros::from_secs(150);
const HPA_DOWN: Micros = Micros::from_secs(240);
/// It does not count how often a number turns.
const TURNS: u32 = 120;

/// Which of its analyzers decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Spare KV cache and queue.
    V1,
    /// Tokens in the KV cache.
    V2,
}

/// Makes it scale all variants of a scenario.
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
        tokens: tokens::Policy { rules: tokens::Rules::Wva, ..tokens::Policy::default() },
        ..Sizing::default()
    }
}

/// What is decided is published.
fn at_once() -> Behavior {
    let free = || enforce::Rules {
        stabilization_window: Seconds::ZERO,
        select: Select::Max,
        policies: Vec::new(),
    };
    Behavior {
        scale_up: free(),
        scale_down: free(),
        dwell: Dwell { after_up: Seconds::ZERO, after_down: Seconds::ZERO },
        flap_budget: TURNS,
        panic: None,
        deference: Deference::None,
    }
}

fn behavior(min: Replicas, max: Replicas) -> scaler::Settings {
    let rules = |window| Rules {
        tolerance: 0.1,
        window,
        select: Select::Max,
        policies: vec![scaler::Policy { amount: Amount::Pods(HPA_PODS), period: HPA_PERIOD }],
    };
    scaler::Settings {
        up: rules(Micros::ZERO),
        down: rules(HPA_DOWN),
        ..scaler::Settings::following(min, max)
    }
}
