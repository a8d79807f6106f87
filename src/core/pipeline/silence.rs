//! Silence: the time for which every replica of a model has reported, and none has had any work.
//!
//! Silence is stored as one instant per model, which every contrary scrape moves forward. So a
//! retention of a day costs no more than one of a minute. A contrary scrape shows running or
//! waiting requests, or a request or token counter that moved since the previous scrape.
//!
//! Missing data moves the instant too: a replica without fresh data, two scrapes too far apart, a
//! missing counter, or an unreadable queue in front. A restart leaves an unobserved time, which
//! [`saved`] covers if it can.

pub(crate) mod saved;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::zero::{FrontQueue, IdleEvidence, ObservedWork};
use crate::fleet::{ModelKey, ReplicaKey, VariantKey};
use crate::observe::PAUSE_MAX;
use crate::observe::{DemandSignal, Freshness, RankReading, Reading, Scrape, SignalQuantity};
use crate::pipeline::group::{Member, VariantGroup};
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, Requests, Seconds, Tokens};

/// The known silence of every model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silences {
    models: BTreeMap<ModelKey, Silence>,
    replicas: BTreeMap<ReplicaKey, LastScrape>,
}

/// The silence of one model.
#[derive(Clone, Debug)]
struct Silence {
    since: Timestamp,
    pages: u64,
    /// Set if the silence is from before a restart and not yet proven to have lasted until now.
    recalled: Option<RestoredSilence>,
}

/// A silence from before a restart.
#[derive(Clone, Debug)]
struct RestoredSilence {
    at: Timestamp,
    /// Replicas that have not reported since the restart.
    awaited: BTreeSet<ReplicaKey>,
}

/// The last scrape of a replica.
#[derive(Clone, Debug)]
struct LastScrape {
    at: Timestamp,
    started: Option<Timestamp>,
    counted: [Option<f64>; COUNTERS],
    by: ScrapeOrigin,
}

/// The process that took a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeOrigin {
    Us,
    /// The process from before the restart.
    Predecessor,
}

/// The longest time that the first scrape of every replica may take after a restart. Scrapes come
/// each second, and a list of replicas within a few. After a longer time, the fleet is no longer
/// the same.
const RECALL_MAX: f64 = 60.0;

/// Counters that move when there is work: requests finished, answered and rejected, and tokens read
/// and written. The first must be in the scrape. On vLLM, a request whose client disconnects is
/// never counted as finished, but it is answered, and its tokens count.
const COUNTERS: usize = 5;

/// The findings from the scrapes of one tick.
#[derive(Clone, Copy, Debug, Default)]
struct ScrapeFindings {
    pages: u64,
    finished: f64,
    moved: bool,
    on_replicas: f64,
    /// Some scrape has no counter of finished requests, or the previous one is too old.
    finished_unknown: bool,
    /// Some replica does not report its running and waiting requests.
    on_replicas_unknown: bool,
    heard: Replicas,
}

/// The scrapes of each variant.
pub(crate) type VariantScrapes<'a> = BTreeMap<&'a VariantKey, Vec<&'a Scrape>>;

// === impl Silences ===

impl Silences {
    /// Forgets all scrapes after an unobserved time.
    pub(crate) fn begin_anew(&mut self) {
        self.models.clear();
        self.replicas.clear();
    }

    /// Restarts the silence of one model.
    pub(crate) fn break_off(&mut self, now: Timestamp, model: &ModelKey) {
        self.models.insert(model.clone(), Silence::beginning(now));
    }

    /// Forgets models and replicas that are no longer watched. Replicas from before a restart may
    /// not be listed yet. They are kept while one of them is awaited.
    pub(crate) fn keep(&mut self, models: &BTreeSet<ModelKey>, replicas: &BTreeSet<&ReplicaKey>) {
        self.models.retain(|model, _| models.contains(model));
        let waits = self.models.values().any(|silence| silence.recalled.is_some());
        self.replicas.retain(|replica, heard| {
            replicas.contains(replica) || (waits && heard.by == ScrapeOrigin::Predecessor)
        });
    }

    /// The known work of a model, and the name of the signal with the longest queue.
    pub(crate) fn listen(
        &mut self,
        tick: &Tick<'_>,
        scrapes: &VariantScrapes<'_>,
        groups: &[VariantGroup<'_>],
        model: &ModelKey,
        starting: Replicas,
    ) -> (ObservedWork, Option<String>) {
        let now = tick.now;
        let mut said = ScrapeFindings::default();
        for member in groups.iter().flat_map(|group| &group.members) {
            self.hear(tick, scrapes, member, &mut said);
        }

        let signals = tick.inputs.demand.get(model).into_iter().flatten();
        // A counter of rejected requests shows nothing about waiting requests.
        let demand: Vec<&DemandSignal> =
            signals.filter(|it| it.counts != SignalQuantity::Rejected).collect();
        let (in_front, signal) = in_front(now, &demand);
        let moved = if said.moved { said.finished.max(1.0) } else { said.finished };
        let counted =
            if said.moved || !said.finished_unknown { Requests::new(moved) } else { None };
        let finished = counted.filter(|_| said.moved || said.heard > Replicas::ZERO);
        let on_replicas = (said.on_replicas > 0.0 || !said.on_replicas_unknown)
            .then(|| Requests::new(said.on_replicas))
            .flatten();
        let quiet = finished == Some(Requests::ZERO)
            && on_replicas == Some(Requests::ZERO)
            && starting == Replicas::ZERO
            && matches!(in_front, FrontQueue::NoQueue | FrontQueue::Queued(Requests::ZERO));
        let silence = self.models.entry(model.clone()).or_insert_with(|| Silence::beginning(now));
        if let Some(recalled) = &mut silence.recalled {
            recalled.awaited.retain(|key| {
                self.replicas.get(key).is_none_or(|heard| heard.by == ScrapeOrigin::Predecessor)
            });
            let something = said.moved
                || said.finished_unknown
                || said.on_replicas > 0.0
                || starting > Replicas::ZERO
                || matches!(in_front, FrontQueue::Queued(queued) if queued > Requests::ZERO);
            let waited = now.duration_since(recalled.at).as_secs_f64();
            let in_time = (0.0..=RECALL_MAX).contains(&waited);
            if !something && in_time && !(quiet && recalled.awaited.is_empty()) {
                // No data contradicts the silence yet, and no data proves it.
                let evidence = IdleEvidence { replicas: said.heard, pages: 0 };
                let finished = None;
                let seen_for = Seconds::ZERO;
                let work =
                    ObservedWork { finished, on_replicas, in_front, seen_for, starting, evidence };
                return (work, signal);
            }

            silence.recalled = None;
            if !in_time {
                *silence = Silence::beginning(now);
            }
        }

        if quiet && silence.since <= now {
            silence.pages += said.pages;
        } else {
            *silence = Silence::beginning(now);
        }

        let seen_for = Seconds::between(silence.since, now);
        let evidence = IdleEvidence { replicas: said.heard, pages: silence.pages };
        (ObservedWork { finished, on_replicas, in_front, seen_for, starting, evidence }, signal)
    }

    /// Reads the scrapes of one variant's replicas.
    fn hear(
        &mut self,
        tick: &Tick<'_>,
        scrapes: &VariantScrapes<'_>,
        member: &Member<'_>,
        said: &mut ScrapeFindings,
    ) {
        let key = &member.spec.key;
        let observation = member.observation;
        let listing = tick.inputs.listings.get(key);
        let gap = tick.policy.stale_after(listing.map(|listing| listing.way).unwrap_or_default());
        let listed: BTreeSet<&ReplicaKey> =
            observation.replicas.iter().map(|replica| &replica.replica).collect();
        for scrape in scrapes.get(key).into_iter().flatten() {
            if let (Ok(reading), true) = (&scrape.outcome, listed.contains(&scrape.replica)) {
                self.read(&scrape.replica, scrape.at, reading, gap, said);
            }
        }

        if observation.wanted.is_none() || member.is_unlisted() {
            said.on_replicas_unknown = true;
        }

        let counted_by_answers = tick.is_counted_by_answers(member);
        for replica in &observation.replicas {
            match replica.freshness {
                Freshness::Fresh { .. } if self.replicas.contains_key(&replica.replica) => {
                    said.heard += Replicas::ONE;
                }
                // A stopped replica no longer counts, and a target that has never answered is not a
                // replica.
                Freshness::Stale { .. } if replica.stopped => {}
                Freshness::Never { why: Some(_) } if counted_by_answers => {}
                // Starting replicas are counted in `starting`.
                Freshness::Never { .. } if !counted_by_answers => {}
                Freshness::Fresh { .. } | Freshness::Stale { .. } | Freshness::Never { .. } => {
                    said.on_replicas_unknown = true;
                }
            }
        }
    }

    /// Reads one scrape.
    fn read(
        &mut self,
        replica: &ReplicaKey,
        at: Timestamp,
        reading: &Reading,
        gap: Seconds,
        said: &mut ScrapeFindings,
    ) {
        said.pages += 1;
        let counted = counted(reading);
        match in_flight(&reading.ranks) {
            Some(in_flight) => said.on_replicas = said.on_replicas.max(in_flight),
            None => said.on_replicas_unknown = true,
        }

        let heard = LastScrape { at, started: reading.started, counted, by: ScrapeOrigin::Us };
        let known = self.replicas.insert(replica.clone(), heard);
        let Some(before) = known else {
            // Work before the first scrape was not observed, unless all counters are still zero.
            said.finished_unknown |=
                counted[0].is_none() || counted.iter().flatten().any(|count| *count > 0.0);
            return;
        };

        let passed_max = match before.by {
            ScrapeOrigin::Us => gap,
            ScrapeOrigin::Predecessor => Seconds::new(PAUSE_MAX).unwrap_or(gap),
        };
        said.finished_unknown |=
            before.by == ScrapeOrigin::Predecessor && !before.goes_on(reading, &counted);
        let passed = Seconds::from_span(at.duration_since(before.at));
        said.finished_unknown |=
            counted[0].is_none() || passed.is_none_or(|passed| passed > passed_max);
        for (index, (new, old)) in counted.iter().zip(&before.counted).enumerate() {
            let grown = match (new, old) {
                // A counter that decreased has restarted from zero.
                (Some(new), Some(old)) if new < old => *new,
                (Some(new), Some(old)) => new - old,
                (Some(new), None) => *new,
                (None, Some(_)) => {
                    said.finished_unknown = true;
                    0.0
                }
                (None, None) => 0.0,
            };

            said.moved |= grown > 0.0;
            if index == 0 {
                said.finished += grown;
            }
        }
    }
}

// === impl Silence, LastScrape ===

impl Silence {
    const fn beginning(now: Timestamp) -> Self {
        Self { since: now, pages: 0, recalled: None }
    }
}

impl LastScrape {
    /// Returns true if a later scrape is from the same process, so that its counters include
    /// everything in between. The proof is an equal start time or, if there is none, a count above
    /// zero.
    fn goes_on(&self, reading: &Reading, counted: &[Option<f64>; COUNTERS]) -> bool {
        // A counter that decreased has restarted from zero, and its final value is not known.
        if counted.iter().zip(&self.counted).any(|(new, old)| new < old) {
            return false;
        }

        match (self.started, reading.started) {
            (Some(before), Some(now)) => before.as_millisecond() == now.as_millisecond(),
            (None, None) => self.counted.iter().flatten().any(|count| *count > 0.0),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

// === values in scrapes and signals ===

fn counted(reading: &Reading) -> [Option<f64>; COUNTERS] {
    let ranks = &reading.ranks;
    let http = [reading.http.success, reading.http.client_error, reading.http.server_error];

    [
        finished(reading.engine.counting_ranks(ranks)),
        http.into_iter().flatten().map(Requests::requests).reduce(|a, b| a + b),
        reading.rejected.map(Requests::requests),
        tokens(ranks, |rank| rank.prompt_tokens),
        tokens(ranks, |rank| rank.generation_tokens),
    ]
}

/// Tokens that the ranks have counted; `None` if no rank reports them.
fn tokens(ranks: &[RankReading], of: fn(&RankReading) -> Option<Tokens>) -> Option<f64> {
    ranks.iter().filter_map(of).map(Tokens::tokens).reduce(|a, b| a + b)
}

/// Requests that these ranks have finished; `None` if one does not report it.
fn finished(ranks: &[RankReading]) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }

    ranks
        .iter()
        .map(|rank| {
            let it = rank.finished;
            let reasons = [it.stop, it.length, it.abort, it.error, it.other];
            reasons.into_iter().flatten().map(Requests::requests).reduce(|a, b| a + b)
        })
        .sum()
}

/// Requests that run and wait on all ranks; `None` if one does not report them.
fn in_flight(ranks: &[RankReading]) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    ranks.iter().map(|rank| Some(rank.running?.requests() + rank.waiting?.requests())).sum()
}

/// The queue in front of a model from all of its signals: the highest count of any signal. Zero
/// requires that every signal reports zero.
fn in_front(now: Timestamp, demand: &[&DemandSignal]) -> (FrontQueue, Option<String>) {
    let most = demand
        .iter()
        .filter_map(|one| Some((fresh(now, one)?, &one.signal)))
        .reduce(|a, b| if b.0 > a.0 { b } else { a });

    match most {
        Some((amount, signal)) if amount > Requests::ZERO => {
            (FrontQueue::Queued(amount), Some(signal.clone()))
        }
        _ if demand.is_empty() => (FrontQueue::NoQueue, None),
        _ if demand.iter().any(|one| fresh(now, one).is_none()) => (FrontQueue::Unknown, None),
        _ => (FrontQueue::Queued(Requests::ZERO), None),
    }
}

/// The count of a signal, unless it is stale.
fn fresh(now: Timestamp, demand: &DemandSignal) -> Option<Requests> {
    let (amount, at) = demand.seen.number()?;
    let age = now.duration_since(at).as_secs_f64();
    (age.abs() <= DemandSignal::STALE.seconds()).then_some(amount)
}
