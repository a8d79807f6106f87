//! Replicas of a world: how many there may be, and how they start.

use rand::RngExt as _;

use crate::study::worlds::course::Need;
use crate::study::worlds::course::digits;
use crate::study::worlds::draw::Arrivals;
use crate::study::worlds::lot::{Chosen, Lot};
use crate::study::worlds::machines::count;
use crate::study::worlds::priors::{
    Aspect, NODE, NODES, OTHERS_MAX, PHASES, ROLLOUTS, STARTUP, STARTUP_SIGMA, UNAVAILABLE,
    UTILIZATION, WARM,
};

/// The most replicas of the first variant, over what the peak takes: far enough above it that
/// bounds are not what a world is about.
const MOST: f64 = 4.0;
const MOST_AT_LEAST: f64 = 3.0;

/// Where in a world a rollout may begin.
const ROLLOUT_AT: std::ops::Range<f64> = 0.2..0.8;

/// The replicas of a world.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    /// What it takes on average, in replicas of the first variant.
    pub(crate) need: f64,
    /// What the first replicas are used of what they carry.
    pub(crate) utilization: f64,
    /// Of each variant.
    pub(crate) counts: Vec<Counts>,
    pub(crate) startup: Start,
    pub(crate) rollout: Chosen<Option<Rollout>>,
}

/// Bounds of a variant, and what it starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) initial: u32,
}

/// How replicas start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Seconds, without waiting for a node.
    pub(crate) median: f64,
    pub(crate) sigma: f64,
    /// Whether there are nodes.
    pub(crate) nodes: &'static str,
    /// Where there are not for all.
    pub(crate) provisioned: Option<Provisioned>,
}

/// Nodes that must be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Provisioned {
    /// Replicas that need not wait.
    pub(crate) warm: u32,
    /// Seconds.
    pub(crate) node: f64,
}

/// Others take the place of all replicas.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rollout {
    /// Seconds.
    pub(crate) at: f64,
    pub(crate) max_unavailable: f64,
}

// === impl Fleet ===

impl Fleet {
    pub(crate) fn draw(lot: Lot, arrivals: &Arrivals) -> Self {
        let (mean, _) = arrivals.needs[0].mean_and_peak();
        let utilization = UTILIZATION.draw(&mut lot.of(Aspect::Initial));
        let counts = counts(lot, &arrivals.needs, utilization);
        Self {
            need: mean,
            utilization,
            startup: Start::draw(lot, mean, counts[0]),
            counts,
            rollout: rollout(lot, arrivals.length),
        }
    }
}

/// How many replicas of each variant there may be, and of the first at the start.
fn counts(lot: Lot, needs: &[Need], utilization: f64) -> Vec<Counts> {
    let mut random = lot.of(Aspect::Variants);
    let counts = needs.iter().enumerate().map(|(at, need)| {
        let (_, peak) = need.mean_and_peak();
        if at > 0 {
            let max = count(OTHERS_MAX.draw(&mut random) * peak).max(1);
            return Counts { min: 0, max, initial: 0 };
        }
        let max = count(MOST * peak + MOST_AT_LEAST);
        let initial = count((need.at(0.0) / utilization).ceil()).clamp(1, max);
        Counts { min: 1, max, initial }
    });
    counts.collect()
}

fn rollout(lot: Lot, length: f64) -> Chosen<Option<Rollout>> {
    let mut random = lot.of(Aspect::Rollout);
    let Chosen { name, value } = ROLLOUTS.draw(&mut random);
    let at = (length * random.random_range(ROLLOUT_AT)).round();
    let max_unavailable = UNAVAILABLE.draw(&mut random).value;
    Chosen { name, value: value.then_some(Rollout { at, max_unavailable }) }
}

// === impl Start ===

impl Start {
    fn draw(lot: Lot, need: f64, counts: Counts) -> Self {
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

    /// Seconds of a start that waits for a node, where some do.
    pub(crate) fn longest(&self) -> f64 {
        self.median + self.provisioned.map_or(0.0, |it| it.node)
    }

    /// Seconds of each phase: image, load and warm-up.
    pub(crate) fn phases(&self) -> [f64; 3] {
        PHASES.map(|share| digits(share * self.median, 3))
    }
}
