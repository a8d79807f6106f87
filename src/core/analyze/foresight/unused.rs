//! Replicas that use a card and never get a request.
//!
//! A card does not permit scale-down, because no replica that uses it has confirmed it. A fleet
//! without a request never confirms it, and would never scale down. But without demand, the
//! capacity per replica hardly matters: a card that is wrong by half is wrong about a replica or
//! two. So after an hour without a request, the card permits scale-down. Desired replicas are
//! computed as before. One request ends that until the replicas have taught or another hour has
//! passed.
//!
//! A fleet that is prepared for a launch has a minimum, or gets its first request within the hour.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::VariantKey;
use crate::units::{Replicas, Seconds};

/// The time for which replicas must have had no request.
const UNUSED: Seconds = Seconds::literal(3600);

// === impl Foresight ===

impl Foresight {
    /// Notes the instant since which the replicas of these variants that use a card have had no
    /// request.
    pub(super) fn note_unused(&mut self, now: Timestamp, variants: &[VariantStrides<'_>]) {
        for variant in variants {
            let key = &variant.spec.key;
            let seen = self.variants.get(key);
            let is_unused = !variant.replicas.is_empty()
                && variant.silent == Replicas::ZERO
                && seen.is_some_and(VariantModel::awaits_load);

            if is_unused {
                let since = self.unused.entry(key.clone()).or_insert(now);
                *since = now.min(*since);
            } else {
                self.unused.remove(key);
            }
        }
    }

    /// The cards that these variants use.
    pub(super) fn cards_of(
        &self,
        variants: &[VariantStrides<'_>],
    ) -> BTreeMap<VariantKey, Arc<Card>> {
        let keys = variants.iter().map(|it| &it.spec.key);
        keys.filter_map(|key| Some((key.clone(), Arc::clone(self.card(key)?)))).collect()
    }

    /// The variants whose replicas use a card that does not permit scale-down.
    pub(super) fn bound_by_cards(
        &self,
        now: Timestamp,
        variants: &[VariantStrides<'_>],
    ) -> BTreeSet<VariantKey> {
        let staffed = variants.iter().filter(|it| it.current > Replicas::ZERO);
        let by_card = staffed.map(|it| &it.spec.key).filter(|key| self.card(key).is_some());
        by_card.filter(|key| !self.is_unused(now, key)).cloned().collect()
    }

    fn is_unused(&self, now: Timestamp, variant: &VariantKey) -> bool {
        let since = self.unused.get(variant);
        let unused = since.and_then(|since| Seconds::from_span(now.duration_since(*since)));
        unused.is_some_and(|unused| unused >= UNUSED)
    }
}
