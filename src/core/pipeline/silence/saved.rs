//! The saved form of a silence, for the process that continues it.
//!
//! A restart leaves an unobserved time. The earlier proof stays valid if the counters of every
//! replica continue from their saved values. Then nothing has happened in between, either.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::fleet::{Incarnation, ModelKey, ReplicaKey, ReplicaName, VariantKey};
use crate::observe::PAUSE_MAX;
use crate::pipeline::silence::{
    COUNTERS, LastScrape, RestoredSilence, ScrapeOrigin, Silence, Silences,
};

/// The maximum of saved replicas per variant. An idle model has few. With more, the proof restarts.
const REPLICAS_MAX: usize = 32;

/// The time since which a model has had no work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedSilence {
    /// The start of the silence.
    #[serde(with = "crate::units::instants")]
    pub since: Timestamp,
    /// Scrapes that confirm it.
    pub pages: u64,
    /// The last scrape of each replica of the variant.
    pub replicas: Vec<SavedScrape>,
}

/// The last scrape of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedScrape {
    /// Its name.
    pub replica: ReplicaName,
    /// The replica's incarnation.
    pub incarnation: Option<Incarnation>,
    /// The time of the scrape.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The start time of the engine's process, if reported.
    #[serde(with = "crate::units::instants")]
    pub started: Option<Timestamp>,
    /// Requests finished, answered and rejected, and tokens read and written.
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

impl LastScrape {
    /// The saved form, with instants to the millisecond.
    fn save(&self, key: &ReplicaKey) -> Option<SavedScrape> {
        Some(SavedScrape {
            replica: key.replica.clone(),
            incarnation: key.incarnation.clone(),
            at: to_millisecond(self.at)?,
            started: self.started.and_then(to_millisecond),
            counted: self.counted,
        })
    }
}

fn to_millisecond(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_millisecond(at.as_millisecond()).ok()
}

impl Silences {
    /// The variant's part of its model's silence; `None` while the model has work.
    pub(crate) fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedSilence> {
        let silence = self.models.get(model)?;
        let ours = self.replicas.iter().filter(|(key, _)| key.variant == *variant);
        let replicas: Vec<SavedScrape> = ours.filter_map(|(key, heard)| heard.save(key)).collect();

        let since = to_millisecond(silence.since)?;
        (replicas.len() <= REPLICAS_MAX && silence.pages > 0).then_some(SavedSilence {
            since,
            pages: silence.pages,
            replicas,
        })
    }

    /// Restores a silence, which becomes valid as soon as every replica has reported again. A
    /// silence that is already known stays.
    pub(crate) fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        saved: &SavedSilence,
    ) {
        let SavedSilence { since, pages, replicas } = saved;
        let mut ages = replicas.iter().map(|it| now.duration_since(it.at).as_secs_f64());
        let all_recent = ages.all(|age| (0.0..=PAUSE_MAX).contains(&age));
        let known = self.models.get(model);
        let is_known = known.is_some_and(|silence| silence.recalled.is_none());
        if is_known || *since > now || !all_recent {
            return;
        }

        let silence = self.models.entry(model.clone()).or_insert_with(|| Silence {
            since: *since,
            pages: *pages,
            recalled: Some(RestoredSilence { at: now, awaited: BTreeSet::new() }),
        });
        silence.since = silence.since.max(*since);
        for SavedScrape { replica, incarnation, at, started, counted } in replicas {
            let key = ReplicaKey {
                variant: variant.clone(),
                replica: replica.clone(),
                incarnation: incarnation.clone(),
            };
            if let Some(recalled) = &mut silence.recalled {
                recalled.awaited.insert(key.clone());
            }

            let by = ScrapeOrigin::Predecessor;
            let heard = LastScrape { at: *at, started: *started, counted: *counted, by };
            self.replicas.entry(key).or_insert(heard);
        }
    }
}
