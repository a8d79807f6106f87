//! Start-ups: the time that replicas of each variant take from created to ready to serving.
//!
//! Only fully observed starts are measured. A replica that was ready when it was first listed may
//! have been unready in between, and is not evidence. A replica serves from its first readable
//! scrape, but not before it was ready. Measurements use the timestamps of the orchestrator and of
//! the scrapes, so ticks do not blur them.
//!
//! The 90th percentile sets the waiting time: a replica that is twice as old and does not serve is
//! *stuck*. With fewer than [`STARTS_MIN`] starts, the usual time is not known. Then the declared
//! start time applies if it is longer than the general patience.
//!
//! A replica for which no node has room starts only once a node becomes free or is added. It is
//! also stuck once it has waited for a node for as long as nine in ten entire starts take. Its node
//! comes late, or never. But it waits for at least two minutes, in which a cluster autoscaler adds
//! a node if it can. The autoscaler checks every ten seconds, and nodes take one to two minutes to
//! boot and join.
//!
//! A start that is still in progress shows that starts take at least its current age. The demand
//! for new replicas uses this at once, and not only when the third of them serves.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::{Inputs, Observation, StartQuantiles, Startup};
use crate::pipeline::Pipeline;
use crate::pipeline::group::{Member, VariantGroup};
use crate::units::{Replicas, Seconds};

/// Starts per variant that are remembered. Images, nodes and models change, and a start three dozen
/// starts ago predicts little.
const STARTS_MAX: usize = 32;

/// Starts per variant that are remembered across restarts, the latest ones. A dozen has a 90th
/// percentile of its own.
const SAVED_MAX: usize = 12;

/// Starts from which the 90th percentile is used. One or two may have found everything cached.
const STARTS_MIN: usize = 3;

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
    measured: BTreeMap<VariantKey, VecDeque<StartDurations>>,
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
struct OpenStart {
    created: Timestamp,
    ready: Option<Timestamp>,
    page: Option<Timestamp>,
    /// The time since which no node has room for it.
    unschedulable: Option<Timestamp>,
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

// === impl Pipeline ===

impl Pipeline {
    /// The stuck replicas of a variant: those that take too long to start, and so do not count.
    /// While start times are not measured, all missing replicas count as stuck after twice the
    /// transition patience, and at least twice the declared start time.
    pub(crate) fn stuck(&self, now: Timestamp, member: &Member<'_>) -> Stalls {
        let key = &member.spec.key;
        let coming = member.coming();
        let measured = self.startups.patience(key);
        let usual = twice(self.policy.transition_patience);
        let patience = measured.unwrap_or_else(|| patience_unmeasured(member.spec, usual));
        let since = self.unsettled.get(key).map(|unsettled| unsettled.since);
        let waited = since.map_or(0.0, |since| now.duration_since(since).as_secs_f64());
        let is_over = since.is_some() && waited >= patience.seconds();
        let underway = self.startups.underway(now, key, StartDeadlines::of(patience));

        let late = match measured {
            // A requested replica that does not exist yet has only the age of the request.
            Some(_) if is_over => underway.overdue + coming.beyond(underway.all),
            Some(_) => underway.overdue,
            None if is_over => coming,
            None => underway.unplaced,
        };

        let all = coming.min(late);
        Stalls { all, unplaced: all.min(underway.unplaced) }
    }

    /// The longest start of a variant that its percentile does not include. Candidates are starts
    /// in progress that are not stuck and, while they are too few for a percentile, completed
    /// starts.
    pub(crate) fn slowest_start(&self, now: Timestamp, spec: &VariantSpec) -> Option<Seconds> {
        let usual = twice(self.policy.transition_patience);
        let measured = self.startups.patience(&spec.key);
        let patience = measured.unwrap_or_else(|| patience_unmeasured(spec, usual));
        self.startups.slowest(now, &spec.key, patience)
    }

    /// The start report of each variant, in the order of the fleet.
    pub(crate) fn startups_of(&self, now: Timestamp, groups: &[VariantGroup<'_>]) -> Vec<Startup> {
        let members = groups.iter().flat_map(|group| &group.members);
        let mut startups = vec![Startup::default(); members.clone().count()];

        for member in members {
            let stuck = self.stuck(now, member).all;
            let startup = self.startups.report(&member.spec.key, stuck);
            let unschedulable = startup.unschedulable.min(member.observation.pending);
            startups[member.place] = Startup { unschedulable, ..startup };
        }
        startups
    }
}

/// Adds the start reports to the observations. Both are in the order of the variants.
pub(crate) fn told(
    mut observations: BTreeMap<VariantKey, Observation>,
    startups: Vec<Startup>,
) -> BTreeMap<VariantKey, Observation> {
    for (observation, startup) in observations.values_mut().zip(startups) {
        observation.startup = startup;
    }
    observations
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

    /// Restores saved starts, unless newer ones were seen.
    pub(crate) fn recall(&mut self, variant: &VariantKey, starts: &[StartDurations]) {
        if !starts.is_empty() {
            self.measured
                .entry(variant.clone())
                .or_insert_with(|| starts.iter().rev().take(STARTS_MAX).rev().copied().collect());
        }
    }

    /// Reads the inputs of one tick.
    pub(crate) fn take(&mut self, inputs: &Inputs) {
        let Inputs { starts, scrapes, fleet, .. } = inputs;
        self.replicas.retain(|replica, _| starts.contains_key(replica));
        self.forget(fleet);
        for (replica, start) in starts {
            let known = self.replicas.entry(replica.clone()).or_insert(match start.ready {
                Some(_) => StartStage::Started,
                None => StartStage::Starting(OpenStart::at(start.created)),
            });
            if let StartStage::Starting(begun) = known {
                begun.ready = start.ready;
                begun.unschedulable = start.unschedulable.filter(|_| start.ready.is_none());
            }
        }

        if !self.replicas.values().any(|stage| matches!(stage, StartStage::Starting(_))) {
            return;
        }

        for scrape in scrapes.iter().filter(|scrape| scrape.outcome.is_ok()) {
            if let Some(StartStage::Starting(begun)) = self.replicas.get_mut(&scrape.replica) {
                begun.page = begun.page.or(Some(scrape.at));
            }
        }

        for (replica, stage) in &mut self.replicas {
            let StartStage::Starting(begun) = *stage else { continue };
            let (Some(ready), Some(page)) = (begun.ready, begun.page) else { continue };
            *stage = StartStage::Started;
            // If clocks differ, a start can appear to end before it began. Such a start is not
            // evidence.
            let Some(to_ready) = begun.until(ready) else { continue };
            let Some(to_serving) = begun.until(page.max(ready)) else { continue };
            let known = self.measured.entry(replica.variant.clone()).or_default();
            known.push_back(StartDurations { to_ready, to_serving });
            while known.len() > STARTS_MAX {
                known.pop_front();
            }
        }
    }

    fn forget(&mut self, fleet: &Fleet) {
        self.measured.retain(|variant, _| fleet.get(variant).is_some());
    }

    /// The time that a replica of a variant may take to start; `None` while too few starts were
    /// seen.
    pub(crate) fn patience(&self, variant: &VariantKey) -> Option<Seconds> {
        Some(twice(self.serves_after(variant)?))
    }

    /// The time within which nine in ten replicas of a variant serve; `None` while too few starts
    /// were seen.
    pub(crate) fn serves_after(&self, variant: &VariantKey) -> Option<Seconds> {
        let measured = self.measured.get(variant)?;
        if measured.len() < STARTS_MIN {
            return None;
        }
        Some(quantiles(measured, |it| it.to_serving)?.p90)
    }

    /// The longest start of a variant that is in progress and still within `patience`. Includes
    /// measured starts while they are too few for a percentile.
    fn slowest(&self, now: Timestamp, variant: &VariantKey, patience: Seconds) -> Option<Seconds> {
        let measured = self.measured.get(variant).filter(|it| it.len() < STARTS_MIN);
        let over = measured.into_iter().flatten().map(|it| it.to_serving);

        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let going_on = own.filter_map(|(_, stage)| match stage {
            StartStage::Starting(it) => Seconds::from_span(now.duration_since(it.created)),
            StartStage::Started => None,
        });
        let not_stuck = going_on.filter(|age| age.seconds() < patience.seconds());
        over.chain(not_stuck).reduce(Seconds::max)
    }

    /// The starting replicas of a variant.
    fn underway(
        &self,
        now: Timestamp,
        variant: &VariantKey,
        patience: StartDeadlines,
    ) -> StartCounts {
        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let mut underway = StartCounts::default();
        for (_, stage) in own {
            let StartStage::Starting(OpenStart { created, unschedulable, .. }) = stage else {
                continue;
            };
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

    /// The report on a variant's starts.
    pub(crate) fn report(&self, variant: &VariantKey, stuck: Replicas) -> Startup {
        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let unschedulable = own
            .map(|(_, stage)| match stage {
                StartStage::Starting(OpenStart { unschedulable: Some(_), .. }) => Replicas::ONE,
                StartStage::Starting(_) | StartStage::Started => Replicas::ZERO,
            })
            .sum();

        let begun = Startup { stuck, unschedulable, ..Startup::default() };
        let Some(measured) = self.measured.get(variant) else { return begun };
        Startup {
            starts: u32::try_from(measured.len()).unwrap_or(u32::MAX),
            to_ready: quantiles(measured, |it| it.to_ready),
            to_serving: quantiles(measured, |it| it.to_serving),
            ..begun
        }
    }
}

// === impl OpenStart, StartDeadlines ===

impl OpenStart {
    const fn at(created: Timestamp) -> Self {
        Self { created, ready: None, page: None, unschedulable: None }
    }

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
        StartStage::Starting(OpenStart::at(at(second)))
    }

    fn slowest(startups: &Startups, now: i64) -> Option<Seconds> {
        startups.slowest(at(now), &variant(), seconds(600))
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

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(percentiles(0), None);
        assert_eq!(percentiles(1), Some((1.0, 1.0)));
        assert_eq!(percentiles(3), Some((2.0, 3.0)));
        assert_eq!(percentiles(10), Some((5.0, 9.0)));
        assert_eq!(percentiles(32), Some((16.0, 29.0)));
    }
}
