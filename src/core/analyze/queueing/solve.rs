//! Latencies at a rate, and the largest rate that keeps targets.

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::chain::{Service, Steady};
use crate::analyze::queueing::explain::Refusal;
use crate::analyze::queueing::slo::{LatencyTarget, Slowdown, Statistic, Targets};
use crate::analyze::queueing::tail::{Gated, Spread};
use crate::analyze::queueing::{Coefficients, Room, Shape};
use crate::units::{Fraction, RequestRate, Requests, Seconds};

/// The share of the highest service rate up to which the model is asked: at the rate itself the
/// queue has no stationary length that the coefficients could predict.
const RATE_MAX_SHARE: f64 = 0.999;

/// The share of the rate of a lone request that stands for an idle replica.
const RATE_MIN_SHARE: f64 = 0.001;

/// How near to the target the latency at the rate that is found is, as a share of it. A rate is
/// published with three digits.
const TOLERANCE: f64 = 1e-6;

/// The share of the largest rate at which a search looks first. Between it and the largest rate the
/// queue fills, and the latency is anything but a service time over `1 - rho`.
const KNEE_SHARE: f64 = 0.9;

/// More steps than this no search needs: bisection alone narrows an interval to `2^-60` of it.
const STEPS_MAX: u32 = 60;

/// Which latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time to the first token.
    Ttft,
    /// Time between tokens.
    Itl,
}

/// What a replica does at an arrival rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Requests that are finished; less than arrive where some are lost.
    pub throughput: RequestRate,
    /// Mean time from arrival to the last token.
    pub response: Seconds,
    /// Mean wait for a place in the batch.
    pub wait: Seconds,
    /// Mean number of requests in the batch.
    pub in_service: Requests,
    /// Mean time from a place in the batch to the first token.
    pub prefill: Seconds,
    /// Mean time to first token.
    pub ttft: Seconds,
    /// Mean time between tokens.
    pub itl: Seconds,
    /// The share of the places in the batch that is taken.
    pub batch_use: Fraction,
    /// The share of requests that have to wait for a place.
    pub waiting: Fraction,
    /// The share of time in which there is no request.
    pub idle: Fraction,
}

/// The queueing model of one replica under one kind of request.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    service: Service,
    /// `prefill(n) = prefill + n * delta`.
    prefill: f64,
    delta: f64,
    coefficients: Coefficients,
    shape: Shape,
}

/// The largest rate that keeps targets, and what binds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// The rate that one replica can take.
    pub rate: RequestRate,
    /// What a higher rate would break.
    pub limit: Limit,
    /// What the replica does at that rate.
    pub at: Prediction,
}

/// What keeps a replica from taking more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// A latency target.
    Target {
        /// Of which latency.
        metric: Metric,
        /// The target.
        target: LatencyTarget,
    },
    /// The rate at which a full batch is finished.
    Throughput,
}

// === impl Model ===

impl Model {
    /// The model of one replica.
    #[must_use]
    pub fn new(coefficients: Coefficients, shape: Shape, room: Room) -> Self {
        let Coefficients { alpha, beta_prefill, beta_decode, gamma } = coefficients;
        let (alpha, gamma) = (alpha.seconds(), gamma.seconds_per_token());
        let beta = [beta_prefill.seconds_per_token(), beta_decode.seconds_per_token()];
        let (input, output) = (shape.input().tokens(), shape.output().tokens());
        let delta =
            (beta[0] * input + beta[1] * output) / (output + 1.0) + gamma * (input + output / 2.0);
        let prefill = alpha + (beta[0] + gamma) * input;
        let decode = alpha + beta[1] + gamma * (input + f64::midpoint(output, 1.0));
        let service = Service {
            s0: prefill + output * decode,
            s1: delta + output * delta,
            batch: room.batch.get(),
            queue: room.queue,
        };
        Self { service, prefill, delta, coefficients, shape }
    }

    /// The largest rate that the model answers for; `None` when iterations take no time, so that
    /// nothing limits it.
    #[must_use]
    pub fn rate_max(&self) -> Option<RequestRate> {
        RequestRate::new(RATE_MAX_SHARE * self.saturated())
    }

    /// The rate that stands for an idle replica; `None` when iterations take no time.
    #[must_use]
    pub fn rate_min(&self) -> Option<RequestRate> {
        RequestRate::new(RATE_MIN_SHARE * self.service.rate(1))
    }

    /// What the replica does at this arrival rate.
    ///
    /// # Errors
    ///
    /// Refuses a rate of nothing, at which no request has a latency, and a rate above
    /// [`Model::rate_max`], at which the queue grows without end.
    pub fn at(&self, arrival: RequestRate) -> Result<Prediction, Refusal> {
        let lambda = arrival.requests_per_second();
        if lambda <= 0.0 {
            return Err(Refusal::Idle);
        }
        if let Some(max) = self.rate_max()
            && arrival > max
        {
            return Err(Refusal::Overload { arrival, max });
        }
        Ok(self.predict(lambda))
    }

    /// The largest rate that keeps all targets.
    ///
    /// # Errors
    ///
    /// Refuses a target that an idle replica misses already: no number of replicas meets it.
    pub fn rate_for(&self, targets: &Targets) -> Result<Capacity, Refusal> {
        let Some((floor, ceiling)) = self.rate_min().zip(self.rate_max()) else {
            return Err(Refusal::NoWork);
        };
        let (low, high) = (floor.requests_per_second(), ceiling.requests_per_second());
        let idle = self.slack(targets, low);
        if let Some(Slack { share, metric, target, latency, at: _ }) = idle
            && share < 0.0
        {
            return Err(Refusal::IdleFloor { metric, target, idle: latency });
        }
        let full = self.slack(targets, high);
        match (idle, full) {
            (Some(idle), Some(full)) if full.share < 0.0 => {
                let ends = (End::new(low, &idle), End::new(high, &full));
                let (rate, binding) = self.narrow(targets, KNEE_SHARE * high, ends);
                let Slack { metric, target, .. } = binding.unwrap_or(full);
                let rate = RequestRate::new(rate).unwrap_or(floor);
                // Nearly always, the search ends where it has just looked.
                let at = binding
                    .map(|binding| binding.at)
                    .filter(|at| at.arrival == rate)
                    .map_or_else(|| self.predict(rate.requests_per_second()), |at| at.prediction);
                Ok(Capacity { rate, limit: Limit::Target { metric, target }, at })
            }
            _ => {
                let at = full.map_or_else(|| self.predict(high), |full| full.at.prediction);
                Ok(Capacity { rate: ceiling, limit: Limit::Throughput, at })
            }
        }
    }

    /// What is left up to the target that is nearest at a rate; `None` without a target.
    fn slack(&self, targets: &Targets, lambda: f64) -> Option<Slack> {
        let at = At { arrival: RequestRate::new(lambda)?, prediction: self.predict(lambda) };
        targets
            .each()
            .map(|(metric, target)| {
                let latency = self.latency(&at.prediction, metric, target.of, lambda);
                let share = target.limit.seconds() / latency - 1.0;
                Slack { share, metric, target, latency: seconds(latency), at }
            })
            .min_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// The largest rate with slack, between one that has it and one that has not. The latency grows
    /// with the rate, and its reciprocal is nearly a straight line, because it is a service time
    /// over `1 - rho`; so false position (the Illinois variant, which keeps the root enclosed)
    /// needs few steps.
    fn narrow(&self, targets: &Targets, first: f64, ends: (End, End)) -> (f64, Option<Slack>) {
        let (mut low, mut high) = ends;
        let mut next = Some(first).filter(|first| low.rate < *first && *first < high.rate);
        let mut kept = Kept::Neither;
        let mut binding = None;
        for _ in 0..STEPS_MAX {
            let middle = next.take().unwrap_or_else(|| {
                (low.rate * high.slack - high.rate * low.slack) / (high.slack - low.slack)
            });
            let Some(slack) = self.slack(targets, middle) else { break };
            binding = Some(slack);
            let end = End::new(middle, &slack);
            if slack.share.abs() < TOLERANCE {
                return (middle, binding);
            }
            if slack.share > 0.0 {
                low = end;
                // An end that stays twice would hold the next step back.
                high.slack *= if kept == Kept::High { 0.5 } else { 1.0 };
                kept = Kept::High;
            } else {
                high = end;
                low.slack *= if kept == Kept::Low { 0.5 } else { 1.0 };
                kept = Kept::Low;
            }
            if high.rate - low.rate < TOLERANCE * low.rate {
                break;
            }
        }
        (low.rate, binding)
    }

    /// What the replica does at the utilisation of a slowdown: `1 - 1/k` of what a full batch
    /// finishes. `None` when nothing limits that.
    pub(super) fn slowed(&self, slowdown: Slowdown) -> Option<Prediction> {
        let lambda = slowdown.utilisation().fraction() * self.saturated();
        (lambda > 0.0 && lambda.is_finite()).then(|| self.predict(lambda))
    }

    /// The latency that a target speaks of, at a rate of which the means are known.
    pub(super) fn latency(
        &self,
        at: &Prediction,
        metric: Metric,
        of: Statistic,
        lambda: f64,
    ) -> f64 {
        match (metric, of) {
            (Metric::Ttft, Statistic::Mean) => at.ttft.seconds(),
            (Metric::Ttft, Statistic::Percentile(percentile)) => {
                let spread = self.spread(&self.service.steady(lambda), lambda);
                at.ttft.seconds() * spread.factor(percentile)
            }
            (Metric::Itl, Statistic::Mean | Statistic::Percentile(_)) => at.itl.seconds(),
        }
    }

    /// The rate at which a full batch is finished.
    fn saturated(&self) -> f64 {
        self.service.rate(self.service.batch)
    }

    /// Whether an iteration takes time whatever is in it.
    pub(super) fn takes_time(&self) -> bool {
        self.coefficients.alpha > Seconds::ZERO
    }

    /// [`Model::at`] without its checks.
    fn predict(&self, lambda: f64) -> Prediction {
        let steady = self.service.steady(lambda);
        let Steady { throughput, in_service, present, empty, waits } = steady;
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

    /// How TTFT spreads at a rate.
    fn spread(&self, at: &Steady, lambda: f64) -> Spread {
        let Coefficients { alpha, beta_prefill, beta_decode, gamma } = self.coefficients;
        let (input, output) = (self.shape.input().tokens(), self.shape.output().tokens());
        let context = gamma.seconds_per_token() * (input + output / 2.0);
        let decoding = at.in_service * output / (output + 1.0);
        let cost = beta_decode.seconds_per_token() + context;
        Spread::of(&Gated {
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

/// What is left up to a target.
#[derive(Clone, Copy)]
struct Slack {
    /// How much more the latency could be, as a share of it; negative when it is missed.
    share: f64,
    metric: Metric,
    target: LatencyTarget,
    latency: Seconds,
    at: At,
}

/// What the replica does at a rate.
#[derive(Clone, Copy)]
struct At {
    arrival: RequestRate,
    prediction: Prediction,
}

/// One end of the interval in which a rate lies.
struct End {
    rate: f64,
    slack: f64,
}

impl End {
    const fn new(rate: f64, slack: &Slack) -> Self {
        Self { rate, slack: slack.share }
    }
}

/// Which end of an interval the last step left where it was.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    Neither,
    Low,
    High,
}

/// A time that rounding may have put just below zero.
fn seconds(value: f64) -> Seconds {
    Seconds::new(value.clamp(0.0, f64::MAX)).unwrap_or_default()
}

/// A share that rounding may have put just outside.
fn share(value: f64) -> Fraction {
    Fraction::new(value.clamp(0.0, 1.0)).unwrap_or_default()
}
