//! What queues in front of a model, as requests that can be counted.
//!
//! A signal that wakes a model may say anything above 0. Only one that counts requests says how many
//! have arrived.

use crate::analyze::foresight::gateway::Queued;
use crate::fleet::ModelKey;
use crate::observe::Counts;
use crate::pipeline::sizing::Moment;

/// Age in seconds from which what a signal has said of a queue is as if nothing had been said.
/// Signals are read every ten seconds or more often, so this is three that are missing.
const STALE: f64 = 30.0;

/// The most that one of the signals says that count requests; `None` where none has said anything
/// of late. Several that are added up might count the same requests.
pub(crate) fn of(moment: &Moment<'_>, model: &ModelKey) -> Option<Queued> {
    let signals = moment.demand.get(model)?;
    let counting = signals.iter().filter(|signal| signal.counts == Counts::Requests);
    let seen = counting.filter_map(|signal| signal.seen);
    let fresh = seen.filter(|(_, at)| {
        let age = moment.now.duration_since(*at).as_secs_f64();
        age.abs() <= STALE
    });
    let most = fresh.reduce(|a, b| if b.0 > a.0 { b } else { a });
    most.map(|(requests, at)| Queued { requests, at })
}
