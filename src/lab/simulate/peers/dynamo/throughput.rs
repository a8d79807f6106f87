//! The planner by traffic: the replicas for the next interval's requests.
//!
//! # Model
//!
//! Every 180 s, the requests of the last interval and their lengths are the prediction for the next
//! (`load_predictor: constant`; the default is ARIMA). With `I` and `O` tokens per request, an
//! engine serves the largest batch `b` whose iteration meets both objectives:
//!
//! ```text
//! T(b) = time(b I / O, b (I + O / 2))        ITL = T(b),  TTFT = iterations of b I / O + I
//! b <= KV tokens / (I + O / 2), seats, O * budget / (I + O)
//! rate = b / (O T(b)),  N = ceil(requests / interval / rate)
//! ```

use crate::simulate::Micros;
use crate::simulate::peers::dynamo::Iteration;
use crate::simulate::peers::sight::{Sight, Terms, whole};
use crate::simulate::replica::settings::Settings;
use plimsoll_core::units::Replicas;

/// `throughput_adjustment_interval`.
pub(crate) const INTERVAL: Micros = Micros::from_secs(180);

/// The planner with its last observation.
#[derive(Clone, Debug)]
pub(crate) struct ThroughputPlanner {
    engine: Settings,
    ttft: f64,
    itl: f64,
    /// The counters at the last decision: requests sent and finished, and tokens of the finished
    /// ones.
    before: TrafficCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct TrafficCounters {
    at: Micros,
    sent: u64,
    finished: u64,
    prompt: u64,
    output: u64,
}

impl ThroughputPlanner {
    pub(crate) fn new(terms: &Terms) -> Self {
        Self {
            engine: terms.engine,
            ttft: terms.slo.ttft.seconds(),
            itl: terms.slo.itl.seconds(),
            before: TrafficCounters::default(),
        }
    }

    pub(crate) fn decide(&mut self, sight: &Sight<'_>) -> Option<Replicas> {
        let service = sight.service;
        let seen = TrafficCounters {
            at: sight.now,
            sent: sight.sent,
            finished: service.finished,
            prompt: service.prompt_tokens,
            output: service.output_tokens,
        };

        let before = std::mem::replace(&mut self.before, seen);
        let finished = (seen.finished - before.finished) as f64;
        let elapsed = seen.at.since(before.at).seconds();
        if finished <= 0.0 || elapsed <= 0.0 {
            return None;
        }

        let prompt = (seen.prompt - before.prompt) as f64 / finished;
        let output = (seen.output - before.output) as f64 / finished;
        let rate = self.rate(prompt, output)?;
        let demand = (seen.sent - before.sent) as f64 / elapsed;
        Some(whole(demand / rate).max(Replicas::ONE))
    }

    /// The requests/s of one engine (`find_best_engine_agg_rps`).
    fn rate(&self, prompt: f64, output: f64) -> Option<f64> {
        if prompt <= 0.0 || output <= 0.0 {
            return None;
        }

        let context = prompt + output / 2.0;
        let iteration = Iteration::of(&self.engine, context);
        let budget = f64::from(self.engine.max_num_batched_tokens);
        let kv = f64::from(self.engine.kv_blocks) * f64::from(self.engine.block_size);
        let most = (kv / context)
            .min(f64::from(self.engine.max_num_seqs))
            .min(output * budget / (prompt + output))
            .floor()
            .max(1.0);
        let mut best = None;
        let mut batch = 1.0;
        while batch <= most {
            let prefill = (batch * prompt / output).min(budget);
            let time = iteration.time(prefill, batch * context);
            let ttft = iteration.ttft(prefill.floor(), prompt, budget, batch * context);
            if best.is_some() && (time > self.itl || ttft > self.ttft) {
                break;
            }

            best = Some(batch / (output * time));
            if time > self.itl || ttft > self.ttft {
                break;
            }

            batch += 1.0;
        }

        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::peers::dynamo::tests::engine;
    use crate::simulate::scenario::Slo;
    use plimsoll_core::fleet::Bounds;

    fn rate(prompt: f64, output: f64, itl: u64) -> f64 {
        let slo = Slo::new(Micros::from_secs(2), Micros::new(itl));
        let bounds = Bounds::new(Replicas::ONE, None).unwrap();
        ThroughputPlanner::new(&Terms { bounds, slo, engine: engine() })
            .rate(prompt, output)
            .unwrap()
    }

    #[test]
    fn an_engine_serves_the_largest_batch_that_keeps_the_objectives() {
        // Iteration times are 10 + b (2 x 0.02 + 0.04 + 1.25 x 0.04) = 10 + 0.13 b ms, with prompts
        // of 1000 and answers of 500 tokens.
        //
        // Limited by the cache: 320,000 / 1250 = 256 requests, the same as the seats; 43.28 ms.
        assert!((rate(1000.0, 500.0, 60_000) - 256.0 / (500.0 * 0.043_28)).abs() < 1e-6);

        // Limited by the objective: 76 requests in 19.88 ms.
        assert!((rate(1000.0, 500.0, 20_000) - 76.0 / (500.0 * 0.019_88)).abs() < 1e-6);

        // Limited by the budget: 100 x 2048 / 2100 = 97 requests.
        let time = 0.010 + 97.0 * (20.0 * 0.02e-3 + 0.04e-3 + 2.05 * 0.04e-3);
        assert!((rate(2000.0, 100.0, 90_000) - 97.0 / (100.0 * time)).abs() < 1e-6);
        // An unreachable objective: one request at a time.
        assert!((rate(1000.0, 500.0, 1_000) - 1.0 / (500.0 * 0.010_13)).abs() < 1e-6);
    }
}
