//! The Helm chart as it is: installed by helm into a real control plane, with Plimsoll as a process
//! in the place of its pod. `tests/chart/run` starts the control plane and runs these, in order.
//!
//! The process has the configuration of the rendered `ConfigMap` and the token of the chart's
//! service account, and nothing else: what the chart does not grant, it cannot do. Only addresses
//! are set over it, because the process listens where the API server looks for the pod.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[expect(dead_code, reason = "these engines neither hang nor are they counted")]
#[path = "../engines.rs"]
mod engines;
#[path = "../live.rs"]
mod live;
#[path = "../page.rs"]
mod page;
mod release;
#[path = "../wait.rs"]
mod wait;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::release::{Handshake, Release, release};
use crate::wait::{seen_within, stays, until, within};

const HPA: &str = include_str!("../../../examples/hpa.yaml");

/// Long enough to see a renewal of each certificate, and the authority's from end to end.
const LIFETIMES: [&str; 3] =
    ["replicas=2", "tls.selfManaged.leafLifetime=1m", "tls.selfManaged.caLifetime=3m"];

#[test]
fn a_a_stock_hpa_scales_by_what_the_chart_installs() {
    let release = release();
    release.install(&[]);
    release.apply(&HPA.replace("namespace: shop", "namespace: production"));
    release.engines.load("production", 0.3);
    let daemon = release.start("first");
    release.available();
    release.engines.load("production", 2.0);
    until("3 replicas", || (release.replicas("production")? == 3).then_some(()));
    release.engines.load("production", 0.3);
    until("1 replica", || (release.replicas("production")? == 1).then_some(()));
    assert_eq!(release.handshake(&daemon), Handshake::Trusted);
}

#[test]
fn b_a_second_replica_presents_the_same_certificate_and_writes_none() {
    let release = release();
    let (one, two) = (release.start("first"), release.start("second"));
    for daemon in [&one, &two] {
        until("a handshake", || (release.handshake(daemon) == Handshake::Trusted).then_some(()));
    }
    let expiry = "plimsoll_tls_certificate_not_after_timestamp_seconds";
    assert_eq!(one.gauge(release, expiry), two.gauge(release, expiry));
    for daemon in [&one, &two] {
        assert!(daemon.changes(release, "") < 1.0, "nothing was due");
    }
}

/// Waits until the release's account may do this in a namespace, and no more. The API server reads
/// roles a moment after they are made.
fn permits(release: &Release, namespace: &str, rules: &BTreeSet<String>) {
    let mut permitted = BTreeSet::new();
    let _settled = seen_within(Duration::from_mins(1), || {
        permitted = release.permissions(namespace);
        (permitted == *rules).then_some(())
    });

    assert_eq!(permitted, *rules, "in {namespace}");
}

#[test]
fn c_the_account_may_do_what_is_listed_and_nothing_else() {
    let release = release();
    let everywhere = [
        "apiservices.apiregistration.k8s.io v1beta1.external.metrics.k8s.io [get list watch patch]",
        "subjectaccessreviews.authorization.k8s.io [create]",
    ];
    // Where variants are.
    let watched = [
        "events.events.k8s.io [create patch]",
        "scaledobjects.keda.sh [list watch]",
        "deployments.apps [list watch]",
        "deployments.apps/scale [get]",
        "horizontalpodautoscalers.autoscaling [list watch]",
        "pods [list watch]",
    ];
    let own = [
        "secrets plimsoll-certificate [get update]",
        "leases.coordination.k8s.io [create]",
        "leases.coordination.k8s.io plimsoll [get update]",
        "configmaps [create]",
        "configmaps plimsoll-decisions [get list watch update]",
    ];
    let system = ["configmaps extension-apiserver-authentication [get list watch]"];
    let rules = |more: &[&str]| -> BTreeSet<String> {
        everywhere.iter().chain(more).map(|rule| (*rule).to_owned()).collect()
    };
    let with_variants =
        |more: &[&str]| -> BTreeSet<String> { rules(&[&watched[..], more].concat()) };
    permits(release, "production", &with_variants(&[]));
    for (namespace, more) in
        [("plimsoll", &own[..]), ("kube-system", &system[..]), ("staging", &[])]
    {
        permits(release, namespace, &rules(more));
    }

    // The old leader keeps its Role until the new pod is ready.
    for more in [&[][..], &["replicas=2"]] {
        release.upgrade(&[&["leaderElection.enabled=false"][..], more].concat());
        permits(release, "plimsoll", &rules(&own));
        permits(release, "production", &with_variants(&[]));
    }

    release.upgrade(&["config.limits.nodes=true", "config.limits.quotas=true"]);
    let limits = ["nodes [list watch]", "resourcequotas [list watch]"];
    permits(release, "production", &with_variants(&limits));
    release.upgrade(&["rbac.configMaps=true"]);
    permits(release, "production", &with_variants(&["configmaps [list watch]"]));

    release.upgrade(&["config.external_metrics.authorization=trust_front_proxy"]);
    let mut trusting = with_variants(&[]);
    assert!(trusting.remove("subjectaccessreviews.authorization.k8s.io [create]"));
    permits(release, "production", &trusting);
    release.upgrade(&[]);
}

#[test]
fn d_a_restricted_account_sees_only_its_namespaces() {
    let release = release();
    release.upgrade(&["rbac.namespaces={production}"]);
    let sees = |namespace| release.permissions(namespace).contains("pods [list watch]");
    until("what it may see", || {
        let others = ["staging", "plimsoll", "kube-system"];
        (sees("production") && !others.into_iter().any(sees)).then_some(())
    });
    let daemon = release.start("first");
    release.available();
    release.engines.load("production", 1.3);
    until("2 replicas", || (release.replicas("production")? == 2).then_some(()));
    release.upgrade(&[]);
    drop(daemon);
}

#[test]
fn e_an_authority_is_replaced_and_no_call_fails() {
    let release = release();
    release.upgrade(&LIFETIMES);
    let (one, two) = (release.start("first"), release.start("second"));
    // Both find the Secret empty, and one of them is refused when it writes.
    release.forget_certificate();
    let made = || one.changes(release, "everything") + two.changes(release, "everything");
    until("a certificate", || (made() > 0.0).then_some(()));
    for daemon in [&one, &two] {
        until("a handshake", || (release.handshake(daemon) == Handshake::Trusted).then_some(()));
    }
    let since = release.available_since();
    let path =
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/production/plimsoll_desired_replicas";
    until("an answer", || release.kubectl(&["get", "--raw", path]).ok());
    let changes = |change| one.changes(release, change) + two.changes(release, change);
    let mut calls = 0;
    within(Duration::from_mins(8), "an authority that has replaced another", || {
        let answer = release.kubectl(&["get", "--raw", path]);
        assert!(answer.is_ok(), "call {calls}: {answer:?}");
        for daemon in [&one, &two] {
            assert_eq!(release.handshake(daemon), Handshake::Trusted, "call {calls}");
        }
        calls += 1;
        (changes("retirement") > 0.0).then_some(())
    });
    stays("trusted", Duration::from_secs(15), || {
        [&one, &two].iter().all(|daemon| release.handshake(daemon) == Handshake::Trusted)
    });
    assert!(changes("authority") >= 1.0 && changes("certificate") >= 1.0);
    let throughout = Some(("True".to_owned(), since));
    assert_eq!(release.availability(), throughout, "it was available throughout");
    assert!(calls > 20, "{calls} calls are too few to mean something");
}

#[test]
fn f_changes_of_other_writers_are_fixed_or_reported() {
    let release = release();
    release.upgrade(&[]);
    release.forget_certificate();
    let daemon = release.start("first");
    until("a handshake", || (release.handshake(&daemon) == Handshake::Trusted).then_some(()));
    // As KEDA's operator does.
    release.write_ca_bundle("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==");
    until("our authority", || (release.handshake(&daemon) == Handshake::Trusted).then_some(()));

    release.restart_api_server();
    until("a handshake", || (release.handshake(&daemon) == Handshake::Trusted).then_some(()));

    let secret =
        ["patch", "secret", "plimsoll-certificate", "-n", "plimsoll", "--type=merge", "-p"];
    let foreign = "{\"data\": {\"tls.key\": \"Zm9yZWlnbg==\"}}";
    release.kubectl(&[&secret[..], &[foreign]].concat()).unwrap();
    let failures = "plimsoll_tls_failures_total{operation=\"use_secret\"}";
    until("a failure", || daemon.gauge(release, failures).filter(|count| *count > 0.0));
    assert_eq!(release.handshake(&daemon), Handshake::Trusted, "the last valid one stays");
    let reason = "tls.key does not match its certificate";
    until("the reason in the log", || daemon.log().contains(reason).then_some(()));

    let before = daemon.changes(release, "everything");
    release.forget_certificate();
    until("a new certificate", || (daemon.changes(release, "everything") > before).then_some(()));
    until("a handshake", || (release.handshake(&daemon) == Handshake::Trusted).then_some(()));
}

#[test]
fn g_viewers_of_a_namespace_list_its_metrics_and_no_others() {
    let release = release();
    release.upgrade(&[]);
    let _daemon = release.start("first");
    release.available();
    release.apply(VIEWER);

    let list = |namespace: &str| {
        let user = ["--as=viewer", "get", "externalmetrics", "--no-headers", "-n", namespace];
        release.kubectl(&user)
    };
    // The roles are aggregated a moment after they are made.
    let shown = until("the list", || list("production").ok());
    assert!(shown.contains("llama"), "{shown}");
    until("a refusal", || list("staging").unwrap_err().contains("Forbidden").then_some(()));

    release.upgrade(&["externalMetrics.viewerAccess.create=false"]);
    until("no permission", || list("production").err());
    release.upgrade(&[]);
}

#[test]
fn h_reviews_have_a_priority_level_and_other_requests_keep_theirs() {
    let release = release();
    release.upgrade(&[]);
    let schema = |name: &str| {
        let path = "jsonpath={.metadata.uid}";
        release.kubectl(&["get", "flowschema", name, "-o", path]).unwrap()
    };

    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let review = r#"{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "viewer", "resourceAttributes": {"verb": "list", "resource": "pods"}}}"#;
    let priority = schema("plimsoll-access-reviews");
    // The API server reads FlowSchemas a moment after they are made.
    until("priority for reviews", || {
        (release.flow("POST", reviews, review) == priority).then_some(())
    });

    let pods = release.flow("GET", "/api/v1/namespaces/production/pods", "");
    assert_eq!(pods, schema("service-accounts"));
}

const VIEWER: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewer, namespace: production}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
";
