//! What was found of each variant, in the order of their keys.

use std::iter::Map;
use std::ops::Index;
use std::slice;

use crate::analyze::saturation::VariantAnalysis;
use crate::fleet::VariantKey;

/// Walks through findings in the order of their keys.
type Iter<'a> = Map<slice::Iter<'a, Found>, fn(&'a Found) -> (&'a VariantKey, &'a VariantAnalysis)>;

/// A variant with what was found of it.
type Found = (VariantKey, VariantAnalysis);

/// A finding for each variant. A model has few variants, and is analysed every tick: a sorted list
/// is one allocation of the right size, where a map is several of many times it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByVariant(Vec<Found>);

impl ByVariant {
    /// Takes findings in the order of their keys, each key once.
    pub(super) fn from_sorted(found: impl Iterator<Item = Found>) -> Self {
        Self(found.collect())
    }

    /// What was found of a variant.
    #[must_use]
    pub fn get(&self, variant: &VariantKey) -> Option<&VariantAnalysis> {
        let place = self.0.binary_search_by(|(key, _)| key.cmp(variant)).ok()?;
        Some(&self.0[place].1)
    }

    /// Whether anything was found of a variant.
    #[must_use]
    pub fn contains_key(&self, variant: &VariantKey) -> bool {
        self.get(variant).is_some()
    }

    /// The number of variants.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each variant with what was found of it.
    pub fn iter(&self) -> Iter<'_> {
        self.0.iter().map(|(key, found)| (key, found))
    }

    /// What was found of each.
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

    /// What was found of a variant that is known to be there.
    ///
    /// # Panics
    ///
    /// It is not there.
    fn index(&self, variant: &VariantKey) -> &VariantAnalysis {
        self.get(variant).expect("the caller knows that the variant was measured")
    }
}
