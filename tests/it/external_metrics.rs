//! The external metrics API as API servers, HPA controllers and people see it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use plimsoll::decide::check::Violation;
use plimsoll::decide::{NoData, Reason};
use plimsoll::publish::Published;
use plimsoll::publish::external_metrics::ExternalMetricsSettings;
use plimsoll::publish::external_metrics::authorize::{Access, AccessVerdict, Authorize};
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::server::ServerPhase;
use plimsoll::server::auth::UserIdentity;
use serde_json::json;

use crate::external_metrics_harness::{
    BASE, Fixture, HPA, Http, Options, answer, key, published, variant,
};

const DESIRED: &str = "plimsoll_desired_replicas";

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

const DISCOVERY_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn path(namespace: &str) -> String {
    format!("{BASE}/namespaces/{namespace}/{DESIRED}")
}

/// Two variants in `chat` and one elsewhere.
async fn fixture() -> Fixture {
    let fixture = Fixture::start(Options::default()).await;
    fixture.publish([
        variant("chat", "a").desired(3, fixture.clock.elapsed()),
        variant("chat", "b").desired(0, fixture.clock.elapsed()),
        variant("code", "c").desired(12_000, fixture.clock.elapsed()),
    ]);
    fixture
}

/// Ages at which every decision is held, and at which every decision has expired.
fn held() -> DecisionAges {
    DecisionAges { fresh: Duration::ZERO, hold: Duration::from_hours(1) }
}

fn expired() -> DecisionAges {
    DecisionAges { fresh: Duration::ZERO, hold: Duration::ZERO }
}

async fn with_ages(ages: DecisionAges) -> Fixture {
    let settings = ExternalMetricsSettings { ages, wva_metrics: false, object_metrics: false };
    Fixture::start(Options { settings, ..Options::default() }).await
}

#[tokio::test]
async fn the_list_is_what_an_hpa_controller_reads() {
    let fixture = fixture().await;
    for http in [Http::One, Http::Two] {
        let answer = answer(
            fixture
                .proxy(http)
                .get(&format!("{}?labelSelector=variant%3Da", path("chat")))
                .header("accept", "application/vnd.kubernetes.protobuf, */*"),
        )
        .await;
        assert_eq!(answer.code, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("cache-control"), "no-cache, private");
        assert_eq!(answer.header("content-length"), answer.text.len().to_string());
        assert_eq!(
            answer.json(),
            json!({
                "kind": "ExternalMetricValueList",
                "apiVersion": "external.metrics.k8s.io/v1beta1",
                "metadata": {},
                "items": [{
                    "metricName": DESIRED,
                    "metricLabels": {
                        "variant": "a", "model": "meta-llama-Llama-3.1-8B", "role": "both",
                        "accelerator": "H100",
                    },
                    "timestamp": "2026-11-21T01:37:04Z",
                    "value": "3",
                }],
            })
        );
    }
}

#[tokio::test]
async fn a_namespace_sees_only_its_own_variants() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(client.ask(&path("chat")).await.values(), owned(&[("a", "3"), ("b", "0")]));
    assert_eq!(client.ask(&path("code")).await.values(), owned(&[("c", "12k")]));
}

#[tokio::test]
async fn selectors_are_decoded_as_forms_and_understood_whole() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    for (selector, variants) in [
        ("variant+in+(a)", "a"),
        ("variant%20in%20(a)", "a"),
        ("variant+in+%28a%2Cb%29", "a b"),
        ("variant=a", "a"),
        ("variant%3D%3Da", "a"),
        ("variant%21%3Da", "b"),
        ("variant+notin+%28a%29", "b"),
        ("variant", "a b"),
        ("%21missing%2Cvariant%3Da", "a"),
        ("model=meta-llama-Llama-3.1-8B,accelerator=H100,role=both", "a b"),
        ("", "a b"),
    ] {
        let answer = client.ask(&format!("{}?labelSelector={selector}", path("chat"))).await;
        let names: Vec<String> = answer.values().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.join(" "), variants, "{selector}");
    }
}

#[tokio::test]
async fn names_that_no_selector_can_have_are_selected_by_their_labels() {
    let fixture = fixture().await;
    let long = "x".repeat(100);
    let names = [long.as_str(), "10.0.0.1:8000", "plain"];
    fixture.publish(names.map(|name| variant("chat", name).desired(3, fixture.clock.elapsed())));
    let client = fixture.proxy(Http::Two);
    let labels = client.ask(&path("chat")).await.values();
    assert_eq!(labels.len(), 3);
    for (label, _) in labels {
        let selected =
            client.ask(&format!("{}?labelSelector=variant%3D{label}", path("chat"))).await;
        assert_eq!(selected.values(), [(label, "3".to_owned())]);
    }
}

#[tokio::test]
async fn malformed_questions_are_bad_requests() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    for query in [
        "labelSelector=variant%2Bin",
        "labelSelector=a,,b",
        "labelSelector=a+b",
        "labelSelector=%21",
        "labelSelector=variant%3D-",
        "labelSelector=variant+in+a",
        "labelSelector=%ff",
        "labelSelector=a&labelSelector=b",
        "fieldSelector=status.phase%3DRunning",
        "fieldSelector=metadata.name%3Dother",
        "fieldSelector=metadata.name%21%3Dother",
    ] {
        let answer = client.ask(&format!("{}?{query}", path("chat"))).await;
        assert!(!answer.error(400, "BadRequest").is_empty(), "{query}");
    }
    for segments in ["chat/a%2fb", "chat/a%252fb", "a%2fb/m", "chat/%ff"] {
        let answer = client.ask(&format!("{BASE}/namespaces/{segments}")).await;
        assert!(!answer.error(400, "BadRequest").is_empty(), "{segments}");
    }
    let fine = format!("fieldSelector=metadata.name%3D{DESIRED},metadata.namespace%3Dchat");
    let ignored = "timeout=32s&limit=500&continue=x&resourceVersion=0&pretty=true&watch=false";
    let answer = client.ask(&format!("{}?{fine}&{ignored}", path("chat"))).await;
    assert_eq!(answer.values().len(), 2);
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_and_the_message_says_what_does() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    for (path, said) in [
        (format!("{}?labelSelector=variant%3Dx", path("chat")), "variant=x\"; its variants: a, b"),
        (path("dummy"), "no variant in namespace dummy"),
        (format!("{BASE}/namespaces/chat/queue_depth"), DESIRED),
        (format!("{BASE}/namespaces/chat/wva_desired_replicas"), DESIRED),
        (format!("{BASE}/namespaces/chat/status"), DESIRED),
        (
            format!("{BASE}/namespaces/chat/custom.googleapis.com%7Cfoo"),
            "custom.googleapis.com|foo",
        ),
        (format!("{BASE}/{DESIRED}"), "unknown path"),
        (format!("{}/x", path("chat")), "unknown path"),
        (format!("{}/", path("chat")), "unknown path"),
        ("/".to_owned(), "unknown path"),
        ("/api".to_owned(), "unknown path"),
        ("/apis/custom.metrics.k8s.io/v1beta2".to_owned(), "object_metrics is false"),
        (path(&"n".repeat(254)), "a namespace has at most"),
    ] {
        let message = client.ask(&path).await.error(404, "NotFound");
        assert!(message.contains(said), "{path}: {message}");
    }
    let status = client.ask(&path("dummy")).await.json();
    let details = json!({ "group": "external.metrics.k8s.io", "kind": DESIRED });
    assert_eq!(status["details"], details);
}

#[tokio::test]
async fn a_variant_without_a_decision_is_unavailable_and_never_zero() {
    let fixture = fixture().await;
    fixture.publish([
        variant("chat", "a").desired(3, fixture.clock.elapsed()),
        variant("chat", "new"),
    ]);
    let client = fixture.proxy(Http::Two);
    let new = format!("{}?labelSelector=variant%3Dnew", path("chat"));
    let message = client.ask(&new).await.error(503, "ServiceUnavailable");
    assert_eq!(
        message,
        "no decision yet for chat/new: waiting for data, the list of replicas has not arrived"
    );
    // A sum with a part missing would be a scale-down.
    let sum = client.ask(&path("chat")).await.error(503, "ServiceUnavailable");
    assert_eq!(sum, message);
    let usable = client.ask(&format!("{}?labelSelector=variant%3Da", path("chat"))).await;
    assert_eq!(usable.values().len(), 1);
}

#[tokio::test]
async fn a_decision_that_is_not_published_names_the_cause_and_the_next_step() {
    let fixture = fixture().await;
    fixture.publish([
        variant("chat", "a").undecided(NoData::NotShared),
        variant("code", "a").undecided(NoData::Refused),
        variant("pool", "a").undecided(NoData::NoModels),
    ]);

    let client = fixture.proxy(Http::Two);
    for (namespace, told) in [
        (
            "chat",
            "no decision yet for chat/a: the replicas of Plimsoll have not shared a decision yet; \
             this one is waiting for data, the list of replicas has not arrived. Check that a \
             replica of Plimsoll leads, and that it can write its decisions.",
        ),
        (
            "code",
            "no decision yet for code/a: the decisions break an invariant and are not published. \
             Report a bug, with the trace of this tick.",
        ),
        (
            "pool",
            "no decision yet for pool/a: waiting for data, the list of replicas has not arrived",
        ),
    ] {
        let message = client.ask(&path(namespace)).await.error(503, "ServiceUnavailable");
        assert_eq!(message, told);
    }
}

#[tokio::test]
async fn an_old_decision_that_is_refused_in_each_tick_names_the_check() {
    let fixture = with_ages(expired()).await;
    let refused = Reason::Refused(Violation::Twice(key("chat", "a")));
    fixture.publish([variant("chat", "a").desired(2, Duration::ZERO).because(refused)]);

    let client = fixture.proxy(Http::Two);
    let message = client.ask(&path("chat")).await.error(503, "ServiceUnavailable");
    let told = "old (limit 0s): the decisions break an invariant and are not published. Report";
    assert!(message.contains(told), "{message}");
}

#[tokio::test]
async fn an_old_decision_of_another_replica_names_its_cause_before_the_missing_data_of_this_one() {
    let fixture = with_ages(expired()).await;
    let variants = [
        variant("chat", "a").desired(2, Duration::ZERO).held(),
        variant("code", "a").desired(2, Duration::ZERO),
    ];
    let decided_by = Some("plimsoll-0".to_owned());
    let shared = Published { decided_by, ..Published::clone(&published(variants)) };
    let _ = fixture.published.send_replace(Arc::new(shared));

    let client = fixture.proxy(Http::Two);
    for (namespace, told) in [
        (
            "chat",
            "old (limit 0s): the replica that leads had no newer data, or has shared none since; \
             this one is waiting for data, the list of replicas has not arrived. Check that a \
             replica of Plimsoll leads, and that it can write its decisions.",
        ),
        (
            "code",
            "old (limit 0s): the replicas of Plimsoll have not shared a newer one; this one is \
             waiting for data, the list of replicas has not arrived. Check that a replica of \
             Plimsoll leads, and that it can write its decisions.",
        ),
    ] {
        let message = client.ask(&path(namespace)).await.error(503, "ServiceUnavailable");
        assert!(message.ends_with(told), "{message}");
    }
}

#[tokio::test]
async fn before_the_first_tick_a_variant_is_unavailable_and_not_unknown() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    client.ask(&path("nowhere")).await.error(404, "NotFound");

    let _ = fixture.published.send_replace(Arc::new(Published::default()));
    let message = client.ask(&path("chat")).await.error(503, "ServiceUnavailable");
    assert_eq!(message, "the variants are not known yet: the first tick has not ended");
}

#[tokio::test]
async fn a_held_decision_keeps_its_number_and_its_timestamp() {
    let fixture = with_ages(held()).await;
    let now = fixture.clock.elapsed();
    fixture.publish([
        variant("chat", "down").current(5).desired(2, now),
        variant("chat", "up").current(2).desired(5, now),
    ]);
    let answer = fixture.proxy(Http::Two).ask(&path("chat")).await;
    let values = answer.values().into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    assert_eq!(values, ["2", "5"]);
    assert_eq!(answer.json()["items"][0]["timestamp"], "2026-11-21T01:37:04Z");
}

#[tokio::test]
async fn an_expired_decision_is_unavailable_and_the_message_says_how_old() {
    let fixture = with_ages(expired()).await;
    fixture.publish([variant("chat", "a").current(5).desired(2, Duration::ZERO)]);
    let message =
        fixture.proxy(Http::Two).ask(&path("chat")).await.error(503, "ServiceUnavailable");
    let wanted =
        ["the decision for chat/a (2 replicas) is ", "old (limit 0s): the list of replicas"];
    assert!(wanted.iter().all(|wanted| message.contains(wanted)), "{message}");
}

#[tokio::test]
async fn messages_are_bounded() {
    let fixture = fixture().await;
    fixture.publish((0..500).map(|n| variant("chat", &format!("variant-{n}"))));
    let client = fixture.proxy(Http::Two);
    let message = client.ask(&path("chat")).await.error(503, "ServiceUnavailable");
    assert!(message.len() <= 1024 && message.ends_with("..."), "{}", message.len());
    let absent = format!("{}?labelSelector=variant%3Dx", path("chat"));
    let message = client.ask(&absent).await.error(404, "NotFound");
    assert!(message.ends_with(" and 480 more"), "{message}");
}

#[tokio::test]
async fn the_wva_metric_is_served_when_it_is_wanted() {
    let settings = ExternalMetricsSettings { wva_metrics: true, ..Options::default().settings };
    let fixture = Fixture::start(Options { settings, ..Options::default() }).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let selector = "labelSelector=exported_namespace%3Dchat%2Cvariant_name%3Da";
    let path = format!("{BASE}/namespaces/chat/wva_desired_replicas?{selector}");
    let item = fixture.proxy(Http::Two).ask(&path).await.json()["items"][0].clone();
    let labels = json!({
        "variant_name": "a", "exported_namespace": "chat", "namespace": "chat",
        "accelerator_type": "H100",
    });
    assert_eq!((&item["metricLabels"], &item["value"]), (&labels, &json!("3")));
}

#[tokio::test]
async fn tables_show_every_variant_also_those_without_a_value() {
    let fixture = fixture().await;
    fixture.publish([
        variant("chat", "a").desired(3, fixture.clock.elapsed()),
        variant("chat", "new"),
    ]);
    let accept = format!("{TABLE},{TABLE};v=v1beta1,application/json");
    let client = fixture.proxy(Http::Two);
    for name in [DESIRED, "externalmetrics"] {
        let path = format!("{BASE}/namespaces/chat/{name}?limit=500");
        let table = answer(client.get(&path).header("accept", &accept)).await;
        assert_eq!(table.code, 200);
        assert_eq!(table.header("content-type"), "application/json");
        let table = table.json();
        assert_eq!(
            (&table["kind"], &table["apiVersion"]),
            (&json!("Table"), &json!("meta.k8s.io/v1"))
        );
        let columns = table["columnDefinitions"].as_array().unwrap().len();
        let rows = table["rows"].as_array().unwrap();
        let cells = |row: usize| rows[row]["cells"].as_array().unwrap().clone();
        assert_eq!((rows.len(), cells(0).len(), cells(1).len()), (2, columns, columns));
        assert_eq!(cells(0)[..3], [json!(DESIRED), json!("a"), json!("3")]);
        assert_eq!(cells(0)[4], "fresh");
        let unknown =
            [json!(DESIRED), json!("new"), json!("<unknown>"), json!("<unknown>"), json!("cold")];
        assert_eq!(cells(1)[..5], unknown);
        assert!(cells(1)[5].as_str().unwrap().starts_with("no decision yet"));
    }
    let empty = format!("{BASE}/namespaces/empty/externalmetrics");
    let empty = answer(client.get(&empty).header("accept", TABLE)).await;
    assert_eq!((empty.code, &empty.json()["rows"]), (200, &json!([])));
}

#[tokio::test]
async fn all_namespaces_are_listed_each_variant_with_its_own() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let path = format!("{BASE}/externalmetrics");
    let table = answer(client.get(&format!("{path}?limit=500")).header("accept", TABLE)).await;
    assert_eq!(table.code, 200, "{table:?}");
    let rows = table.json()["rows"].as_array().unwrap().clone();
    let shown = rows
        .iter()
        .map(|row| (row["object"]["metadata"]["namespace"].clone(), row["cells"][1].clone()));
    let expected = [("chat", "a"), ("chat", "b"), ("code", "c")];
    assert_eq!(shown.collect::<Vec<_>>(), expected.map(|(at, name)| (json!(at), json!(name))));

    let list = client.ask(&format!("{path}?labelSelector=namespace%3Dcode")).await;
    assert_eq!(list.values(), [("c".to_owned(), "12k".to_owned())]);
    assert_eq!(list.json()["items"][0]["metricLabels"]["namespace"], "code");

    // A sum over all namespaces scales nothing, so a metric is listed in a namespace only.
    client.ask(&format!("{BASE}/{DESIRED}")).await.error(404, "NotFound");
}

#[tokio::test]
async fn only_json_is_served() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    for path in [path("chat"), BASE.to_owned(), "/apis".to_owned(), "/openapi/v2".to_owned()] {
        let request = client.get(&path).header("accept", "application/vnd.kubernetes.protobuf");
        let message = answer(request).await.error(406, "NotAcceptable");
        assert!(message.contains("application/json"), "{message}");
    }
}

#[tokio::test]
async fn nothing_is_written_and_nothing_is_watched() {
    let fixture = fixture().await;
    for http in [Http::One, Http::Two] {
        let client = fixture.proxy(http);
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            for path in [path("chat"), BASE.to_owned(), "/apis".to_owned(), "/livez".to_owned()] {
                let request = client
                    .request(method, &path)
                    .header("X-Remote-User", HPA)
                    .body("{}".repeat(100_000));
                let answer = answer(request).await;
                assert!(!answer.error(405, "MethodNotAllowed").is_empty(), "{method} {path}");
                assert_eq!(answer.header("allow"), "GET, HEAD");
            }
        }
    }
    let client = fixture.proxy(Http::Two);
    for watch in ["true", "1", ""] {
        let answer = client.ask(&format!("{}?watch={watch}", path("chat"))).await;
        answer.error(405, "MethodNotAllowed");
    }
}

#[tokio::test]
async fn a_head_has_the_headers_of_the_get_and_no_body() {
    let fixture = fixture().await;
    for http in [Http::One, Http::Two] {
        let client = fixture.proxy(http);
        for path in [path("chat"), path("dummy"), BASE.to_owned(), "/readyz".to_owned()] {
            let get = client.ask(&path).await;
            let head = client.request("HEAD", &path).header("X-Remote-User", HPA);
            let head = answer(head).await;
            assert_eq!((head.code, head.text.as_str()), (get.code, ""), "{path}");
            for name in ["content-type", "content-length", "cache-control", "etag"] {
                assert_eq!(head.header(name), get.header(name), "{path} {name}");
            }
        }
    }
}

#[tokio::test]
async fn discovery_is_constant_and_complete() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let version =
        json!({ "groupVersion": "external.metrics.k8s.io/v1beta1", "version": "v1beta1" });
    let group = json!({
        "name": "external.metrics.k8s.io", "versions": [version], "preferredVersion": version,
    });
    let groups = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group] });
    assert_eq!(client.ask("/apis").await.json(), groups);
    let mut own = group.clone();
    own["kind"] = json!("APIGroup");
    own["apiVersion"] = json!("v1");
    for slash in ["", "/"] {
        let asked = client.ask(&format!("/apis/external.metrics.k8s.io{slash}")).await;
        assert_eq!(asked.json(), own);
        let resources = client.ask(&format!("{BASE}{slash}?timeout=32s")).await;
        assert_eq!(
            resources.json(),
            json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": "external.metrics.k8s.io/v1beta1",
                "resources": [{
                    "name": "externalmetrics", "singularName": "", "namespaced": true,
                    "kind": "ExternalMetricValueList", "verbs": ["get"],
                }],
            })
        );
    }
    let version = client.ask("/version").await.json();
    assert_eq!(version["gitVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn aggregated_discovery_is_told_apart_by_the_content_type_of_the_answer() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let accept = format!("{DISCOVERY_V2};profile=nopeer,application/json;q=0.9");
    let v2 = answer(client.get("/apis").header("accept", &accept)).await;
    assert_eq!(v2.header("content-type"), DISCOVERY_V2);
    assert_eq!(v2.header("vary"), "Accept");
    assert_eq!(v2.header("cache-control"), "public");
    let document = v2.json();
    assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2");
    let resource = &document["items"][0]["versions"][0]["resources"][0];
    assert_eq!(resource["responseKind"]["kind"], "ExternalMetricValueList");
    assert_eq!(document["items"][0]["versions"][0]["freshness"], "Current");

    let again = client.get("/apis").header("accept", &accept);
    let again = answer(again.header("if-none-match", v2.header("etag"))).await;
    assert_eq!((again.code, again.text.as_str()), (304, ""));
    assert_eq!(again.header("etag"), v2.header("etag"));

    let legacy = client.get("/apis").header("accept", "application/json");
    let legacy = answer(legacy.header("if-none-match", v2.header("etag"))).await;
    assert_eq!((legacy.code, legacy.header("content-type")), (200, "application/json"));
}

#[tokio::test]
async fn openapi_is_served_to_an_aggregator_without_groups() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let ask = |path: String| {
        answer(client.request("GET", &path).header("X-Remote-User", "system:aggregator"))
    };
    let v2 = ask("/openapi/v2".to_owned()).await;
    let document = v2.json();
    assert_eq!(document["swagger"], "2.0");
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert!(paths.iter().all(|path| path.starts_with(&format!("{BASE}/"))), "{paths:?}");

    let index = ask("/openapi/v3".to_owned()).await.json();
    let keys: Vec<&String> = index["paths"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["apis/external.metrics.k8s.io/v1beta1"]);
    let url = index["paths"][keys[0]]["serverRelativeURL"].as_str().unwrap().to_owned();
    let named = ask(url).await;
    assert_eq!(named.json()["openapi"], "3.0.0");
    assert_eq!(named.header("cache-control"), "public, immutable");
    let other = ask("/openapi/v3/apis/external.metrics.k8s.io/v1beta1?hash=OLD".to_owned()).await;
    assert_eq!((other.code, other.header("cache-control")), (200, "public"));
    assert_eq!(other.text, named.text);
    for answered in [v2, named] {
        let request = client.get(if answered.text.contains("swagger") {
            "/openapi/v2"
        } else {
            "/openapi/v3/apis/external.metrics.k8s.io/v1beta1"
        });
        let again = answer(request.header("if-none-match", answered.header("etag"))).await;
        assert_eq!(again.code, 304);
    }
    assert_eq!(ask(BASE.to_owned()).await.code, 200);
}

#[tokio::test]
async fn probes_need_no_certificate_and_look_at_no_data() {
    let fixture = Fixture::start(Options::default()).await;
    let kubelet = fixture.client(None, Http::One);
    let ask = |path: &str| answer(kubelet.request("GET", path));
    for path in ["/livez", "/readyz", "/healthz", "/readyz/ping", "/livez/ping"] {
        let probe = ask(path).await;
        assert_eq!((probe.code, probe.text.as_str()), (200, "ok"), "{path}");
    }
    let verbose = ask("/readyz?verbose").await.text;
    let checks = "[+]ping ok\n[+]shutdown ok\n[+]certificate ok\n[+]trust-anchor ok\n";
    assert_eq!(verbose, format!("{checks}readyz check passed\n"));

    fixture.phase.send_replace(ServerPhase::Unready);
    let unready = ask("/readyz").await;
    assert_eq!(unready.code, 500);
    assert!(unready.text.contains("[-]shutdown failed: reason withheld"), "{}", unready.text);
    assert_eq!(ask("/readyz?exclude=shutdown").await.code, 200);
    assert_eq!(ask("/readyz/shutdown").await.code, 500);
    assert_eq!(ask("/readyz/trust-anchor").await.code, 200);
    assert_eq!(ask("/readyz/nothing").await.code, 404);
    assert_eq!(ask("/livez").await.code, 200);

    fixture.phase.send_replace(ServerPhase::Serving);
    fixture.trust.send_replace(None);
    assert_eq!(ask("/readyz").await.code, 500);
    assert_eq!(ask("/livez").await.code, 200);
}

/// An authorizer that is stuck, as when its backend neither answers nor refuses.
struct Stuck;

impl Authorize for Stuck {
    fn authorize<'a>(&'a self, _: &'a UserIdentity, _: &'a Access) -> BoxFuture<'a, AccessVerdict> {
        std::future::pending().boxed()
    }
}

#[tokio::test]
async fn discovery_needs_neither_data_nor_authorization() {
    let options = Options { authorizer: Arc::new(Stuck), ..Options::default() };
    let fixture = Fixture::start(options).await;
    let client = fixture.proxy(Http::Two);
    for path in
        ["/apis", "/apis/external.metrics.k8s.io", BASE, "/openapi/v2", "/openapi/v3", "/version"]
    {
        assert_eq!(client.ask(path).await.code, 200, "{path}");
    }
    // The metric itself gives up instead of holding the controller's worker.
    let message = client.ask(&path("chat")).await.error(503, "ServiceUnavailable");
    assert!(message.contains("longer than a second"), "{message}");
}

#[tokio::test]
async fn requests_are_counted_by_route_and_code() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    client.ask(&path("chat")).await;
    client.ask(&path("dummy")).await;
    client.ask(BASE).await;
    client.ask("/nowhere").await;
    for (route, code) in
        [("metric", "200"), ("metric", "404"), ("discovery", "200"), ("other", "404")]
    {
        let labels = [("route", route), ("code", code)];
        let count = fixture.counter("plimsoll_external_metrics_requests_total", &labels);
        assert!((count - 1.0).abs() < f64::EPSILON, "{route} {code}: {count}");
    }
    let trusted = [("outcome", "allowed_trusted")];
    let count = fixture.counter("plimsoll_external_metrics_authorization_total", &trusted);
    assert!((count - 2.0).abs() < f64::EPSILON, "{count}");
}

#[tokio::test]
async fn served_ages_are_measured() {
    let fixture = fixture().await;
    fixture.proxy(Http::Two).ask(&path("chat")).await;
    let families = fixture.registry.gather();
    let served = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
    let ages = "plimsoll_external_metrics_metric_age_seconds_count 2";
    assert!(served.lines().any(|found| found == ages), "{served}");
}

#[tokio::test]
async fn the_admissible_rate_is_served_while_it_is_known_and_never_as_zero_for_unknown() {
    let fixture = Fixture::start(Options::default()).await;
    let now = fixture.clock.elapsed();
    fixture.publish([
        variant("chat", "a").desired(3, now).admissible(Some(29.123_456)),
        variant("chat", "b").desired(1, now).admissible(Some(0.0)),
        variant("chat", "c").desired(1, now).admissible(None),
        variant("chat", "d"),
    ]);
    let client = fixture.proxy(Http::Two);
    let base = format!("{BASE}/namespaces/chat/plimsoll_admissible_requests_per_second");
    let ask =
        async |name: &str| client.ask(&format!("{base}?labelSelector=variant%3D{name}")).await;

    let values = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    assert_eq!(ask("a").await.values(), values("a", "29123m"), "never more than the rate");
    assert_eq!(ask("b").await.values(), values("b", "0"));
    for (name, why) in
        [("c", "the admissible rate of chat/c is unknown"), ("d", "no decision yet for chat/d")]
    {
        let answer = ask(name).await;
        assert_eq!(answer.code, 503, "{answer:?}");
        assert!(answer.text.contains(why), "{answer:?}");
    }
    assert_eq!(client.ask(&base).await.code, 503, "a sum with a part missing is too small");
}

#[tokio::test]
async fn an_old_admissible_rate_expires_as_the_desired_number_does() {
    for (ages, code) in [(held(), 200), (expired(), 503)] {
        let fixture = with_ages(ages).await;
        let decided = fixture.clock.elapsed();
        fixture.publish([variant("chat", "a").desired(3, decided).admissible(Some(29.0))]);
        let client = fixture.proxy(Http::Two);
        let metric = "plimsoll_admissible_requests_per_second";
        let answer = client.ask(&format!("{BASE}/namespaces/chat/{metric}")).await;
        assert_eq!(answer.code, code, "{answer:?}");
    }
}
