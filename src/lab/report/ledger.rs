//! Counts what happened in each hour, for each variant.
//!
//! Time without a tick, and time in which the replicas of a variant could not be counted, is time
//! that is not known. It has neither cost nor replicas, and the report shows its length.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::report::held::{self, HeldDirection};
use plimsoll_core::decide::ReasonCode;
use plimsoll_core::fleet::{ReplicaKey, Role, VariantKey, VariantSpec};
use plimsoll_core::observe::histogram::{Histogram, ProcessLife};
use plimsoll_core::observe::{Inputs, Reading, Scale};
use plimsoll_core::units::Replicas;
use plimsoll_daemon::trace::{RecordedResult, ResultReason, TraceTick};

/// The time between two ticks from which the time between them is not known.
const GAP: SignedDuration = SignedDuration::from_mins(2);

/// The time for which a variant may be missing from the fleet without being removed: its object is
/// replaced, or it is not discovered yet after a restart.
const RETURN: SignedDuration = SignedDuration::from_mins(15);

const HOUR: i64 = 3600;

/// The most variants of a report; the trace of a larger fleet is reported in part.
const VARIANTS_MAX: usize = 5_000;

/// What happened, by hour and variant.
pub(crate) struct WeekLedger {
    /// Hours that are kept.
    kept: i64,
    /// The figures of each variant in each hour since 1970.
    pub(crate) hours: BTreeMap<i64, BTreeMap<VariantKey, WeekFigures>>,
    /// The variants.
    pub(crate) specs: BTreeMap<VariantKey, VariantSpec>,
    /// The first and the last tick that are kept.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// True if the trace has more variants than a report may have.
    pub(crate) is_cut: bool,
    last: Option<Timestamp>,
    states: BTreeMap<VariantKey, ReportedState>,
    meters: BTreeMap<ReplicaKey, LatencyMeter>,
}

/// What happened to a variant in a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeekFigures {
    /// Seconds in which its replicas were counted.
    pub(crate) known: f64,
    /// Seconds in which they could not be counted.
    pub(crate) unknown: f64,
    /// Replica-seconds.
    pub(crate) replicas: f64,
    /// Their cost.
    pub(crate) cost: f64,
    /// The most replicas at once.
    pub(crate) peak: u32,
    /// Changes of the desired replicas.
    pub(crate) ups: u32,
    pub(crate) downs: u32,
    /// Seconds without desired replicas.
    pub(crate) undecided: f64,
    /// Times to first token, and times between tokens.
    pub(crate) ttft: Histogram,
    pub(crate) itl: Histogram,
    /// Requests that finished.
    pub(crate) requests: f64,
    /// Seconds for each reason to keep the number, and how often that began.
    pub(crate) held: BTreeMap<(ReasonCode, HeldDirection), (f64, u32)>,
}

/// The state of a variant at the last tick.
#[derive(Default)]
struct ReportedState {
    existing: Option<u32>,
    desired: Option<Replicas>,
    is_undecided: bool,
    held: BTreeSet<(ReasonCode, HeldDirection)>,
    /// Since when it has been missing from the fleet.
    left: Option<Timestamp>,
}

/// The last histograms of a replica.
struct LatencyMeter {
    started: Option<Timestamp>,
    seen: [Option<Histogram>; 3],
}

// === impl WeekLedger ===

impl WeekLedger {
    /// A ledger of the last days of a trace.
    pub(crate) fn new(days: u32) -> Self {
        Self {
            kept: i64::from(days) * 24,
            hours: BTreeMap::new(),
            specs: BTreeMap::new(),
            span: None,
            is_cut: false,
            last: None,
            states: BTreeMap::new(),
            meters: BTreeMap::new(),
        }
    }

    /// Takes a tick.
    pub(crate) fn take(&mut self, tick: &TraceTick) {
        let TraceTick { now, inputs, said, follows: _ } = tick;
        self.pass(*now);
        for spec in inputs.fleet.variants() {
            if self.specs.len() < VARIANTS_MAX || self.specs.contains_key(&spec.key) {
                self.specs.insert(spec.key.clone(), spec.clone());
                self.note(*now, &spec.key, inputs, said.get(&spec.key));
            } else {
                self.is_cut = true;
            }
        }

        // Variants that have left the fleet have no replicas to count. They may come back.
        for (key, state) in &mut self.states {
            if inputs.fleet.get(key).is_none() {
                state.left.get_or_insert(*now);
            }
        }
        for scrape in &inputs.scrapes {
            if let Ok(reading) = &scrape.outcome {
                self.measure(*now, &scrape.replica, reading);
            }
        }

        self.last = Some(*now);
        self.forget(*now);
    }

    /// Counts the time since the last tick.
    fn pass(&mut self, now: Timestamp) {
        let Some(before) = self.last.filter(|before| *before < now) else { return };
        let passed = now.duration_since(before);
        let seconds = passed.as_secs_f64();
        let kept = before.max(self.begin(now));
        let keys: Vec<VariantKey> = self.states.keys().cloned().collect();
        for key in keys {
            let Some(state) = self.states.get(&key).filter(|it| it.left.is_none()) else {
                continue;
            };
            let cost = self.specs.get(&key).map_or(0.0, |spec| spec.cost.per_hour());
            let Some(existing) = state.existing.filter(|_| passed <= GAP) else {
                miss(&mut self.hours, &key, kept, now);
                continue;
            };

            let figures = self.hours.entry(hour(before)).or_default().entry(key).or_default();
            let replicas = f64::from(existing);
            figures.known += seconds;
            figures.replicas += replicas * seconds;
            figures.cost += replicas * seconds / 3600.0 * cost;
            figures.peak = figures.peak.max(existing);
            figures.undecided += if state.is_undecided { seconds } else { 0.0 };
            for reason in &state.held {
                figures.held.entry(*reason).or_default().0 += seconds;
            }
        }
    }

    /// Notes the replicas and the decision of a variant.
    fn note(
        &mut self,
        now: Timestamp,
        key: &VariantKey,
        inputs: &Inputs,
        said: Option<&RecordedResult>,
    ) {
        let begin = self.begin(now);
        let state = self.states.entry(key.clone()).or_default();
        if let Some(left) = state.left.take().filter(|left| now.duration_since(*left) <= RETURN) {
            miss(&mut self.hours, key, left.max(begin), now);
        }
        let figures = self.hours.entry(hour(now)).or_default().entry(key.clone()).or_default();
        state.existing = existing(inputs, key);
        let desired = said.and_then(|it| it.desired);
        state.is_undecided = desired.is_none();
        if let (Some(before), Some(after)) = (state.desired, desired) {
            figures.ups += u32::from(after > before);
            figures.downs += u32::from(after < before);
        }
        state.desired = desired.or(state.desired);

        let steps = said.iter().flat_map(|it| &it.why).filter_map(|why| match why {
            ResultReason::Step(step) => held::by(step),
            ResultReason::NoNumber(_) | ResultReason::Strange(_) => None,
        });
        let held: BTreeSet<(ReasonCode, HeldDirection)> = steps.collect();
        for begun in held.difference(&state.held) {
            figures.held.entry(*begun).or_default().1 += 1;
        }
        state.held = held;
    }

    /// Adds the latencies and requests since the last scrape of a replica.
    fn measure(&mut self, now: Timestamp, replica: &ReplicaKey, reading: &Reading) {
        let Some(spec) = self.specs.get(&replica.variant) else { return };
        let ranks = &reading.ranks;
        let seen = [
            sum(ranks.iter().filter_map(|rank| rank.ttft.as_ref())),
            sum(ranks.iter().filter_map(|rank| rank.itl.as_ref())),
            sum(ranks.iter().filter_map(|rank| rank.generation_length.as_ref())),
        ];
        let meter = LatencyMeter { started: reading.started, seen: seen.clone() };
        let Some(before) = self.meters.insert(replica.clone(), meter) else { return };
        let life = ProcessLife::between(before.started, reading.started);
        let since = |at: usize| Some(seen[at].as_ref()?.since(before.seen[at].as_ref()?, life));

        let of_hour = self.hours.entry(hour(now)).or_default();
        let figures = of_hour.entry(replica.variant.clone()).or_default();
        if let Some(ttft) = since(0).filter(|_| spec.role != Role::Decode) {
            figures.ttft = total(&figures.ttft, &ttft);
        }
        if let Some(itl) = since(1).filter(|_| spec.role != Role::Prefill) {
            figures.itl = total(&figures.itl, &itl);
        }
        if let Some(lengths) = since(2).filter(|_| spec.role != Role::Prefill) {
            figures.requests += lengths.count;
        }
    }

    /// Forgets hours that are too old, and replicas that are gone.
    fn forget(&mut self, now: Timestamp) {
        let begin = self.begin(now);
        let oldest = hour(begin);
        while self.hours.first_key_value().is_some_and(|(hour, _)| *hour < oldest) {
            self.hours.pop_first();
        }

        self.span = Some((self.span.map_or(now, |(first, _)| first.max(begin)), now));
    }

    /// The start of the hours that are kept.
    fn begin(&self, now: Timestamp) -> Timestamp {
        start(hour(now) - self.kept + 1).unwrap_or(now)
    }
}

// === impl WeekFigures ===

impl WeekFigures {
    /// Adds the figures of another variant or time.
    pub(crate) fn add(&mut self, other: &Self) {
        self.known += other.known;
        self.unknown += other.unknown;
        self.replicas += other.replicas;
        self.cost += other.cost;
        self.peak = self.peak.max(other.peak);
        self.ups += other.ups;
        self.downs += other.downs;
        self.undecided += other.undecided;
        self.ttft = total(&self.ttft, &other.ttft);
        self.itl = total(&self.itl, &other.itl);
        self.requests += other.requests;
        for (reason, (seconds, begun)) in &other.held {
            let held = self.held.entry(*reason).or_default();
            held.0 += seconds;
            held.1 += begun;
        }
    }
}

/// The replicas of a variant; `None` if they cannot be counted.
fn existing(inputs: &Inputs, key: &VariantKey) -> Option<u32> {
    let listing = inputs.listings.get(key)?;
    match &listing.scale {
        Scale::Known(state) => Some(state.current.count()),
        Scale::Targets => u32::try_from(listing.replicas.len()).ok(),
        Scale::Unknown(_) => None,
    }
}

/// Adds a time in which the replicas of a variant are not known to each of its hours.
fn miss(
    hours: &mut BTreeMap<i64, BTreeMap<VariantKey, WeekFigures>>,
    key: &VariantKey,
    mut from: Timestamp,
    to: Timestamp,
) {
    while from < to {
        let at = hour(from);
        let end = start(at + 1).unwrap_or(to).min(to);
        let figures = hours.entry(at).or_default().entry(key.clone()).or_default();
        figures.unknown += end.duration_since(from).as_secs_f64();
        from = end;
    }
}

/// The hour of an instant, counted from 1970.
fn hour(at: Timestamp) -> i64 {
    at.as_second().div_euclid(HOUR)
}

/// The start of an hour that is counted from 1970.
fn start(hour: i64) -> Option<Timestamp> {
    Timestamp::from_second(hour * HOUR).ok()
}

fn sum<'h>(histograms: impl Iterator<Item = &'h Histogram>) -> Option<Histogram> {
    histograms.cloned().reduce(|all, one| all.plus(&one))
}

/// The sum of both; a histogram without observations is the other one.
fn total(known: &Histogram, more: &Histogram) -> Histogram {
    if known.count == 0.0 {
        return more.clone();
    }
    if more.count == 0.0 { known.clone() } else { known.plus(more) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::fixtures;
    use plimsoll_core::fleet::Fleet;
    use plimsoll_core::observe::{ReplicaListing, ScrapeRoute};

    fn key(name: &str) -> VariantKey {
        fixtures::variant(name).key
    }

    /// A tick of a fleet whose replicas can be counted.
    fn tick(second: i64, variants: &[&str]) -> TraceTick {
        let now = Timestamp::from_second(second).unwrap();
        let listing = ReplicaListing {
            replicas: Vec::new(),
            unready: Vec::new(),
            scale: Scale::Targets,
            way: ScrapeRoute::Scraped,
            as_of: now,
        };
        let fleet = Arc::new(Fleet::new(variants.iter().map(|name| fixtures::variant(name))));
        let listings = variants.iter().map(|name| (key(name), listing.clone())).collect();
        let inputs = Inputs { fleet, listings, ..Inputs::default() };
        TraceTick { now, inputs, follows: None, said: BTreeMap::new() }
    }

    /// The known and the unknown seconds of a variant in each hour.
    fn seconds(ledger: &WeekLedger, name: &str) -> Vec<(f64, f64)> {
        let figures = ledger.hours.values().filter_map(|variants| variants.get(&key(name)));
        figures.map(|figures| (figures.known, figures.unknown)).collect()
    }

    #[test]
    fn a_variant_that_was_removed_is_not_unknown() {
        let mut ledger = WeekLedger::new(7);
        for minute in 0..120 {
            let variants: &[&str] = if minute < 60 { &["a", "b"] } else { &["a"] };
            ledger.take(&tick(minute * 60, variants));
        }

        assert_eq!(seconds(&ledger, "a"), [(3600.0, 0.0), (3540.0, 0.0)]);
        assert_eq!(seconds(&ledger, "b"), [(3600.0, 0.0)]);
    }

    #[test]
    fn a_variant_that_comes_back_soon_was_unknown_in_between() {
        for (minutes, unknown) in [(5, 300.0), (20, 0.0)] {
            let mut ledger = WeekLedger::new(7);
            for minute in 0..60 {
                let is_gone = (10..10 + minutes).contains(&minute);
                ledger.take(&tick(minute * 60, if is_gone { &["a"] } else { &["a", "b"] }));
            }

            let known = 59.0 * 60.0 - 60.0 * f64::from(i32::try_from(minutes).unwrap());
            assert_eq!(seconds(&ledger, "b"), [(known, unknown)], "{minutes} min");
        }
    }

    #[test]
    fn a_gap_counts_in_each_of_its_hours_from_the_start_of_the_report_on() {
        for (days, hours, total) in [(1, 24, 23.5 * 3600.0), (7, 49, 48.0 * 3600.0)] {
            let mut ledger = WeekLedger::new(days);
            // From half past zero on, for two days.
            for second in [1800, 1800 + 48 * HOUR] {
                ledger.take(&tick(second, &["a"]));
            }

            let seconds = seconds(&ledger, "a");
            let unknown: f64 = seconds.iter().map(|(_, missed)| missed).sum();
            assert_eq!((seconds.len(), unknown), (hours, total), "{days} days");
            assert!(seconds.iter().all(|(_, unknown)| *unknown <= 3600.0), "{seconds:?}");
        }
    }
}
