//! The variants that are analyzed together: those of one model and role.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decide::NoData;
use crate::fleet::{Bounds, Fleet, ModelKey, ModelName, Namespace, Role, VariantKey, VariantSpec};
use crate::observe::{Observation, WhyScaleUnknown};
use crate::units::{Replicas, Seconds};

/// The variants of one model and role in one tick.
pub(crate) struct VariantGroup<'a> {
    pub(crate) model: ModelKey,
    pub(crate) role: Role,
    pub(crate) members: Vec<Member<'a>>,
}

/// One variant of a group.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    /// Its position in the fleet.
    pub(crate) place: usize,
    pub(crate) spec: &'a VariantSpec,
    pub(crate) observation: &'a Observation,
    /// Replicas whose load is known.
    pub(crate) measured: Replicas,
}

// === impl VariantGroup, Member ===

impl<'a> VariantGroup<'a> {
    /// The members that may have replicas.
    pub(crate) fn with_replicas(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members.iter().filter(|member| member.observation.wanted != Some(Replicas::ZERO))
    }

    /// The instant of the oldest data behind the analysis.
    pub(crate) fn inputs_at(&self, now: Timestamp) -> Timestamp {
        let age = self
            .members
            .iter()
            .filter_map(|member| member.observation.oldest_measured())
            .fold(Seconds::ZERO, Seconds::max);
        let span = jiff::SignedDuration::try_from_secs_f64(age.seconds()).unwrap_or_default();
        now.saturating_sub(span).unwrap_or(now)
    }
}

impl Member<'_> {
    /// Replicas that should report and do not: ready ones without fresh data, and those that have
    /// reported before.
    pub(crate) fn missing(&self) -> Replicas {
        let observation = self.observation;
        let unheard = observation.ready.unwrap_or_default().beyond(self.measured);
        let silent = observation
            .replicas
            .iter()
            .filter(|replica| replica.is_lost() || replica.is_untried())
            .count();

        unheard.max(Replicas::saturating(u32::try_from(silent).unwrap_or(u32::MAX)))
    }

    /// The requested replicas that do not serve yet.
    pub(crate) fn coming(&self) -> Replicas {
        let observation = self.observation;
        let wanted = observation.wanted.unwrap_or_default();
        observation.pending.min(wanted.beyond(self.measured))
    }

    /// Returns true if the variant may have replicas that are not listed and may handle any load. A
    /// scale target that does not exist has none.
    pub(crate) fn is_unlisted(&self) -> bool {
        self.observation.listed_at.is_none()
            || self.observation.scale_unknown == Some(WhyScaleUnknown::NotListed)
    }

    /// Returns true unless its scale target is known not to exist.
    pub(crate) fn has_target(&self) -> bool {
        self.observation.scale_unknown != Some(WhyScaleUnknown::NoSuchTarget)
    }

    /// The bounds that apply. While the scale target is not visible, its autoscaler's bounds are
    /// not known. The configured bounds then must not change the desired replicas in effect.
    pub(crate) fn bounds(&self, in_force: Option<Replicas>) -> Bounds {
        let bounds = self.observation.bounds;
        match (self.observation.wanted, in_force) {
            (None, Some(in_force)) => bounds.widened_to(in_force),
            (None, None) | (Some(_), _) => bounds,
        }
    }

    /// The reason why this variant cannot be decided; `None` if it can.
    pub(crate) fn blind(&self) -> Option<NoData> {
        let unseen = self.unseen();
        if unseen.is_some() {
            return unseen;
        }

        let observation = self.observation;
        let is_empty =
            observation.wanted == Some(Replicas::ZERO) && observation.replicas.is_empty();
        (!is_empty && self.measured == Replicas::ZERO).then_some(NoData::NoFreshReplica)
    }

    /// The reason why the scale target of this variant is unknown; `None` if it is known.
    pub(crate) fn unseen(&self) -> Option<NoData> {
        let observation = self.observation;
        match &observation.scale_unknown {
            Some(why) => Some(NoData::ScaleUnknown(why.to_string())),
            None => observation.wanted.is_none().then_some(NoData::NotListed),
        }
    }
}

/// The variants of a fleet, in its order, with an observation for each.
pub(crate) fn members<'a>(
    fleet: &'a Fleet,
    observations: &'a BTreeMap<VariantKey, Observation>,
) -> Vec<Member<'a>> {
    fleet
        .variants()
        .zip(observations.values())
        .enumerate()
        .map(|(place, (spec, observation))| Member {
            place,
            spec,
            observation,
            measured: observation.measured(),
        })
        .collect()
}

/// The variants by model and role, in the order of both.
pub(crate) fn groups<'a>(members: &[Member<'a>]) -> Vec<VariantGroup<'a>> {
    let mut sorted = members.to_vec();
    sorted.sort_by(|a, b| kind(a.spec).cmp(&kind(b.spec)));

    sorted
        .chunk_by(|a, b| kind(a.spec) == kind(b.spec))
        .filter_map(|members| {
            let spec = members.first()?.spec;
            Some(VariantGroup {
                model: spec.model_key(),
                role: spec.role,
                members: members.to_vec(),
            })
        })
        .collect()
}

/// The properties that a group's variants share, in the order of groups.
const fn kind(spec: &VariantSpec) -> (&Namespace, &ModelName, Role) {
    (&spec.key.namespace, &spec.model, spec.role)
}
