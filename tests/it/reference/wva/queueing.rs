//! WVA's queueing model of one replica, its latency targets and its aggregation of replicas.
//!
//! A birth-death chain as in [`plimsoll::analyze::queueing`], by other definitions: a decode
//! iteration reads `I + O / 2` tokens, TTFT is the wait for a place and `prefill(n)`, to which sizing
//! adds a decode iteration, and a request without input has no prefill. Targets are inferred by the
//! closed form `T = alpha / (1 - rho)` and kept by the chain. An absent mean counts as 0.
//!
//! Times are in seconds, rates per second.

use plimsoll::analyze::queueing::{BATCH_DEFAULT, MeanRequest, QUEUE_DEFAULT};

/// The share of the rate of a full batch up to which the model answers.
const RATE_MAX_SHARE: f64 = 0.999;

/// The share of the rate of a lone request that stands for an idle replica.
const RATE_MIN_SHARE: f64 = 0.001;

/// Halvings of the interval in which a rate lies.
const HALVINGS: u32 = 60;

/// Observed latencies are multiplied by this where nothing is learned, up to the caps.
const HEADROOM: f64 = 1.5;
const TTFT_CAP: f64 = 10.0;
const ITL_CAP: f64 = 0.5;

/// The slowdown of targets where none is configured.
const SLOWDOWN: f64 = 3.0;

/// The cost of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coefficients {
    /// Seconds of every iteration.
    pub(crate) alpha: f64,
    /// Seconds to compute one token.
    pub(crate) beta: f64,
    /// Seconds to read one token of the KV cache.
    pub(crate) gamma: f64,
}

/// Latency targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Targets {
    pub(crate) ttft: Option<f64>,
    pub(crate) itl: Option<f64>,
}

/// The queueing model of one replica under one kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    prefill: f64,
    prefill_slope: f64,
    decode: f64,
    delta: f64,
    output: f64,
    batch: u32,
    queue: u32,
}

/// The behavior of a replica at an arrival rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prediction {
    pub(crate) throughput: f64,
    pub(crate) response: f64,
    pub(crate) wait: f64,
    pub(crate) in_service: f64,
    pub(crate) prefill: f64,
    pub(crate) itl: f64,
    /// The share of the batch in use.
    pub(crate) batch_use: f64,
}

/// The largest rate that keeps targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Capacity {
    pub(crate) rate: f64,
    pub(crate) at: Prediction,
}

/// A question that the model does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing arrives.
    Idle,
    /// More arrives than a full batch finishes.
    Overload,
    /// Iterations take no time.
    NoWork,
    /// An idle replica misses the target already.
    IdleFloor,
}

// === impl Model ===

impl Model {
    pub(crate) fn new(
        coefficients: Coefficients,
        shape: MeanRequest,
        batch: u32,
        queue: u32,
    ) -> Self {
        let Coefficients { alpha, beta, gamma } = coefficients;
        let input = shape.input().tokens();
        let output = shape.output().tokens();
        let delta = beta * (input + output) / (output + 1.0) + gamma * (input + output / 2.0);
        let has_prefill = input > 0.0;

        Self {
            prefill: if has_prefill { alpha + (beta + gamma) * input } else { 0.0 },
            prefill_slope: if has_prefill { delta } else { 0.0 },
            decode: alpha + beta + gamma * (input + output / 2.0),
            delta,
            output,
            batch,
            queue,
        }
    }

    /// The rate at which `n` requests in service finish; infinite where they take no time.
    fn rate(&self, n: u32) -> f64 {
        let n = f64::from(n);
        n / (self.prefill + n * self.prefill_slope + self.output * (self.decode + n * self.delta))
    }

    /// The largest rate that the model answers for; infinite where iterations take no time.
    pub(crate) fn rate_max(&self) -> f64 {
        RATE_MAX_SHARE * self.rate(self.batch)
    }

    /// The rate that stands for an idle replica.
    pub(crate) fn rate_min(&self) -> f64 {
        RATE_MIN_SHARE
            / (self.prefill
                + self.output * self.decode
                + self.prefill_slope
                + self.output * self.delta)
    }

    /// The behavior at this arrival rate.
    pub(crate) fn at(&self, arrival: f64) -> Result<Prediction, Refusal> {
        if arrival.is_nan() || arrival <= 0.0 {
            return Err(Refusal::Idle);
        }
        if arrival > self.rate_max() {
            return Err(Refusal::Overload);
        }
        Ok(self.predict(arrival))
    }

    fn predict(&self, arrival: f64) -> Prediction {
        let places = self.batch + self.queue;
        let mut logarithm = 0.0_f64;
        let mut logarithms = vec![logarithm];
        for n in 1..=places {
            logarithm += (arrival / self.rate(n.min(self.batch))).ln();
            logarithms.push(logarithm);
        }
        let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);

        let mut total = 0.0;
        let mut present = 0.0;
        let mut in_service = 0.0;
        let mut last = 0.0;
        for (n, logarithm) in (0_u32..).zip(logarithms) {
            last = (logarithm - largest).exp();
            total += last;
            present += f64::from(n) * last;
            in_service += f64::from(n.min(self.batch)) * last;
        }
        let throughput = arrival * (1.0 - last / total);
        let present = present / total;
        let in_service = in_service / total;

        let response = present / throughput;
        let served = in_service / throughput;
        let prefill = self.prefill + in_service * self.prefill_slope;
        Prediction {
            throughput,
            response,
            wait: (response - served).max(0.0),
            in_service,
            prefill,
            itl: ((served - prefill) / self.output).max(0.0),
            batch_use: (in_service / f64::from(self.batch)).min(1.0),
        }
    }

    /// The largest rate that keeps all targets.
    pub(crate) fn rate_for(&self, targets: Targets) -> Result<Capacity, Refusal> {
        let mut low = self.rate_min();
        let mut high = self.rate_max();
        if !high.is_finite() || !low.is_finite() {
            return Err(Refusal::NoWork);
        }

        let at = self.predict(high);
        if at.keeps(targets) {
            return Ok(Capacity { rate: high, at });
        }
        if !self.predict(low).keeps(targets) {
            return Err(Refusal::IdleFloor);
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if self.predict(middle).keeps(targets) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Capacity { rate: low, at: self.predict(low) })
    }
}

// === impl Prediction ===

impl Prediction {
    /// Time to first token as the tuner learns it.
    pub(crate) fn learned_ttft(&self) -> f64 {
        self.wait + self.prefill
    }

    /// Time to first token as replicas are sized by it.
    pub(crate) fn sized_ttft(&self) -> f64 {
        self.learned_ttft() + self.itl
    }

    fn keeps(&self, targets: Targets) -> bool {
        targets.ttft.is_none_or(|target| self.sized_ttft() <= target)
            && targets.itl.is_none_or(|target| self.itl <= target)
    }
}

// === Models with several replicas ===

/// The load of one replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) arrival: f64,
    pub(crate) shape: Option<MeanRequest>,
    pub(crate) ttft: f64,
    pub(crate) itl: f64,
    pub(crate) batch: Option<u32>,
}

/// The load of several replicas together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) arrival: f64,
    /// Mean tokens of prompt and answer, where there are any.
    input: f64,
    output: f64,
    ttft: f64,
    itl: f64,
    batch: Option<u32>,
}

impl Workload {
    /// Sums, and means weighted by arrivals, in which an absent value counts as 0.
    pub(crate) fn of(loads: &[Load]) -> Self {
        let busy: Vec<&Load> = loads.iter().filter(|load| load.arrival > 0.0).collect();
        let arrival: f64 = busy.iter().map(|load| load.arrival).sum();
        let mean = |of: &dyn Fn(&Load) -> f64| {
            let sum: f64 = busy.iter().map(|load| of(load) * load.arrival).sum();
            if arrival > 0.0 { sum / arrival } else { 0.0 }
        };

        Self {
            arrival,
            input: mean(&|load| load.shape.map_or(0.0, |shape| shape.input().tokens())),
            output: mean(&|load| load.shape.map_or(0.0, |shape| shape.output().tokens())),
            ttft: mean(&|load| load.ttft),
            itl: mean(&|load| load.itl),
            batch: busy.iter().find_map(|load| load.batch),
        }
    }

    fn shape(&self) -> Option<MeanRequest> {
        super::shape(self.input, self.output)
    }
}

/// The targets of a model: stated ones, else those that a slowdown infers from the coefficients of
/// its variants, else observed latencies with a headroom.
pub(crate) fn targets(
    stated: Targets,
    slowdown: Option<f64>,
    learned: &[Coefficients],
    model: &Workload,
) -> Option<Targets> {
    if stated != Targets::default() {
        return Some(stated);
    }

    let slowdown = slowdown.filter(|slowdown| *slowdown > 1.0).unwrap_or(SLOWDOWN);
    let usable = learned
        .iter()
        .filter(|it| it.alpha > 0.0 && it.beta + it.gamma > 0.0 && model.output >= 1.0);
    let inferred = usable.map(|it| {
        let Coefficients { alpha, beta, gamma } = *it;
        let context = model.input + f64::midpoint(model.output, 1.0);
        let ttft = slowdown * alpha + (beta + gamma) * model.input;
        let itl = slowdown * alpha + beta + gamma * context;
        (ttft, itl)
    });
    let largest = inferred.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
    if let Some((ttft, itl)) = largest {
        return Some(Targets { ttft: Some(ttft), itl: Some(itl) });
    }

    let observed = model.ttft > 0.0 && model.itl > 0.0;
    observed.then(|| Targets {
        ttft: Some((HEADROOM * model.ttft).min(TTFT_CAP)),
        itl: Some((HEADROOM * model.itl).min(ITL_CAP)),
    })
}

/// The rate that one replica of a variant finishes at its targets; `None` without load or
/// coefficients, or where an idle replica misses a target.
pub(crate) fn capacity(
    learned: Option<Coefficients>,
    workload: &Workload,
    targets: Targets,
) -> Option<f64> {
    let batch = workload.batch.unwrap_or(BATCH_DEFAULT.get());
    let model = Model::new(learned?, workload.shape()?, batch, QUEUE_DEFAULT);
    Some(model.rate_for(targets).ok()?.at.throughput)
}
