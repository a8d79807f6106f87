//! Initial coefficients from one observation.
//!
//! # Model
//!
//! [`guess`] takes the number `n` of requests in the batch from Little's law, and `gamma` as its
//! usual share of `beta`. TTFT then has one unknown, the work `w = (beta + gamma) * I` of a prompt.
//! TTFT grows with `w` by the formulas of the queueing model, so bisection finds it. ITL is
//! `alpha + n * delta` plus the request's own work, which gives `alpha`.

use crate::analyze::queueing::{Coefficients, SharedCoefficients};
use crate::analyze::tuner::point::OperatingPoint;
use crate::units::{Seconds, TimePerToken};

/// `gamma` as a share of `beta`, before there is data. Reading a token of the KV cache takes its
/// bytes over the memory bandwidth; computing a token takes two operations per parameter. On one
/// H100 (2.7 TB/s and 400 TFLOP/s in use), a dense model of 70 billion parameters with grouped
/// queries takes 0.35 per mille. A model of 8 billion takes 1.2, and a model of 7 billion without
/// grouping takes 5.6. This value is the geometric middle.
const GAMMA_SHARE: f64 = 1.4e-3;

/// The minimum share of `alpha` in ITL. An iteration without a fixed cost would serve any rate at
/// the same latency.
const ALPHA_SHARE_MIN: f64 = 0.05;

/// The minimum cost per computed token, as a share of ITL, so that a prompt always has a cost.
const BETA_SHARE_MIN: f64 = 1e-5;

/// The largest share of time that prompts can take, so that their work has a stationary length.
const LOAD_MAX: f64 = 0.95;

/// Halvings of the interval that contains the work of a prompt: to a millionth of TTFT.
const HALVINGS: u32 = 20;

/// Coefficients that explain one observation; always positive.
#[must_use]
pub fn guess(point: &OperatingPoint) -> Coefficients {
    let ttft = point.latencies.ttft.seconds();
    let itl = point.latencies.itl.seconds();
    let input = point.shape.input().tokens();
    let output = point.shape.output().tokens();
    let present = point.present().requests().min(f64::from(point.batch.get()));

    let arrivals = point.arrival.requests_per_second();
    let variation = point.shape.input_variation().fraction();
    let busy = 1.0 - (-present).exp();

    let mut low = 0.0;
    let mut high = ttft;
    for _ in 0..HALVINGS {
        let work = f64::midpoint(low, high);
        // An iteration takes ITL; without its prompts it takes `1 - load` of that.
        let load = (arrivals * work).min(LOAD_MAX);
        let spread = load * work * (1.0 + variation * variation) / (1.0 - load * load);
        let first = busy * (0.5 + load) * (itl + spread) + itl * (1.0 - load) + work;
        if first > ttft {
            high = work;
        } else {
            low = work;
        }
    }

    let by_ttft = if input > 0.0 { low / (input * (1.0 + GAMMA_SHARE)) } else { 0.0 };
    let wanted = by_ttft.max(BETA_SHARE_MIN * itl);

    let reads = input + f64::midpoint(output, 1.0);
    let work = (input + output) / (output + 1.0) + GAMMA_SHARE * (input + output / 2.0);
    let own = 1.0 + GAMMA_SHARE * reads;

    // If the cost of prompts exceeds the room in ITL, `beta` is limited to that room.
    let room = (1.0 - ALPHA_SHARE_MIN) * itl;
    let beta = wanted.min(room / (own + present * work));
    let alpha = itl - beta * (own + present * work);

    SharedCoefficients {
        alpha: Seconds::new(alpha).unwrap_or_default(),
        beta: TimePerToken::new(beta).unwrap_or_default(),
        gamma: TimePerToken::new(GAMMA_SHARE * beta).unwrap_or_default(),
    }
    .into()
}
