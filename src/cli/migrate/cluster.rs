//! Objects of a cluster. Nothing is written, and no Secret is read.

use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::cli::args::{MigrateArgs, MigrateSource};
use crate::cli::migrate::files::OBJECTS_MAX;
use crate::cli::migrate::object::{Manifest, Origin};
use plimsoll_daemon::collect::cluster::{KubernetesClientError, client};

/// The kinds that are read: group, version, kind and resource.
const KINDS: [(&str, &str, &str, &str); 6] = [
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    ("llmd.ai", "v1alpha1", "VariantAutoscaling", "variantautoscalings"),
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
];

/// The label that the Workload Variant Autoscaler requires on its `ConfigMap`s.
const WVA_OBJECTS: &str = "app.kubernetes.io/name=workload-variant-autoscaler";

/// Objects of one answer.
const PAGE: u32 = 250;

/// An API server answers a page in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reason that a cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    /// There is no client.
    #[error(transparent)]
    Client(#[from] KubernetesClientError),
    /// The objects of a kind cannot be listed.
    #[error("cannot list the {resource} of the cluster{}", scope(namespace.as_deref()))]
    List {
        /// The resource.
        resource: &'static str,
        /// The namespace, if not all.
        namespace: Option<String>,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not answer.
    #[error("the API server did not list its {resource} within {} s", TIMEOUT.as_secs())]
    Silent {
        /// The resource.
        resource: &'static str,
    },
    /// There are too many objects.
    #[error("the cluster has more than {OBJECTS_MAX} objects; --namespace reads one namespace")]
    TooMany,
}

fn scope(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"))
}

/// Reads the scalers and workloads, and for a migration from the Workload Variant Autoscaler its
/// `ConfigMap`s. A kind that the cluster does not have is skipped.
///
/// # Errors
///
/// There is no client, the API server refuses or does not answer, or there are too many objects.
pub(super) async fn read(
    source: &MigrateSource,
    args: &MigrateArgs,
) -> Result<Vec<Manifest>, ClusterError> {
    let MigrateArgs { namespace, kubeconfig, context, .. } = args;
    let connected = client(kubeconfig.as_deref(), context.as_deref()).await?;
    let mut objects = Vec::new();

    for (group, version, kind, resource) in KINDS {
        let api = api_resource(group, version, kind, resource);
        list(&connected, &api, resource, namespace.as_deref(), None, &mut objects).await?;
    }

    if matches!(source, MigrateSource::Wva(_)) {
        // Its ConfigMaps are in its own namespace, whatever namespace is migrated.
        let api = api_resource("", "v1", "ConfigMap", "configmaps");
        list(&connected, &api, "configmaps", None, Some(WVA_OBJECTS), &mut objects).await?;
    }

    Ok(objects)
}

fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

async fn list(
    client: &Client,
    of: &ApiResource,
    resource: &'static str,
    namespace: Option<&str>,
    labels: Option<&str>,
    objects: &mut Vec<Manifest>,
) -> Result<(), ClusterError> {
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, of),
        None => Api::all_with(client.clone(), of),
    };
    let mut params = ListParams::default().limit(PAGE);
    params.label_selector = labels.map(str::to_owned);

    loop {
        let answer = tokio::time::timeout(TIMEOUT, api.list(&params)).await;
        let page = match answer.map_err(|_| ClusterError::Silent { resource })? {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(source) => {
                let place = namespace.map(str::to_owned);
                let cause = Box::new(source);

                return Err(ClusterError::List { resource, namespace: place, source: cause });
            }
        };

        for object in page.items {
            objects.extend(manifest(object, of));
        }

        if objects.len() > OBJECTS_MAX {
            return Err(ClusterError::TooMany);
        }

        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Items of a list lack their kind, which is the list's.
fn manifest(mut object: DynamicObject, of: &ApiResource) -> Option<Manifest> {
    object.metadata.managed_fields = None;
    let namespace = object.namespace().unwrap_or_default();
    let mut value = serde_json::to_value(&object).ok()?;
    let fields = value.as_object_mut()?;
    let mut whole = serde_json::Map::new();
    whole.insert("apiVersion".to_owned(), Value::String(of.api_version.clone()));
    whole.insert("kind".to_owned(), Value::String(of.kind.clone()));
    fields.retain(|key, _| key != "apiVersion" && key != "kind");
    whole.append(fields);
    Manifest::new(Value::Object(whole), Origin::Cluster, &namespace)
}
