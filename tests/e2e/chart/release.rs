//! The chart's release in a control plane that is running already, and Plimsoll in its pod's place.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use plimsoll::collect::cluster;
use tokio::runtime::Runtime;

use crate::engines::{self, Engines};
use crate::page::MODEL;
use crate::wait::{ANSWER_MAX, until};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/plimsoll");
const CONTROL_PLANE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/tools/control-plane");
const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// The words for a connection that took too long for one of its ends.
const CUT_OFF: [&str; 2] = ["operation timed out", "tls handshake eof"];

/// The release, and what it is played on.
pub(crate) struct Release {
    folder: PathBuf,
    net: String,
    pub(crate) engines: Engines,
    runtime: Runtime,
}

/// What a client that trusts the `caBundle` of this moment makes of a replica.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    Trusted,
    Refused(String),
}

/// The release, which is made when it is first asked for.
pub(crate) fn release() -> &'static Release {
    static RELEASE: OnceLock<Release> = OnceLock::new();
    RELEASE.get_or_init(Release::build)
}

impl Release {
    fn build() -> Self {
        let folder = std::env::var_os("PLIMSOLL_CHART_DIR");
        let folder = PathBuf::from(folder.expect("tests/chart/run sets PLIMSOLL_CHART_DIR"));
        let net = fs::read_to_string(folder.join("cluster/net")).unwrap().trim().to_owned();
        let runtime = Runtime::new().unwrap();
        let admin = folder.join("cluster/admin.kubeconfig");
        let client = runtime.block_on(cluster::client(Some(&admin), None)).unwrap();
        let engines = Engines::default();
        runtime.spawn(engines.clone().serve(client));
        let release = Self { folder, net, engines, runtime };
        fs::write(release.folder.join("values.yaml"), values()).unwrap();
        release.apply(VARIANT);
        release
    }

    pub(crate) fn install(&self, set: &[&str]) {
        self.helm("install", set);
        until("the release's pod", || {
            let selector = "--selector=app.kubernetes.io/instance=plimsoll";
            let path = "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].status}";
            let ready = self.kubectl(&["get", "pod", "-n", "plimsoll", selector, "-o", path]);
            (ready.ok()? == "True").then_some(())
        });
        self.run(CONTROL_PLANE, &["kubeconfig", &self.cluster(), "plimsoll", "plimsoll"]);
    }

    /// The values of the installation, with these over them.
    pub(crate) fn upgrade(&self, set: &[&str]) {
        self.helm("upgrade", set);
    }

    fn helm(&self, command: &str, set: &[&str]) {
        let values = self.folder.join("values.yaml").display().to_string();
        let admin = format!("{}/admin.kubeconfig", self.cluster());
        let mut arguments = vec![
            command,
            "plimsoll",
            CHART,
            "--kubeconfig",
            &admin,
            "--namespace",
            "plimsoll",
            "--values",
            &values,
        ];
        for set in set {
            arguments.extend(["--set", set]);
        }
        self.run(&tool("helm"), &arguments);
    }

    fn cluster(&self) -> String {
        self.folder.join("cluster").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .envs(["cache", "config", "data"].map(|kind| {
                let name = format!("HELM_{}_HOME", kind.to_uppercase());
                (name, self.folder.join("helm").join(kind))
            }))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(text) } else { Err(errors) }
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(tool("kubectl"));
        command.arg("--kubeconfig").arg(format!("{}/admin.kubeconfig", self.cluster()));
        command
    }

    pub(crate) fn apply(&self, manifests: &str) {
        let mut command = self.kubectl_command();
        let child = command.args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), manifests.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl apply failed");
    }

    /// Starts Plimsoll where the API server looks for the release's pod; a second one beside it.
    pub(crate) fn start(&self, name: &str) -> Daemon {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let (config, log) = (folder.join("plimsoll.yaml"), folder.join("plimsoll.log"));
        let map = ["get", "configmap", "plimsoll", "-n", "plimsoll", "-o"];
        let path = ["jsonpath={.data.plimsoll\\.yaml}"];
        fs::write(&config, self.kubectl(&[&map[..], &path].concat()).unwrap()).unwrap();
        let (api, admin) = self.addresses(name);
        let output = File::options().append(true).create(true).open(&log).unwrap();
        // A test that is ended by force must not leave its daemon behind.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_plimsoll"), "run", "--config"])
            .arg(&config)
            .env("PLIMSOLL__EXTERNAL_METRICS__LISTEN", api.to_string())
            .env("PLIMSOLL__SERVER__LISTEN", admin.to_string())
            .env("PLIMSOLL__STATE_FILE", folder.join("state.json"))
            .env(
                "PLIMSOLL__KUBERNETES__KUBECONFIG",
                format!("{}/plimsoll.plimsoll.kubeconfig", self.cluster()),
            )
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let url = format!("http://{admin}");
        until(&format!("{name} ready"), || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("Plimsoll ended with {status}:\n{}", fs::read_to_string(&log).unwrap());
            }
            self.page(&format!("{url}/readyz")).map(|_| ())
        });
        Daemon { child, log, url, api }
    }

    /// The API's address, which for the first is the Service's, and the one of /metrics.
    fn addresses(&self, name: &str) -> (SocketAddr, SocketAddr) {
        let path = ["-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"];
        let service = [&["get", "service", "plimsoll", "-n", "plimsoll"][..], &path].concat();
        let own = |last: u8, port: u16| format!("{}.200.{last}:{port}", self.net).parse().unwrap();
        match name {
            "first" => (self.kubectl(&service).unwrap().parse().unwrap(), own(1, 8080)),
            _ => (own(2, 8443), own(2, 8080)),
        }
    }

    fn page(&self, url: &str) -> Option<String> {
        let get = async {
            let answer = reqwest::Client::new().get(url).timeout(ANSWER_MAX).send();
            answer.await?.error_for_status()?.text().await
        };
        self.runtime.block_on(get).ok()
    }

    /// A new connection, as a client makes it that trusts what the `APIService` says now. On a busy
    /// machine the server may cut it off because it is slow, and then it is made again.
    pub(crate) fn handshake(&self, daemon: &Daemon) -> Handshake {
        let is_cut_off = |outcome: &Handshake| match outcome {
            Handshake::Trusted => false,
            Handshake::Refused(why) => CUT_OFF.iter().any(|words| why.contains(words)),
        };
        let mut outcome = self.connect(daemon);
        if is_cut_off(&outcome) {
            outcome = self.connect(daemon);
        }
        outcome
    }

    fn connect(&self, daemon: &Daemon) -> Handshake {
        let Some(bundle) = self.ca_bundle() else {
            return Handshake::Refused("no caBundle".to_owned());
        };
        let name = "plimsoll.plimsoll.svc";
        let attempt = async {
            let roots = reqwest::Certificate::from_pem_bundle(&bundle)?;
            let client = reqwest::Client::builder()
                .tls_certs_only(roots)
                .resolve(name, daemon.api)
                .timeout(ANSWER_MAX)
                .no_proxy()
                .build()?;
            let url = format!("https://{name}:{}/livez", daemon.api.port());
            client.get(url).send().await?.error_for_status()
        };
        match self.runtime.block_on(attempt) {
            Ok(_) => Handshake::Trusted,
            Err(error) => Handshake::Refused(format!("{:#}", anyhow::Error::new(error))),
        }
    }

    fn ca_bundle(&self) -> Option<Vec<u8>> {
        let path = ["get", "apiservice", API_SERVICE, "-o", "jsonpath={.spec.caBundle}"];
        let text = self.kubectl(&path).ok()?;
        let bundle: k8s_openapi::ByteString = serde_json::from_value(text.into()).ok()?;
        Some(bundle.0).filter(|bundle| !bundle.is_empty())
    }

    pub(crate) fn write_ca_bundle(&self, base64: &str) {
        let patch = format!("{{\"spec\": {{\"caBundle\": \"{base64}\"}}}}");
        let arguments = ["patch", "apiservice", API_SERVICE, "--type=merge", "-p", &patch];
        self.kubectl(&arguments).unwrap();
    }

    /// Empties the Secret, so that everything in it is made anew.
    pub(crate) fn forget_certificate(&self) {
        let arguments =
            ["patch", "secret", "plimsoll-certificate", "-n", "plimsoll", "--type=json", "-p"];
        let remove = "[{\"op\": \"remove\", \"path\": \"/data\"}]";
        self.kubectl(&[&arguments[..], &[remove]].concat()).unwrap();
    }

    /// Has the API server look at the provider now, and waits until it is content.
    pub(crate) fn available(&self) {
        self.look_again();
        until("the APIService available", || (self.availability()?.0 == "True").then_some(()));
    }

    /// Since when the API server is content. What it found before a change may be read for a moment
    /// after it, so only what is said twice counts.
    pub(crate) fn available_since(&self) -> String {
        self.look_again();
        until("the APIService available for 5 seconds", || {
            let seen = self.availability().filter(|(status, _)| status == "True")?;
            std::thread::sleep(Duration::from_secs(5));
            (self.availability()? == seen).then_some(seen.1)
        })
    }

    fn look_again(&self) {
        let again = format!("plimsoll.test/look-again={}", rand::random::<u32>());
        self.kubectl(&["annotate", "--overwrite", "apiservice", API_SERVICE, &again]).unwrap();
    }

    /// The status of the `APIService`'s condition, and when it last changed.
    pub(crate) fn availability(&self) -> Option<(String, String)> {
        let condition = "{.status.conditions[?(@.type==\"Available\")]";
        let path = format!("jsonpath={condition}.status}} {condition}.lastTransitionTime}}");
        let text = self.kubectl(&["get", "apiservice", API_SERVICE, "-o", &path]).ok()?;
        let (status, since) = text.split_once(' ')?;
        Some((status.to_owned(), since.to_owned()))
    }

    pub(crate) fn replicas(&self, namespace: &str) -> Option<u32> {
        let path = "jsonpath={.spec.replicas}";
        self.kubectl(&["get", "deployment", "llama", "-n", namespace, "-o", path])
            .ok()?
            .parse()
            .ok()
    }

    /// What the release's account may do in a namespace beyond what every account may.
    pub(crate) fn permissions(&self, namespace: &str) -> BTreeSet<String> {
        let of = |account: &str| {
            let user = format!("--as=system:serviceaccount:plimsoll:{account}");
            let all =
                self.kubectl(&["auth", "can-i", "--list", "--no-headers", "-n", namespace, &user]);
            all.unwrap().lines().map(rule).collect::<BTreeSet<String>>()
        };
        &of("plimsoll") - &of("default")
    }

    /// The uid of the `FlowSchema` that a request of the release's account belongs to.
    pub(crate) fn flow(&self, method: &str, path: &str, body: &'static str) -> String {
        let kubeconfig = PathBuf::from(format!("{}/plimsoll.plimsoll.kubeconfig", self.cluster()));
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/json")
            .body(kube::client::Body::from(body.as_bytes().to_vec()))
            .unwrap();
        let answered = async {
            let client = cluster::client(Some(&kubeconfig), None).await.unwrap();
            client.send(request).await.unwrap()
        };
        let response = self.runtime.block_on(answered);
        assert!(response.status().is_success(), "{method} {path}: {}", response.status());
        response.headers()["x-kubernetes-pf-flowschema-uid"].to_str().unwrap().to_owned()
    }

    /// Ends the API server and starts it again.
    pub(crate) fn restart_api_server(&self) {
        self.run(CONTROL_PLANE, &["restart", &self.cluster(), "kube-apiserver"]);
    }
}

/// A line of `kubectl auth can-i --list`: a resource, then paths, names and verbs in brackets.
fn rule(line: &str) -> String {
    let parts: Vec<&str> = line.split(['[', ']']).map(str::trim).collect();
    let [resource, _paths, _, names, _, verbs, ..] = parts[..] else { panic!("{line}") };
    let name = if names.is_empty() { String::new() } else { format!(" {names}") };
    format!("{resource}{name} [{verbs}]")
}

fn values() -> String {
    format!(
        "image: {{repository: registry.example/plimsoll}}
# The pod is played; the process that the test runs listens on the Service's address.
podAnnotations: {{e2e/pod-ip: 192.0.2.1}}
service: {{port: 8443}}
config:
  observe: {{window: 5s, stale_after: 4s}}
  analysis: saturation
  enforce: {{scale_down: {{stabilization_window: 5s}}}}
  variants:
  - name: llama
    namespace: production
    model: {MODEL}
    targets: {{scale_target: {{api_version: apps/v1, kind: Deployment, name: llama}}}}
    scrape: {{port: {}}}
",
        engines::PORT
    )
}

const VARIANT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, namespace: production}
spec:
  replicas: 1
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec: {containers: [{name: engine, image: vllm}]}
";

fn tool(name: &str) -> String {
    let folder = std::env::var("TOOLS").expect("tests/chart/run sets TOOLS");
    format!("{folder}/{name}")
}

/// A running Plimsoll. Dropping it ends it by force.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    url: String,
    api: SocketAddr,
}

impl Daemon {
    /// The value of the series that begins with this.
    pub(crate) fn gauge(&self, release: &Release, series: &str) -> Option<f64> {
        let page = release.page(&format!("{}/metrics", self.url))?;
        let line = page.lines().find(|line| line.starts_with(series))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// What it has written of this kind for the certificate; of all kinds, if none is named.
    pub(crate) fn changes(&self, release: &Release, change: &str) -> f64 {
        let page = until("its metrics", || release.page(&format!("{}/metrics", self.url)));
        let of =
            |line: &&str| line.starts_with("plimsoll_tls_changes_total{") && line.contains(change);
        let values = page.lines().filter(of).filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
