//! KEDA and Prometheus as processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::stage::{Stage, tools};
use crate::wait::until;

const MANIFESTS: &str = include_str!("../manifests/keda.yaml");

/// The Service by which the cluster knows KEDA's metrics adapter.
pub(crate) const SERVICE: &str = "keda-metrics-apiserver";

/// KEDA's operator and metrics adapter, and the Prometheus that its trigger asks. They run until the
/// tests end.
pub(crate) struct Keda {
    /// Where Prometheus answers.
    pub(crate) prometheus: String,
    /// What ties KEDA to the cluster, its registration included.
    pub(crate) manifests: String,
}

impl Keda {
    /// Installs KEDA's objects, starts everything, and waits until the API server reaches the
    /// adapter. The registration of before, Plimsoll's, is overwritten, as an installation of KEDA
    /// does.
    pub(crate) fn start(stage: &Stage) -> Self {
        let folder = stage.folder.join("keda");
        let (address, prometheus) =
            (format!("{}.200.2", stage.net), format!("{}.200.3", stage.net));
        let ca = certificates(&folder, &address);
        let crds = tools().join("keda-crds");
        let crds = ["apply", "--server-side", "-f", crds.to_str().unwrap()];
        stage.kubectl(&crds).unwrap();
        let ca = serde_json::to_string(&k8s_openapi::ByteString(ca.into_bytes())).unwrap();
        let manifests = MANIFESTS.replace("ADDRESS", &address).replace("CA_BUNDLE", &ca);
        stage.apply(&manifests);
        run(&folder, "prometheus", &prometheus_arguments(stage, &folder, &prometheus));
        run(&folder, "keda-operator", &operator_arguments(stage, &folder, &address));
        run(&folder, "keda-adapter", &adapter_arguments(stage, &folder, &address));
        let prometheus = format!("http://{prometheus}:9090");
        until("Prometheus ready", || stage.page(&format!("{prometheus}/-/ready")).map(|_| ()));
        until("KEDA registered", || {
            stage.look_again();
            let path = "jsonpath={.spec.service.name} \
                        {.status.conditions[?(@.type==\"Available\")].status}";
            let name = "v1beta1.external.metrics.k8s.io";
            let found = stage.kubectl(&["get", "apiservice", name, "-o", path]).ok()?;
            (found == format!("{SERVICE} True")).then_some(())
        });
        Self { prometheus, manifests }
    }
}

/// Starts a program that does not outlive the tests, even if they are ended by force. The kernel
/// ends it with the thread that started it, and a test's thread ends with the test.
fn run(folder: &Path, program: &str, arguments: &[String]) {
    let log = File::options().append(true).create(true).open(folder.join(format!("{program}.log")));
    let log = log.unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(tools().join(program))
        .args(arguments)
        .env("WATCH_NAMESPACE", "")
        .env("POD_NAMESPACE", "keda")
        .env("KEDA_CLUSTER_OBJECT_NAMESPACE", "keda")
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    std::thread::spawn(move || {
        let status = command.spawn().unwrap().wait();
        panic!("it ended while it was needed: {command:?}: {status:?}");
    });
}

fn prometheus_arguments(stage: &Stage, folder: &Path, address: &str) -> Vec<String> {
    // The target has a namespace of its own, as a ServiceMonitor gives it, so that what the example
    // says about labels is tried.
    let plimsoll = stage.address();
    let text = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- job_name: \
         plimsoll\n  honor_labels: true\n  static_configs:\n  - targets: [\"{plimsoll}:8080\"]\n    \
         labels: {{namespace: plimsoll}}\n"
    );
    let file = folder.join("prometheus.yaml");
    fs::write(&file, text).unwrap();
    let storage = folder.join("prometheus");
    vec![
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", storage.display()),
        format!("--web.listen-address={address}:9090"),
    ]
}

fn operator_arguments(stage: &Stage, folder: &Path, address: &str) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig(stage).display()),
        format!("--metrics-bind-address={address}:8080"),
        format!("--health-probe-bind-address={address}:8081"),
        format!("--metrics-service-bind-address={address}:9666"),
        format!("--cert-dir={}", folder.display()),
        "--zap-log-level=info".to_owned(),
    ]
}

fn adapter_arguments(stage: &Stage, folder: &Path, address: &str) -> Vec<String> {
    let kubeconfig = kubeconfig(stage);
    let kubeconfig = kubeconfig.display();
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--lister-kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--bind-address={address}"),
        "--secure-port=6443".to_owned(),
        // It listens on all addresses whatever it is told, so any port that is free.
        format!("--port={}", free_port()),
        format!("--metrics-service-address={address}:9666"),
        format!("--cert-dir={}", folder.display()),
        format!("--tls-cert-file={}", file("tls.crt")),
        format!("--tls-private-key-file={}", file("tls.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        "--zap-log-level=info".to_owned(),
    ]
}

fn kubeconfig(stage: &Stage) -> PathBuf {
    stage.cluster().join("admin.kubeconfig")
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes the certificate with which operator, adapter and API server trust each other, and gives
/// back its authority.
pub(crate) fn certificates(folder: &Path, address: &str) -> String {
    certificates_for(folder, address, &format!("{SERVICE}.keda.svc"))
}

/// The same for another name.
pub(crate) fn certificates_for(folder: &Path, address: &str, service: &str) -> String {
    fs::create_dir_all(folder).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.distinguished_name.push(DnType::CommonName, "KEDA");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let names = vec![service.to_owned(), "keda-operator.keda.svc".to_owned(), address.to_owned()];
    let mut leaf = CertificateParams::new(names).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, "keda-operator");
    leaf.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap().pem();
    fs::write(folder.join("ca.crt"), &ca).unwrap();
    fs::write(folder.join("tls.crt"), leaf).unwrap();
    fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    ca
}
