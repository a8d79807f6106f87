//! The triggers that need no Prometheus: `external-push`, `external` and `metrics-api`.

use std::io::Write as _;
use std::time::Duration;

use plimsoll::clock::Clock;

use crate::daemon::{Daemon, Knows, configuration, election};
use crate::page::MODEL;
use crate::picker::Picker;
use crate::stage::{Stage, stage};
use crate::wait::{PATIENCE, stays, until};
use crate::{OUTAGE, condition, keda, without_api};

const PUSH: &str = include_str!("../../../examples/keda-external-push.yaml");
const METRICS_API: &str = include_str!("../../../examples/keda-metrics-api.yaml");

/// The port of the external scaler, as in the example.
const PORT: u16 = 6444;

/// A kind of trigger, which is also the name of the namespace that it scales.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    Push,
    Pull,
    Json,
}

const ALL: [Trigger; 3] = [Trigger::Push, Trigger::Pull, Trigger::Json];

impl Trigger {
    fn namespace(self, round: &str) -> String {
        format!("{round}-{}", format!("{self:?}").to_lowercase())
    }

    /// The `ScaledObject` of the examples that reads Plimsoll at an address.
    fn scaled_object(self, namespace: &str, address: &str) -> String {
        let example = match self {
            Self::Push => PUSH.to_owned(),
            Self::Pull => PUSH.replace("type: external-push", "type: external"),
            Self::Json => METRICS_API.to_owned(),
        };
        let object = example
            .replace("dns:///plimsoll-keda.plimsoll.svc:6444", &format!("{address}:{PORT}"))
            .replace("plimsoll-metrics.plimsoll:8080", &format!("{address}:8080"))
            .replace("namespace=shop", &format!("namespace={namespace}"))
            .replace("namespace: shop", &format!("namespace: {namespace}"))
            .replace("minReplicaCount: 0", "minReplicaCount: 1");
        assert!(object.contains(address), "{object}");
        object
    }
}

/// The configuration for the variants of some namespaces, with the external scaler.
fn configured(stage: &Stage, namespaces: &[String], tls: &str) -> String {
    let one = without_api(&configuration(stage, &namespaces[0], Knows::ByConfiguration));
    let (head, _) = one.split_once("variants:").unwrap();
    let variant = |namespace: &String| {
        format!(
            "- {{name: llama, namespace: {namespace}, model: {MODEL}, targets: {{scale_target: \
             {{api_version: apps/v1, kind: Deployment, name: llama}}}}}}\n"
        )
    };
    let variants: String = namespaces.iter().map(variant).collect();
    let address = stage.address();
    format!("external_scaler: {{listen: \"{address}:{PORT}\"{tls}}}\n{head}variants:\n{variants}")
}

fn desired(stage: &Stage, daemon: &Daemon, namespace: &str) -> Option<u32> {
    let of = format!("namespace=\"{namespace}\"");
    daemon.gauge(stage, "plimsoll_desired_replicas", &["variant=\"llama\"", &of])
}

/// Sets the load of all namespaces, and waits until numbers and Deployments are at the replicas
/// that handle it.
fn all_follow(stage: &Stage, daemon: &Daemon, namespaces: &[String], load: f64, replicas: u32) {
    for namespace in namespaces {
        stage.engines.load(namespace, load);
    }
    for namespace in namespaces {
        until(&format!("{replicas} replicas in {namespace} at a load of {load}"), || {
            let there = desired(stage, daemon, namespace) == Some(replicas)
                && stage.replicas(namespace) == Some(replicas)
                && stage.engines.ready(namespace) == replicas;
            there.then_some(())
        });
    }
}

/// Opens a namespace for each trigger.
fn open(stage: &Stage, round: &str) -> Vec<String> {
    keda(stage);
    let namespaces = ALL.map(|trigger| trigger.namespace(round));
    for namespace in &namespaces {
        stage.deploy(namespace, 1, PATIENCE);
        stage.engines.load(namespace, 0.3);
    }
    namespaces.to_vec()
}

/// Makes the `ScaledObject`s of all triggers, with a change of each.
fn scale(stage: &Stage, round: &str, change: impl Fn(String) -> String) {
    for trigger in ALL {
        let object = trigger.scaled_object(&trigger.namespace(round), &stage.address());
        stage.apply(&change(object));
    }
}

/// Both ways over TLS, by certificates that KEDA has from a `TriggerAuthentication`.
#[test]
fn h_every_trigger_scales_up_and_down() {
    let stage = &stage();
    let namespaces = open(stage, "both");
    let folder = stage.folder.join("scaler");
    crate::keda::certificates(&folder, &stage.address());
    let file = |name: &str| folder.join(name).display().to_string();
    let tls = format!(
        ", tls: {{cert_file: {}, key_file: {}, client_ca_file: {}}}",
        file("tls.crt"),
        file("tls.key"),
        file("ca.crt")
    );
    let daemon = Daemon::launch(stage, "both", &configured(stage, &namespaces, &tls));
    for namespace in &namespaces {
        let (ca, certificate, key) = (file("ca.crt"), file("tls.crt"), file("tls.key"));
        let from = |key: &str, file: &str| format!("--from-file={key}={file}");
        let made = ["create", "secret", "generic", "plimsoll", "-n", namespace];
        let files = [from("ca.crt", &ca), from("tls.crt", &certificate), from("tls.key", &key)];
        let files = files.each_ref().map(String::as_str);
        stage.kubectl(&[made.as_slice(), &files].concat()).unwrap();
        stage.apply(&format!(
            "apiVersion: keda.sh/v1alpha1\nkind: TriggerAuthentication\n\
             metadata: {{name: plimsoll, namespace: {namespace}}}\n\
             spec:\n  secretTargetRef:\n  \
             - {{parameter: caCert, name: plimsoll, key: ca.crt}}\n  \
             - {{parameter: tlsClientCert, name: plimsoll, key: tls.crt}}\n  \
             - {{parameter: tlsClientKey, name: plimsoll, key: tls.key}}\n"
        ));
    }
    scale(stage, "both", |object| {
        let encrypted = "    authenticationRef: {name: plimsoll}\n    metadata:\n      \
                         enableTLS: \"true\"\n      # The headless";
        object.replace("    metadata:\n      # The headless", encrypted)
    });

    all_follow(stage, &daemon, &namespaces, 2.0, 3);
    all_follow(stage, &daemon, &namespaces, 0.3, 1);
    let log = daemon.log();
    assert!(!log.contains("does not read the desired replicas"), "{log}");
    assert!(!log.contains("ScaledObject llama:"), "the examples have no problem: {log}");
    let streams = daemon.gauge(stage, "plimsoll_external_scaler_streams", &[]);
    let is_open = streams.is_some_and(|open| open > 0);
    assert!(is_open, "KEDA keeps the stream of its external-push trigger open: {streams:?}");
}

/// Whether KEDA's HPA gets a number.
fn is_active(stage: &Stage, namespace: &str) -> Option<bool> {
    let path = "jsonpath={.status.conditions[?(@.type==\"ScalingActive\")].status}";
    let hpa = ["get", "hpa", "keda-hpa-llama", "-n", namespace, "-o", path];
    Some(stage.kubectl(&hpa).ok()? == "True")
}

#[test]
fn i_a_plimsoll_that_is_gone_drops_no_replica_by_any_trigger() {
    let stage = &stage();
    let namespaces = open(stage, "away");
    let text = configured(stage, &namespaces, "");
    let daemon = Daemon::launch(stage, "away", &text);
    scale(stage, "away", |object| object);
    all_follow(stage, &daemon, &namespaces, 2.0, 3);

    drop(daemon);
    for (trigger, namespace) in ALL.iter().zip(&namespaces) {
        until(&format!("the outage in {namespace}"), || {
            let replicas = stage.replicas(namespace);
            assert_eq!(replicas, Some(3), "{namespace} while the number cannot be read");
            let is_seen = match trigger {
                Trigger::Json => condition(stage, namespace, "Fallback")? == "True",
                // KEDA asks the server for the metric's specification before it counts failures.
                Trigger::Push | Trigger::Pull => !is_active(stage, namespace)?,
            };
            is_seen.then_some(())
        });
    }
    stays("3 replicas", OUTAGE, || {
        namespaces.iter().all(|namespace| stage.replicas(namespace) == Some(3))
    });

    // One that answers but knows nothing yet is no different.
    let blind = text.replace(&format!("port: {}", crate::engines::PORT), "port: 1");
    let cold = Daemon::launch(stage, "away", &blind);
    assert_eq!(desired(stage, &cold, &namespaces[0]), None);
    stays("3 replicas", OUTAGE, || {
        namespaces.iter().all(|namespace| stage.replicas(namespace) == Some(3))
    });
    drop(cold);

    let daemon = Daemon::launch(stage, "away", &text);
    all_follow(stage, &daemon, &namespaces, 2.7, 4);
}

#[test]
fn j_a_push_starts_the_first_replica_and_an_idle_model_goes_to_zero() {
    let stage = &stage();
    keda(stage);
    let namespace = "sleepy";
    stage.deploy(namespace, 1, PATIENCE);
    stage.engines.load(namespace, 0.3);
    let picker = Picker::start(stage);
    let zero = format!(
        "scale_to_zero: {{enabled: true, after: 10s, awake_for: 20s, wake: [{{name: epp, url: \
         \"{}\"}}]}}\n",
        picker.url
    );
    let daemon =
        Daemon::launch(stage, namespace, &(zero + &configured(stage, &[namespace.to_owned()], "")));
    let object = Trigger::Push
        .scaled_object(namespace, &stage.address())
        .replace("minReplicaCount: 1", "minReplicaCount: 0\n  pollingInterval: 10")
        .replace("cooldownPeriod: 900", "cooldownPeriod: 5");
    assert!(object.contains("pollingInterval: 10") && object.contains("cooldownPeriod: 5"));
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    stage.apply(&object);
    until("an open stream", || {
        let streams = daemon.gauge(stage, "plimsoll_external_scaler_streams", &[])?;
        (streams > 0).then_some(())
    });
    stage.engines.load(namespace, 0.0);
    until("no replica", || (stage.replicas(namespace)? == 0).then_some(()));
    // KEDA then asks by itself only every ten minutes, so what happens sooner was pushed. It goes to
    // zero only when it asks.
    stage.apply(&object.replace("pollingInterval: 10", "pollingInterval: 600"));
    stays("no replica", Duration::from_secs(20), || stage.replicas(namespace) == Some(0));

    let clock = Clock::start();
    let began = clock.elapsed();
    picker.queue(3);
    until("a replica", || (stage.replicas(namespace)? == 1).then_some(()));
    let took = clock.elapsed().saturating_sub(began);
    // Past the capture of the tests' output.
    let _ = writeln!(std::io::stderr(), "from 0 to 1 replica: {} ms", took.as_millis());
    picker.queue(0);
    all_follow(stage, &daemon, &[namespace.to_owned()], 1.3, 2);
}

#[test]
fn k_a_killed_leader_changes_no_count_and_the_one_that_follows_goes_on() {
    let stage = &stage();
    let namespaces = open(stage, "duo");
    let replica = |name: &str, address: &str| {
        let text = configured(stage, &namespaces, "");
        let text = text.replace(&stage.address(), address);
        let text = text.replace("kubernetes:", &election(&format!("duo-{name}")));
        Daemon::launch_at(stage, &format!("duo-{name}"), &text, address)
    };
    let unasked = format!("{}.200.4", stage.net);
    let leader = replica("second", &unasked);
    until("a leader", || (leader.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(()));
    // KEDA asks the one that follows.
    let follower = replica("first", &stage.address());
    scale(stage, "duo", |object| object);
    all_follow(stage, &follower, &namespaces, 2.0, 3);
    assert_eq!(follower.gauge(stage, "plimsoll_leader", &[]), Some(0));

    drop(leader);
    let keeps_three = || {
        let count = |namespace: &String| until("a count", || stage.replicas(namespace));
        namespaces.iter().all(|namespace| count(namespace) == 3)
    };
    until("the other one to lead", || {
        assert!(keeps_three(), "a count did not stay at 3");
        (follower.gauge(stage, "plimsoll_leader", &[])? == 1).then_some(())
    });
    stays("3 replicas", Duration::from_secs(15), keeps_three);
    all_follow(stage, &follower, &namespaces, 2.7, 4);
}

#[test]
fn l_what_keeps_keda_from_following_is_an_event_on_the_scaled_object() {
    let stage = &stage();
    keda(stage);
    let namespace = "wrong";
    stage.deploy(namespace, 1, PATIENCE);
    stage.engines.load(namespace, 0.3);
    let object = Trigger::Push
        .scaled_object(namespace, &stage.address())
        .replace("behavior: currentReplicasIfHigher", "behavior: static")
        .replace("metricType: AverageValue", "metricType: Value");
    stage.apply(&object);
    let daemon = Daemon::launch(stage, namespace, &configured(stage, &[namespace.to_owned()], ""));
    let path = "jsonpath={range .items[?(@.reason==\"KEDAMisconfigured\")]}{.regarding.kind} \
                {.note}{\"\\n\"}{end}";
    let arguments = ["get", "events.events.k8s.io", "-n", namespace, "-o", path];
    for says in ["the behavior static can remove replicas", "has the metric type Value"] {
        until(says, || {
            let notes = stage.kubectl(&arguments).ok()?;
            let found = notes.lines().any(|it| it.starts_with("ScaledObject") && it.contains(says));
            found.then_some(())
        });
        let decisions = daemon.decisions(stage).unwrap();
        assert!(decisions.contains(says), "{decisions}");
    }
}
