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
    more: Arc<[Objection]>,
    objections: BTreeSet<Objection>,
}

// === impl DiscoveryReporter ===

impl DiscoveryReporter {
    /// Creates the state before the first report.
    pub(crate) fn new(objects: GaugeVec) -> Self {
        let discovery = Arc::default();
        let more = Arc::default();
        Self { objects, discovery, more, objections: BTreeSet::new() }
    }

    /// Reports the changes. `more` are the objections of the directory, besides those of the
    /// discovery.
    pub(crate) fn say(
        &mut self,
        discovery: &Arc<Discovery>,
        more: &Arc<[Objection]>,
        announcer: Option<&Announcer>,
    ) {
        if Arc::ptr_eq(&self.discovery, discovery) && Arc::ptr_eq(&self.more, more) {
            return;
        }

        self.discovery = Arc::clone(discovery);
        self.more = Arc::clone(more);
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

        let all = discovery.objections.iter().chain(more.iter());
        let objections: BTreeSet<Objection> = all.cloned().collect();
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
            info!(%object, "The object is valid again");
        }

        self.objections = objections;
    }
}
