use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::analyze::tokens::capacity::RequestShape;
use crate::units::{Amount, Fraction};

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

/// A replica with a time between tokens of 6 ms + 73 ms * `kv`, and requests of 5,000 and 200
/// tokens. A tenth of the prompt is cached.
fn pace(kv: f64) -> ReplicaPace {
    ReplicaPace {
        kv_usage: Fraction::new(kv),
        kv_capacity: Tokens::new(1_024_000.0),
        itl: Seconds::new(0.073 * kv + 0.006),
        requests: RequestShape {
            prompt: Tokens::new(5_000.0),
            output: Tokens::new(200.0),
            prefix_hits: Fraction::new(0.1),
        },
        ..ReplicaPace::default()
    }
}

fn arriving(rate: f64) -> FrontDemand {
    FrontDemand { rate: RequestRate::new(rate), waiting: Requests::ZERO }
}

/// The variants of a model through time.
#[derive(Default)]
struct Bench {
    curves: Curves,
}

impl Bench {
    fn analyze(
        &mut self,
        now: i64,
        fleet: &[(Role, u32, &[ReplicaPace])],
        arrivals: FrontDemand,
    ) -> ThroughputAnalysis {
        let specs: Vec<VariantSpec> = ["a", "b", "c"]
            .iter()
            .zip(fleet)
            .map(|(name, (role, ..))| VariantSpec { role: *role, ..VariantSpec::example(name) })
            .collect();

        let variants: Vec<VariantPace<'_>> = specs
            .iter()
            .zip(fleet)
            .map(|(spec, (_, current, replicas))| VariantPace {
                spec,
                current: n(*current),
                pending: Replicas::ZERO,
                leaving: Replicas::ZERO,
                replicas,
            })
            .collect();

        analyze(at(now), &ThroughputPolicy::default(), &variants, arrivals, &mut self.curves)
    }

    fn one(&mut self, now: i64, pace: ReplicaPace, arrivals: FrontDemand) -> ThroughputAnalysis {
        self.analyze(now, &[(Role::Both, 1, &[pace])], arrivals)
    }

    fn line(&self) -> CurveLine {
        self.curves.get(&VariantSpec::example("a").key).unwrap().line().unwrap()
    }

    fn readings(&self) -> usize {
        self.curves.get(&VariantSpec::example("a").key).unwrap().readings.len()
    }
}

// The worked example of docs/models.md.
#[test]
fn the_worked_example_holds() {
    let mut bench = Bench::default();
    let analysis = bench.one(0, pace(0.5), arriving(5.0));
    assert_eq!(
        analysis.variants[0].to_string(),
        "a full replica generates 2781 tokens/s, with 6.0 ms + 73.0 ms * KV usage between tokens, \
         fitted to current readings with an assumed intercept, and 4600 KV tokens per request; \
         the demand on 1 replica is unknown"
    );
    assert_eq!(analysis.report.total.demand, amount(1_000.0));

    let waiting = Requests::new(450.0).unwrap();
    let queued = bench.one(15, pace(0.5), FrontDemand { waiting, ..arriving(5.0) });
    assert_eq!(queued.report.total.demand, amount(4_000.0));
    assert_eq!(queued.report.to_string(), "demand 4000 of 2781 tokens/s, 1925 short");
}

#[test]
fn ten_readings_that_lie_apart_give_a_line_of_their_own() {
    let mut bench = Bench::default();
    for reading in 0..10 {
        let mut slow = pace(0.2 + 0.05 * f64::from(reading));
        slow.itl = slow.itl.map(|itl| itl + Seconds::new(0.004).unwrap());
        let _ = bench.one(15 * i64::from(reading), slow, arriving(5.0));
    }

    let line = bench.line();
    assert_eq!(line.fit, LineFit::Window);
    assert_eq!(line.to_string(), "10.0 ms + 73.0 ms * KV usage between tokens");
}

#[test]
fn a_slow_drift_of_the_requests_drops_old_readings_too() {
    let mut bench = Bench::default();
    let mut prompt = 5_000.0;
    for reading in 0..4 {
        let mut drifting = pace(0.5);
        drifting.requests.prompt = Tokens::new(prompt);
        let _ = bench.one(15 * i64::from(reading), drifting, arriving(5.0));
        prompt *= 1.08;
    }

    // After three steps of 8% the prompts are 26% longer than those of the first reading.
    assert_eq!(bench.readings(), 1);
}

#[test]
fn prefill_is_neither_required_nor_spare_by_the_rate_of_decoding() {
    let mut bench = Bench::default();
    let paces = [pace(0.5)];
    let fleet: [(Role, u32, &[ReplicaPace]); 2] =
        [(Role::Prefill, 1, &paces), (Role::Decode, 1, &paces)];
    let analysis = bench.analyze(0, &fleet, arriving(5.0));

    assert_eq!(analysis.report.variants.len(), 1);
    assert_eq!(analysis.report.roles.keys().collect::<Vec<_>>(), [&Role::Decode]);
    assert_eq!(analysis.report.roles[&Role::Decode].demand, amount(1_000.0));
}

#[test]
fn without_a_count_of_arrivals_the_replicas_say_what_is_asked_and_else_nothing_is_spare() {
    let mut generating = pace(0.3);
    generating.generation = TokenRate::new(1_250.0);
    let unknown = FrontDemand::default();
    let analysis = Bench::default().one(0, generating, unknown);
    assert_eq!(analysis.report.total.demand, amount(1_250.0));

    let analysis = Bench::default().one(0, pace(0.3), unknown);
    assert_eq!(analysis.spare_withheld, Some(SpareWithheld::DemandUnknown));
    assert_eq!(analysis.report.total.spare, Amount::ZERO);
}

#[test]
fn a_silent_replica_keeps_its_supply_and_withholds_spare() {
    let mut bench = Bench::default();
    let paces = [pace(0.5), pace(0.5)];
    let key = VariantSpec::example("a").key;
    let _ = bench.analyze(0, &[(Role::Both, 2, &paces)], arriving(1.0));
    let analysis = bench.analyze(15, &[(Role::Both, 2, &[])], arriving(1.0));

    assert_eq!(analysis.report.variants[0].replicas, n(2));
    assert!(analysis.report.total.supply > amount(5_500.0));
    assert_eq!(analysis.spare_withheld, Some(SpareWithheld::Silent(key)));
    assert_eq!(analysis.report.total.spare, Amount::ZERO);
}

#[test]
fn a_rate_that_is_not_the_predicted_one_withholds_spare_and_in_the_end_drops_the_readings() {
    let mut bench = Bench::default();
    let mut other = pace(0.5);
    other.generation = TokenRate::new(100.0);
    for reading in 0..2 {
        let analysis = bench.one(15 * reading, other.clone(), arriving(0.1));
        assert!(matches!(analysis.spare_withheld, Some(SpareWithheld::Disagrees(_))));
    }

    assert_eq!(bench.readings(), 2);
    let analysis = bench.one(30, other, arriving(0.1));
    assert!(matches!(analysis.spare_withheld, Some(SpareWithheld::Disagrees(_))));
    assert_eq!(bench.readings(), 0);
}

#[test]
fn a_replica_that_shows_nothing_of_its_pace_has_no_capacity() {
    let unusable = [
        ReplicaPace { itl: Seconds::new(0.0), ..pace(0.5) },
        ReplicaPace { requests: RequestShape::default(), ..pace(0.5) },
        ReplicaPace { kv_capacity: None, ..pace(0.5) },
        ReplicaPace { kv_usage: None, ..pace(0.5) },
    ];

    for pace in unusable {
        let mut bench = Bench::default();
        let analysis = bench.one(0, pace, arriving(5.0));
        assert_eq!(bench.readings(), 0);
        assert_eq!(analysis.variants[0].capacity, None);
    }
}

#[test]
fn a_curve_is_forgotten_after_an_hour() {
    let mut bench = Bench::default();
    let _ = bench.one(0, pace(0.5), arriving(5.0));
    bench.curves.forget(at(3_600));
    assert_eq!(bench.readings(), 1);
    bench.curves.forget(at(3_601));
    assert_eq!(bench.curves, Curves::default());
}

#[test]
fn a_longer_curve_that_is_read_late_replaces_a_shorter_one_unless_it_has_expired() {
    let key = VariantSpec::example("a").key;
    let mut bench = Bench::default();
    for reading in 0..10 {
        let _ = bench.one(15 * reading, pace(0.2 + 0.05 * reading as f64), arriving(5.0));
    }
    let saved = bench.curves.get(&key).unwrap().clone();

    let mut late = Bench::default();
    let _ = late.one(150, pace(0.5), arriving(5.0));
    let short = late.curves.get(&key).unwrap().clone();
    assert_eq!(late.line().fit, LineFit::InterceptAssumed);
    late.curves.recall(&key, &saved);
    assert_eq!(late.curves.get(&key), Some(&saved));
    late.curves.recall(&key, &short);
    assert_eq!(late.curves.get(&key), Some(&saved));

    let mut later = Bench::default();
    let _ = later.one(7_200, pace(0.5), arriving(5.0));
    later.curves.recall(&key, &saved);
    assert_eq!(later.readings(), 1);
}

/// Tokens/s that a replica generates at this cache usage: one token per step for each request in
/// the batch.
fn generated_at(kv: f64, itl: f64) -> f64 {
    kv * 1_024_000.0 / 4_600.0 / itl
}

/// The engine's line: the time between tokens at this cache usage.
fn itl_at(kv: f64, idle: f64) -> f64 {
    idle + 0.073 * kv
}

/// A replica at this cache usage and time between tokens that generates all tokens in demand.
fn serving(kv: f64, itl: f64) -> ReplicaPace {
    let generation = TokenRate::new(generated_at(kv, itl));
    ReplicaPace { itl: Seconds::new(itl), generation, ..pace(kv) }
}

/// The demand on such a replica as a share of its supply, from one reading.
fn share_of(kv: f64, itl: f64) -> f64 {
    let found = Bench::default().one(0, serving(kv, itl), FrontDemand::default());
    found.report.total.demand.amount() / found.report.total.supply.amount()
}

/// The capacity of such a replica, from one reading.
fn capacity_of(kv: f64, itl: f64) -> f64 {
    let found = Bench::default().one(0, serving(kv, itl), FrontDemand::default());
    found.report.variants[0].per_replica.unwrap().amount()
}

proptest! {
    #[test]
    fn for_one_line_more_load_never_requires_less_and_never_leaves_more_to_spare(
        kv in 0.2_f64..0.8,
        rate in 0.1_f64..30.0,
        more in 0.0_f64..30.0,
        replicas in 1_u32..20,
    ) {
        let mut bench = Bench::default();
        for reading in 0..12 {
            let _ = bench.one(15 * i64::from(reading), pace(0.2 + 0.05 * f64::from(reading)), arriving(1.0));
        }

        let curves = bench.curves.clone();
        let paces = vec![pace(kv); usize::try_from(replicas).unwrap()];
        let fleet = [(Role::Both, replicas, paces.as_slice())];
        let light = bench.analyze(180, &fleet, arriving(rate)).report.total;
        bench.curves = curves;
        let heavy = bench.analyze(180, &fleet, arriving(rate + more)).report.total;
        prop_assert!(heavy.required >= light.required, "{light:?} {heavy:?}");
        prop_assert!(heavy.spare <= light.spare, "{light:?} {heavy:?}");
    }

    /// This holds for any true line of the engine. With one reading and an assumed intercept, the
    /// used share grows with the load, because cache usage and time between tokens both grow.
    #[test]
    fn of_one_reading_more_load_is_never_a_smaller_share(
        low in 0.05_f64..0.8,
        higher in 0.0_f64..0.2,
        itl in 0.007_f64..0.1,
        slower in 0.0_f64..0.1,
    ) {
        let less = share_of(low, itl);
        let more = share_of(low + higher, itl + slower);
        prop_assert!(more >= less * (1.0 - 1e-9), "{less} {more}");
    }

    /// Over a window in which the load changes, the time between tokens is weighted by tokens, and
    /// the cache usage by time. So a replica looks slower than it is at the mean cache usage.
    #[test]
    fn a_change_of_load_makes_a_replica_look_weaker_and_never_stronger(
        before in 0.16_f64..0.84,
        after in 0.16_f64..0.84,
        since in 0.0_f64..1.0,
        idle in 0.0065_f64..0.02,
    ) {
        let usages = [before, after];
        let times = [1.0 - since, since];
        let tokens = [0, 1].map(|part| {
            let itl = itl_at(usages[part], idle);
            generated_at(usages[part], itl) * times[part]
        });

        let all: f64 = tokens.iter().sum();
        let weighted: f64 =
            [0, 1].iter().map(|&part| itl_at(usages[part], idle) * tokens[part]).sum();
        let usage: f64 = [0, 1].iter().map(|&part| usages[part] * times[part]).sum();

        let steady = capacity_of(usage, itl_at(usage, idle));
        let changing = capacity_of(usage, weighted / all);
        prop_assert!(changing <= steady * (1.0 + 1e-9), "{changing} of {steady}");
    }
}
