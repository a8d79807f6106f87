//! The defects that Plimsoll's own analyzers do not share.

use plimsoll::analyze::queueing;
use plimsoll::units::{RequestRate, Seconds, TimePerToken};

use super::queueing::{Coefficients, Load, Model, Targets, Workload, targets};
use super::shape;
use super::tuner::{Filter, Point, Setup, guess};

/// The same observations, the same start: the first is rejected, and so is each after it, at the
/// same distance.
#[test]
fn the_filter_of_wva_locks_itself_out_where_ours_learns() {
    let shape = shape(512.0, 128.0).unwrap();
    let engine = Coefficients { alpha: 6e-3, beta: 4e-5, gamma: 6e-8 };
    let batch = 256;
    let at = plimsoll_at(engine, 5.0);
    let point = Point { arrival: 5.0, shape, batch, ttft: at[0], itl: at[1] };

    let start = guess(512.0, 128.0, point.ttft, point.itl).unwrap();
    let state = [start.alpha, start.beta, start.gamma];
    let setup = Setup {
        state,
        covariance: None,
        min: state.map(|value| 0.01 * value),
        max: state.map(|value| 100.0 * value),
        noise: 0.05 / 1.96,
    };
    let mut filter = Filter::new(&setup, &point).unwrap();

    for _ in 0..5 {
        let step = filter.step(&point).unwrap();
        assert!(!step.accepted);
        assert!((step.nis.unwrap() - 36.9).abs() < 0.1, "{:?}", step.nis);
    }
}

/// TTFT and ITL of an engine by Plimsoll's definitions.
fn plimsoll_at(engine: Coefficients, arrival: f64) -> [f64; 2] {
    let room = queueing::ReplicaRoom { queue: 2560, ..queueing::ReplicaRoom::default() };
    let model = queueing::QueueingModel::new(plimsoll(engine), shape(512.0, 128.0).unwrap(), room);
    let at = model.at(RequestRate::new(arrival).unwrap()).unwrap();
    [at.ttft.seconds(), at.itl.seconds()]
}

fn plimsoll(engine: Coefficients) -> queueing::Coefficients {
    let shared = queueing::SharedCoefficients {
        alpha: Seconds::new(engine.alpha).unwrap(),
        beta: TimePerToken::new(engine.beta).unwrap(),
        gamma: TimePerToken::new(engine.gamma).unwrap(),
    };
    shared.into()
}

/// The example of the sources: 512 tokens in and 128 out.
const ENGINE: Coefficients = Coefficients { alpha: 5e-3, beta: 5e-5, gamma: 5e-8 };

/// Targets of the example by a slowdown.
fn inferred(slowdown: f64) -> Targets {
    let load = Load { arrival: 1.0, shape: shape(512.0, 128.0), ttft: 0.0, itl: 0.0, batch: None };
    targets(Targets::default(), Some(slowdown), &[ENGINE], &Workload::of(&[load])).unwrap()
}

/// The worked example of the documentation.
#[test]
fn a_slowdown_of_three_allows_what_the_closed_form_says() {
    let Targets { ttft, itl } = inferred(3.0);
    assert!((1000.0 * ttft.unwrap() - 40.6256).abs() < 1e-9);
    assert!((1000.0 * itl.unwrap() - 15.078_825).abs() < 1e-9);

    // An iteration takes `alpha / (1 - rho)`, with `rho` the share of a token's time in the rate.
    let per_request = 50e-6 * 640.0 + 129.0 * 50e-9 * 576.0;
    for (slowdown, per_second) in [(2.0, 13.9996), (3.0, 18.6662), (5.0, 22.3994)] {
        let iteration = inferred(slowdown).itl.unwrap() - (50e-6 + 50e-9 * 576.5);
        let rate = (1.0 - ENGINE.alpha / iteration) / per_request;
        assert!((rate - per_second).abs() < 1e-4, "{rate}");
    }
}

/// WVA's sizing adds an iteration to the TTFT that its targets are inferred by.
#[test]
fn one_definition_of_ttft_costs_less_than_half_of_the_replicas_of_wva() {
    let model = Model::new(ENGINE, shape(512.0, 128.0).unwrap(), 256, 100);
    let theirs = model.rate_for(inferred(3.0)).unwrap().rate;
    assert!((theirs - 8.25278).abs() < 1e-4, "{theirs}");

    let model = queueing::QueueingModel::new(
        plimsoll(ENGINE),
        shape(512.0, 128.0).unwrap(),
        queueing::ReplicaRoom::default(),
    );
    let infer = queueing::TargetInference::default();
    let observed = queueing::ObservedLatencies::default();
    let slo = queueing::resolve(&queueing::LatencyTargets::default(), &infer, &[model], &observed);
    let ours = model.rate_for(&slo.unwrap().targets).unwrap().rate.requests_per_second();
    assert!(ours > 2.1 * theirs, "{ours}");
}
