//! The model against an engine that executes its iterations one by one.
//!
//! The runs come from a discrete-event simulator of vLLM (BLIS, inference-sim v0.7.10, strict
//! profile) on one replica. Its step times are `b0 + b1 * prompt tokens + b2 * decoding requests`,
//! so the coefficients are known: `alpha`, `beta_prefill` and `beta_decode`, and no `gamma`.

use super::*;
use crate::analyze::tuner::{Latencies, OperatingPoint, Tuner};
use crate::units::Fraction;

/// A recorded run.
struct Run {
    name: &'static str,
    /// `b0`, `b1` and `b2` in microseconds.
    steps: [f64; 3],
    /// Requests per second.
    arrivals: f64,
    /// Mean input tokens, their standard deviation as a share of the mean, and mean output tokens.
    shape: [f64; 3],
    /// Mean, 50th, 90th, 95th and 99th percentile of TTFT, in milliseconds.
    ttft: [f64; 5],
    /// Mean time between tokens, in milliseconds.
    itl: f64,
    /// Mean number of requests in the batch.
    running: f64,
}

const Q: [f64; 3] = [7050.0, 19.5, 25.4];
const L: [f64; 3] = [16440.0, 47.8, 18.2];

/// Runs with Poisson arrivals of identical requests, and of conversations recorded by Azure.
const RUNS: [Run; 11] = [
    Run {
        name: "fixed-q-r006",
        steps: Q,
        arrivals: 1.978,
        shape: [1000.0, 0.0, 200.0],
        ttft: [30.974, 30.357, 33.358, 33.889, 51.546],
        itl: 7.437,
        running: 3.0,
    },
    Run {
        name: "fixed-q-r030",
        steps: Q,
        arrivals: 9.828,
        shape: [1000.0, 0.0, 200.0],
        ttft: [36.171, 32.076, 51.913, 60.165, 73.153],
        itl: 9.371,
        running: 18.5,
    },
    Run {
        name: "fixed-q-r060",
        steps: Q,
        arrivals: 19.191,
        shape: [1000.0, 0.0, 200.0],
        ttft: [50.527, 37.558, 83.374, 108.048, 158.797],
        itl: 13.394,
        running: 51.3,
    },
    Run {
        name: "fixed-q-r080",
        steps: Q,
        arrivals: 25.979,
        shape: [1000.0, 0.0, 200.0],
        ttft: [70.165, 59.217, 118.269, 140.465, 203.186],
        itl: 19.338,
        running: 99.8,
    },
    Run {
        name: "fixed-q-r080-tok8192",
        steps: Q,
        arrivals: 25.979,
        shape: [1000.0, 0.0, 200.0],
        ttft: [61.702, 53.626, 102.811, 122.006, 172.885],
        itl: 19.329,
        running: 99.7,
    },
    Run {
        name: "fixed-q-r090",
        steps: Q,
        arrivals: 29.594,
        shape: [1000.0, 0.0, 200.0],
        ttft: [86.489, 78.504, 147.188, 171.279, 227.152],
        itl: 25.495,
        running: 149.5,
    },
    Run {
        name: "fixed-l-r090",
        steps: L,
        arrivals: 13.801,
        shape: [1000.0, 0.0, 200.0],
        ttft: [216.985, 204.82, 376.88, 428.454, 533.25],
        itl: 55.678,
        running: 151.3,
    },
    Run {
        name: "fixed-l-r090-tok8192",
        steps: L,
        arrivals: 13.801,
        shape: [1000.0, 0.0, 200.0],
        ttft: [186.337, 168.284, 321.839, 381.814, 504.52],
        itl: 55.712,
        running: 151.5,
    },
    Run {
        name: "conv-x1-q",
        steps: Q,
        arrivals: 4.739,
        shape: [1121.9, 0.858, 265.2],
        ttft: [39.144, 32.044, 78.426, 105.737, 142.865],
        itl: 8.264,
        running: 10.4,
    },
    Run {
        name: "conv-x1-l",
        steps: L,
        arrivals: 4.739,
        shape: [1121.9, 0.858, 265.2],
        ttft: [119.604, 82.28, 262.754, 340.192, 449.018],
        itl: 23.433,
        running: 29.2,
    },
    Run {
        name: "conv-x4-q",
        steps: Q,
        arrivals: 19.625,
        shape: [1182.8, 0.856, 253.7],
        ttft: [86.7, 59.325, 174.973, 217.361, 359.68],
        itl: 18.089,
        running: 87.4,
    },
];

/// The mean TTFT of a run by Little's law with the mean alone: `alpha / (1 - rho)` and the prompt.
fn closed_form(run: &Run) -> f64 {
    let [alpha, prefill, decode] = run.steps.map(|micros| micros / 1e6);
    let [input, _, output] = run.shape;
    let rho = run.arrivals * (prefill * input + decode * output);
    alpha / (1.0 - rho) + prefill * input
}

fn model_of(run: &Run) -> QueueingModel {
    let [b0, b1, b2] = run.steps;
    let coefficients = Coefficients {
        alpha: seconds(b0 / 1e6),
        beta_prefill: micros(b1),
        beta_decode: micros(b2),
        gamma: TimePerToken::ZERO,
    };

    let [input, variation, output] = run.shape;
    let shape = shape(input, output).with_input_variation(Fraction::new(variation).unwrap());
    QueueingModel::new(coefficients, shape, ReplicaRoom::default())
}

/// The relative errors of the model against a run: ITL, requests in the batch, mean TTFT, and its
/// 90th and 95th percentiles.
fn errors(run: &Run) -> [f64; 5] {
    let model = model_of(run);
    let at = model.at(rate(run.arrivals)).unwrap();
    let [p90, p95] = [0.9, 0.95].map(|share| {
        let percentile = Percentile::new(Fraction::new(share).unwrap()).unwrap();
        1000.0
            * model.latency(
                &at,
                LatencyMetric::Ttft,
                Statistic::Percentile(percentile),
                run.arrivals,
            )
    });

    [
        1000.0 * at.itl.seconds() / run.itl,
        at.in_service.requests() / run.running,
        1000.0 * at.ttft.seconds() / run.ttft[0],
        p90 / run.ttft[2],
        p95 / run.ttft[3],
    ]
    .map(|ratio| ratio - 1.0)
}

/// The errors match the figures in the documentation.
#[test]
fn known_coefficients_predict_an_engine() {
    for run in &RUNS {
        let errors = errors(run);
        for (error, most) in errors.into_iter().zip([0.05, 0.075, 0.2, 0.2, 0.22]) {
            assert!(error.abs() < most, "{}: {errors:+.3?}", run.name);
        }
    }
}

/// The mean TTFT of the sources is the wait for one mean iteration plus the prompt. Under load it
/// is less than half of the engine's TTFT.
#[test]
fn the_closed_form_misses_the_iteration_that_a_request_shares() {
    for (name, most) in [("fixed-q-r006", -0.1), ("fixed-q-r060", -0.3), ("conv-x4-q", -0.5)] {
        let run = RUNS.iter().find(|it| it.name == name).unwrap();
        let error = 1000.0 * closed_form(run) / run.ttft[0] - 1.0;
        assert!(error < most, "{name}: {error:+.3}");
    }
}

fn rate_max(model: &QueueingModel) -> f64 {
    model.rate_max().unwrap().requests_per_second()
}

/// The means of one run determine `beta` within a sixth at any load. The maximum rate of a replica
/// is underestimated by at most a third: the engine reads its cache at no cost, and one operating
/// point cannot show that.
#[test]
fn one_operating_point_of_an_engine_tells_what_a_prompt_costs() {
    for run in &RUNS {
        let [input, variation, output] = run.shape;
        let shape = shape(input, output).with_input_variation(Fraction::new(variation).unwrap());
        let latencies = Latencies { ttft: seconds(run.ttft[0] / 1e3), itl: seconds(run.itl / 1e3) };
        let point = OperatingPoint::new(rate(run.arrivals), shape, BATCH_DEFAULT, latencies);
        let mut tuner = Tuner::new();
        for _ in 0..20 {
            let _ = tuner.learn(None, &point.unwrap());
        }

        let learned = tuner.estimate().unwrap();
        let beta = learned.coefficients.beta_prefill.seconds_per_token() * 1e6 / run.steps[1];
        assert!((beta - 1.0).abs() < 0.16, "{}: {learned}", run.name);
        let model = QueueingModel::new(learned.coefficients, shape, ReplicaRoom::default());
        let most = rate_max(&model) / rate_max(&model_of(run));
        assert!((0.65..0.95).contains(&most), "{}: {most}", run.name);
    }
}
