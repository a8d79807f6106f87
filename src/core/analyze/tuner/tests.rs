//! Tests of the tuner, on the observations of a known engine.

use std::num::NonZeroU32;

use proptest::prelude::{prop, prop_assert, proptest};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::analyze::queueing::{
    Coefficients, LatencyTarget, LatencyTargets, MeanLengths, MeanRequest, QueueingModel,
    ReplicaRoom, SharedCoefficients, Statistic,
};
use crate::analyze::tuner::point::QUEUE_PER_PLACE;
use crate::units::{RequestRate, TimePerToken, Tokens};

/// The arrivals per minute at which WVA's filter fails.
const RATES: [f64; 11] =
    [6.0, 60.0, 120.0, 180.0, 240.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1500.0];

fn coefficients([alpha, beta, gamma]: [f64; 3]) -> Coefficients {
    SharedCoefficients {
        alpha: Seconds::new(alpha / 1000.0).unwrap(),
        beta: TimePerToken::new(beta / 1000.0).unwrap(),
        gamma: TimePerToken::new(gamma / 1000.0).unwrap(),
    }
    .into()
}

/// The engine to learn: alpha 6 ms, beta 40 us, gamma 60 ns.
fn truth() -> Coefficients {
    coefficients([6.0, 0.04, 6e-5])
}

fn shape(input: f64, output: f64) -> MeanRequest {
    let lengths =
        MeanLengths { input: Tokens::new(input).unwrap(), output: Tokens::new(output).unwrap() };
    MeanRequest::new(lengths).unwrap()
}

/// The operating point of an engine, with TTFT and ITL each multiplied by an error.
fn seen(
    engine: Coefficients,
    shape: MeanRequest,
    per_minute: f64,
    error: [f64; 2],
) -> OperatingPoint {
    let arrival = RequestRate::new(per_minute / 60.0).unwrap();
    let batch = NonZeroU32::new(256).unwrap();
    let queue = batch.get() * QUEUE_PER_PLACE;
    let at = QueueingModel::new(engine, shape, ReplicaRoom { batch, queue }).at(arrival).unwrap();

    let latencies = Latencies {
        ttft: Seconds::new(at.ttft.seconds() * error[0]).unwrap(),
        itl: Seconds::new(at.itl.seconds() * error[1]).unwrap(),
    };
    OperatingPoint::new(arrival, shape, batch, latencies).unwrap()
}

/// The rate that one replica handles with these coefficients.
fn capacity(coefficients: Coefficients) -> f64 {
    let limit = Seconds::new(0.075).unwrap();
    let targets = LatencyTargets {
        ttft: Some(LatencyTarget { limit, of: Statistic::Mean }),
        itl: Some(Seconds::new(0.018).unwrap()),
    };
    let model = QueueingModel::new(coefficients, shape(512.0, 128.0), ReplicaRoom::default());
    model.rate_for(&targets).unwrap().rate.requests_per_second()
}

fn parameters(coefficients: Coefficients) -> [f64; 3] {
    let Coefficients { alpha, beta_prefill, gamma, .. } = coefficients;
    [alpha.seconds(), beta_prefill.seconds_per_token(), gamma.seconds_per_token()]
}

/// The relative errors of an estimate against an engine: `alpha`, `beta`, `gamma`.
fn errors(tuner: &Tuner, engine: Coefficients) -> [f64; 3] {
    let found = parameters(tuner.estimate().unwrap().coefficients);
    let wanted = parameters(engine);
    [0, 1, 2].map(|index| (found[index] / wanted[index] - 1.0).abs())
}

/// The relative error of the capacity per replica.
fn capacity_error(tuner: &Tuner, engine: Coefficients) -> f64 {
    (capacity(tuner.estimate().unwrap().coefficients) / capacity(engine) - 1.0).abs()
}

/// Nearly normal errors of 10%.
fn noise(random: &mut Pcg64) -> [f64; 2] {
    [(); 2].map(|()| {
        let normal = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        (1.0 + 0.1 * normal).max(0.1)
    })
}

#[test]
fn exact_observations_at_any_one_rate_are_learned_within_a_tenth() {
    for rate in RATES {
        let mut tuner = Tuner::new();
        let point = seen(truth(), shape(512.0, 128.0), rate, [1.0; 2]);
        for _ in 0..20 {
            let lesson = tuner.learn(None, &point);
            assert!(
                matches!(lesson, TuningOutcome::Started { .. } | TuningOutcome::Accepted { .. }),
                "{lesson}"
            );
        }

        let errors = errors(&tuner, truth());
        assert!(errors.iter().all(|error| *error < 0.1), "{rate}/min: {errors:.3?}");
        assert!(capacity_error(&tuner, truth()) < 0.1);
    }
}

#[test]
fn noise_of_a_tenth_is_learned_through_at_any_one_rate() {
    for rate in RATES.into_iter().filter(|rate| *rate <= 600.0) {
        for seed in 0..40 {
            let mut random = Pcg64::seed_from_u64(seed);
            let mut tuner = Tuner::new();
            for _ in 0..20 {
                let point = seen(truth(), shape(512.0, 128.0), rate, noise(&mut random));
                let _ = tuner.learn(None, &point);
            }

            let [alpha, beta, _] = errors(&tuner, truth());
            let capacity = capacity_error(&tuner, truth());
            let worst = alpha.max(beta).max(capacity);
            assert!(worst < 0.15, "{rate}/min, seed {seed}: {alpha:.3} {beta:.3} {capacity:.3}");
        }
    }
}

#[test]
fn one_rate_does_not_tell_gamma_and_the_interval_says_so() {
    let mut tuner = Tuner::new();
    for _ in 0..20 {
        let _ = tuner.learn(None, &seen(truth(), shape(512.0, 128.0), 60.0, [1.0; 2]));
    }
    let CoefficientEstimate { alpha, beta, gamma, .. } = tuner.estimate().unwrap();
    assert!(alpha.factor() < 1.1 && beta.factor() < 1.1, "{alpha:?} {beta:?}");
    assert!(gamma.factor() > 3.5, "{gamma:?}");
}

#[test]
fn several_rates_tell_all_three_whatever_gamma_is() {
    for gamma in [2e-5, 6e-5, 2e-4] {
        let engine = coefficients([6.0, 0.04, gamma]);
        let mut tuner = Tuner::new();
        for round in 0..60 {
            let rate = [30.0, 900.0, 240.0, 600.0][round % 4];
            let _ = tuner.learn(None, &seen(engine, shape(8192.0, 256.0), rate / 20.0, [1.0; 2]));
        }

        let [alpha, beta, _] = errors(&tuner, engine);
        let estimate = tuner.estimate().unwrap();
        assert!(alpha < 0.1 && beta < 0.1, "{gamma}: {estimate}");
        let found = estimate.coefficients.gamma.seconds_per_token() * 1000.0;
        let factor = estimate.gamma.factor();
        let is_inside = found / factor < gamma && gamma < found * factor;
        assert!(is_inside && factor < 2.0, "{gamma}: {estimate}");
    }
}

#[test]
fn an_outlier_is_rejected_and_moves_nothing() {
    let mut tuner = Tuner::new();
    let usual = seen(truth(), shape(512.0, 128.0), 300.0, [1.0; 2]);
    for _ in 0..20 {
        let _ = tuner.learn(None, &usual);
    }

    let before = tuner.estimate().unwrap();
    let outlier = seen(truth(), shape(512.0, 128.0), 300.0, [8.0, 1.0]);
    let lesson = tuner.learn(None, &outlier);
    assert!(matches!(lesson, TuningOutcome::Rejected { in_a_row: 1, .. }), "{lesson}");
    let after = tuner.estimate().unwrap();
    assert_eq!(before.coefficients, after.coefficients);
    assert!(after.alpha.factor() > before.alpha.factor());
    assert_eq!(after.confidence, Confidence::Remembered);
    assert!(matches!(tuner.learn(None, &usual), TuningOutcome::Accepted { .. }));
    assert_eq!(tuner.estimate().unwrap().confidence, Confidence::Measured);
}

#[test]
fn no_change_of_the_engine_locks_the_filter() {
    let shape = shape(512.0, 128.0);
    for factors in [[3.0, 1.0, 1.0], [1.0, 4.0, 1.0], [0.2, 0.2, 0.2], [5.0, 5.0, 5.0]] {
        let [alpha, beta, gamma] = factors;
        let engine = coefficients([6.0 * alpha, 0.04 * beta, 6e-5 * gamma]);
        let mut tuner = Tuner::new();
        for _ in 0..40 {
            let _ = tuner.learn(None, &seen(truth(), shape, 180.0, [1.0; 2]));
        }

        let mut rejected = 0;
        for _ in 0..20 {
            let lesson = tuner.learn(None, &seen(engine, shape, 180.0, [1.0; 2]));
            rejected += u32::from(matches!(lesson, TuningOutcome::Rejected { .. }));
        }

        let errors = errors(&tuner, engine);
        assert!(rejected <= REJECTED_MAX, "{factors:?}: {rejected}");
        assert!(errors[0] < 0.1 && errors[1] < 0.1, "{factors:?}: {errors:.3?}");
    }
}

#[test]
fn a_rate_that_the_estimate_does_not_allow_is_a_rejection() {
    let slow = coefficients([60.0, 0.4, 6e-4]);
    let fast = seen(truth(), shape(512.0, 128.0), 600.0, [1.0; 2]);
    let mut tuner = Tuner::new();
    for _ in 0..20 {
        let _ = tuner.learn(None, &seen(slow, shape(512.0, 128.0), 60.0, [1.0; 2]));
    }

    assert_eq!(tuner.learn(None, &fast), TuningOutcome::Rejected { nis: None, in_a_row: 1 });
    assert_eq!(tuner.learn(None, &fast), TuningOutcome::Rejected { nis: None, in_a_row: 2 });
    assert_eq!(tuner.learn(None, &fast), TuningOutcome::Started { points: 1 });
    assert!(capacity_error(&tuner, truth()) < 0.1);
}

#[test]
fn a_young_replica_is_not_learned_from() {
    let mut tuner = Tuner::new();
    let point = seen(truth(), shape(512.0, 128.0), 60.0, [20.0, 1.0]);
    let lesson = tuner.learn(Seconds::new(90.0), &point);
    let remaining = Seconds::new(30.0).unwrap();

    assert_eq!(lesson, TuningOutcome::Unfit(UnfitObservation::Transient { remaining }));
    assert_eq!(lesson.to_string(), "learning from the replica starts in 30 s");
    assert_eq!(tuner.estimate(), None);
    assert!(matches!(tuner.learn(Some(TRANSIENT_DELAY), &point), TuningOutcome::Started { .. }));
}

#[test]
fn a_full_batch_tells_nothing() {
    let mut tuner = Tuner::new();
    let point = seen(truth(), shape(512.0, 128.0), 1700.0, [400.0, 1.0]);
    assert!(matches!(
        tuner.learn(None, &point),
        TuningOutcome::Unfit(UnfitObservation::Full { .. })
    ));
    assert_eq!(tuner.estimate(), None);
}

/// An engine that spends five times as long on a token of an answer as on a token of a prompt.
fn lopsided() -> Coefficients {
    Coefficients {
        alpha: Seconds::new(6e-3).unwrap(),
        beta_prefill: TimePerToken::new(20.0 / 1e6).unwrap(),
        beta_decode: TimePerToken::new(100.0 / 1e6).unwrap(),
        gamma: TimePerToken::new(0.02 / 1e6).unwrap(),
    }
}

#[test]
fn prompts_and_answers_are_told_apart_where_shapes_differ() {
    let shapes = [shape(1000.0, 200.0), shape(200.0, 400.0), shape(4000.0, 100.0)];
    let mut tuner = Tuner::new();
    for round in 0..60 {
        let rate = [60.0, 400.0, 180.0, 700.0][round % 4] / (1.0 + (round % 3) as f64);
        let _ = tuner.learn(None, &seen(lopsided(), shapes[round % 3], rate, [1.0; 2]));
    }

    let estimate = tuner.estimate().unwrap();
    let TokenSeparation::Separate(split) = estimate.apart else { panic!("{estimate}") };
    let ratio = split.decode_over_prefill;
    assert!((ratio / 5.0 - 1.0).abs() < 0.15, "{ratio}: {estimate}");
}

#[test]
fn prompts_and_answers_stay_together_where_shapes_do_not_differ() {
    let mut tuner = Tuner::new();
    for round in 0..60 {
        let rate = [60.0, 400.0, 180.0, 700.0][round % 4];
        let _ = tuner.learn(None, &seen(lopsided(), shape(1000.0, 200.0), rate, [1.0; 2]));
    }
    assert_eq!(tuner.estimate().unwrap().apart, TokenSeparation::Together);
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut tuner = Tuner::new();
    let mut random = Pcg64::seed_from_u64(7);
    for round in 0..60_usize {
        let of = [shape(512.0, 128.0), shape(4000.0, 128.0), shape(512.0, 900.0)][round % 3];
        let point = seen(truth(), of, RATES[round % 5], noise(&mut random));
        let _ = tuner.learn(None, &point);

        // After a restart at any round, the tuner learns like one that was never stopped.
        let mut again = Tuner::restore(&tuner.save()).unwrap();
        assert_eq!(again.save(), tuner.save());
        assert_eq!(again.estimate(), tuner.estimate());
        let mut one = tuner.clone();
        let next = seen(truth(), of, RATES[(round + 2) % 5], noise(&mut random));
        assert_eq!(again.learn(None, &next), one.learn(None, &next));
        assert_eq!(again.save(), one.save());
    }

    // Without its observations the tuner keeps its estimate.
    let saved = SavedTuner { points: Vec::new(), ..tuner.save() };
    assert_eq!(Tuner::restore(&saved).unwrap().estimate(), tuner.estimate());
    let mut wrong = tuner.save();
    wrong.filter.as_mut().unwrap().covariance[0][0] = -1.0;
    assert!(Tuner::restore(&wrong).is_none(), "a variance below zero");
}

#[test]
fn fewer_accepted_observations_are_less_experience() {
    let point = seen(truth(), shape(512.0, 128.0), 240.0, [1.0; 2]);
    let mut short = Tuner::new();
    let _ = short.learn(None, &point);
    let mut long = short.clone();
    for _ in 0..4 {
        let _ = long.learn(None, &point);
    }

    assert!(Tuner::new().knows_less_than(&short) && short.knows_less_than(&long));
    assert!(!long.knows_less_than(&short));
    assert!(!long.knows_less_than(&long), "of equal experience the own stays");
    let without_points = SavedTuner { points: Vec::new(), ..long.save() };
    assert!(short.knows_less_than(&Tuner::restore(&without_points).unwrap()));
}

proptest! {
    #[test]
    fn any_sequence_leaves_a_finite_estimate(
        rounds in prop::collection::vec((1.0..1500.0, 10.0..8000.0, 1.0..2000.0, 1e-3..10.0, 1e-3..1.0), 1..40)
    ) {
        let mut tuner = Tuner::new();
        for (rate, input, output, ttft, itl) in rounds {
            let arrival = RequestRate::new(rate / 60.0).unwrap();
            let latencies =
                Latencies { ttft: Seconds::new(ttft).unwrap(), itl: Seconds::new(itl).unwrap() };
            let batch = NonZeroU32::new(256).unwrap();
            let point = OperatingPoint::new(arrival, shape(input, output), batch, latencies).unwrap();
            let _ = tuner.learn(None, &point);

            if let Some(estimate) = tuner.estimate() {
                for interval in [estimate.alpha, estimate.beta, estimate.gamma] {
                    prop_assert!(interval.factor() >= 1.0 && interval.factor() < 25.0, "{estimate}");
                }
                prop_assert!(parameters(estimate.coefficients).iter().all(|value| *value > 0.0));
            }
        }
    }
}
