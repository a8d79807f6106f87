//! One `ConfigMap`, watched, with when it reached us.

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
use crate::collect::cluster::follow::{Change, Pace, follow};
use crate::collect::cluster::registration::{log_broken, named};

/// How long a watch that is whole again may deliver what it has missed.
const CATCHING_UP: Duration = Duration::from_secs(2);

/// A `ConfigMap` as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The object.
    pub object: Arc<ConfigMap>,
    /// When it was seen, on the monotonic clock.
    pub elapsed: Duration,
    /// When it was seen, on the wall clock.
    pub now: Timestamp,
    /// Whether the watch was sound when it was written, so that it came at once.
    pub prompt: bool,
}

/// Watches a `ConfigMap` until `stop`; `None` until it is seen. What was last seen stays while the
/// watch is broken, and when the object is deleted.
pub fn document(
    client: Client,
    (namespace, name): (&str, &str),
    pace: Pace,
    clock: Clock,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Option<Sighting>> {
    let (sender, receiver) = watch::channel(None);
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let (selection, shown) = (named(name), name.to_owned());
    // What comes before the watch is sound again may have been written any time before.
    let mut sound_from = None;
    let tell = move |change| {
        let (elapsed, now) = (clock.elapsed(), clock.now());
        let seen = match change {
            Change::Synced(objects) => {
                sound_from = None;
                objects.into_values().next().map(|object| (object, false))
            }
            Change::Applied(_, object) => {
                Some((object, sound_from.is_some_and(|from| elapsed >= from)))
            }
            Change::Alive => {
                sound_from.get_or_insert(elapsed + CATCHING_UP);
                None
            }
            Change::Broken(failure) => {
                sound_from = None;
                log_broken(&shown, &failure);
                None
            }
            // To resume takes a moment, in which little is missed, and that is delivered next.
            Change::Deleted(_) | Change::Resuming => None,
        };
        if let Some((object, prompt)) = seen {
            sender.send_replace(Some(Sighting { object, elapsed, now, prompt }));
        }
        std::future::ready(())
    };
    let facts = |object: ConfigMap| Some(Arc::new(object));
    let task = async move {
        stop.run_until_cancelled(follow(api, selection, pace, facts, tell)).await;
    };
    tracker.spawn(task.instrument(info_span!("document")));
    receiver
}
