//! A stretch of a recording, served over HTTP to a whole daemon.

use std::collections::BTreeMap;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, header};
use plimsoll::config::{self, Files, Surroundings};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::fleet::ModelName;
use plimsoll::observe::Reading;
use plimsoll::publish::Published;
use plimsoll::units::Requests;

use crate::recordings::recording::{Recording, looked_at, recordings};
use crate::recordings::replay::QUEUE_LENGTH;
use crate::scrape::server::{Server, full};

/// Pages that are served, one each scrape; the last is served again and again.
const PAGES: usize = 10;

/// A test that waits for so long has failed; nothing is expected to come near it.
const PATIENCE: Duration = Duration::from_mins(1);

/// The content type that vLLM sends, whatever is asked for.
const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

fn config(address: &str, model: &ModelName) -> config::Config {
    let text = format!(
        "{{
            tick_interval: 200ms,
            server: {{listen: '127.0.0.1:0'}},
            external_metrics: {{enabled: false}},
            shutdown: {{delay: 0s, drain: 1s}},
            observe: {{window: 2s}},
            analysis: saturation,
            scrape: {{interval: 300ms, timeout: 290ms}},
            variants: [{{
                name: cpu, namespace: recordings, model: '{model}',
                targets: {{static: ['{address}']}},
            }}],
        }}"
    );
    let surroundings = Surroundings {
        origin: "the test".into(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    config::parse(&text, &surroundings).unwrap().config
}

/// The stretch of a recording of one server in which its queue passes the threshold for good.
fn stretch(recording: &Recording) -> Option<Vec<(Bytes, Reading)>> {
    let [server] = recording.servers.as_slice() else { return None };
    let start = recording.phase("sat")?.start;
    let pages: Vec<_> = server.pages.iter().filter(|page| page.outcome.is_ok()).collect();
    let full = pages.iter().position(|page| {
        let Ok(reading) = &page.outcome else { return false };
        let waiting = reading.ranks.first().and_then(|rank| rank.waiting);
        page.asked >= start && waiting.is_some_and(|it| it.requests() >= QUEUE_LENGTH)
    })?;
    let last = full + PAGES / 3;
    let stretch = pages.get(last.checked_sub(PAGES)?..last)?.iter();
    stretch.map(|page| Some((page.body.clone(), page.outcome.clone().ok()?))).collect()
}

/// The value of a metric of our only variant.
fn value(page: &str, name: &str) -> Option<f64> {
    let sample = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('{'))?;
    sample.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_daemon_that_scrapes_recorded_pages_shows_what_they_say() {
    let found = recordings().iter().find_map(stretch);
    looked_at(found.iter().len(), "one server whose queue grows");
    let Some(pages) = found else { return };
    let (_, last) = pages.last().unwrap();
    let bodies: Arc<[Bytes]> = pages.iter().map(|(body, _)| body.clone()).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let server = Server::http(move |_| {
        let turn = counter.fetch_add(1, Ordering::SeqCst).min(bodies.len() - 1);
        let mut response = Response::new(full(&bodies[turn]));
        let content_type = header::HeaderValue::from_static(CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        ready(response)
    })
    .await;
    let daemon = Daemon::start(
        config(&server.address.to_string(), &last.models[0]),
        DaemonOptions::default(),
    )
    .await
    .unwrap();

    let rank = &last.ranks[0];
    let mut published = daemon.published();
    let settled = published.wait_for(|published| shows_only(published, last));
    drop(tokio::time::timeout(PATIENCE, settled).await.expect("the last page is shown").unwrap());

    let url = format!("http://{}/metrics", daemon.admin());
    let page = reqwest::get(url).await.unwrap().text().await.unwrap();
    let shown = |name| value(&page, name);
    assert_eq!(shown("plimsoll_waiting_requests"), rank.waiting.map(Requests::requests));
    assert_eq!(shown("plimsoll_running_requests"), rank.running.map(Requests::requests));
    let kv = rank.kv_usage.unwrap().fraction();
    let shown_kv = shown("plimsoll_kv_cache_usage_ratio").unwrap();
    assert!((shown_kv - kv).abs() < 1e-9, "a mean of equal values: {shown_kv} for {kv}");
    assert_eq!(shown("plimsoll_current_replicas"), Some(1.0));
    assert_eq!(shown("plimsoll_desired_replicas"), Some(2.0), "the queue is above the threshold");
    assert_eq!(shown("plimsoll_decision_held"), Some(0.0));
    assert!(asked.load(Ordering::SeqCst) > PAGES, "every page was asked for");
    daemon.shutdown().await;
}

/// Whether the window holds nothing but this page.
fn shows_only(published: &Published, page: &Reading) -> bool {
    let replicas = published.variants.values().flat_map(|variant| &variant.observation.replicas);
    replicas.into_iter().any(|replica| {
        let rank = &page.ranks[0];
        let kv = replica.kv_usage.is_some_and(|kv| {
            rank.kv_usage.is_some_and(|it| {
                kv.last == it && (kv.mean.fraction() - it.fraction()).abs() < 1e-12
            })
        });
        let same = |gauge: Option<Requests>, value| gauge == value;
        kv && same(replica.waiting.map(|it| it.last), rank.waiting)
            && same(replica.waiting.map(|it| it.peak), rank.waiting)
            && same(replica.running.map(|it| it.last), rank.running)
    })
}
