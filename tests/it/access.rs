//! The plain port of a running daemon: which requests may change it, and when it is ready.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::fake::FakeCluster;
use crate::daemon::{Engine, Running, text};
use crate::events::configuration;
use crate::external_metrics_harness::{Authority, Use, Validity, config_map, write_leaf};

/// A test that waits for so long has failed; nothing is expected to come near it.
const PATIENCE: Duration = Duration::from_mins(1);

const LISTEN: &str = "server: {listen: \"127.0.0.1:0\"";

/// A daemon with these keys of its server, and a file `token`.
async fn serving(server: &str) -> Running {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("token"), "of-an-operator\n").unwrap();
    let text = text(&[("a", engine.address)], "").replace(LISTEN, &format!("{LISTEN}{server}"));
    Running::start_in(folder, &text).await
}

/// A reload that is requested from another address than that of the daemon.
fn from_elsewhere(daemon: &Running) -> RequestBuilder {
    let client = Client::builder().local_address(IpAddr::from([127, 0, 0, 2])).build().unwrap();
    client.post(format!("http://{}/-/reload", daemon.daemon.admin()))
}

async fn answer(request: RequestBuilder) -> (StatusCode, String) {
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn another_host_may_not_change_the_daemon_and_reads_how_it_could() {
    let daemon = serving("").await;
    let (status, said) = answer(from_elsewhere(&daemon)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(said.contains("port-forward") && said.contains("server.admin_token_file"), "{said}");
    let log = daemon.request("PUT", "/-/log").header("x-forwarded-for", "10.1.2.3").body("off");
    assert_eq!(answer(log).await.0, StatusCode::FORBIDDEN);
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::OK, "its own host may");
    daemon.end().await;
}

#[tokio::test]
async fn another_host_changes_the_daemon_with_the_token_of_the_file() {
    let daemon = serving(", admin_token_file: token").await;
    assert_eq!(answer(from_elsewhere(&daemon)).await.0, StatusCode::FORBIDDEN);
    let with = |token: &str| from_elsewhere(&daemon).bearer_auth(token);
    assert_eq!(answer(with("of-a-stranger")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(answer(with("of-an-operator")).await.0, StatusCode::OK);
    daemon.end().await;
}

#[tokio::test]
async fn web_pages_change_nothing_and_read_only_under_allowed_names() {
    let daemon = serving(", allowed_hosts: [plimsoll.example.com]").await;
    let reload = daemon.request("POST", "/-/reload").header("origin", "https://wiki.example");
    assert_eq!(answer(reload).await.0, StatusCode::FORBIDDEN);
    let read = |host: &str| {
        let request = daemon.request("GET", "/api/v1/decisions").header("host", host);
        answer(request.header("accept-language", "en"))
    };
    assert_eq!(read("rebound.example").await.0, StatusCode::FORBIDDEN);
    assert_eq!(read("plimsoll.example.com").await.0, StatusCode::OK);
    assert_eq!(read("localhost:8080").await.0, StatusCode::OK);
    daemon.end().await;
}

#[tokio::test]
async fn disabled_changes_are_refused_to_the_daemons_own_host_as_well() {
    let daemon = serving(", admin_enabled: false").await;
    let (status, said) = daemon.ask("POST", "/-/reload").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(said.contains("server.admin_enabled"), "{said}");
    daemon.end().await;
}

/// A daemon that serves the external metrics API with `tls.crt` and `tls.key` of its folder.
async fn with_certificate_files(fake: &FakeCluster) -> Running {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    let serving = Authority::new("serving-ca");
    write_leaf(folder.path(), &serving.issue("plimsoll", Use::Server, Validity::Now));
    let served = "external_metrics: {listen: \"127.0.0.1:0\", \
                  tls: {cert_file: tls.crt, key_file: tls.key}}";
    let text = configuration(&folder, fake, &engine, "");
    let text = text.replace("external_metrics: {enabled: false}", served);
    Running::start_in(folder, &text).await
}

#[tokio::test]
async fn no_port_is_ready_before_the_front_proxys_authority_is_known() {
    const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
    let fake = FakeCluster::start().await;
    let daemon = with_certificate_files(&fake).await;

    let (status, said) = daemon.ask("GET", "/readyz").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{said}");
    assert!(said.contains("[-] trust-anchor failed: the front proxy's"), "{said}");

    let data = config_map(&Authority::new("front-proxy-ca").pem, r#"["front-proxy-client"]"#);
    let name = "extension-apiserver-authentication";
    fake.put(MAPS, &json!({"metadata": {"name": name}, "data": data}));
    let ready = async {
        while daemon.ask("GET", "/readyz").await.0 != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("it becomes ready");
    daemon.end().await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_again_is_counted_and_the_old_one_stays() {
    const EXPIRES: &str = "plimsoll_tls_certificate_not_after_timestamp_seconds ";
    const FAILURES: &str = "plimsoll_tls_reload_failures_total ";
    let in_2090 = 3_786_912_000.0;
    let daemon = with_certificate_files(&FakeCluster::start().await).await;
    assert_eq!(daemon.sample(EXPIRES).await, Some(in_2090));
    assert_eq!(daemon.sample(FAILURES).await, Some(0.0));

    fs::write(daemon.folder.path().join("tls.crt"), "torn").unwrap();
    let counted = async {
        while daemon.sample(FAILURES).await == Some(0.0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("the failure is counted");
    assert_eq!(daemon.sample(EXPIRES).await, Some(in_2090));
    daemon.end().await;
}
