//! One watch, followed for ever: list, watch, resume, start over.
//!
//! `kube::runtime::watcher` does the same but keeps to itself when a broken watch is whole again
//! and when a quiet one gives a sign of life, and it takes five minutes to notice a connection
//! that died without a word. Both decide here how far a listing can be trusted, so this file
//! reports them: every change of state of the watch is a [`Change`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// Objects in one page of a list, which bounds what the API server and we hold at once.
const PAGE: u32 = 500;

/// Refusals in a row that are taken for an API server that does not know its own rules yet, once it
/// has granted the same request: after a start it refuses everybody for some seconds. With the
/// default delays these are about ten seconds.
pub(crate) const REFUSALS_IN_PASSING: u32 = 6;

/// Runs a task until `stop`, and for as long as its guard is kept.
pub(crate) fn guarded(
    tracker: &TaskTracker,
    stop: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) -> DropGuard {
    let token = stop.child_token();
    let guard = token.clone().drop_guard();
    let task = async move {
        token.run_until_cancelled(task).await;
    };
    tracker.spawn(task.in_current_span());
    guard
}

/// How the cluster is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long one watch request lasts. The API server ends it, and it is resumed where it ended.
    /// So this, with `grace`, is how long a connection that died silently goes unnoticed.
    pub window: Duration,
    /// How much longer than the window a watch may be silent, or a list take, before it is given up.
    pub grace: Duration,
    /// The first delay after a failure; it doubles up to `retry_max`.
    pub retry_min: Duration,
    /// The longest delay after a failure.
    pub retry_max: Duration,
    /// How often the state is published though nothing changed, to say that it is still true.
    pub heartbeat: Duration,
}

impl Default for Pace {
    /// Half a minute bounds the unnoticed silence at two requests a minute and watch.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            retry_min: Duration::from_millis(500),
            retry_max: Duration::from_secs(20),
            heartbeat: Duration::from_secs(1),
        }
    }
}

/// Which objects are watched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
}

/// Which object of a watch. Those of one namespace are beside each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    /// Empty for an object that is in no namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// What a watch says. Objects go by their names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change<T> {
    /// These are all the objects.
    Synced(BTreeMap<ObjectName, T>),
    /// This object is new or different.
    Applied(ObjectName, T),
    /// This object is gone.
    Deleted(ObjectName),
    /// Nothing changed, and the watch is connected.
    Alive,
    /// The watch is being resumed or started over; what is known may be behind until it is.
    Resuming,
    /// The watch failed, and is tried again.
    Broken(Failure),
}

/// Why a request gives nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The API server refuses.
    Forbidden(String),
    /// There is no such resource.
    Absent(String),
    /// The API server does not answer, or not sensibly.
    Away(String),
}

/// How a watch ended.
enum End {
    /// The API server closed it, as it does when the window is over.
    Closed,
    /// The API server no longer knows our place.
    Expired,
    /// Something failed.
    Failed(Failure),
}

/// Delays that grow, and refusals that are counted, until something succeeds.
#[derive(Debug)]
pub(crate) struct Retry {
    pace: Pace,
    next: Duration,
    /// How many more refusals are in passing.
    lenient: u32,
}

// === impl ObjectName ===

impl ObjectName {
    fn of(object: &impl Resource) -> Self {
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        Self { namespace, name: object.name_any() }
    }
}

// === impl Retry ===

impl Retry {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, next: pace.retry_min, lenient: 0 }
    }

    /// What a failure means: a refusal of what was granted before may be in passing.
    pub(crate) fn judge(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Forbidden(error) if self.lenient > 0 => {
                self.lenient -= 1;
                Failure::Away(error)
            }
            other => other,
        }
    }

    /// Waits after a failure. The delays are spread, so that a restarted API server does not get
    /// every watch of every client at once.
    pub(crate) async fn wait(&mut self) {
        let delay = self.next.mul_f64(rand::random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.pace.retry_max);
        sleep(delay).await;
    }

    /// Something has succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = self.pace.retry_min;
        self.lenient = REFUSALS_IN_PASSING;
    }
}

/// Watches for ever. `facts` takes from an object what is kept of it; `tell` gets every change in
/// order.
pub(crate) async fn follow<K, T, F, Tell, Told>(
    api: Api<K>,
    selection: Selection,
    pace: Pace,
    facts: F,
    mut tell: Tell,
) where
    K: Resource + Clone + Debug + DeserializeOwned,
    F: Fn(K) -> Option<T>,
    Tell: FnMut(Change<T>) -> Told,
    Told: Future<Output = ()>,
{
    let mut retry = Retry::new(pace);
    loop {
        let (objects, mut version) = match list(&api, &selection, pace, &facts).await {
            Ok(listed) => listed,
            Err(failure) => {
                tell(Change::Broken(retry.judge(failure))).await;
                retry.wait().await;
                continue;
            }
        };
        tell(Change::Synced(objects)).await;
        retry.reset();
        loop {
            match watch(&api, &selection, pace, &mut version, &facts, &mut tell, &mut retry).await {
                // A watch that is closed at once, again and again, must not spin.
                End::Closed => {
                    tell(Change::Resuming).await;
                    sleep(pace.retry_min / 5).await;
                }
                End::Expired => {
                    tell(Change::Resuming).await;
                    break;
                }
                End::Failed(failure) => {
                    tell(Change::Broken(retry.judge(failure))).await;
                    retry.wait().await;
                }
            }
        }
    }
}

/// What is kept of all objects, and the resource version from which to watch. No more than a page
/// of the objects themselves is held at once: a cluster may have more pods than fit in memory.
async fn list<K, T>(
    api: &Api<K>,
    selection: &Selection,
    pace: Pace,
    facts: &impl Fn(K) -> Option<T>,
) -> Result<(BTreeMap<ObjectName, T>, String), Failure>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Selection { labels, fields } = selection.clone();
    let mut params = ListParams {
        label_selector: labels,
        field_selector: fields,
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let mut objects = BTreeMap::new();
    loop {
        let part = answer(pace, api.list(&params)).await?;
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

/// One watch request, from `version` on, which it moves along.
async fn watch<K, T, F, Tell, Told>(
    api: &Api<K>,
    selection: &Selection,
    pace: Pace,
    version: &mut String,
    facts: &F,
    tell: &mut Tell,
    retry: &mut Retry,
) -> End
where
    K: Resource + Clone + Debug + DeserializeOwned,
    F: Fn(K) -> Option<T>,
    Tell: FnMut(Change<T>) -> Told,
    Told: Future<Output = ()>,
{
    let Selection { labels, fields } = selection.clone();
    let params = WatchParams {
        label_selector: labels,
        field_selector: fields,
        // The API server takes no fractions; a window below a second is for tests.
        timeout: Some(u32::try_from(pace.window.as_secs()).unwrap_or(u32::MAX).max(1)),
        bookmarks: true,
        ..WatchParams::default()
    };
    // The whole history may be asked for only by listing again.
    if version.is_empty() {
        return End::Expired;
    }
    let mut events = match timeout(pace.window + pace.grace, api.watch(&params, version)).await {
        Ok(Ok(events)) => std::pin::pin!(events),
        Ok(Err(kube::Error::Api(status))) if is_gone(&status) => return End::Expired,
        Ok(Err(error)) => return End::Failed(failure(&error)),
        Err(_) => return End::Failed(Failure::Away("the watch was not answered in time".into())),
    };
    tell(Change::Alive).await;
    retry.reset();
    loop {
        let change = match next(&mut events, pace).await {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                advance(version, object.meta().resource_version.as_deref());
                let name = ObjectName::of(&object);
                facts(object).map_or(Change::Alive, |facts| Change::Applied(name, facts))
            }
            Ok(WatchEvent::Deleted(object)) => {
                advance(version, object.meta().resource_version.as_deref());
                Change::Deleted(ObjectName::of(&object))
            }
            Ok(WatchEvent::Bookmark(bookmark)) => {
                advance(version, Some(&bookmark.metadata.resource_version));
                Change::Alive
            }
            Ok(WatchEvent::Error(status)) if is_gone(&status) => return End::Expired,
            Ok(WatchEvent::Error(status)) => {
                return End::Failed(failure(&kube::Error::Api(status)));
            }
            Err(end) => return end,
        };
        tell(change).await;
    }
}

async fn next<K>(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin),
    pace: Pace,
) -> Result<WatchEvent<K>, End> {
    match timeout(pace.window + pace.grace, events.next()).await {
        Ok(Some(Ok(event))) => Ok(event),
        Ok(Some(Err(kube::Error::Api(status)))) if is_gone(&status) => Err(End::Expired),
        Ok(Some(Err(error))) => Err(End::Failed(failure(&error))),
        Ok(None) => Err(End::Closed),
        Err(_) => Err(End::Failed(Failure::Away("the watch has gone silent".into()))),
    }
}

fn advance(version: &mut String, seen: Option<&str>) {
    if let Some(seen) = seen.filter(|seen| !seen.is_empty()) {
        seen.clone_into(version);
    }
}

fn is_gone(status: &Status) -> bool {
    status.code == 410
}

/// Waits for an answer, but not for ever: a connection may be dead without a word.
pub(crate) async fn answer<T>(
    pace: Pace,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match timeout(pace.window + pace.grace, request).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(Failure::Away("there was no answer in time".to_owned())),
    }
}

/// What an error means for what we know.
pub(crate) fn failure(error: &kube::Error) -> Failure {
    match error {
        // Not 401: an API server that starts cannot check tokens yet, and says so in that way.
        kube::Error::Api(status) if status.is_forbidden() => {
            Failure::Forbidden(status.message.clone())
        }
        // Of a whole group that it does not have an API server says so in plain text.
        kube::Error::Api(status) if status.is_not_found() || status.code == 404 => {
            Failure::Absent(status.message.clone())
        }
        kube::Error::Api(status) => Failure::Away(format!("{} {}", status.code, status.message)),
        kube::Error::Discovery(error) => Failure::Absent(error.to_string()),
        other => Failure::Away(chain(other)),
    }
}

/// The error with its sources, which is where "connection refused" is found.
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
