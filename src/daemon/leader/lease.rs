//! The record in a Lease, and the decision to acquire, renew or wait. This module does no I/O.
//!
//! # Model
//!
//! The instants in a Lease come from the holder's clock, so this replica never compares them with
//! its own clock. A Lease is expired if this replica has seen it unchanged for the lease duration,
//! on its own monotonic clock. The holder gives up earlier, after the renew deadline, counted from
//! before its last successful request. So two replicas never lead at once, provided that their
//! clocks run at the same speed.
//!
//! # Source
//!
//! client-go v0.36, `tools/leaderelection/leaderelection.go`.

use std::time::Duration;

use crate::leader::ElectionTiming;

/// The content of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The holder; `None` if the Lease was released or never held.
    pub holder: Option<String>,
    /// The time that the other replicas should wait for the holder.
    pub duration: Duration,
    /// The number of times that the holder changed.
    pub transitions: i32,
    /// The holder's instant of the last renewal, as written in the Lease. It is only compared for
    /// equality.
    pub renewed: String,
}

/// A Lease as this replica has observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// The content of the Lease.
    pub record: LeaseRecord,
    /// The instant since when the content is unchanged, on this replica's monotonic clock.
    pub since: Duration,
}

/// The action to take for a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// No replica holds the Lease: acquire it, with this transition count.
    Acquire(i32),
    /// This replica holds the Lease: renew it.
    Renew(i32),
    /// Another replica holds the Lease: read it again later.
    Wait,
}

impl ObservedLease {
    /// Observes the content of a Lease at `now`. If the content is unchanged, its age is kept.
    #[must_use]
    pub fn see(before: Option<Self>, record: LeaseRecord, now: Duration) -> Self {
        match before {
            Some(before) if before.record == record => before,
            Some(_) | None => Self { record, since: now },
        }
    }
}

/// Returns the action that `me` should take at `now` for a Lease; `None` means that the Lease does
/// not exist. A Lease lasts for the duration in its content, and at least for
/// `pace.lease_duration`.
#[must_use]
pub fn judge(
    lease: Option<&ObservedLease>,
    me: &str,
    pace: ElectionTiming,
    now: Duration,
) -> LeaseAction {
    let Some(ObservedLease { record, since }) = lease else { return LeaseAction::Acquire(0) };
    let next = record.transitions.saturating_add(1);

    match &record.holder {
        None => LeaseAction::Acquire(next),
        Some(holder) if holder == me => LeaseAction::Renew(record.transitions),
        Some(_) => {
            let lasts = record.duration.max(pace.lease_duration);
            let expired = now.saturating_sub(*since) >= lasts;
            if expired { LeaseAction::Acquire(next) } else { LeaseAction::Wait }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PACE: ElectionTiming = ElectionTiming {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn held(holder: Option<&str>, since: u64) -> ObservedLease {
        let record = LeaseRecord {
            holder: holder.map(ToOwned::to_owned),
            duration: Duration::from_secs(15),
            transitions: 4,
            renewed: "2026-11-21T09:30:00.000000Z".to_owned(),
        };
        ObservedLease { record, since: Duration::from_secs(since) }
    }

    fn check(lease: Option<&ObservedLease>, now: u64, expect: LeaseAction) {
        assert_eq!(judge(lease, "me", PACE, Duration::from_secs(now)), expect, "{lease:?}");
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_has_expired() {
        check(None, 0, LeaseAction::Acquire(0));
        check(Some(&held(None, 0)), 1, LeaseAction::Acquire(5));
        check(Some(&held(Some("me"), 0)), 1000, LeaseAction::Renew(4));
        check(Some(&held(Some("other"), 100)), 114, LeaseAction::Wait);
        check(Some(&held(Some("other"), 100)), 115, LeaseAction::Acquire(5));
    }

    #[test]
    fn a_holder_that_asks_for_more_time_gets_it() {
        let mut long = held(Some("other"), 100);
        long.record.duration = Duration::from_mins(1);
        check(Some(&long), 159, LeaseAction::Wait);
        check(Some(&long), 160, LeaseAction::Acquire(5));
        let mut short = held(Some("other"), 100);
        short.record.duration = Duration::from_secs(1);
        check(Some(&short), 114, LeaseAction::Wait);
    }

    #[test]
    fn only_a_change_makes_a_lease_young_again() {
        let first = Duration::from_secs(1);
        let later = Duration::from_secs(9);
        let seen = ObservedLease::see(None, held(Some("a"), 0).record, first);
        let again = ObservedLease::see(Some(seen.clone()), seen.record.clone(), later);
        assert_eq!(again.since, first);

        let mut renewed = seen.record.clone();
        renewed.renewed.push('0');
        assert_eq!(ObservedLease::see(Some(seen), renewed, later).since, later);
    }

    /// A contender that follows the rules, in a simulation with whole seconds.
    #[derive(Default)]
    struct Contender {
        seen: Option<ObservedLease>,
        leads_until: Option<u64>,
    }

    proptest! {
        /// Requests get lost and processes pause at random; each clock has its own origin.
        #[test]
        fn two_never_lead_at_once(
            steps in proptest::collection::vec((0_usize..3, any::<bool>(), 0_u64..4), 1..400),
        ) {
            let mut contenders: BTreeMap<usize, Contender> =
                (0..3).map(|index| (index, Contender::default())).collect();
            let mut lease = None::<LeaseRecord>;
            let mut now = 0_u64;
            let mut renewals = 0_u64;
            for (index, answered, passed) in steps {
                now += passed;
                let own = Duration::from_secs(now + 1000 * index as u64);
                let contender = contenders.get_mut(&index).unwrap();
                if !answered {
                    continue;
                }

                let name = format!("c{index}");
                contender.seen = lease.clone()
                    .map(|record| ObservedLease::see(contender.seen.take(), record, own));
                match judge(contender.seen.as_ref(), &name, PACE, own) {
                    LeaseAction::Wait => contender.leads_until = None,
                    LeaseAction::Acquire(transitions) | LeaseAction::Renew(transitions) => {
                        renewals += 1;
                        let known = lease.as_ref().map_or(0, |lease| lease.transitions);
                        prop_assert!(transitions >= known, "they only rise");
                        lease = Some(LeaseRecord {
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
