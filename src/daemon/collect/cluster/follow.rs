//! One watch, followed forever: list, watch, resume, start over.
//!
//! `kube::runtime::watcher` does the same, but does not report when a broken watch recovers, or when
//! an idle one is alive. Both determine how far a listing can be trusted, so this module reports
//! them. Every state change of the watch is a [`WatchChange`].
//!
//! An idle watch sends nothing for minutes. Its connection notices its own death, and the watch
//! fails with it: see [`crate::collect::cluster::LinkTiming`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// Objects per page of a list. This bounds the memory that the API server and Plimsoll need at
/// once.
const PAGE: u32 = 500;

/// Objects per page at most. Pages grow if the API server forgets a list before its last page.
const PAGE_MAX: u32 = 8_000;

/// The longest delay that the API server may ask for.
const PAUSE_MAX: Duration = Duration::from_mins(5);

/// Consecutive refusals that are treated as temporary, once the API server has granted the same
/// request. After a start, an API server does not know its own rules yet and refuses all clients
/// for some seconds. It may also lack kinds that it had before. With the default delays, these
/// refusals span about ten seconds.
pub(crate) const REFUSALS_IN_PASSING: u32 = 6;

/// Runs a task until `stop` or until its guard is dropped.
pub(crate) fn guarded(
    tracker: &TaskTracker,
    stop: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) -> DropGuard {
    let token = stop.child_token();
    let guard = token.clone().drop_guard();
    let guarded = async move {
        token.run_until_cancelled(task).await;
    };
    tracker.spawn(guarded.in_current_span());
    guard
}

/// The timing of watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchTiming {
    /// The shortest duration of one watch request. The API server ends it, and the next one resumes
    /// from there. Each takes a random time up to twice as long, so that watches that started
    /// together do not end together.
    pub window: Duration,
    /// Time after which a request without an answer is abandoned, and a watch that the API server
    /// does not end.
    pub grace: Duration,
    /// The first delay after a failure; it doubles up to `retry_max`.
    pub retry_min: Duration,
    /// The longest delay after a failure.
    pub retry_max: Duration,
    /// Interval at which an unchanged state is published, to confirm that it is still true.
    pub heartbeat: Duration,
}

impl Default for WatchTiming {
    /// Watches last as long as those of Kubernetes' own controllers.
    fn default() -> Self {
        Self {
            window: Duration::from_mins(5),
            grace: Duration::from_secs(30),
            retry_min: Duration::from_millis(500),
            retry_max: Duration::from_secs(20),
            heartbeat: Duration::from_secs(1),
        }
    }
}

impl WatchTiming {
    /// Chooses the duration of a watch request.
    fn choose_window(&self) -> Duration {
        self.window.mul_f64(rand::random_range(1.0..=2.0))
    }

    /// The longest time for which a healthy watch reports nothing.
    pub(crate) fn quiet(&self) -> Duration {
        self.window * 2 + self.grace
    }
}

/// The selection of objects to watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) fields: Option<String>,
}

/// The name of an object within a watch. Objects in one namespace are adjacent in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    /// Empty for an object that is in no namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A report from a watch. Objects are identified by their names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchChange<T> {
    /// The complete set of objects.
    Synced(BTreeMap<ObjectName, T>),
    /// This object is new or has changed.
    Applied(ObjectName, T),
    /// This object was deleted.
    Deleted(ObjectName),
    /// Nothing changed, and the watch is connected.
    Alive,
    /// The watch is being resumed or started over. Until it is, the known state may be outdated.
    Resuming,
    /// The watch failed, and is being retried.
    Broken(WatchFailure),
}

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchFailure {
    /// The API server refuses.
    Forbidden(String),
    /// The resource does not exist.
    Absent(String),
    /// The API server does not respond, or its response is not usable.
    Away(String),
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestFailure {
    pub(crate) failure: WatchFailure,
    /// The delay that the API server asks for.
    pub(crate) pause: Duration,
    /// True if the API server no longer has the requested version.
    gone: bool,
}

/// The way in which a watch ended.
enum WatchEnd {
    /// The API server closed it, as it does when the window is over.
    Closed,
    /// The API server no longer has the resource version to resume from.
    Expired,
    /// The request failed.
    Failed(RequestFailure),
}

/// Growing delays, and a count of refusals, until a request succeeds.
#[derive(Debug)]
pub(crate) struct RetryDelay {
    pace: WatchTiming,
    next: Duration,
    /// Remaining refusals that are treated as temporary.
    lenient: u32,
}

// === impl ObjectName ===

impl ObjectName {
    fn of(object: &impl Resource) -> Self {
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        Self { namespace, name: object.name_any() }
    }
}

// === impl RetryDelay ===

impl RetryDelay {
    pub(crate) fn new(pace: WatchTiming) -> Self {
        Self { pace, next: pace.retry_min, lenient: 0 }
    }

    /// Classifies a failure. A refusal of a request that was granted before may be temporary, and
    /// so may the absence of its resource.
    pub(crate) fn judge(&mut self, failure: WatchFailure) -> WatchFailure {
        match failure {
            WatchFailure::Forbidden(error) | WatchFailure::Absent(error) if self.lenient > 0 => {
                self.lenient -= 1;
                WatchFailure::Away(error)
            }
            other => other,
        }
    }

    /// Waits after a failure, and not less than the API server asks for. The delays are randomized,
    /// so that a restarted API server does not get the watches of all clients at once.
    pub(crate) async fn wait(&mut self, pause: Duration) {
        let delay = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.pace.retry_max);
        sleep(pause.min(PAUSE_MAX) + delay).await;
    }

    /// Resets the delays after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.pace.retry_min;
        self.lenient = REFUSALS_IN_PASSING;
    }
}

/// Watches forever. `facts` extracts the part of an object to keep. `tell` receives every change in
/// order.
pub(crate) async fn follow<K, T, F, Tell, Told>(
    api: Api<K>,
    selection: Selection,
    pace: WatchTiming,
    facts: F,
    mut tell: Tell,
) where
    K: Resource + Clone + Debug + DeserializeOwned,
    F: Fn(K) -> Option<T>,
    Tell: FnMut(WatchChange<T>) -> Told,
    Told: Future<Output = ()>,
{
    let mut retry = RetryDelay::new(pace);
    let mut limit = PAGE;
    loop {
        let (objects, mut version) = match list(&api, &selection, limit, pace, &facts).await {
            Ok(listed) => listed,
            Err(RequestFailure { failure, pause, gone }) => {
                tell(WatchChange::Broken(retry.judge(failure))).await;
                if gone {
                    limit = (limit * 2).min(PAGE_MAX);
                }
                retry.wait(pause).await;
                continue;
            }
        };

        tell(WatchChange::Synced(objects)).await;
        retry.reset();
        loop {
            match watch(&api, &selection, pace, &mut version, &facts, &mut tell, &mut retry).await {
                // A watch that closes immediately, again and again, must not spin.
                WatchEnd::Closed => {
                    tell(WatchChange::Resuming).await;
                    sleep(pace.retry_min / 5).await;
                }
                WatchEnd::Expired => {
                    tell(WatchChange::Resuming).await;
                    break;
                }
                WatchEnd::Failed(RequestFailure { failure, pause, gone: _ }) => {
                    let judged = retry.judge(failure);
                    let is_absent = matches!(judged, WatchFailure::Absent(_));
                    tell(WatchChange::Broken(judged)).await;
                    retry.wait(pause).await;
                    // Its objects may have been forgotten, so only a new list is complete.
                    if is_absent {
                        break;
                    }
                }
            }
        }
    }
}

/// Lists all objects. Returns the kept parts and the resource version from which to watch. At most
/// one page of full objects is held at once, because a cluster may have more pods than fit in
/// memory.
async fn list<K, T>(
    api: &Api<K>,
    selection: &Selection,
    limit: u32,
    pace: WatchTiming,
    facts: &impl Fn(K) -> Option<T>,
) -> Result<(BTreeMap<ObjectName, T>, String), RequestFailure>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Selection { fields } = selection.clone();
    let mut params =
        ListParams { field_selector: fields, limit: Some(limit), ..ListParams::default() };

    let mut objects = BTreeMap::new();
    loop {
        let part = ask(pace, api.list(&params)).await?;
        objects.extend(part.items.into_iter().filter_map(|object| {
            let name = ObjectName::of(&object);
            facts(object).map(|facts| (name, facts))
        }));
        match part.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((objects, part.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// Runs one watch request from `version` on, and advances `version`.
async fn watch<K, T, F, Tell, Told>(
    api: &Api<K>,
    selection: &Selection,
    pace: WatchTiming,
    version: &mut String,
    facts: &F,
    tell: &mut Tell,
    retry: &mut RetryDelay,
) -> WatchEnd
where
    K: Resource + Clone + Debug + DeserializeOwned,
    F: Fn(K) -> Option<T>,
    Tell: FnMut(WatchChange<T>) -> Told,
    Told: Future<Output = ()>,
{
    let Selection { fields } = selection.clone();
    let window = pace.choose_window();
    let params = WatchParams {
        field_selector: fields,
        // The API server accepts no fractions. Only tests use a window below one second.
        timeout: Some(u32::try_from(window.as_secs()).unwrap_or(u32::MAX).max(1)),
        bookmarks: true,
        ..WatchParams::default()
    };

    // The full history is available only through a new list.
    if version.is_empty() {
        return WatchEnd::Expired;
    }

    let mut events = match ask(pace, api.watch(&params, version)).await {
        Ok(stream) => std::pin::pin!(stream),
        Err(failure) if failure.gone => return WatchEnd::Expired,
        Err(failure) => return WatchEnd::Failed(failure),
    };

    tell(WatchChange::Alive).await;
    retry.reset();
    loop {
        let change = match next(&mut events, window + pace.grace).await {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                advance(version, object.meta().resource_version.as_deref());
                let name = ObjectName::of(&object);
                match facts(object) {
                    Some(facts) => WatchChange::Applied(name, facts),
                    // As in a list, an object without facts counts as absent.
                    None => WatchChange::Deleted(name),
                }
            }
            Ok(WatchEvent::Deleted(object)) => {
                advance(version, object.meta().resource_version.as_deref());
                WatchChange::Deleted(ObjectName::of(&object))
            }
            Ok(WatchEvent::Bookmark(bookmark)) => {
                advance(version, Some(&bookmark.metadata.resource_version));
                WatchChange::Alive
            }
            Ok(WatchEvent::Error(status)) => return end(&kube::Error::Api(status)),
            Err(end) => return end,
        };
        tell(change).await;
    }
}

async fn next<K>(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
    quiet: Duration,
) -> Result<WatchEvent<K>, WatchEnd> {
    match timeout(quiet, events.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(error))) => Err(end(&error)),
        Ok(None) => Err(WatchEnd::Closed),
        Err(_) => Err(WatchEnd::Failed(RequestFailure::silent("the watch has gone silent"))),
    }
}

/// Returns the end of a watch that failed.
fn end(error: &kube::Error) -> WatchEnd {
    let failure = RequestFailure::new(error);
    if failure.gone { WatchEnd::Expired } else { WatchEnd::Failed(failure) }
}

fn advance(version: &mut String, seen: Option<&str>) {
    if let Some(seen) = seen.filter(|seen| !seen.is_empty()) {
        seen.clone_into(version);
    }
}

/// Waits for a response, but not forever: a connection may have died silently.
pub(crate) async fn ask<T>(
    pace: WatchTiming,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestFailure> {
    match timeout(pace.grace, request).await {
        Ok(answer) => answer.map_err(|error| RequestFailure::new(&error)),
        Err(_) => Err(RequestFailure::silent("the request timed out")),
    }
}

// === impl RequestFailure ===

impl RequestFailure {
    fn new(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self { failure: failure(error), pause: Duration::ZERO, gone: false };
        };

        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        Self {
            failure: failure(error),
            pause: Duration::from_secs(seconds.into()),
            gone: status.code == 410,
        }
    }

    /// The request has no object.
    pub(crate) fn absent(error: &str) -> Self {
        let failure = WatchFailure::Absent(error.to_owned());
        Self { failure, pause: Duration::ZERO, gone: false }
    }

    fn silent(error: &str) -> Self {
        let failure = WatchFailure::Away(error.to_owned());
        Self { failure, pause: Duration::ZERO, gone: false }
    }
}

/// Classifies an error.
pub(crate) fn failure(error: &kube::Error) -> WatchFailure {
    match error {
        // 401 is excluded: a starting API server returns it while it cannot check tokens yet.
        kube::Error::Api(status) if status.is_forbidden() => {
            WatchFailure::Forbidden(status.message.clone())
        }
        // For a missing API group, the API server responds with 404 in plain text.
        kube::Error::Api(status) if status.is_not_found() || status.code == 404 => {
            WatchFailure::Absent(status.message.clone())
        }
        kube::Error::Api(status) => {
            WatchFailure::Away(format!("{} {}", status.code, status.message))
        }
        kube::Error::Discovery(error) => WatchFailure::Absent(error.to_string()),
        other => WatchFailure::Away(chain(other)),
    }
}

/// Formats the error with its sources, which include causes such as "connection refused".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }

    text
}
