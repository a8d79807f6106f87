//! A silence, said to whoever goes on with it.
//!
//! A restart leaves a time that nobody saw. What was proved before it stands where the counters of
//! every replica go on from where they were: then nothing has happened in between, either.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::fleet::{Incarnation, ModelKey, ReplicaKey, ReplicaName, VariantKey};
use crate::pipeline::PAUSE_MAX;
use crate::pipeline::silence::{By, COUNTERS, Heard, Recalled, Silence, Silences};

/// Replicas of a variant that are written at most. What is idle has few; with more, the proof begins
/// anew.
const REPLICAS_MAX: usize = 32;

/// Since when a model has had nothing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSilence {
    /// Since when.
    #[serde(with = "crate::units::instants")]
    pub since: Timestamp,
    /// Pages that have said so.
    pub pages: u64,
    /// The last page of each replica of the variant.
    pub replicas: Vec<SavedHeard>,
}

/// The last page of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedHeard {
    /// Its name.
    pub replica: ReplicaName,
    /// Which life of it.
    pub incarnation: Option<Incarnation>,
    /// When it was.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// When the engine's process started, if the page says so.
    #[serde(with = "crate::units::instants")]
    pub started: Option<Timestamp>,
    /// Requests finished, answered and turned away, and tokens read and written.
    #[serde(deserialize_with = "counters")]
    pub counted: [Option<f64>; COUNTERS],
}

fn counters<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<[Option<f64>; COUNTERS], D::Error> {
    let counted = <[Option<f64>; COUNTERS]>::deserialize(deserializer)?;

    if counted.iter().flatten().all(|count| count.is_finite() && *count >= 0.0) {
        Ok(counted)
    } else {
        Err(D::Error::custom("a counter is below 0"))
    }
}

impl Silences {
    /// What a variant knows of its model's silence; `None` while something happens.
    pub(crate) fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedSilence> {
        let silence = self.models.get(model)?;
        let ours = self.replicas.iter().filter(|(key, _)| key.variant == *variant);
        let heard = |(key, heard): (&ReplicaKey, &Heard)| {
            Some(SavedHeard {
                replica: key.replica.clone(),
                incarnation: key.incarnation.clone(),
                at: Timestamp::from_millisecond(heard.at.as_millisecond()).ok()?,
                started: heard
                    .started
                    .and_then(|at| Timestamp::from_millisecond(at.as_millisecond()).ok()),
                counted: heard.counted,
            })
        };
        let replicas: Vec<SavedHeard> = ours.filter_map(heard).collect();
        let since = Timestamp::from_millisecond(silence.since.as_millisecond()).ok()?;
        (replicas.len() <= REPLICAS_MAX && silence.pages > 0).then_some(SavedSilence {
            since,
            pages: silence.pages,
            replicas,
        })
    }

    /// Goes on from what was known, as soon as every replica has been heard again. What is known
    /// here already stays.
    pub(crate) fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        saved: &SavedSilence,
    ) {
        let SavedSilence { since, pages, replicas } = saved;
        let recent = |heard: &SavedHeard| {
            (0.0..=PAUSE_MAX).contains(&now.duration_since(heard.at).as_secs_f64())
        };
        let known = self.models.get(model);
        let is_known = known.is_some_and(|silence| silence.recalled.is_none());
        if is_known || *since > now || !replicas.iter().all(recent) {
            return;
        }
        let silence = self.models.entry(model.clone()).or_insert_with(|| Silence {
            since: *since,
            pages: *pages,
            recalled: Some(Recalled { at: now, awaited: BTreeSet::new() }),
        });
        silence.since = silence.since.max(*since);
        for SavedHeard { replica, incarnation, at, started, counted } in replicas {
            let key = ReplicaKey {
                variant: variant.clone(),
                replica: replica.clone(),
                incarnation: incarnation.clone(),
            };
            if let Some(recalled) = &mut silence.recalled {
                recalled.awaited.insert(key.clone());
            }
            let by = By::Predecessor;
            let heard = Heard { at: *at, started: *started, counted: *counted, by };
            self.replicas.entry(key).or_insert(heard);
        }
    }
}
