//! The size of replicas that fits a model: the larger its demand, the larger its replicas.

use crate::units::{Amount, Replicas};

/// The preferred replica size of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preference {
    /// As many replicas as make the loss of one bearable. With five, it costs a fifth of the
    /// capacity.
    Spread(Replicas),
}

impl Preference {
    /// Returns the preferred size for a model with this demand, in the same unit. It is the
    /// available size that is nearest by ratio; of two equally near sizes, the smaller one. `None`
    /// without sizes or demand.
    #[must_use]
    pub fn size(self, demand: Amount, sizes: &[Amount]) -> Option<Amount> {
        let Self::Spread(replicas) = self;
        let ideal = demand.amount() / f64::from(replicas.count().max(1));

        sizes
            .iter()
            .copied()
            .filter(|size| *size > Amount::ZERO && ideal > 0.0)
            .min_by(|a, b| distance(*a, ideal).total_cmp(&distance(*b, ideal)).then(a.compare(*b)))
    }
}

/// Returns the distance of a size from the ideal one, by ratio.
fn distance(size: Amount, ideal: f64) -> f64 {
    (size.amount() / ideal).ln().abs()
}

impl Default for Preference {
    /// Five replicas.
    fn default() -> Self {
        Self::Spread(Replicas::saturating(5))
    }
}
