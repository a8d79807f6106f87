//! Latencies at a rate, and the largest rate that meets targets.

use std::num::NonZeroU32;

use crate::analyze::queueing::chain::{ServiceTimes, SteadyState};
use crate::analyze::queueing::coefficients::Coefficients;
use crate::analyze::queueing::refusal::QueueingRefusal;
use crate::analyze::queueing::request::MeanRequest;
use crate::analyze::queueing::tail::{TtftComponents, TtftMoments};
use crate::analyze::queueing::target::{
    LatencyMetric, LatencyTarget, LatencyTargets, Slowdown, Statistic,
};
use crate::units::{Fraction, RequestRate, Requests, Seconds};

/// The batch size of a replica if it is unknown: vLLM's default of `--max-num-seqs` on recent
/// accelerators.
pub const BATCH_DEFAULT: NonZeroU32 = NonZeroU32::new(256).expect("256 is not zero");

/// Requests that may wait in the sizing model. A replica with a longer queue has missed any target
/// long before. So this length only affects the share of the load that is lost in the model.
pub const QUEUE_DEFAULT: u32 = 100;

/// The share of the highest service rate up to which the model accepts arrival rates. At the rate
/// itself, the queue has no stationary length that the coefficients could predict.
const RATE_MAX_SHARE: f64 = 0.999;

/// The share of the rate of a lone request that stands for an idle replica.
const RATE_MIN_SHARE: f64 = 0.001;

/// The relative distance between the target and the latency at the resulting rate. A rate is
/// published with three digits.
const TOLERANCE: f64 = 1e-6;

/// The share of the largest rate at which a search starts. Between the two rates the queue fills,
/// and the latency no longer follows a service time over `1 - rho`.
const KNEE_SHARE: f64 = 0.9;

/// The step limit of a search. No search needs more: bisection alone narrows an interval to `2^-60`
/// of its length.
const STEPS_MAX: u32 = 60;

/// The number of requests that a replica has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRoom {
    /// Requests that share an iteration.
    pub batch: NonZeroU32,
    /// Requests that may wait for a place in the batch.
    pub queue: u32,
}

/// The predicted state of a replica at an arrival rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The rate of finished requests; less than the arrival rate if some requests are lost.
    pub throughput: RequestRate,
    /// The mean time from arrival to the last token.
    pub response: Seconds,
    /// The mean wait for a place in the batch.
    pub wait: Seconds,
    /// The mean number of requests in the batch.
    pub in_service: Requests,
    /// The mean time from a place in the batch to the first token.
    pub prefill: Seconds,
    /// The mean time to first token.
    pub ttft: Seconds,
    /// The mean time between tokens.
    pub itl: Seconds,
    /// The share of batch places in use.
    pub batch_use: Fraction,
    /// The share of requests that have to wait for a place.
    pub waiting: Fraction,
    /// The share of time in which the replica has no requests.
    pub idle: Fraction,
}

/// The queueing model of one replica under one kind of request.
#[derive(Clone, Copy, Debug)]
pub struct QueueingModel {
    service: ServiceTimes,
    /// `prefill(n) = prefill + n * delta`.
    prefill: f64,
    delta: f64,
    coefficients: Coefficients,
    shape: MeanRequest,
}

/// The largest rate that meets targets, and the limit that binds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateCapacity {
    /// The rate that one replica can handle.
    pub rate: RequestRate,
    /// The limit that a higher rate would exceed.
    pub limit: RateBound,
    /// The predicted state of the replica at that rate.
    pub at: Prediction,
}

/// The limit on a replica's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateBound {
    /// A latency target.
    Target {
        /// The latency of the target.
        metric: LatencyMetric,
        /// The target.
        target: LatencyTarget,
    },
    /// The rate at which a full batch finishes.
    Throughput,
}

// === impl ReplicaRoom ===

impl Default for ReplicaRoom {
    fn default() -> Self {
        Self { batch: BATCH_DEFAULT, queue: QUEUE_DEFAULT }
    }
}

// === impl QueueingModel ===

impl QueueingModel {
    /// The model of one replica.
    #[must_use]
    pub fn new(coefficients: Coefficients, shape: MeanRequest, room: ReplicaRoom) -> Self {
        let alpha = coefficients.alpha.seconds();
        let beta_prefill = coefficients.beta_prefill.seconds_per_token();
        let beta_decode = coefficients.beta_decode.seconds_per_token();
        let gamma = coefficients.gamma.seconds_per_token();
        let input = shape.input().tokens();
        let output = shape.output().tokens();

        let delta = (beta_prefill * input + beta_decode * output) / (output + 1.0)
            + gamma * (input + output / 2.0);
        let prefill = alpha + (beta_prefill + gamma) * input;
        let decode = alpha + beta_decode + gamma * (input + f64::midpoint(output, 1.0));
        let service = ServiceTimes {
            s0: prefill + output * decode,
            s1: delta + output * delta,
            batch: room.batch.get(),
            queue: room.queue,
        };

        Self { service, prefill, delta, coefficients, shape }
    }

    /// The largest rate that the model accepts; `None` if iterations take no time, so that the rate
    /// has no limit.
    #[must_use]
    pub fn rate_max(&self) -> Option<RequestRate> {
        RequestRate::new(RATE_MAX_SHARE * self.saturated())
    }

    /// The rate that stands for an idle replica; `None` if iterations take no time.
    #[must_use]
    pub fn rate_min(&self) -> Option<RequestRate> {
        RequestRate::new(RATE_MIN_SHARE * self.service.rate(1))
    }

    /// Predicts the state of the replica at this arrival rate.
    ///
    /// # Errors
    ///
    /// Refuses a rate of zero, at which no request has a latency. Refuses a rate above
    /// [`QueueingModel::rate_max`], at which the queue grows without end.
    pub fn at(&self, arrival: RequestRate) -> Result<Prediction, QueueingRefusal> {
        let lambda = arrival.requests_per_second();
        if lambda <= 0.0 {
            return Err(QueueingRefusal::Idle);
        }

        if let Some(max) = self.rate_max()
            && arrival > max
        {
            return Err(QueueingRefusal::Overload { arrival, max });
        }

        Ok(self.predict(lambda))
    }

    /// The largest rate that meets all targets.
    ///
    /// # Errors
    ///
    /// Refuses a target that even an idle replica misses, because no replica count meets it.
    /// Refuses a model whose iterations take no time.
    pub fn rate_for(&self, targets: &LatencyTargets) -> Result<RateCapacity, QueueingRefusal> {
        let Some((floor, ceiling)) = self.rate_min().zip(self.rate_max()) else {
            return Err(QueueingRefusal::NoWork);
        };
        let low = floor.requests_per_second();
        let high = ceiling.requests_per_second();

        let idle = self.slack(targets, low);
        if let Some(TargetSlack { share, metric, target, latency, at: _ }) = idle
            && share < 0.0
        {
            return Err(QueueingRefusal::IdleFloor { metric, target, idle: latency });
        }

        let full = self.slack(targets, high);
        match (idle, full) {
            (Some(idle), Some(full)) if full.share < 0.0 => {
                let ends = (IntervalEnd::new(low, &idle), IntervalEnd::new(high, &full));
                let (found, binding) = self.narrow(targets, KNEE_SHARE * high, ends);
                let TargetSlack { metric, target, .. } = binding.unwrap_or(full);
                let rate = RequestRate::new(found).unwrap_or(floor);
                // The search almost always ends at the rate that it evaluated last.
                let at = binding
                    .map(|binding| binding.at)
                    .filter(|last| last.arrival == rate)
                    .map_or_else(
                        || self.predict(rate.requests_per_second()),
                        |last| last.prediction,
                    );
                Ok(RateCapacity { rate, limit: RateBound::Target { metric, target }, at })
            }
            _ => {
                let at = full.map_or_else(|| self.predict(high), |full| full.at.prediction);
                Ok(RateCapacity { rate: ceiling, limit: RateBound::Throughput, at })
            }
        }
    }

    /// The slack of the target that is closest to its limit at a rate; `None` without a target.
    fn slack(&self, targets: &LatencyTargets, lambda: f64) -> Option<TargetSlack> {
        let at =
            RatePrediction { arrival: RequestRate::new(lambda)?, prediction: self.predict(lambda) };

        targets
            .each()
            .map(|(metric, target)| {
                let latency = self.latency(&at.prediction, metric, target.of, lambda);
                let share = target.limit.seconds() / latency - 1.0;
                TargetSlack { share, metric, target, latency: seconds(latency), at }
            })
            .min_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// The largest rate with slack, between a rate with slack and a rate without. The latency grows
    /// with the rate. Its reciprocal is nearly a straight line, because it is a service time over
    /// `1 - rho`. So false position (the Illinois variant, which keeps the root enclosed) needs few
    /// steps.
    fn narrow(
        &self,
        targets: &LatencyTargets,
        first: f64,
        ends: (IntervalEnd, IntervalEnd),
    ) -> (f64, Option<TargetSlack>) {
        let (mut low, mut high) = ends;
        let mut next = Some(first).filter(|first| low.rate < *first && *first < high.rate);
        let mut kept = KeptEnd::Neither;
        let mut binding = None;

        for _ in 0..STEPS_MAX {
            let middle = next.take().unwrap_or_else(|| {
                (low.rate * high.slack - high.rate * low.slack) / (high.slack - low.slack)
            });
            let Some(slack) = self.slack(targets, middle) else { break };
            binding = Some(slack);
            let end = IntervalEnd::new(middle, &slack);

            if slack.share.abs() < TOLERANCE {
                return (middle, binding);
            }

            if slack.share > 0.0 {
                low = end;
                // An end that stays in place twice would slow down the next step.
                high.slack *= if kept == KeptEnd::High { 0.5 } else { 1.0 };
                kept = KeptEnd::High;
            } else {
                high = end;
                low.slack *= if kept == KeptEnd::Low { 0.5 } else { 1.0 };
                kept = KeptEnd::Low;
            }

            if high.rate - low.rate < TOLERANCE * low.rate {
                break;
            }
        }

        (low.rate, binding)
    }

    /// Predicts the state at the utilization of a slowdown: `1 - 1/k` of the rate of a full batch.
    /// `None` if that rate has no limit.
    pub(super) fn slowed(&self, slowdown: Slowdown) -> Option<Prediction> {
        let lambda = slowdown.utilization().fraction() * self.saturated();
        (lambda > 0.0 && lambda.is_finite()).then(|| self.predict(lambda))
    }

    /// The latency statistic of a target, at a rate whose means are known.
    pub(super) fn latency(
        &self,
        at: &Prediction,
        metric: LatencyMetric,
        of: Statistic,
        lambda: f64,
    ) -> f64 {
        match (metric, of) {
            (LatencyMetric::Ttft, Statistic::Mean) => at.ttft.seconds(),
            (LatencyMetric::Ttft, Statistic::Percentile(percentile)) => {
                let spread = self.spread(&self.service.steady(lambda), lambda);
                at.ttft.seconds() * spread.factor(percentile)
            }
            (LatencyMetric::Itl, Statistic::Mean | Statistic::Percentile(_)) => at.itl.seconds(),
        }
    }

    /// The rate at which a full batch finishes.
    fn saturated(&self) -> f64 {
        self.service.rate(self.service.batch)
    }

    /// Returns true if every iteration has a fixed cost.
    pub(super) fn takes_time(&self) -> bool {
        self.coefficients.alpha > Seconds::ZERO
    }

    /// [`QueueingModel::at`] without its checks.
    fn predict(&self, lambda: f64) -> Prediction {
        let steady = self.service.steady(lambda);
        let SteadyState { throughput, in_service, present, empty, waits } = steady;

        let response = present / throughput;
        let served = in_service / throughput;
        let wait = (response - served).max(0.0);
        let prefill = self.prefill + in_service * self.delta;
        let itl = (served - prefill) / self.shape.output().tokens();
        let first = self.spread(&steady, lambda).mean - wait;

        Prediction {
            throughput: RequestRate::new(throughput).unwrap_or_default(),
            response: seconds(response),
            wait: seconds(wait),
            in_service: Requests::new(in_service).unwrap_or_default(),
            prefill: seconds(first),
            ttft: seconds(wait + first),
            itl: seconds(itl),
            batch_use: share(in_service / f64::from(self.service.batch)),
            waiting: share(waits),
            idle: share(empty),
        }
    }

    /// The distribution of TTFT at a rate.
    fn spread(&self, at: &SteadyState, lambda: f64) -> TtftMoments {
        let Coefficients { alpha, beta_prefill, beta_decode, gamma } = self.coefficients;
        let input = self.shape.input().tokens();
        let output = self.shape.output().tokens();

        let context = gamma.seconds_per_token() * (input + output / 2.0);
        let decoding = at.in_service * output / (output + 1.0);
        let cost = beta_decode.seconds_per_token() + context;

        TtftMoments::of(&TtftComponents {
            lambda,
            base: alpha.seconds() + decoding * cost,
            prompt: (beta_prefill.seconds_per_token() + gamma.seconds_per_token()) * input,
            prompt_variation: self.shape.input_variation().fraction(),
            wait: ((at.present - at.in_service) / at.throughput).max(0.0),
            waiting: at.waits,
            idle: at.empty,
        })
    }
}

/// The slack between a latency and its target.
#[derive(Clone, Copy)]
struct TargetSlack {
    /// The share by which the latency may grow; negative if it misses the target.
    share: f64,
    metric: LatencyMetric,
    target: LatencyTarget,
    latency: Seconds,
    at: RatePrediction,
}

/// The predicted state of the replica at a rate.
#[derive(Clone, Copy)]
struct RatePrediction {
    arrival: RequestRate,
    prediction: Prediction,
}

/// One end of the interval that contains a rate.
struct IntervalEnd {
    rate: f64,
    slack: f64,
}

impl IntervalEnd {
    const fn new(rate: f64, slack: &TargetSlack) -> Self {
        Self { rate, slack: slack.share }
    }
}

/// The end of the interval that the last step left in place.
#[derive(Clone, Copy, PartialEq)]
enum KeptEnd {
    Neither,
    Low,
    High,
}

/// A time that rounding may have moved just below zero.
fn seconds(value: f64) -> Seconds {
    Seconds::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// A share that rounding may have moved just out of range.
fn share(value: f64) -> Fraction {
    Fraction::new(value.clamp(0.0, 1.0)).unwrap_or_default()
}
