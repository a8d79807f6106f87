//! What is worth an event in what is published.
//!
//! Pure: two successive values of [`Published`] and the monotonic time give what is to be said.
//! A change of a number is said at once. A state, such as having no data, is said once, after it
//! has lasted, so that a replica that misses a scrape and a restart of the daemon say nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::events::Reason;
use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::{Basis, Decision, Reason as Why, ReasonCode, Step};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::units::Replicas;

/// How long a state lasts before it is said. A restart of the daemon has data again by then.
const LASTING: Duration = Duration::from_secs(30);

/// How long the load must be content with the maximum before it is said again that it is not.
/// Load swings around a threshold, and an HPA takes five minutes to believe that it has fallen.
const CONTENT: Duration = Duration::from_mins(5);

/// Something to say about a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The variant.
    pub variant: VariantKey,
    /// What happened.
    pub reason: Reason,
    /// It in a sentence.
    pub note: String,
}

/// Remembers what was said.
#[derive(Debug, Default)]
pub struct Herald {
    variants: BTreeMap<VariantKey, Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    without_data: Episode,
    at_max: Episode,
    limited: Episode,
    slow: Episode,
}

/// A state that is said once.
#[derive(Debug, Default)]
struct Episode {
    began: Option<Duration>,
    last: Duration,
    told: bool,
}

/// What the latest look makes of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It has lasted, and is to be said.
    Entered,
    /// It was said, and is over.
    Left,
    /// There is nothing to say.
    Nothing,
}

// === impl Episode ===

impl Episode {
    /// Looks at the state, which is over when it has not been seen for longer than `quiet`.
    fn look(&mut self, now: Duration, is: bool, quiet: Duration) -> Change {
        if is {
            self.last = now;
            let began = *self.began.get_or_insert(now);
            if !self.told && now.saturating_sub(began) >= LASTING {
                self.told = true;
                return Change::Entered;
            }
        } else if !self.told {
            self.began = None;
        } else if now.saturating_sub(self.last) >= quiet {
            *self = Self::default();
            return Change::Left;
        }
        Change::Nothing
    }
}

// === impl Herald ===

impl Herald {
    /// What is to be said after a tick that ended at `now`.
    pub fn tell(&mut self, now: Duration, before: &Published, after: &Published) -> Vec<Told> {
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
            told.extend(said.into_iter().flatten().map(|(reason, note)| Told {
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

fn moved(before: Option<&PublishedVariant>, after: &PublishedVariant) -> Option<(Reason, String)> {
    let decision = decision(after)?;
    let known = before.and_then(|it| it.decided.as_ref()).map(|it| it.decision.desired());
    // The first number is a change when it is not what is there.
    let first = || (decision.basis == Basis::Fresh).then_some(after.observation.current).flatten();
    let (old, new) = (known.or_else(first)?, decision.desired());
    let reason = match new.cmp(&old) {
        std::cmp::Ordering::Greater => Reason::ScaledUp,
        std::cmp::Ordering::Less => Reason::ScaledDown,
        std::cmp::Ordering::Equal => return None,
    };
    let because = decision.because().map(|step| step.reason.to_string()).unwrap_or_default();
    Some((reason, format!("desired {old} -> {new}: {because}")))
}

fn held(
    now: Duration,
    memory: &mut Memory,
    variant: &PublishedVariant,
) -> Option<(Reason, String)> {
    let decision = decision(variant);
    let fresh = decision.is_some_and(|decision| decision.basis == Basis::Fresh);
    let note = match (memory.without_data.look(now, !fresh, Duration::ZERO), decision) {
        (Change::Nothing, _) => return None,
        (Change::Left, decision) => {
            let desired = decision.map_or(Replicas::ZERO, Decision::desired);
            let note = format!("desired {desired}, decided on fresh data again");
            return Some((Reason::DecisionResumed, note));
        }
        (Change::Entered, Some(decision)) => {
            let because = decision.because().map(|step| match &step.reason {
                Why::NoData(missing) => missing.to_string(),
                other => other.to_string(),
            });
            format!("desired stays {}: {}", decision.desired(), because.unwrap_or_default())
        }
        (Change::Entered, None) => {
            let why = variant.undecided.as_ref().map(|undecided| undecided.0.to_string());
            let why = why.unwrap_or_else(|| "nothing has been seen of it".to_owned());
            format!("no number is published, so the replicas stay as they are: {why}")
        }
    };
    Some((Reason::DecisionHeld, note))
}

fn at_max(
    now: Duration,
    memory: &mut Memory,
    variant: &PublishedVariant,
) -> Option<(Reason, String)> {
    let decision = decision(variant);
    let beyond = decision.and_then(Decision::beyond_max);
    let change = memory.at_max.look(now, beyond.is_some(), CONTENT);
    let (max, why) = beyond.filter(|_| change == Change::Entered)?;
    Some((Reason::AtMaximum, format!("the load asks for more than the maximum of {max}: {why}")))
}

/// The reasons of steps that a limit makes. They are compared by their codes, because a leader that
/// has no room shares nothing else of them.
const CUTS: [ReasonCode; 2] = [ReasonCode::Limited, ReasonCode::LimitUnread];

fn limited(
    now: Duration,
    memory: &mut Memory,
    variant: &PublishedVariant,
) -> Option<(Reason, String)> {
    let is_cut = |step: &&Step| step.after < step.before && CUTS.contains(&step.reason.code());
    let cut = decision(variant).and_then(|decision| decision.steps.iter().rfind(is_cut));
    let change = memory.limited.look(now, cut.is_some(), CONTENT);
    let Step { before, after, reason, .. } = cut.filter(|_| change == Change::Entered)?;
    Some((Reason::LimitReached, format!("desired {after} instead of {before}: {reason}")))
}

fn slow(
    now: Duration,
    memory: &mut Memory,
    variant: &PublishedVariant,
) -> Option<(Reason, String)> {
    let slowest = decision(variant).and_then(Decision::slowest).filter(|it| it.is_outlier());
    let change = memory.slow.look(now, slowest.is_some(), CONTENT);
    let slowest = slowest.filter(|_| change == Change::Entered)?;
    Some((Reason::SlowReplica, slowest.to_string()))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::fixtures;
    use crate::publish::Decided;
    use plimsoll_core::analyze::ballot::Verdict;
    use plimsoll_core::decide::optimize::{Because, Method};
    use plimsoll_core::decide::sized::{Shortfall, Sized, Slowest};
    use plimsoll_core::decide::{NoData, Stage, Told as TheirWhy, Undecided};
    use plimsoll_core::fleet::ReplicaName;
    use plimsoll_core::observe::Observation;
    use plimsoll_core::units::Fraction;

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    /// One variant with a number on this basis, decided or held; or without one.
    fn published(desired: Option<(u32, Basis)>) -> Published {
        let spec = fixtures::variant("llama");
        let decided = desired.map(|(desired, basis)| {
            let (stage, reason) = match basis {
                Basis::Fresh => (Stage::Bounds, Why::BelowMin(n(desired))),
                Basis::Held => (Stage::Hold, Why::NoData(NoData::NoFreshReplica)),
            };
            let decision = Decision {
                variant: spec.key.clone(),
                model: spec.model_key(),
                current: None,
                bounds: spec.bounds,
                steps: vec![Step { stage, before: n(desired), after: n(desired), reason }],
                inputs_at: Timestamp::UNIX_EPOCH,
                basis,
            };
            Decided { decision, at: Timestamp::UNIX_EPOCH, elapsed: Duration::ZERO }
        });
        let undecided = decided.is_none().then_some(Undecided(NoData::NotListed));
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
        let mut herald = Herald::default();
        let mut before = published(Some((3, Basis::Fresh)));
        let mut said = Vec::new();
        let mut tick = |second: u64, after: Published| {
            said.extend(herald.tell(Duration::from_secs(second), &before, &after));
            before = after;
        };
        for second in 0..1000 {
            tick(second, published(Some((3, Basis::Held))));
        }
        tick(1000, published(Some((3, Basis::Fresh))));
        tick(1001, published(Some((4, Basis::Fresh))));
        let said: Vec<_> = said.iter().map(|told| (told.reason, told.note.as_str())).collect();
        let expected = [
            (Reason::DecisionHeld, "desired stays 3: no replica has fresh data"),
            (Reason::DecisionResumed, "desired 3, decided on fresh data again"),
            (Reason::ScaledUp, "desired 3 -> 4: raised to the minimum of 4"),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn a_cut_by_a_limit_is_said_once_when_it_has_lasted_and_again_after_it_was_over() {
        let mut herald = Herald::default();
        let fresh = published(Some((3, Basis::Fresh)));
        let mut cut = fresh.clone();
        let variant = cut.variants.values_mut().next().unwrap();
        let text = "limited by quota: a replica takes 4 H100 and 0 are free".to_owned();
        let reason = Why::Told(TheirWhy { code: ReasonCode::Limited, text });
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
            "desired 3 instead of 5: limited by quota: a replica takes 4 H100 and 0 are free";
        let want = [51, 830].map(|at| (at, Reason::LimitReached, note.to_owned()));
        assert_eq!(told, want);
    }

    #[test]
    fn a_slow_replica_is_named_once_it_has_lasted_and_one_that_is_not_slow_enough_is_not() {
        let slow = |times: f64| {
            let mut published = published(Some((3, Basis::Fresh)));
            let slowest = Slowest {
                replica: ReplicaName::new("llama-7d4").unwrap(),
                factor: Fraction::new(times).unwrap(),
                peers: 3,
            };
            let sized = Sized {
                verdict: Verdict::Held,
                because: Because::Kept,
                method: Method::Exact { steps: 1 },
                stuck: Replicas::ZERO,
                unplaced: Replicas::ZERO,
                absent: Vec::new(),
                short: Shortfall::None,
                rank: None,
                foreseen: None,
                card: None,
                carries: None,
                admissible: None,
                slowest: Some(Box::new(slowest)),
                starving: None,
            };
            let variant = published.variants.values_mut().next().unwrap();
            variant.decided.as_mut().unwrap().decision.steps[0].reason = Why::Sized(sized);
            published
        };
        let told = |times: f64| {
            let (mut herald, after) = (Herald::default(), slow(times));
            let said = (0..100)
                .flat_map(|second| herald.tell(Duration::from_secs(second), &after, &after));
            said.map(|told| (told.reason, told.note)).collect::<Vec<_>>()
        };

        let note = "replica llama-7d4 is 1.8 times slower than its 3 peers".to_owned();
        assert_eq!(told(1.8), [(Reason::SlowReplica, note)]);
        assert_eq!(told(1.2), []);
    }

    #[test]
    fn what_was_never_decided_is_said_too_and_a_restart_is_not() {
        let mut herald = Herald::default();
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
            "no number is published, so the replicas stay as they are: the replicas have not been \
             listed yet"
        );
    }

    #[test]
    fn a_state_is_said_once_and_only_when_it_lasts() {
        let at = Duration::from_secs;
        let mut episode = Episode::default();
        let quiet = Duration::from_secs(5);
        let seen: Vec<(u64, Change)> = (0..200)
            .map(|second| {
                // A blip, then a state that flickers, then calm.
                let is = second == 3 || (50..150).contains(&second) && second % 4 != 0;
                (second, episode.look(at(second), is, quiet))
            })
            .filter(|(_, change)| *change != Change::Nothing)
            .collect();
        assert_eq!(seen, [], "what flickers has not lasted");

        let mut episode = Episode::default();
        let seen: Vec<(u64, Change)> = (0..200)
            .map(|second| {
                let is = (50..100).contains(&second) || (102..150).contains(&second);
                (second, episode.look(at(second), is, quiet))
            })
            .filter(|(_, change)| *change != Change::Nothing)
            .collect();
        assert_eq!(seen, [(80, Change::Entered), (154, Change::Left)]);
    }
}
