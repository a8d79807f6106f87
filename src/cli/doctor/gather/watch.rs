//! The variants of a cluster, by the watches of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::doctor::evidence::Gathered;
use crate::cli::doctor::gather::api::ApiReader;
use crate::cli::doctor::permission::{AccessPurpose, Permission, namespaces, targets};
use plimsoll_core::observe::{Scale, WhyScaleUnknown};
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::collect::cluster::{self, ClusterNeeds, ClusterState, WatchTiming};

/// The requests at a time.
pub(super) const AT_A_TIME: usize = 8;

/// A large cluster lists its objects within seconds.
const TIMEOUT: Duration = Duration::from_secs(20);

/// After this time without a change, the variants whose state is not known stay so.
const QUIET: Duration = Duration::from_secs(3);

/// Returns the kinds that this user cannot list, by namespace.
pub(super) async fn hidden(
    reader: &ApiReader,
    needs: &ClusterNeeds,
) -> BTreeMap<String, Vec<String>> {
    let asking = lists(needs).into_iter().map(|wanted| async move {
        let is_hidden = !matches!(reader.may_i(&wanted).await, Ok(true));
        is_hidden.then_some(wanted)
    });
    let asked: Vec<Option<Permission>> = stream::iter(asking).buffered(AT_A_TIME).collect().await;

    let mut hidden: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Permission { namespace, resource, .. } in asked.into_iter().flatten() {
        hidden.entry(namespace).or_default().push(resource);
    }
    hidden
}

/// The lists from which the state of variants follows.
fn lists(needs: &ClusterNeeds) -> Vec<Permission> {
    let mut lists = Vec::new();
    for namespace in namespaces(needs) {
        let usual = [
            ("", "pods"),
            ("autoscaling", "horizontalpodautoscalers"),
            ("keda.sh", "scaledobjects"),
        ];
        let usual = usual.map(|(group, resource)| (group.to_owned(), resource.to_owned()));
        for (group, resource) in usual.into_iter().chain(targets(needs, &namespace)) {
            lists.push(Permission {
                purpose: AccessPurpose::Watch,
                verb: "list",
                group,
                resource,
                subresource: "",
                namespace: namespace.clone(),
                name: String::new(),
            });
        }
    }
    lists
}

/// Watches the variants until all of them are known, or for some time.
pub(super) async fn state(reader: &ApiReader, needs: ClusterNeeds) -> Gathered<ClusterState> {
    let (sender, needed) = watch::channel(Arc::new(needs));
    let tracker = TaskTracker::new();
    let stop = CancellationToken::new();
    let pace = WatchTiming { retry_max: Duration::from_secs(1), ..WatchTiming::default() };
    let mut seen =
        cluster::watch(reader.client(), needed, pace, Clock::start(), &tracker, stop.clone());

    let waiting = async {
        while !is_whole(&seen.borrow_and_update()) {
            let has_news = tokio::time::timeout(QUIET, settles(&mut seen)).await == Ok(true);
            // The watches have ended, or the missing states stay unknown.
            if !has_news && seen.borrow().discovery.complete {
                return;
            }
        }
    };
    let _late = tokio::time::timeout(TIMEOUT, waiting).await;
    let state = ClusterState::clone(&seen.borrow());
    stop.cancel();
    drop(sender);

    if state.discovery.complete {
        Gathered::Read(state)
    } else {
        let seconds = TIMEOUT.as_secs();
        Gathered::Unread(format!("the API server did not list all scalers within {seconds} s"))
    }
}

/// Waits until the state is another one, apart from its age. Returns false if it has ended.
async fn settles(seen: &mut watch::Receiver<Arc<ClusterState>>) -> bool {
    let before = facts(&seen.borrow());
    while seen.changed().await.is_ok() {
        if facts(&seen.borrow_and_update()) != before {
            return true;
        }
    }

    false
}

fn facts(state: &ClusterState) -> (bool, Vec<Scale>) {
    let scales = state.variants.values().map(|variant| variant.scale.clone());
    (state.discovery.complete, scales.collect())
}

fn is_whole(state: &ClusterState) -> bool {
    let listed = |scale: &Scale| !matches!(scale, Scale::Unknown(WhyScaleUnknown::NotListed));
    state.discovery.complete && state.variants.values().all(|variant| listed(&variant.scale))
}
