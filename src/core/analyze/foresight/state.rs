//! The state of foresight: everything that is learned, for all models.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::analyze::foresight::card::{CardStore, ImportedCards};
use crate::analyze::foresight::cold::ColdFleet;
use crate::analyze::foresight::outlier::SlowestReplica;
use crate::analyze::foresight::role_demand::RoleDemand;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::starving::ArrivalShare;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{ModelKey, ReplicaKey, Role, VariantKey};
use crate::units::Seconds;

/// Everything that is learned, for all models.
#[derive(Clone, Debug, Default)]
pub struct Foresight {
    pub(super) demands: BTreeMap<(ModelKey, Role), RoleDemand>,
    pub(super) variants: BTreeMap<VariantKey, VariantModel>,
    pub(super) learned: BTreeMap<ModelKey, Timestamp>,
    /// Replicas whose last counters did not show how many requests arrived.
    pub(super) uncounted: BTreeSet<ReplicaKey>,
    /// Sizes of fleets that are overloaded while no capacity is known.
    pub(super) cold: BTreeMap<(ModelKey, Role), ColdFleet>,
    /// The instant since which requests queue for models that no replica serves.
    pub(super) unserved: BTreeMap<ModelKey, Timestamp>,
    /// The instant since which replicas that use a card have had no request.
    pub(super) unused: BTreeMap<VariantKey, Timestamp>,
    /// The arrivals of each variant.
    pub(super) shares: BTreeMap<VariantKey, ArrivalShare>,
    pub(super) shelf: CardStore,
    pub(super) imported: ImportedCards,
}

// === impl Foresight ===

impl Foresight {
    /// Forgets models and variants that are gone, and cards that have not been updated for long.
    pub fn retain(
        &mut self,
        now: Timestamp,
        models: &BTreeSet<&ModelKey>,
        variants: &BTreeSet<&VariantKey>,
    ) {
        self.shelf.forget(now);
        self.demands.retain(|(model, _), _| models.contains(model));
        self.variants.retain(|variant, _| variants.contains(variant));
        self.learned.retain(|model, _| models.contains(model));
        self.uncounted.retain(|replica| variants.contains(&replica.variant));
        self.cold.retain(|(model, _), _| models.contains(model));
        self.unserved.retain(|model, _| models.contains(model));
        self.unused.retain(|variant, _| variants.contains(variant));
        self.shares.retain(|variant, _| variants.contains(variant));
    }

    /// Forgets the arrivals after an instant, to which the clock was set back.
    pub fn rewind(&mut self, now: Timestamp) {
        for demand in self.demands.values_mut() {
            demand.arrivals.rewind(now);
            demand.counted_until = demand.counted_until.map(|counted| counted.min(now));
        }
    }

    /// Multiplies all past arrivals of a model and the needs that are held because of them, as if
    /// its load had always been that much higher or lower.
    pub fn scale_load(&mut self, model: &ModelKey, factor: f64) {
        for ((of, _), demand) in &mut self.demands {
            if of == model {
                demand.scale(factor);
            }
        }
    }

    /// The longest time between the last two scrapes of a replica of these variants; zero while
    /// none is known.
    pub(super) fn apart(&self, variants: &[VariantStrides<'_>]) -> Seconds {
        let seen = variants.iter().filter_map(|it| self.variants.get(&it.spec.key));
        seen.map(VariantModel::apart).fold(Seconds::ZERO, Seconds::max)
    }

    /// The slowest replica of each variant.
    pub(super) fn slowest(
        &self,
        variants: &[VariantStrides<'_>],
    ) -> BTreeMap<VariantKey, SlowestReplica> {
        let keys = variants.iter().map(|variant| &variant.spec.key);
        keys.filter_map(|key| Some((key.clone(), self.variants.get(key)?.slowest()?))).collect()
    }
}
