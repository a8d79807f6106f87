//! The planner by load: it adds an engine if all are too slow, and removes one if the others are
//! enough.
//!
//! # Model
//!
//! Every 5 s, unless replicas are starting or leaving, for each engine with `q` queued prompt
//! tokens and `k` tokens in its cache:
//!
//! ```text
//! TTFT = iterations for q + usual prompt, in chunks of the budget, with k
//! ITL  = iteration of the usual prefill with k + usual context
//! ```
//!
//! If TTFT or ITL is above its objective on every engine, add one. Remove one if every engine could
//! take `N / (N - 1)` of its load within three limits. The queueing part of TTFT stays within 80%
//! of the budget that the objective leaves. ITL stays within 80% of its objective. The cache is not
//! full.
//!
//! The `docs` of the original call this `optimization_target: sla`.

use crate::simulate::Micros;
use crate::simulate::peers::dynamo::Iteration;
use crate::simulate::peers::sight::{ReplicaSight, Sight, Terms};
use crate::simulate::replica::settings::Settings;
use plimsoll_core::units::Replicas;

/// `load_adjustment_interval`.
pub(crate) const INTERVAL: Micros = Micros::from_secs(5);
/// `load_scaling_down_sensitivity`, as a share.
const SENSITIVITY: f64 = 0.8;

/// The planner with its estimate of the traffic.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlanner {
    engine: Settings,
    ttft: f64,
    itl: f64,
    /// Steps and prompt tokens of all engines at the last decision.
    before: (u64, u64),
    /// Prompt tokens per iteration.
    prefill: f64,
}

/// The typical request.
#[derive(Clone, Copy, Debug)]
struct TypicalRequest {
    /// Prompt tokens per request.
    prompt: f64,
    /// Tokens that a decoding request has in the cache.
    context: f64,
    /// Prompt tokens per iteration.
    prefill: f64,
}

impl LoadPlanner {
    pub(crate) fn new(terms: &Terms) -> Self {
        Self {
            engine: terms.engine,
            ttft: terms.slo.ttft.seconds(),
            itl: terms.slo.itl.seconds(),
            before: (0, 0),
            prefill: 0.0,
        }
    }

    pub(crate) fn decide(&mut self, sight: &Sight<'_>) -> Option<Replicas> {
        let usual = self.learn(sight)?;
        let workers = sight.replicas.len();
        let expected = sight.scale.spec.count() as usize;
        if workers == 0 || workers != expected || sight.scale.status != sight.scale.spec {
            return None;
        }

        let change = self.change(&usual, sight.replicas);
        let wanted = i64::from(sight.scale.spec.count()) + change;
        Some(Replicas::capped(wanted.max(1)))
    }

    /// The typical request so far; `None` before a request has finished.
    fn learn(&mut self, sight: &Sight<'_>) -> Option<TypicalRequest> {
        let steps = sight.replicas.iter().map(|it| it.steps).sum::<u64>();
        let tokens = sight.replicas.iter().map(|it| it.prefill_tokens).sum::<u64>();
        let (steps_before, tokens_before) = self.before;
        if steps > steps_before && tokens >= tokens_before {
            self.prefill = (tokens - tokens_before) as f64 / (steps - steps_before) as f64;
        }

        self.before = (steps, tokens);
        if sight.service.finished == 0 {
            return None;
        }

        let finished = sight.service.finished as f64;
        let prompt = sight.service.prompt_tokens as f64 / finished;
        let context = prompt + sight.service.output_tokens as f64 / finished / 2.0;
        Some(TypicalRequest { prompt, context, prefill: self.prefill })
    }

    fn change(&self, usual: &TypicalRequest, replicas: &[ReplicaSight]) -> i64 {
        let mut ttfts =
            replicas.iter().map(|it| self.ttft_of(usual, it.queued_tokens, it.kv_tokens));
        let mut itls = replicas.iter().map(|it| self.itl_of(usual, it.kv_tokens));
        if ttfts.all(|ttft| ttft > self.ttft) || itls.all(|itl| itl > self.itl) {
            return 1;
        }

        let workers = replicas.len() as f64;
        let more = workers / f64::max(workers - 1.0, 1.0);
        let fewer = replicas.len() > 1
            && replicas
                .iter()
                .all(|it| self.keeps_ttft(usual, it, more) && self.keeps_itl(usual, it, more));
        if fewer { -1 } else { 0 }
    }

    /// TTFT on an engine with so many queued prompt tokens, and tokens in its cache.
    fn ttft_of(&self, usual: &TypicalRequest, queued: f64, kv: f64) -> f64 {
        let chunk = f64::from(self.engine.max_num_batched_tokens);
        Iteration::of(&self.engine, usual.context).ttft(queued, usual.prompt, chunk, kv)
    }

    fn itl_of(&self, usual: &TypicalRequest, kv: f64) -> f64 {
        Iteration::of(&self.engine, usual.context).time(usual.prefill, kv + usual.context)
    }

    /// Returns true if an engine with so many times its load has the budget for its queue.
    fn keeps_ttft(&self, usual: &TypicalRequest, it: &ReplicaSight, more: f64) -> bool {
        let kv = it.kv_tokens * more;
        let own = self.ttft_of(usual, 0.0, kv);
        let budget = (self.ttft - own) * SENSITIVITY;
        budget > 0.0 && self.ttft_of(usual, it.queued_tokens * more, kv) - own < budget
    }

    /// Returns true if an engine with so many times its load has room in its cache, and meets ITL.
    fn keeps_itl(&self, usual: &TypicalRequest, it: &ReplicaSight, more: f64) -> bool {
        let most = f64::from(self.engine.kv_blocks) * f64::from(self.engine.block_size);
        let kv = (it.kv_tokens + it.queued_tokens) * more;
        kv < most && self.itl_of(usual, kv) < self.itl * SENSITIVITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::peers::dynamo::tests::engine;
    use crate::simulate::scenario::Slo;
    use plimsoll_core::fleet::Bounds;

    fn planner() -> LoadPlanner {
        let slo = Slo::new(Micros::from_secs(2), Micros::new(60_000));
        let bounds = Bounds::new(Replicas::ONE, Some(Replicas::saturating(9))).unwrap();
        LoadPlanner::new(&Terms { bounds, slo, engine: engine() })
    }

    fn change(loads: &[(f64, f64)]) -> i64 {
        let usual = TypicalRequest { prompt: 1000.0, context: 1000.0, prefill: 200.0 };
        let replicas: Vec<ReplicaSight> = loads
            .iter()
            .map(|&(kv_tokens, queued_tokens)| ReplicaSight {
                kv_tokens,
                queued_tokens,
                ..ReplicaSight::default()
            })
            .collect();

        planner().change(&usual, &replicas)
    }

    #[test]
    fn it_moves_by_one_as_the_objectives_say() {
        // Iterations take 10 ms + 20 us per prompt token + 0.08 us per KV token; the cache has
        // 320,000 tokens. Each row: tokens in the cache and queued at each engine, and the change.
        for (loads, wanted) in [
            // ITL of 14 ms and of 30 ms: the second would be 46 ms on one engine, and the limit is
            // 48 ms.
            (vec![(0.0, 0.0), (0.0, 0.0)], -1),
            (vec![(100_000.0, 0.0), (100_000.0, 0.0)], -1),
            // The cache of the remaining engine would be full.
            (vec![(160_000.0, 0.0), (160_000.0, 0.0)], 0),
            // The only engine stays.
            (vec![(0.0, 0.0)], 0),
            // 80,000 queued tokens take 2 s at 25 us per token.
            (vec![(0.0, 100_000.0)], 1),
            (vec![(0.0, 100_000.0), (0.0, 0.0)], 0),
            // An ITL of 34 ms meets the objective, and 64 ms is too slow.
            (vec![(300_000.0, 0.0)], 0),
            (vec![(630_000.0, 0.0)], 1),
        ] {
            assert_eq!(change(&loads), wanted, "{loads:?}");
        }
    }
}
