//! What queues in front of a model, as requests that can be counted.
//!
//! A signal that wakes a model may say anything above 0. Only one that counts requests says how many
//! have arrived.

use jiff::Timestamp;

use crate::analyze::ballot::Analyzer;
use crate::analyze::foresight::gateway::{Front, Queued};
use crate::analyze::foresight::schedule::Sight;
use crate::decide::Reason;
use crate::fleet::ModelKey;
use crate::observe::{Counts, Demand, Inputs};
use crate::pipeline::Pipeline;
use crate::pipeline::group::Group;
use crate::pipeline::sizing::Moment;
use crate::units::{Requests, Seconds};

/// Age in seconds from which what a signal has said of a queue is as if it had said nothing.
/// Signals are read every ten seconds or more often, so this is three that are missing.
const STALE: f64 = 30.0;

impl Pipeline {
    /// Why no number of the group may be lowered, where nobody says what queues in front of it. What
    /// a signal has counted is not gone because it is silent, and a number that it has kept up must
    /// not fall with it.
    pub(crate) fn unheard(
        &self,
        now: Timestamp,
        inputs: &Inputs,
        group: &Group<'_>,
    ) -> Option<Reason> {
        let sizing = self.policy.sizing.as_ref()?;
        if sizing.foresight.gateway.is_none() || !sizing.analyzers.contains(&Analyzer::Foresight) {
            return None;
        }
        let signals = inputs.demand.get(&group.model)?;
        let silent = counting(signals).find(|signal| of_late(now, signal).is_none())?;
        let age = silent.seen.and_then(|(_, at)| Seconds::from_span(now.duration_since(at)));
        Some(Reason::Unheard { signal: silent.signal.clone(), age })
    }
}

/// What is known of the requests in front of a model: the most that one of the signals says that
/// count requests, because several that are added up might count the same ones; and whether all of
/// them were heard of late.
pub(crate) fn front(moment: &Moment<'_>, model: &ModelKey) -> Front {
    let signals = moment.demand.get(model).map(Vec::as_slice).unwrap_or_default();
    let mut front = Front::UNSEEN;
    for signal in counting(signals) {
        let Some((requests, at)) = of_late(moment.now, signal) else {
            front.sight = Sight::Partial;
            continue;
        };
        if front.queued.is_none_or(|most| requests > most.requests) {
            front.queued = Some(Queued { requests, at });
        }
    }
    front
}

/// The signals that count requests.
fn counting(signals: &[Demand]) -> impl Iterator<Item = &Demand> {
    signals.iter().filter(|signal| signal.counts == Counts::Requests)
}

/// What a signal says, unless that is too old.
fn of_late(now: Timestamp, signal: &Demand) -> Option<(Requests, Timestamp)> {
    signal.seen.filter(|(_, at)| now.duration_since(*at).as_secs_f64().abs() <= STALE)
}
