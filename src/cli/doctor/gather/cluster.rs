//! A cluster: Plimsoll's own objects, the variants, and permissions.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;

use crate::cli::doctor::evidence::{ClusterEvidence, EndpointCounts, Gathered, PathAnswer};
use crate::cli::doctor::gather::api::{ApiReader, get, list};
use crate::cli::doctor::gather::watch::{self, AT_A_TIME};
use crate::cli::doctor::permission::{
    AccessPurpose, Permission, ReleaseNames, permissions, registration_name, some_of_each,
};
use plimsoll_core::fleet::VariantKey;
use plimsoll_daemon::collect::cluster::{API_SERVICE, ClusterState};
use plimsoll_daemon::config::Config;
use plimsoll_daemon::daemon::needs;
use plimsoll_daemon::publish::external_metrics::route::{GROUP, VERSION};

/// The user that the HPA controller is.
const CONTROLLER: &str = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";

/// The variants whose numbers are read through the API server.
const NUMBERS_MAX: usize = 200;

/// The permissions that are asked about.
const PERMISSIONS_MAX: usize = 1_000;

/// Gathers everything of a cluster.
pub(super) async fn gather(
    reader: &ApiReader,
    names: ReleaseNames,
    config: &Config,
) -> ClusterEvidence {
    let version = reader.version().await;
    if let Err(reason) = &version {
        return ClusterEvidence::unread(names, reason);
    }

    let needed = needs::of(config);
    let registered = config.keys.external_metrics.as_ref().map(registration_name);
    let registered = registered.unwrap_or(API_SERVICE);
    let api_services: Api<APIService> = Api::all(reader.client());
    let election = config.keys.kubernetes.leader_election();
    let (registration, hidden, state, permissions) = tokio::join!(
        get(&api_services, registered),
        watch::hidden(reader, &needed),
        watch::state(reader, needed.clone()),
        permitted(reader, config, &names),
    );
    let numbers = numbers(reader, &state).await;
    let (service, endpoints) = service(reader, &registration).await;
    let path = format!("/apis/{}", group_version(registered));

    let own = names.namespace.as_str();
    let client = || reader.client();
    let lease_of = election.map_or(own, |it| it.namespace.as_deref().unwrap_or(own));
    let lease = election.map_or("plimsoll", |it| it.name.as_str());
    let document = format!("{lease}-decisions");
    let everything = ListParams::default();
    let objects = scaled_objects(reader);
    let schemas = Api::all(client());
    let spaces = Api::all(client());
    let deployments = Api::namespaced(client(), own);
    let leases = Api::namespaced(client(), lease_of);
    let (trust, path, flow_schemas, scaled_objects, namespaces, deployment, lease, document) = tokio::join!(
        reader.config_map("kube-system", "extension-apiserver-authentication"),
        reader.path(&path),
        list(&schemas, &everything),
        list(&objects, &everything),
        list(&spaces, &everything),
        get(&deployments, &names.name),
        get(&leases, lease),
        reader.config_map(lease_of, &document),
    );

    ClusterEvidence {
        names: names.clone(),
        api_server: version.into(),
        registration: registration.into(),
        service,
        endpoints,
        trust: trust.map(|found| found.map(|object| object.data.unwrap_or_default())).into(),
        path: path.into(),
        numbers,
        permissions,
        flow_schemas,
        state,
        hidden,
        scaled_objects,
        namespaces,
        deployment: deployment.into(),
        lease: lease.into(),
        document: document.into(),
    }
}

/// The group and the version of a registration, such as `external.metrics.k8s.io/v1beta1`.
fn group_version(registration: &str) -> String {
    let (version, group) = registration.split_once('.').unwrap_or((VERSION, GROUP));
    format!("{group}/{version}")
}

fn scaled_objects(reader: &ApiReader) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "keda.sh".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "keda.sh/v1alpha1".to_owned(),
        kind: "ScaledObject".to_owned(),
        plural: "scaledobjects".to_owned(),
    };
    Api::all_with(reader.client(), &kind)
}

/// Reads the Service of a registration, and counts its endpoints.
async fn service(
    reader: &ApiReader,
    registration: &Result<Option<APIService>, String>,
) -> (Gathered<Option<Service>>, Gathered<EndpointCounts>) {
    let object = match registration {
        Ok(Some(object)) => object,
        Ok(None) => {
            let absent = || "no Service is registered".to_owned();
            return (Gathered::Absent(absent()), Gathered::Absent(absent()));
        }
        Err(reason) => {
            return (Gathered::Unread(reason.clone()), Gathered::Unread(reason.clone()));
        }
    };

    let named = object.spec.as_ref().and_then(|spec| spec.service.clone()).unwrap_or_default();
    let namespace = named.namespace.unwrap_or_default();
    let name = named.name.unwrap_or_default();
    if name.is_empty() {
        let itself = || "the API server itself serves the group".to_owned();
        return (Gathered::Absent(itself()), Gathered::Absent(itself()));
    }

    let slices: Api<EndpointSlice> = Api::namespaced(reader.client(), &namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    let services = Api::namespaced(reader.client(), &namespace);
    let (service, slices) = tokio::join!(get(&services, &name), list(&slices, &of_service));
    let counts = match slices {
        Gathered::Read(slices) => Gathered::Read(count(&slices)),
        Gathered::Unread(reason) => Gathered::Unread(reason),
        Gathered::Absent(reason) => Gathered::Absent(reason),
    };
    (service.into(), counts)
}

fn count(slices: &[EndpointSlice]) -> EndpointCounts {
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let mut counts = EndpointCounts { all: 0, ready: 0 };
    for endpoint in endpoints {
        let addresses = endpoint.addresses.len();
        let is_ready = endpoint.conditions.as_ref().and_then(|it| it.ready).unwrap_or(true);
        counts.all += addresses;
        counts.ready += if is_ready { addresses } else { 0 };
    }
    counts
}

/// Asks for the number of each variant, as the HPA controller does.
async fn numbers(
    reader: &ApiReader,
    state: &Gathered<ClusterState>,
) -> BTreeMap<VariantKey, Gathered<PathAnswer>> {
    let Gathered::Read(state) = state else { return BTreeMap::new() };
    let asking = state.variants.keys().take(NUMBERS_MAX).map(|key| async move {
        let VariantKey { namespace, variant } = key;
        let path = format!(
            "/apis/{GROUP}/{VERSION}/namespaces/{namespace}/plimsoll_desired_replicas\
             ?labelSelector=variant%3D{variant}"
        );
        (key.clone(), reader.path(&path).await.into())
    });
    stream::iter(asking).buffer_unordered(AT_A_TIME).collect().await
}

/// Asks which permissions the daemon and the HPA controller have.
async fn permitted(
    reader: &ApiReader,
    config: &Config,
    names: &ReleaseNames,
) -> BTreeMap<Permission, Gathered<bool>> {
    let ReleaseNames { namespace, account, .. } = names;
    let daemon = format!("system:serviceaccount:{namespace}:{account}");
    let daemon = daemon.as_str();
    let wanted = some_of_each(permissions(config, names), PERMISSIONS_MAX);
    let asking = wanted.into_iter().map(|permission| async move {
        let is_controller = permission.purpose == AccessPurpose::Controller;
        let user = if is_controller { CONTROLLER } else { daemon };
        let answer = reader.may(user, &permission).await.into();
        (permission, answer)
    });
    stream::iter(asking).buffer_unordered(AT_A_TIME).collect().await
}
