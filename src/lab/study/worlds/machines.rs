//! Engines of a world: pairs of a model and accelerators, and how vLLM is configured.

use std::time::Duration;

use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::simulate::replica::settings::{
    Admission, BLOCK_SIZE, Experts as WokenExperts, Settings, StepTime,
};
use crate::study::file::{EngineKeys, ExpertKeys};
use crate::study::worlds::course::digits;
use crate::study::worlds::engines::{Experts, PAIRS, Pair};
use crate::study::worlds::lot::{Lot, happens};
use crate::study::worlds::priors::{
    Aspect, BUDGET, BUDGET_OTHERS, COEFFICIENT, MEMORY, MIXTURES, SEATS, SEATS_OTHERS, SPOT_PRICE,
};
use crate::study::worlds::tuning::EngineSetup;
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// How nodes are paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenure {
    OnDemand,
    Spot,
}

/// An engine on its accelerators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) pair: &'static Pair,
    pub(crate) tenure: Tenure,
    pub(crate) engine: Settings,
    pub(crate) tuning: EngineSetup,
}

/// Draws so many engines of one model.
pub(crate) fn draw(lot: Lot, count: usize) -> Vec<Machine> {
    let mut random = lot.of(Aspect::Engine);
    let mixture = happens(MIXTURES, &mut random);
    let pairs: Vec<&Pair> = PAIRS.iter().filter(|it| it.is_mixture() == mixture).collect();
    let first = pairs[random.random_range(0..pairs.len())];
    let same = |it: &&Pair| it.model == first.model && it.accelerator != first.accelerator;
    let mut others: Vec<&Pair> = PAIRS.iter().filter(same).collect();
    others.shuffle(&mut random);

    let (seats, tuning) = (seats(lot), EngineSetup::draw(lot));
    let budget = budget(lot).max(seats * tuning.tokens_per_request());
    let stages = f64::from(tuning.stages.value);
    let mut engine = |pair: &Pair| {
        let mut about = |value: f64| digits(value * COEFFICIENT.draw(&mut random), 3);
        let step = StepTime {
            alpha: about(pair.alpha * 1e3),
            beta: about(pair.beta),
            delta: about(pair.delta),
            gamma: about(pair.gamma).round() / 1e3,
            experts: match pair.experts {
                Experts::Dense | Experts::Linear => WokenExperts::NONE,
                Experts::Waking(tokens, micros) => {
                    WokenExperts { tokens, per_token: about(micros) }
                }
            },
        };
        Settings {
            step,
            max_num_seqs: seats,
            max_num_batched_tokens: budget,
            block_size: BLOCK_SIZE,
            kv_blocks: blocks(pair.kv_tokens * stages * MEMORY.draw(&mut random)),
            admission: Admission::WholePrompt,
        }
    };
    let mut machines =
        vec![Machine { pair: first, tenure: Tenure::OnDemand, engine: engine(first), tuning }];
    for at in 1..count {
        let machine = match others.get(at - 1) {
            Some(pair) => Machine { pair, tenure: Tenure::OnDemand, engine: engine(pair), tuning },
            // One spot copy of the first, and no more: they would be the same.
            None if machines.iter().all(|it| it.tenure == Tenure::OnDemand) => {
                Machine { tenure: Tenure::Spot, ..machines[0] }
            }
            None => break,
        };
        machines.push(machine);
    }
    machines
}

fn seats(lot: Lot) -> u32 {
    let mut random = lot.of(Aspect::Seats);
    let seats = SEATS.draw(&mut random);
    seats.value.unwrap_or_else(|| count(SEATS_OTHERS.draw(&mut random)))
}

fn budget(lot: Lot) -> u32 {
    let mut random = lot.of(Aspect::TokenBudget);
    let budget = BUDGET.draw(&mut random);
    budget.value.unwrap_or_else(|| count(BUDGET_OTHERS.draw(&mut random)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of priors are positive and small"
)]
pub(crate) fn count(value: f64) -> u32 {
    value.round() as u32
}

/// Blocks of a cache of about so many tokens.
fn blocks(tokens: f64) -> u32 {
    count(digits(tokens, 3)) / BLOCK_SIZE
}

// === impl Machine ===

impl Machine {
    /// The variant's name.
    pub(crate) fn name(&self) -> String {
        let accelerator = self.pair.accelerator.to_ascii_lowercase();
        match self.tenure {
            Tenure::OnDemand => accelerator,
            Tenure::Spot => format!("{accelerator}-spot"),
        }
    }

    /// Dollars an hour; each stage of a pipeline has accelerators of its own.
    pub(crate) fn cost(&self) -> f64 {
        let cost = self.pair.cost * f64::from(self.tuning.stages.value);
        match self.tenure {
            Tenure::OnDemand => cost,
            Tenure::Spot => digits(cost * SPOT_PRICE, 3),
        }
    }

    pub(crate) fn kv_tokens(&self) -> f64 {
        f64::from(self.engine.kv_blocks) * f64::from(self.engine.block_size)
    }

    /// The same machine, whose iterations take so many times as long.
    pub(crate) fn slowed(&self, factor: f64) -> Self {
        let engine = Settings { step: self.engine.step.slowed(factor), ..self.engine };
        Self { engine, ..*self }
    }

    /// Seconds until a prompt of which so many tokens are computed has its first token, where nothing
    /// else runs.
    pub(crate) fn prefill(&self, tokens: f64) -> f64 {
        let steps = (tokens / f64::from(self.engine.max_num_batched_tokens)).ceil().max(1.0);
        (steps * self.engine.step.fixed() + tokens * self.engine.step.beta) / 1e6
    }

    /// Seconds for a token of a request of so many tokens that runs alone.
    pub(crate) fn decode(&self, context: f64) -> f64 {
        let StepTime { delta, gamma, .. } = self.engine.step;
        (self.engine.step.fixed() + delta + gamma * context) / 1e6
    }

    /// As a scenario says it.
    pub(crate) fn written(&self, hits: f64) -> Written<EngineKeys> {
        let micros = |micros: f64| WrittenDuration(Duration::from_nanos(nanos(micros)));
        let StepTime { alpha, beta, delta, gamma, experts } = self.engine.step;
        let experts = (experts != WokenExperts::NONE).then(|| Written::<ExpertKeys> {
            tokens: Some(experts.tokens),
            per_token: Some(micros(experts.per_token)),
        });
        self.tuning.written(Written::<EngineKeys> {
            alpha: Some(micros(alpha)),
            beta: Some(micros(beta)),
            delta: Some(micros(delta)),
            gamma: Some(micros(gamma)),
            experts,
            kv_tokens: Some(self.engine.kv_blocks * self.engine.block_size),
            seats: Some(self.engine.max_num_seqs),
            batch_tokens: Some(self.engine.max_num_batched_tokens),
            prefix_hits: (hits > 0.0).then_some(hits),
            ..Default::default()
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of iterations are positive and short"
)]
fn nanos(micros: f64) -> u64 {
    (micros * 1e3).round() as u64
}
