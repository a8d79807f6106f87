//! Engines of a world: pairs of a model and accelerators, and the configuration of vLLM.

use std::time::Duration;

use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

use crate::simulate::replica::settings::{Admission, BLOCK_SIZE, Experts, Settings, StepTime};
use crate::study::file::{EngineKeys, ExpertKeys};
use crate::study::worlds::engines::{ExpertMixture, PAIRS, Pair};
use crate::study::worlds::lot::{Lot, happens};
use crate::study::worlds::numbers::{count, digits};
use crate::study::worlds::priors::{
    Aspect, BUDGET, BUDGET_OTHERS, COEFFICIENT, MEMORY, MIXTURES, SEATS, SEATS_OTHERS, SPOT_PRICE,
};
use crate::study::worlds::tuning::EngineSetup;
use plimsoll_core::settings::Written;
use plimsoll_core::settings::written::WrittenDuration;

/// The payment model of nodes.
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

/// Draws `count` engines of one model.
pub(crate) fn draw(lot: Lot, count: usize) -> Vec<Machine> {
    let mut random = lot.of(Aspect::Engine);
    let mixture = happens(MIXTURES, &mut random);
    let pairs: Vec<&Pair> = PAIRS.iter().filter(|it| it.is_mixture() == mixture).collect();
    let first = pairs[random.random_range(0..pairs.len())];
    let mut others: Vec<&Pair> = PAIRS
        .iter()
        .filter(|it| it.model == first.model && it.accelerator != first.accelerator)
        .collect();
    others.shuffle(&mut random);

    let seats = seats(lot);
    let tuning = EngineSetup::draw(lot);
    let budget = budget(lot).max(seats * tuning.tokens_per_request());
    let stages = f64::from(tuning.stages.value);
    let mut machines = Vec::new();
    for pair in std::iter::once(first).chain(others).take(count) {
        let engine = Settings {
            step: step(pair, &mut random),
            max_num_seqs: seats,
            max_num_batched_tokens: budget,
            block_size: BLOCK_SIZE,
            kv_blocks: blocks(pair.kv_tokens * stages * MEMORY.draw(&mut random)),
            admission: Admission::WholePrompt,
        };
        machines.push(Machine { pair, tenure: Tenure::OnDemand, engine, tuning });
    }

    // One spot copy of the first engine at most, because further copies would be identical.
    if machines.len() < count {
        machines.push(Machine { tenure: Tenure::Spot, ..machines[0] });
    }

    machines
}

fn step(pair: &Pair, random: &mut Pcg64) -> StepTime {
    StepTime {
        alpha: about(pair.alpha * 1e3, random),
        beta: about(pair.beta, random),
        delta: about(pair.delta, random),
        gamma: about(pair.gamma, random).round() / 1e3,
        experts: match pair.experts {
            ExpertMixture::Dense | ExpertMixture::Linear => Experts::NONE,
            ExpertMixture::Waking(tokens, micros) => {
                Experts { tokens, per_token: about(micros, random) }
            }
        },
    }
}

/// A coefficient close to this value.
fn about(value: f64, random: &mut Pcg64) -> f64 {
    digits(value * COEFFICIENT.draw(random), 3)
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

/// Blocks of a cache with about `tokens` tokens.
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

    /// Dollars per hour; each stage of a pipeline has its own accelerators.
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

    /// The same machine, with iterations `factor` times as long.
    pub(crate) fn slowed(&self, factor: f64) -> Self {
        let engine = Settings { step: self.engine.step.slowed(factor), ..self.engine };
        Self { engine, ..*self }
    }

    /// Seconds until the first token of a prompt with `tokens` computed tokens, if nothing else
    /// runs.
    pub(crate) fn prefill(&self, tokens: f64) -> f64 {
        let steps = (tokens / f64::from(self.engine.max_num_batched_tokens)).ceil().max(1.0);
        (steps * self.engine.step.fixed() + tokens * self.engine.step.beta) / 1e6
    }

    /// Seconds per token of a request that runs alone with `context` tokens.
    pub(crate) fn decode(&self, context: f64) -> f64 {
        let StepTime { delta, gamma, .. } = self.engine.step;
        (self.engine.step.fixed() + delta + gamma * context) / 1e6
    }

    /// The engine in the form of a scenario.
    pub(crate) fn written(&self, hits: f64) -> Written<EngineKeys> {
        let StepTime { alpha, beta, delta, gamma, experts: woken } = self.engine.step;
        let experts = (woken != Experts::NONE).then(|| Written::<ExpertKeys> {
            tokens: Some(woken.tokens),
            per_token: Some(micros(woken.per_token)),
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

fn micros(count: f64) -> WrittenDuration {
    WrittenDuration(Duration::from_nanos(nanos(count)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of iterations are positive and short"
)]
fn nanos(micros: f64) -> u64 {
    (micros * 1e3).round() as u64
}
