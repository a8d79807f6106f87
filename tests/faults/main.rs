//! A hundred faults, and what is noticed of each.
//!
//! ```text
//! make faults                        # all, into docs/faults.md
//! tests/faults/run api-server disk   # those with such a name, only printed
//! tests/faults/run --write disk      # the same, into their rows of docs/faults.md
//! ```
//!
//! A fault is either a script on a running daemon or a test that exists for it. A script has a
//! daemon of its own, as a process, with a simulated fleet, an API server that can be broken, and
//! the clients that matter: an HPA that asks through the front proxy and scales by the answers, a
//! kubelet that probes, and a look at memory and open files. Apart from time limits, rules are not
//! about times: a time is a cell of the table, because it depends on the machine.
//!
//! `PLIMSOLL` selects another program than this build's, such as a release.

#![expect(clippy::unwrap_used, reason = "a scenario may panic")]
#![expect(clippy::print_stdout, reason = "the results are what this prints")]

mod cluster;
mod daemon;
#[path = "../attacks/engine.rs"]
#[expect(dead_code, reason = "the fleet listens itself")]
mod engine;
#[path = "../it/external_metrics_harness.rs"]
#[expect(dead_code, reason = "only its certificates and clients are needed here")]
mod external_metrics_harness;
mod fleet;
mod gate;
/// Parts of the integration tests.
#[path = "../it"]
mod it {
    pub(crate) mod cluster {
        #[expect(dead_code, reason = "not every scenario needs every failure")]
        pub(crate) mod fake;
    }
}
mod list;
#[path = "../e2e/page.rs"]
#[expect(dead_code, reason = "only its page is needed here")]
mod page;
#[path = "../attacks/pages.rs"]
#[expect(dead_code, reason = "not every attack is a fault")]
mod pages;
mod report;
mod scene;
mod scripts;
mod suite;
mod watcher;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt as _, stream};
use plimsoll::clock::Clock;

use crate::list::{FAULTS, Fault, Played, Suite};
use crate::report::{Outcome, Row};
use crate::suite::Passed;

/// Faults that are played at the same time.
const AT_ONCE: usize = 6;

/// The time within which every script ends.
const SCRIPT_MAX: Duration = Duration::from_mins(10);

/// The script without a fault, which shows that the others could fail.
const CONTROL: &str = "none";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let writes = words.iter().any(|word| word == "--write");
    let names: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let chosen: Vec<Fault> = FAULTS
        .into_iter()
        .filter(|fault| names.is_empty() || names.iter().any(|name| fault.name.contains(*name)))
        .collect();
    if chosen.is_empty() {
        bail!("no fault has such a name");
    }

    let clock = Clock::start();
    let began = clock.elapsed();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (control, rows) = runtime.block_on(play_all(&chosen))?;
    let minutes = clock.elapsed().saturating_sub(began).as_secs_f64() / 60.0;

    let failed = rows.iter().filter(|row| !row.broken().is_empty()).count();
    println!("{} of {} pass, in {minutes:.1} minutes", rows.len() - failed, rows.len());
    if writes {
        let file = if rows.len() == FAULTS.len() {
            report::write(&rows, &control, minutes)?
        } else {
            report::replace(&rows)?
        };
        println!("{} is written", file.display());
    }
    if failed > 0 {
        bail!("{failed} faults break a rule");
    }
    Ok(())
}

/// Plays the faults, several at a time, and returns the control and the rows in their order.
async fn play_all(chosen: &[Fault]) -> Result<(String, Vec<Row>)> {
    let control = play_script(CONTROL).await.context("without a fault")?;
    if let Some(broken) = control.noticed.broken.first() {
        bail!("without a fault: {broken}");
    }
    let noticed = &control.noticed;
    let control = format!("{:?} to {:?} replicas", noticed.least, noticed.most);
    let control = control.replace("Some(", "").replace(')', "");

    println!("{}", report::head());
    let together: Vec<&'static str> = chosen
        .iter()
        .filter_map(|fault| match fault.played {
            Played::Test(Suite::EndToEnd, test) => Some(test),
            _ => None,
        })
        .collect();
    // What takes longest begins first.
    let mut order: Vec<(usize, Fault)> = chosen.iter().copied().enumerate().collect();
    order.sort_by_key(|(index, fault)| (fault.name != "day-of-churn", *index));
    let alone = order
        .into_iter()
        .filter(|(_, fault)| !matches!(fault.played, Played::Test(Suite::EndToEnd, _)));
    let playing = stream::iter(alone).map(|(index, fault)| async move {
        let outcome = outcome(fault).await;
        (index, show(Row { fault, outcome }))
    });
    let (rows, mut end_to_end) = tokio::join!(
        playing.buffer_unordered(AT_ONCE).collect::<BTreeMap<usize, Row>>(),
        suite::run_together(Suite::EndToEnd, &together),
    );
    let mut rows = rows;
    for (index, fault) in chosen.iter().copied().enumerate() {
        let Played::Test(Suite::EndToEnd, test) = fault.played else { continue };
        let outcome = match &mut end_to_end {
            Ok(results) => tested(results.remove(test).context("not run").flatten()),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        rows.insert(index, show(Row { fault, outcome }));
    }
    Ok((control, rows.into_values().collect()))
}

fn show(row: Row) -> Row {
    println!("{}", row.line());
    for broken in row.broken() {
        println!("  BROKEN: {}: {broken}", row.fault.name);
    }
    row
}

async fn outcome(fault: Fault) -> Outcome {
    match fault.played {
        Played::Test(suite, test) => tested(suite::run(suite, test).await),
        Played::Live => match play_script(fault.name).await {
            Ok(finding) => Outcome::Live(finding),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        },
    }
}

fn tested(result: Result<Passed>) -> Outcome {
    match result {
        Ok(passed) => Outcome::Test(passed),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Plays the script with this name.
async fn play_script(name: &str) -> Result<scene::Finding> {
    let script = scripts::all().into_iter().find(|script| script.name == name);
    let script = script.with_context(|| format!("no script {name}"))?;
    // In a task of its own, so that a panic ends the script alone.
    let mut task = tokio::task::JoinSet::new();
    task.spawn((script.play)());
    let joined = tokio::time::timeout(SCRIPT_MAX, task.join_next()).await;
    joined.context("the script does not end")?.context("no script")??
}
