//! Attacks on a running daemon, and what probes, HPAs and decisions notice of each.
//!
//! ```text
//! make attacks                                                # all, into docs/attacks.md
//! cargo test --features attacks --test attacks                # all, only printed
//! cargo test --features attacks --test attacks -- flood gzip  # those with such a name
//! cargo test --features attacks --test attacks -- --seconds=30 flood
//! ```
//!
//! `PLIMSOLL` selects another program to attack than this build's, such as a release.
//!
//! Each attack gets a daemon of its own: the real program as a process, with default settings.
//! Rules are about answers, memory and open files. Apart from time limits, they are not about times:
//! a time is a row of the table, because it depends on the machine.

#![expect(clippy::unwrap_used, reason = "an attack may panic")]
#![expect(clippy::print_stdout, reason = "the results are what this prints")]

mod aim;
mod api_server;
mod attacks;
mod connections;
mod engine;
#[path = "../it/external_metrics_harness.rs"]
#[expect(dead_code, reason = "only its certificates and clients are needed here")]
mod external_metrics_harness;
mod grpc;
#[path = "../it/hostile.rs"]
mod hostile;
mod http1;
mod http2;
mod measure;
mod pages;
mod report;
mod target;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::sleep;

use crate::attacks::Attack;
use crate::measure::{Measured, Measurement};
use crate::report::Row;
use crate::target::Target;

/// Resident memory that no attack may exceed, in MiB: the limit of the chart.
pub(crate) const RESIDENT_MAX: f64 = 512.0;

/// Open files that no attack may exceed: all connections of both ports, and of 128 replicas.
const DESCRIPTORS_MAX: usize = 1024;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let writes = words.iter().any(|word| word == "--write");
    let names: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let chosen: Vec<Attack> = attacks::all()
        .into_iter()
        .filter(|attack| names.is_empty() || names.iter().any(|name| attack.name.contains(*name)))
        .collect();

    let seconds = words.iter().find_map(|word| word.strip_prefix("--seconds="));
    let seconds: Option<u64> = seconds.map(str::parse).transpose()?;

    let load_before = report::load_average();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{}", report::head());
    let mut rows = Vec::new();
    for attack in chosen {
        let row = runtime.block_on(play(attack, seconds.unwrap_or(attack.seconds)))?;
        println!("{}", row.line());
        for broken in &row.broken {
            println!("  BROKEN: {broken}");
        }
        rows.push(row);
    }

    if writes {
        let file = report::write(&rows, &load_before)?;
        println!("{} is written", file.display());
    }
    let broken: usize = rows.iter().map(|row| row.broken.len()).sum();
    if broken > 0 {
        bail!("{broken} rules do not hold");
    }
    Ok(())
}

/// Plays one attack on a daemon of its own.
async fn play(attack: Attack, seconds: u64) -> Result<Row> {
    let mut target = Target::start(attack.hostile).await?;
    let measurement = Measurement::start(&target).await?;

    let mut playing = (attack.play)(Arc::clone(&target.aim));
    tokio::select! {
        () = &mut playing => {}
        () = sleep(Duration::from_secs(seconds)) => {}
    }

    // The attack goes on until the last measurement has ended.
    let finishing = tokio::task::spawn_blocking(move || measurement.finish());
    let measured = tokio::select! {
        measured = finishing => measured??,
        () = &mut playing => bail!("the attack has ended"),
    };
    drop(playing);

    let answers = target.aim.answers();
    let mut broken = broken(&measured);
    if !target.is_alive() {
        broken.push("the process has ended".to_owned());
    }
    let unexpected = answers.keys().filter(|answer| !(attack.permits)(answer));
    broken.extend(unexpected.map(|answer| format!("an attacker got the answer {answer}")));
    Ok(Row { name: attack.name, port: attack.port, seconds, measured, answers, broken })
}

/// The rules that a measurement breaks.
fn broken(measured: &Measured) -> Vec<String> {
    let Measured { probe, kept, fresh, usage, .. } = measured;
    let mut broken = Vec::new();
    for (kind, latencies) in [("probe", probe), ("HPA", kept), ("HPA on a new connection", fresh)] {
        if latencies.requests() == 0 {
            broken.push(format!("{kind}: nothing was asked"));
        }
        let first = latencies.failures.first();
        broken.extend(first.map(|failure| {
            format!(
                "{kind}: {} of {} failed: {failure}",
                latencies.failures.len(),
                latencies.requests()
            )
        }));
    }

    if usage.resident > RESIDENT_MAX {
        broken.push(format!("{:.0} MiB are resident", usage.resident));
    }
    if usage.descriptors > DESCRIPTORS_MAX {
        broken.push(format!("{} files are open", usage.descriptors));
    }
    broken
}
