//! Silence: since when every replica of a model has been heard, and none has had anything to do.
//!
//! It is kept as one instant a model, which every page that says otherwise moves forward, so a
//! retention of a day costs no more than one of a minute. A page says otherwise when something runs
//! or waits, or when a counter of requests or tokens has moved since the page before. What is not
//! seen moves it as well: a replica without fresh data, two pages too far apart, a counter that is
//! not on the page, a queue in front that cannot be read. A restart is a time that nobody saw, which
//! [`saved`] covers where it can.

pub(crate) mod saved;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::decide::zero::{Evidence, InFront, Work};
use crate::fleet::{ModelKey, ReplicaKey, VariantKey};
use crate::observe::{Counts, Demand, Freshness, Inputs, RankReading, Reading, Scale, Scrape, Way};
use crate::pipeline::PAUSE_MAX;
use crate::pipeline::group::{Group, Member};
use crate::units::{Replicas, Requests, Seconds, Tokens};

/// What is known of the silence of models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silences {
    models: BTreeMap<ModelKey, Silence>,
    replicas: BTreeMap<ReplicaKey, Heard>,
}

/// The silence of one model.
#[derive(Clone, Debug)]
struct Silence {
    since: Timestamp,
    pages: u64,
    /// That it is from before a restart, and not yet known to have lasted until now.
    recalled: Option<Recalled>,
}

/// A silence of before a restart.
#[derive(Clone, Debug)]
struct Recalled {
    at: Timestamp,
    /// Replicas that have not been heard since.
    awaited: BTreeSet<ReplicaKey>,
}

/// The last page of a replica.
#[derive(Clone, Debug)]
struct Heard {
    at: Timestamp,
    started: Option<Timestamp>,
    counted: [Option<f64>; COUNTERS],
    by: By,
}

/// Who has heard a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Us,
    /// Whoever was here before the restart.
    Predecessor,
}

/// How long after a restart the first page of every replica may take. Pages come each second, and a
/// list of replicas within a few; what takes longer is not the same fleet.
const RECALL_MAX: f64 = 60.0;

/// Counters that move when there is work: requests finished, answered and turned away, and tokens
/// read and written. The first must be on the page. A request whose client hangs up is never
/// finished on vLLM, but it is answered, and its tokens count.
const COUNTERS: usize = 5;

/// What pages said in one tick.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    pages: u64,
    finished: f64,
    moved: bool,
    on_replicas: f64,
    /// Some page does not say what has finished, or what was said before is too old.
    finished_unknown: bool,
    /// Some replica does not say what runs and waits on it.
    on_replicas_unknown: bool,
    heard: Replicas,
}

/// A tick as silence sees it.
pub(crate) struct Hearing<'a> {
    pub(crate) now: Timestamp,
    pub(crate) inputs: &'a Inputs,
    /// The scrapes of each variant.
    pub(crate) scrapes: BTreeMap<&'a VariantKey, Vec<&'a Scrape>>,
    /// How far apart two pages that are scraped here may be.
    pub(crate) gap_scraped: Seconds,
    /// How far apart two pages that another server scrapes may be.
    pub(crate) gap_relayed: Seconds,
}

// === impl Silences ===

impl Silences {
    /// Forgets all that was heard: there was a time that nobody saw.
    pub(crate) fn begin_anew(&mut self) {
        self.models.clear();
        self.replicas.clear();
    }

    /// Lets one model's silence begin anew.
    pub(crate) fn break_off(&mut self, now: Timestamp, model: &ModelKey) {
        self.models.insert(model.clone(), Silence::beginning(now));
    }

    /// Forgets models and replicas that are not looked at any more. Those of before a restart may
    /// not have been listed yet, and are kept while one of them is waited for.
    pub(crate) fn keep(&mut self, models: &BTreeSet<ModelKey>, replicas: &BTreeSet<&ReplicaKey>) {
        self.models.retain(|model, _| models.contains(model));
        let waits = self.models.values().any(|silence| silence.recalled.is_some());
        self.replicas.retain(|replica, heard| {
            replicas.contains(replica) || (waits && heard.by == By::Predecessor)
        });
    }

    /// What is known of a model's work, and the name of the signal that says the most.
    pub(crate) fn listen(
        &mut self,
        hearing: &Hearing<'_>,
        groups: &[Group<'_>],
        model: &ModelKey,
        starting: Replicas,
    ) -> (Work, Option<String>) {
        let now = hearing.now;
        let mut said = Said::default();
        for member in groups.iter().flat_map(|group| &group.members) {
            self.hear(hearing, member, &mut said);
        }
        let signals = hearing.inputs.demand.get(model).into_iter().flatten();
        // A counter of rejected requests says nothing of requests that wait.
        let demand: Vec<&Demand> = signals.filter(|it| it.counts != Counts::Rejected).collect();
        let (in_front, signal) = in_front(now, &demand);
        let moved = if said.moved { said.finished.max(1.0) } else { said.finished };
        let finished =
            if said.moved || !said.finished_unknown { Requests::new(moved) } else { None };
        let on_replicas = (said.on_replicas > 0.0 || !said.on_replicas_unknown)
            .then(|| Requests::new(said.on_replicas))
            .flatten();
        let finished = finished.filter(|_| said.moved || said.heard > Replicas::ZERO);
        let quiet = finished == Some(Requests::ZERO)
            && on_replicas == Some(Requests::ZERO)
            && starting == Replicas::ZERO
            && matches!(in_front, InFront::NoQueue | InFront::Queued(Requests::ZERO));
        let silence = self.models.entry(model.clone()).or_insert_with(|| Silence::beginning(now));
        if let Some(recalled) = &mut silence.recalled {
            let replicas = &self.replicas;
            let by_us = |key: &ReplicaKey| {
                replicas.get(key).is_some_and(|heard: &Heard| heard.by == By::Us)
            };
            recalled.awaited.retain(|key| !by_us(key));
            let something = said.moved
                || said.finished_unknown
                || said.on_replicas > 0.0
                || starting > Replicas::ZERO
                || matches!(in_front, InFront::Queued(queued) if queued > Requests::ZERO);
            let waited = now.duration_since(recalled.at).as_secs_f64();
            let in_time = (0.0..=RECALL_MAX).contains(&waited);
            if !something && in_time && !(quiet && recalled.awaited.is_empty()) {
                // Nothing speaks against it yet, and nothing proves it.
                let evidence = Evidence { replicas: said.heard, pages: 0 };
                let (finished, seen_for) = (None, Seconds::ZERO);
                let work = Work { finished, on_replicas, in_front, seen_for, starting, evidence };
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
        let seen_for = Seconds::from_span(now.duration_since(silence.since)).unwrap_or_default();
        let evidence = Evidence { replicas: said.heard, pages: silence.pages };
        (Work { finished, on_replicas, in_front, seen_for, starting, evidence }, signal)
    }

    /// Listens to the replicas of one variant.
    fn hear(&mut self, hearing: &Hearing<'_>, member: &Member<'_>, said: &mut Said) {
        let (key, observation) = (&member.spec.key, member.observation);
        let listing = hearing.inputs.listings.get(key);
        let way = listing.map(|listing| listing.way).unwrap_or_default();
        let gap = match way {
            Way::Scraped => hearing.gap_scraped,
            Way::Relayed => hearing.gap_relayed,
        };
        let listed: BTreeSet<&ReplicaKey> =
            observation.replicas.iter().map(|replica| &replica.replica).collect();
        for scrape in hearing.scrapes.get(key).into_iter().flatten() {
            if let (Ok(reading), true) = (&scrape.outcome, listed.contains(&scrape.replica)) {
                self.read(&scrape.replica, scrape.at, reading, gap, said);
            }
        }
        if observation.wanted.is_none() || member.is_unlisted() {
            said.on_replicas_unknown = true;
        }
        let counted_by_answers = listing.is_some_and(|listing| listing.scale == Scale::Targets);
        for replica in &observation.replicas {
            match replica.freshness {
                Freshness::Fresh { .. } if self.replicas.contains_key(&replica.replica) => {
                    said.heard += Replicas::ONE;
                }
                // What has stopped is no replica any more, and what has never been one neither.
                Freshness::Stale { .. } if replica.stopped => {}
                Freshness::Never { why: Some(_) } if counted_by_answers => {}
                // One that starts is counted where the starting ones are.
                Freshness::Never { .. } if !counted_by_answers => {}
                Freshness::Fresh { .. } | Freshness::Stale { .. } | Freshness::Never { .. } => {
                    said.on_replicas_unknown = true;
                }
            }
        }
    }

    /// Reads one page.
    fn read(
        &mut self,
        replica: &ReplicaKey,
        at: Timestamp,
        reading: &Reading,
        gap: Seconds,
        said: &mut Said,
    ) {
        said.pages += 1;
        let counted = counted(reading);
        match in_flight(&reading.ranks) {
            Some(in_flight) => said.on_replicas = said.on_replicas.max(in_flight),
            None => said.on_replicas_unknown = true,
        }
        let heard = Heard { at, started: reading.started, counted, by: By::Us };
        let known = self.replicas.insert(replica.clone(), heard);
        let Some(before) = known else {
            // What it did before it was first heard nobody saw, unless it has done nothing ever.
            said.finished_unknown |=
                counted[0].is_none() || counted.iter().flatten().any(|count| *count > 0.0);
            return;
        };
        let gap = match before.by {
            By::Us => gap,
            By::Predecessor => Seconds::new(PAUSE_MAX).unwrap_or(gap),
        };
        said.finished_unknown |= before.by == By::Predecessor && !before.goes_on(reading, &counted);
        let passed = Seconds::from_span(at.duration_since(before.at));
        said.finished_unknown |= counted[0].is_none() || passed.is_none_or(|passed| passed > gap);
        for (index, (new, old)) in counted.iter().zip(&before.counted).enumerate() {
            let grown = match (new, old) {
                // A counter that is lower than before has started from zero.
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

// === impl Silence, Heard ===

impl Silence {
    const fn beginning(now: Timestamp) -> Self {
        Self { since: now, pages: 0, recalled: None }
    }
}

impl Heard {
    /// Whether a later page is of the same process, so that its counters have counted everything in
    /// between: it says when it started, or has counted something before.
    fn goes_on(&self, reading: &Reading, counted: &[Option<f64>; COUNTERS]) -> bool {
        // A counter that is lower has started from zero, and nobody knows what it was at the end.
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

// === what pages and signals say ===

fn counted(reading: &Reading) -> [Option<f64>; COUNTERS] {
    let ranks = &reading.ranks;
    let tokens = |of: fn(&RankReading) -> Option<Tokens>| {
        ranks.iter().filter_map(of).map(Tokens::tokens).reduce(|a, b| a + b)
    };
    let http = [reading.http.success, reading.http.client_error, reading.http.server_error];
    [
        finished(ranks),
        http.into_iter().flatten().map(Requests::requests).reduce(|a, b| a + b),
        reading.rejected.map(Requests::requests),
        tokens(|rank| rank.prompt_tokens),
        tokens(|rank| rank.generation_tokens),
    ]
}

/// Requests that all ranks have finished; `None` where one does not say.
fn finished(ranks: &[RankReading]) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    let of = |rank: &RankReading| {
        let it = rank.finished;
        let reasons = [it.stop, it.length, it.abort, it.error, it.other];
        reasons.into_iter().flatten().map(Requests::requests).reduce(|a, b| a + b)
    };
    ranks.iter().map(of).sum()
}

/// Requests that run and wait on all ranks; `None` where one does not say.
fn in_flight(ranks: &[RankReading]) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    ranks.iter().map(|rank| Some(rank.running?.requests() + rank.waiting?.requests())).sum()
}

/// What queues in front of a model, by all of its signals: the most that one of them says, and
/// nothing only where each says so.
fn in_front(now: Timestamp, demand: &[&Demand]) -> (InFront, Option<String>) {
    let fresh = |demand: &Demand| {
        let (amount, at) = demand.seen.number()?;
        let age = now.duration_since(at).as_secs_f64();
        (age.abs() <= Demand::STALE.seconds()).then_some(amount)
    };
    let most = demand
        .iter()
        .filter_map(|one| Some((fresh(one)?, &one.signal)))
        .reduce(|a, b| if b.0 > a.0 { b } else { a });
    match most {
        Some((amount, signal)) if amount > Requests::ZERO => {
            (InFront::Queued(amount), Some(signal.clone()))
        }
        _ if demand.is_empty() => (InFront::NoQueue, None),
        _ if demand.iter().any(|one| fresh(one).is_none()) => (InFront::Unknown, None),
        _ => (InFront::Queued(Requests::ZERO), None),
    }
}
