//! Faults of engines, of their /metrics responses and of the network in between.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::{Script, script};
use crate::engine::EngineResponse;
use crate::fleet::Behavior;
use crate::page::MODEL;
use crate::pages;
use crate::scene::{FAULT, Finding, LESS, LOAD, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("none", nothing()),
        script!("engine-port-closed", port_closed()),
        script!("engine-hangs", hidden(&[Behavior::Hang])),
        script!("engine-breaks-off", hidden(&[Behavior::Reset, Behavior::StallAfterHead])),
        script!("engine-slow", served(Behavior::Slow(Duration::from_millis(500)))),
        script!("engine-lossy", served(Behavior::Lossy)),
        script!("engine-partly-silent", partly(Behavior::Hang)),
        script!("engine-returns", late()),
        script!(
            "address-of-another-model",
            hidden(&[Behavior::Edited(|page| another_model(&page))])
        ),
        script!("page-without-metrics", hidden(&WITHOUT_METRICS)),
        script!("page-content-type", hidden(&[Behavior::Head(ANOTHER_TYPE)])),
        script!("page-cut", hidden(&[Behavior::Edited(|page| page[..page.len() / 3].into())])),
        script!("page-empty", hidden(&[Behavior::Edited(|_| String::new())])),
        script!("page-values", hidden(&ODD_VALUES)),
        script!("page-series-twice", hidden(&[Behavior::Edited(|page| format!("{page}{page}"))])),
        script!("page-hostile-labels", bytes(&[pages::hostile_labels, pages::binary])),
        script!("page-explosion", bytes(&[pages::many_series, pages::million_samples])),
        script!("page-endless", bytes(&ENDLESS)),
        script!("page-gzip-bomb", bytes(&[pages::gzip_bomb])),
        script!("page-frozen", frozen()),
    ]
}

/// Responses that are complete and have no metrics.
const WITHOUT_METRICS: [Behavior; 7] = [
    Behavior::Head("HTTP/1.1 500 Internal Server Error"),
    Behavior::Head("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600"),
    Behavior::Head("HTTP/1.1 401 Unauthorized"),
    Behavior::Head("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/metrics"),
    Behavior::Edited(|_| LOGIN.to_owned()),
    Behavior::Edited(|_| r#"{"status": "ok"}"#.to_owned()),
    Behavior::Edited(|_| "go_goroutines 7\n".to_owned()),
];

/// A type that no page of metrics has.
const ANOTHER_TYPE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin1";

/// Values that mean nothing.
const ODD_VALUES: [Behavior; 3] = [
    Behavior::Edited(|page| with_values(&page, "NaN")),
    Behavior::Edited(|page| with_values(&page, "+Inf")),
    Behavior::Edited(|page| with_values(&page, "-1")),
];

/// Responses that do not end within the limits of time or size.
const ENDLESS: [fn() -> EngineResponse; 5] =
    [pages::huge, pages::endless_line, pages::endless_headers, pages::drip, pages::unkept_promise];

const LOGIN: &str = "<!DOCTYPE html><html><body><form action=/login></form></body></html>";

fn another_model(page: &str) -> String {
    page.replace(MODEL, "another/model")
}

/// The page with another value in every sample.
fn with_values(page: &str, value: &str) -> String {
    let lines = page.lines().map(|line| match line.rsplit_once(' ') {
        Some((series, _)) if !line.starts_with('#') => format!("{series} {value}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Without a fault: the lower load takes replicas away within the time that a fault lasts.
/// Otherwise the other scripts show nothing.
async fn nothing() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.watcher.floor(1);
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    let number = scene.watcher.number();
    ensure!(number.is_some_and(|it| it < 3), "{number:?} replicas in spite of the lower load");
    let recovery = scene.recover().await?;
    Ok(scene.finish("scaled down, as without a fault", Some(recovery)))
}

/// The load falls while it cannot be seen: no replica may go. Several behaviors share the time.
async fn hidden(behaviors: &[Behavior]) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let before = scene.fleet.requests();
    let part = FAULT / u32::try_from(behaviors.len())?;
    for (index, behavior) in behaviors.iter().enumerate() {
        scene.fleet.behave(behavior.clone());
        if index == 0 {
            // What is under way when the fault begins still shows the load of before.
            sleep(Duration::from_millis(200)).await;
            scene.fleet.load(LESS);
        }
        sleep(part).await;
    }
    ensure!(scene.fleet.requests() > before, "nothing was scraped");
    scene.fleet.behave(Behavior::Honest);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

async fn bytes(responses: &'static [fn() -> EngineResponse]) -> Result<Finding> {
    let making =
        || responses.iter().map(|response| Behavior::Bytes(Arc::new(response()))).collect();
    let behaviors: Vec<Behavior> = tokio::task::spawn_blocking(making).await?;
    hidden(&behaviors).await
}

async fn port_closed() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.close().await;
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.open().await;
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// The data arrives in spite of the fault, so the number follows a rise while it lasts.
async fn served(behavior: Behavior) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.behave(behavior);
    sleep(FAULT).await;
    let during = scene.recover().await?;
    scene.fleet.behave(Behavior::Honest);
    Ok(scene.finish(format!("scaled up during the fault, {during:.1} s after a rise"), None))
}

/// One of three engines is broken, and the load of all falls.
async fn partly(behavior: Behavior) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.behave_at(1, behavior);
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.behave(Behavior::Honest);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// The engines repeat the metrics of before while the load falls.
async fn frozen() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.behave(Behavior::Frozen(LOAD / 3.0));
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.behave(Behavior::Honest);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// The engines come back while the load is low: replicas go only after a whole window of data.
async fn late() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.behave(Behavior::Hang);
    sleep(Duration::from_millis(200)).await;
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.behave(Behavior::Honest);
    // Less than the window of 2 s.
    sleep(Duration::from_millis(1200)).await;
    let number = scene.watcher.number();
    ensure!(number == Some(3), "{number:?} replicas before a window was seen");
    scene.watcher.floor(1);
    let settled = scene.until(1).await?;
    let note = format!("scaled down only after a whole window; at 1 after {:.1} s", settled + 1.2);
    Ok(scene.finish(note, None))
}
