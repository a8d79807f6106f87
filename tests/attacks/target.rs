//! The daemon under attack, as a process with default settings, and the few things that it needs.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::aim::{Aim, Credentials};
use crate::api_server::ApiServer;
use crate::engine::{Engine, EngineResponse, MODEL};
use crate::external_metrics_harness::{Use, Validity, write_leaf};
use crate::measure::Client;

/// Hostile variants of one attack.
#[derive(Clone, Copy)]
pub(crate) struct HostileVariants {
    pub(crate) response: fn() -> EngineResponse,
    pub(crate) variants: u16,
}

/// A running daemon with two honest engines, and hostile ones where an attack has them.
pub(crate) struct Target {
    pub(crate) aim: Arc<Aim>,
    pub(crate) credentials: Arc<Credentials>,
    child: Child,
    _api_server: ApiServer,
    _engines: Vec<Engine>,
    _folder: TempDir,
}

/// Memory and files of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Resident memory, in MiB.
    pub(crate) resident: f64,
    pub(crate) descriptors: usize,
}

impl Target {
    /// Starts a daemon, and waits until an HPA gets the number of the honest variant.
    pub(crate) async fn start(hostile: Option<HostileVariants>) -> Result<Self> {
        let credentials = Credentials::new();
        let folder = tempfile::tempdir()?;
        let api_server = ApiServer::start(&credentials.front_proxy.pem).await;
        let mut engines = vec![Engine::start(EngineResponse::honest()).await];
        if let Some(HostileVariants { response, .. }) = hostile {
            engines.push(Engine::start(response()).await);
        }

        let serving = credentials.serving.issue("plimsoll", Use::Server, Validity::Now);
        let tls = write_leaf(folder.path(), &serving);
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(api_server.address).to_string())?;
        let config = json!({
            "server": {"listen": "127.0.0.1:0"},
            "external_metrics": {
                "listen": "127.0.0.1:0",
                "tls": {"cert_file": tls.cert_file, "key_file": tls.key_file},
            },
            "external_scaler": {"listen": "127.0.0.1:0"},
            "kubernetes": {"enabled": true, "kubeconfig": kubeconfig, "events": false},
            "variants": variants(&engines, hostile),
        });
        let file = folder.path().join("plimsoll.yaml");
        fs::write(&file, config.to_string())?;

        let mut child = Command::new(program())
            .args(["run", "--log-format", "json", "--config"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let aim = Arc::new(Aim::new(addresses(&mut child)?, &credentials));
        let target = Self {
            aim,
            credentials: Arc::new(credentials),
            child,
            _api_server: api_server,
            _engines: engines,
            _folder: folder,
        };
        target.until_decided().await?;
        Ok(target)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    async fn until_decided(&self) -> Result<()> {
        let mut last = None;
        for _ in 0..600 {
            let client = Client::front_proxy(&self.aim, &self.credentials)?;
            match client.ask().await {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
            sleep(Duration::from_millis(100)).await;
        }

        bail!("the daemon decides nothing within a minute: {last:?}")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _has_ended = self.child.kill();
        let _has_ended = self.child.wait();
    }
}

/// The program to attack: this build's, or the one in the environment variable `PLIMSOLL`.
fn program() -> OsString {
    std::env::var_os("PLIMSOLL").unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into())
}

fn kubeconfig_of(api_server: SocketAddr) -> Value {
    let url = format!("http://{api_server}");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
}

/// The honest variant with two replicas, and one hostile replica for each hostile variant.
fn variants(engines: &[Engine], hostile: Option<HostileVariants>) -> Vec<Value> {
    let honest = engines[0].port;
    let targets = ["127.0.2.1", "127.0.2.2"].map(|host| format!("{host}:{honest}"));
    let mut variants = vec![json!({
        "name": "good", "namespace": "shop", "model": MODEL, "targets": {"static": targets},
    })];

    for number in 0..hostile.map_or(0, |hostile| hostile.variants) {
        let target = format!("127.3.0.{}:{}", 1 + number, engines[1].port);
        variants.push(json!({
            "name": format!("hostile-{number}"), "namespace": "mallory", "model": MODEL,
            "targets": {"static": [target]},
        }));
    }
    variants
}

/// The addresses of all ports, from the log, which is read to its end.
fn addresses(child: &mut Child) -> Result<[SocketAddr; 3]> {
    let stderr = child.stderr.take().context("the log is piped")?;
    let mut lines = BufReader::new(stderr).lines();
    let mut seen = Vec::new();
    for line in lines.by_ref() {
        let line = line?;
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        let ports = ["admin", "external_metrics", "external_scaler"].map(|it| value[it].as_str());
        if let [Some(plain), Some(tls), Some(grpc)] = ports {
            let ports = [plain.parse()?, tls.parse()?, grpc.parse()?];
            thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
            return Ok(ports);
        }

        seen.push(line);
    }

    bail!("the daemon does not start:\n{}", seen.join("\n"))
}

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
