//! The planner by load: one engine more when all are too slow, one fewer when the rest could do.
//!
//! # Model
//!
//! Every 5 s, unless replicas are still starting or leaving, for each engine with `q` queued prompt
//! tokens and `k` tokens in its cache:
//!
//! ```text
//! TTFT = iterations for q + usual prompt, in chunks of the budget, beside k
//! ITL  = iteration of the usual prefill beside k + usual context
//! ```
//!
//! All TTFT or all ITL above their objectives: one more. One fewer when both agree that the others,
//! with `N / (N - 1)` of the load, keep what queueing adds to TTFT within 80 % of what the objective
//! leaves, ITL within 80 % of its own, and the cache not full.
//!
//! `docs` of the original call this `optimization_target: sla`.

use crate::simulate::Micros;
use crate::simulate::peers::dynamo::Iteration;
use crate::simulate::peers::law::{ReplicaSight, Sight, Terms};
use crate::simulate::replica::settings::Settings;
use plimsoll_core::units::Replicas;

/// `load_adjustment_interval`.
pub(crate) const INTERVAL: Micros = Micros::from_secs(5);
/// `load_scaling_down_sensitivity`, as a share.
const SENSITIVITY: f64 = 0.8;

/// The planner with what it knows of the traffic.
#[derive(Clone, Debug)]
pub(crate) struct Planner {
    engine: Settings,
    ttft: f64,
    itl: f64,
    /// Steps and prompt tokens of all engines at the last look.
    before: (u64, u64),
    /// Prompt tokens of an iteration.
    prefill: f64,
}

/// What the requests look like.
#[derive(Clone, Copy, Debug)]
struct Usual {
    /// Tokens of a prompt.
    prompt: f64,
    /// Tokens in the cache of a request that decodes.
    context: f64,
    /// Prompt tokens of an iteration.
    prefill: f64,
}

impl Planner {
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
        Some(Replicas::saturating(u32::try_from(wanted.max(1)).unwrap_or(u32::MAX)))
    }

    /// What requests have looked like; `None` before one has finished.
    fn learn(&mut self, sight: &Sight<'_>) -> Option<Usual> {
        let sum = |of: fn(&ReplicaSight) -> u64| sight.replicas.iter().map(of).sum::<u64>();
        let seen = (sum(|it| it.steps), sum(|it| it.prefill_tokens));
        if seen.0 > self.before.0 && seen.1 >= self.before.1 {
            let (steps, tokens) = (seen.0 - self.before.0, seen.1 - self.before.1);
            self.prefill = tokens as f64 / steps as f64;
        }
        self.before = seen;
        let finished = sight.service.finished;
        let mean = |tokens: u64| tokens as f64 / finished as f64;
        let prompt = (finished > 0).then(|| mean(sight.service.prompt_tokens))?;
        let context = prompt + mean(sight.service.output_tokens) / 2.0;
        Some(Usual { prompt, context, prefill: self.prefill })
    }

    fn change(&self, usual: &Usual, replicas: &[ReplicaSight]) -> i64 {
        let iteration = Iteration::of(&self.engine, usual.context);
        let chunk = f64::from(self.engine.max_num_batched_tokens);
        let most = f64::from(self.engine.kv_blocks) * f64::from(self.engine.block_size);
        let workers = replicas.len() as f64;
        let more = workers / f64::max(workers - 1.0, 1.0);
        let ttft = |queued, kv| iteration.ttft(queued, usual.prompt, chunk, kv);
        let itl = |kv| iteration.time(usual.prefill, kv + usual.context);
        let slow = |it: &ReplicaSight| ttft(it.queued_tokens, it.kv_tokens) > self.ttft;
        let choppy = |it: &ReplicaSight| itl(it.kv_tokens) > self.itl;
        if replicas.iter().all(slow) || replicas.iter().all(choppy) {
            return 1;
        }
        let keeps_ttft = |it: &ReplicaSight| {
            let own = ttft(0.0, it.kv_tokens * more);
            let budget = (self.ttft - own) * SENSITIVITY;
            budget > 0.0 && ttft(it.queued_tokens * more, it.kv_tokens * more) - own < budget
        };
        let keeps_itl = |it: &ReplicaSight| {
            let kv = (it.kv_tokens + it.queued_tokens) * more;
            kv < most && itl(kv) < self.itl * SENSITIVITY
        };
        let fewer = replicas.len() > 1 && replicas.iter().all(|it| keeps_ttft(it) && keeps_itl(it));
        if fewer { -1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::peers::dynamo::tests::engine;
    use crate::simulate::scenario::Slo;
    use plimsoll_core::fleet::Bounds;

    fn planner() -> Planner {
        let slo = Slo::new(Micros::from_secs(2), Micros::new(60_000));
        let bounds = Bounds::new(Replicas::ONE, Some(Replicas::saturating(9))).unwrap();
        Planner::new(&Terms { bounds, slo, engine: engine() })
    }

    fn change(loads: &[(f64, f64)]) -> i64 {
        let usual = Usual { prompt: 1000.0, context: 1000.0, prefill: 200.0 };
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
        // Iterations take 10 ms + 20 us a prompt token + 0.08 us a KV token; the cache has 320,000.
        // Tokens in the cache and queued at each engine, and the change.
        for (loads, wanted) in [
            // ITL of 14 ms and of 30 ms: the second would be 46 ms alone, and 48 ms are allowed.
            (vec![(0.0, 0.0), (0.0, 0.0)], -1),
            (vec![(100_000.0, 0.0), (100_000.0, 0.0)], -1),
            // The cache of one would be full.
            (vec![(160_000.0, 0.0), (160_000.0, 0.0)], 0),
            // A single engine stays.
            (vec![(0.0, 0.0)], 0),
            // 80,000 queued tokens are 2 s at 25 us a token.
            (vec![(0.0, 100_000.0)], 1),
            (vec![(0.0, 100_000.0), (0.0, 0.0)], 0),
            // Nothing is lost by an ITL of 34 ms, and 64 ms are too slow.
            (vec![(300_000.0, 0.0)], 0),
            (vec![(630_000.0, 0.0)], 1),
        ] {
            assert_eq!(change(&loads), wanted, "{loads:?}");
        }
    }
}
