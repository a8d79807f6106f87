//! Variants that only the cluster knows: none of them is in the configuration.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::PostParams;
use plimsoll::clock::Clock;

use crate::daemon::{Daemon, Knows};
use crate::follows;
use crate::page::MODEL;
use crate::stage::{Stage, stage, tools};
use crate::wait::{PATIENCE, until};

/// The HPA that users are given.
const HPA: &str = include_str!("../../examples/hpa-annotated.yaml");

/// The right to look through the whole cluster, for as long as this lives. The other scenarios run
/// without it.
pub(crate) struct Granted<'s>(&'s Stage);

impl<'s> Granted<'s> {
    pub(crate) fn everywhere(stage: &'s Stage) -> Self {
        let grant = ["create", "clusterrolebinding", "plimsoll-discovery"];
        let whom = ["--clusterrole=plimsoll-discovery", "--serviceaccount=plimsoll:plimsoll"];
        stage.kubectl(&[grant.as_slice(), &whom].concat()).unwrap();
        Self(stage)
    }
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "clusterrolebinding", "plimsoll-discovery"]);
    }
}

/// Makes a Deployment of one replica that nothing scales, in a namespace without rights of its own.
fn deploy(stage: &Stage, namespace: &str) {
    stage.deploy(namespace, 1, PATIENCE);
    stage.kubectl(&["delete", "rolebinding", "plimsoll-watch", "-n", namespace]).unwrap();
}

/// A metric of a namespace as the API server gives it to an HPA.
fn metric(stage: &Stage, namespace: &str, name: &str, selector: &str) -> Result<String, String> {
    let group = "/apis/external.metrics.k8s.io/v1beta1";
    let path = format!("{group}/namespaces/{namespace}/{name}?labelSelector={selector}");
    stage.raw(&path)
}

fn objects(stage: &Stage, daemon: &Daemon, standing: &str) -> Option<u32> {
    let labels = format!("{{state=\"{standing}\"}}");
    daemon.gauge(stage, "plimsoll_discovery_objects", &[&labels])
}

/// Waits until everything has been looked through once.
fn looked_through(stage: &Stage, daemon: &Daemon) {
    until("the cluster looked through", || objects(stage, daemon, "accepted"));
}

/// Makes the HPA and waits until its variant is known; gives the time from the API server's answer
/// to the page of metrics.
fn create_and_wait(stage: &Stage, daemon: &Daemon, namespace: &str, manifest: &str) -> Duration {
    let hpa: HorizontalPodAutoscaler = serde_json::from_value(stage.as_json(manifest)).unwrap();
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(stage.client(), namespace);
    let clock = Clock::start();
    stage.run(api.create(&PostParams::default(), &hpa)).unwrap();
    let created = clock.elapsed();
    let variant = format!("variant=\"{}\"", variant_of(&hpa));
    while daemon.gauge(stage, "plimsoll_variant_info", &[&variant]).is_none() {
        assert!(clock.elapsed().saturating_sub(created) < PATIENCE, "never saw {variant}");
    }
    clock.elapsed().saturating_sub(created)
}

fn variant_of(hpa: &HorizontalPodAutoscaler) -> String {
    let wva =
        hpa.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("llm-d.ai/managed"));
    let target = &hpa.spec.as_ref().unwrap().scale_target_ref.name;
    if wva { hpa.metadata.name.clone().unwrap() } else { target.clone() }
}

#[test]
#[expect(clippy::print_stderr, reason = "how long it takes is for people to judge")]
fn an_annotated_hpa_alone_is_served_scaled_and_forgotten() {
    let stage = &stage();
    let _granted = Granted::everywhere(stage);
    deploy(stage, "found");
    stage.engines.load("found", 0.3);
    let daemon = Daemon::start_knowing(stage, "found", Knows::ByDiscovery);
    looked_through(stage, &daemon);
    let ours = || metric(stage, "found", "plimsoll_desired_replicas", "variant%3Dllama");
    let before = ours().unwrap_err();
    assert!(before.contains("no variant"), "{before}");

    let manifest = HPA.replace("namespace: shop", "namespace: found");
    let took = create_and_wait(stage, &daemon, "found", &manifest);
    eprintln!("served {took:?} after its creation");
    // From here on it exists: there is a number, or an error that says what is waited for.
    let entry = ours();
    assert!(
        entry.as_ref().is_ok_and(|it| it.contains("\"value\""))
            || entry.as_ref().is_err_and(|it| it.contains("no decision yet")),
        "{entry:?}"
    );
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    follows(stage, &daemon, "found", 2.0, 3);

    // A mistake changes nothing but what is said.
    let cost = || daemon.gauge_text(stage, "plimsoll_cost_per_hour", &["variant=\"llama\""]);
    let cost_before = cost();
    let annotate = |text: &str| {
        stage.kubectl(&["annotate", "--overwrite", "hpa", "llama", "-n", "found", text]).unwrap();
    };
    annotate("plimsoll.dev/cost=cheap");
    until("a refusal", || (objects(stage, &daemon, "refused")? == 1).then_some(()));
    let reason = "annotation plimsoll.dev/cost must be a number";
    until("the reason in the log", || daemon.log().contains(reason).then_some(()));
    assert_eq!(cost(), cost_before);
    let events = "jsonpath={range .items[*]}{.reason} {.note}{\"\\n\"}{end}";
    let of_hpa = "regarding.kind=HorizontalPodAutoscaler,reason=AnnotationsRefused";
    until("an Event on the HPA", || {
        let fields = ["--field-selector", of_hpa, "-n", "found", "-o", events];
        let list = stage.kubectl(&[&["get", "events.events.k8s.io"], fields.as_slice()].concat());
        list.ok()?.contains("plimsoll.dev/cost must be a number").then_some(())
    });
    follows(stage, &daemon, "found", 2.7, 4);
    annotate("plimsoll.dev/cost=2");
    until("the new cost", || (cost()? == "8").then_some(()));

    stage.kubectl(&["delete", "hpa", "llama", "-n", "found"]).unwrap();
    until("no series", || {
        let info = daemon.gauge(stage, "plimsoll_variant_info", &["variant=\"llama\""]);
        let desired = daemon.desired(stage);
        (info.is_none() && desired.is_none()).then_some(())
    });
    assert!(ours().unwrap_err().contains("no variant"));
    let kept = until("an API server that answers", || stage.replicas("found"));
    assert_eq!(kept, 4, "the replicas stay as they are");
}

#[test]
fn an_hpa_of_the_workload_variant_autoscaler_scales_by_its_own_metric() {
    let stage = &stage();
    let _granted = Granted::everywhere(stage);
    deploy(stage, "moved");
    stage.engines.load("moved", 0.3);
    let daemon = Daemon::start_knowing(stage, "moved", Knows::ByDiscovery);
    looked_through(stage, &daemon);
    let manifest = HPA
        .replace("namespace: shop", "namespace: moved")
        .replace("name: llama\n  namespace", "name: llama-scaler\n  namespace")
        .replace("plimsoll.dev/accelerator: L4", "llm-d.ai/managed: \"true\"")
        .replace("plimsoll.dev/model:", "llm-d.ai/model-id:")
        .replace("plimsoll.dev/cost:", "llm-d.ai/variant-cost:")
        .replace("plimsoll_desired_replicas", "wva_desired_replicas")
        .replace("{variant: llama}", "{variant_name: llama-scaler, exported_namespace: moved}");
    create_and_wait(stage, &daemon, "moved", &manifest);
    let selector = "variant_name%3Dllama-scaler";
    until("a number", || metric(stage, "moved", "wva_desired_replicas", selector).ok());
    stage.engines.load("moved", 2.0);
    until("three replicas", || (stage.replicas("moved")? == 3).then_some(()));
}

#[test]
fn a_scaled_object_is_discovered_and_bounds_as_soon_as_there_is_such_a_kind() {
    let stage = &stage();
    let _granted = Granted::everywhere(stage);
    let crds = tools().join("keda-crds/keda.sh_scaledobjects.yaml");
    deploy(stage, "events");
    stage.engines.load("events", 0.3);
    let daemon = Daemon::start_knowing(stage, "events", Knows::ByDiscovery);
    looked_through(stage, &daemon);

    let crd =
        fs::read_to_string(&crds).unwrap_or_else(|error| panic!("{}: {error}", crds.display()));
    stage.create(&crd);
    let object = |marks: &str, spec: &str| {
        format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata:\n  name: events\n  \
             namespace: events\n  annotations:\n    plimsoll.dev/model: {MODEL}\n{marks}\
             spec:\n  scaleTargetRef: {{name: llama}}\n  triggers: [{{type: cron, metadata: {{}}}}]\n\
             {spec}"
        )
    };
    until("an object of the new kind", || {
        stage.try_apply(&object("", "  maxReplicaCount: 7\n")).then_some(())
    });
    let bound = |name: &str| daemon.gauge(stage, name, &["namespace=\"events\""]);
    until("its bounds", || {
        let bounds = (bound("plimsoll_min_replicas")?, bound("plimsoll_max_replicas")?);
        (bounds == (0, 7)).then_some(())
    });
    // The minimum is none, and the load alone never asks for less than one.
    until("a number", || (daemon.desired(stage)? == 1).then_some(()));

    stage.apply(&object(
        "    autoscaling.keda.sh/paused: \"true\"\n",
        "  minReplicaCount: 2\n  maxReplicaCount: 9\n",
    ));
    until("its new bounds", || (bound("plimsoll_min_replicas")? == 2).then_some(()));
    until("the number within them", || (daemon.desired(stage)? == 2).then_some(()));
    let paused = "KEDA is paused by an annotation of ScaledObject events";
    until("word that KEDA is paused", || daemon.log().contains(paused).then_some(()));

    stage.kubectl(&["delete", "crd", "scaledobjects.keda.sh"]).unwrap();
    until("no variant", || {
        let info = daemon.gauge(stage, "plimsoll_variant_info", &["namespace=\"events\""]);
        info.is_none().then_some(())
    });
}
