//! The results of each target's last scrapes, for logs and for a status page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use crate::collect::chain;
use plimsoll_core::fleet::ReplicaKey;
use plimsoll_core::observe::ScrapeFailure;

/// The longest error text that is kept, in bytes. Part of it comes from the target.
const DETAIL_MAX: usize = 300;

/// The reason why a scrape failed: the class that the core uses, and a detail for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeError {
    /// The class.
    pub class: ScrapeFailure,
    /// The exact problem, in at most 300 bytes.
    pub detail: String,
}

impl ScrapeError {
    /// Creates a failure and cuts its detail to the limit. A detail can quote the page, so control
    /// characters, with which a page could forge lines of a log, are replaced.
    #[must_use]
    pub fn new(class: ScrapeFailure, detail: &str) -> Self {
        let end = detail.floor_char_boundary(DETAIL_MAX);
        let mark = if end < detail.len() { "..." } else { "" };
        let shown = detail[..end].replace(char::is_control, " ");
        Self { class, detail: format!("{shown}{mark}") }
    }

    /// Creates a failure with an error and its sources as its detail.
    pub(crate) fn from_error(class: ScrapeFailure, error: &dyn std::error::Error) -> Self {
        Self::new(class, &chain(error))
    }
}

/// The results of the scrapes of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetStatus {
    /// The URL of its metrics.
    pub url: String,
    /// The time of the last attempt.
    pub attempted: Option<Timestamp>,
    /// The time of the last attempt that gave a reading.
    pub succeeded: Option<Timestamp>,
    /// The failure of the last attempt, if it failed.
    pub failure: Option<ScrapeError>,
}

/// The status of every scraped target. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct TargetBoard {
    entries: Arc<Mutex<BTreeMap<ReplicaKey, StatusEntry>>>,
}

/// The status of one target. A task that is being stopped may write into its entry after the board
/// has dropped it. Such a write has no effect.
pub(crate) type StatusEntry = Arc<Mutex<TargetStatus>>;

impl TargetBoard {
    /// Returns the current status of each target.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<ReplicaKey, TargetStatus> {
        let entries = lock(&self.entries);
        entries.iter().map(|(replica, status)| (replica.clone(), lock(status).clone())).collect()
    }

    pub(crate) fn add(&self, replica: ReplicaKey, url: String) -> StatusEntry {
        let entry = Arc::new(Mutex::new(TargetStatus { url, ..TargetStatus::default() }));
        lock(&self.entries).insert(replica, Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove(&self, replica: &ReplicaKey) {
        lock(&self.entries).remove(replica);
    }
}

/// The change that an attempt causes, which determines the log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusChange {
    /// The target fails, and did not fail in this way before.
    Fails,
    /// The target fails in the same way as before.
    StillFails,
    /// The target responds, and failed before.
    Recovers,
    /// The target responds, and did not fail before.
    Answers,
}

/// Records an attempt, and returns the change that it causes.
pub(crate) fn record(
    entry: &StatusEntry,
    at: Timestamp,
    outcome: Result<(), &ScrapeError>,
) -> StatusChange {
    let mut status = lock(entry);
    let before = status.failure.as_ref().map(|failure| failure.class);
    status.attempted = Some(at);
    status.failure = outcome.err().cloned();

    match (before, outcome) {
        (before, Err(failure)) if before == Some(failure.class) => StatusChange::StillFails,
        (_, Err(_)) => StatusChange::Fails,
        (before, Ok(())) => {
            status.succeeded = Some(at);
            if before.is_some() { StatusChange::Recovers } else { StatusChange::Answers }
        }
    }
}

/// Locks a mutex. No code that panics runs under these locks, so their data is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_that_quotes_a_page_is_one_line() {
        let failure = ScrapeError::new(ScrapeFailure::WrongModel, "serves a\nERROR \u{1b}[31mb");
        assert_eq!(failure.detail, "serves a ERROR  [31mb");
    }

    #[test]
    fn a_failure_is_loud_when_its_class_changes_and_quiet_while_it_lasts() {
        let entry = StatusEntry::default();
        let at = Timestamp::UNIX_EPOCH;
        let refused = ScrapeError::new(ScrapeFailure::Refused, "refused");
        let status = ScrapeError::new(ScrapeFailure::Status, "500");
        let other_status = ScrapeError::new(ScrapeFailure::Status, "503");
        let outcomes = [
            (Ok(()), StatusChange::Answers),
            (Err(&refused), StatusChange::Fails),
            (Err(&refused), StatusChange::StillFails),
            (Err(&status), StatusChange::Fails),
            (Err(&other_status), StatusChange::StillFails),
            (Ok(()), StatusChange::Recovers),
            (Ok(()), StatusChange::Answers),
            (Err(&status), StatusChange::Fails),
        ];

        for (number, (outcome, want)) in outcomes.into_iter().enumerate() {
            assert_eq!(record(&entry, at, outcome), want, "attempt {number}");
        }
    }

    #[test]
    fn the_status_keeps_the_last_error_and_the_last_success() {
        let board = TargetBoard::default();
        let entry = board.add(crate::collect::scrape::tests::replica("a"), "http://a".to_owned());
        let first = Timestamp::UNIX_EPOCH;
        let second = Timestamp::from_second(1).unwrap();
        record(&entry, first, Ok(()));
        let failure = ScrapeError::new(ScrapeFailure::Timeout, "no answer within 1s");
        record(&entry, second, Err(&failure));
        let want = TargetStatus {
            url: "http://a".to_owned(),
            attempted: Some(second),
            succeeded: Some(first),
            failure: Some(failure),
        };

        assert_eq!(board.snapshot().into_values().collect::<Vec<_>>(), [want]);
    }

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        let failure = ScrapeError::new(ScrapeFailure::Malformed, &"é".repeat(500));
        assert_eq!(failure.detail, format!("{}...", "é".repeat(150)));
    }
}
