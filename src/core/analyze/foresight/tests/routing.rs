//! Routing: the usable capacity of unlike variants behind one router.

use super::*;
use crate::analyze::foresight::demand::Smoothing;
use crate::fleet::VariantName;
use crate::units::{CostPerHour, RequestRate};

/// The way in which a router shares requests among replicas.
#[derive(Clone, Copy)]
enum Sharing {
    /// Each replica gets the same rate.
    Alike,
    /// Each replica gets a rate in proportion to its capacity.
    ByCapacity,
}

/// The capacity of a slow replica, relative to a fast one.
const SLOW: f64 = 0.21;

/// A fast variant, and a variant with iterations that take twice as long.
struct Unlike {
    foresight: Foresight,
    policy: ForesightPolicy,
    now: i64,
    replicas: [u32; 2],
    /// The cost of a replica of each.
    costs: [f64; 2],
    /// True if one of the slow replicas must stay.
    slow_stays: bool,
    sharing: Sharing,
}

impl Unlike {
    fn new(sharing: Sharing) -> Self {
        let policy = World::new(1).policy;
        let foresight = Foresight::default();
        let replicas = [2, 2];
        Self { foresight, policy, now: 0, replicas, costs: [2.0, 1.0], slow_stays: false, sharing }
    }

    fn specs(&self) -> [VariantSpec; 2] {
        [0, 1].map(|at| {
            let mut spec = VariantSpec::example("a");
            spec.key.variant = VariantName::new(["fast", "slow"][at]).unwrap();
            spec.cost = CostPerHour::new(self.costs[at]).unwrap();
            spec
        })
    }

    /// A second in which all replicas together get this rate.
    fn tick(&mut self, rate: f64) -> ForesightAnalysis {
        self.now += 1;
        let specs = self.specs();
        let weights = match self.sharing {
            Sharing::Alike => [1.0, 1.0],
            Sharing::ByCapacity => [1.0, SLOW],
        };

        let counts = self.replicas.map(f64::from);
        let all = counts[0] * weights[0] + counts[1] * weights[1];
        let strides = [0, 1].map(|at| {
            let of = times_as_slow([1.0, 2.0][at]);
            [second_of(of, self.now, PROMPT, rate * weights[at] / all, 0.0)]
        });
        let keys = [0, 1].map(|at| keys(&specs[at], self.replicas[at]));

        let variants = [0, 1].map(|at| VariantStrides {
            current: Replicas::saturating(self.replicas[at]),
            min: Replicas::saturating(u32::from(at == 1 && self.slow_stays)),
            replicas: keys[at]
                .iter()
                .map(|replica| ReplicaStrides {
                    replica,
                    strides: &strides[at],
                    waiting: strides[at][0].waiting,
                    running: strides[at][0].running,
                })
                .collect(),
            ..VariantStrides::example(&specs[at])
        });

        look(at(self.now), &self.policy, &variants, &mut self.foresight)
    }

    /// The usable shares of both variants after ten minutes.
    fn usable(&mut self) -> [Fraction; 2] {
        let rate = 0.8 * truth();
        (0..600).for_each(|_| drop(self.tick(rate)));
        let found = self.tick(rate);
        self.specs().map(|spec| found.estimates[&spec.key].usable)
    }
}

/// The keys of this many replicas of a variant.
fn keys(spec: &VariantSpec, count: u32) -> Vec<ReplicaKey> {
    let mut keys = Vec::new();
    for index in 0..count {
        let replica = ReplicaName::new(&format!("r{index}")).unwrap();
        keys.push(ReplicaKey { variant: spec.key.clone(), replica, incarnation: None });
    }

    keys
}

#[test]
fn a_router_that_shares_by_capacity_leaves_nothing_unused() {
    let mut unlike = Unlike::new(Sharing::ByCapacity);
    assert_eq!(unlike.usable(), [Fraction::ONE, Fraction::ONE]);
    let found = unlike.tick(0.8 * truth());
    let [fast, slow] =
        unlike.specs().map(|spec| found.estimates[&spec.key].rate.requests_per_second());
    assert!((slow / fast / SLOW - 1.0).abs() < 0.1, "{slow} {fast}");
}

#[test]
fn a_router_that_shares_alike_lets_fast_replicas_carry_no_more_than_slow_ones() {
    let mut unlike = Unlike { slow_stays: true, ..Unlike::new(Sharing::Alike) };
    let [fast, slow] = unlike.usable().map(Fraction::fraction);
    let found = unlike.tick(0.8 * truth());
    let rates = unlike.specs().map(|spec| found.estimates[&spec.key].rate.requests_per_second());
    assert!(slow >= 1.0 && fast < 0.6, "{fast} {slow}");
    assert!((fast * rates[0] / (1.1 * rates[1]) - 1.0).abs() < 0.1, "{fast} of {rates:?}");

    let foreseen = &found.foreseen[&Role::Both];
    assert!(foreseen.unused > 0.2 && foreseen.to_string().contains("unused"), "{foreseen}");
}

#[test]
fn a_slow_variant_is_not_used_where_the_fast_one_alone_costs_less() {
    let mut unlike = Unlike::new(Sharing::Alike);
    assert_eq!(unlike.usable(), [Fraction::ONE, Fraction::ZERO]);
    let report = unlike.tick(0.8 * truth()).report;
    let slow = report.variants.iter().find(|it| it.key == unlike.specs()[1].key).unwrap();
    assert!(slow.per_replica.unwrap().amount() < 1e-6, "known, and too little to be asked for");

    let mut dear = Unlike { costs: [20.0, 1.0], ..Unlike::new(Sharing::Alike) };
    let [fast, slow] = dear.usable().map(Fraction::fraction);
    assert!(slow >= 1.0 && fast < 0.6, "it is worth its place next to a dear one: {fast} {slow}");
}

#[test]
fn who_switches_routing_off_counts_on_what_engines_carry() {
    let mut unlike = Unlike::new(Sharing::Alike);
    unlike.policy.routing = None;
    assert_eq!(unlike.usable(), [Fraction::ONE, Fraction::ONE]);
}

#[test]
fn a_known_variant_without_replicas_is_not_started_for_the_load_of_an_unknown_one() {
    let mut unlike = Unlike::new(Sharing::Alike);
    unlike.replicas = [0, 2];
    (0..600).for_each(|_| drop(unlike.tick(truth())));
    assert!(unlike.tick(truth()).estimates.contains_key(&unlike.specs()[1].key));

    unlike.replicas = [2, 0];
    let found = unlike.tick(truth());
    assert_eq!(found.report.unit, Unit::RequestsInFlight, "nothing is known of those that serve");
    assert_eq!(found.report.total.required, Amount::ZERO);
}

/// A replica with this limit, at which requests stay so many seconds.
fn limited(bound: CapacityBound, stay: u32) -> ReplicaCapacity {
    let rate = RequestRate::new(10.0).unwrap();
    ReplicaCapacity {
        rate,
        by_formula: rate,
        usable: Fraction::ONE,
        bound,
        alone: Seconds::ZERO,
        stay: Seconds::literal(stay),
    }
}

#[test]
fn the_limit_that_binds_is_that_of_the_replicas_with_the_load() {
    for names in [["a", "b"], ["b", "a"]] {
        let [empty, used] = names.map(VariantSpec::example);
        let keys = keys(&used, 3);
        let replicas = keys
            .iter()
            .map(|replica| ReplicaStrides { replica, strides: &[], waiting: None, running: None })
            .collect();

        let without = VariantStrides::example(&empty);
        let with = VariantStrides {
            current: Replicas::saturating(3),
            replicas,
            ..VariantStrides::example(&used)
        };
        let mut variants = vec![
            (&without, Some(limited(CapacityBound::Itl, 90))),
            (&with, Some(limited(CapacityBound::Ttft, 2))),
        ];
        variants.sort_by(|(a, _), (b, _)| a.spec.key.cmp(&b.spec.key));
        let side = RoleFleet { role: Role::Both, variants, by_card: false };

        let mut demand = RoleDemand::default();
        for second in 1..=60 {
            demand.arrivals.add(at(second), Seconds::literal(1), 20.0);
        }
        let front = GatewaySignals::UNSEEN;
        let look = ModelLook { now: at(60), through: at(60), front, unserved: None };
        let policy = ForesightPolicy::default();
        let found = side.foresee(&look, &policy, &mut demand, &[], None).unwrap();

        assert_eq!(found.bound, Some(CapacityBound::Ttft), "{names:?}");
        let smoothing = side.smoothing(Some(CapacityBound::Itl));
        assert_eq!(smoothing, Smoothing::Stay(2.0), "{names:?}");
    }
}
