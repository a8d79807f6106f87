//! What stands still around or inside a daemon, and what must go on: a disk that hangs or is full, a
//! stderr that takes nothing any more, and a decision loop that is blocked or ends.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio_util::task::TaskTracker;

use crate::daemon::{Engine, Running, stats, text};

const PATIENCE: Duration = Duration::from_mins(1);
const FAILED_WRITES: &str = "plimsoll_state_file_failures_total{action=\"write\"}";

/// A daemon whose state file is first written to `partial` in its folder.
async fn with_state_file(engine: &Engine, folder: TempDir) -> Running {
    let state = format!("state_file: {}\n", folder.path().join("state.json").display());
    Running::start_in(folder, &text(&[("a", engine.address)], &state)).await
}

#[tokio::test]
async fn a_full_disk_stops_no_decision_and_is_counted() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    symlink("/dev/full", folder.path().join("state.partial")).unwrap();
    let daemon = with_state_file(&engine, folder).await;
    daemon.until_desired("a", Some(1.0)).await;
    engine.show(stats(950));
    daemon.until_desired("a", Some(2.0)).await;
    assert!(daemon.until(FAILED_WRITES, |failed| failed >= 2.0).await, "each save is tried");

    let folder = daemon.end().await;
    assert!(!folder.path().join("state.json").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_stops_no_decision() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    // Opening a pipe for writing waits for a reader.
    let pipe = folder.path().join("state.partial");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let daemon = with_state_file(&engine, folder).await;
    daemon.until_desired("a", Some(1.0)).await;
    engine.show(stats(950));
    daemon.until_desired("a", Some(2.0)).await;

    let ticks = daemon.sample("plimsoll_ticks_total").await.unwrap();
    assert!(daemon.until("plimsoll_ticks_total", |now| now >= ticks + 5.0).await);
    assert_eq!(daemon.ask("GET", "/livez").await.0, 200);

    // The save that hangs must end before the test can.
    let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    daemon.end().await;
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_yet_delays_neither_probes_nor_decisions() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    let sound = fs::read(daemon.file()).unwrap();

    // Reading a pipe waits for as long as somebody could write to it.
    let other = daemon.folder.path().join("other");
    assert!(Command::new("mkfifo").arg(&other).status().unwrap().success());
    let pipe = OpenOptions::new().read(true).write(true).open(&other).unwrap();
    fs::rename(&other, daemon.file()).unwrap();
    let (goes_on, is_asked) = std::sync::mpsc::channel();
    let held = std::thread::spawn(move || {
        let went_on = is_asked.recv_timeout(PATIENCE).is_ok();
        drop(pipe);
        went_on
    });
    let reload = TaskTracker::new().spawn(daemon.request("POST", "/-/reload").send());
    let ticks = daemon.sample("plimsoll_ticks_total").await.unwrap();
    assert!(daemon.until("plimsoll_ticks_total", |now| now >= ticks + 5.0).await);
    assert_eq!(daemon.ask("GET", "/livez").await.0, 200);
    assert!(!reload.is_finished());

    fs::write(&other, sound).unwrap();
    fs::rename(&other, daemon.file()).unwrap();
    goes_on.send(()).unwrap();
    assert!(held.join().unwrap(), "what goes on waits for the configuration");
    assert_eq!(reload.await.unwrap().unwrap().status(), 200);
    daemon.end().await;
}

/// A daemon in a process of its own, and the address of its plain port, which it says on stderr.
fn process(folder: &TempDir, text: &str, environment: &[(&str, &Path)]) -> (Child, String) {
    let file = folder.path().join("plimsoll.yaml");
    fs::write(&file, text).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["run", "--log", "trace", "--log-format", "json", "--config"])
        .arg(&file)
        .envs(environment.iter().copied())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let address = reader.by_ref().lines().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
        Some(line["admin"].as_str()?.to_owned())
    });
    // The pipe stays open, and from here on nothing is read from it.
    child.stderr = Some(reader.into_inner());
    (child, address.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stderr_that_takes_nothing_stops_neither_decisions_nor_probes_nor_the_end() {
    let folder = TempDir::new().unwrap();
    // Each attempt to scrape one of these is logged.
    let names: Vec<String> = (0..20).map(|index| format!("v{index}")).collect();
    let nobody = (1..).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let variants: Vec<_> = names.iter().map(String::as_str).zip(nobody).collect();
    let (mut child, address) = process(&folder, &text(&variants, ""), &[]);
    let client = reqwest::Client::new();
    let ask = async |path: &str| {
        let answer = client.get(format!("http://{address}{path}")).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    let sample = async |name: &str| {
        let (_, page) = ask("/metrics").await;
        let line = page.lines().find(|line| line.starts_with(name))?.to_owned();
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };

    let lost = async {
        while sample("plimsoll_log_lines_dropped_total").await.is_none_or(|lost| lost < 1.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ticks = sample("plimsoll_ticks_total").await.unwrap();
        while sample("plimsoll_ticks_total").await.is_none_or(|now| now < ticks + 5.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let went_on = tokio::time::timeout(PATIENCE, lost).await;
    let alive = tokio::time::timeout(PATIENCE, ask("/livez")).await;

    let signal = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    let ended = tokio::time::timeout(PATIENCE, async {
        while child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let has_ended = ended.await.is_ok();
    child.kill().unwrap();
    assert!(went_on.is_ok(), "it goes on to tick");
    assert_eq!(alive.unwrap().0, 200);
    assert!(signal.success() && has_ended, "it ends when it is asked to");
}

#[tokio::test]
async fn a_state_file_is_on_the_disk_before_it_gets_its_name_and_its_name_right_after() {
    let folder = TempDir::new().unwrap();
    let [source, library, log] = ["syncs.c", "syncs.so", "syncs"].map(|it| folder.path().join(it));
    fs::write(&source, include_str!("stalls/syncs.c")).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());

    let engine = Engine::start().await;
    let state = folder.path().join("state.json");

    let keys = format!("state_file: {}\n", state.display());
    let environment = [("LD_PRELOAD", library.as_path()), ("SYNCS", log.as_path())];
    let (mut child, _) = process(&folder, &text(&[("a", engine.address)], &keys), &environment);
    let saved = tokio::time::timeout(PATIENCE, async {
        while !fs::read_to_string(&log).is_ok_and(|done| done.lines().count() >= 3) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let is_saved = saved.await.is_ok();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_saved, "nothing is put on the disk");

    let done = fs::read_to_string(&log).unwrap();
    let expected = [
        format!("sync {}", folder.path().join("state.partial").display()),
        format!("rename {}", state.display()),
        format!("sync {}", folder.path().display()),
    ];
    assert_eq!(done.lines().take(3).collect::<Vec<_>>(), expected);
}
