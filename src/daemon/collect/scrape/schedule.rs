//! The schedule of scrapes. Each target has its own time grid, whose phase depends only on its key.

use std::time::Duration;

use prometheus::IntCounter;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use plimsoll_core::fleet::ReplicaKey;

/// The shortest interval. Configured ones are longer, and 0 would spin.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Returns the phase of a target's grid: at least zero, less than the interval.
///
/// It depends only on the replica's key. A thousand targets that appear together are therefore
/// spread over the interval, and are spread in the same way after a restart.
#[must_use]
pub fn phase(replica: &ReplicaKey, interval: Duration) -> Duration {
    let nanoseconds = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
    let share = u128::from(nanoseconds) * u128::from(hash(replica));
    Duration::from_nanos(u64::try_from(share >> 64).unwrap_or(0))
}

/// Hashes the parts of the key with FNV-1a, and finishes with the mixer of `SplitMix64`. FNV alone
/// hardly changes the high bits for names that differ in their last digit, as pods' names do.
///
/// The standard library's hasher may change with the toolchain, but the phase must not.
fn hash(replica: &ReplicaKey) -> u64 {
    let ReplicaKey { variant, replica, incarnation } = replica;
    let uid = incarnation.as_ref().map_or("", |incarnation| incarnation.as_str());
    let parts = [variant.namespace.as_str(), variant.variant.as_str(), replica.as_str()];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.into_iter().chain([uid]).flat_map(|part| part.bytes().chain([0xff])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The turns of one target.
#[derive(Debug)]
pub(crate) struct ScrapeSchedule {
    interval: Duration,
    ticks: Interval,
    /// The previous turn, which determines the number of missed turns.
    last: Option<Instant>,
}

impl ScrapeSchedule {
    /// Waits for the target's phase and starts its grid.
    pub(crate) async fn start(replica: &ReplicaKey, interval: Duration) -> Self {
        let period = interval.max(INTERVAL_MIN);
        tokio::time::sleep(phase(replica, period)).await;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self { interval: period, ticks, last: None }
    }

    /// Waits for the next turn, and then for a permit.
    ///
    /// A turn that cannot begin before the next one is due is skipped and counted in `missed`. A
    /// waiting target keeps its place in the queue, so that no target waits forever.
    ///
    /// # Errors
    ///
    /// The semaphore is closed.
    pub(crate) async fn turn<'a>(
        &mut self,
        permits: &'a Semaphore,
        missed: &IntCounter,
    ) -> Result<SemaphorePermit<'a>, AcquireError> {
        let due = self.ticks.tick().await;
        missed.inc_by(self.advance(due));

        let leave = permits.acquire();
        tokio::pin!(leave);
        loop {
            tokio::select! {
                biased;
                permit = &mut leave => return permit,
                due = self.ticks.tick() => missed.inc_by(1 + self.advance(due)),
            }
        }
    }

    /// Advances to the turn at `due`, and returns the number of turns that were skipped before it.
    fn advance(&mut self, due: Instant) -> u64 {
        let Some(last) = self.last.replace(due) else { return 0 };
        let turns = due.duration_since(last).as_nanos() / self.interval.as_nanos();
        u64::try_from(turns).unwrap_or(u64::MAX).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::scrape::tests::replica;
    use plimsoll_core::fleet::Incarnation;

    fn missed() -> IntCounter {
        IntCounter::new("missed", "Missed turns").unwrap()
    }

    #[test]
    fn a_thousand_targets_are_spread_evenly_over_the_interval() {
        let interval = Duration::from_secs(1);
        for name in ["10.0.0.{}:8000", "chat-h100-{}", "chat-h100-7d9f-x{}"] {
            let mut tenths = [0; 10];
            for number in 0..1000 {
                let phase = phase(&replica(&name.replace("{}", &number.to_string())), interval);
                assert!(phase < interval);
                tenths[usize::try_from(phase.as_millis() / 100).unwrap()] += 1;
            }

            // A uniform distribution has 100 in each tenth, with a standard deviation of 9.5.
            assert!(tenths.iter().all(|&n| (60..=140).contains(&n)), "{name}: {tenths:?}");
        }
    }

    #[test]
    fn the_phase_depends_on_the_whole_key_and_never_changes() {
        let interval = Duration::from_secs(10);
        let first = replica("chat-h100-0");
        // Pinned: another value would shift every target of every installation at an upgrade.
        assert_eq!(phase(&first, interval), Duration::from_nanos(5_386_356_072));
        let reborn = ReplicaKey { incarnation: Incarnation::new("uid"), ..first.clone() };
        assert_ne!(phase(&first, interval), phase(&reborn, interval));
        assert_eq!(phase(&first, Duration::ZERO), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_go_by_during_a_long_scrape_are_counted_and_not_made_up_for() {
        let permits = Semaphore::new(1);
        let missed = missed();
        let mut schedule = ScrapeSchedule::start(&replica("a"), Duration::from_secs(1)).await;

        drop(schedule.turn(&permits, &missed).await.unwrap());
        tokio::time::sleep(Duration::from_millis(3500)).await;
        drop(schedule.turn(&permits, &missed).await.unwrap());
        drop(schedule.turn(&permits, &missed).await.unwrap());
        assert_eq!(missed.get(), 2, "turns 1 and 2 are lost, 3 begins late, 4 on time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_gets_no_leave_before_the_next_is_skipped_and_counted() {
        let permits = Semaphore::new(1);
        let missed = missed();
        let mut schedule = ScrapeSchedule::start(&replica("a"), Duration::from_secs(1)).await;

        let busy = permits.acquire().await.unwrap();
        let turn = schedule.turn(&permits, &missed);
        let released = async {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            drop(busy);
        };
        let (turn, ()) = tokio::join!(turn, released);
        assert!(turn.is_ok());
        assert_eq!(missed.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_on_time_are_not_missed() {
        let permits = Semaphore::new(1);
        let missed = missed();
        let mut schedule = ScrapeSchedule::start(&replica("a"), Duration::from_secs(1)).await;

        for _ in 0..5 {
            let permit = schedule.turn(&permits, &missed).await.unwrap();
            // The longest that a scrape may take: its whole interval.
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(permit);
        }

        assert_eq!(missed.get(), 0);
    }
}
