//! What became of the last scrapes of each target, for logs and for a status page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use crate::collect::chain;
use plimsoll_core::fleet::ReplicaKey;
use plimsoll_core::observe::ScrapeFailure;

/// The longest text that is kept of an error, in bytes. Part of it comes from the target.
const DETAIL_MAX: usize = 300;

/// Why a scrape gave nothing: the class that the core knows, and the detail that a person needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub class: ScrapeFailure,
    /// What exactly happened, in at most 300 bytes.
    pub detail: String,
}

impl Failure {
    /// A failure whose detail is cut to its limit.
    #[must_use]
    pub fn new(class: ScrapeFailure, detail: &str) -> Self {
        let end = detail.floor_char_boundary(DETAIL_MAX);
        let mark = if end < detail.len() { "..." } else { "" };
        Self { class, detail: format!("{}{mark}", &detail[..end]) }
    }

    /// A failure whose detail is an error and its sources.
    pub(crate) fn from_error(class: ScrapeFailure, error: &dyn std::error::Error) -> Self {
        Self::new(class, &chain(error))
    }
}

/// What the scrapes of one target have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Where its page is.
    pub url: String,
    /// When its page was last asked for.
    pub attempted: Option<Timestamp>,
    /// When a page was last asked for that could be read.
    pub succeeded: Option<Timestamp>,
    /// Why the last attempt failed, if it did.
    pub failure: Option<Failure>,
}

/// The status of every target that is being scraped; its clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Board {
    entries: Arc<Mutex<BTreeMap<ReplicaKey, Entry>>>,
}

/// One target's status. A task that is being stopped may write into its entry after the board has
/// let go of it, and nobody sees that.
pub(crate) type Entry = Arc<Mutex<Status>>;

impl Board {
    /// The status of each target at this moment.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<ReplicaKey, Status> {
        let entries = lock(&self.entries);
        entries.iter().map(|(replica, status)| (replica.clone(), lock(status).clone())).collect()
    }

    pub(crate) fn add(&self, replica: ReplicaKey, url: String) -> Entry {
        let entry = Arc::new(Mutex::new(Status { url, ..Status::default() }));
        lock(&self.entries).insert(replica, Arc::clone(&entry));
        entry
    }

    pub(crate) fn remove(&self, replica: &ReplicaKey) {
        lock(&self.entries).remove(replica);
    }
}

/// What an attempt changes about a target, which decides how loudly it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It fails, and did not fail in this way before.
    Fails,
    /// It fails as it did before.
    StillFails,
    /// It answers, and failed before.
    Recovers,
    /// It answers, and did not fail before.
    Answers,
}

/// Writes down an attempt, and tells what it changes.
pub(crate) fn record(entry: &Entry, at: Timestamp, outcome: Result<(), &Failure>) -> Change {
    let mut status = lock(entry);
    let before = status.failure.as_ref().map(|failure| failure.class);
    status.attempted = Some(at);
    status.failure = outcome.err().cloned();
    match (before, outcome) {
        (before, Err(failure)) if before == Some(failure.class) => Change::StillFails,
        (_, Err(_)) => Change::Fails,
        (before, Ok(())) => {
            status.succeeded = Some(at);
            if before.is_some() { Change::Recovers } else { Change::Answers }
        }
    }
}

/// Takes a lock; nothing that panics runs under these locks, so what they guard is sound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_loud_when_its_class_changes_and_quiet_while_it_lasts() {
        let entry = Entry::default();
        let at = Timestamp::UNIX_EPOCH;
        let refused = Failure::new(ScrapeFailure::Refused, "refused");
        let status = Failure::new(ScrapeFailure::Status, "500");
        let other_status = Failure::new(ScrapeFailure::Status, "503");
        let outcomes = [
            (Ok(()), Change::Answers),
            (Err(&refused), Change::Fails),
            (Err(&refused), Change::StillFails),
            (Err(&status), Change::Fails),
            (Err(&other_status), Change::StillFails),
            (Ok(()), Change::Recovers),
            (Ok(()), Change::Answers),
            (Err(&status), Change::Fails),
        ];
        for (number, (outcome, want)) in outcomes.into_iter().enumerate() {
            assert_eq!(record(&entry, at, outcome), want, "attempt {number}");
        }
    }

    #[test]
    fn the_status_keeps_the_last_error_and_the_last_success() {
        let board = Board::default();
        let entry = board.add(crate::collect::scrape::tests::replica("a"), "http://a".to_owned());
        let (first, second) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(1).unwrap());
        record(&entry, first, Ok(()));
        let failure = Failure::new(ScrapeFailure::Timeout, "no answer within 1s");
        record(&entry, second, Err(&failure));
        let want = Status {
            url: "http://a".to_owned(),
            attempted: Some(second),
            succeeded: Some(first),
            failure: Some(failure),
        };
        assert_eq!(board.snapshot().into_values().collect::<Vec<_>>(), [want]);
    }

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        let failure = Failure::new(ScrapeFailure::Malformed, &"é".repeat(500));
        assert_eq!(failure.detail, format!("{}...", "é".repeat(150)));
    }
}
