//! The variants that are analyzed together: those of one model and role.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use smallvec::SmallVec;

use crate::decide::NoData;
use crate::fleet::{Bounds, Fleet, ModelKey, ModelName, Namespace, Role, VariantKey, VariantSpec};
use crate::observe::{Observation, WhyScaleUnknown};
use crate::units::{Replicas, Seconds};

/// The places of a fleet's variants by model and role. A fleet rarely changes, so its groups stay
/// from tick to tick.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetGroups {
    fleet: Arc<Fleet>,
    groups: Vec<GroupPlaces>,
}

/// The places of the variants of one model and role.
#[derive(Clone, Debug)]
struct GroupPlaces {
    model: ModelKey,
    role: Role,
    places: SmallVec<[usize; 4]>,
}

/// The variants of one model and role in one tick.
pub(crate) struct VariantGroup<'a> {
    pub(crate) model: &'a ModelKey,
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
    /// The age of the oldest scrape among them.
    oldest_measured: Option<Seconds>,
    /// Replicas that report that their engines sleep.
    asleep: Replicas,
    /// Replicas that have reported before and no longer do, and those without a scrape.
    silent: Replicas,
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
            .filter_map(|member| member.oldest_measured)
            .fold(Seconds::ZERO, Seconds::max);
        let span = jiff::SignedDuration::try_from_secs_f64(age.seconds()).unwrap_or_default();
        now.saturating_sub(span).unwrap_or(now)
    }
}

impl<'a> Member<'a> {
    /// Reads all replicas of the variant once, for every stage of the tick.
    fn new(place: usize, spec: &'a VariantSpec, observation: &'a Observation) -> Self {
        let mut measured = Replicas::ZERO;
        let mut oldest_measured = None;
        let mut asleep = Replicas::ZERO;
        let mut silent = Replicas::ZERO;
        for replica in &observation.replicas {
            if replica.load().is_some() {
                measured += Replicas::ONE;
                let ages = oldest_measured.into_iter().chain(replica.freshness.fresh_age());
                oldest_measured = ages.reduce(Seconds::max);
            }
            if replica.sleeps() {
                asleep += Replicas::ONE;
            }
            if replica.is_lost() || replica.is_untried() {
                silent += Replicas::ONE;
            }
        }

        Self { place, spec, observation, measured, oldest_measured, asleep, silent }
    }

    /// Replicas that should report and do not: ready ones without fresh data, and those that have
    /// reported before. A sleeping replica reports that it sleeps.
    pub(crate) fn missing(&self) -> Replicas {
        let known = self.measured + self.asleep;
        let unheard = self.observation.ready.unwrap_or_default().beyond(known);
        unheard.max(self.silent)
    }

    /// The requested replicas that sleep. Sleeping replicas beyond the requested ones are spare.
    pub(crate) fn asleep(&self) -> Replicas {
        let wanted = self.observation.wanted.unwrap_or_default();
        self.asleep.min(wanted.beyond(self.measured))
    }

    /// The requested replicas that do not serve yet, without those that sleep.
    pub(crate) fn coming(&self) -> Replicas {
        let observation = self.observation;
        let wanted = observation.wanted.unwrap_or_default();
        observation.pending.min(wanted.beyond(self.measured + self.asleep()))
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
        .map(|(place, (spec, observation))| Member::new(place, spec, observation))
        .collect()
}

// === impl FleetGroups ===

impl FleetGroups {
    /// Groups the variants of another fleet.
    pub(crate) fn follow(&mut self, fleet: &Arc<Fleet>) {
        if Arc::ptr_eq(&self.fleet, fleet) {
            return;
        }

        let mut sorted: Vec<(usize, &VariantSpec)> = fleet.variants().enumerate().collect();
        sorted.sort_by(|(_, a), (_, b)| kind(a).cmp(&kind(b)));
        self.groups = sorted
            .chunk_by(|(_, a), (_, b)| kind(a) == kind(b))
            .map(|variants| {
                let (_, spec) = variants[0];
                let places = variants.iter().map(|(place, _)| *place).collect();
                GroupPlaces { model: spec.model_key(), role: spec.role, places }
            })
            .collect();
        self.fleet = Arc::clone(fleet);
    }

    /// The groups in the order of model and role. `members` are the variants of the fleet.
    pub(crate) fn of<'a>(&'a self, members: &[Member<'a>]) -> Vec<VariantGroup<'a>> {
        self.groups
            .iter()
            .map(|GroupPlaces { model, role, places }| VariantGroup {
                model,
                role: *role,
                members: places.iter().filter_map(|place| members.get(*place)).copied().collect(),
            })
            .collect()
    }
}

/// The properties that a group's variants share, in the order of groups.
const fn kind(spec: &VariantSpec) -> (&Namespace, &ModelName, Role) {
    (&spec.key.namespace, &spec.model, spec.role)
}
