//! The variants that are analysed together: those of one model and role.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decide::NoData;
use crate::fleet::{Bounds, Fleet, ModelKey, Role, VariantKey, VariantSpec};
use crate::observe::{Observation, WhyUnknown};
use crate::units::{Replicas, Seconds};

/// The variants of one model and role in one tick.
pub(crate) struct Group<'a> {
    pub(crate) model: ModelKey,
    pub(crate) role: Role,
    pub(crate) members: Vec<Member<'a>>,
}

/// One variant of a group.
pub(crate) struct Member<'a> {
    pub(crate) spec: &'a VariantSpec,
    pub(crate) observation: &'a Observation,
}

// === impl Group, Member ===

impl Group<'_> {
    /// The instant of the oldest data that the analysis rests on.
    pub(crate) fn inputs_at(&self, now: Timestamp) -> Timestamp {
        let age = self
            .members
            .iter()
            .filter_map(|member| member.observation.oldest_measured())
            .fold(Seconds::ZERO, Seconds::max);
        let age = jiff::SignedDuration::try_from_secs_f64(age.seconds()).unwrap_or_default();
        now.saturating_sub(age).unwrap_or(now)
    }
}

impl Member<'_> {
    /// Replicas that should report and do not: ready ones without fresh data, and those that have
    /// reported before.
    pub(crate) fn missing(&self) -> Replicas {
        let observation = self.observation;
        let unheard = observation.ready.unwrap_or_default().beyond(observation.measured());
        let silent = observation
            .replicas
            .iter()
            .filter(|replica| replica.is_lost() || replica.is_untried())
            .count();
        unheard.max(Replicas::saturating(u32::try_from(silent).unwrap_or(u32::MAX)))
    }

    /// The replicas that are asked for and do not serve yet.
    pub(crate) fn coming(&self) -> Replicas {
        let observation = self.observation;
        let wanted = observation.wanted.unwrap_or_default();
        observation.pending.min(wanted.beyond(observation.measured()))
    }

    /// Whether it may have replicas that nobody has shown us, which may carry any load. A scale
    /// target that does not exist has none.
    pub(crate) fn is_unlisted(&self) -> bool {
        self.observation.listed_at.is_none()
            || self.observation.scale_unknown == Some(WhyUnknown::NotListed)
    }

    /// The bounds that hold. While the scale target is out of sight nobody knows its autoscaler's
    /// bounds, and the configured ones in their place must not move the number in force.
    pub(crate) fn bounds(&self, in_force: Option<Replicas>) -> Bounds {
        let bounds = self.observation.bounds;
        match (self.observation.wanted, in_force) {
            (None, Some(in_force)) => bounds.widened_to(in_force),
            (None, None) | (Some(_), _) => bounds,
        }
    }

    /// Why nothing can be said about this variant, if so.
    pub(crate) fn blind(&self) -> Option<NoData> {
        let observation = self.observation;
        if let Some(why) = &observation.scale_unknown {
            return Some(NoData::ScaleUnknown(why.to_string()));
        }
        match observation.wanted {
            None => Some(NoData::NotListed),
            Some(Replicas::ZERO) if observation.replicas.is_empty() => None,
            Some(_) if observation.measured() == Replicas::ZERO => Some(NoData::NoFreshReplica),
            Some(_) => None,
        }
    }
}

/// The groups of a fleet, in the order of their models and roles, from one observation for each of
/// its variants.
pub(crate) fn groups<'a>(
    fleet: &'a Fleet,
    observations: &'a BTreeMap<VariantKey, Observation>,
) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<(ModelKey, Role), Vec<Member<'a>>> = BTreeMap::new();
    for (spec, observation) in fleet.variants().zip(observations.values()) {
        let members = groups.entry((spec.model_key(), spec.role)).or_default();
        members.push(Member { spec, observation });
    }
    groups.into_iter().map(|((model, role), members)| Group { model, role, members }).collect()
}
