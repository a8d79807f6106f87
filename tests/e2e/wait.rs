//! Waiting for what a cluster does in its own time.

use std::time::Duration;

use plimsoll::clock::Clock;

/// How long the slowest step may take on a machine that does other things too.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// Much longer than a busy machine stands still, so a page is missing only if none is served.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
const GLANCE: Duration = Duration::from_millis(200);

/// Waits for something.
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look)
}

/// Waits for something, for so long.
pub(crate) fn within<T>(patience: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    seen_within(patience, look).unwrap_or_else(|| panic!("never saw {what}"))
}

/// The same; `None` if it does not come.
pub(crate) fn seen_within<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let clock = Clock::start();
    let began = clock.elapsed();
    // Looks are counted, because a machine may stand still. Slow looks have an end as well.
    for _ in 0..patience.as_millis() / GLANCE.as_millis() {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if clock.elapsed().saturating_sub(began) > patience * 3 {
            break;
        }
        std::thread::sleep(GLANCE);
    }
    None
}

/// Looks on for a while, and fails when what is seen is not so even once.
pub(crate) fn stays(what: &str, time: Duration, mut look: impl FnMut() -> bool) {
    let clock = Clock::start();
    let began = clock.elapsed();
    while clock.elapsed().saturating_sub(began) < time {
        assert!(look(), "{what} did not stay so");
        std::thread::sleep(GLANCE);
    }
}
