//! Faults of the daemon's process.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{Script, script};
use crate::daemon::Launch;
use crate::scene::{FAULT, Finding, LESS, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("process-killed", killed()),
        script!("process-killed-without-state", killed_without_state()),
        script!("process-ended", ended()),
        script!("process-suspended", suspended()),
        script!("process-starved", starved()),
        script!("descriptors-exhausted", descriptors()),
        script!("stderr-blocked", stderr_blocked()),
    ]
}

/// A restarted daemon serves the number of before, although nothing can be scraped.
async fn killed() -> Result<Finding> {
    let mut scene = Scene::start(&Setting::default()).await?;
    // The state is saved after a change; give it a moment.
    sleep(Duration::from_secs(1)).await;
    scene.fleet.close().await;
    scene.kill(0);
    scene.fleet.load(LESS);
    // Until it has restored the number and knows the front proxy's authority.
    scene.watcher.permit_unavailable(true);
    scene.restart(0).await?;
    scene.until(3).await?;
    scene.watcher.permit_unavailable(false);
    sleep(FAULT / 2).await;
    scene.fleet.open().await;
    let recovery = scene.recover().await?;
    Ok(scene.finish("the earlier desired replicas are served at once", Some(recovery)))
}

async fn killed_without_state() -> Result<Finding> {
    let mut scene = Scene::start(&Setting::default()).await?;
    scene.fleet.close().await;
    scene.kill(0);
    let state = scene.folder.path().join("daemon-0/state/state.json");
    std::fs::remove_file(state)?;
    scene.fleet.load(LESS);
    // Without state and data there are no desired replicas, and an HPA that gets none holds.
    scene.watcher.permit_unavailable(true);
    scene.restart(0).await?;
    sleep(FAULT).await;
    scene.fleet.open().await;
    let recovery = scene.recover().await?;
    Ok(scene.finish("no desired replicas until there is data, so every HPA holds", Some(recovery)))
}

/// SIGTERM: the daemon answers for its delay of 1 s, and the next one goes on.
async fn ended() -> Result<Finding> {
    let mut scene = Scene::start(&Setting::default()).await?;
    sleep(Duration::from_secs(1)).await;
    scene.daemon(0).signal("-TERM")?;
    // Load balancers notice within the delay; until then every request is answered.
    sleep(Duration::from_millis(700)).await;
    scene.watcher.expect_answers(0, false);
    scene.until_ended(0).await?;
    scene.restart(0).await?;
    let recovery = scene.recover().await?;
    Ok(scene.finish("answers until its delay is over", Some(recovery)))
}

/// The process stands still, as when a virtual machine is suspended.
async fn suspended() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    scene.watcher.expect_answers(0, false);
    scene.daemon(0).signal("-STOP")?;
    // Nobody saw the idle time, so it is no reason to scale down.
    scene.fleet.load(LESS);
    sleep(FAULT).await;
    scene.fleet.load(crate::scene::LOAD);
    scene.daemon(0).signal("-CONT")?;
    scene.watcher.expect_answers(0, true);
    sleep(Duration::from_secs(1)).await;
    let recovery = scene.recover().await?;
    Ok(scene.finish("", Some(recovery)))
}

/// The process gets a tenth of its time.
async fn starved() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    for _ in 0..40 {
        scene.daemon(0).signal("-STOP")?;
        sleep(FAULT * 9 / 400).await;
        scene.daemon(0).signal("-CONT")?;
        sleep(FAULT / 400).await;
    }
    let recovery = scene.recover().await?;
    Ok(scene.finish("stopped for 180 of every 200 ms", Some(recovery)))
}

/// The limit of open files is reached by connections that do nothing.
async fn descriptors() -> Result<Finding> {
    let prefix = ["prlimit", "--nofile=64:64"].map(OsString::from).to_vec();
    let launch = Launch { prefix, ..Launch::default() };
    let scene = Scene::start(&Setting { launch, ..Setting::default() }).await?;
    // The kubelet and the API server keep the connections that they have.
    let plain = scene.daemon(0).plain;
    let mut idle = Vec::new();
    for _ in 0..200 {
        let connecting = TcpStream::connect(plain);
        let connected = tokio::time::timeout(Duration::from_millis(200), connecting).await;
        idle.extend(connected.ok().and_then(Result::ok));
    }
    sleep(FAULT).await;
    let connections = idle.len();
    drop(idle);
    let recovery = scene.recover().await?;
    let note = format!("{connections} idle connections, at most 64 open files");
    Ok(scene.finish(note, Some(recovery)))
}

/// The log goes into a pipe that nobody reads.
async fn stderr_blocked() -> Result<Finding> {
    let arguments = ["--log", "trace"].map(str::to_owned).to_vec();
    let launch = Launch { blocks_log: true, arguments, ..Launch::default() };
    let scene = Scene::start(&Setting { launch, ..Setting::default() }).await?;
    let dropped = "plimsoll_log_lines_dropped_total";
    scene.until_sample(0, dropped, |it| it >= 1.0).await?;
    sleep(FAULT / 2).await;
    let during = scene.recover().await?;
    Ok(scene.finish(format!("lines dropped and counted; up {during:.1} s after a rise"), None))
}
