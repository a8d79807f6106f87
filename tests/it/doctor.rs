//! The checks of `plimsoll doctor`, on evidence that was gathered before. The scenarios of
//! `tests/e2e/doctor.rs` break a real control plane.

use std::collections::BTreeMap;
use std::process::Command;

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use plimsoll::cli::doctor::Diagnosis;
use plimsoll::cli::doctor::checks::CHECKS;
use plimsoll::cli::doctor::evidence::{
    ApiServerVersion, ClusterEvidence, ConfigEvidence, DaemonEvidence, EndpointCounts, Evidence,
    Gathered, PathAnswer,
};
use plimsoll::cli::doctor::permission::{AccessPurpose, ReleaseNames, permissions, some_of_each};
use plimsoll::cli::doctor::verdict::{CheckResult, Verdict};
use plimsoll::collect::exposition::samples::samples;
use plimsoll::config::{Files, Surroundings, parse};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::fake::FakeCluster;
use crate::events::write_kubeconfig;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/doctor.md");

fn names() -> ReleaseNames {
    let name = || "plimsoll".to_owned();
    ReleaseNames { namespace: name(), name: name(), account: name() }
}

fn config(more: &str) -> ConfigEvidence {
    parsed(&format!("kubernetes: {{enabled: true, discovery: {{enabled: true}}}}\n{more}"))
}

fn parsed(text: &str) -> ConfigEvidence {
    let surroundings = Surroundings {
        origin: "test".to_owned(),
        base: ".".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let config = parse(text, &surroundings).unwrap().config;
    ConfigEvidence { origin: "test".to_owned(), config, warnings: Vec::new() }
}

const SERVED: &str = "external_metrics: {tls: {cert_file: a.crt, key_file: a.key}}\n";
const ELECTED: &str = "external_metrics: {tls: {cert_file: a.crt, key_file: a.key}}\n\
                       state_file: state.json\ntrace: {dir: trace}\n";

/// Evidence of which nothing could be read, for this reason.
fn unread(reason: &str) -> Evidence {
    let reason = || reason.to_owned();
    Evidence {
        now: "2026-11-26T12:00:00Z".parse().unwrap(),
        version: "1.0.0".to_owned(),
        config: Gathered::Unread(reason()),
        cluster: Gathered::Read(ClusterEvidence::unread(names(), &reason())),
        daemon: Gathered::Read(DaemonEvidence {
            url: "http://127.0.0.1:8080".to_owned(),
            is_named: false,
            ahead_seconds: None,
            status: Gathered::Unread(reason()),
            decisions: Gathered::Unread(reason()),
            metrics: Gathered::Unread(reason()),
        }),
    }
}

fn run(evidence: &Evidence, name: &str) -> CheckResult {
    let check = CHECKS.iter().find(|check| check.name == name);
    check.unwrap_or_else(|| panic!("no check {name}")).run(evidence)
}

/// Asserts the verdict of a check, and words of its first symptom.
fn expect(evidence: &Evidence, name: &str, verdict: Verdict, words: &str) {
    let result = run(evidence, name);
    assert_eq!(result.verdict, verdict, "{result:?}");
    assert!(result.symptoms[0].evidence.contains(words), "{words:?} is not in {result:?}");
    let is_bad = |verdict| matches!(verdict, Verdict::Warning | Verdict::Failure);
    let is_fixed = result.symptoms.iter().all(|it| it.fix.is_some() == is_bad(it.verdict));
    assert!(is_fixed, "every warning and every failure has a fix: {result:?}");
}

/// An API server that answers.
fn answering(change: impl FnOnce(&mut ClusterEvidence)) -> Evidence {
    let mut evidence = unread("not read");
    let Gathered::Read(cluster) = &mut evidence.cluster else { unreachable!() };
    cluster.api_server = Gathered::Read(ApiServerVersion {
        version: "v1.36.0".to_owned(),
        minor: Some(36),
        ahead_seconds: Some(0.2),
    });
    change(cluster);
    evidence
}

/// A daemon that answers with this status, and with these metrics.
fn running(status: Value, metrics: &str) -> Evidence {
    let mut evidence = unread("not read");
    let Gathered::Read(daemon) = &mut evidence.daemon else { unreachable!() };
    daemon.status = Gathered::Read(status);
    daemon.metrics = Gathered::Read(samples(metrics.as_bytes(), None, &|_| true).unwrap());
    evidence
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[test]
fn every_check_is_documented_as_it_is() {
    let mut table =
        "| check | holds if it passes | reads | usual fix |\n|---|---|---|---|\n".to_owned();
    for check in CHECKS {
        let row =
            format!("| `{}` | {} | {} | {} |\n", check.name, check.title, check.reads, check.fix);
        table.push_str(&row);
    }

    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let (before, _) = text.split_once("| check |").unwrap();
    let whole = format!("{before}{table}");
    if std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        std::fs::write(DOCUMENT, whole).unwrap();
    } else {
        let how = "INSTA_UPDATE=always cargo test --test it doctor writes docs/doctor.md";
        assert!(text == whole, "{how}");
    }
}

#[test]
fn every_check_has_a_name_of_its_own_and_enough_of_them_look_at_each_side() {
    let names: std::collections::BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), CHECKS.len());
    assert!(CHECKS.len() >= 40, "{}", CHECKS.len());
}

#[test]
fn what_could_not_be_read_is_unknown_with_the_reason_and_never_passes() {
    let evidence = unread("the request was forbidden");
    for check in CHECKS {
        let result = check.run(&evidence);
        assert!(result.verdict >= Verdict::Unknown, "{result:?}");
        let symptom = &result.symptoms[0];
        assert!(
            symptom.evidence.contains("the request was forbidden")
                || symptom.evidence.contains("has a time"),
            "{result:?}"
        );
        assert_eq!(symptom.fix.is_some(), result.verdict == Verdict::Failure, "{result:?}");
    }

    // A cluster of which only the version is known.
    let evidence = answering(|_| ());
    for check in CHECKS {
        let passes = ["api-server", "api-server-version", "clocks"].contains(&check.name);
        let result = check.run(&evidence);
        assert_eq!(result.verdict == Verdict::Ok, passes, "{result:?}");
        assert_ne!(result.verdict, Verdict::NotApplicable, "{result:?}");
    }
}

#[test]
fn what_is_left_out_is_not_applicable() {
    let absent = |what: &str| format!("{what} is set");
    let evidence = Evidence {
        config: Gathered::Absent("no --config".to_owned()),
        cluster: Gathered::Absent(absent("--no-cluster")),
        daemon: Gathered::Absent(absent("--no-daemon")),
        ..unread("")
    };
    let diagnosis = Diagnosis::new(&evidence);
    assert_eq!(diagnosis.verdict, Verdict::NotApplicable, "{}", diagnosis.words());
    assert_eq!(diagnosis.verdict.exit_code(), 0);
}

#[test]
fn the_exit_code_is_the_worst_verdict() {
    let codes = Verdict::ALL.map(Verdict::exit_code);
    assert_eq!(codes, [3, 2, 1, 0, 0]);

    let diagnosis = Diagnosis::new(&unread("away"));
    assert_eq!(diagnosis.verdict, Verdict::Failure, "the API server does not respond");
    let shown = diagnosis.words();
    assert!(shown.contains("FAILURE  api-server"), "{shown}");
    let unseen = shown.lines().filter(|line| line.starts_with("unknown"));
    assert_eq!(unseen.count(), 1, "those of one reason are listed together: {shown}");
    assert!(shown.lines().last().unwrap().starts_with(&format!("{} checks: ", CHECKS.len())));

    let ran = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["doctor", "--no-cluster", "--no-daemon", "--config", "examples/plimsoll.yaml"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{shown}");
    assert!(shown.contains("ok       configuration"), "{shown}");
    assert!(shown.contains("n/a      hpa-target"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_refuses_its_version_is_named_with_its_cause() {
    let fake = FakeCluster::start().await;
    fake.refuse("/version");
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = write_kubeconfig(&folder, &fake);

    let ran = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["doctor", "--no-daemon", "--config", "examples/plimsoll.yaml", "--kubeconfig"])
        .arg(&kubeconfig)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(3), "{shown}");
    assert!(shown.contains("FAILURE  api-server "), "{shown}");
    assert!(shown.contains(" /version answers with 403: Forbidden\n"), "{shown}");
}

/// Fails where a value is not of its schema. An object has no fields that the schema does not name.
fn conforms(at: &str, value: &Value, schema: &Value, root: &Value) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#'));
        return conforms(at, value, target.unwrap_or_else(|| panic!("no {name}")), root);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let is_one = choices.iter().any(|choice| choice["const"] == *value);
        return assert!(is_one, "{at}: {value} is none of {choices:?}");
    }

    let kinds = [&schema["type"]].map(ToString::to_string).concat();
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&format!("\"{kind}\"")), "{at}: {value} is not {kinds}");
    for (place, item) in value.as_array().into_iter().flatten().enumerate() {
        conforms(&format!("{at}[{place}]"), item, &schema["items"], root);
    }
    let Some(object) = value.as_object() else { return };
    for required in schema["required"].as_array().unwrap() {
        assert!(object.contains_key(required.as_str().unwrap()), "{at} has no {required}");
    }
    for (name, field) in object {
        let known = schema["properties"].get(name);
        assert!(known.is_some(), "the schema does not know {at}.{name}");
        conforms(&format!("{at}.{name}"), field, known.unwrap(), root);
    }
}

#[test]
fn the_output_is_as_its_documented_schema_states() {
    let doctor = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .arg("doctor")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .output()
            .unwrap();
        String::from_utf8(ran.stdout).unwrap()
    };
    let printed = doctor(&["--schema"]);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/doctor.schema.json");
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(printed == committed, "plimsoll doctor --schema > docs/doctor.schema.json");
    let schema: Value = serde_json::from_str(&printed).unwrap();

    let offline = ["--no-cluster", "--no-daemon", "--config", "examples/plimsoll.yaml"];
    let ran = doctor(&[&["--output", "json"], &offline[..]].concat());
    conforms("doctor", &serde_json::from_str(&ran).unwrap(), &schema, &schema);
    let failing = serde_json::to_value(Diagnosis::new(&unread("away"))).unwrap();
    conforms("doctor", &failing, &schema, &schema);
    let checks = failing["checks"].as_array().unwrap().iter();
    let fixed = checks.flat_map(|check| check["symptoms"].as_array().unwrap());
    assert!(fixed.into_iter().any(|symptom| symptom.get("fix").is_some()), "{failing}");
}

#[test]
fn an_old_api_server_and_another_clock_are_found() {
    let with = |minor, ahead| {
        answering(|cluster| {
            cluster.api_server = Gathered::Read(ApiServerVersion {
                version: format!("v1.{minor}.0"),
                minor: Some(minor),
                ahead_seconds: Some(ahead),
            });
        })
    };
    expect(&with(28, 0.0), "api-server-version", Verdict::Failure, "older than 1.29");
    expect(&with(29, 0.0), "api-server-version", Verdict::Ok, "feature gate");
    expect(&with(36, 0.0), "api-server-version", Verdict::Ok, "v1.36.0");
    expect(&with(36, 5.0), "clocks", Verdict::Ok, "the API server");
    expect(&with(36, -5.1), "clocks", Verdict::Warning, "5.1 s behind the API server");

    let mut daemon = running(json!({}), "a 1\n");
    let Gathered::Read(read) = &mut daemon.daemon else { unreachable!() };
    read.ahead_seconds = Some(60.0);
    expect(&daemon, "clocks", Verdict::Warning, "60.0 s ahead of the daemon");
}

#[test]
fn the_registration_is_judged_as_the_daemon_judges_it() {
    let registered = |service: &str, available: &str| {
        let registration: APIService = object(json!({
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {"group": "external.metrics.k8s.io", "version": "v1beta1",
                     "groupPriorityMinimum": 100, "versionPriority": 100,
                     "service": {"namespace": "plimsoll", "name": service, "port": 443}},
            "status": {"conditions": [{"type": "Available", "status": available,
                                       "reason": "MissingEndpoints", "message": "no addresses"}]},
        }));
        let mut evidence = answering(|cluster| {
            cluster.registration = Gathered::Read(Some(registration));
            cluster.service = Gathered::Read(Some(object(json!({
                "metadata": {"name": service}, "spec": {"ports": [{"port": 443}]},
            }))));
            cluster.endpoints = Gathered::Read(EndpointCounts { all: 2, ready: 0 });
            let text = json!({"message": "service unavailable"}).to_string();
            cluster.path = Gathered::Read(PathAnswer { status: 503, text });
        });
        evidence.config = Gathered::Read(Ok(config(SERVED)));
        evidence
    };

    let ours = registered("plimsoll", "True");
    expect(&ours, "registration", Verdict::Ok, "v1beta1.external.metrics.k8s.io");
    expect(&ours, "registration-available", Verdict::Ok, "Available");
    expect(&ours, "ca-bundle", Verdict::Failure, "no certificate");
    expect(&ours, "service", Verdict::Failure, "0 of 2 endpoints");
    expect(&ours, "metrics-path", Verdict::Failure, "503: service unavailable");
    let mut refused = registered("plimsoll", "True");
    if let Gathered::Read(cluster) = &mut refused.cluster {
        let text = json!({"message": "forbidden: User \"jane\" cannot get path"}).to_string();
        cluster.path = Gathered::Read(PathAnswer { status: 403, text });
    }
    expect(&refused, "metrics-path", Verdict::Unknown, "you may not read it: forbidden");
    let away = registered("plimsoll", "False");
    expect(&away, "registration-available", Verdict::Failure, "MissingEndpoints: no addresses");
    let foreign = registered("keda", "True");
    expect(&foreign, "registration", Verdict::Failure, "Service plimsoll/keda");
    expect(&foreign, "metrics-path", Verdict::NotApplicable, "registration");

    let mut unserved = registered("keda", "True");
    unserved.config = Gathered::Read(Ok(config("")));
    expect(&unserved, "registration", Verdict::NotApplicable, "no external_metrics");
}

#[test]
fn a_daemon_that_is_late_or_of_another_release_is_found() {
    let status = |age: f64, version: &str| {
        json!({
            "version": version, "now": "2026-11-26T12:00:00Z", "uptime_seconds": 60.0,
            "tick": {"age_seconds": age}, "tick_interval_seconds": 2.0,
            "checks": [{"name": "shutdown", "ok": age < 100.0, "problem": "shutting down"}],
            "config": {"hash": "0", "last_reload": null},
        })
    };
    let metrics = "process_open_fds 900\nprocess_max_fds 1024\nplimsoll_prometheus_up 1\n\
                   plimsoll_prometheus_replicas_ahead 2\nplimsoll_trace_failures_total 3\n\
                   plimsoll_tls_certificate_not_after_timestamp_seconds 1.0e9\n\
                   plimsoll_limit_unread{limit=\"nodes\"} 0\n\
                   plimsoll_limit_age_seconds{limit=\"nodes\"} 600\n";
    let mut evidence = running(status(20.0, "1.0.0"), metrics);
    expect(&evidence, "daemon", Verdict::Ok, "version 1.0.0");
    expect(&evidence, "daemon-ready", Verdict::Ok, "20.0 s ago");
    expect(&evidence, "file-descriptors", Verdict::Warning, "900 of 1024");
    expect(&evidence, "prometheus", Verdict::Warning, "2 replicas have samples from the future");
    expect(&evidence, "certificate", Verdict::Failure, "expired");
    expect(&evidence, "limits", Verdict::Warning, "600 s ago");
    expect(&evidence, "wake-signals", Verdict::NotApplicable, "no wake signals");
    expect(&evidence, "configuration-current", Verdict::Unknown, "not read");

    evidence.config = Gathered::Read(Ok(config(ELECTED)));
    expect(&evidence, "trace", Verdict::Warning, "plimsoll_trace_failures_total is 3");
    expect(&evidence, "state-file", Verdict::Ok, "no attempt has failed");
    expect(&evidence, "leader", Verdict::NotApplicable, "leader_election is off");
    expect(&evidence, "configuration-current", Verdict::Warning, "the daemon has the hash 0");
    evidence.config = Gathered::Read(Err("test has 1 error".to_owned()));
    expect(&evidence, "configuration", Verdict::Failure, "1 error");
    expect(&evidence, "configuration-current", Verdict::Unknown, "invalid");

    let late = running(status(121.0, "0.9.0"), metrics);
    expect(&late, "daemon", Verdict::Warning, "0.9.0");
    let ready = run(&late, "daemon-ready");
    assert_eq!(ready.symptoms.len(), 2, "{ready:?}");
    assert_eq!(ready.verdict, Verdict::Failure);
}

#[test]
fn a_variant_that_its_maximum_keeps_small_is_found() {
    let decided = |unconstrained: u32, saturated: u32, short: u32| {
        let short = format!(
            "plimsoll_short_at_maximum{{namespace=\"shop\",model=\"m\",variant=\"llama\"}} {short}\n\
             plimsoll_short_at_maximum{{namespace=\"lab\",model=\"m\",variant=\"llama\"}} 1\n"
        );
        let mut evidence = running(json!({}), &short);
        let Gathered::Read(daemon) = &mut evidence.daemon else { unreachable!() };
        daemon.decisions = Gathered::Read(json!({"variants": [{
            "namespace": "shop", "variant": "llama", "basis": "fresh", "max": 4, "desired": 4,
            "unconstrained": unconstrained, "saturated": saturated,
        }]}));
        evidence
    };
    expect(&decided(4, 0, 0), "hpa-bounds", Verdict::Ok, "1 variant");
    expect(&decided(6, 0, 0), "hpa-bounds", Verdict::Warning, "needs 6 replicas");
    expect(&decided(4, 3, 0), "hpa-bounds", Verdict::Warning, "3 replicas are saturated");
    expect(&decided(4, 0, 1), "hpa-bounds", Verdict::Warning, "more than the maximum of 4");

    let without_metrics = |unconstrained| {
        let mut evidence = decided(unconstrained, 0, 0);
        let Gathered::Read(daemon) = &mut evidence.daemon else { unreachable!() };
        daemon.metrics = Gathered::Unread("the metrics were not read".to_owned());
        evidence
    };

    expect(&without_metrics(4), "hpa-bounds", Verdict::Unknown, "the metrics were not read");
    expect(&without_metrics(6), "hpa-bounds", Verdict::Warning, "needs 6 replicas");
}

#[test]
fn of_many_permissions_some_of_each_purpose_are_asked_for() {
    let namespaces = (0..200).map(|number| format!("n{number}")).collect::<Vec<_>>().join(", ");
    let discovery = format!("{{enabled: true, namespaces: [{namespaces}]}}");
    let text = format!("{SERVED}kubernetes: {{enabled: true, discovery: {discovery}}}\n");
    let all = permissions(&parsed(&text).config, &names());
    let purposes = all.iter().map(|it| it.purpose).collect::<std::collections::BTreeSet<_>>();

    assert!(all.len() > 1000, "{}", all.len());

    let asked = some_of_each(all, 1000);
    let found = asked.iter().map(|it| it.purpose).collect::<std::collections::BTreeSet<_>>();
    assert_eq!((asked.len(), found), (1000, purposes));
}

#[test]
fn only_the_permissions_that_a_configuration_needs_are_asked_for() {
    let purposes = |more: &str| {
        let all = permissions(&config(more).config, &names());
        all.into_iter()
            .map(|permission| permission.purpose)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let usual = [AccessPurpose::Watch, AccessPurpose::Events];
    assert_eq!(purposes(""), usual.into());
    assert_eq!(
        purposes("limits: {nodes: true}\n"),
        [usual.as_slice(), &[AccessPurpose::Limits]].concat().into_iter().collect()
    );
    let serving = [
        AccessPurpose::Controller,
        AccessPurpose::Registration,
        AccessPurpose::Reviews,
        AccessPurpose::Trust,
    ];
    assert_eq!(purposes(SERVED), usual.into_iter().chain(serving).collect());

    let all = permissions(&config(SERVED).config, &names());
    let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
    for wanted in [
        "list pods",
        "get deployments.apps/scale",
        "watch namespaces",
        "get configmaps extension-apiserver-authentication in namespace kube-system",
        "list plimsoll_desired_replicas.external.metrics.k8s.io",
        "create subjectaccessreviews.authorization.k8s.io",
    ] {
        assert!(shown.iter().any(|permission| permission == wanted), "{wanted}: {shown:#?}");
    }
}
