//! The shape of a silence.
//!
//! ```json
//! {"since":1795253000000,"pages":412,"replicas":[["llama-0","uid-1",1795253460000,1795200000000,[7.0,7.0,null,3500.0,900.0]]]}
//! ```

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Incarnation, ReplicaName};
use crate::pipeline::saved::{SavedHeard, SavedSilence};
use crate::publish::state::memory::{Millis, instant, some};

/// A replica, which life of it, its last page, when its process started, and its counters.
type HeardLine = (String, Option<String>, Millis, Option<Millis>, [Option<f64>; 5]);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SilenceLine {
    since: Millis,
    pages: u64,
    replicas: Vec<HeardLine>,
}

impl From<&SavedSilence> for SilenceLine {
    fn from(saved: &SavedSilence) -> Self {
        let SavedSilence { since, pages, replicas } = saved;
        let line = |heard: &SavedHeard| {
            let SavedHeard { replica, incarnation, at, started, counted } = heard;
            let incarnation = incarnation.as_ref().map(|it| it.as_str().to_owned());
            let started = started.map(Timestamp::as_millisecond);
            (replica.as_str().to_owned(), incarnation, at.as_millisecond(), started, *counted)
        };
        Self {
            since: since.as_millisecond(),
            pages: *pages,
            replicas: replicas.iter().map(line).collect(),
        }
    }
}

impl SilenceLine {
    /// What is known; `None` where it says what cannot be.
    pub(super) fn silence(&self) -> Option<SavedSilence> {
        let Self { since, pages, replicas } = self;
        let heard = |(replica, incarnation, at, started, counted): &HeardLine| {
            let sound = counted.iter().flatten().all(|count| count.is_finite() && *count >= 0.0);
            sound.then_some(())?;
            Some(SavedHeard {
                replica: ReplicaName::new(replica)?,
                incarnation: some(incarnation.as_deref(), Incarnation::new).ok()?,
                at: instant(*at)?,
                started: some(*started, instant).ok()?,
                counted: *counted,
            })
        };
        Some(SavedSilence {
            since: instant(*since)?,
            pages: *pages,
            replicas: replicas.iter().map(heard).collect::<Option<_>>()?,
        })
    }
}
