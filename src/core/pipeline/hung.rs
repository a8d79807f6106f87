//! Listed targets that were requested and never answer.
//!
//! Without an orchestrator, nothing shows which listed targets are requested. A target that never
//! answers may be a start that hangs, or a machine that is off and was not requested. So they count
//! only as far as desired replicas within the maximum exceed the targets that have answered. After
//! the time that a start may take, they are *hung*, and others may take their place. They still
//! count toward the maximum.
//!
//! If requested replicas start in time, none is hung, however many other targets are listed.

use crate::fleet::per_variant::PerVariant;
use crate::pipeline::group::Member;
use crate::pipeline::lasting::LastingReplicas;
use crate::pipeline::overrides;
use crate::pipeline::startup::{OpenStarts, Startups};
use crate::pipeline::tick::Tick;
use crate::units::Replicas;

/// The requested targets of all variants that never answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct HungTargets {
    unanswered: PerVariant<LastingReplicas>,
}

// === impl HungTargets ===

impl HungTargets {
    /// Reads the observations of one tick, and forgets variants that are gone. `open` is from
    /// [`Startups::open`].
    pub(crate) fn run(&mut self, tick: &Tick<'_>, startups: &Startups, open: &OpenStarts<'_>) {
        self.unanswered.keep(&tick.inputs.fleet);
        for member in &tick.members {
            // While its targets are not listed, nothing shows that they have answered.
            if member.observation.wanted.is_none() {
                continue;
            }

            let key = &member.spec.key;
            let present = unanswered(tick, member);
            if present == Replicas::ZERO {
                self.unanswered.remove(key);
                continue;
            }

            let starts = startups.of(member.place, key, open);
            let time = starts.stuck_after(member.spec, tick.policy.transition_patience);
            let lasting =
                self.unanswered.get_or_insert_at(member.place, key, LastingReplicas::default);
            lasting.update(tick.now, present, time);
        }
    }

    /// The hung targets of a variant.
    pub(crate) fn of(&self, member: &Member<'_>) -> Replicas {
        let lasting = self.unanswered.get_at(member.place, &member.spec.key);
        lasting.map_or(Replicas::ZERO, LastingReplicas::count)
    }
}

/// The listed targets that have never answered, up to the desired replicas that have not. Those
/// beyond a lower maximum are no longer requested.
fn unanswered(tick: &Tick<'_>, member: &Member<'_>) -> Replicas {
    if !tick.is_counted_by_answers(member) {
        return Replicas::ZERO;
    }

    let coming = member.coming();
    let answered = member.observation.wanted.unwrap_or_default().beyond(coming);
    let most = overrides::bounds(tick, member).max().unwrap_or(Replicas::LIMIT);
    let requested = tick.desired(member).unwrap_or_default().min(most);
    coming.min(requested.beyond(answered))
}
