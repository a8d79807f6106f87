//! The permissions that the daemon and the HPA controller need, by the configuration.
//!
//! The roles of the chart grant them; its `rbac.yaml` has the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use plimsoll_daemon::collect::cluster::{
    API_SERVICE, ClusterNeeds, OBJECT_API_SERVICE, WantedTarget,
};
use plimsoll_daemon::config::{Authorization, Config, ExternalMetrics};
use plimsoll_daemon::daemon::needs;
use plimsoll_daemon::publish::external_metrics::route::GROUP;

/// The names of Plimsoll's own objects, as the chart gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseNames {
    /// The namespace.
    pub namespace: String,
    /// The name of the Service, the Deployment, the `ConfigMap` and the Lease.
    pub name: String,
    /// The name of the service account.
    pub account: String,
}

/// The purpose of a permission; each has a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessPurpose {
    /// The HPA controller reads external metrics.
    Controller,
    /// The daemon watches targets, pods and scalers.
    Watch,
    /// The daemon watches its registration.
    Registration,
    /// The daemon keeps its own certificate.
    Certificate,
    /// The daemon asks whether callers may read metrics.
    Reviews,
    /// The daemon reads the front proxy's authorities.
    Trust,
    /// The daemon takes part in the leader election.
    Election,
    /// The daemon writes Events.
    Events,
    /// The daemon watches nodes and quotas.
    Limits,
}

/// One permission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// Its purpose, which also tells whose it is.
    pub purpose: AccessPurpose,
    /// The verb.
    pub verb: &'static str,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource; empty for the resource itself.
    pub subresource: &'static str,
    /// The namespace; empty for all of them, and for resources without one.
    pub namespace: String,
    /// The name of the object; empty for all objects.
    pub name: String,
}

/// The object that a permission is limited to; with an empty name, all objects.
#[derive(Clone, Copy, Debug)]
struct GrantedObject<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Creates permissions with one purpose.
struct PermissionList {
    purpose: AccessPurpose,
    all: BTreeSet<Permission>,
}

// === impl Permission ===

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { purpose: _, verb, group, resource, subresource, namespace, name } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if !subresource.is_empty() {
            write!(f, "/{subresource}")?;
        }
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if namespace.is_empty() { Ok(()) } else { write!(f, " in namespace {namespace}") }
    }
}

// === impl PermissionList ===

impl PermissionList {
    fn allow(&mut self, verbs: &[&'static str], group: &str, resource: &str, namespace: &str) {
        self.allow_of(verbs, group, resource, GrantedObject { namespace, name: "" });
    }

    /// Adds permissions for one object.
    fn allow_of(
        &mut self,
        verbs: &[&'static str],
        group: &str,
        resource: &str,
        object: GrantedObject<'_>,
    ) {
        let GrantedObject { namespace, name } = object;
        let (resource, subresource) = match resource.strip_suffix("/scale") {
            Some(scaled) => (scaled, "scale"),
            None => (resource, ""),
        };
        self.all.extend(verbs.iter().map(|verb| Permission {
            purpose: self.purpose,
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }));
    }

    fn with(&mut self, purpose: AccessPurpose) -> &mut Self {
        self.purpose = purpose;
        self
    }
}

const WATCH: [&str; 2] = ["list", "watch"];

/// The `APIService` that must lead to Plimsoll.
#[must_use]
pub const fn registration_name(served: &ExternalMetrics) -> &'static str {
    if served.object_metrics { OBJECT_API_SERVICE } else { API_SERVICE }
}

/// At most this many permissions, as evenly as possible of all purposes. Those for a namespace
/// are as many as there are namespaces.
#[must_use]
pub fn some_of_each(all: BTreeSet<Permission>, most: usize) -> Vec<Permission> {
    let mut counts = BTreeMap::new();
    let mut numbered: Vec<(usize, Permission)> = all
        .into_iter()
        .map(|permission| {
            let count = counts.entry(permission.purpose).or_insert(0);
            *count += 1;
            (*count, permission)
        })
        .collect();

    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, permission)| permission).take(most).collect()
}

/// Returns the permissions that a daemon with this configuration needs, and those of the HPA
/// controller in the namespaces of variants.
#[must_use]
pub fn permissions(config: &Config, names: &ReleaseNames) -> BTreeSet<Permission> {
    let mut list = PermissionList { purpose: AccessPurpose::Watch, all: BTreeSet::new() };
    let needs = needs::of(config);
    let served = config.keys.external_metrics.as_ref().filter(|it| it.enabled);

    if config.keys.kubernetes.enabled {
        watches(&mut list, &needs);
        limits(&mut list, &needs);
        if config.keys.kubernetes.events {
            for namespace in namespaces(&needs) {
                list.with(AccessPurpose::Events).allow(
                    &["create", "patch"],
                    "events.k8s.io",
                    "events",
                    &namespace,
                );
            }
        }
        election(&mut list, config, names);
    }
    if let Some(served) = served {
        serving(&mut list, served, names);
        for namespace in namespaces(&needs) {
            list.with(AccessPurpose::Controller).allow(
                &["list"],
                GROUP,
                "plimsoll_desired_replicas",
                &namespace,
            );
        }
    }

    list.all
}

/// The namespaces of variants; one that is empty stands for all.
#[must_use]
pub fn namespaces(needs: &ClusterNeeds) -> BTreeSet<String> {
    let mut namespaces: BTreeSet<String> = BTreeSet::new();
    for wanted in &needs.variants {
        if wanted.target != WantedTarget::Elsewhere {
            namespaces.insert(wanted.variant.namespace.to_string());
        }
    }

    match &needs.discover {
        Some(discover) if discover.namespaces.is_empty() => BTreeSet::from([String::new()]),
        Some(discover) => {
            namespaces.extend(discover.namespaces.iter().map(ToString::to_string));
            namespaces
        }
        None => namespaces,
    }
}

/// Group and resource of a kind of target, and of those that are discovered.
#[must_use]
pub fn targets(needs: &ClusterNeeds, namespace: &str) -> BTreeSet<(String, String)> {
    let mut targets = BTreeSet::new();
    for wanted in &needs.variants {
        let WantedTarget::Scale { api_version, kind, .. } = &wanted.target else { continue };
        if namespace.is_empty() || wanted.variant.namespace.as_str() == namespace {
            let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
            targets.insert((group.to_owned(), format!("{}s", kind.to_lowercase())));
        }
    }

    if needs.discover.is_some() {
        let apps = ["deployments", "statefulsets"];
        targets.extend(apps.map(|resource| ("apps".to_owned(), resource.to_owned())));
    }
    targets
}

fn watches(list: &mut PermissionList, needs: &ClusterNeeds) {
    let list = list.with(AccessPurpose::Watch);
    for namespace in namespaces(needs) {
        list.allow(&WATCH, "", "pods", &namespace);
        list.allow(&WATCH, "autoscaling", "horizontalpodautoscalers", &namespace);
        list.allow(&WATCH, "keda.sh", "scaledobjects", &namespace);
        for (group, resource) in targets(needs, &namespace) {
            list.allow(&WATCH, &group, &resource, &namespace);
            list.allow(&["get"], &group, &format!("{resource}/scale"), &namespace);
        }
        if namespace.is_empty() {
            list.allow(&WATCH, "", "namespaces", "");
        }
    }
}

fn limits(list: &mut PermissionList, needs: &ClusterNeeds) {
    let list = list.with(AccessPurpose::Limits);
    if needs.accelerators.nodes {
        list.allow(&WATCH, "", "nodes", "");
        list.allow(&WATCH, "", "pods", "");
    }
    if needs.accelerators.quotas {
        for namespace in namespaces(needs) {
            list.allow(&WATCH, "", "resourcequotas", &namespace);
        }
    }
}

fn election(list: &mut PermissionList, config: &Config, names: &ReleaseNames) {
    let Some(election) = config.keys.kubernetes.leader_election() else { return };
    let list = list.with(AccessPurpose::Election);
    let namespace = election.namespace.as_deref().unwrap_or(&names.namespace);
    let document = format!("{}-decisions", election.name);

    let leases = "coordination.k8s.io";
    list.allow(&["create"], leases, "leases", namespace);
    list.allow_of(
        &["get", "update"],
        leases,
        "leases",
        GrantedObject { namespace, name: &election.name },
    );
    list.allow(&["create"], "", "configmaps", namespace);
    let verbs = ["get", "list", "watch", "update"];
    list.allow_of(&verbs, "", "configmaps", GrantedObject { namespace, name: &document });
}

fn serving(list: &mut PermissionList, served: &ExternalMetrics, names: &ReleaseNames) {
    let trust =
        GrantedObject { namespace: "kube-system", name: "extension-apiserver-authentication" };
    let watching = ["get", "list", "watch"];
    list.with(AccessPurpose::Trust).allow_of(&watching, "", "configmaps", trust);
    if served.authorization == Authorization::SubjectAccessReview {
        let reviews = "authorization.k8s.io";
        list.with(AccessPurpose::Reviews).allow(&["create"], reviews, "subjectaccessreviews", "");
    }

    let group = "apiregistration.k8s.io";
    let registration = GrantedObject { namespace: "", name: registration_name(served) };
    let own = list.with(AccessPurpose::Registration);
    own.allow_of(&WATCH, group, "apiservices", registration);

    if let Some(own) = &served.tls.self_managed {
        let namespace = own.namespace.as_deref().unwrap_or(&names.namespace);
        let secret = GrantedObject { namespace, name: own.secret.as_str() };
        let list = list.with(AccessPurpose::Certificate);
        list.allow_of(&["get", "patch"], group, "apiservices", registration);
        list.allow_of(&["get", "update"], "", "secrets", secret);
    }
}
