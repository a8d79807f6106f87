//! Start-ups: the time that replicas of each variant take from created to ready to serving.
//!
//! Only fully observed starts are measured. A replica serves from its first readable scrape, but
//! not before it was ready. Measurements use the timestamps of the orchestrator and of the scrapes,
//! so ticks do not blur them.
//!
//! The 90th percentile sets the waiting time: a replica that is twice as old and does not serve is
//! *stuck*. With fewer than [`STARTS_MIN`] starts, the usual time is not known. Then the declared
//! start time applies if it is longer than the general patience.
//!
//! A replica for which no node has room starts only once a node becomes free or is added. It is
//! also stuck once it has waited for a node for as long as nine in ten entire starts take. Its node
//! comes late, or never. But it waits for two minutes, unless a start may not take as long. In that
//! time a cluster autoscaler adds a node if it can. The autoscaler checks every ten seconds, and
//! nodes take one to two minutes to boot and join.
//!
//! A start that is still in progress shows that starts take at least its current age. The demand
//! for new replicas uses this at once, and not only when the third of them serves.
//!
//! A replica that was ready when it was first listed shows how long it took from created to ready,
//! unless it was unready in between. Without a readiness probe it was ready too early. So these
//! *earlier starts* can only lengthen the usual time, until three starts are measured. Those of
//! more than half an hour, or of more than three times the shortest, don't count.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::per_variant::PerVariant;
use crate::fleet::{ReplicaKey, VariantKey, VariantSpec};
use crate::observe::{Inputs, ReplicaStart, StartQuantiles, Startup};
use crate::units::{Replicas, Seconds};

/// Starts per variant that are remembered. Images, nodes and models change, and a start three dozen
/// starts ago predicts little.
const STARTS_MAX: usize = 32;

/// Starts per variant that are remembered across restarts, the latest ones. A dozen has a 90th
/// percentile of its own.
const SAVED_MAX: usize = 12;

/// Starts from which the 90th percentile is used. One or two may have found everything cached.
const STARTS_MIN: usize = 3;

/// The longest earlier start that counts.
pub const EARLIER_MAX: Seconds = Seconds::literal(30 * 60);

/// The multiple of the shortest earlier start up to which others count.
pub const EARLIER_SPREAD: f64 = 3.0;

/// The multiple of the 90th percentile after which a replica is stuck.
const STUCK_AFTER: f64 = 2.0;

/// The multiple of the 90th percentile for which a replica may wait for a node.
const NODE_AFTER: f64 = 1.0;

/// The shortest time to wait for a node.
const NODE_MIN: Seconds = Seconds::literal(120);

/// The known starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Startups {
    replicas: BTreeMap<ReplicaKey, StartStage>,
    measured: PerVariant<VecDeque<StartDurations>>,
    /// The time within which nine in ten earlier starts were ready.
    earlier: PerVariant<Seconds>,
}

/// The start stage of a replica.
#[derive(Clone, Copy, Debug)]
enum StartStage {
    /// Its start is in progress and observed.
    Starting(OpenStart),
    /// It serves, or it had started before it was first seen.
    Started,
}

/// A start in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenStart {
    created: Timestamp,
    ready: Option<Timestamp>,
    page: Option<Timestamp>,
    /// The time since which no node has room for it.
    unschedulable: Option<Timestamp>,
    /// True if it was seen from its beginning on, so that its end tells how long it took.
    is_whole: bool,
}

/// The starts in progress of each variant.
pub(crate) type OpenStarts<'a> = BTreeMap<&'a VariantKey, Vec<OpenStart>>;

/// The known starts of one variant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariantStarts<'a> {
    measured: Option<&'a VecDeque<StartDurations>>,
    open: &'a [OpenStart],
    earlier: Option<Seconds>,
}

/// The time that a replica may take to start.
#[derive(Clone, Copy, Debug)]
struct StartDeadlines {
    /// From created to serving.
    whole: Seconds,
    /// Until it has a node.
    node: Seconds,
}

/// Starting replicas of a variant.
#[derive(Clone, Copy, Debug, Default)]
struct StartCounts {
    all: Replicas,
    /// Replicas that have taken too long, or waited too long for a node.
    overdue: Replicas,
    /// Replicas that have waited too long for a node.
    unplaced: Replicas,
}

/// Replicas of a variant that do not count as supply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    /// All stuck replicas.
    pub(crate) all: Replicas,
    /// The stuck replicas for which no node has room. More of their kind would wait for the same
    /// nodes.
    pub(crate) unplaced: Replicas,
}

/// Durations of one start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[u32; 2]", into = "[u32; 2]")]
pub struct StartDurations {
    /// From created to ready, to the second.
    pub to_ready: Seconds,
    /// From created to serving, to the second.
    pub to_serving: Seconds,
}

// === impl StartDurations ===

impl From<[u32; 2]> for StartDurations {
    fn from(seconds: [u32; 2]) -> Self {
        let [to_ready, to_serving] = seconds.map(Seconds::literal);
        Self { to_ready, to_serving }
    }
}

impl From<StartDurations> for [u32; 2] {
    fn from(measured: StartDurations) -> Self {
        [measured.to_ready, measured.to_serving].map(whole)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a start takes no century, and casts saturate"
)]
fn whole(seconds: Seconds) -> u32 {
    seconds.seconds().round() as u32
}

// === impl Startups ===

impl Startups {
    /// The latest starts of a variant.
    pub(crate) fn save(&self, variant: &VariantKey) -> Vec<StartDurations> {
        let measured = self.measured.get(variant);
        let before = measured.map_or(0, |measured| measured.len().saturating_sub(SAVED_MAX));
        measured.into_iter().flatten().skip(before).copied().collect()
    }

    /// Restores saved starts before those that were seen since, unless at least as many were seen.
    pub(crate) fn recall(&mut self, variant: &VariantKey, starts: &[StartDurations]) {
        let seen: Vec<StartDurations> =
            self.measured.get(variant).into_iter().flatten().copied().collect();
        if seen.len() >= starts.len() {
            return;
        }

        let all = starts.iter().copied().chain(seen);
        let mut latest: VecDeque<StartDurations> = all.collect();
        latest.drain(..latest.len().saturating_sub(STARTS_MAX));
        self.measured.insert(variant.clone(), latest);
    }

    /// Reads the starts and scrapes of one tick.
    pub(crate) fn run(&mut self, now: Timestamp, inputs: &Inputs) {
        self.measured.keep(&inputs.fleet);
        self.earlier.keep(&inputs.fleet);
        self.follow(now, &inputs.starts);
        if !self.replicas.values().any(StartStage::is_open) {
            return;
        }

        for scrape in inputs.scrapes.iter().filter(|scrape| scrape.outcome.is_ok()) {
            if let Some(StartStage::Starting(open)) = self.replicas.get_mut(&scrape.replica) {
                open.page = open.page.or(Some(scrape.at));
            }
        }

        for (replica, stage) in &mut self.replicas {
            let StartStage::Starting(open) = *stage else { continue };
            let (Some(ready), Some(page)) = (open.ready, open.page) else { continue };
            *stage = StartStage::Started;
            if !open.is_whole {
                continue;
            }
            // If clocks differ, a start can appear to end before it began. Such a start is not
            // evidence.
            let Some(to_ready) = open.until(ready) else { continue };
            let Some(to_serving) = open.until(page.max(ready)) else { continue };
            let known = self.measured.get_or_insert_at(0, &replica.variant, VecDeque::new);
            known.push_back(StartDurations { to_ready, to_serving });
            while known.len() > STARTS_MAX {
                known.pop_front();
            }
        }
    }

    /// The starts in progress of each variant.
    pub(crate) fn open(&self) -> OpenStarts<'_> {
        let mut open = OpenStarts::new();
        for (replica, stage) in &self.replicas {
            if let StartStage::Starting(start) = stage {
                open.entry(&replica.variant).or_default().push(*start);
            }
        }
        open
    }

    /// The starts of a variant, with `place` as the first position to try and `open` from
    /// [`Startups::open`].
    pub(crate) fn of<'a>(
        &'a self,
        place: usize,
        variant: &VariantKey,
        open: &'a OpenStarts<'_>,
    ) -> VariantStarts<'a> {
        VariantStarts {
            measured: self.measured.get_at(place, variant),
            open: open.get(variant).map(Vec::as_slice).unwrap_or_default(),
            earlier: self.earlier.get_at(place, variant).copied(),
        }
    }

    /// Updates the stage of every replica. Both maps have the same order, so that one walk replaces
    /// a search for each replica.
    fn follow(&mut self, now: Timestamp, starts: &BTreeMap<ReplicaKey, ReplicaStart>) {
        let mut known = std::mem::take(&mut self.replicas).into_iter().peekable();
        let mut earlier: BTreeMap<&VariantKey, Vec<Seconds>> = BTreeMap::new();

        self.replicas = starts
            .iter()
            .map(|(replica, start)| {
                while known.next_if(|(key, _)| key < replica).is_some() {}
                let before = known.next_if(|(key, _)| key == replica);
                if before.is_none()
                    && let Some(took) = start.took()
                {
                    earlier.entry(&replica.variant).or_default().push(took);
                }

                let (key, stage) =
                    before.unwrap_or_else(|| (replica.clone(), StartStage::first(now, start)));
                (key, stage.updated(start))
            })
            .collect();

        for (variant, starts) in earlier {
            if let Some(ready_after) = ready_after(starts) {
                self.earlier.get_or_insert_at(0, variant, || ready_after);
            }
        }
    }
}

// === impl StartStage ===

impl StartStage {
    /// The stage of a replica that is seen for the first time. An old one may have been ready before,
    /// and the time until it is ready again is no start.
    fn first(now: Timestamp, start: &ReplicaStart) -> Self {
        match start.ready {
            Some(_) => Self::Started,
            None => Self::Starting(OpenStart {
                created: start.created,
                ready: None,
                page: None,
                unschedulable: None,
                is_whole: now.duration_since(start.created).as_secs_f64() <= EARLIER_MAX.seconds(),
            }),
        }
    }

    fn updated(self, start: &ReplicaStart) -> Self {
        match self {
            Self::Started => Self::Started,
            Self::Starting(open) => Self::Starting(OpenStart {
                ready: start.ready,
                unschedulable: start.unschedulable.filter(|_| start.ready.is_none()),
                ..open
            }),
        }
    }

    const fn is_open(&self) -> bool {
        matches!(self, Self::Starting(_))
    }
}

// === impl VariantStarts ===

impl VariantStarts<'_> {
    /// The time that a replica of the variant may take to start; `None` while too few starts were
    /// seen.
    pub(crate) fn patience(&self) -> Option<Seconds> {
        Some(twice(self.serves_after()?))
    }

    /// The time after which a replica of the variant is stuck. `usual` is the general patience.
    pub(crate) fn stuck_after(&self, spec: &VariantSpec, usual: Seconds) -> Seconds {
        self.patience().unwrap_or_else(|| patience_unmeasured(spec, twice(usual)))
    }

    /// The time within which nine in ten replicas of the variant serve; `None` while too few starts
    /// were seen.
    pub(crate) fn serves_after(&self) -> Option<Seconds> {
        let measured = self.measured.filter(|it| it.len() >= STARTS_MIN)?;
        Some(quantiles(measured, |it| it.to_serving)?.p90)
    }

    /// The longest start that the percentile does not include. Candidates are starts in progress
    /// that are not stuck. While they are too few for a percentile, completed and earlier starts
    /// are as well.
    pub(crate) fn slowest(&self, now: Timestamp, patience: Seconds) -> Option<Seconds> {
        let is_measured = self.measured.is_some_and(|it| it.len() >= STARTS_MIN);
        let measured = self.measured.into_iter().flatten().map(|it| it.to_serving);
        let over = measured.chain(self.earlier).filter(|_| !is_measured);
        let ages =
            self.open.iter().filter_map(|it| Seconds::from_span(now.duration_since(it.created)));
        let not_stuck = ages.filter(|age| age.seconds() < patience.seconds());
        over.chain(not_stuck).reduce(Seconds::max)
    }

    /// The stuck replicas: those that take too long to start, and so do not count. While start
    /// times are not measured, all missing replicas count as stuck after `patience`.
    ///
    /// `coming` are the requested replicas that do not serve yet, and `waited` is the time since
    /// which the variant has differed from its target state.
    pub(crate) fn stalls(
        &self,
        now: Timestamp,
        coming: Replicas,
        waited: Option<f64>,
        patience: Seconds,
    ) -> Stalls {
        let is_over = waited.is_some_and(|waited| waited >= patience.seconds());
        let underway = self.underway(now, StartDeadlines::of(patience));

        let late = match self.patience() {
            // A requested replica that does not exist yet has only the age of the request.
            Some(_) if is_over => underway.overdue + coming.beyond(underway.all),
            Some(_) => underway.overdue,
            None if is_over => coming,
            None => underway.unplaced,
        };

        let all = coming.min(late);
        Stalls { all, unplaced: all.min(underway.unplaced) }
    }

    /// The report on the variant's starts.
    pub(crate) fn report(&self, stuck: Replicas) -> Startup {
        let without_node = self.open.iter().filter(|it| it.unschedulable.is_some()).count();
        let unschedulable = Replicas::capped(without_node);
        let begun = Startup { stuck, unschedulable, ..Startup::default() };
        let Some(measured) = self.measured else { return begun };

        Startup {
            starts: u32::try_from(measured.len()).unwrap_or(u32::MAX),
            to_ready: quantiles(measured, |it| it.to_ready),
            to_serving: quantiles(measured, |it| it.to_serving),
            ..begun
        }
    }

    /// The starting replicas.
    fn underway(&self, now: Timestamp, patience: StartDeadlines) -> StartCounts {
        let mut underway = StartCounts::default();
        for OpenStart { created, unschedulable, .. } in self.open {
            let age = now.duration_since(*created).as_secs_f64();
            let waited = unschedulable.map(|since| now.duration_since(since).as_secs_f64());
            let is_unplaced = waited >= Some(patience.node.seconds());

            underway.all += Replicas::ONE;
            if is_unplaced {
                underway.unplaced += Replicas::ONE;
            }
            if is_unplaced || age >= patience.whole.seconds() {
                underway.overdue += Replicas::ONE;
            }
        }

        underway
    }
}

// === impl OpenStart, StartDeadlines ===

impl OpenStart {
    /// The time from the creation to `at`; `None` if `at` is earlier.
    fn until(&self, at: Timestamp) -> Option<Seconds> {
        Seconds::from_span(at.duration_since(self.created))
    }
}

impl StartDeadlines {
    fn of(whole: Seconds) -> Self {
        let usual = whole.seconds() / STUCK_AFTER;
        let node = Seconds::new(NODE_AFTER * usual).unwrap_or(whole).max(NODE_MIN);
        Self { whole, node: node.min(whole) }
    }
}

/// The time within which nine in ten earlier starts were ready; `None` if none counts.
fn ready_after(mut starts: Vec<Seconds>) -> Option<Seconds> {
    starts.sort_by(|a, b| a.compare(*b));
    let longest = starts.first()?.seconds() * EARLIER_SPREAD;
    starts.retain(|took| took.seconds() <= longest.min(EARLIER_MAX.seconds()));

    nearest_rank(&starts, 9)
}

/// The time that replicas without measured starts may take: twice the declared time, and at least
/// `least`.
pub(crate) fn patience_unmeasured(spec: &VariantSpec, least: Seconds) -> Seconds {
    spec.start_time.map_or(least, |declared| twice(declared).max(least))
}

/// The longest time for a start whose usual time is `usual`.
fn twice(usual: Seconds) -> Seconds {
    Seconds::new(usual.seconds() * STUCK_AFTER).unwrap_or(usual)
}

/// The median and the 90th percentile, by the nearest rank.
fn quantiles(
    measured: &VecDeque<StartDurations>,
    of: impl Fn(&StartDurations) -> Seconds,
) -> Option<StartQuantiles> {
    let mut sorted: Vec<Seconds> = measured.iter().map(of).collect();
    sorted.sort_by(|a, b| a.compare(*b));
    Some(StartQuantiles { p50: nearest_rank(&sorted, 5)?, p90: nearest_rank(&sorted, 9)? })
}

/// The smallest value with at least this many tenths of the values at or below it.
fn nearest_rank(sorted: &[Seconds], tenths: usize) -> Option<Seconds> {
    let rank = (sorted.len() * tenths).div_ceil(10);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ReplicaName;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    fn seconds(count: u32) -> Seconds {
        Seconds::new(f64::from(count)).unwrap()
    }

    fn variant() -> VariantKey {
        VariantSpec::example("llama").key
    }

    fn replica(name: &str) -> ReplicaKey {
        let replica = ReplicaName::new(name).unwrap();
        ReplicaKey { variant: variant(), replica, incarnation: None }
    }

    fn starting(second: i64) -> StartStage {
        let start = ReplicaStart { created: at(second), ready: None, unschedulable: None };
        StartStage::first(start.created, &start)
    }

    fn slowest(startups: &Startups, now: i64) -> Option<Seconds> {
        startups.of(0, &variant(), &startups.open()).slowest(at(now), seconds(600))
    }

    /// The percentiles of starts of 1 to `count` seconds.
    fn percentiles(count: u32) -> Option<(f64, f64)> {
        let measured = (1..=count).rev().map(seconds);
        let starts = measured.map(|it| StartDurations { to_ready: it, to_serving: it }).collect();
        let found = quantiles(&starts, |it| it.to_ready);
        found.map(|it| (it.p50.seconds(), it.p90.seconds()))
    }

    #[test]
    fn a_start_that_goes_on_says_how_long_starts_take_until_it_is_stuck() {
        let mut startups = Startups::default();
        assert_eq!(slowest(&startups, 0), None);

        startups.replicas.insert(replica("a"), starting(0));
        startups.replicas.insert(replica("b"), starting(100));
        startups.replicas.insert(replica("c"), StartStage::Started);
        assert_eq!(slowest(&startups, 300), Some(seconds(300)));
        assert_eq!(slowest(&startups, 600), Some(seconds(500)), "the first is stuck");
        assert_eq!(slowest(&startups, -10), None, "clocks differ");

        let one = StartDurations { to_ready: seconds(390), to_serving: seconds(400) };
        startups.measured.insert(variant(), VecDeque::from([one]));
        assert_eq!(slowest(&startups, 300), Some(seconds(400)));
        assert_eq!(slowest(&startups, 600), Some(seconds(500)));
        startups.measured.insert(variant(), VecDeque::from([one; STARTS_MIN]));
        assert_eq!(slowest(&startups, 300), Some(seconds(300)), "a percentile says the rest");
    }

    /// Lists replicas that were created at 0, each with the second at which it was ready.
    fn listed(startups: &mut Startups, ready: &[(&str, Option<i64>)]) {
        let start = |ready: Option<i64>| ReplicaStart {
            created: at(0),
            ready: ready.map(at),
            unschedulable: None,
        };
        let starts = ready.iter().map(|(name, ready)| (replica(name), start(*ready)));
        startups.follow(at(1_000), &starts.collect());
    }

    #[test]
    fn replicas_that_were_ready_when_first_listed_show_how_long_starts_take() {
        let mut startups = Startups::default();
        let ready = [("a", Some(200)), ("b", Some(290)), ("c", Some(1000)), ("d", None)];
        listed(&mut startups, &ready);
        // One that took five times as long was unready in between.
        assert_eq!(slowest(&startups, -10), Some(seconds(290)));

        listed(&mut startups, &[("d", Some(400)), ("e", Some(500))]);
        assert_eq!(slowest(&startups, -10), Some(seconds(290)), "the first list decides");

        let one = StartDurations { to_ready: seconds(90), to_serving: seconds(100) };
        startups.measured.insert(variant(), VecDeque::from([one]));
        assert_eq!(slowest(&startups, -10), Some(seconds(290)));
        startups.measured.insert(variant(), VecDeque::from([one; STARTS_MIN]));
        assert_eq!(slowest(&startups, -10), None, "a percentile says the rest");
    }

    #[test]
    fn a_replica_that_was_unready_in_between_shows_no_start() {
        let mut startups = Startups::default();
        listed(&mut startups, &[("a", Some(40 * 60)), ("b", None), ("c", Some(-5))]);
        assert_eq!(slowest(&startups, -10), None);
    }

    #[test]
    fn an_old_replica_that_becomes_ready_again_shows_no_start() {
        let mut startups = Startups::default();
        let mut inputs = Inputs::default();
        for (name, created) in [("old", -5 * 86_400), ("new", 0)] {
            let start = ReplicaStart { created: at(created), ready: None, unschedulable: None };
            inputs.starts.insert(replica(name), start);
        }
        startups.run(at(10), &inputs);

        for start in inputs.starts.values_mut() {
            start.ready = Some(at(40));
        }
        startups.run(at(41), &inputs);
        for stage in startups.replicas.values_mut() {
            let StartStage::Starting(open) = stage else { continue };
            open.page = Some(at(50));
        }
        startups.run(at(51), &inputs);
        assert!(startups.replicas.values().all(|it| !it.is_open()));
        assert_eq!(slowest(&startups, -10), Some(seconds(50)), "that of the new one alone");
    }

    #[test]
    fn starts_that_are_read_late_count_unless_as_many_were_seen() {
        let [new, old] =
            [10, 60].map(seconds).map(|took| StartDurations { to_ready: took, to_serving: took });
        let mut startups = Startups::default();
        startups.measured.insert(variant(), VecDeque::from([new]));

        startups.recall(&variant(), &[]);
        assert_eq!(startups.save(&variant()), [new]);
        startups.recall(&variant(), &[old, old]);
        assert_eq!(startups.save(&variant()), [old, old, new]);
        startups.recall(&variant(), &[new, new]);
        assert_eq!(startups.save(&variant()), [old, old, new]);
    }

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(percentiles(0), None);
        assert_eq!(percentiles(1), Some((1.0, 1.0)));
        assert_eq!(percentiles(3), Some((2.0, 3.0)));
        assert_eq!(percentiles(10), Some((5.0, 9.0)));
        assert_eq!(percentiles(32), Some((16.0, 29.0)));
    }
}
