//! Queues in front of a model, as requests that can be counted.
//!
//! A wake signal may report any value above 0. Only a signal that counts requests shows the number
//! of arrivals.
//!
//! A signal that may be for any model counts only for the models that it has named. For other
//! models it has never kept replicas up, so no scale-down needs to wait for it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::analyze::ballot::Analyzer;
use crate::analyze::foresight::gateway::{GatewayQueue, GatewaySignals, QueueReading};
use crate::analyze::foresight::schedule::ArrivalCoverage;
use crate::decide::Reason;
use crate::decide::unheard::UnusableSignal;
use crate::fleet::ModelKey;
use crate::observe::{DemandSignal, Naming, SignalQuantity, SignalValue};
use crate::pipeline::group::VariantGroup;
use crate::pipeline::tick::Tick;
use crate::units::{Requests, Seconds};

/// The signals that count the requests in front of each model.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSignals {
    /// The signals that have ever named a model, even if they are not reporting now.
    named: BTreeMap<ModelKey, BTreeSet<String>>,
    /// The last queue that each signal reported.
    queues: BTreeMap<ModelKey, GatewayQueue>,
    /// The last counts of rejected requests.
    rejections: BTreeMap<ModelKey, GatewayQueue>,
}

// === impl QueueSignals ===

impl QueueSignals {
    /// Records the models that each signal names, and forgets signals and models that are gone.
    pub(crate) fn note(&mut self, demand: &BTreeMap<ModelKey, Vec<DemandSignal>>) {
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

    /// The signals that have named a model, for a successor to restore.
    pub(crate) fn save(&self, model: &ModelKey) -> Vec<String> {
        self.named.get(model).into_iter().flatten().cloned().collect()
    }

    /// Restores the result of [`QueueSignals::save`].
    pub(crate) fn recall(&mut self, model: &ModelKey, named: &[String]) {
        if !named.is_empty() {
            self.named.entry(model.clone()).or_default().extend(named.iter().cloned());
        }
    }

    /// The known requests in front of a model. Several signals may count the same requests, so the
    /// highest counting signal is used instead of the sum. The result also shows if all of these
    /// signals have reported recently.
    pub(crate) fn front(&mut self, tick: &Tick<'_>, model: &ModelKey) -> GatewaySignals {
        let Some(signals) = tick.inputs.demand.get(model) else { return GatewaySignals::UNSEEN };
        let mut heard = BTreeMap::new();
        let mut rejections = BTreeMap::new();
        let mut sight = ArrivalCoverage::Whole;
        for signal in signals.iter().filter(|it| is_counting(it)) {
            if let Ok((requests, at)) = of_late(tick.now, signal) {
                let counted = match signal.counts {
                    SignalQuantity::Rejected => &mut rejections,
                    SignalQuantity::Something | SignalQuantity::Requests => &mut heard,
                };
                counted.insert(signal.signal.clone(), QueueReading { requests, at });
            } else if self.has_named(model, &signal.signal) {
                sight = ArrivalCoverage::Partial;
            }
        }

        let queued = QueueReading::most(heard.values().copied());
        let grown = self.queues.entry(model.clone()).or_default().take(&heard);
        // A counter that decreased has restarted.
        let rejected = self.rejections.entry(model.clone()).or_default().take(&rejections);
        GatewaySignals { queued, grown, rejected: rejected.filter(|it| it.requests > 0.0), sight }
    }

    /// Returns true if requests queue in front of a model, according to recent signals.
    pub(crate) fn has_queue(tick: &Tick<'_>, model: &ModelKey) -> bool {
        let signals = tick.inputs.demand.get(model).into_iter().flatten();
        let mut queues = signals.filter(|it| it.counts == SignalQuantity::Requests);
        queues.any(|it| of_late(tick.now, it).is_ok_and(|(queued, _)| queued > Requests::ZERO))
    }

    /// The reason why the group must not scale down while a signal that counts its queue is not
    /// reporting. The requests that the signal counted have not disappeared. Replicas that the
    /// signal kept up must stay.
    pub(crate) fn unreported(&self, tick: &Tick<'_>, group: &VariantGroup<'_>) -> Option<Reason> {
        let sizing = tick.policy.sizing.as_ref()?;
        if sizing.foresight.gateway.is_none() || !sizing.analyzers.contains(&Analyzer::Foresight) {
            return None;
        }

        let signals = tick.inputs.demand.get(group.model)?;
        let mut counting = self.counting(group.model, signals);
        let (signal, why) =
            counting.find_map(|it| Some((&it.signal, of_late(tick.now, it).err()?)))?;
        Some(Reason::Unheard { signal: signal.clone(), why })
    }

    /// The signals that count requests of a model: those that have named it.
    fn counting<'a>(
        &self,
        model: &ModelKey,
        signals: &'a [DemandSignal],
    ) -> impl Iterator<Item = &'a DemandSignal> {
        let named = self.named.get(model);
        signals
            .iter()
            .filter(|it| is_counting(it))
            .filter(move |it| named.is_some_and(|named| named.contains(&it.signal)))
    }

    fn has_named(&self, model: &ModelKey, signal: &str) -> bool {
        self.named.get(model).is_some_and(|named| named.contains(signal))
    }
}

fn is_counting(signal: &DemandSignal) -> bool {
    matches!(signal.counts, SignalQuantity::Requests | SignalQuantity::Rejected)
}

/// The last count of a signal, or the reason why there is none. A stale count is treated as
/// missing.
fn of_late(now: Timestamp, signal: &DemandSignal) -> Result<(Requests, Timestamp), UnusableSignal> {
    let at = match signal.seen {
        SignalValue::Never => return Err(UnusableSignal::Never),
        SignalValue::NoNumber(seen_at) | SignalValue::Number(_, seen_at) => seen_at,
    };
    let seconds = now.duration_since(at).as_secs_f64();
    if seconds.abs() > DemandSignal::STALE.seconds() {
        let length = Seconds::new(seconds.abs()).unwrap_or_default();
        return Err(if seconds > 0.0 {
            UnusableSignal::For(length)
        } else {
            UnusableSignal::Ahead(length)
        });
    }

    signal.seen.number().ok_or(UnusableSignal::NoNumber)
}
