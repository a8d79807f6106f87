//! What queues in front of a model, as requests that can be counted.
//!
//! A signal that wakes a model may say anything above 0. Only one that counts requests says how many
//! have arrived.
//!
//! One that may be for any model is for those that it has named: what it never counted has kept no
//! number up, so no number needs to wait for it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::analyze::ballot::Analyzer;
use crate::analyze::foresight::gateway::{Front, Queue, Queued};
use crate::analyze::foresight::schedule::Sight;
use crate::decide::Reason;
use crate::decide::unheard::Unheard;
use crate::fleet::ModelKey;
use crate::observe::{Counts, Demand, Inputs, Naming, Seen};
use crate::pipeline::Pipeline;
use crate::pipeline::group::Group;
use crate::pipeline::sizing::Moment;
use crate::units::{Requests, Seconds};

/// Who counts the requests in front of each model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fronts {
    /// The signals that have ever named a model, however silent they are now.
    named: BTreeMap<ModelKey, BTreeSet<String>>,
    /// What they have last said.
    queues: BTreeMap<ModelKey, Queue>,
    /// The last counts of rejected requests.
    rejections: BTreeMap<ModelKey, Queue>,
}

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
        let mut counting = self.learned.fronts.counting(&group.model, signals);
        let (signal, why) = counting.find_map(|it| Some((&it.signal, of_late(now, it).err()?)))?;
        Some(Reason::Unheard { signal: signal.clone(), why })
    }
}

// === impl Fronts ===

impl Fronts {
    /// Notes who names whom, and forgets signals and models that are not there any more.
    pub(crate) fn note(&mut self, demand: &BTreeMap<ModelKey, Vec<Demand>>) {
        self.named.retain(|model, _| demand.contains_key(model));
        self.queues.retain(|model, _| demand.contains_key(model));
        self.rejections.retain(|model, _| demand.contains_key(model));
        for (model, signals) in demand {
            if let Some(named) = self.named.get_mut(model) {
                named.retain(|name| signals.iter().any(|it| it.signal == *name));
            }
            for signal in signals.iter().filter(|it| is_counting(it)) {
                if signal.naming == Naming::Named && !self.has_named(model, &signal.signal) {
                    self.named.entry(model.clone()).or_default().insert(signal.signal.clone());
                }
            }
        }
    }

    /// Who has named a model, for whoever goes on with it.
    pub(crate) fn save(&self, model: &ModelKey) -> Vec<String> {
        self.named.get(model).into_iter().flatten().cloned().collect()
    }

    /// Goes on from that.
    pub(crate) fn recall(&mut self, model: &ModelKey, named: &[String]) {
        if !named.is_empty() {
            self.named.entry(model.clone()).or_default().extend(named.iter().cloned());
        }
    }

    /// What is known of the requests in front of a model: the most that one of the signals says that
    /// count requests, because several that are added up might count the same ones; and whether all
    /// of them were heard of late.
    pub(crate) fn front(&mut self, moment: &Moment<'_>, model: &ModelKey) -> Front {
        let Some(signals) = moment.demand.get(model) else { return Front::UNSEEN };
        let mut heard = BTreeMap::new();
        let mut rejections = BTreeMap::new();
        let mut sight = Sight::Whole;
        for signal in signals.iter().filter(|it| is_counting(it)) {
            if let Ok((requests, at)) = of_late(moment.now, signal) {
                let counted = match signal.counts {
                    Counts::Rejected => &mut rejections,
                    Counts::Something | Counts::Requests => &mut heard,
                };
                counted.insert(signal.signal.clone(), Queued { requests, at });
            } else if self.has_named(model, &signal.signal) {
                sight = Sight::Partial;
            }
        }

        let queued = Queued::most(heard.values().copied());
        let grown = self.queues.entry(model.clone()).or_default().take(&heard);
        // A counter that went back has begun again.
        let rejected = self.rejections.entry(model.clone()).or_default().take(&rejections);
        Front { queued, grown, rejected: rejected.filter(|it| it.requests > 0.0), sight }
    }

    /// Whether requests queue in front of a model, as signals said of late.
    pub(crate) fn has_queue(moment: &Moment<'_>, model: &ModelKey) -> bool {
        let signals = moment.demand.get(model).into_iter().flatten();
        let mut queues = signals.filter(|it| it.counts == Counts::Requests);
        queues.any(|it| of_late(moment.now, it).is_ok_and(|(queued, _)| queued > Requests::ZERO))
    }

    /// The signals that count requests of a model: those that have named it.
    fn counting<'a>(
        &self,
        model: &ModelKey,
        signals: &'a [Demand],
    ) -> impl Iterator<Item = &'a Demand> {
        let named = self.named.get(model);
        let has_named = move |it: &&Demand| named.is_some_and(|named| named.contains(&it.signal));
        signals.iter().filter(|it| is_counting(it)).filter(has_named)
    }

    fn has_named(&self, model: &ModelKey, signal: &str) -> bool {
        self.named.get(model).is_some_and(|named| named.contains(signal))
    }
}

fn is_counting(signal: &Demand) -> bool {
    matches!(signal.counts, Counts::Requests | Counts::Rejected)
}

/// What a signal says, or what is missing of it. What is old is as if it had said nothing.
fn of_late(now: Timestamp, signal: &Demand) -> Result<(Requests, Timestamp), Unheard> {
    let at = match signal.seen {
        Seen::Never => return Err(Unheard::Never),
        Seen::NoNumber(at) | Seen::Number(_, at) => at,
    };
    let seconds = now.duration_since(at).as_secs_f64();
    if seconds.abs() > Demand::STALE.seconds() {
        let length = Seconds::new(seconds.abs()).unwrap_or_default();
        return Err(if seconds > 0.0 { Unheard::For(length) } else { Unheard::Ahead(length) });
    }
    signal.seen.number().ok_or(Unheard::NoNumber)
}
