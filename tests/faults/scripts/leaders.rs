//! Faults of two daemons of which one decides. Any of them answers an HPA.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use plimsoll::clock::Clock;
use serde_json::json;
use tokio::time::sleep;

use super::{Script, script};
use crate::cluster::{DOCUMENTS, LEASES};
use crate::gate::Way;
use crate::scene::{FAULT, Finding, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("leader-killed", killed()),
        script!("leader-ended", ended()),
        script!("leader-paused", paused()),
        script!("leader-partitioned", partitioned(Part::Leader)),
        script!("follower-partitioned", partitioned(Part::Follower)),
        script!("both-partitioned", partitioned(Part::Both)),
        script!("lease-taken", lease_taken()),
        script!("lease-forbidden", lease_forbidden()),
        script!("document-broken", document_broken()),
        script!("no-election", no_election()),
    ]
}

/// A part of the pair.
#[derive(Clone, Copy)]
enum Part {
    Leader,
    Follower,
    Both,
}

const LEADER: &str = "plimsoll_leader ";

/// Starts two daemons that elect a leader, and returns its index. Both serve the same number.
async fn pair() -> Result<(Scene, usize)> {
    let setting = Setting { daemons: 2, elects: true, ..Setting::default() };
    let scene = Scene::open(&setting).await?;
    scene.until(3).await?;
    for index in [0, 1] {
        let shown = "plimsoll_desired_replicas{";
        scene.until_sample(index, shown, |it| it >= 3.0).await.context("before the fault")?;
    }
    // A number that was shown has also been shared; give the API of both a moment to have it.
    sleep(Duration::from_millis(500)).await;
    let first_leads = scene.sample_of(0, LEADER).await? == Some(1.0);
    scene.watcher.floor(3);
    Ok((scene, usize::from(!first_leads)))
}

/// Waits until a daemon leads, and returns a note about it.
async fn until_leads(scene: &Scene, index: usize) -> Result<()> {
    scene.until_sample(index, LEADER, |it| it >= 1.0).await.context("nobody else leads")?;
    Ok(())
}

async fn killed() -> Result<Finding> {
    let (mut scene, leader) = pair().await?;
    scene.kill(leader);
    let recovery = scene.recover().await?;
    until_leads(&scene, 1 - leader).await?;
    scene.restart(leader).await?;
    Ok(scene.finish("the other one leads", Some(recovery)))
}

async fn ended() -> Result<Finding> {
    let (mut scene, leader) = pair().await?;
    // While it ends, the Service sends nothing to it.
    scene.watcher.expect_answers(leader, false);
    scene.daemon(leader).signal("-TERM")?;
    let recovery = scene.recover().await?;
    scene.until_ended(leader).await?;
    scene.restart(leader).await?;
    Ok(scene.finish("the other one leads", Some(recovery)))
}

async fn paused() -> Result<Finding> {
    let (scene, leader) = pair().await?;
    scene.watcher.expect_answers(leader, false);
    scene.daemon(leader).signal("-STOP")?;
    let recovery = scene.recover().await?;
    until_leads(&scene, 1 - leader).await?;
    scene.watcher.raise_floor(4);
    scene.daemon(leader).signal("-CONT")?;
    scene.until_sample(leader, LEADER, |it| it < 1.0).await.context("two lead")?;
    let shown = "plimsoll_desired_replicas{";
    scene.until_sample(leader, shown, |it| it >= 4.0).await.context("the old leader")?;
    // From here on the HPA asks both in turn.
    scene.watcher.expect_answers(leader, true);
    sleep(FAULT / 4).await;
    Ok(scene.finish("the old leader follows when it wakes up", Some(recovery)))
}

async fn partitioned(part: Part) -> Result<Finding> {
    let (scene, leader) = pair().await?;
    let cut: &[usize] = match part {
        Part::Leader => &[leader],
        Part::Follower => &[1 - leader],
        Part::Both => &[0, 1],
    };
    for index in cut {
        scene.set_way(*index, Way::Lost);
    }
    sleep(FAULT).await;
    let note = match part {
        Part::Leader => {
            until_leads(&scene, 1 - leader).await?;
            scene.until_sample(leader, LEADER, |it| it < 1.0).await.context("two lead")?;
            "the other one leads"
        }
        Part::Follower => {
            until_leads(&scene, leader).await?;
            "the leader stays"
        }
        Part::Both => "both hold",
    };
    for index in cut {
        scene.set_way(*index, Way::Open);
    }
    // Either may answer the HPA: the right number is there when both have it.
    let recovery = both_recover(&scene).await?;
    Ok(scene.finish(note, Some(recovery)))
}

/// Raises the load, and waits until both daemons show the right number.
async fn both_recover(scene: &Scene) -> Result<f64> {
    let mut recovery = scene.recover().await?;
    let clock = Clock::start();
    let began = clock.elapsed();
    for index in [0, 1] {
        scene.until_sample(index, "plimsoll_desired_replicas{", |it| it >= 4.0).await?;
    }
    recovery += clock.elapsed().saturating_sub(began).as_secs_f64();
    Ok(recovery)
}

async fn lease_name(scene: &Scene) -> Result<String> {
    let lease = scene.fake.lock().await.objects(LEASES).pop().context("no Lease")?;
    Ok(lease["metadata"]["name"].as_str().context("no name")?.to_owned())
}

/// The Lease is deleted. Then somebody writes another holder into it, who never renews it.
async fn lease_taken() -> Result<Finding> {
    let (scene, _) = pair().await?;
    let name = lease_name(&scene).await?;
    scene.fake.lock().await.delete(LEASES, &name);
    sleep(FAULT / 4).await;
    let mut lease = scene.fake.lock().await.objects(LEASES).pop().context("no Lease")?;
    lease["spec"]["holderIdentity"] = json!("a-stranger");
    scene.fake.lock().await.put(LEASES, &lease);
    let recovery = both_recover(&scene).await?;
    let holder = scene.fake.lock().await.objects(LEASES).pop().context("no Lease")?;
    let holder = holder["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
    ensure!(holder.starts_with("daemon-"), "the stranger still holds the Lease");
    Ok(scene.finish("taken back when it expires", Some(recovery)))
}

async fn lease_forbidden() -> Result<Finding> {
    let (scene, _) = pair().await?;
    scene.fake.lock().await.refuse(LEASES);
    sleep(FAULT).await;
    for index in [0, 1] {
        scene.until_sample(index, LEADER, |it| it < 1.0).await.context("leads without a Lease")?;
    }
    scene.fake.lock().await.allow(LEASES);
    let recovery = both_recover(&scene).await?;
    Ok(scene.finish("no replica leads, both hold", Some(recovery)))
}

async fn document(scene: &Scene) -> Result<serde_json::Value> {
    scene.fake.lock().await.objects(DOCUMENTS).pop().context("no document")
}

async fn document_broken() -> Result<Finding> {
    let (scene, _) = pair().await?;
    for text in ["", "{", "[]", r#"{"version": 1000000}"#] {
        let mut broken = document(&scene).await?;
        broken["data"] = json!({"decisions.json": text});
        broken["binaryData"] = json!({"decisions.json.zst": "bm8="});
        scene.fake.lock().await.put(DOCUMENTS, &broken);
        sleep(FAULT / 5).await;
    }
    let name = document(&scene).await?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    scene.fake.lock().await.delete(DOCUMENTS, &name);
    sleep(FAULT / 5).await;
    let recovery = both_recover(&scene).await?;
    Ok(scene.finish("4 kinds of garbage, then deleted", Some(recovery)))
}

/// Two daemons that do not know of each other decide the same.
async fn no_election() -> Result<Finding> {
    let setting = Setting { daemons: 2, elects: false, ..Setting::default() };
    let scene = Scene::open(&setting).await?;
    scene.until(3).await?;
    for index in [0, 1] {
        scene.until_sample(index, "plimsoll_desired_replicas{", |it| it >= 3.0).await?;
    }
    sleep(Duration::from_millis(500)).await;
    scene.watcher.floor(3);
    sleep(FAULT).await;
    let recovery = both_recover(&scene).await?;
    Ok(scene.finish("both decide the same", Some(recovery)))
}
