//! The daemon as a process, with its two ports and its log.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::time::sleep;

/// How a process is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launch {
    /// Words before the program, such as `prlimit --nofile=64`.
    pub(crate) prefix: Vec<OsString>,
    pub(crate) environment: Vec<(String, OsString)>,
    /// Words after the program's own.
    pub(crate) arguments: Vec<String>,
    /// The log goes into a pipe that is not read after the start.
    pub(crate) blocks_log: bool,
}

/// A running daemon. Dropping it ends it by force.
pub(crate) struct Daemon {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
    child: Child,
    log: PathBuf,
}

/// Memory and files of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Resident memory, in MiB.
    pub(crate) resident: f64,
    pub(crate) descriptors: usize,
}

/// The program: this build's, or the one in the environment variable `PLIMSOLL`.
fn program() -> OsString {
    std::env::var_os("PLIMSOLL").unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into())
}

// === impl Daemon ===

impl Daemon {
    /// Starts a daemon, and waits until it listens.
    pub(crate) async fn start(config: &Path, launch: &Launch) -> Result<Self> {
        let log = config.with_extension("log");
        // A run that is ended by force must not leave its daemons behind.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(&launch.prefix).arg(program());
        command.args(["run", "--log-format", "json"]).args(&launch.arguments);
        command.arg("--config").arg(config).stdout(Stdio::null());
        command.envs(launch.environment.iter().cloned());

        if launch.blocks_log {
            let mut child = command.stderr(Stdio::piped()).spawn()?;
            let mut reader = BufReader::new(child.stderr.take().context("the log is piped")?);
            let found = reader.by_ref().lines().map_while(Result::ok).find_map(|it| ports(&it));
            // The pipe stays open, and from here on nothing is read from it.
            child.stderr = Some(reader.into_inner());
            let (plain, tls) = found.context("the daemon does not start")?;
            return Ok(Self { plain, tls, child, log });
        }

        let output = File::options().append(true).create(true).open(&log)?;
        let from = usize::try_from(output.metadata()?.len())?;
        let mut child = command.stderr(output).spawn()?;
        for _ in 0..600 {
            let text = fs::read_to_string(&log)?;
            if let Some((plain, tls)) = text[from..].lines().find_map(ports) {
                return Ok(Self { plain, tls, child, log });
            }
            if let Some(status) = child.try_wait()? {
                bail!("the daemon ends with {status}:\n{}", &text[from..]);
            }
            sleep(Duration::from_millis(50)).await;
        }

        let _has_ended = child.kill();
        let _has_ended = child.wait();
        bail!("the daemon does not listen:\n{}", fs::read_to_string(&log)?)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal, such as `-STOP`.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").arg(signal).arg(self.process().to_string()).status()?;
        ensure!(status.success(), "kill {signal} ends with {status}");
        Ok(())
    }

    /// Ends it by force.
    pub(crate) fn kill(&mut self) {
        let _has_ended = self.child.kill();
        let _has_ended = self.child.wait();
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> Result<()> {
        for _ in 0..1200 {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }

        bail!("the daemon does not end within a minute")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The addresses of both ports, in a line of the log.
fn ports(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let plain = line["admin"].as_str()?.parse().ok()?;
    let tls = line["external_metrics"].as_str()?.parse().ok()?;
    Some((plain, tls))
}

// === impl Usage ===

impl Usage {
    /// The present usage of a process.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next());
        let resident = kibibytes.context("no VmRSS")?.parse::<f64>()? / 1024.0;
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"))?.count();
        Ok(Self { resident, descriptors })
    }

    /// The larger values of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}
