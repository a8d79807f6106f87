//! The JSON API and the status page against a running daemon and against their documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::simulate::replica::stats::Stats;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use crate::daemon::{Engine, Running, stats, text};

/// A pool whose engine does not say which adapters it serves, and a policy that is only shown.
const POOL: &str = "pools: {default/a: {max_loras: 2, adapters: {x: {copies: 1}}}}\n\
                    shadow: [{name: wide, observe: {window: 3s, stale_after: 1s}}]\n";

/// A daemon with a variant that has grown to two, and one whose replica never answers.
async fn running() -> (Engine, Running) {
    let engine = Engine::start().await;
    let nobody = "127.0.0.1:1".parse().unwrap();
    let daemon = Running::start(&text(&[("a", engine.address), ("b", nobody)], POOL)).await;
    daemon.until_desired("a", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("a", Some(2.0)).await;
    (engine, daemon)
}

async fn get(daemon: &Running, path: &str) -> Value {
    let (status, body) = daemon.ask("GET", path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

async fn refused(daemon: &Running, path: &str, status: StatusCode) -> String {
    let (found, body) = daemon.ask("GET", path).await;
    assert_eq!(found, status, "{path}: {body}");
    let body: Map<String, Value> = serde_json::from_str(&body).unwrap();
    assert_eq!(body.len(), 1, "{body:?}");
    body["error"].as_str().unwrap().to_owned()
}

const DESIRED_OF_A: &str = "/api/v1/desired?namespace=default&variant=a";
const HISTORY_OF_A: &str = "/api/v1/history?namespace=default&variant=a";

#[tokio::test]
async fn every_answer_has_the_fields_that_are_documented_and_no_others() {
    let (_engine, daemon) = running().await;
    fs::write(daemon.file(), "variants: 7\n").unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::BAD_REQUEST);
    let document = get(&daemon, "/api/v1/openapi.json").await;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut seen = BTreeSet::new();
    for (path, shape) in [
        ("/api/v1/summary", "Summary"),
        ("/api/v1/decisions", "Decisions"),
        (DESIRED_OF_A, "Desired"),
        (HISTORY_OF_A, "History"),
        ("/api/v1/explain?namespace=default&variant=a", "Explanation"),
        ("/api/v1/events", "Events"),
        ("/api/v1/status", "Status"),
    ] {
        compare(&get(&daemon, path).await, &reference(shape), schemas, path, &mut seen);
    }
    let error = refused(&daemon, "/api/v1/nothing", StatusCode::NOT_FOUND).await;
    compare(&json!({"error": error}), &reference("Error"), schemas, "error", &mut seen);
    // Only a cluster has pod templates and an APIService, and only `optimizer: rank` a ranking. What
    // `foresight` finds is compared in `terms.rs`, pins are in `overrides.rs`.
    let unseen: Vec<_> = schemas.keys().filter(|name| !seen.contains(*name)).collect();
    let elsewhere = [
        "Balance",
        "Override",
        "Engine",
        "RankedOption",
        "Foreseen",
        "Term",
        "Carries",
        "Slowest",
        "LoadThreshold",
        "Change",
        "Autoscaler",
        "ApiService",
        "Leader",
    ];
    assert_eq!(unseen, elsewhere);
    daemon.end().await;
}

#[tokio::test]
async fn the_document_of_the_api_describes_every_field_word_for_word() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    let document = get(&daemon, "/api/v1/openapi.json").await;
    daemon.end().await;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut documented = tables(&fs::read_to_string(root("docs/api.md")).unwrap());
    for (name, schema) in schemas {
        let rows: Vec<Row> = schema["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(field, schema)| Row {
                field: field.clone(),
                kind: kind(schema),
                meaning: schema["description"].as_str().unwrap_or_default().replace('\n', " "),
            })
            .collect();
        assert_eq!(documented.remove(name), Some(rows), "docs/api.md, {name}");
    }
    let paths = documented.remove("").unwrap_or_default();
    let paths: Vec<&str> = paths.iter().map(|row| row.field.as_str()).collect();
    let served: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths, served, "docs/api.md, the paths");
    assert_eq!(documented, BTreeMap::new(), "docs/api.md has nothing else");
}

#[tokio::test]
async fn the_openapi_document_is_the_one_in_the_repository() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    let served = get(&daemon, "/api/v1/openapi.json").await;
    daemon.end().await;
    let served = format!("{served:#}\n");
    let file = root("docs/openapi.json");
    if std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        fs::write(&file, &served).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == served, "INSTA_UPDATE=always cargo test --test it api writes {file:?}");
}

#[tokio::test]
async fn what_cannot_be_answered_says_why_as_json() {
    let (_engine, daemon) = running().await;
    for (path, says) in [
        (
            "/api/v1/decisions?colour=red",
            "\"colour\"; /api/v1/decisions takes namespace, model, variant",
        ),
        ("/api/v1/decisions?model=m&model=m", "is repeated"),
        ("/api/v1/decisions?model=", "has no value"),
        ("/api/v1/desired", "\"namespace\" is missing"),
        ("/api/v1/history", "\"namespace\" is missing"),
        ("/api/v1/history?namespace=default", "\"variant\" is missing"),
        ("/api/v1/events?limit=0", "a number from 1 to 1000"),
        ("/api/v1/events?limit=many", "\"many\""),
        ("/api/v1/status?namespace=default", "/api/v1/status takes none"),
    ] {
        let said = refused(&daemon, path, StatusCode::BAD_REQUEST).await;
        assert!(said.contains(says), "{path}: {said}");
    }
    for (path, says) in [
        ("/api", "/api/v1/status"),
        ("/api/v2/decisions", "/api/v1/decisions"),
        ("/api/v1/desired?namespace=default&variant=c", "no variant default/c"),
        ("/api/v1/desired?namespace=elsewhere&variant=a", "no variant elsewhere/a"),
        ("/api/v1/history?namespace=default&variant=c", "no variant default/c"),
    ] {
        let said = refused(&daemon, path, StatusCode::NOT_FOUND).await;
        assert!(said.contains(says), "{path}: {said}");
    }
    let answer = daemon.request("DELETE", "/api/v1/decisions").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.headers()["allow"], "GET, HEAD");
    assert_eq!(answer.headers()["content-type"], "application/json");
    daemon.end().await;
}

#[tokio::test]
async fn desired_replicas_are_answered_only_while_they_may_be_followed() {
    let (_engine, daemon) = running().await;
    let answer = get(&daemon, DESIRED_OF_A).await;
    assert_eq!((&answer["replicas"], &answer["state"]), (&json!(2), &json!("fresh")), "{answer}");
    assert_eq!(answer["variant"], "a");

    // The replica of this variant never answers, so it has no decision: no 200, and no 0 anywhere.
    let cold = "/api/v1/desired?namespace=default&variant=b";
    let why = refused(&daemon, cold, StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(why.contains("no decision yet for default/b"), "{why}");
    daemon.end().await;
}

#[tokio::test]
async fn answers_are_never_kept_and_head_is_answered_without_a_body() {
    let (_engine, daemon) = running().await;
    for path in [
        "/api/v1/summary",
        "/api/v1/decisions",
        DESIRED_OF_A,
        HISTORY_OF_A,
        "/api/v1/events",
        "/api/v1/status",
        "/api/no",
    ] {
        for method in ["GET", "HEAD"] {
            let answer = daemon.request(method, path).send().await.unwrap();
            let headers = answer.headers().clone();
            assert_eq!(headers["content-type"], "application/json", "{path}");
            assert_eq!(headers["cache-control"], "no-store", "{path}");
            assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
            let body = answer.bytes().await.unwrap();
            assert_eq!(body.is_empty(), method == "HEAD", "{method} {path}");
        }
    }
    daemon.end().await;
}

#[tokio::test]
async fn a_filter_leaves_what_it_names() {
    let (_engine, daemon) = running().await;
    let named = async |query: &str| -> Vec<String> {
        let answer = get(&daemon, &format!("/api/v1/decisions?{query}")).await;
        let variants = answer["variants"].as_array().unwrap().iter();
        variants.map(|it| it["variant"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(named("").await, ["a", "b"]);
    assert_eq!(named("variant=b").await, ["b"]);
    assert_eq!(named("namespace=default&model=m&variant=a").await, ["a"]);
    assert_eq!(named("namespace=elsewhere").await, [""; 0], "it is no error to find nothing");
    let events = async |query: &str| -> usize {
        let answer = get(&daemon, &format!("/api/v1/events?{query}")).await;
        answer["events"].as_array().unwrap().len()
    };
    assert_eq!(events("variant=b").await, 0, "it never had a number");
    assert!(events("variant=a").await >= 2);
    assert_eq!(events("variant=a&limit=1").await, 1);
    daemon.end().await;
}

#[tokio::test]
async fn the_past_of_a_variant_leads_to_its_number() {
    let (_engine, daemon) = running().await;
    let past = get(&daemon, HISTORY_OF_A).await;
    let levels = past["replicas"].as_array().unwrap();
    let desired: Vec<_> = levels.iter().map(|level| level["desired"].as_u64()).collect();
    assert_eq!(desired.last().unwrap(), &Some(2), "{past}");
    assert!(desired.contains(&Some(1)), "{past}");
    let ages: Vec<_> = levels.iter().map(|level| level["age_seconds"].as_f64().unwrap()).collect();
    assert!(ages.is_sorted_by(|a, b| a >= b), "the oldest is first: {ages:?}");
    assert!(!past["load"].as_array().unwrap().is_empty());
    let events = get(&daemon, "/api/v1/events?variant=a").await;
    let grown = events["events"].as_array().unwrap().iter().find(|it| it["before"] == 1).unwrap();
    assert_eq!((&grown["change"], &grown["after"]), (&json!("desired"), &json!(2)));
    assert!(grown["text"].as_str().unwrap().contains("headroom"), "{grown}");
    let blind = get(&daemon, "/api/v1/history?namespace=default&variant=b").await;
    let last = blind["replicas"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["desired"], &last["basis"]), (&Value::Null, &json!("none")));
    daemon.end().await;
}

#[tokio::test]
async fn the_status_sums_up_the_fleet_and_says_what_was_refused() {
    let (engine, daemon) = running().await;
    let status = get(&daemon, "/api/v1/status").await;
    let fleet = &status["fleet"];
    assert_eq!((&fleet["models"], &fleet["variants"]), (&json!(1), &json!(2)));
    assert_eq!((&fleet["undecided"], &fleet["desired_replicas"]), (&json!(1), &json!(2)));
    assert_eq!(fleet["saturated"], 1, "{status}");
    assert_eq!(status["sources"]["replicas_never"], 1, "{status}");
    assert_eq!(status["config"]["last_reload"], Value::Null);
    assert_eq!((&status["ready"], &status["api_service"]), (&json!(true), &Value::Null));
    let hash = status["config"]["hash"].clone();

    fs::write(daemon.file(), "variants: []\nshutdown: {delay: -1s}\n").unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::BAD_REQUEST);
    engine.show(None);
    daemon.until_sample("plimsoll_decision_held{", 1.0).await;
    let status = get(&daemon, "/api/v1/status").await;
    assert_eq!(status["fleet"]["held"], 1);
    let reload = &status["config"]["last_reload"];
    assert_eq!(reload["accepted"], false);
    assert!(reload["problem"].as_str().unwrap().contains("shutdown.delay"), "{reload}");
    assert_eq!(status["config"]["hash"], hash, "the last good one is in force");

    let refused = async || {
        let items = get(&daemon, "/api/v1/status").await["attention"].clone();
        items.as_array().unwrap().iter().find(|it| it["cause"] == "config_refused").unwrap().clone()
    };
    let first = refused().await;
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(refused().await["since"], first["since"], "a second attempt begins nothing");
    daemon.end().await;
}

#[tokio::test]
async fn a_browser_gets_the_page_and_everything_else_the_list_of_paths() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let page = daemon.request("GET", "/").header("Accept", browser).send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers()["vary"], "Accept, Accept-Encoding");
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert!(page.text().await.unwrap().starts_with("<!doctype html>"));
    for (path, accept) in [("/", "*/*"), ("/", "text/plain"), ("/help", browser)] {
        let answer = daemon.request("GET", path).header("Accept", accept).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8", "{accept}");
        assert!(answer.text().await.unwrap().contains("/api/v1/decisions"), "{accept}");
    }
    daemon.end().await;
}

#[tokio::test]
async fn a_reader_with_the_tag_gets_304_until_something_changes() {
    let (engine, daemon) = running().await;
    for path in ["/", "/api/v1/events?variant=b", "/api/v1/summary?variant=b"] {
        let ask = |known: Option<String>| {
            let request = daemon.request("GET", path).header("Accept", "text/html");
            known.into_iter().fold(request, |it, tag| it.header("If-None-Match", tag)).send()
        };
        let first = ask(None).await.unwrap();
        let tag = first.headers()["etag"].to_str().unwrap().to_owned();
        assert!(!first.bytes().await.unwrap().is_empty(), "{path}");
        let second = ask(Some(tag.clone())).await.unwrap();
        assert_eq!(second.status(), StatusCode::NOT_MODIFIED, "{path}");
        assert_eq!(second.headers()["etag"], tag, "{path}");
        assert!(second.bytes().await.unwrap().is_empty(), "{path}");
        assert_eq!(ask(Some("W/\"0\"".to_owned())).await.unwrap().status(), StatusCode::OK);
    }

    let tag = async || {
        let answer = daemon.request("GET", "/api/v1/events?variant=a").send().await.unwrap();
        answer.headers()["etag"].clone()
    };
    let before = tag().await;
    engine.show(None);
    daemon.until_sample("plimsoll_decision_held{", 1.0).await;
    assert_ne!(before, tag().await, "holding is an event");
    daemon.end().await;
}

#[tokio::test]
async fn long_answers_are_compressed_for_a_reader_that_accepts_it() {
    let (_engine, daemon) = running().await;
    // This client shows an answer as it is sent.
    let client = reqwest::Client::builder().no_proxy().no_gzip().build().unwrap();
    for path in ["/", "/api/v1/decisions"] {
        let url = daemon.request("GET", path).build().unwrap().url().clone();
        let ask = client.get(url).header("Accept", "text/html");
        let plain = ask.try_clone().unwrap().send().await.unwrap();
        assert!(!plain.headers().contains_key("content-encoding"), "{path}");
        let length = plain.bytes().await.unwrap().len();
        let packed = ask.header("Accept-Encoding", "gzip").send().await.unwrap();
        assert_eq!(packed.headers()["content-encoding"], "gzip", "{path}");
        let packed = packed.bytes().await.unwrap();
        assert!(packed.len() * 2 < length, "{path}: {} of {length}", packed.len());
    }
    daemon.end().await;
}

#[tokio::test]
async fn what_needs_a_person_has_a_cause_a_start_a_runbook_and_a_command() {
    let (engine, daemon) = running().await;
    let status = get(&daemon, "/api/v1/status").await;
    let items = status["attention"].as_array().unwrap();
    let undecided = items.iter().find(|it| it["cause"] == "undecided").unwrap();
    assert_eq!((&undecided["count"], &undecided["severity"]), (&json!(1), &json!("critical")));
    let variants = json!([{"namespace": "default", "variant": "b"}]);
    assert_eq!(undecided["variants"], variants, "{undecided}");
    assert_eq!(undecided["command"], "plimsoll explain default/b");
    assert!(undecided["since"].is_string(), "{undecided}");

    let runbook = undecided["runbook"].as_str().unwrap();
    let (found, text) = daemon.ask("GET", &format!("/runbooks/{runbook}")).await;
    assert_eq!(found, StatusCode::OK);
    assert!(text.starts_with(&format!("# {runbook}\n")), "{text}");
    assert_eq!(daemon.ask("GET", "/runbooks/Nothing").await.0, StatusCode::NOT_FOUND);

    engine.show(None);
    daemon.until_sample("plimsoll_decision_held{", 1.0).await;
    let status = get(&daemon, "/api/v1/status").await;
    let causes = status["attention"].as_array().unwrap().iter().map(|it| it["cause"].as_str());
    assert!(causes.clone().any(|it| it == Some("held")), "{status}");
    let summary = get(&daemon, "/api/v1/summary?variant=a").await;
    assert_eq!(summary["variants"][0]["attention"][0], "held", "{summary}");
    daemon.end().await;
}

// === what is documented ===

/// One row of a table in docs/api.md.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    field: String,
    kind: String,
    meaning: String,
}

/// The tables by the headings above them.
fn tables(text: &str) -> BTreeMap<String, Vec<Row>> {
    let mut tables: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    let mut heading = "";
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            heading = title;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [field, kind, meaning] = cells[..] else { continue };
        let Some(field) = field.strip_prefix('`').and_then(|it| it.strip_suffix('`')) else {
            continue;
        };
        let (field, kind) = (field.to_owned(), kind.to_owned());
        let row = Row { field, kind, meaning: meaning.to_owned() };
        tables.entry(heading.to_owned()).or_default().push(row);
    }
    tables
}

/// The type of a field, as the tables write it.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => {
            names.iter().map(|it| it.as_str().unwrap()).collect::<Vec<_>>().join(" or ")
        }
        _ => panic!("{schema}"),
    }
}

pub(crate) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Panics where a value is not of its schema. An object has all of its schema's fields and no
/// others. Notes each named schema that it meets.
pub(crate) fn compare(
    value: &Value,
    schema: &Value,
    schemas: &Map<String, Value>,
    at: &str,
    seen: &mut BTreeSet<String>,
) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        seen.insert(name.to_owned());
        return compare(value, &schemas[name], schemas, at, seen);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let null = |choice: &&Value| (choice["type"] == "null") == value.is_null();
        let choice = choices.iter().find(null).unwrap_or_else(|| panic!("{at}: {value}"));
        return compare(value, choice, schemas, at, seen);
    }
    let of = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: {other}"),
    };
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().map(|it| it.as_str().unwrap()).collect(),
        _ => panic!("{at}: {schema}"),
    };
    assert!(names.into_iter().any(of), "{at}: {value} is not {}", schema["type"]);
    if let Value::Array(items) = value {
        for (index, item) in items.iter().enumerate() {
            compare(item, &schema["items"], schemas, &format!("{at}[{index}]"), seen);
        }
    }
    if let Value::Object(fields) = value {
        let properties = schema["properties"].as_object().unwrap();
        let (has, should): (Vec<_>, Vec<_>) =
            (fields.keys().collect(), properties.keys().collect());
        assert_eq!(has, should, "{at}");
        for (name, field) in fields {
            compare(field, &properties[name], schemas, &format!("{at}.{name}"), seen);
        }
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
