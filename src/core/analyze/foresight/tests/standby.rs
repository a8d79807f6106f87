//! Standby: the conditions for a standby variant, and its part in a need.

use super::*;
use crate::fleet::{Accelerator, VariantName};

/// A serving variant and another variant of the same kind.
struct Pair {
    foresight: Foresight,
    policy: ForesightPolicy,
    now: i64,
    /// Replicas of each variant.
    replicas: [u32; 2],
    /// Measured start-up times.
    measured: [Option<Seconds>; 2],
    /// Declared start-up times.
    declared: [Option<Seconds>; 2],
}

impl Pair {
    fn new() -> Self {
        Self {
            foresight: Foresight::default(),
            policy: World::new(1).policy,
            now: 0,
            replicas: [4, 0],
            measured: [None; 2],
            declared: [None; 2],
        }
    }

    /// A second in which each replica of the first variant gets this rate. The second variant gets
    /// none.
    fn tick(&mut self, each: f64) -> ForesightAnalysis {
        self.now += 1;
        let specs = [0, 1].map(|at| {
            let mut spec = VariantSpec::example("a");
            spec.key.variant = VariantName::new(["a", "b"][at]).unwrap();
            spec.accelerator = Accelerator::new("L4");
            spec.start_time = self.declared[at];
            spec
        });

        let keys: Vec<ReplicaKey> = (0..self.replicas[0])
            .map(|index| ReplicaKey {
                variant: specs[0].key.clone(),
                replica: ReplicaName::new(&format!("r{index}")).unwrap(),
                incarnation: None,
            })
            .collect();
        let stride = [second(self.now, PROMPT, each, 0.0)];
        let [waiting, running] = [stride[0].waiting, stride[0].running];
        let mut variants = Vec::new();
        for (at, spec) in specs.iter().enumerate() {
            variants.push(VariantStrides {
                current: Replicas::saturating(self.replicas[at]),
                room: Replicas::saturating(20),
                startup: self.measured[at],
                ..VariantStrides::example(spec)
            });
        }
        for replica in &keys {
            let replica = ReplicaStrides { replica, strides: &stride, waiting, running };
            variants[0].replicas.push(replica);
        }

        look(at(self.now), &self.policy, &variants, &mut self.foresight)
    }

    fn run(&mut self, seconds: u32, each: f64) -> ForesightAnalysis {
        (1..seconds).for_each(|_| drop(self.tick(each)));
        self.tick(each)
    }
}

/// The replicas of standby that bridge a load.
fn bridged(analysis: &ForesightAnalysis) -> u32 {
    analysis.bridges.values().map(|bridge| bridge.replicas.count()).sum()
}

#[test]
fn standby_keeps_its_share_while_arrivals_are_unknown() {
    let mut pair = Pair::new();
    pair.declared = [Some(Seconds::literal(120)), Some(Seconds::literal(5))];
    let _ = pair.run(300, 0.4 * truth());
    let bridging = pair.run(20, 1.4 * truth());
    assert!(!bridging.foreseen.is_empty() && bridged(&bridging) > 0, "{bridging:?}");

    // The clock jumps back, so the arrivals are from another time.
    pair.now -= 7_200;
    let blind = pair.tick(1.4 * truth());
    assert!(blind.foreseen.is_empty(), "{blind:?}");
    assert_eq!(bridged(&blind), bridged(&bridging));

    // Once arrivals are known again, the bridge ends.
    let over = pair.run(300, 0.4 * truth());
    assert_eq!(bridged(&over), 0, "{:?}", over.foreseen);
}

/// Asserts that no variant is standby, given the start-up time that counts and the reaction time.
fn assert_alone(analysis: &ForesightAnalysis, startup: f64, reaction: f64) {
    let found = &analysis.foreseen[&Role::Both];
    assert!((found.horizon - startup - reaction).abs() < 1e-9, "{found:?}");
    assert_eq!(found.relief, None, "{found:?}");
}

#[test]
fn a_variant_that_has_never_started_makes_no_other_one_standby_or_wait() {
    let mut pair = Pair::new();
    pair.measured = [Some(Seconds::literal(30)), None];
    let reaction = pair.policy.reaction_time.seconds();
    assert_alone(&pair.run(300, 0.4 * truth()), 30.0, reaction);

    // It is also no standby next to a variant that takes longer than the usual time.
    pair.measured = [Some(Seconds::literal(600)), None];
    assert_alone(&pair.run(10, 0.4 * truth()), 600.0, reaction);

    // With a declared start-up time, or with replicas, it counts.
    pair.measured = [Some(Seconds::literal(30)), None];
    pair.declared = [None, Some(Seconds::literal(300))];
    let declared = pair.run(10, 0.4 * truth()).foreseen[&Role::Both];
    assert!((declared.horizon - 300.0 - reaction).abs() < 1e-9, "{declared:?}");
    assert!((declared.relief.unwrap().startup - 30.0).abs() < 1e-9, "{declared:?}");

    (pair.declared, pair.replicas) = ([None; 2], [4, 1]);
    let usual = pair.run(10, 0.4 * truth()).foreseen[&Role::Both].horizon;
    assert!((usual - 60.0 - reaction).abs() < 1e-9, "{usual}");
    (pair.measured, pair.replicas) = ([None; 2], [4, 0]);
    let usual = pair.run(10, 0.4 * truth()).foreseen[&Role::Both].horizon;
    assert!((usual - 60.0 - reaction).abs() < 1e-9, "{usual}");
}

/// The replicas that bridge a load if this share of a replica may be missing.
fn bridged_with(excess: f64) -> u32 {
    let mut pair = Pair::new();
    pair.policy.rounding.excess = Fraction::new(excess).unwrap();
    pair.declared = [Some(Seconds::literal(120)), Some(Seconds::literal(5))];
    let _ = pair.run(300, 0.4 * truth());
    bridged(&pair.run(20, 1.3 * truth()))
}

#[test]
fn a_bridge_does_without_the_share_of_a_replica_that_the_policy_allows() {
    assert!(bridged_with(0.05) > 1);
    assert_eq!(bridged_with(0.95), bridged_with(0.05) - 1);
}
