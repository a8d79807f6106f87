use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::units::Amount;

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

/// A replica whose time between tokens is 6 ms + 73 ms * `kv`, with requests of 5,000 and 200
/// tokens, a tenth of the prompt cached.
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

fn arriving(rate: f64) -> Arrivals {
    Arrivals { rate: RequestRate::new(rate), waiting: Requests::ZERO }
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
        arrivals: Arrivals,
    ) -> Analysis {
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
        analyze(at(now), &Policy::default(), &variants, arrivals, &mut self.curves)
    }

    fn one(&mut self, now: i64, pace: ReplicaPace, arrivals: Arrivals) -> Analysis {
        self.analyze(now, &[(Role::Both, 1, &[pace])], arrivals)
    }

    fn line(&self) -> Line {
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
         fitted to present readings with an assumed intercept, and 4600 KV tokens a request; \
         nobody can say what is asked of 1 replica"
    );
    assert_eq!(analysis.report.total.demand, amount(1_000.0));
    let waiting = Requests::new(450.0).unwrap();
    let queued = bench.one(15, pace(0.5), Arrivals { waiting, ..arriving(5.0) });
    assert_eq!(queued.report.total.demand, amount(4_000.0));
    assert_eq!(
        queued.report.to_string(),
        "4000 of 2781 tokens/s are asked for, 1925 more are required"
    );
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
    assert_eq!(line.fit, Fit::Window);
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
    // After three steps of 8 % the prompts are 26 % longer than those of the first reading.
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
    let unknown = Arrivals::default();
    let analysis = Bench::default().one(0, generating, unknown);
    assert_eq!(analysis.report.total.demand, amount(1_250.0));
    let analysis = Bench::default().one(0, pace(0.3), unknown);
    assert_eq!(analysis.spare_withheld, Some(SpareWithheld::DemandUnknown));
    assert_eq!(analysis.report.total.spare, Amount::ZERO);
}

#[test]
fn a_silent_replica_keeps_its_supply_and_withholds_spare() {
    let mut bench = Bench::default();
    let (paces, key) = ([pace(0.5), pace(0.5)], VariantSpec::example("a").key);
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
    let _ = bench.one(30, other, arriving(0.1));
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

/// What a replica generates a second at this filling: each request of the batch a token a step.
fn generated_at(kv: f64, itl: f64) -> f64 {
    kv * 1_024_000.0 / 4_600.0 / itl
}

/// A replica at this filling and time between tokens, that generates what it is asked for.
fn serving(kv: f64, itl: f64) -> ReplicaPace {
    let generation = TokenRate::new(generated_at(kv, itl));
    ReplicaPace { itl: Seconds::new(itl), generation, ..pace(kv) }
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
        let mut total = |rate| {
            bench.curves = curves.clone();
            bench.analyze(180, &[(Role::Both, replicas, &paces)], arriving(rate)).report.total
        };
        let (less, more) = (total(rate), total(rate + more));
        prop_assert!(more.required >= less.required, "{less:?} {more:?}");
        prop_assert!(more.spare <= less.spare, "{less:?} {more:?}");
    }

    /// Whatever the line of the engine really is: of one reading with an assumed intercept, the share
    /// that is used grows with the load, because cache and time between tokens both do.
    #[test]
    fn of_one_reading_more_load_is_never_a_smaller_share(
        low in 0.05_f64..0.8,
        higher in 0.0_f64..0.2,
        itl in 0.007_f64..0.1,
        slower in 0.0_f64..0.1,
    ) {
        let share = |kv: f64, itl: f64| {
            let found = Bench::default().one(0, serving(kv, itl), Arrivals::default());
            found.report.total.demand.amount() / found.report.total.supply.amount()
        };
        let (less, more) = (share(low, itl), share(low + higher, itl + slower));
        prop_assert!(more >= less * (1.0 - 1e-9), "{less} {more}");
    }

    /// Over a window in which the load changes, tokens count where there were more of them, and the
    /// cache in use counts by time. So a replica looks slower than it is at the mean filling.
    #[test]
    fn a_change_of_load_makes_a_replica_look_weaker_and_never_stronger(
        before in 0.16_f64..0.84,
        after in 0.16_f64..0.84,
        since in 0.0_f64..1.0,
        idle in 0.0065_f64..0.02,
    ) {
        let itl = |kv: f64| idle + 0.073 * kv;
        let parts = [(before, 1.0 - since), (after, since)];
        let tokens = |(kv, time): (f64, f64)| generated_at(kv, itl(kv)) * time;
        let all: f64 = parts.into_iter().map(tokens).sum();
        let mean: f64 = parts.into_iter().map(|part| itl(part.0) * tokens(part)).sum::<f64>() / all;
        let kv: f64 = parts.into_iter().map(|(kv, time)| kv * time).sum();
        let capacity = |kv: f64, itl: f64| {
            let found = Bench::default().one(0, serving(kv, itl), Arrivals::default());
            found.report.variants[0].per_replica.unwrap().amount()
        };
        let (steady, changing) = (capacity(kv, itl(kv)), capacity(kv, mean));
        prop_assert!(changing <= steady * (1.0 + 1e-9), "{changing} of {steady}");
    }
}
