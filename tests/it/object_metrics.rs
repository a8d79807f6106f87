//! Object metrics, which an HPA can follow where another provider has external metrics.

use std::time::Duration;

use plimsoll::publish::external_metrics::ExternalMetricsSettings;
use plimsoll::publish::external_metrics::authorize::AnswerLifetimes;
use plimsoll::publish::external_metrics::state::DecisionAges;
use serde_json::json;

use crate::external_metrics_auth::{Backend, Outcome};
use crate::external_metrics_harness::{BASE, Fixture, HPA, Http, Options, answer, variant};

const OBJECTS: &str = "/apis/custom.metrics.k8s.io/v1beta2";

/// The path of the desired replicas of a Deployment.
fn path(namespace: &str, deployment: &str) -> String {
    format!(
        "{OBJECTS}/namespaces/{namespace}/deployments.apps/{deployment}/plimsoll_desired_replicas"
    )
}

fn options() -> Options {
    let of_api = Options::default();
    let settings = ExternalMetricsSettings { object_metrics: true, ..of_api.settings };
    Options { settings, ..of_api }
}

async fn fixture() -> Fixture {
    let fixture = Fixture::start(options()).await;
    fixture.publish([
        variant("chat", "a").desired(3, fixture.clock.elapsed()),
        variant("chat", "b").desired(0, fixture.clock.elapsed()),
        variant("chat", "cold"),
        variant("code", "c").desired(12_000, fixture.clock.elapsed()),
    ]);
    fixture
}

#[tokio::test]
async fn the_metric_of_an_object_is_what_an_hpa_controller_reads() {
    let fixture = fixture().await;
    let asked = fixture
        .proxy(Http::Two)
        .get(&path("chat", "a"))
        .header("accept", "application/vnd.kubernetes.protobuf, */*");
    let found = answer(asked).await;
    assert_eq!(found.code, 200);
    assert_eq!(
        found.json(),
        json!({
            "kind": "MetricValueList",
            "apiVersion": "custom.metrics.k8s.io/v1beta2",
            "metadata": {},
            "items": [{
                "describedObject": {"kind": "Deployment", "namespace": "chat", "name": "a"},
                "metric": {"name": "plimsoll_desired_replicas"},
                "timestamp": "2026-11-21T01:37:04Z",
                "value": "3",
            }],
        })
    );

    let client = fixture.proxy(Http::Two);
    let value = async |path: &str| client.ask(path).await.json()["items"][0]["value"].clone();
    assert_eq!(value(&path("chat", "b")).await, "0");
    assert_eq!(value(&path("code", "c")).await, "12k");
    let selected = format!("{}?metricLabelSelector=variant%3Da", path("chat", "other-name"));
    assert_eq!(value(&selected).await, "3", "the selector names the variant of the object");
}

#[tokio::test]
async fn an_object_without_a_value_of_one_variant_is_an_error_and_never_zero() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let cold = client.ask(&path("chat", "cold")).await.error(503, "ServiceUnavailable");
    assert!(cold.contains("no decision yet for chat/cold"), "{cold}");
    let unknown = client.ask(&path("chat", "x")).await.error(404, "NotFound");
    assert!(unknown.contains("the name of the object, x") && unknown.contains("a, b"), "{unknown}");
    let selected = format!("{}?metricLabelSelector=variant%3Dc", path("chat", "a"));
    let foreign = client.ask(&selected).await.error(404, "NotFound");
    assert!(foreign.contains("in namespace chat matches the selector"), "{foreign}");
    let selected = format!("{}?metricLabelSelector=role%3Dboth", path("chat", "a"));
    let several = client.ask(&selected).await.error(400, "BadRequest");
    assert!(several.contains("matches 3 variants"), "{several}");
    let all = path("chat", "*");
    assert!(client.ask(&all).await.error(400, "BadRequest").contains("single objects"));
    let other = path("chat", "a").replace("plimsoll_desired_replicas", "queue");
    assert!(client.ask(&other).await.error(404, "NotFound").contains("unknown metric"));
}

#[tokio::test]
async fn an_old_decision_is_refused_as_an_external_metric_is() {
    let ages = DecisionAges { fresh: Duration::ZERO, hold: Duration::ZERO };
    let of_api = options();
    let settings = ExternalMetricsSettings { ages, ..of_api.settings };
    let fixture = Fixture::start(Options { settings, ..of_api }).await;
    fixture.publish([variant("chat", "a").desired(0, Duration::ZERO)]);
    let old = fixture.proxy(Http::Two).ask(&path("chat", "a")).await;
    assert!(old.error(503, "ServiceUnavailable").contains("the decision for chat/a"));
}

#[tokio::test]
async fn an_object_is_only_read_and_only_as_json() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = client.request(method, &path("chat", "a")).header("X-Remote-User", HPA);
        answer(request.body("{}".to_owned())).await.error(405, "MethodNotAllowed");
    }
    for form in
        ["application/vnd.kubernetes.protobuf", "application/json;as=Table;g=meta.k8s.io;v=v1"]
    {
        let request = client.get(&path("chat", "a")).header("accept", form);
        answer(request).await.error(406, "NotAcceptable");
    }
}

#[tokio::test]
async fn the_group_is_discovered_beside_that_of_external_metrics() {
    let fixture = fixture().await;
    let client = fixture.proxy(Http::Two);
    let groups = client.ask("/apis").await.json();
    let names: Vec<_> = groups["groups"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["external.metrics.k8s.io", "custom.metrics.k8s.io"]);
    let group = client.ask("/apis/custom.metrics.k8s.io").await.json();
    assert_eq!(group["preferredVersion"]["groupVersion"], "custom.metrics.k8s.io/v1beta2");
    let resources = client.ask(OBJECTS).await.json();
    let first = &resources["resources"][0];
    assert_eq!(first["name"], "deployments.apps/plimsoll_desired_replicas");
    // While discovery names something that can be deleted, deleting a namespace would ask for it.
    assert_eq!(first["verbs"], json!(["get"]));
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let both = answer(client.get("/apis").header("accept", v2)).await.json();
    assert_eq!(both["items"][1]["metadata"]["name"], "custom.metrics.k8s.io");
}

#[tokio::test]
async fn object_metrics_are_off_unless_they_are_switched_on() {
    let fixture = Fixture::start(Options::default()).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let client = fixture.proxy(Http::Two);
    for path in [path("chat", "a"), OBJECTS.to_owned(), "/apis/custom.metrics.k8s.io".to_owned()] {
        let off = client.ask(&path).await.error(404, "NotFound");
        assert!(off.contains("external_metrics.object_metrics is false"), "{off}");
    }
    assert_eq!(client.ask("/apis").await.json()["groups"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_review_is_about_the_metric_of_the_object_and_no_permission_is_shared_with_the_other_group()
 {
    let backend = Backend::new(|spec| {
        let coarse = spec["resourceAttributes"]["resource"] == "*";
        let external = spec["resourceAttributes"]["group"] == "external.metrics.k8s.io";
        if external || !coarse { Outcome::Allow } else { Outcome::Deny }
    });
    let authorizer = backend.authorizer(AnswerLifetimes::default()).await;
    let fixture = Fixture::start(Options { authorizer, ..options() }).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let client = fixture.proxy(Http::Two);
    let external = format!("{BASE}/namespaces/chat/plimsoll_desired_replicas");
    assert_eq!(client.ask(&external).await.code, 200);
    assert_eq!(client.ask(&path("chat", "a")).await.code, 200);

    let reviews = backend.reviews.lock().unwrap().clone();
    let asked: Vec<_> = reviews.iter().map(|spec| spec["resourceAttributes"].clone()).collect();
    assert!(reviews.iter().all(|spec| spec["user"] == HPA), "{reviews:?}");
    let of_objects = |namespace: &str, resource: &str, metric: &str| {
        json!({"namespace": namespace, "verb": "get", "group": "custom.metrics.k8s.io",
               "version": "v1beta2", "resource": resource, "subresource": metric})
    };
    let mut exact = of_objects("chat", "deployments.apps", "plimsoll_desired_replicas");
    exact["name"] = "a".into();
    assert_eq!(asked[1..], [of_objects("", "*", "*"), exact]);

    backend.rule(|_| Outcome::Deny);
    let refused = client.ask(&path("chat", "b")).await.error(403, "Forbidden");
    assert!(
        refused.contains("cannot get resource \"deployments.apps/plimsoll_desired_replicas\""),
        "{refused}"
    );
}
