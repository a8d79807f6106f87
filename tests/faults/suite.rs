//! Runs tests that exist, by name, in the binaries that `tests/faults/run` has built.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use plimsoll::clock::Clock;

use crate::list::Suite;

/// The result of a test.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
}

/// The environment variable that names a suite's binary.
fn variable(suite: Suite) -> &'static str {
    match suite {
        Suite::It => "FAULTS_IT",
        Suite::Core => "FAULTS_CORE",
        Suite::EndToEnd => "FAULTS_E2E",
    }
}

fn command(suite: Suite) -> Result<Command> {
    let variable = variable(suite);
    let binary = std::env::var_os(variable);
    let binary = binary.with_context(|| format!("{variable} is not set (tests/faults/run)"))?;
    let mut command = Command::new(binary);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("INSTA_UPDATE", "no");
    command.stdin(Stdio::null());
    Ok(command)
}

async fn output(mut command: Command) -> Result<Output> {
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// Runs one test.
pub(crate) async fn run(suite: Suite, test: &str) -> Result<Passed> {
    let clock = Clock::start();
    let began = clock.elapsed();
    let mut command = command(suite)?;
    command.args(["--exact", test]);
    let output = output(command).await?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let tail: Vec<&str> = stdout.lines().rev().take(12).collect();
    ensure!(stdout.contains("1 passed; 0 failed"), "{test} does not pass: {tail:#?}");
    Ok(Passed { seconds: clock.elapsed().saturating_sub(began).as_secs_f64() })
}

/// Runs tests of one suite in one process, because they share what is slow to start.
pub(crate) async fn run_together(
    suite: Suite,
    tests: &[&'static str],
) -> Result<BTreeMap<&'static str, Result<Passed>>> {
    if tests.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut command = command(suite)?;
    command.arg("--exact").args(tests);
    let output = output(command).await?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let outcome = |test: &str| {
        let passes = format!("test {test} ... ok");
        ensure!(out.contains(&passes), "{test} does not pass:\n{out}\n{err}");
        // Each stage prints how long its test had it.
        let line = err.lines().find(|line| line.contains(&format!(" s  {test} in ")));
        let seconds = line.and_then(|line| line.split_whitespace().next());
        let seconds = seconds.and_then(|it| it.parse().ok()).context("no duration")?;
        Ok(Passed { seconds })
    };
    Ok(tests.iter().map(|test| (*test, outcome(test))).collect())
}
