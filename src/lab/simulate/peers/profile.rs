//! What one replica carries by its engine's coefficients: for peers that know them beforehand.
//!
//! # Model
//!
//! A request of `I` prompt tokens that are computed and `O` answer tokens decodes in `D = O / s` steps,
//! each of which gives it `s` tokens on average: 1, or more with speculation. With `L` such requests
//! per second and `k` pipeline stages, a step takes `T = alpha / (1 - L w / k)`,
//! `w = beta I + delta D + gamma D (P + O / 2)`, and `n = L D T` requests decode. `P` counts prompt
//! tokens that the prefix cache has as well. The largest `L` keeps `T / s` within the objective, `n`
//! within the seats, their tokens within the cache, and the tokens that a step computes within its
//! budget, drafts included. All experts of a mixture work in each step.
//!
//! Batches of a pipeline end in turn, and requests join the one that is built when they arrive. As soon
//! as `L w` exceeds 1, that favors the largest batch: its step lasts longer, so more requests come
//! while it is computed, and the others wait for it. So `L w` stays below [`BALANCED`] with more than
//! one stage.

use crate::simulate::replica::settings::{Options, Settings};
use crate::simulate::scenario::{Prefix, Variant};

/// Halvings of the interval in which the rate is looked for: to a millionth of it.
const HALVINGS: u32 = 40;

/// The work per second up to which the batches of a pipeline stay about equal.
const BALANCED: f64 = 0.8;

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
    sustained_by(&variant.engine, &variant.options, hits, itl, size)
}

/// The same of an engine whose prefix cache has this share of each prompt.
pub(crate) fn sustained_by(
    engine: &Settings,
    options: &Options,
    hits: f64,
    itl: f64,
    size: Size,
) -> f64 {
    let Settings { step, max_num_seqs, max_num_batched_tokens, block_size, kv_blocks, .. } =
        *engine;
    let Size { prompt, output } = size;
    let stages = f64::from(options.stages);
    let (per_step, verified) = match options.speculation {
        Some(speculation) => (speculation.mean(), f64::from(speculation.most())),
        None => (1.0, 1.0),
    };
    let computed = prompt * (1.0 - hits);
    let context = prompt + output / 2.0;
    let steps = output / per_step;
    let micros = step.beta * computed + step.delta * steps + step.gamma * steps * context;
    let (work, alpha) = (micros * 1e-6 / stages, step.fixed() * 1e-6);
    let kv = f64::from(kv_blocks) * f64::from(block_size);
    let fits = |rate: f64| {
        let left = 1.0 - rate * work;
        if left <= 0.0 || options.stages > 1 && rate * work * stages > BALANCED {
            return false;
        }
        let time = alpha / left;
        let decoding = rate * steps * time;
        time / per_step <= itl
            && decoding <= f64::from(max_num_seqs)
            && decoding * context <= kv
            && rate * (computed + steps * verified) * time / stages
                <= f64::from(max_num_batched_tokens)
    };
    let (mut low, mut high) = (0.0, 1.0 / work.max(1e-9));
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}
