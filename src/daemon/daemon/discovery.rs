//! Reports the result of discovery: in a metric and, when it changes, in the log and in an Event on
//! the object.

use std::collections::BTreeSet;
use std::sync::Arc;

use prometheus::GaugeVec;
use tracing::{info, warn};

use crate::collect::cluster::Discovery;
use crate::collect::cluster::discovery::{Objection, Standing};
use crate::daemon::announce::Announcer;

/// The reported state, so that each change is reported once.
pub(crate) struct DiscoveryReporter {
    objects: GaugeVec,
    discovery: Arc<Discovery>,
    objections: BTreeSet<Objection>,
}

// === impl DiscoveryReporter ===

impl DiscoveryReporter {
    /// Creates the state before the first report.
    pub(crate) fn new(objects: GaugeVec) -> Self {
        Self { objects, discovery: Arc::default(), objections: BTreeSet::new() }
    }

    /// Reports the changes.
    pub(crate) fn say(&mut self, discovery: &Arc<Discovery>, announcer: Option<&Announcer>) {
        if Arc::ptr_eq(&self.discovery, discovery) {
            return;
        }

        self.discovery = Arc::clone(discovery);
        for standing in Standing::ALL {
            let count = discovery.standings.get(&standing).copied();
            match count {
                Some(count) => {
                    self.objects.with_label_values(&[standing.label()]).set(count as f64);
                }
                None => {
                    let _gone = self.objects.remove_label_values(&[standing.label()]);
                }
            }
        }

        let objections: BTreeSet<Objection> = discovery.objections.iter().cloned().collect();
        for objection in objections.difference(&self.objections) {
            let Objection { object, cause } = objection;
            warn!(%object, reason = cause.reason(), "{cause}");
            if let Some(announcer) = announcer {
                announcer.objection(objection);
            }
        }

        let settled = self.objections.iter().map(|it| &it.object).collect::<BTreeSet<_>>();
        let open = objections.iter().map(|it| &it.object).collect::<BTreeSet<_>>();
        for object in settled.difference(&open) {
            info!(%object, "Nothing is wrong with the object any more");
        }

        self.objections = objections;
    }
}
