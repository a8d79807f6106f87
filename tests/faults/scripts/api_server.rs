//! Faults of the API server, and of the way to it. The engines are well and their load is steady.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::{Script, script};
use crate::cluster::{DEPLOYMENTS, HPAS, PODS, REVIEWS, TRUST, pod, trust};
use crate::gate::Way;
use crate::it::cluster::fake::Failure;
use crate::scene::{FAULT, Finding, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("api-server-away-at-start", away_at_start()),
        script!("api-server-away", away()),
        script!("api-server-black-hole", cut_off(Way::Lost)),
        script!("api-server-slow", cut_off(Way::Slow(Duration::from_secs(2)))),
        script!("api-server-half-open", half_open()),
        script!("api-server-flaps", flaps()),
        script!("api-server-429", failing(429, Some(1))),
        script!("api-server-5xx", failing(500, None)),
        script!("watch-history-forgotten", forgotten()),
        script!("reviews-fail", reviews_fail()),
        script!("front-proxy-authority", authority()),
        script!("hpa-deleted", hpa_deleted()),
        script!("objects-malformed", malformed()),
        script!("watch-event-storm", event_storm()),
    ]
}

/// The fault is over, and the number must follow a rise.
async fn finish(scene: Scene, note: impl Into<String>) -> Result<Finding> {
    let recovery = scene.recover().await?;
    Ok(scene.finish(note, Some(recovery)))
}

async fn away_at_start() -> Result<Finding> {
    let setting = Setting::default();
    let mut scene = Scene::set_up(&setting).await?;
    scene.fake.lock().await.go_down().await;
    // The front proxy cannot be trusted yet: the pod is not ready.
    scene.launch_one(&setting).await?;
    let url = format!("http://{}/readyz", scene.daemon(0).plain);
    for _ in 0..20 {
        let status = reqwest::get(&url).await?.status();
        ensure!(!status.is_success(), "ready without an API server: {status}");
        sleep(FAULT / 20).await;
    }
    scene.fake.lock().await.come_up().await;
    scene.until_ready(0).await?;
    scene.introduce(0)?;
    let recovery = scene.until(3).await?;
    Ok(scene.finish("not ready until the API server is there", Some(recovery)))
}

async fn away() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fake.lock().await.go_down().await;
    sleep(FAULT).await;
    scene.fake.lock().await.come_up().await;
    finish(scene, "").await
}

async fn cut_off(way: Way) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.set_way(0, way);
    sleep(FAULT).await;
    scene.set_way(0, Way::Open);
    finish(scene, "").await
}

/// Every connection falls silent without an end; new ones are answered.
async fn half_open() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fake.lock().await.freeze_connections();
    sleep(FAULT).await;
    finish(scene, "").await
}

async fn flaps() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for _ in 0..16 {
        scene.set_way(0, Way::Closed);
        sleep(FAULT / 32).await;
        scene.set_way(0, Way::Open);
        sleep(FAULT / 32).await;
    }
    finish(scene, "16 interruptions").await
}

/// All paths that are watched.
const WATCHED: [&str; 8] = [
    PODS,
    DEPLOYMENTS,
    HPAS,
    TRUST,
    "/api/v1/pods",
    "/apis/apps/v1/deployments",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/apps/v1/namespaces/shop/deployments/llama/scale",
];

async fn failing(code: u16, retry_after: Option<u64>) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    {
        let fake = scene.fake.lock().await;
        for path in WATCHED {
            fake.fail_next(path, &vec![Failure { code, retry_after }; 2000]);
        }
    }
    // Watches that run go on, so that all must begin anew.
    scene.set_way(0, Way::Closed);
    sleep(Duration::from_millis(100)).await;
    scene.set_way(0, Way::Open);
    let before = scene.fake.lock().await.all_requests();
    sleep(FAULT).await;
    let requests = scene.fake.lock().await.all_requests() - before;
    ensure!(requests > 0, "nothing was asked");
    ensure!(requests < 600, "{requests} requests to a server that fails");
    {
        let fake = scene.fake.lock().await;
        for path in WATCHED {
            fake.fail_next(path, &[]);
        }
    }
    finish(scene, format!("{requests} requests while it failed")).await
}

async fn forgotten() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for _ in 0..8 {
        scene.fake.lock().await.compact();
        sleep(FAULT / 8).await;
    }
    finish(scene, "8 times").await
}

async fn reviews_fail() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let failure = Failure { code: 500, retry_after: None };
    scene.fake.lock().await.fail_next(REVIEWS, &vec![failure; 2000]);
    sleep(FAULT).await;
    scene.fake.lock().await.fail_next(REVIEWS, &[]);
    finish(scene, "the earlier permission holds").await
}

async fn authority() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let broken = "-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n";
    scene.fake.lock().await.put(TRUST, &trust(broken));
    sleep(FAULT / 2).await;
    scene.fake.lock().await.delete(TRUST, "extension-apiserver-authentication");
    sleep(FAULT / 2).await;
    let trusted = trust(&scene.credentials.front_proxy.pem);
    scene.fake.lock().await.put(TRUST, &trusted);
    finish(scene, "the earlier authority holds").await
}

/// The HPA is gone, and with it its bounds.
async fn hpa_deleted() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let hpa = scene.fake.lock().await.objects(HPAS).pop().expect("an HPA");
    scene.fake.lock().await.delete(HPAS, "llama");
    sleep(FAULT).await;
    scene.fake.lock().await.put(HPAS, &hpa);
    finish(scene, "").await
}

/// Objects lack what every object has, or have it in other types.
async fn malformed() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    {
        let fake = scene.fake.lock().await;
        fake.put(PODS, &json!({"metadata": {"name": "odd-0", "labels": {"app": "llama"}}}));
        fake.put(
            PODS,
            &json!({"metadata": {"name": "odd-1", "labels": {"app": "llama"}},
                               "spec": {}, "status": {"podIP": "no address", "phase": "Odd"}}),
        );
        fake.put(
            HPAS,
            &json!({"metadata": {"name": "odd"}, "spec": {"maxReplicas": 0,
            "minReplicas": -5, "metrics": [{"type": "Odd"}],
            "scaleTargetRef": {"kind": "Odd", "name": ""}}}),
        );
    }
    sleep(FAULT).await;
    {
        let fake = scene.fake.lock().await;
        fake.delete(PODS, "odd-0");
        fake.delete(PODS, "odd-1");
        fake.delete(HPAS, "odd");
    }
    finish(scene, "").await
}

/// Thousands of changes of pods that mean nothing.
async fn event_storm() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for round in 0..800 {
        for number in 0..3 {
            let mut same = pod(number);
            same["metadata"]["annotations"] = json!({"round": round.to_string()});
            scene.fake.lock().await.put(PODS, &same);
        }
        sleep(Duration::from_millis(10)).await;
    }
    let recovery = scene.recover().await?;
    let lists = scene.fake.lock().await.lists_of(PODS);
    ensure!(lists <= 2, "{lists} lists of pods for changes of a watch");
    Ok(scene.finish("2,400 events", Some(recovery)))
}
