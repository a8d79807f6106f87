//! Coefficients from one observation, to start from.
//!
//! # Model
//!
//! [`guess`] takes the number `n` of requests in the batch from Little's law, and `gamma` as its
//! usual share of `beta`. TTFT then has one unknown, the work `w = (beta + gamma) * I` of a prompt:
//! it grows with `w`, by the formulas of the queueing model, and bisection finds it. ITL, which is
//! `alpha + n * delta` and its own work, gives `alpha`.

use crate::analyze::queueing::{Coefficients, SharedCoefficients};
use crate::analyze::tuner::{Latencies, OperatingPoint};
use crate::units::{Seconds, TimePerToken};

/// `gamma` as a share of `beta`, before anything tells. Reading a token of the KV cache takes its
/// bytes over the bandwidth of the memory, computing one takes two operations for each parameter.
/// On one H100 (2.7 TB/s and 400 TFLOP/s in use) that is 0.35 per mille for a dense model of 70
/// billion parameters with grouped queries, 1.2 for one of 8 billion, and 5.6 for one of 7 billion
/// without grouping; this is the geometric middle.
const GAMMA_SHARE: f64 = 1.4e-3;

/// The share of ITL that is `alpha` at least: an iteration that costs nothing but its requests
/// would serve any rate at the same latency.
const ALPHA_SHARE_MIN: f64 = 0.05;

/// The share of ITL that computing one token is at least, so that a prompt always costs something.
const BETA_SHARE_MIN: f64 = 1e-5;

/// The largest share of time that prompts can take, so that their work has a stationary length.
const LOAD_MAX: f64 = 0.95;

/// Halvings of the interval in which the work of a prompt lies: to a millionth of TTFT.
const HALVINGS: u32 = 20;

/// Coefficients that explain one observation; always positive.
#[must_use]
pub fn guess(point: &OperatingPoint) -> Coefficients {
    let Latencies { ttft, itl } = point.latencies;
    let (ttft, itl) = (ttft.seconds(), itl.seconds());
    let (input, output) = (point.shape.input().tokens(), point.shape.output().tokens());
    let present = point.present().requests().min(f64::from(point.batch.get()));

    let arrivals = point.arrival.requests_per_second();
    let variation = point.shape.input_variation().fraction();
    let busy = 1.0 - (-present).exp();
    let (mut low, mut high) = (0.0, ttft);
    for _ in 0..HALVINGS {
        let work = f64::midpoint(low, high);
        // An iteration takes ITL; what it would take without prompts is left when those are gone.
        let load = (arrivals * work).min(LOAD_MAX);
        let spread = load * work * (1.0 + variation * variation) / (1.0 - load * load);
        let first = busy * (0.5 + load) * (itl + spread) + itl * (1.0 - load) + work;
        if first > ttft {
            high = work;
        } else {
            low = work;
        }
    }
    let beta = if input > 0.0 { low / (input * (1.0 + GAMMA_SHARE)) } else { 0.0 };
    let beta = beta.max(BETA_SHARE_MIN * itl);

    let reads = input + f64::midpoint(output, 1.0);
    let work = (input + output) / (output + 1.0) + GAMMA_SHARE * (input + output / 2.0);
    let own = 1.0 + GAMMA_SHARE * reads;
    // Where prompts cost more than ITL has room for, they cannot have cost so much.
    let room = (1.0 - ALPHA_SHARE_MIN) * itl;
    let beta = beta.min(room / (own + present * work));
    let alpha = itl - beta * (own + present * work);
    SharedCoefficients {
        alpha: Seconds::new(alpha).unwrap_or_default(),
        beta: TimePerToken::new(beta).unwrap_or_default(),
        gamma: TimePerToken::new(GAMMA_SHARE * beta).unwrap_or_default(),
    }
    .into()
}
