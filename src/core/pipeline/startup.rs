//! Start-ups: how long replicas of each variant take from created to ready to serving.
//!
//! Only starts are measured that were seen: a replica that was ready when it was first listed may
//! have been unready in between, and then says nothing of starts. Serving is when the first of its
//! pages could be read, but not before it was ready. What was measured is the orchestrator's
//! instants and the pages' own, so ticks do not blur it.
//!
//! The 90th percentile says how long to wait: a replica that is twice as old as that and does not
//! serve is *stuck*. With fewer than [`STARTS_MIN`] starts nobody knows what is usual, and what is
//! declared of a variant is believed, as far as that is longer than what all are given.
//!
//! A replica for which no node has room starts only once one is free or new. One that has waited for
//! a node for as long as nine in ten starts take altogether is stuck as well: its node comes late, if
//! at all. But it waits for two minutes at least, in which a cluster autoscaler adds a node where it
//! can: it looks each ten seconds, and nodes take one to two minutes to boot and join.
//!
//! A start that is still going on says that starts take at least so long. What new replicas are asked
//! for counts on that at once, and not only when the third of them serves.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::{Inputs, Observation, Quantiles, Startup};
use crate::pipeline::Pipeline;
use crate::pipeline::group::{Group, Member};
use crate::units::{Replicas, Seconds};

/// Starts of a variant that are remembered. Images, nodes and models change, and what was three
/// dozen starts ago says little of the next.
const STARTS_MAX: usize = 32;

/// Starts of a variant that are remembered across restarts, the latest ones. A dozen has a 90th
/// percentile of its own.
const SAVED_MAX: usize = 12;

/// Starts from which the 90th percentile is believed. One or two may have found everything cached.
const STARTS_MIN: usize = 3;

/// How many times the 90th percentile a replica may take until it counts as stuck.
const STUCK_AFTER: f64 = 2.0;

/// How many times the 90th percentile a replica may wait for a node.
const NODE_AFTER: f64 = 1.0;

/// The shortest time in which a node is waited for.
const NODE_MIN: Seconds = Seconds::literal(120);

/// What is known of starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Startups {
    replicas: BTreeMap<ReplicaKey, Stage>,
    measured: BTreeMap<VariantKey, VecDeque<Measured>>,
}

/// Where a replica is in its start.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Its start is being seen.
    Starting(OpenStart),
    /// It serves, or it had started before it was first seen.
    Started,
}

/// A start that is being seen.
#[derive(Clone, Copy, Debug)]
struct OpenStart {
    created: Timestamp,
    ready: Option<Timestamp>,
    page: Option<Timestamp>,
    /// Since when no node has room for it.
    unschedulable: Option<Timestamp>,
}

/// How long a replica may take to start.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// From created to serving.
    whole: Seconds,
    /// Until it has a node.
    node: Seconds,
}

/// Replicas of a variant that start.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: Replicas,
    /// Those that have taken too long, or waited too long for a node.
    overdue: Replicas,
    /// Those that have waited too long for a node.
    unplaced: Replicas,
}

/// Replicas of a variant that are not counted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    /// All of them.
    pub(crate) all: Replicas,
    /// Those for which no node has room. Others of their kind would wait for the same nodes.
    pub(crate) unplaced: Replicas,
}

/// Durations of one start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[u32; 2]", into = "[u32; 2]")]
pub struct Measured {
    /// From created to ready, to the second.
    pub to_ready: Seconds,
    /// From created to serving, to the second.
    pub to_serving: Seconds,
}

// === impl Pipeline ===

impl Pipeline {
    /// The replicas of a variant that take too long to start, and so are not counted on. As long as
    /// nobody has measured how long starts take, all that are missing count once the patience for
    /// transitions has passed twice, and twice what is declared.
    pub(crate) fn stuck(&self, now: Timestamp, member: &Member<'_>) -> Stalls {
        let key = &member.spec.key;
        let coming = member.coming();
        let measured = self.startups.patience(key);
        let usual = twice(self.policy.transition_patience);
        let patience = measured.unwrap_or_else(|| patience_unmeasured(member.spec, usual));
        let since = self.unsettled.get(key).map(|unsettled| unsettled.since);
        let waited = since.map_or(0.0, |since| now.duration_since(since).as_secs_f64());
        let is_over = since.is_some() && waited >= patience.seconds();
        let underway = self.startups.underway(now, key, Patience::of(patience));

        let late = match measured {
            // What is asked for and does not even exist has no age but that of the wish.
            Some(_) if is_over => underway.overdue + coming.beyond(underway.all),
            Some(_) => underway.overdue,
            None if is_over => coming,
            None => underway.unplaced,
        };
        let all = coming.min(late);
        Stalls { all, unplaced: all.min(underway.unplaced) }
    }

    /// The longest that a start of a variant takes by what was seen and is not in its percentile: by
    /// starts that go on and are not stuck, and by those that are over while they are too few.
    pub(crate) fn slowest_start(&self, now: Timestamp, spec: &VariantSpec) -> Option<Seconds> {
        let usual = twice(self.policy.transition_patience);
        let measured = self.startups.patience(&spec.key);
        let patience = measured.unwrap_or_else(|| patience_unmeasured(spec, usual));
        self.startups.slowest(now, &spec.key, patience)
    }

    /// What is said of the starts of each variant, in the order of the fleet.
    pub(crate) fn startups_of(&self, now: Timestamp, groups: &[Group<'_>]) -> Vec<Startup> {
        let members = || groups.iter().flat_map(|group| &group.members);
        let mut startups = vec![Startup::default(); members().count()];
        for member in members() {
            let stuck = self.stuck(now, member).all;
            let startup = self.startups.report(&member.spec.key, stuck);
            let unschedulable = startup.unschedulable.min(member.observation.pending);
            startups[member.place] = Startup { unschedulable, ..startup };
        }
        startups
    }
}

/// What was seen of the variants, with how their replicas start; both in the order of the variants.
pub(crate) fn told(
    mut observations: BTreeMap<VariantKey, Observation>,
    startups: Vec<Startup>,
) -> BTreeMap<VariantKey, Observation> {
    for (observation, startup) in observations.values_mut().zip(startups) {
        observation.startup = startup;
    }
    observations
}

// === impl Measured ===

impl From<[u32; 2]> for Measured {
    fn from(seconds: [u32; 2]) -> Self {
        let [to_ready, to_serving] = seconds.map(Seconds::literal);
        Self { to_ready, to_serving }
    }
}

impl From<Measured> for [u32; 2] {
    fn from(measured: Measured) -> Self {
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
    pub(crate) fn save(&self, variant: &VariantKey) -> Vec<Measured> {
        let measured = self.measured.get(variant);
        let before = measured.map_or(0, |measured| measured.len().saturating_sub(SAVED_MAX));
        measured.into_iter().flatten().skip(before).copied().collect()
    }

    /// Goes on from starts that were remembered, unless some were seen since.
    pub(crate) fn recall(&mut self, variant: &VariantKey, starts: &[Measured]) {
        if !starts.is_empty() {
            let latest = || starts.iter().rev().take(STARTS_MAX).rev().copied().collect();
            self.measured.entry(variant.clone()).or_insert_with(latest);
        }
    }

    /// Takes in what one tick brings.
    pub(crate) fn take(&mut self, inputs: &Inputs) {
        let Inputs { starts, scrapes, fleet, .. } = inputs;
        self.replicas.retain(|replica, _| starts.contains_key(replica));
        self.forget(fleet);
        for (replica, start) in starts {
            let known = self.replicas.entry(replica.clone()).or_insert(match start.ready {
                Some(_) => Stage::Started,
                None => Stage::Starting(OpenStart::at(start.created)),
            });
            if let Stage::Starting(begun) = known {
                begun.ready = start.ready;
                begun.unschedulable = start.unschedulable.filter(|_| start.ready.is_none());
            }
        }
        if !self.replicas.values().any(|stage| matches!(stage, Stage::Starting(_))) {
            return;
        }
        for scrape in scrapes.iter().filter(|scrape| scrape.outcome.is_ok()) {
            if let Some(Stage::Starting(begun)) = self.replicas.get_mut(&scrape.replica) {
                begun.page = begun.page.or(Some(scrape.at));
            }
        }
        for (replica, stage) in &mut self.replicas {
            let Stage::Starting(begun) = *stage else { continue };
            let OpenStart { created, ready: Some(ready), page: Some(page), .. } = begun else {
                continue;
            };
            *stage = Stage::Started;
            let since = |at: Timestamp| Seconds::from_span(at.duration_since(created));
            // A clock that differs can turn a start around, and then it says nothing.
            let Some((to_ready, to_serving)) = since(ready).zip(since(page.max(ready))) else {
                continue;
            };
            let known = self.measured.entry(replica.variant.clone()).or_default();
            known.push_back(Measured { to_ready, to_serving });
            while known.len() > STARTS_MAX {
                known.pop_front();
            }
        }
    }

    fn forget(&mut self, fleet: &Fleet) {
        self.measured.retain(|variant, _| fleet.get(variant).is_some());
    }

    /// How long a replica of a variant may take; `None` while too few starts were seen.
    pub(crate) fn patience(&self, variant: &VariantKey) -> Option<Seconds> {
        Some(twice(self.serves_after(variant)?))
    }

    /// How long nine in ten replicas of a variant take until they serve; `None` while too few starts
    /// were seen.
    pub(crate) fn serves_after(&self, variant: &VariantKey) -> Option<Seconds> {
        let measured = self.measured.get(variant)?;
        if measured.len() < STARTS_MIN {
            return None;
        }
        Some(quantiles(measured, |it| it.to_serving)?.p90)
    }

    /// The longest of the starts of a variant that go on and have not taken that long yet, and of those
    /// that were measured while they are too few for a percentile.
    fn slowest(&self, now: Timestamp, variant: &VariantKey, patience: Seconds) -> Option<Seconds> {
        let measured = self.measured.get(variant).filter(|measured| measured.len() < STARTS_MIN);
        let over = measured.into_iter().flatten().map(|it| it.to_serving);

        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let going_on = own.filter_map(|(_, stage)| match stage {
            Stage::Starting(it) => Seconds::from_span(now.duration_since(it.created)),
            Stage::Started => None,
        });
        let not_stuck = going_on.filter(|age| age.seconds() < patience.seconds());
        over.chain(not_stuck).reduce(Seconds::max)
    }

    /// The replicas of a variant that start.
    fn underway(&self, now: Timestamp, variant: &VariantKey, patience: Patience) -> Tally {
        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let mut underway = Tally::default();
        for (_, stage) in own {
            let Stage::Starting(OpenStart { created, unschedulable, .. }) = stage else { continue };
            let age = |since: &Timestamp| now.duration_since(*since).as_secs_f64();
            let is_unplaced = unschedulable.as_ref().map(age) >= Some(patience.node.seconds());
            let one = |is: bool| if is { Replicas::ONE } else { Replicas::ZERO };

            underway.all += Replicas::ONE;
            underway.overdue += one(is_unplaced || age(created) >= patience.whole.seconds());
            underway.unplaced += one(is_unplaced);
        }
        underway
    }

    /// What is said of a variant's starts.
    pub(crate) fn report(&self, variant: &VariantKey, stuck: Replicas) -> Startup {
        let own = self.replicas.iter().filter(|(replica, _)| replica.variant == *variant);
        let unschedulable = own
            .map(|(_, stage)| match stage {
                Stage::Starting(OpenStart { unschedulable: Some(_), .. }) => Replicas::ONE,
                Stage::Starting(_) | Stage::Started => Replicas::ZERO,
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

// === impl OpenStart, Patience ===

impl OpenStart {
    const fn at(created: Timestamp) -> Self {
        Self { created, ready: None, page: None, unschedulable: None }
    }
}

impl Patience {
    fn of(whole: Seconds) -> Self {
        let usual = whole.seconds() / STUCK_AFTER;
        let node = Seconds::new(NODE_AFTER * usual).unwrap_or(whole).max(NODE_MIN);
        Self { whole, node: node.min(whole) }
    }
}

/// How long replicas may take whose starts nobody has measured: twice what is declared of them, and
/// so much at least.
pub(crate) fn patience_unmeasured(spec: &VariantSpec, least: Seconds) -> Seconds {
    spec.start_time.map_or(least, |declared| twice(declared).max(least))
}

/// The longest that a start of such a length may take.
fn twice(usual: Seconds) -> Seconds {
    Seconds::new(usual.seconds() * STUCK_AFTER).unwrap_or(usual)
}

/// The median and the 90th percentile, by the nearest rank.
fn quantiles(
    measured: &VecDeque<Measured>,
    of: impl Fn(&Measured) -> Seconds,
) -> Option<Quantiles> {
    let mut sorted: Vec<Seconds> = measured.iter().map(of).collect();
    sorted.sort_by(|a, b| a.compare(*b));
    // The rank is the smallest one with at least this share at or below it.
    let at = |tenths: usize| sorted.get((sorted.len() * tenths).div_ceil(10).checked_sub(1)?);
    Some(Quantiles { p50: *at(5)?, p90: *at(9)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ReplicaName;

    #[test]
    fn a_start_that_goes_on_says_how_long_starts_take_until_it_is_stuck() {
        let at = |second: i64| Timestamp::from_second(1_795_000_000 + second).unwrap();
        let seconds = |count: u32| Seconds::new(f64::from(count)).unwrap();
        let variant = VariantSpec::example("llama").key;
        let replica = |name: &str| ReplicaKey {
            variant: variant.clone(),
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        };
        let starting = |second| Stage::Starting(OpenStart::at(at(second)));
        let mut startups = Startups::default();
        let slowest =
            |startups: &Startups, now: i64| startups.slowest(at(now), &variant, seconds(600));
        assert_eq!(slowest(&startups, 0), None);

        startups.replicas.insert(replica("a"), starting(0));
        startups.replicas.insert(replica("b"), starting(100));
        startups.replicas.insert(replica("c"), Stage::Started);
        assert_eq!(slowest(&startups, 300), Some(seconds(300)));
        assert_eq!(slowest(&startups, 600), Some(seconds(500)), "the first is stuck");
        assert_eq!(slowest(&startups, -10), None, "clocks differ");

        let one = Measured { to_ready: seconds(390), to_serving: seconds(400) };
        startups.measured.insert(variant.clone(), VecDeque::from([one]));
        assert_eq!(slowest(&startups, 300), Some(seconds(400)));
        assert_eq!(slowest(&startups, 600), Some(seconds(500)));
        startups.measured.insert(variant.clone(), VecDeque::from([one; STARTS_MIN]));
        assert_eq!(slowest(&startups, 300), Some(seconds(300)), "a percentile says the rest");
    }

    #[test]
    fn percentiles_are_measured_values() {
        let measured = |count: u32| -> VecDeque<Measured> {
            let one = |second: u32| {
                let seconds = Seconds::new(f64::from(second)).unwrap();
                Measured { to_ready: seconds, to_serving: seconds }
            };
            (1..=count).rev().map(one).collect()
        };
        let of = |count| {
            let found = quantiles(&measured(count), |it| it.to_ready);
            found.map(|it| (it.p50.seconds(), it.p90.seconds()))
        };
        assert_eq!(of(0), None);
        assert_eq!(of(1), Some((1.0, 1.0)));
        assert_eq!(of(3), Some((2.0, 3.0)));
        assert_eq!(of(10), Some((5.0, 9.0)));
        assert_eq!(of(32), Some((16.0, 29.0)));
    }
}
