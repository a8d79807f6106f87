//! Child processes, and their resource usage.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

/// Ticks of processor time per second, which is 100 on every Linux.
const TICKS: f64 = 100.0;

/// A child process, which ends when this value is dropped.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

/// The resource usage of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Processor time, in user mode and in the kernel.
    pub(crate) cpu: Duration,
    /// Resident memory, in MB.
    pub(crate) resident: f64,
    /// The peak of the resident memory, in MB.
    pub(crate) resident_max: f64,
}

impl Process {
    /// Starts this program again in another role.
    pub(crate) fn this(words: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::start(command)
    }

    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command.spawn().context("the process does not start")?;
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        Ok(Self { stdin: child.stdin.take(), lines, child })
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> Result<String> {
        let lines = self.lines.as_mut().context("its output is not read")?;
        Ok(lines.next().context("the process ended")??)
    }

    /// Writes an empty line to it.
    pub(crate) fn write_line(&mut self) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its input is not written")?;
        stdin.write_all(b"\n")?;
        Ok(stdin.flush()?)
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let process = self.child.id();
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The second field is a name in parentheses that may contain blanks.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        let ticks = ticks.sum::<Result<f64, _>>()?;
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let memory = |key: &str| -> Result<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kilobytes = line.and_then(|line| line.split_whitespace().next());
            Ok(kilobytes.with_context(|| format!("no {key}"))?.parse::<f64>()? / 1000.0)
        };
        Ok(Usage {
            cpu: Duration::from_secs_f64(ticks / TICKS),
            resident: memory("VmRSS:")?,
            resident_max: memory("VmHWM:")?,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _has_ended = self.child.kill();
        let _has_ended = self.child.wait();
    }
}

/// The load average of the machine, which shows how reliable the results are.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}
