//! The size of replicas that fits a model: the larger its demand, the larger its replicas.

use crate::units::{Amount, Replicas};

/// Which size of replica a model should have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preference {
    /// As many replicas as make the loss of one bearable: with five, a fifth of the capacity.
    Spread(Replicas),
}

impl Preference {
    /// The preferred size for a model with this demand, in the same unit: of the sizes that there
    /// are the nearest by ratio, the smaller of two equally near. `None` without sizes or demand.
    #[must_use]
    pub fn size(self, demand: Amount, sizes: &[Amount]) -> Option<Amount> {
        let Self::Spread(replicas) = self;
        let ideal = demand.amount() / f64::from(replicas.count().max(1));
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
