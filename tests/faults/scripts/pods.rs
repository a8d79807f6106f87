//! Faults of pods and nodes, as the API server shows them.

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use super::{Script, script};
use crate::cluster::{DEPLOYMENTS, PODS, pod, pod_name, run_pods, scale};
use crate::fleet::Behavior;
use crate::scene::{FAULT, Finding, LESS, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("node-dies", node_dies()),
        script!("pods-terminating", terminating()),
        script!("pods-evicted", evicted()),
        script!("pods-vanish", vanish()),
        script!("pods-relabelled", relabelled()),
        script!("pods-crash", crash()),
        script!("pods-pending", pending()),
        script!("pods-replaced", replaced()),
        script!("target-deleted", target_deleted()),
    ]
}

/// A node with two of three replicas is lost: their pods stay as the API server last knew them,
/// not ready, and nothing answers.
async fn node_dies() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for number in [1, 2] {
        scene.fleet.behave_at(number, Behavior::Hang);
        let mut lost = pod(number);
        lost["status"]["conditions"][0]["status"] = json!("Unknown");
        lost["status"]["conditions"][0]["reason"] = json!("NodeLost");
        scene.fake.lock().await.put(PODS, &lost);
    }
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.behave(Behavior::Honest);
    for number in [1, 2] {
        scene.fake.lock().await.put(PODS, &pod(number));
    }
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// Pods that end for a long time still serve; what replaces them is not there yet.
async fn terminating() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for number in [1, 2] {
        let mut ending = pod(number);
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        scene.fake.lock().await.put(PODS, &ending);
    }
    sleep(FAULT).await;
    for number in [1, 2] {
        scene.fake.lock().await.put(PODS, &pod(number));
    }
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// Half of the fleet is evicted, and nothing takes its place.
async fn evicted() -> Result<Finding> {
    let scene = Scene::start(&Setting { replicas: 4, load: 2.7, ..Setting::default() }).await?;
    for number in [2, 3] {
        let mut evicted = pod(number);
        evicted["status"]["phase"] = json!("Failed");
        evicted["status"]["reason"] = json!("Evicted");
        evicted["status"]["conditions"][0]["status"] = json!("False");
        scene.fake.lock().await.put(PODS, &evicted);
    }
    scene.fleet.share(2);
    sleep(FAULT).await;
    run_pods(&*scene.fake.lock().await, 4);
    for number in [2, 3] {
        scene.fake.lock().await.put(PODS, &pod(number));
    }
    scene.fleet.share(scene.watcher.number().unwrap_or(4));
    scene.fleet.load(4.1);
    let recovery = scene.until(6).await?;
    Ok(scene.finish("", Some(recovery)))
}

/// All pods are gone from the API server, and the Deployment still wants three.
async fn vanish() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    run_pods(&*scene.fake.lock().await, 0);
    sleep(FAULT).await;
    let number = scene.watcher.number().unwrap_or(3);
    run_pods(&*scene.fake.lock().await, number);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// Two pods leave the selector, and come back to it.
async fn relabelled() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for number in [1, 2] {
        let mut other = pod(number);
        other["metadata"]["labels"]["app"] = json!("debug");
        scene.fake.lock().await.put(PODS, &other);
    }
    sleep(FAULT).await;
    for number in [1, 2] {
        scene.fake.lock().await.put(PODS, &pod(number));
    }
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// All pods crash and start again: ready and not ready in turn, with engines that refuse.
async fn crash() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.fleet.load(LESS);
    for round in 0..16 {
        let ready = round % 2 == 1;
        for number in 0..3 {
            let mut crashed = pod(number);
            let status = if ready { "True" } else { "False" };
            crashed["status"]["conditions"][0]["status"] = json!(status);
            scene.fake.lock().await.put(PODS, &crashed);
            scene.fleet.behave_at(number, Behavior::Hang);
        }
        sleep(FAULT / 16).await;
    }
    scene.fleet.behave(Behavior::Honest);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// One more replica is wanted for which no node has room.
async fn pending() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let mut waiting = pod(3);
    waiting["spec"] = json!({});
    waiting["status"] = json!({
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    {
        let fake = scene.fake.lock().await;
        scale(&fake, 4);
        fake.put(PODS, &waiting);
    }
    sleep(FAULT).await;
    scene.fake.lock().await.put(PODS, &pod(3));
    scene.fleet.share(4);
    // The Deployment already has four, so the load rises to what five carry.
    scene.fleet.load(3.4);
    let recovery = scene.until(5).await?;
    Ok(scene.finish("", Some(recovery)))
}

/// Every pod is replaced by one of the same name and address, again and again.
async fn replaced() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for round in 0..16 {
        for number in 0..3 {
            let mut another = pod(number);
            another["metadata"]["uid"] = json!(format!("uid-{number}-{round}"));
            let fake = scene.fake.lock().await;
            fake.delete(PODS, &pod_name(number));
            fake.put(PODS, &another);
        }
        sleep(FAULT / 16).await;
    }
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// The Deployment is deleted with its pods, and created again.
async fn target_deleted() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    // What does not exist has no number to hold.
    scene.watcher.permit_unavailable(true);
    {
        let fake = scene.fake.lock().await;
        fake.delete(DEPLOYMENTS, "llama");
        run_pods(&fake, 0);
    }
    sleep(FAULT).await;
    {
        let fake = scene.fake.lock().await;
        scale(&fake, 3);
        run_pods(&fake, 3);
    }
    scene.fleet.share(3);
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}
