//! A day of churn: replicas and variants come and go, and engines restart. libfaketime lets the
//! daemon's clocks run 288 times as fast, so that its day takes five minutes.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll::clock::Clock;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Script, clocks, script};
use crate::daemon::{Launch, Usage};
use crate::fleet::{self, Behavior};
use crate::page::MODEL;
use crate::scene::{Finding, LOAD, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![script!("day-of-churn", day_of_churn())]
}

/// Simulated seconds per second.
const SPEED: u32 = 288;

/// The length of the run; the daemon sees a day.
const DAY: Duration = Duration::from_mins(5);

/// Variants that come and go.
const GUESTS: u32 = 20;

/// The time of the newest configuration, which the daemon reads as soon as its file has changed.
const LOADED: &str = "plimsoll_config_last_reload_success_timestamp_seconds ";

/// Usage at a time of the daemon's day.
#[derive(Clone, Copy, Debug)]
struct Sample {
    hour: f64,
    usage: Usage,
}

async fn day_of_churn() -> Result<Finding> {
    let setting = Setting {
        configure: at_leisure,
        launch: Launch {
            environment: vec![
                ("LD_PRELOAD".to_owned(), clocks::library()?),
                ("FAKETIME".to_owned(), format!("+0 x{SPEED}").into()),
            ],
            ..Launch::default()
        },
        ..Setting::default()
    };
    let scene = Scene::open(&setting).await?;
    // At this speed a time limit of seconds is one of milliseconds, so requests may fail.
    scene.watcher.permit_failures();
    let mut random = StdRng::seed_from_u64(7);
    let sound: Value = serde_json::from_slice(&fs::read(scene.config())?)?;
    let clock = Clock::start();
    let began = clock.elapsed();
    let mut samples = Vec::new();
    let mut reloads = 0;
    let mut last = scene.until_sample(0, LOADED, |_| true).await?;
    let ticks = scene.until_sample(0, "plimsoll_ticks_total ", |_| true).await?;
    while clock.elapsed() < began + DAY {
        scene.fleet.load(LOAD * random.random_range(0.1..2.5));
        change_variants(&scene, &sound, &mut random)?;
        break_engines(&scene, &mut random).await;
        sleep(Duration::from_millis(1500)).await;

        let usage = Usage::of(scene.daemon(0).process())?;
        let since = clock.elapsed().saturating_sub(began);
        let hour = since.as_secs_f64() * f64::from(SPEED) / 3600.0;
        samples.push(Sample { hour, usage });
        let loaded = scene.until_sample(0, LOADED, |_| true).await?;
        reloads += usize::from(loaded > last);
        last = loaded;
    }
    let written = samples.len();
    ensure!(2 * reloads > written, "only {reloads} of {written} configurations were loaded");
    let seen = scene.until_sample(0, "plimsoll_ticks_total ", |_| true).await? - ticks;
    ensure!(seen > 1000.0, "only {seen} decisions in a day");

    let note = flat(&samples)?;
    Ok(scene.finish(format!("{note}; {reloads} reloads, {seen} decisions"), None))
}

/// Times that are long enough at this speed, and the default analysis.
fn at_leisure(text: &mut Value) {
    text["tick_interval"] = json!("15s");
    text["observe"] = json!({"window": "10m", "stale_after": "5m"});
    text["scrape"]["interval"] = json!("1m");
    text["scrape"]["timeout"] = json!("1m");
    text["external_metrics"]["fresh"] = json!("10m");
    text["external_metrics"]["hold"] = json!("1h");
    text["analysis"] = json!("capacity");
}

/// Writes a configuration with another selection of guests.
fn change_variants(scene: &Scene, sound: &Value, random: &mut StdRng) -> Result<()> {
    let mut text = sound.clone();
    let variants = text["variants"].as_array_mut().expect("a list");
    for guest in 0..GUESTS {
        if random.random_bool(0.5) {
            let address = fleet::address(100 + guest);
            variants.push(json!({
                "name": format!("guest-{guest}"), "namespace": format!("team-{}", guest % 5),
                "model": MODEL, "cost": 1,
                "targets": {"static": [format!("{address}:{}", scene.fleet.port)]},
            }));
        }
    }
    fs::write(scene.config(), text.to_string())?;
    Ok(())
}

/// Breaks an engine, mends all, or restarts all.
async fn break_engines(scene: &Scene, random: &mut StdRng) {
    let pod = random.random_range(0..8);
    match random.random_range(0..6) {
        0 => scene.fleet.behave_at(pod, Behavior::Hang),
        1 => scene.fleet.behave_at(pod, Behavior::Reset),
        2 => scene.fleet.behave_at(pod, Behavior::Edited(|_| "<html>".to_owned())),
        3 => {
            scene.fleet.close().await;
            scene.fleet.open().await;
        }
        _ => scene.fleet.behave(Behavior::Honest),
    }
}

/// Compares the last third of the day with the time from the second hour to the first third.
fn flat(samples: &[Sample]) -> Result<String> {
    let most = |from: f64, to: f64| {
        let within = samples.iter().filter(|it| (from..to).contains(&it.hour));
        within.fold(Usage::default(), |most, it| most.max(it.usage))
    };
    let (early, late) = (most(2.0, 8.0), most(16.0, 25.0));
    let note = format!(
        "memory {:.0} → {:.0} MiB, open files {} → {} (hours 2–8 → 16–24)",
        early.resident, late.resident, early.descriptors, late.descriptors
    );
    ensure!(early.resident > 0.0 && late.resident > 0.0, "no samples");
    ensure!(late.resident <= 1.1 * early.resident + 4.0, "memory grows: {note}");
    ensure!(late.descriptors <= early.descriptors + 16, "descriptors grow: {note}");
    Ok(note)
}
