//! Derives events from published decisions.
//!
//! This module does no I/O: two successive values of [`Published`] and the monotonic time determine
//! the events. A change of desired replicas is reported immediately. A lasting state, such as
//! missing data, is reported once and only after some time. So a missed scrape or a daemon restart
//! causes no events.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::events::event::EventReason;
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision, Reason, ReasonCode, Step};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::units::Replicas;

/// The time that a state must last before it is reported. After a restart the daemon has data again
/// by then.
const LASTING: Duration = Duration::from_secs(30);

/// The time that a reported state must be absent before it counts as over and can be reported
/// again. Load swings around a threshold, and an HPA also waits five minutes before it accepts that
/// load has fallen.
const CONTENT: Duration = Duration::from_mins(5);

/// An event of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantEvent {
    /// The variant.
    pub variant: VariantKey,
    /// The kind of event.
    pub reason: EventReason,
    /// The event as a sentence.
    pub note: String,
}

/// Remembers which events have been reported.
#[derive(Debug, Default)]
pub struct EventSource {
    variants: BTreeMap<VariantKey, EpisodeMemory>,
}

#[derive(Debug, Default)]
struct EpisodeMemory {
    without_data: Episode,
    at_max: Episode,
    limited: Episode,
    slow: Episode,
}

/// A lasting state that is reported once.
#[derive(Debug, Default)]
struct Episode {
    began: Option<Duration>,
    last: Duration,
    told: bool,
}

/// The effect of the latest tick on an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpisodeChange {
    /// The state has lasted long enough and must be reported.
    Entered,
    /// The reported state is over.
    Left,
    /// There is nothing to report.
    Nothing,
}

// === impl Episode ===

impl Episode {
    /// Updates the episode with the current state. A reported state is over once it has been absent
    /// for `quiet`.
    fn look(&mut self, now: Duration, is: bool, quiet: Duration) -> EpisodeChange {
        if is {
            self.last = now;
            let began = *self.began.get_or_insert(now);
            if !self.told && now.saturating_sub(began) >= LASTING {
                self.told = true;
                return EpisodeChange::Entered;
            }
        } else if !self.told {
            self.began = None;
        } else if now.saturating_sub(self.last) >= quiet {
            *self = Self::default();
            return EpisodeChange::Left;
        }

        EpisodeChange::Nothing
    }
}

// === impl EventSource ===

impl EventSource {
    /// Returns the events to report after a tick that ended at `now`.
    pub fn tell(
        &mut self,
        now: Duration,
        before: &Published,
        after: &Published,
    ) -> Vec<VariantEvent> {
        self.variants.retain(|key, _| after.variants.contains_key(key));
        let mut told = Vec::new();
        for (key, variant) in &after.variants {
            let known = before.variants.get(key);
            let memory = self.variants.entry(key.clone()).or_default();
            let said = [
                moved(known, variant),
                held(now, memory, variant),
                at_max(now, memory, variant),
                limited(now, memory, variant),
                slow(now, memory, variant),
            ];
            told.extend(said.into_iter().flatten().map(|(reason, note)| VariantEvent {
                variant: key.clone(),
                reason,
                note,
            }));
        }

        told
    }
}

fn decision(variant: &PublishedVariant) -> Option<&Decision> {
    variant.decided.as_ref().map(|decided| &decided.decision)
}

fn moved(
    before: Option<&PublishedVariant>,
    after: &PublishedVariant,
) -> Option<(EventReason, String)> {
    let decision = decision(after)?;
    let known = before.and_then(|it| it.decided.as_ref()).map(|it| it.decision.desired());
    // The first decision is a change if it differs from the current replicas.
    let first = (decision.basis == Basis::Fresh).then_some(after.observation.current).flatten();
    let old = known.or(first)?;
    let new = decision.desired();

    let reason = match new.cmp(&old) {
        std::cmp::Ordering::Greater => EventReason::ScaledUp,
        std::cmp::Ordering::Less => EventReason::ScaledDown,
        std::cmp::Ordering::Equal => return None,
    };
    let because = decision.because().map(|step| step.reason.to_string()).unwrap_or_default();
    Some((reason, format!("desired {old} -> {new}: {because}")))
}

fn held(
    now: Duration,
    memory: &mut EpisodeMemory,
    variant: &PublishedVariant,
) -> Option<(EventReason, String)> {
    let decision = decision(variant);
    let fresh = decision.is_some_and(|decision| decision.basis == Basis::Fresh);
    let note = match (memory.without_data.look(now, !fresh, Duration::ZERO), decision) {
        (EpisodeChange::Nothing, _) => return None,
        (EpisodeChange::Left, decision) => {
            let desired = decision.map_or(Replicas::ZERO, Decision::desired);
            let note = format!("desired {desired}, decided on fresh data again");
            return Some((EventReason::DecisionResumed, note));
        }
        (EpisodeChange::Entered, Some(decision)) => {
            let because = decision.because().map(|step| match &step.reason {
                Reason::NoData(missing) => missing.to_string(),
                other => other.to_string(),
            });
            format!("desired stays {}: {}", decision.desired(), because.unwrap_or_default())
        }
        (EpisodeChange::Entered, None) => {
            let missing = variant.undecided.as_ref().map(|undecided| undecided.0.to_string());
            let why = missing.unwrap_or_else(|| "it has never been observed".to_owned());
            format!("desired replicas are not published, so the replicas stay as they are: {why}")
        }
    };

    Some((EventReason::DecisionHeld, note))
}

fn at_max(
    now: Duration,
    memory: &mut EpisodeMemory,
    variant: &PublishedVariant,
) -> Option<(EventReason, String)> {
    let decision = decision(variant);
    let beyond = decision.and_then(Decision::beyond_max);
    let change = memory.at_max.look(now, beyond.is_some(), CONTENT);
    let (max, why) = beyond.filter(|_| change == EpisodeChange::Entered)?;
    Some((EventReason::AtMaximum, format!("the load needs more than the maximum of {max}: {why}")))
}

/// The reasons of steps that a limit causes. They are compared by code, because a leader without
/// enough room in the shared document shares only the code.
const CUTS: [ReasonCode; 2] = [ReasonCode::Limited, ReasonCode::LimitUnread];

fn is_cut(step: &Step) -> bool {
    step.after < step.before && CUTS.contains(&step.reason.code())
}

fn limited(
    now: Duration,
    memory: &mut EpisodeMemory,
    variant: &PublishedVariant,
) -> Option<(EventReason, String)> {
    let cut = decision(variant).and_then(|it| it.steps.iter().rfind(|step| is_cut(step)));
    let change = memory.limited.look(now, cut.is_some(), CONTENT);
    let Step { before, after, reason, .. } = cut.filter(|_| change == EpisodeChange::Entered)?;
    Some((EventReason::LimitReached, format!("desired {after} instead of {before}: {reason}")))
}

fn slow(
    now: Duration,
    memory: &mut EpisodeMemory,
    variant: &PublishedVariant,
) -> Option<(EventReason, String)> {
    let outlier = decision(variant).and_then(Decision::slowest).filter(|it| it.is_outlier());
    let change = memory.slow.look(now, outlier.is_some(), CONTENT);
    let slowest = outlier.filter(|_| change == EpisodeChange::Entered)?;
    Some((EventReason::SlowReplica, slowest.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures;
    use crate::publish::fixtures::sizing;
    use plimsoll_core::decide::sized::{SizingValues, SlowestReplica};
    use plimsoll_core::decide::{NoData, NoDecision, RemoteReason, Stage};
    use plimsoll_core::fleet::ReplicaName;
    use plimsoll_core::observe::Observation;
    use plimsoll_core::units::Fraction;

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    /// Returns one variant with a decision on this basis, or without a decision.
    fn published(desired: Option<(u32, Basis)>) -> Published {
        let spec = fixtures::variant("llama");
        let decided = desired.map(|(desired, basis)| {
            let (stage, reason) = match basis {
                Basis::Fresh => (Stage::Bounds, Reason::BelowMin(n(desired))),
                Basis::Held => (Stage::Hold, Reason::NoData(NoData::NoFreshReplica)),
            };
            let step = Step { stage, before: n(desired), after: n(desired), reason };
            fixtures::decided(&spec, basis, vec![step])
        });

        let undecided = decided.is_none().then_some(NoDecision(NoData::NotListed));
        let variant = PublishedVariant {
            observation: Observation::of_nothing(spec.bounds),
            report: None,
            decided,
            undecided,
            spec: spec.clone(),
        };

        Published { variants: [(spec.key, variant)].into(), ..Published::default() }
    }

    #[test]
    fn a_thousand_equal_ticks_say_one_thing() {
        let mut herald = EventSource::default();
        let mut before = published(Some((3, Basis::Fresh)));
        let mut told = Vec::new();
        let held = (0..1000).map(|second| (second, (3, Basis::Held)));
        for (second, decided) in held.chain([(1000, (3, Basis::Fresh)), (1001, (4, Basis::Fresh))])
        {
            let after = published(Some(decided));
            told.extend(herald.tell(Duration::from_secs(second), &before, &after));
            before = after;
        }

        let said: Vec<_> = told.iter().map(|it| (it.reason, it.note.as_str())).collect();
        let expected = [
            (EventReason::DecisionHeld, "desired stays 3: no replica has fresh data"),
            (EventReason::DecisionResumed, "desired 3, decided on fresh data again"),
            (EventReason::ScaledUp, "desired 3 -> 4: raised to the minimum of 4"),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_variant_that_comes_back_is_told_of_anew() {
        let mut herald = EventSource::default();
        let held = published(Some((3, Basis::Held)));
        let none = Published::default();
        let mut told = Vec::new();
        // Each state lasts for long enough to be told of.
        for (minute, after) in (0..).zip([&held, &held, &none, &held, &held]) {
            let said = herald.tell(Duration::from_mins(minute), after, after).into_iter();
            told.extend(said.map(|told| (minute, told.reason)));
        }
        assert_eq!(told, [1, 4].map(|at| (at, EventReason::DecisionHeld)));
    }

    #[test]
    fn a_cut_by_a_limit_is_said_once_when_it_has_lasted_and_again_after_it_was_over() {
        let mut herald = EventSource::default();
        let fresh = published(Some((3, Basis::Fresh)));
        let mut cut = fresh.clone();
        let variant = cut.variants.values_mut().next().unwrap();
        let text = "limited by quota: a replica needs 4 H100 and 0 are free".to_owned();
        let reason = Reason::Told(RemoteReason { code: ReasonCode::Limited, text });
        let step = Step { stage: Stage::Limit, before: n(5), after: n(3), reason };
        variant.decided.as_mut().unwrap().decision.steps.push(step);
        let mut told = Vec::new();
        for second in 0..1000 {
            let cuts = !(400..800).contains(&second) && second != 20;
            let after = if cuts { &cut } else { &fresh };
            let now = Duration::from_secs(second);
            let said = herald.tell(now, after, after).into_iter();
            told.extend(said.map(|told| (second, told.reason, told.note)));
        }

        let note =
            "desired 3 instead of 5: limited by quota: a replica needs 4 H100 and 0 are free";
        let want = [51, 830].map(|at| (at, EventReason::LimitReached, note.to_owned()));
        assert_eq!(told, want);
    }

    /// Returns one variant with a replica that is this many times slower than its peers.
    fn published_with_slow_replica(times: f64) -> Published {
        let mut published = published(Some((3, Basis::Fresh)));
        let slowest = SlowestReplica {
            replica: ReplicaName::new("llama-7d4").unwrap(),
            factor: Fraction::new(times).unwrap(),
            peers: 3,
        };
        let sizing = SizingValues { slowest: Some(slowest), ..sizing() };

        let variant = published.variants.values_mut().next().unwrap();
        variant.decided.as_mut().unwrap().decision.sizing = Some(Arc::new(sizing));
        published
    }

    #[test]
    fn a_slow_replica_is_named_once_it_has_lasted_and_one_that_is_not_slow_enough_is_not() {
        let note = "replica llama-7d4 is 1.8 times slower than its 3 peers".to_owned();
        for (times, expected) in [(1.8, vec![(EventReason::SlowReplica, note)]), (1.2, vec![])] {
            let mut herald = EventSource::default();
            let after = published_with_slow_replica(times);
            let mut told = Vec::new();
            for second in 0..100 {
                told.extend(herald.tell(Duration::from_secs(second), &after, &after));
            }

            let said: Vec<_> = told.into_iter().map(|it| (it.reason, it.note)).collect();
            assert_eq!(said, expected, "{times} times");
        }
    }

    #[test]
    fn what_was_never_decided_is_said_too_and_a_restart_is_not() {
        let mut herald = EventSource::default();
        let mut seen = Vec::new();
        for second in 0..20 {
            let now = Duration::from_secs(second);
            seen.extend(herald.tell(now, &Published::default(), &published(None)));
        }

        let fresh = published(Some((3, Basis::Fresh)));
        seen.extend(herald.tell(Duration::from_secs(20), &published(None), &fresh));
        assert_eq!(seen, []);
        for second in 100..200 {
            seen.extend(herald.tell(Duration::from_secs(second), &fresh, &published(None)));
        }

        let [told] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(
            told.note,
            "desired replicas are not published, so the replicas stay as they are: the replicas have not been listed yet"
        );
    }

    #[test]
    fn a_state_is_said_once_and_only_when_it_lasts() {
        let at = Duration::from_secs;
        let mut episode = Episode::default();
        let quiet = Duration::from_secs(5);
        let seen: Vec<(u64, EpisodeChange)> = (0..200)
            .map(|second| {
                // A short blip, then a flickering state, then none.
                let is = second == 3 || (50..150).contains(&second) && second % 4 != 0;
                (second, episode.look(at(second), is, quiet))
            })
            .filter(|(_, change)| *change != EpisodeChange::Nothing)
            .collect();
        assert_eq!(seen, [], "what flickers has not lasted");

        let mut episode = Episode::default();
        let seen: Vec<(u64, EpisodeChange)> = (0..200)
            .map(|second| {
                let is = (50..100).contains(&second) || (102..150).contains(&second);
                (second, episode.look(at(second), is, quiet))
            })
            .filter(|(_, change)| *change != EpisodeChange::Nothing)
            .collect();
        assert_eq!(seen, [(80, EpisodeChange::Entered), (154, EpisodeChange::Left)]);
    }
}
