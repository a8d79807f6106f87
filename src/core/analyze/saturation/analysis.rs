//! The analysis of a model: its headroom, and the analysis of each variant in key order.

use std::iter::Map;
use std::ops::Index;
use std::slice;

use crate::analyze::saturation::explain::{ScaleDown, SpareLow};
use crate::fleet::{ReplicaKey, VariantKey};
use crate::units::{Fraction, Replicas, Requests};

/// Headroom: the distance to the thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SpareCapacity {
    /// The headroom of the KV cache.
    pub kv: Fraction,
    /// The headroom of the queue.
    pub queue: Requests,
}

/// The analysis of one variant's replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantAnalysis {
    /// The number of measured replicas.
    pub measured: Replicas,
    /// The saturated replicas among them, in key order.
    pub saturated: Vec<ReplicaKey>,
    /// The number of measured replicas that are not saturated.
    pub non_saturated: Replicas,
    /// The mean headroom of the replicas that are not saturated; zero if all are.
    pub spare: SpareCapacity,
    /// The highest KV cache usage of any replica.
    pub kv_max: Fraction,
    /// The mean KV cache usage of all replicas.
    pub kv_mean: Fraction,
    /// The longest queue of any replica.
    pub queue_max: Requests,
}

/// The analysis of a model's replicas.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct SaturationAnalysis {
    /// Each variant with at least one measured replica.
    pub variants: ByVariant,
    /// The number of measured replicas.
    pub measured: Replicas,
    /// The number of measured replicas that are not saturated.
    pub non_saturated: Replicas,
    /// The mean headroom of the replicas that are not saturated; zero if all are.
    pub spare: SpareCapacity,
    /// The low headroom; `None` if neither is low, or if no replica was measured.
    pub scale_up: Option<SpareLow>,
    /// The verdict on one replica less. It is computed even if headroom is low, but then scale-up
    /// takes precedence.
    pub scale_down: ScaleDown,
}

/// Iterates over findings in key order.
type Iter<'a> = Map<
    slice::Iter<'a, VariantEntry>,
    fn(&'a VariantEntry) -> (&'a VariantKey, &'a VariantAnalysis),
>;

/// A variant and its analysis.
type VariantEntry = (VariantKey, VariantAnalysis);

/// The analysis of each variant. A model has few variants and is analyzed every tick. A sorted list
/// needs a single allocation of the right size, while a map needs several larger ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByVariant(Vec<VariantEntry>);

impl ByVariant {
    /// Takes findings in key order, each key once.
    pub(super) fn from_sorted(found: impl Iterator<Item = VariantEntry>) -> Self {
        Self(found.collect())
    }

    /// The analysis of a variant.
    #[must_use]
    pub fn get(&self, variant: &VariantKey) -> Option<&VariantAnalysis> {
        let place = self.0.binary_search_by(|(key, _)| key.cmp(variant)).ok()?;
        Some(&self.0[place].1)
    }

    /// Returns true if the variant was analyzed.
    #[must_use]
    pub fn contains_key(&self, variant: &VariantKey) -> bool {
        self.get(variant).is_some()
    }

    /// The number of variants.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no variants.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each variant with its analysis.
    pub fn iter(&self) -> Iter<'_> {
        self.0.iter().map(|(key, found)| (key, found))
    }

    /// The analysis of each variant.
    pub fn values(&self) -> impl Iterator<Item = &VariantAnalysis> {
        self.0.iter().map(|(_, found)| found)
    }
}

impl<'a> IntoIterator for &'a ByVariant {
    type Item = (&'a VariantKey, &'a VariantAnalysis);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Index<&VariantKey> for ByVariant {
    type Output = VariantAnalysis;

    /// The analysis of a variant that was measured.
    ///
    /// # Panics
    ///
    /// Panics if the variant was not measured.
    fn index(&self, variant: &VariantKey) -> &VariantAnalysis {
        self.get(variant).expect("the caller knows that the variant was measured")
    }
}
