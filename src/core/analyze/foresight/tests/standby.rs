//! Standby: what makes a variant one, and what it does while something is missing.

use super::*;
use crate::fleet::{Accelerator, VariantName};

/// A variant that serves, and another of its kind.
struct Pair {
    foresight: Foresight,
    policy: Policy,
    now: i64,
    /// Replicas of each.
    replicas: [u32; 2],
    /// How long they take to serve, as was measured.
    measured: [Option<Seconds>; 2],
    /// As was declared.
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

    /// A second in which each replica of the first gets this rate, and the others nothing.
    fn tick(&mut self, each: f64) -> Analysis {
        self.now += 1;
        let specs = ["a", "b"].map(|name| {
            let mut spec = VariantSpec::example("a");
            spec.key.variant = VariantName::new(name).unwrap();
            spec.accelerator = Accelerator::new("L4");
            spec
        });
        let specs: Vec<VariantSpec> = specs
            .into_iter()
            .zip(self.declared)
            .map(|(spec, start_time)| VariantSpec { start_time, ..spec })
            .collect();
        let keys: Vec<ReplicaKey> = (0..self.replicas[0])
            .map(|index| ReplicaKey {
                variant: specs[0].key.clone(),
                replica: ReplicaName::new(&format!("r{index}")).unwrap(),
                incarnation: None,
            })
            .collect();
        let stride = [second(self.now, PROMPT, each, 0.0)];
        let [waiting, running] = [stride[0].waiting, stride[0].running];
        let one = |replica| ReplicaStrides { replica, strides: &stride, waiting, running };
        let variants: Vec<VariantStrides<'_>> = (0..2)
            .map(|at| VariantStrides {
                current: Replicas::saturating(self.replicas[at]),
                room: Replicas::saturating(20),
                startup: self.measured[at],
                replicas: if at == 0 { keys.iter().map(one).collect() } else { Vec::new() },
                ..VariantStrides::example(&specs[at])
            })
            .collect();
        let (now, model) = (at(self.now), specs[0].model_key());
        analyze(now, (now, Front::UNSEEN), &self.policy, &model, &variants, &mut self.foresight)
    }

    fn run(&mut self, seconds: u32, each: f64) -> Analysis {
        (1..seconds).for_each(|_| drop(self.tick(each)));
        self.tick(each)
    }
}

#[test]
fn standby_keeps_what_it_carries_while_nobody_can_say_what_arrives() {
    let mut pair = Pair::new();
    pair.declared = [Some(Seconds::literal(120)), Some(Seconds::literal(5))];
    let _ = pair.run(300, 0.4 * truth());
    let bridging = pair.run(20, 1.4 * truth());
    let count = |analysis: &Analysis| -> u32 {
        analysis.bridges.values().map(|bridge| bridge.replicas.count()).sum()
    };
    assert!(!bridging.foreseen.is_empty() && count(&bridging) > 0, "{bridging:?}");
    // The clock is set back, and what has arrived is not of this time.
    pair.now -= 7_200;
    let blind = pair.tick(1.4 * truth());
    assert!(blind.foreseen.is_empty(), "{blind:?}");
    assert_eq!(count(&blind), count(&bridging));
    // Once somebody can say, it is as it is.
    let over = pair.run(300, 0.4 * truth());
    assert_eq!(count(&over), 0, "{:?}", over.foreseen);
}

#[test]
fn a_variant_that_has_never_started_makes_no_other_one_standby_and_nobody_wait() {
    let mut pair = Pair::new();
    pair.measured = [Some(Seconds::literal(30)), None];
    let reaction = pair.policy.reaction_time.seconds();
    let alone = |analysis: &Analysis, startup: f64| {
        let found = &analysis.foreseen[&Role::Both];
        (found.horizon - startup - reaction).abs() < 1e-9 && found.relief.is_none()
    };
    let found = pair.run(300, 0.4 * truth());
    assert!(alone(&found, 30.0), "{:?}", found.foreseen);
    // Nor is it standby for one that takes longer than what is usual.
    pair.measured = [Some(Seconds::literal(600)), None];
    let found = pair.run(10, 0.4 * truth());
    assert!(alone(&found, 600.0), "{:?}", found.foreseen);
    // Where something is declared of it, or it has replicas, it counts.
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

#[test]
fn a_bridge_does_without_the_share_of_a_replica_that_the_policy_allows() {
    let bridged = |excess: f64| -> u32 {
        let mut pair = Pair::new();
        pair.policy.rounding.excess = Fraction::new(excess).unwrap();
        pair.declared = [Some(Seconds::literal(120)), Some(Seconds::literal(5))];
        let _ = pair.run(300, 0.4 * truth());
        let bridging = pair.run(20, 1.3 * truth());
        bridging.bridges.values().map(|bridge| bridge.replicas.count()).sum()
    };

    assert!(bridged(0.05) > 1);
    assert_eq!(bridged(0.95), bridged(0.05) - 1);
}
