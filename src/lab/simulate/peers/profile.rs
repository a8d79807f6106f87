//! What one replica carries by its engine's coefficients: for peers that know them beforehand.
//!
//! # Model
//!
//! With `L` requests a second of `I` prompt tokens that are computed and `O` answer tokens, a step
//! takes `T = alpha / (1 - L w)`, `w = beta I + delta O + gamma O (P + O / 2)`, and `n = L O T`
//! requests decode. `P` counts prompt tokens that the prefix cache has as well. The largest `L` keeps
//! `T` within the objective, `n` within the seats, their tokens within the cache, and what a step
//! computes within its budget. All experts of a mixture work in each step.

use crate::simulate::replica::settings::Settings;
use crate::simulate::scenario::{Prefix, Variant};

/// Halvings of the interval in which the rate is looked for: to a millionth of it.
const HALVINGS: u32 = 40;

/// Requests of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Size {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
}

/// Requests a second of this size that one replica of a variant sustains, with this time between
/// tokens in seconds.
pub(crate) fn sustained(variant: &Variant, itl: f64, size: Size) -> f64 {
    let hits = match variant.prefix {
        Prefix::Share(share) => share.fraction(),
        // What caches will have depends on who comes where.
        Prefix::Blocks => 0.0,
    };
    sustained_by(&variant.engine, hits, itl, size)
}

/// The same of an engine whose prefix cache has this share of each prompt.
pub(crate) fn sustained_by(engine: &Settings, hits: f64, itl: f64, size: Size) -> f64 {
    let Settings { step, max_num_seqs, max_num_batched_tokens, block_size, kv_blocks, .. } =
        *engine;
    let Size { prompt, output } = size;
    let computed = prompt * (1.0 - hits);
    let context = prompt + output / 2.0;
    let micros = step.beta * computed + step.delta * output + step.gamma * output * context;
    let (work, alpha) = (micros * 1e-6, step.fixed() * 1e-6);
    let kv = f64::from(kv_blocks) * f64::from(block_size);
    let fits = |rate: f64| {
        let left = 1.0 - rate * work;
        if left <= 0.0 {
            return false;
        }
        let time = alpha / left;
        let decoding = rate * output * time;
        time <= itl
            && decoding <= f64::from(max_num_seqs)
            && decoding * context <= kv
            && rate * (computed + output) * time <= f64::from(max_num_batched_tokens)
    };
    let (mut low, mut high) = (0.0, 1.0 / work.max(1e-9));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}
