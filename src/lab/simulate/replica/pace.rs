//! Steps of an engine, and their duration, precomputed for steps that depend on few numbers.

use crate::simulate::Micros;
use crate::simulate::replica::settings::StepTime;

/// The largest batch whose steps are precomputed: more than the seats of real servers.
const KNOWN_MAX: u32 = 1_024;

/// A step of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineStep {
    pub(super) start: Micros,
    pub(super) end: Micros,
    pub(super) prefill_tokens: u32,
    pub(super) decodes: u32,
    /// Tokens that it gives each decoding request.
    pub(super) tokens: u32,
    /// Its share of the blocks in `Replica::promised`.
    pub(super) promised: u32,
}

/// The step durations of an engine.
#[derive(Clone, Debug)]
pub(super) struct StepDurations {
    step: StepTime,
    /// Step durations by the number of decoding requests, for steps without prefill. Empty for
    /// engines whose steps also depend on the tokens that are read.
    decoding: Vec<Micros>,
}

// === impl StepDurations ===

impl StepDurations {
    /// The step durations of an engine with this many seats.
    pub(super) fn new(step: StepTime, seats: u32) -> Self {
        let known = if step.gamma > 0.0 { 0 } else { seats.min(KNOWN_MAX) + 1 };
        Self { step, decoding: (0..known).map(|decodes| step.of(0, decodes, 0)).collect() }
    }

    /// As [`StepTime::of`], but faster for most steps.
    pub(super) fn of(&self, prefill_tokens: u32, decodes: u32, kv_tokens: u64) -> Micros {
        match self.decoding.get(decodes as usize) {
            Some(&known) if prefill_tokens == 0 => known,
            Some(_) | None => self.step.of(prefill_tokens, decodes, kv_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_beforehand_is_what_would_be_computed() {
        let dense = StepTime::dense(7_050.3, 19.5, 25.4, 0.0);
        for step in [dense, StepTime { gamma: 0.042, ..dense }] {
            let pace = StepDurations::new(step, 64);
            for (prefill_tokens, decodes, kv_tokens) in
                [(0, 0, 0), (0, 1, 1_000), (0, 64, 90_000), (0, 65, 90_000), (300, 12, 5_000)]
            {
                let computed = step.of(prefill_tokens, decodes, kv_tokens);
                assert_eq!(pace.of(prefill_tokens, decodes, kv_tokens), computed);
            }
        }
    }
}
