//! The capacity of one replica from its engine's coefficients, for peers that know them beforehand.
//!
//! # Model
//!
//! On average, a request has `I` computed prompt tokens and `O` answer tokens. It decodes in
//! `D = O / s` steps, each of which gives it `s` tokens on average: 1, or more with speculation.
//! With `L` such requests per second and `k` pipeline stages, a step takes
//! `T = alpha / (1 - L w / k)`, where `w = beta I + delta D + gamma D C`, and `n = L D T` requests
//! decode.
//!
//! `C` is the mean of the tokens that a decoding request has in the cache: its prompt tokens,
//! including cached ones, and half of its answer. A long answer decodes for longer, so it counts
//! for more: with `P` prompt tokens, `C` is the mean of `O (P + O / 2)` divided by the mean of `O`.
//!
//! The largest `L` keeps `T / s` within the objective, `n` within the seats, and their tokens
//! within the cache. It also keeps the tokens that a step computes within its budget, drafts
//! included. All experts of a mixture work in each step.
//!
//! The batches of a pipeline end in turn, and a request joins the batch that is built when it
//! arrives. As soon as `L w` exceeds 1, that favors the largest batch. Its step lasts longer, so
//! more requests arrive during it, and the other batches wait for it. So `L w` stays below
//! [`BALANCED`] with more than one stage.

use crate::simulate::replica::settings::{Options, Settings};
use crate::simulate::scenario::{Prefix, Variant};
use crate::simulate::workload::load::Size;

/// Bisections of the rate's search interval: down to a millionth of it.
const HALVINGS: u32 = 40;

/// The work per second up to which the batches of a pipeline stay about equal in size.
const BALANCED: f64 = 0.8;

/// The mean size of requests, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MeanSize {
    pub(crate) prompt: f64,
    pub(crate) output: f64,
    /// The mean over the requests that decode at one time, with half of their answers.
    pub(crate) context: f64,
}

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SizeSums {
    pub(crate) count: f64,
    prompt: f64,
    output: f64,
    /// The tokens that their steps read.
    read: f64,
}

/// The tokens in the cache that the steps of a request read, with one step for each answer token.
pub(crate) fn tokens_read(size: Size) -> f64 {
    let output = f64::from(size.output);
    output * (f64::from(size.prompt) + output / 2.0)
}

/// The requests/s of this size that one replica of a variant sustains, with `itl` seconds between
/// tokens.
pub(crate) fn sustained(variant: &Variant, itl: f64, size: MeanSize) -> f64 {
    let hits = match variant.prefix {
        Prefix::Share(share) => share.fraction(),
        // Cache hits depend on which requests each replica gets.
        Prefix::Blocks => 0.0,
    };
    sustained_by(&variant.engine, &variant.options, hits, itl, size)
}

/// As [`sustained`], for an engine whose prefix cache has this share of each prompt.
pub(crate) fn sustained_by(
    engine: &Settings,
    options: &Options,
    hits: f64,
    itl: f64,
    size: MeanSize,
) -> f64 {
    let Settings { step, max_num_seqs, max_num_batched_tokens, block_size, kv_blocks, .. } =
        *engine;
    let MeanSize { prompt, output, context } = size;
    let stages = f64::from(options.stages);
    let (per_step, verified) = match options.speculation {
        Some(speculation) => (speculation.mean(), f64::from(speculation.most())),
        None => (1.0, 1.0),
    };
    let computed = prompt * (1.0 - hits);
    let steps = output / per_step;
    let micros = step.beta * computed + step.delta * steps + step.gamma * steps * context;
    let work = micros * 1e-6 / stages;
    let alpha = step.fixed() * 1e-6;
    let kv = f64::from(kv_blocks) * f64::from(block_size);

    let mut low = 0.0;
    let mut high = 1.0 / work.max(1e-9);
    for _ in 0..HALVINGS {
        let rate = f64::midpoint(low, high);
        let left = 1.0 - rate * work;
        let is_balanced = options.stages <= 1 || rate * work * stages <= BALANCED;
        let time = alpha / left;
        let decoding = rate * steps * time;
        let fits = left > 0.0
            && is_balanced
            && time / per_step <= itl
            && decoding <= f64::from(max_num_seqs)
            && decoding * context <= kv
            && rate * (computed + steps * verified) * time / stages
                <= f64::from(max_num_batched_tokens);

        if fits { low = rate } else { high = rate }
    }

    low
}

// === impl SizeSums ===

impl SizeSums {
    pub(crate) fn add(&mut self, size: Size) {
        self.count += 1.0;
        self.prompt += f64::from(size.prompt);
        self.output += f64::from(size.output);
        self.read += tokens_read(size);
    }

    /// The mean size; zero without requests.
    pub(crate) fn mean(&self) -> MeanSize {
        let count = self.count.max(1.0);
        MeanSize {
            prompt: self.prompt / count,
            output: self.output / count,
            context: self.read / self.output.max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_as_long_as_it_decodes() {
        let mut sums = SizeSums::default();
        assert_eq!(sums.mean(), MeanSize::default());
        sums.add(Size { prompt: 300, output: 100 });
        assert_eq!(sums.mean(), MeanSize { prompt: 300.0, output: 100.0, context: 350.0 });

        // It decodes for three times as long as the first.
        sums.add(Size { prompt: 100, output: 300 });
        assert_eq!(sums.mean(), MeanSize { prompt: 200.0, output: 200.0, context: 275.0 });
    }
}
