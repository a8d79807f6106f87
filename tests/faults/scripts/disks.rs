//! Faults of the disk with the state file. A daemon with a small or read-only disk runs in a mount
//! namespace of its own.

use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result, ensure};
use tokio::time::sleep;

use super::{Script, script};
use crate::daemon::Launch;
use crate::scene::{FAULT, Finding, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!(
            "disk-full",
            on_disk(
                "mount -t tmpfs -o size=4k,nr_inodes=16 none \"$D\" && \
                                      head -c 4096 /dev/zero > \"$D/full\""
            )
        ),
        script!("disk-read-only", on_disk("mount -t tmpfs -o ro none \"$D\"")),
        script!("state-folder-missing", state_folder_missing()),
        script!("state-torn", state(|sound| sound[..sound.len() / 2].to_vec())),
        script!("state-garbage", state(|_| vec![0; 100_000])),
    ]
}

const FAILED_WRITES: &str = "plimsoll_state_file_failures_total{action=\"write\"}";

/// Words that run a program after a shell command in mount and user namespaces of its own.
fn unshared(command: &str) -> Vec<OsString> {
    let script = format!("D=\"${{STATE:?}}\"; {command} && exec \"$0\" \"$@\"");
    ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script]
        .map(OsString::from)
        .to_vec()
}

/// The state file cannot be written: decisions go on, and each failure is counted.
async fn on_disk(command: &'static str) -> Result<Finding> {
    let setting = Setting::default();
    let mut scene = Scene::set_up(&setting).await?;
    let folder = scene.folder.path().join("daemon-0/state");
    scene.launch = Launch {
        prefix: unshared(command),
        environment: vec![("STATE".to_owned(), folder.into_os_string())],
        ..Launch::default()
    };
    scene.join(&setting).await?;
    scene.until(3).await?;
    scene.watcher.floor(3);
    let failures = scene.until_sample(0, FAILED_WRITES, |it| it >= 1.0).await?;
    sleep(FAULT / 2).await;
    // The disk stays as it is: the number must follow nevertheless.
    let during = scene.recover().await?;
    let note = format!("{failures} failures counted; scaled up {during:.1} s after a rise");
    Ok(scene.finish(note, None))
}

async fn state_folder_missing() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let folder = scene.folder.path().join("daemon-0/state");
    fs::remove_dir_all(&folder)?;
    sleep(FAULT / 2).await;
    let during = scene.recover().await?;
    scene.until_sample(0, FAILED_WRITES, |it| it >= 1.0).await?;
    fs::create_dir_all(&folder)?;
    Ok(scene.finish(format!("counted; scaled up {during:.1} s after a rise"), None))
}

/// The state file is broken while the daemon is away.
async fn state(change: fn(&[u8]) -> Vec<u8>) -> Result<Finding> {
    let mut scene = Scene::start(&Setting::default()).await?;
    let file = scene.folder.path().join("daemon-0/state/state.json");
    scene.kill(0);
    let sound = fs::read(&file).context("a state file")?;
    fs::write(&file, change(&sound))?;
    // A daemon that remembers nothing has no number until it has data.
    scene.watcher.permit_unavailable(true);
    scene.restart(0).await?;
    let recovery = scene.recover().await?;
    let folder = file.parent().expect("a folder");
    let aside = fs::read_dir(folder)?.filter_map(Result::ok);
    let aside = aside.filter(|it| it.file_name().to_string_lossy().contains("corrupt")).count();
    ensure!(aside == 1, "{aside} files were set aside");
    Ok(scene.finish("the file was renamed", Some(recovery)))
}
