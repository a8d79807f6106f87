//! The use of capacity cards: variants start from them, and write their lessons onto them.

use std::sync::Arc;

use jiff::Timestamp;

use crate::analyze::foresight::card::{Card, CardStore, EngineKind, ImportedCards};
use crate::analyze::foresight::lengths::RequestLengths;
use crate::analyze::foresight::pace::SETTLED;
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::saved::SavedForesight;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::standby::takes;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::analyze::sharing::CardSharing;
use crate::fleet::{ModelKey, VariantKey, VariantSpec};

/// The card of a variant from its saved state; `None` if too little is saved. The saved state does
/// not include the arguments of its engines.
#[must_use]
pub fn remembered(spec: &VariantSpec, saved: &SavedForesight) -> Option<Card> {
    let SavedForesight { learned_at, seen, demands } = saved;
    let demand = demands.iter().find(|demand| demand.role == spec.role);
    let shared = demand.map(|demand| RequestLengths::of(demand.lengths)).unwrap_or_default();
    let learned = seen.as_ref().filter(|_| saved.is_sound())?.restore().learned(&shared)?;
    let from = Some(spec.key.clone());
    let at = Some(*learned_at);
    Some(Card { kind: EngineKind::of(spec, None)?, learned, from, at })
}

// === impl Foresight ===

impl Foresight {
    /// Uses these cards for kinds of engines that no own variant has taught.
    pub fn import(&mut self, cards: &Arc<[Arc<Card>]>) {
        if !Arc::ptr_eq(&self.imported.cards, cards) {
            self.imported = ImportedCards { cards: Arc::clone(cards), shelf: CardStore::of(cards) };
        }
    }

    /// Every card of this daemon's own variants, in the order of models.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.shelf.cards()
    }

    /// The card that a variant uses; `None` once its own replicas have taught enough.
    pub(crate) fn card(&self, variant: &VariantKey) -> Option<&Arc<Card>> {
        self.variants.get(variant)?.card()
    }

    /// Lets variants with too few lessons start from a card: a card of an own variant, or otherwise
    /// an imported one.
    pub(crate) fn begin(
        &mut self,
        sharing: CardSharing,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
    ) {
        for VariantStrides { spec, arguments, .. } in variants {
            if !self.variants.get(&spec.key).is_none_or(VariantModel::lacks_card) {
                continue;
            }

            let own = self.shelf.find(sharing, spec, *arguments);
            let imported = self.imported.shelf.find(CardSharing::Cluster, spec, *arguments);
            let Some(card) = own.or(imported) else { continue };
            let shared = self.demands.get(&(model.clone(), spec.role)).map(|it| it.lengths);
            let seen = self.variants.entry(spec.key.clone()).or_default();
            seen.begin(card, &shared.unwrap_or_default());
        }
    }

    /// Drops cards that are no longer of use, and writes lessons onto others.
    pub(crate) fn keep_cards(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
    ) {
        for variant in variants {
            let VariantStrides { spec, current, .. } = variant;
            let Some(seen) = self.variants.get_mut(&spec.key) else { continue };
            seen.judge_card(now, policy.settles_after(takes(variant, policy)), *current);
            let lessons = seen.pace.lessons();
            if lessons < SETTLED || spec.accelerator.is_none() {
                continue;
            }

            let shared = self.demands.get(&(model.clone(), spec.role)).map(|it| it.lengths);
            // During a rollout, the card is of the former kind until the first lesson of a new
            // replica.
            self.shelf.write(now, policy.share_cards, spec, seen.taught_by(), lessons, || {
                seen.learned(&shared.unwrap_or_default())
            });
        }
    }
}
