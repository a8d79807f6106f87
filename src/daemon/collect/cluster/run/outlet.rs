//! The reports of the watches to the watch loop, and the tasks of the watches that need more than
//! one step.

use std::fmt::Debug;
use std::sync::Arc;

use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersion};
use kube::{Client, Resource, discovery};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::collect::cluster::config_maps::Texts;
use crate::collect::cluster::discovery::scope::NamespaceFacts;
use crate::collect::cluster::follow::{
    RequestFailure, RetryDelay, Selection, WatchChange, WatchTiming, ask, follow,
};
use crate::collect::cluster::hpa::HpaFacts;
use crate::collect::cluster::keda::{self, ScaledObject};
use crate::collect::cluster::keys::{TargetKey, WatchKey, WatchScope};
use crate::collect::cluster::scale::ScaleAnswer;
use crate::collect::cluster::seldon::{self, ModelFacts};
use crate::collect::cluster::world::TargetObject;
use crate::collect::cluster::world::pods::LabelledPod;

/// A report from a task.
pub(crate) enum ClusterReport {
    /// A remark from the watch with this key and serial number.
    Watch(WatchKey, u64, Box<WatchRemark>),
    /// The scale subresource of a target, read for this version of the object.
    Scale(TargetKey, String, ScaleAnswer),
}

/// A remark from a watch.
pub(crate) enum WatchRemark {
    /// The API server's resource for the kind.
    Kind(ApiResource),
    Target(WatchChange<TargetObject>),
    Hpa(WatchChange<HpaFacts>),
    ScaledObject(WatchChange<ScaledObject>),
    Model(WatchChange<ModelFacts>),
    Pod(WatchChange<LabelledPod>),
    Namespace(WatchChange<NamespaceFacts>),
    ConfigMap(WatchChange<Arc<Texts>>),
}

/// The reporting channel of a watch.
pub(crate) struct WatchOutlet {
    pub(crate) key: WatchKey,
    pub(crate) number: u64,
    pub(crate) pace: WatchTiming,
    pub(crate) reports: mpsc::Sender<ClusterReport>,
}

// === impl WatchOutlet ===

impl WatchOutlet {
    async fn tell(&self, remark: WatchRemark) {
        let report = ClusterReport::Watch(self.key.clone(), self.number, Box::new(remark));
        send(&self.reports, report).await;
    }

    /// Watches forever.
    pub(crate) async fn follow<K, T>(
        self,
        api: Api<K>,
        selection: Selection,
        facts: impl Fn(K) -> Option<T>,
        remark: fn(WatchChange<T>) -> WatchRemark,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        follow(api, selection, self.pace, facts, |change| self.tell(remark(change))).await;
    }

    /// Resolves the resource of an API version and kind, retrying until it exists.
    async fn await_kind<T>(
        &self,
        client: &Client,
        api_version: &str,
        kind: &str,
        remark: fn(WatchChange<T>) -> WatchRemark,
    ) -> ApiResource {
        let mut retry = RetryDelay::new(self.pace);

        loop {
            match discover(client, self.pace, api_version, kind).await {
                Ok(resource) => return resource,
                Err(RequestFailure { failure, pause, .. }) => {
                    self.tell(remark(WatchChange::Broken(failure))).await;
                    retry.wait(pause).await;
                }
            }
        }
    }
}

/// Watches the objects of a kind for their existence, their versions and their pod templates.
pub(crate) async fn watch_targets(client: Client, outlet: WatchOutlet) {
    let WatchKey::Targets { scope, api_version, kind } = outlet.key.clone() else { return };
    let resource = outlet.await_kind(&client, &api_version, &kind, WatchRemark::Target).await;
    let api = within(client, &scope, &resource);
    outlet.tell(WatchRemark::Kind(resource)).await;
    let all = Selection::default();
    outlet
        .follow(api, all, |it| TargetObject::new(&api_version, &kind, it), WatchRemark::Target)
        .await;
}

/// Watches `ScaledObject`s, once the cluster has that kind.
pub(crate) async fn watch_scaled_objects(client: Client, outlet: WatchOutlet) {
    let WatchKey::ScaledObjects(scope) = outlet.key.clone() else { return };
    let resource =
        outlet.await_kind(&client, keda::API_VERSION, keda::KIND, WatchRemark::ScaledObject).await;
    let api = within(client, &scope, &resource);
    let all = Selection::default();
    outlet.follow(api, all, |it| ScaledObject::new(&it), WatchRemark::ScaledObject).await;
}

/// Watches Seldon's `Model`s, once the cluster has that kind.
pub(crate) async fn watch_models(client: Client, outlet: WatchOutlet) {
    let WatchKey::Models(scope) = outlet.key.clone() else { return };
    let resource =
        outlet.await_kind(&client, seldon::API_VERSION, seldon::MODEL, WatchRemark::Model).await;
    let api = within(client, &scope, &resource);
    let all = Selection::default();
    outlet.follow(api, all, |it| ModelFacts::new(&it), WatchRemark::Model).await;
}

fn within(client: Client, scope: &WatchScope, resource: &ApiResource) -> Api<DynamicObject> {
    match scope {
        WatchScope::Cluster => Api::all_with(client, resource),
        WatchScope::Namespace(namespace) => {
            Api::namespaced_with(client, namespace.as_str(), resource)
        }
    }
}

/// Resolves the resource of a kind, such as `deployments` for `Deployment`.
async fn discover(
    client: &Client,
    pace: WatchTiming,
    api_version: &str,
    kind: &str,
) -> Result<ApiResource, RequestFailure> {
    let version: GroupVersion = api_version
        .parse()
        .map_err(|_| RequestFailure::absent(&format!("{api_version} is not an API version")))?;
    let qualified = version.with_kind(kind);
    ask(pace, discovery::pinned_kind(client, &qualified)).await.map(|(resource, _)| resource)
}

pub(crate) async fn send(reports: &mpsc::Sender<ClusterReport>, report: ClusterReport) {
    // The receiver is dropped only during shutdown.
    let _ = reports.send(report).await;
}
