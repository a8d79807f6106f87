//! A watch of one `ConfigMap`, with the time at which each version arrived.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, info_span};

use crate::clock::Clock;
use crate::collect::cluster::follow::{WatchChange, WatchTiming, follow};
use crate::collect::cluster::registration::{log_broken, named};

/// Time for which a recovered watch may deliver changes that it missed.
const CATCHING_UP: Duration = Duration::from_secs(2);

/// The last seen version of a `ConfigMap`.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentVersion {
    /// The object.
    pub object: Arc<ConfigMap>,
    /// The time at which it was seen, on the monotonic clock.
    pub elapsed: Duration,
    /// The time at which it was seen, on the wall clock.
    pub now: Timestamp,
    /// True if the watch was healthy when the object was written, so that it arrived immediately.
    pub prompt: bool,
}

/// Watches a `ConfigMap` until `stop`; `None` until it is seen. The last seen version is kept while
/// the watch is broken and when the object is deleted.
pub fn document(
    client: Client,
    namespace: &str,
    name: &str,
    pace: WatchTiming,
    clock: Clock,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<DocumentVersion>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let selection = named(name);
    let mut lookout = DocumentWatcher { name: name.to_owned(), clock, sender, sound_from: None };
    let following = follow(
        api,
        selection,
        pace,
        |object: ConfigMap| Some(Arc::new(object)),
        move |change| {
            lookout.hear(change);
            std::future::ready(())
        },
    );

    let task = async move {
        stop.run_until_cancelled(following).await;
    };
    tracker.spawn(task.instrument(info_span!("document")));
    receiver
}

/// Publishes the sightings of a `ConfigMap`.
struct DocumentWatcher {
    name: String,
    clock: Clock,
    sender: watch::Sender<Option<DocumentVersion>>,
    /// Absent until the watch is healthy. Before, an object may have been written at any earlier
    /// time.
    sound_from: Option<Duration>,
}

impl DocumentWatcher {
    fn hear(&mut self, change: WatchChange<Arc<ConfigMap>>) {
        let elapsed = self.clock.elapsed();
        let now = self.clock.now();
        let seen = match change {
            WatchChange::Synced(objects) => {
                self.sound_from = None;
                objects.into_values().next().map(|object| (object, false))
            }
            WatchChange::Applied(_, object) => {
                Some((object, self.sound_from.is_some_and(|from| elapsed >= from)))
            }
            WatchChange::Alive => {
                self.sound_from.get_or_insert(elapsed + CATCHING_UP);
                None
            }
            WatchChange::Broken(failure) => {
                self.sound_from = None;
                log_broken(&self.name, &failure);
                None
            }
            // Resuming takes a moment. Few changes are missed in it, and they are delivered next.
            WatchChange::Deleted(_) | WatchChange::Resuming => None,
        };

        if let Some((object, prompt)) = seen {
            self.sender.send_replace(Some(DocumentVersion { object, elapsed, now, prompt }));
        }
    }
}
