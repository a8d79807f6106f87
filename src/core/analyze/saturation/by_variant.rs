//! The analysis of each variant, in key order.

use std::iter::Map;
use std::ops::Index;
use std::slice;

use crate::analyze::saturation::VariantAnalysis;
use crate::fleet::VariantKey;

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
