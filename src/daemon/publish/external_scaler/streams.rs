//! Streams of `StreamIsActive`: their number, and the messages on each.
//!
//! A message is sent at once, after each change, and again every [`RESEND_INTERVAL`]. While it is
//! not known whether a variant should run, nothing is sent. The stream stays open even then: after
//! an error, KEDA waits for up to a minute until it opens another, and a model without replicas
//! would wait with it. When the server drains, the stream ends without an error, and KEDA opens
//! another within two seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use prometheus::IntGauge;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

use crate::publish::Published;
use crate::publish::external_scaler::messages::IsActiveResponse;
use crate::server::ServerPhase;
use plimsoll_core::fleet::Namespace;

/// The time after which an unchanged state is sent again, in case KEDA has lost it.
const RESEND_INTERVAL: Duration = Duration::from_secs(30);

/// The limits of open streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBudgetLimits {
    /// Open streams in total.
    pub total: usize,
    /// Open streams of one namespace, so that no tenant uses up all of them.
    pub per_namespace: usize,
}

impl Default for StreamBudgetLimits {
    fn default() -> Self {
        // A stream takes a few kilobytes, and each is looked at once a tick.
        Self { total: 8192, per_namespace: 1024 }
    }
}

/// The open streams of each namespace.
#[derive(Debug)]
pub(super) struct StreamBudget {
    limits: StreamBudgetLimits,
    gauge: IntGauge,
    open: Mutex<BTreeMap<Namespace, usize>>,
}

/// The place of one stream; dropping it frees the place.
#[derive(Debug)]
pub(super) struct StreamSlot {
    budget: Arc<StreamBudget>,
    namespace: Namespace,
}

// === impl StreamBudget ===

impl StreamBudget {
    pub(super) fn new(limits: StreamBudgetLimits, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self { limits, gauge, open: Mutex::default() })
    }

    /// Gives a place to a stream.
    ///
    /// # Errors
    ///
    /// Too many streams are open.
    pub(super) fn admit(self: &Arc<Self>, namespace: Namespace) -> Result<StreamSlot, Status> {
        let StreamBudgetLimits { total, per_namespace } = self.limits;
        let mut open = self.lock();
        let own = open.get(&namespace).copied().unwrap_or_default();
        if own >= per_namespace {
            let message = format!("namespace {namespace} already has {per_namespace} open streams");
            return Err(Status::resource_exhausted(message));
        }
        if open.values().sum::<usize>() >= total {
            return Err(Status::resource_exhausted(format!("{total} streams are already open")));
        }

        *open.entry(namespace.clone()).or_default() += 1;
        self.gauge.inc();
        Ok(StreamSlot { budget: Arc::clone(self), namespace })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Namespace, usize>> {
        // Every change is complete before anything can panic.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.budget.lock();
        if let Some(count) = open.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.namespace);
            }
        }

        self.budget.gauge.dec();
    }
}

/// The state of one stream.
struct ActivityStream<F> {
    active: F,
    published: watch::Receiver<Arc<Published>>,
    phase: watch::Receiver<ServerPhase>,
    resend: Interval,
    sent: Option<bool>,
    _slot: StreamSlot,
}

/// Returns the messages of one stream. `active` tells whether the variant should run now; `None` if
/// that is not known.
pub(super) fn activity<F>(
    slot: StreamSlot,
    published: watch::Receiver<Arc<Published>>,
    phase: watch::Receiver<ServerPhase>,
    active: F,
) -> impl Stream<Item = Result<IsActiveResponse, Status>> + Send + 'static
where
    F: Fn(&Published) -> Option<bool> + Send + 'static,
{
    let mut resend = interval(RESEND_INTERVAL);
    resend.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = ActivityStream { active, published, phase, resend, sent: None, _slot: slot };
    unfold(stream, ActivityStream::next)
}

// === impl ActivityStream ===

impl<F: Fn(&Published) -> Option<bool>> ActivityStream<F> {
    /// Waits for the next message; `None` when the stream ends.
    async fn next(mut self) -> Option<(Result<IsActiveResponse, Status>, Self)> {
        let mut is_due = false;
        loop {
            let published = self.published.borrow_and_update().clone();
            let known = (self.active)(&published);
            if let Some(active) = known.filter(|active| is_due || self.sent != Some(*active)) {
                self.sent = Some(active);
                self.resend.reset();
                return Some((Ok(IsActiveResponse { result: active }), self));
            }

            is_due = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase == ServerPhase::Draining) => return None,
                changed = self.published.changed() => {
                    changed.ok()?;
                    false
                }
                _ = self.resend.tick() => true,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_for_its_namespace_until_its_stream_ends() {
        let gauge = IntGauge::new("streams", "streams").unwrap();
        let limits = StreamBudgetLimits { total: 4, per_namespace: 2 };
        let budget = StreamBudget::new(limits, gauge.clone());
        let admit = |name: &str| budget.admit(Namespace::new(name).unwrap());
        let first = admit("a").unwrap();
        let second = admit("a").unwrap();
        let refused = admit("a").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(refused.message(), "namespace a already has 2 open streams");

        drop(first);
        let third = admit("a").unwrap();
        assert!(admit("a").is_err(), "the second stream still counts");
        let others = [admit("b").unwrap(), admit("b").unwrap()];
        assert_eq!(admit("c").unwrap_err().message(), "4 streams are already open");
        assert_eq!(gauge.get(), 4);

        drop((second, third, others));
        assert_eq!(gauge.get(), 0);
        assert!(budget.lock().is_empty(), "nothing is kept of namespaces without streams");
    }
}
