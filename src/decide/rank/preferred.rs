//! The size that fits a fleet: the larger the fleet, the larger its parts.

use crate::units::{Amount, Replicas};

/// Preferred CPUs of a node, by the number of nodes up to which they hold, in the Cluster
/// Autoscaler 1.37. A larger cluster prefers [`PREFERRED_MOST`].
///
/// The proposal has 80 and 300 in place of 60 and 200, and counts 20 and 80 in two rows each. The
/// code follows its rule of thumb, by which nodes double when the cluster triples.
pub const PREFERRED: [(u32, u32); 5] = [(2, 1), (6, 2), (20, 4), (60, 8), (200, 16)];

/// Preferred CPUs of a node in a cluster above the table.
const PREFERRED_MOST: u32 = 32;

/// Preferred CPUs of a node in a cluster of so many nodes.
#[must_use]
pub fn preferred_cpus(nodes: u32) -> u32 {
    let row = PREFERRED.iter().find(|(up_to, _)| nodes <= *up_to);
    row.map_or(PREFERRED_MOST, |(_, cpus)| *cpus)
}

/// Which size of replica a model should have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preference {
    /// Replicas that carry this much.
    Size(Amount),
    /// As many replicas as make the loss of one bearable: with five, a fifth of the capacity.
    Spread(Replicas),
}

impl Preference {
    /// The preferred size for a model with this demand, in the same unit: of the sizes that there
    /// are the nearest by ratio, the smaller of two equally near. `None` without sizes or demand.
    #[must_use]
    pub fn size(self, demand: Amount, sizes: &[Amount]) -> Option<Amount> {
        let ideal = match self {
            Self::Size(size) => size.amount(),
            Self::Spread(replicas) => demand.amount() / f64::from(replicas.count().max(1)),
        };
        let distance = |size: &Amount| (size.amount() / ideal).ln().abs();
        sizes
            .iter()
            .filter(|size| **size > Amount::ZERO && ideal > 0.0)
            .min_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.compare(**b)))
            .copied()
    }
}

impl Default for Preference {
    /// Five replicas.
    fn default() -> Self {
        Self::Spread(Replicas::saturating(5))
    }
}
