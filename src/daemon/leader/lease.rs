//! What a Lease says, and what follows from it: pure.
//!
//! # Model
//!
//! The instants in a Lease are its holder's, so they are never compared with our clock. A Lease is
//! expired when *we* have seen no change of it for as long as it says it lasts, on our monotonic
//! clock. The holder gives up after the shorter renew deadline, counted from before its last
//! successful request. So, clocks that run at the same speed given, two never lead at once.
//!
//! # Source
//!
//! client-go v0.36, `tools/leaderelection/leaderelection.go`.

use std::time::Duration;

use crate::leader::Pace;

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; `None` when it was released or never held.
    pub holder: Option<String>,
    /// How long the others should wait for the holder.
    pub duration: Duration,
    /// How often it has changed hands.
    pub transitions: i32,
    /// The holder's instant of the last renewal, as it is written. It is only ever compared with
    /// itself.
    pub renewed: String,
}

/// A Lease as we have seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What it says.
    pub record: Record,
    /// Since when it says so, on our monotonic clock.
    pub since: Duration,
}

/// What is to be done about a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nobody has it: take it, as its transition of this number.
    Acquire(i32),
    /// It is ours: renew it.
    Renew(i32),
    /// Somebody else has it: look again.
    Wait,
}

impl Observed {
    /// Takes in what a Lease says at `now`; what it has said for some time keeps its age.
    #[must_use]
    pub fn see(before: Option<Self>, record: Record, now: Duration) -> Self {
        match before {
            Some(before) if before.record == record => before,
            Some(_) | None => Self { record, since: now },
        }
    }
}

/// What `me` should do at `now` about a Lease, or about its absence. It lasts as long as it says,
/// and at least as long as we would have it last.
#[must_use]
pub fn judge(lease: Option<&Observed>, me: &str, pace: Pace, now: Duration) -> Judgement {
    let Some(Observed { record, since }) = lease else { return Judgement::Acquire(0) };
    let next = record.transitions.saturating_add(1);
    match &record.holder {
        None => Judgement::Acquire(next),
        Some(holder) if holder == me => Judgement::Renew(record.transitions),
        Some(_) => {
            let lasts = record.duration.max(pace.lease_duration);
            let expired = now.saturating_sub(*since) >= lasts;
            if expired { Judgement::Acquire(next) } else { Judgement::Wait }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PACE: Pace = Pace {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn held(holder: Option<&str>, since: u64) -> Observed {
        let record = Record {
            holder: holder.map(ToOwned::to_owned),
            duration: Duration::from_secs(15),
            transitions: 4,
            renewed: "2026-11-21T09:30:00.000000Z".to_owned(),
        };
        Observed { record, since: Duration::from_secs(since) }
    }

    fn check(lease: Option<&Observed>, now: u64, expect: Judgement) {
        let now = Duration::from_secs(now);
        assert_eq!(judge(lease, "me", PACE, now), expect, "{lease:?}");
    }

    #[test]
    fn a_lease_is_taken_when_nobody_has_it_or_it_has_expired() {
        check(None, 0, Judgement::Acquire(0));
        check(Some(&held(None, 0)), 1, Judgement::Acquire(5));
        check(Some(&held(Some("me"), 0)), 1000, Judgement::Renew(4));
        check(Some(&held(Some("other"), 100)), 114, Judgement::Wait);
        check(Some(&held(Some("other"), 100)), 115, Judgement::Acquire(5));
    }

    #[test]
    fn a_holder_that_asks_for_more_time_gets_it() {
        let mut long = held(Some("other"), 100);
        long.record.duration = Duration::from_mins(1);
        check(Some(&long), 159, Judgement::Wait);
        check(Some(&long), 160, Judgement::Acquire(5));
        let mut short = held(Some("other"), 100);
        short.record.duration = Duration::from_secs(1);
        check(Some(&short), 114, Judgement::Wait);
    }

    #[test]
    fn only_a_change_makes_a_lease_young_again() {
        let (first, later) = (Duration::from_secs(1), Duration::from_secs(9));
        let seen = Observed::see(None, held(Some("a"), 0).record, first);
        let again = Observed::see(Some(seen.clone()), seen.record.clone(), later);
        assert_eq!(again.since, first);
        let mut renewed = seen.record.clone();
        renewed.renewed.push('0');
        assert_eq!(Observed::see(Some(seen), renewed, later).since, later);
    }

    /// A contender that follows the rules, in a world of whole seconds.
    #[derive(Default)]
    struct Contender {
        seen: Option<Observed>,
        leads_until: Option<u64>,
    }

    proptest! {
        /// Requests are lost and processes stand still at will; each clock has its own origin.
        #[test]
        fn two_never_lead_at_once(
            steps in proptest::collection::vec((0_usize..3, any::<bool>(), 0_u64..4), 1..400),
        ) {
            let mut contenders: BTreeMap<usize, Contender> =
                (0..3).map(|index| (index, Contender::default())).collect();
            let (mut lease, mut now, mut renewals) = (None::<Record>, 0_u64, 0_u64);
            for (index, answered, passed) in steps {
                now += passed;
                let own = |now: u64| Duration::from_secs(now + 1000 * index as u64);
                let contender = contenders.get_mut(&index).unwrap();
                if !answered {
                    continue;
                }
                let name = format!("c{index}");
                contender.seen = lease.clone()
                    .map(|record| Observed::see(contender.seen.take(), record, own(now)));
                match judge(contender.seen.as_ref(), &name, PACE, own(now)) {
                    Judgement::Wait => contender.leads_until = None,
                    Judgement::Acquire(transitions) | Judgement::Renew(transitions) => {
                        renewals += 1;
                        let known = lease.as_ref().map_or(0, |lease| lease.transitions);
                        prop_assert!(transitions >= known, "they only rise");
                        lease = Some(Record {
                            holder: Some(name),
                            duration: PACE.lease_duration,
                            transitions,
                            renewed: renewals.to_string(),
                        });
                        contender.leads_until = Some(now + PACE.renew_deadline.as_secs());
                    }
                }
                let leading: Vec<usize> = contenders
                    .iter()
                    .filter(|(_, it)| it.leads_until.is_some_and(|until| now < until))
                    .map(|(index, _)| *index)
                    .collect();
                prop_assert!(leading.len() <= 1, "{leading:?} at {now}");
            }
        }
    }
}
