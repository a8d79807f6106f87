//! The time since which each variant has differed from its target state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::VariantKey;
use crate::pipeline::group::Member;
use crate::pipeline::tick::Tick;
use crate::units::Replicas;

/// The waits of all variants that differ from their target states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    open: BTreeMap<VariantKey, Wait>,
}

/// The time since which a variant has differed from its target state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The replicas that its scale target requests, if known.
    pub wanted: Option<Replicas>,
    /// The start of the wait.
    #[serde(with = "crate::units::instants")]
    pub since: Timestamp,
}

// === impl Waits ===

impl Waits {
    /// Updates the wait of every variant, and forgets variants that are gone.
    pub(crate) fn run(&mut self, tick: &Tick<'_>) {
        self.open.retain(|key, _| tick.inputs.fleet.get(key).is_some());

        for member in &tick.members {
            self.update(tick, member);
        }
    }

    /// The wait of a variant; `None` while it is in its target state.
    pub(crate) fn get(&self, variant: &VariantKey) -> Option<&Wait> {
        self.open.get(variant)
    }

    /// Restores a saved wait, unless there is one.
    pub(crate) fn recall(&mut self, now: Timestamp, variant: &VariantKey, saved: Wait) {
        let wait = Wait { since: saved.since.min(now), ..saved };
        self.open.entry(variant.clone()).or_insert(wait);
    }

    fn update(&mut self, tick: &Tick<'_>, member: &Member<'_>) {
        let Member { spec, observation, measured, .. } = *member;
        let desired = tick.desired(member);
        // Nothing that Plimsoll waits for wakes a replica.
        let is_settled = observation.pending == Replicas::ZERO
            && observation.wanted == Some(measured + member.asleep())
            && desired.is_none_or(|desired| Some(desired) == observation.wanted);
        if is_settled {
            self.open.remove(&spec.key);
            return;
        }

        let wanted = observation.wanted;
        let before = self.open.get(&spec.key).copied();
        // A changed request starts a new wait. The patience spent on the old request must not count
        // against replicas that have only just begun to start.
        let known = before.filter(|it| wanted.is_none() || it.wanted == wanted);
        let wait = Wait {
            wanted: wanted.or(known.and_then(|it| it.wanted)),
            since: known.map_or(tick.now, |it| it.since.min(tick.now)),
        };
        self.open.insert(spec.key.clone(), wait);
    }
}
