//! Faults of the wall clock, which libfaketime plays to the daemon.

use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{Script, script};
use crate::daemon::Launch;
use crate::scene::{FAULT, Finding, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("clock-an-hour-ahead", jumps("+0", "+1h")),
        script!("clock-an-hour-back", jumps("+0", "-1h")),
        script!("clock-wrong-at-start", jumps("-2000d", "+0")),
    ]
}

/// The library that changes clocks, which `tests/faults/run` finds.
pub(super) fn library() -> Result<OsString> {
    let library = std::env::var_os("FAULTS_FAKETIME");
    library.context("FAULTS_FAKETIME must name libfaketimeMT.so.1 (tests/faults/run)")
}

/// The wall clock jumps while the daemon runs; no other clock does.
async fn jumps(from: &str, to: &str) -> Result<Finding> {
    let setting = Setting::default();
    let mut scene = Scene::set_up(&setting).await?;
    let time = scene.folder.path().join("time");
    fs::write(&time, format!("{from}\n"))?;
    scene.launch = Launch {
        environment: vec![
            ("LD_PRELOAD".to_owned(), library()?),
            ("FAKETIME_TIMESTAMP_FILE".to_owned(), time.clone().into_os_string()),
            ("FAKETIME_NO_CACHE".to_owned(), "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".into()),
            ("DONT_FAKE_MONOTONIC".to_owned(), "1".into()),
        ],
        ..Launch::default()
    };
    scene.join(&setting).await?;
    scene.until(3).await?;
    scene.watcher.floor(3);
    sleep(FAULT / 4).await;
    // Written beside and renamed, because the daemon reads it all the time.
    let next = scene.folder.path().join("time.next");
    fs::write(&next, format!("{to}\n"))?;
    fs::rename(&next, &time)?;
    sleep(FAULT).await;
    let recovery = scene.recover().await?;
    Ok(scene.finish(format!("from {from} to {to}"), Some(recovery)))
}
