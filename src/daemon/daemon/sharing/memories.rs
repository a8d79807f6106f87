//! The memories in a draft of the shared document.

use std::collections::BTreeMap;

use crate::daemon::sharing::Sharing;
use crate::publish::state::VariantMemories;
use crate::publish::state::shared::SharedMemories;
use crate::publish::{Published, PublishedDecision};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::overrides::Override;
use plimsoll_core::pipeline::saved::VariantMemory;

impl Sharing {
    /// The memories in a draft: those of this replica, and of other variants the adopted ones. Of
    /// variants without a decision, these are only the overrides. Those of variants that this
    /// replica has not discovered stay until they end.
    pub(super) fn memories_of(
        &self,
        found: &Published,
        decided: &BTreeMap<VariantKey, PublishedDecision>,
        mut own: VariantMemories,
    ) -> SharedMemories {
        let written = decided.iter().filter_map(|(key, decided)| {
            // An override from before the first decision may have ended.
            let adopted = self.memories.get(key).filter(|_| self.committed.contains_key(key));
            let latest = own.remove(key).or_else(|| adopted.map(|(_, memory)| memory.clone()))?;
            Some((key.clone(), (decided.decision.model.clone(), latest)))
        });
        let mut memories: SharedMemories = written.collect();

        for (key, memory) in own {
            if let Some(variant) = found.variants.get(&key)
                && let Some(given) = memory.overridden
            {
                memories.insert(key, (variant.spec.model_key(), only(given)));
            }
        }

        let now = self.clock.now();
        let latest = self.sent.back().map_or(&self.memories, |sent| &sent.memories);
        for (key, (model, memory)) in latest {
            let is_known = found.variants.contains_key(key) || decided.contains_key(key);
            if let Some(given) = memory.overridden.filter(|it| !is_known && !it.has_ended(now)) {
                memories.insert(key.clone(), (model.clone(), only(given)));
            }
        }

        memories
    }
}

/// A memory of nothing but an override.
fn only(given: Override) -> VariantMemory {
    VariantMemory { overridden: Some(given), ..VariantMemory::default() }
}
