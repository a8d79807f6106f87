//! The model against its sources.

mod engine;

use std::num::NonZeroU32;

use proptest::prelude::{prop_assert, proptest};

use super::*;
use crate::analyze::capacity::Confidence;
use crate::fleet::{ReplicaKey, ReplicaName, Role, VariantSpec};
use crate::units::{CostPerHour, Replicas, RequestRate, Seconds, TimePerToken, Tokens};

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).unwrap()
}

fn rate(per_second: f64) -> RequestRate {
    RequestRate::new(per_second).unwrap()
}

fn micros(value: f64) -> TimePerToken {
    TimePerToken::new(value / 1e6).unwrap()
}

fn shape(input: f64, output: f64) -> MeanRequest {
    let lengths =
        MeanLengths { input: Tokens::new(input).unwrap(), output: Tokens::new(output).unwrap() };
    MeanRequest::new(lengths).unwrap()
}

/// The example of the sources: alpha 5 ms, beta 50 us, gamma 50 ns, 512 input and 128 output
/// tokens.
fn m1() -> Coefficients {
    SharedCoefficients { alpha: seconds(5e-3), beta: micros(50.0), gamma: micros(0.05) }.into()
}

fn model() -> QueueingModel {
    QueueingModel::new(m1(), shape(512.0, 128.0), ReplicaRoom::default())
}

fn mean(limit: f64) -> LatencyTarget {
    LatencyTarget { limit: seconds(limit), of: Statistic::Mean }
}

/// Asserts that two numbers differ by at most `slack`.
fn assert_near(found: f64, wanted: f64, slack: f64) {
    assert!((found - wanted).abs() <= slack, "{found}, not {wanted}");
}

fn inferred(model: QueueingModel) -> Slo {
    resolve(
        &LatencyTargets::default(),
        &TargetInference::default(),
        &[model],
        &ObservedLatencies::default(),
    )
    .unwrap()
}

#[test]
fn a_slowdown_of_three_allows_two_thirds_of_what_a_full_batch_finishes() {
    let slo = inferred(model());
    let found = model().rate_for(&slo.targets).unwrap();
    let full = model().rate_max().unwrap().requests_per_second() / 0.999;
    assert_near(found.rate.requests_per_second(), full * 2.0 / 3.0, 1e-3);
    assert_near(found.rate.requests_per_second(), 17.373, 1e-3);
}

#[test]
fn the_chain_of_an_endless_batch_has_a_closed_mean() {
    // A negative binomial distribution: n = (lambda s0 + rho) / (1 - rho).
    let room = ReplicaRoom { batch: NonZeroU32::new(4000).unwrap(), queue: 0 };
    let model = QueueingModel::new(m1(), shape(512.0, 128.0), room);
    let at = model.at(rate(20.0)).unwrap();

    let delta = 50e-6 * 640.0 / 129.0 + 50e-9 * 576.0;
    let rho = 20.0 * 129.0 * delta;
    let s0 = 129.0 * 5e-3 + 50.05e-6 * 512.0 + 128.0 * (50e-6 + 50e-9 * 576.5);
    assert_near(at.in_service.requests(), (20.0 * s0 + rho) / (1.0 - rho), 1e-6);
    assert_eq!(at.wait, Seconds::ZERO);
}

#[test]
fn a_target_below_the_idle_latency_is_a_verdict() {
    let targets = LatencyTargets { ttft: Some(mean(0.010)), itl: None };
    let refusal = model().rate_for(&targets).unwrap_err();
    assert!(matches!(refusal, QueueingRefusal::IdleFloor { metric: LatencyMetric::Ttft, .. }));
    assert_eq!(
        refusal.to_string(),
        "the TTFT target a mean of 10.0 ms is unreachable at any number of replicas: an idle replica takes 30.6 ms"
    );
}

#[test]
fn a_target_that_nothing_reaches_leaves_the_throughput() {
    let targets = LatencyTargets { ttft: Some(mean(1000.0)), itl: Some(seconds(1000.0)) };
    let capacity = model().rate_for(&targets).unwrap();
    assert_eq!(capacity.limit, RateBound::Throughput);
    assert_eq!(Some(capacity.rate), model().rate_max());
}

#[test]
fn nothing_and_too_much_have_no_latency() {
    assert_eq!(model().at(RequestRate::ZERO), Err(QueueingRefusal::Idle));
    assert!(matches!(model().at(rate(30.0)), Err(QueueingRefusal::Overload { .. })));
}

#[test]
fn a_replica_with_one_place_has_a_latency() {
    let room = ReplicaRoom { batch: NonZeroU32::MIN, queue: 0 };
    let model = QueueingModel::new(m1(), shape(512.0, 128.0), room);
    let at = model.at(rate(1.0)).unwrap();
    // Erlang's loss formula with one server: the share a / (1 + a) is lost.
    let load = 1.0 / model.rate_max().unwrap().requests_per_second() * 0.999;
    assert_near(at.throughput.requests_per_second(), 1.0 / (1.0 + load), 1e-9);
}

// === variants of a model ===

fn variant(name: &str, arrivals: &[f64], replicas: u32) -> QueueingVariantLoad {
    let key = VariantSpec::example(name).key;
    let loads = arrivals.iter().enumerate().map(|(index, arrival)| QueueingReplicaLoad {
        replica: ReplicaKey {
            variant: key.clone(),
            replica: ReplicaName::new(&format!("{name}-{index}")).unwrap(),
            incarnation: None,
        },
        arrival: rate(*arrival),
        shape: Some(shape(512.0, 128.0)),
        ttft: Some(seconds(0.035)),
        itl: Some(seconds(0.010)),
        batch: None,
    });

    QueueingVariantLoad {
        loads: loads.collect(),
        key,
        role: Role::Both,
        cost: CostPerHour::ZERO,
        replicas: Replicas::saturating(replicas),
        pending: Replicas::ZERO,
        learned: Some((m1(), Confidence::Measured)),
    }
}

fn sized(analysis: &QueueingAnalysis, index: usize) -> u32 {
    match analysis.variants[index].sizing {
        Sizing::Sized { needed, .. } => needed.count(),
        Sizing::Unsized(why) => panic!("{why}"),
    }
}

#[test]
fn what_is_missing_is_required_and_said() {
    let analysis = analyze(&[variant("a", &[20.0, 25.0], 2)], &QueueingPolicy::default());
    assert_eq!(sized(&analysis, 0), 3);

    let total = analysis.report.total;
    let per_replica = analysis.report.variants[0].per_replica.unwrap().amount();
    assert_near(total.demand.amount(), 45.0, 1e-9);
    assert_near(total.required.amount(), 45.0 - 2.0 * per_replica, 1e-9);

    assert_eq!(
        analysis.variants[0].sizing.to_string(),
        "45.000 requests/s arrive and one replica serves 17.373 requests/s, where TTFT reaches a \
         mean of 73.0 ms, so 3 replicas are needed"
    );
    assert_eq!(
        analysis.slo.unwrap().to_string(),
        "TTFT up to a mean of 73.0 ms, ITL up to a mean of 14.4 ms, from iterations that take 3.0 times as long as an idle one"
    );
}

#[test]
fn what_is_too_much_is_spare() {
    let analysis = analyze(&[variant("a", &[5.0, 5.0, 5.0], 3)], &QueueingPolicy::default());
    assert_eq!(sized(&analysis, 0), 1);
    let total = analysis.report.total;
    assert_near(total.required.amount(), 0.0, 0.0);
    assert_near(total.spare.amount(), total.supply.amount() - 15.0, 1e-9);
}

#[test]
fn an_idle_variant_is_sized_for_the_requests_of_the_others() {
    let variants = [variant("a", &[10.0], 1), variant("b", &[], 1)];
    let analysis = analyze(&variants, &QueueingPolicy::default());
    assert!(analysis.report.variants[1].per_replica.is_some());
    assert_eq!(analysis.report.variants[1].confidence, Confidence::Remembered);
}

#[test]
fn a_replica_without_means_says_nothing_about_the_others() {
    let mut silent = variant("a", &[10.0, 10.0], 2);
    let means = aggregate(&silent.loads);
    silent.loads[1].shape = None;
    silent.loads[1].ttft = None;
    silent.loads[1].itl = None;
    assert_eq!(aggregate(&silent.loads), means);
}

#[test]
fn a_variant_of_which_nothing_is_known_is_in_no_sum() {
    let mut unlearned = variant("b", &[10.0], 1);
    unlearned.learned = None;
    let analysis = analyze(&[variant("a", &[10.0], 1), unlearned], &QueueingPolicy::default());
    assert_eq!(analysis.variants[1].sizing, Sizing::Unsized(SizingFailure::NotLearned));
    assert_near(analysis.report.total.demand.amount(), 10.0, 1e-9);
}

#[test]
fn an_unreachable_objective_asks_for_no_replica() {
    let targets = LatencyTargets { ttft: Some(mean(0.001)), itl: None };
    let policy = QueueingPolicy { targets, ..QueueingPolicy::default() };
    let analysis = analyze(&[variant("a", &[500.0], 1)], &policy);

    let Sizing::Unsized(SizingFailure::Refused(QueueingRefusal::IdleFloor { .. })) =
        analysis.variants[0].sizing
    else {
        panic!("{:?}", analysis.variants[0].sizing)
    };
    assert_near(analysis.report.total.required.amount(), 0.0, 0.0);
}

#[test]
fn roles_answer_for_their_own_latency() {
    let prefill = QueueingVariantLoad { role: Role::Prefill, ..variant("p", &[10.0], 1) };
    let decode = QueueingVariantLoad { role: Role::Decode, ..variant("d", &[10.0], 1) };
    let analysis = analyze(&[prefill, decode], &QueueingPolicy::default());

    let limits: Vec<LatencyMetric> = analysis
        .variants
        .iter()
        .filter_map(|variant| match variant.sizing {
            Sizing::Sized {
                capacity: RateCapacity { limit: RateBound::Target { metric, .. }, .. },
                ..
            } => Some(metric),
            _ => None,
        })
        .collect();
    assert_eq!(limits, [LatencyMetric::Itl, LatencyMetric::Ttft]);
    assert_eq!(analysis.report.roles.len(), 2);
}

#[test]
fn what_is_observed_counts_up_to_its_cap_before_anything_is_learned() {
    let observed = ObservedLatencies { ttft: Some(seconds(20.0)), itl: Some(seconds(0.040)) };
    let slo =
        resolve(&LatencyTargets::default(), &TargetInference::default(), &[], &observed).unwrap();
    assert_eq!(slo.targets.ttft.unwrap().limit, seconds(10.0));
    assert_near(slo.targets.itl.unwrap().seconds(), 0.06, 1e-12);
    assert_eq!(
        resolve(
            &LatencyTargets::default(),
            &TargetInference::default(),
            &[],
            &ObservedLatencies::default()
        ),
        None
    );
}

proptest! {
    #[test]
    fn latency_grows_with_the_rate_and_capacity_keeps_the_target(
        alpha in 1.0..30.0_f64, beta in 5.0..200.0_f64, gamma in 0.005..0.5_f64,
        input in 10.0..8000.0_f64, output in 2.0..2000.0_f64, batch in 2_u32..300, share in 0.05..0.9_f64,
    ) {
        let coefficients = SharedCoefficients {
            alpha: seconds(alpha / 1000.0), beta: micros(beta), gamma: micros(gamma),
        };
        let room = ReplicaRoom { batch: NonZeroU32::new(batch).unwrap(), queue: 100 };
        let model = QueueingModel::new(coefficients.into(), shape(input, output), room);
        let max = model.rate_max().unwrap().requests_per_second();
        let low = model.at(rate(share * 0.9 * max)).unwrap();
        let high = model.at(rate(share * max)).unwrap();
        prop_assert!(low.ttft <= high.ttft);
        prop_assert!(low.in_service < high.in_service);

        let limit = high.ttft;
        let targets = LatencyTargets { ttft: Some(LatencyTarget { limit, of: Statistic::Mean }), itl: None };
        let found = model.rate_for(&targets).unwrap();
        // The search ends within a millionth of the rate, and near full load a latency grows about
        // thirty times as fast.
        prop_assert!((found.at.ttft.seconds() / limit.seconds() - 1.0).abs() < 1e-4);
    }

    #[test]
    fn more_arrivals_never_need_fewer_replicas(a in 0.1..200.0_f64, more in 0.0..100.0_f64) {
        let policy = QueueingPolicy {
            targets: LatencyTargets { ttft: Some(mean(0.040)), itl: Some(seconds(0.015)) }, ..QueueingPolicy::default()
        };
        let light = analyze(&[variant("a", &[a], 1)], &policy);
        let heavy = analyze(&[variant("a", &[a + more], 1)], &policy);
        prop_assert!(sized(&light, 0) <= sized(&heavy, 0));
    }
}
