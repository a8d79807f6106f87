//! All checks, one row each.

mod access;
mod api_server;
mod configuration;
mod daemon;
mod fleet;
mod registration;
mod scalers;

use crate::cli::doctor::evidence::Evidence;
use crate::cli::doctor::verdict::{CheckResult, Findings, Verdict};

/// One check.
#[derive(Clone, Copy, Debug)]
pub struct DoctorCheck {
    /// Its name.
    pub name: &'static str,
    /// The statement that holds if it passes.
    pub title: &'static str,
    /// Its sources.
    pub reads: &'static str,
    /// The usual fix.
    pub fix: &'static str,
    run: fn(&Evidence) -> Findings,
}

// === impl DoctorCheck ===

impl DoctorCheck {
    /// Runs the check. Warnings and failures without a fix of their own get the usual one.
    #[must_use]
    pub fn run(&self, evidence: &Evidence) -> CheckResult {
        let Self { name, title, reads: _, fix, run } = self;
        let mut result = CheckResult::new(name, title, run(evidence));
        for symptom in &mut result.symptoms {
            let is_seen = matches!(symptom.verdict, Verdict::Warning | Verdict::Failure);
            if is_seen && symptom.fix.is_none() {
                symptom.fix = Some((*fix).to_owned());
            }
        }

        result
    }
}

macro_rules! checks {
    ($($name:literal, $title:literal, $reads:literal, $run:path, $fix:literal;)*) => {
        /// All checks, in the order of the output.
        pub const CHECKS: &[DoctorCheck] = &[
            $(DoctorCheck { name: $name, title: $title, reads: $reads, fix: $fix, run: $run },)*
        ];
    };
}

checks! {
    "configuration", "The configuration is valid", "configuration",
        configuration::valid, "Correct the listed keys, and run plimsoll check";
    "configuration-current", "The daemon runs with this configuration",
        "configuration, /api/v1/status",
        configuration::current, "curl -X POST URL/-/reload, or restart for keys that need it";
    "configuration-reload", "The daemon accepted the last change of its configuration",
        "/api/v1/status",
        configuration::reloaded, "Correct the listed keys; the last valid configuration is in effect";

    "api-server", "The API server responds", "GET /version",
        api_server::answers, "Check the kubeconfig, its context, and the network";
    "api-server-version", "The API server has a supported version", "GET /version",
        api_server::version, "Upgrade Kubernetes to 1.29 or newer";
    "clocks", "The clocks that can be read, of this machine, the API server and the daemon, agree",
        "Date of GET /version, /api/v1/status",
        api_server::clocks, "Synchronize the clocks, such as by chrony";

    "registration", "The APIService of the metrics API leads to Plimsoll", "APIService",
        registration::registered, "helm upgrade the chart; docs/two-providers.md has the choices";
    "registration-available", "The API server reaches the metrics API", "APIService",
        registration::available, "kubectl describe apiservice; docs/external-metrics.md has the messages";
    "ca-bundle", "The registration trusts a certificate authority that is valid",
        "APIService, /api/v1/status",
        registration::ca_bundle, "Let Plimsoll or cert-manager write spec.caBundle";
    "service", "The registered Service exists and has ready endpoints", "Service, EndpointSlices",
        registration::service, "kubectl get pods,endpointslices in the Service's namespace";
    "front-proxy", "The front proxy's authorities are usable",
        "ConfigMap extension-apiserver-authentication",
        registration::front_proxy, "Set --requestheader-client-ca-file of the API server";
    "front-proxy-headers", "API servers strip the headers that name users",
        "ConfigMap extension-apiserver-authentication",
        registration::headers, "Use the default names in --requestheader-*-headers";
    "metrics-path", "The metrics API responds through the API server", "GET of its discovery document",
        registration::path, "kubectl get --raw the path; docs/external-metrics.md has the messages";
    "metrics-served", "Every variant's desired replicas are served through the API server",
        "GET plimsoll_desired_replicas of each variant",
        registration::numbers, "plimsoll explain NAMESPACE/VARIANT names the missing data";
    "namespace-deletion", "No namespace waits for the metrics API to be deleted", "namespaces",
        registration::deletion, "Make the APIService available, or delete it";

    "hpa-controller-access", "The HPA controller may read the metrics", "SubjectAccessReview",
        access::controller, "Set externalMetrics.hpaControllerAccess.create of the chart to true";
    "watch-access", "The daemon may watch targets, pods and scalers", "SubjectAccessReview",
        access::watch, "Set rbac.create and rbac.namespaces of the chart";
    "registration-access", "The daemon may watch its registration", "SubjectAccessReview",
        access::registration, "Bind the ClusterRole NAME-registration of the chart";
    "certificate-access", "The daemon may renew its certificate", "SubjectAccessReview",
        access::certificate,
        "Bind the Role NAME-certificate and the ClusterRole NAME-registration of the chart";
    "review-access", "The daemon may ask who may read metrics", "SubjectAccessReview",
        access::reviews, "Bind the ClusterRole NAME-access-reviews of the chart";
    "front-proxy-access", "The daemon may read the front proxy's authorities",
        "SubjectAccessReview",
        access::trust, "Bind extension-apiserver-authentication-reader in kube-system";
    "election-access", "The daemon may take part in the leader election", "SubjectAccessReview",
        access::election, "Bind the Role NAME-leader-election of the chart";
    "event-access", "The daemon may write Events", "SubjectAccessReview",
        access::events, "Allow create and patch of events.events.k8s.io, or set kubernetes.events: false";
    "limit-access", "The daemon may watch nodes and quotas", "SubjectAccessReview",
        access::limits,
        "Bind the ClusterRoles NAME-nodes and NAME-watch of the chart, or switch the limits off";
    "flow-schema", "Access reviews of the daemon have a flow schema of their own", "FlowSchemas",
        access::flow_schema, "Apply the FlowSchema of the chart";

    "variants", "There are variants", "configuration, annotated objects",
        fleet::variants, "Annotate an HPA, ScaledObject or workload with plimsoll.dev/model";
    "targets", "Every scale target exists and can be scaled", "scale targets",
        fleet::targets, "Correct targets.scale_target, or create the object";
    "owners", "Every scale target has one owner", "HPAs, ScaledObjects, configuration",
        fleet::owners, "Delete all owners but one";
    "pods-scheduled", "No pod is unschedulable", "pods",
        fleet::scheduled, "kubectl describe pod; add nodes, or lower the maximum";
    "pods-ready",
        "Each variant with scheduled pods has a ready one, and none has been unready for long",
        "pods",
        fleet::ready, "kubectl describe pod; kubectl logs of the engine";
    "annotations", "The annotations that declare variants are valid", "annotated objects",
        fleet::annotations, "kubectl annotate the object; docs/discovery.md has the annotations";
    "annotation-values", "Every annotation has an effect", "annotated objects",
        fleet::annotation_values, "kubectl annotate the object; docs/discovery.md has the annotations";
    "variant-names", "No two objects declare the same variant", "annotated objects",
        fleet::names, "Set plimsoll.dev/variant to another name, or remove the annotations";

    "hpa-reads", "A scaler of every target reads the variant's desired replicas", "HPAs, ScaledObjects",
        scalers::reads, "Add the metric plimsoll_desired_replicas, as in examples/hpa.yaml";
    "hpa-target", "HPAs take the desired replicas as they are", "HPAs",
        scalers::target, "Set target to {type: AverageValue, averageValue: \"1\"}";
    "hpa-selector", "HPAs read the desired replicas of one variant", "HPAs",
        scalers::selector, "Set metric.selector.matchLabels.variant";
    "hpa-metrics", "HPAs read no other metric", "HPAs",
        scalers::metrics, "Remove the other metrics";
    "hpa-directions", "HPAs scale in both directions", "HPAs",
        scalers::directions, "Set behavior.scaleUp.selectPolicy and scaleDown.selectPolicy to Max";
    "hpa-policies", "HPA policies delay no change for long", "HPAs",
        scalers::policies, "Widen behavior.scaleUp.policies and scaleDown.policies";
    "hpa-conditions", "HPAs work", "conditions of HPAs",
        scalers::conditions, "kubectl describe hpa shows the message";
    "hpa-enabled", "No HPA is switched off", "HPAs, scale targets",
        scalers::enabled, "kubectl scale the target to 1 replica";
    "hpa-tolerance", "HPAs follow changes by one replica", "HPAs, /api/v1/decisions",
        scalers::tolerance, "Set behavior.scaleUp.tolerance and scaleDown.tolerance to \"0\"";
    "hpa-bounds", "Bounds leave room for the needed replicas", "/api/v1/decisions, /metrics",
        scalers::bounds, "Raise maxReplicas, or the limit that the variant's steps name";
    "keda-triggers", "KEDA's triggers take the desired replicas as they are", "ScaledObjects",
        scalers::triggers, "docs/keda.md has the triggers";
    "keda-fallback", "KEDA removes no replicas because of an error", "ScaledObjects",
        scalers::fallback, "Set fallback.behavior to currentReplicasIfHigher";
    "keda-paused", "KEDA is not paused", "ScaledObjects",
        scalers::paused, "Remove the annotations autoscaling.keda.sh/paused*";
    "keda-ready", "KEDA works on the ScaledObjects that read desired replicas",
        "conditions of ScaledObjects",
        scalers::keda_ready, "kubectl describe scaledobject shows the message";

    "daemon", "The daemon answers", "/api/v1/status",
        daemon::answers, "--url names its plain HTTP port; kubectl plimsoll doctor forwards it";
    "daemon-ready", "The daemon is ready and decides", "/api/v1/status",
        daemon::ready, "Read the log of the daemon";
    "daemon-replicas", "Several replicas of the daemon elect a leader",
        "Deployment of Plimsoll, configuration",
        daemon::replicas, "Set leaderElection.enabled of the chart, or replicas to 1";
    "leader", "A leader decides", "Lease",
        daemon::leader, "Read the logs of all replicas of the daemon";
    "shared-decisions", "Replicas of the daemon share decisions", "ConfigMap of decisions",
        daemon::shared, "Delete the ConfigMap; the leader writes it again";
    "decisions", "Every variant has desired replicas on fresh data", "/api/v1/decisions",
        daemon::decisions, "plimsoll explain NAMESPACE/VARIANT names the missing data";
    "scrapes", "Every replica's metrics are read", "/api/v1/decisions",
        daemon::scrapes, "curl the replica's /metrics from the daemon's network; check port and NetworkPolicy";
    "cluster-watches", "The daemon sees every scale target", "/api/v1/decisions",
        daemon::watches, "The checks watch-access, targets and owners name the cause";
    "prometheus", "Prometheus returns series", "/metrics",
        daemon::prometheus, "Check prometheus.url, its credentials, and that it scrapes the replicas";
    "wake-signals", "Wake signals are read", "/metrics",
        daemon::wake_signals, "Check the signal's URL, in scale_to_zero or pools";
    "limits", "Limits are known", "/metrics",
        daemon::limits, "The check limit-access names missing permissions";
    "certificate", "The serving certificate is valid for some time", "/metrics",
        daemon::certificate, "Renew the certificate; docs/external-metrics.md has the ways";
    "state-file", "The state file is written", "/metrics",
        daemon::state_file, "Make the folder of state_file writable, with room on the disk";
    "trace", "The trace is written", "/metrics",
        daemon::trace, "Make the folder of trace writable, with room on the disk";
    "file-descriptors", "The daemon has file descriptors left", "/metrics",
        daemon::descriptors, "Raise the limit of open files, such as LimitNOFILE of containerd";
}
