//! The rule by which learned state continues from a saved state.
//!
//! With leader election, the shared document may be read some ticks after a pipeline began. Its
//! longer experience then replaces the short one of these ticks. State of at least the same
//! experience stays, because its observations are newer.

use std::collections::BTreeMap;

use crate::fleet::VariantKey;

/// Learned state, which is compared by the experience behind it.
pub(crate) trait Experience {
    /// Returns true if this state rests on less experience than another one.
    fn knows_less_than(&self, other: &Self) -> bool;
}

/// Continues from the saved state of a variant if nothing is known yet, or less.
pub(crate) fn continue_from<T: Experience>(
    known: &mut BTreeMap<VariantKey, T>,
    variant: &VariantKey,
    saved: T,
) {
    if known.get(variant).is_none_or(|ours| ours.knows_less_than(&saved)) {
        known.insert(variant.clone(), saved);
    }
}
