//! Replicas of a world: their bounds, and their starts.

use rand::RngExt as _;

use crate::study::worlds::arrivals::WorldArrivals;
use crate::study::worlds::course::Need;
use crate::study::worlds::distribution::DrawnOption;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::numbers::{count, digits};
use crate::study::worlds::priors::{
    Aspect, NODE, NODES, OTHERS_MAX, PHASES, ROLLOUTS, STARTUP, STARTUP_SIGMA, UNAVAILABLE,
    UTILIZATION, WARM,
};

/// The maximum replicas of the first variant, relative to the peak need: high enough that bounds do
/// not shape the result.
const MOST: f64 = 4.0;
const MOST_AT_LEAST: f64 = 3.0;

/// The part of a world in which a rollout may begin.
const ROLLOUT_AT: std::ops::Range<f64> = 0.2..0.8;

/// The replicas of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldFleet {
    /// The average need, in replicas of the first variant.
    pub(crate) need: f64,
    /// The utilization of the initial replicas' capacity.
    pub(crate) utilization: f64,
    /// The counts of each variant.
    pub(crate) counts: Vec<ReplicaBounds>,
    pub(crate) startup: WorldStartup,
    pub(crate) rollout: DrawnOption<Option<WorldRollout>>,
}

/// Bounds of a variant, and its initial replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaBounds {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) initial: u32,
}

/// The start of replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldStartup {
    /// Seconds, without waiting for a node.
    pub(crate) median: f64,
    pub(crate) sigma: f64,
    /// The name of the drawn node supply.
    pub(crate) nodes: &'static str,
    /// Set if there are no nodes for some replicas.
    pub(crate) provisioned: Option<Provisioned>,
}

/// Nodes that replicas must wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provisioned {
    /// Replicas that need not wait.
    pub(crate) warm: u32,
    /// Seconds.
    pub(crate) node: f64,
}

/// A rollout, which replaces all replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldRollout {
    /// Seconds.
    pub(crate) at: f64,
    pub(crate) max_unavailable: f64,
}

// === impl WorldFleet ===

impl WorldFleet {
    pub(crate) fn draw(lot: Lot, arrivals: &WorldArrivals) -> Self {
        let (mean, _) = arrivals.needs[0].mean_and_peak();
        let utilization = UTILIZATION.draw(&mut lot.of(Aspect::Initial));
        let counts = counts(lot, &arrivals.needs, utilization);

        Self {
            need: mean,
            utilization,
            startup: WorldStartup::draw(lot, mean, counts[0]),
            counts,
            rollout: rollout(lot, arrivals.length),
        }
    }
}

/// The bounds of each variant, and the initial replicas of the first.
fn counts(lot: Lot, needs: &[Need], utilization: f64) -> Vec<ReplicaBounds> {
    let mut random = lot.of(Aspect::Variants);
    let counts = needs.iter().enumerate().map(|(at, need)| {
        let (_, peak) = need.mean_and_peak();
        if at > 0 {
            let max = count(OTHERS_MAX.draw(&mut random) * peak).max(1);
            return ReplicaBounds { min: 0, max, initial: 0 };
        }

        let max = count(MOST * peak + MOST_AT_LEAST);
        let initial = count((need.at(0.0) / utilization).ceil()).clamp(1, max);
        ReplicaBounds { min: 1, max, initial }
    });

    counts.collect()
}

fn rollout(lot: Lot, length: f64) -> DrawnOption<Option<WorldRollout>> {
    let mut random = lot.of(Aspect::Rollout);
    let DrawnOption { name, value } = ROLLOUTS.draw(&mut random);
    let at = (length * random.random_range(ROLLOUT_AT)).round();
    let max_unavailable = UNAVAILABLE.draw(&mut random).value;
    DrawnOption { name, value: value.then_some(WorldRollout { at, max_unavailable }) }
}

// === impl WorldStartup ===

impl WorldStartup {
    fn draw(lot: Lot, need: f64, counts: ReplicaBounds) -> Self {
        let mut random = lot.of(Aspect::Startup);
        let median = digits(STARTUP.draw(&mut random), 2);
        let sigma = digits(STARTUP_SIGMA.draw(&mut random), 2);

        let mut random = lot.of(Aspect::Nodes);
        let nodes = NODES.draw(&mut random);
        let warm = count((need * WARM.draw(&mut random)).ceil()).max(counts.initial);
        let node = digits(NODE.draw(&mut random), 2);
        let provisioned = nodes.value.then_some(Provisioned { warm, node });
        Self { median, sigma, nodes: nodes.name, provisioned }
    }

    /// Seconds of a start that waits for a node, if some starts do.
    pub(crate) fn longest(&self) -> f64 {
        self.median + self.provisioned.map_or(0.0, |it| it.node)
    }

    /// Seconds of each phase: image, load and warm-up.
    pub(crate) fn phases(&self) -> [f64; 3] {
        PHASES.map(|share| digits(share * self.median, 3))
    }
}
