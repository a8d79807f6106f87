//! As many variants as Plimsoll discovers, on a real API server. `make e2e-scale` runs this.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::client::Body;
use plimsoll::clock::Clock;
use plimsoll::collect::cluster;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Knows, configuration};
use crate::discovery::Granted;
use crate::engines;
use crate::stage::{Stage, stage_with_audit, tools};
use crate::wait::{stays, until, within};
use crate::wire::Wire;

const NAMESPACES: usize = 25;
const EACH: usize = 200;
const NODES: usize = 24;
const VARIANTS: u64 = 5_000;

/// Connections to the API server, at most.
const CONNECTIONS: usize = 12;

/// Memory at the peak, in MiB: the limit that docs/scale.md names for so many variants.
const MEMORY_MAX: u64 = 1024;

/// Scrapes of the metrics before memory is read.
const SCRAPES: usize = 10;

/// Requests in flight while the objects are made.
const AT_ONCE: usize = 32;

/// Bytes of an answer after which the connection stands still: within the first pages of pods.
const FIRST_PAGES: i64 = 3 << 20;

/// Time for which an answer is not read; an API server gives it up after a minute.
const UNREAD: Duration = Duration::from_secs(45);

/// Time without a request after which no more are expected.
const SILENCE: Duration = Duration::from_secs(15);

/// Longer than the minute after which an API server sends a bookmark.
const QUIET: Duration = Duration::from_secs(75);

/// Time within which a connection that died silently must be noticed.
const NOTICED: Duration = Duration::from_secs(30);

/// Time for everything that 5,000 objects need on a busy machine.
const CROWD_PATIENCE: Duration = Duration::from_mins(6);

/// A level without a queue for lists of all pods, on which one request has the only place.
const ONE_PLACE: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: one-place}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Reject}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: one-place}
spec:
  priorityLevelConfiguration: {name: one-place}
  matchingPrecedence: 100
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: plimsoll, namespace: plimsoll}}]
    resourceRules:
    - {apiGroups: [\"\"], resources: [pods], verbs: [list], clusterScope: true}
";

/// A kind that Plimsoll looks for, as it is looked for again and again where a cluster lacks it.
const LEADER_WORKER_SETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io}
spec:
  group: leaderworkerset.x-k8s.io
  scope: Namespaced
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// The time since its start, for the output.
struct Stopwatch {
    clock: Clock,
    start: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        let clock = Clock::start();
        Self { clock, start: clock.elapsed() }
    }
}

impl fmt::Display for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1?}", self.clock.elapsed().saturating_sub(self.start))
    }
}

#[test]
#[ignore = "it takes minutes: `make e2e-scale`"]
fn five_thousand_variants_take_few_connections_and_no_requests_while_nothing_changes() {
    let stage = &stage_with_audit();
    let _granted = Granted::everywhere(stage);
    stage.apply(LEADER_WORKER_SETS);
    let scaled_objects = tools().join("keda-crds/keda.sh_scaledobjects.yaml");
    stage.kubectl(&["create", "-f", &scaled_objects.display().to_string()]).unwrap();
    stage.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]).unwrap();
    populate(stage);
    let back = format!("{}.200.30", stage.net);
    let at = |address: &str| -> SocketAddr { format!("{address}:6443").parse().unwrap() };
    let wire = Wire::new(stage, at(&back), at(&format!("{}.0.1", stage.net)));
    let configuration = configured(stage, &back);

    let daemon = refused(stage, &wire, &configuration);
    forgotten(stage, &wire, &daemon);
    quiet(stage, &wire);
    black_hole(stage, &daemon, &wire);
    drop(daemon);

    without_etcd(stage, &configuration);
    first_decisions(stage, &wire, &configuration);
}

/// An API server that has no place for a list of all pods is asked again, and not before the second that
/// it asks for. Then the first pages of the list come, and no more.
fn refused(stage: &Stage, wire: &Wire, configuration: &str) -> Daemon {
    stage.apply(ONE_PLACE);
    until("the level in force", || {
        let path = "jsonpath={.status.conditions[?(@.type==\"Dangling\")].status}";
        let status = stage.kubectl(&["get", "flowschema", "one-place", "-o", path]).ok()?;
        (status == "False").then_some(())
    });
    let taken = stage.spawn(take_the_place(stage));
    let daemon = Daemon::begin(stage, "crowd", configuration);
    let refused = within(CROWD_PATIENCE, "refused lists", || {
        let refused: Vec<Value> =
            lists_of_pods(stage).into_iter().filter(|it| code(it) == 429).collect();
        (refused.len() >= 3).then_some(refused)
    });
    let times = refused.iter().map(|it| -> jiff::Timestamp {
        it["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap()
    });
    let times: Vec<jiff::Timestamp> = times.collect();
    let gaps: Vec<Duration> =
        times.windows(2).map(|two| two[1].duration_since(two[0]).unsigned_abs()).collect();
    println!("lists of pods were refused with 429, {gaps:.1?} apart");
    assert!(gaps.iter().all(|gap| *gap >= Duration::from_secs(1)), "{gaps:?}");

    // Only this list is left, and of it not the first bytes have come.
    within(CROWD_PATIENCE, "every scale read", || {
        let reads = || stage.audit().iter().filter(|it| it["verb"] == "get").count();
        let before = reads();
        std::thread::sleep(SILENCE);
        (reads() == before).then_some(())
    });
    wire.cut_after(FIRST_PAGES);
    taken.abort();
    stage.kubectl(&["delete", "flowschema", "one-place"]).unwrap();
    daemon
}

/// Asks for all pods and does not read the answer, again before the API server gives it up.
fn take_the_place(stage: &Stage) -> impl Future<Output = ()> + Send + use<> {
    let kubeconfig = stage.cluster().join("plimsoll.plimsoll.kubeconfig");
    let client = stage.run(cluster::client(Some(&kubeconfig), None)).unwrap();
    async move {
        loop {
            let request = hyper::Request::get("/api/v1/pods").body(Body::empty()).unwrap();
            match client.send(request).await {
                Ok(unread) if unread.status().is_success() => tokio::time::sleep(UNREAD).await,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// The API server forgets a list of which only the first pages have been read.
fn forgotten(stage: &Stage, wire: &Wire, daemon: &Daemon) {
    until("a list in progress", || wire.is_cut().then_some(()));
    compact(stage);
    wire.restore();
    knows(stage, daemon, VARIANTS);
    let lists = lists_of_pods(stage);
    let forgotten = lists.iter().filter(|list| code(list) == 410).count();
    let pages = lists.iter().filter(|list| uri(list).contains("continue=")).count();
    println!("{forgotten} lists of pods were forgotten, and {pages} further pages read");
    assert!(forgotten > 0 && pages >= 3, "{lists:#?}");
}

/// Nothing but bookmarks comes while others write, and nothing goes. Watches that are interrupted go
/// on from the bookmarks.
fn quiet(stage: &Stage, wire: &Wire) {
    until("no more requests", || {
        let before = stage.audit().len();
        std::thread::sleep(SILENCE);
        (stage.audit().len() == before).then_some(())
    });
    let (before, version) = (stage.audit().len(), version(stage));
    stays("quiet", QUIET, || {
        write_something(stage);
        true
    });
    // A watch ends after five to ten minutes, and goes on.
    let lines = stage.audit().split_off(before);
    let sent: Vec<&Value> = lines.iter().filter(|it| it["verb"] != "watch").collect();
    let begun = lines.iter().filter(|it| it["stage"] == "ResponseStarted").count();
    println!("{} requests in {QUIET:.0?}, and {begun} watches resumed", sent.len());
    assert!(sent.is_empty(), "{sent:#?}");
    println!("{} connections of {VARIANTS} variants", wire.open());
    assert!(wire.open() <= CONNECTIONS, "{} connections", wire.open());

    let reset = stage.audit().len();
    wire.reset();
    let watch = until("the watch of pods again", || resumed(stage, reset).pop());
    let from = resource_version(uri(&watch));
    assert!(from > version, "resumed from {from}, not after {version}: {watch:#}");
    until("every watch again", || {
        let before = stage.audit().len();
        std::thread::sleep(SILENCE);
        (stage.audit().len() == before).then_some(())
    });
    let again = stage.audit()[reset..].iter().filter(|it| it["verb"] == "list").count();
    assert_eq!(again, 0, "lists after a reset");
}

/// Packets are dropped: it is noticed, and nothing is lost.
fn black_hole(stage: &Stage, daemon: &Daemon, wire: &Wire) {
    let noticed = || daemon.log().matches("Watch is broken").count();
    let (before, stopwatch) = (noticed(), Stopwatch::start());
    wire.cut();
    within(NOTICED, "a dead connection", || (noticed() > before).then_some(()));
    println!("a dead connection was noticed after {stopwatch}");
    let pods: Api<Pod> = Api::namespaced(stage.client(), "team-0");
    let name = "model-0-0";
    stage.run(pods.delete(name, &DeleteParams::default().grace_period(0))).unwrap();
    wire.restore();
    knows(stage, daemon, VARIANTS - 1);
    until("few connections", || (wire.open() <= CONNECTIONS).then_some(()));
}

/// While etcd is away, the API server answers lists with 5xx.
fn without_etcd(stage: &Stage, configuration: &str) {
    stage.kill_etcd();
    let before = stage.audit().len();
    let daemon = Daemon::begin(stage, "crowd", configuration);
    let failed = within(CROWD_PATIENCE, "failed lists", || {
        let lines = stage.audit().split_off(before);
        let failed = lines.iter().filter(|it| code(it) >= 500);
        let codes: Vec<u64> = failed.map(code).collect();
        (codes.len() >= 3).then_some(codes)
    });
    stage.restart_etcd();
    println!("without etcd, requests failed with {failed:?}");
    knows(stage, &daemon, VARIANTS - 1);
}

/// The time from the start to a decision of every variant, and the memory that they take.
fn first_decisions(stage: &Stage, wire: &Wire, configuration: &str) {
    let pods: Api<Pod> = Api::all(stage.client());
    let pods = stage.run(pods.list(&ListParams::default())).unwrap().items;
    let engines: Vec<(IpAddr, String)> = pods
        .iter()
        .filter_map(|pod| Some((engines::running(pod)?.1, pod.metadata.name.clone()?)))
        .collect();
    stage.spawn(engines::serve_models(engines));

    let stopwatch = Stopwatch::start();
    let daemon = Daemon::launch(stage, "crowd", configuration);
    println!("ready after {stopwatch}");
    let with_pod = VARIANTS - 1;
    knows(stage, &daemon, with_pod);
    println!("every pod known after {stopwatch}");
    within(CROWD_PATIENCE, "a decision of every variant", || {
        let undecided = daemon.status(stage)?["fleet"]["undecided"].as_u64()?;
        // The variant without a pod has nothing to decide from.
        (undecided <= VARIANTS - with_pod).then_some(())
    });
    println!("every variant decided after {stopwatch}");

    // A Prometheus reads the metrics, which takes memory too.
    for _ in 0..SCRAPES {
        until("its metrics", || daemon.gauge_text(stage, "plimsoll_ticks_total", &[]));
    }
    let (resident, peak) = (daemon.memory("VmRSS"), daemon.memory("VmHWM"));
    println!("{resident} MiB resident, {peak} MiB at the peak, {} connections", wire.open());
    assert!(peak < MEMORY_MAX, "{peak} MiB");
    until("few connections", || (wire.open() <= CONNECTIONS).then_some(()));
}

/// Waits until Plimsoll knows every variant and so many pods.
fn knows(stage: &Stage, daemon: &Daemon, pods: u64) {
    within(CROWD_PATIENCE, "every pod", || {
        let status = daemon.status(stage)?;
        let sources = &status["sources"];
        let kinds = ["replicas_fresh", "replicas_stale", "replicas_never"];
        let known: u64 = kinds.iter().filter_map(|kind| sources[kind].as_u64()).sum();
        (status["fleet"]["variants"] == VARIANTS && known == pods).then_some(())
    });
}

/// Makes the namespaces, and in each the Deployments with a pod.
fn populate(stage: &Stage) {
    let stopwatch = Stopwatch::start();
    let namespaces: Vec<Value> =
        (0..NAMESPACES).map(|team| json!({"metadata": {"name": format!("team-{team}")}})).collect();
    let all: Api<Namespace> = Api::all(stage.client());
    create(stage, &namespaces, |_| all.clone());
    until("service accounts", || {
        let accounts: Api<ServiceAccount> = Api::all(stage.client());
        let found = stage.run(accounts.list(&ListParams::default())).ok()?;
        let teams = found.items.iter().filter(|account| {
            let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
            namespace.starts_with("team-") && account.metadata.name.as_deref() == Some("default")
        });
        (teams.count() == NAMESPACES).then_some(())
    });

    let places = (0..NAMESPACES).flat_map(|team| (0..EACH).map(move |model| (team, model)));
    let (deployments, pods): (Vec<Value>, Vec<Value>) =
        places.map(|(team, model)| variant(team, model)).unzip();
    create(stage, &deployments, |namespace| {
        Api::<Deployment>::namespaced(stage.client(), namespace)
    });
    create(stage, &pods, |namespace| Api::<Pod>::namespaced(stage.client(), namespace));
    let all: Api<Pod> = Api::all(stage.client());
    let others = ListParams::default().fields("status.phase!=Running").limit(1);
    within(CROWD_PATIENCE, "running pods", || {
        stage.run(all.list_metadata(&others)).ok()?.items.is_empty().then_some(())
    });
    println!("the objects were made in {stopwatch}");
}

/// A Deployment that is paused, so that its controller makes no pods, and its pod.
fn variant(team: usize, model: usize) -> (Value, Value) {
    let (namespace, name) = (format!("team-{team}"), format!("model-{team}-{model}"));
    let labels = json!({"app": name});
    let spec = json!({"containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.11.0"}]});
    let deployment = json!({
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"plimsoll.dev/model": name},
        },
        "spec": {
            "paused": true,
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    });
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    });
    pod["spec"]["nodeName"] = format!("node-{}", (team * EACH + model) % NODES).into();
    (deployment, pod)
}

fn create<K>(stage: &Stage, objects: &[Value], api: impl Fn(&str) -> Api<K>)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let requests = objects.iter().map(|object| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let (api, object) = (api(namespace), serde_json::from_value(object.clone()).unwrap());
        async move { api.create(&PostParams::default(), &object).await.map(|_| ()) }
    });
    let made = futures_util::stream::iter(requests).buffer_unordered(AT_ONCE).try_collect::<()>();
    stage.run(made).unwrap();
}

fn configured(stage: &Stage, back: &str) -> String {
    let given = stage.cluster().join("plimsoll.plimsoll.kubeconfig");
    let text = std::fs::read_to_string(&given).unwrap();
    let server = format!("\"https://{}.0.1:6443\"", stage.net);
    let named = format!("\"https://{back}:6443\", tls-server-name: kubernetes.default.svc");
    let kubeconfig = stage.folder.join("crowd.kubeconfig");
    std::fs::write(&kubeconfig, text.replace(&server, &named)).unwrap();

    // Events would tell of some variants after another, one per second.
    configuration(stage, "crowd", Knows::ByDiscovery)
        .replace(&given.display().to_string(), &kubeconfig.display().to_string())
        .replace("kubernetes:\n", "kubernetes:\n  events: false\n")
        .replace("observe: {window: 5s, stale_after: 4s}", "observe: {window: 2m, stale_after: 1m}")
        .replace("scrape: {interval: 1s", "scrape: {interval: 30s")
        .replace("tick_interval: 1s", "tick_interval: 5s")
}

/// Has etcd forget all versions but the present one.
fn compact(stage: &Stage) {
    let url = format!("http://{}.0.1:2379/v3/kv", stage.net);
    write_something(stage);
    let client = reqwest::Client::new();
    let compacted = async {
        let key = json!({"key": "AA=="}).to_string();
        let range = client.post(format!("{url}/range")).body(key).send().await?.text().await?;
        let found: Value = serde_json::from_str(&range).unwrap();
        let revision = json!({"revision": found["header"]["revision"], "physical": true});
        let request = client.post(format!("{url}/compaction")).body(revision.to_string());
        request.send().await?.error_for_status()
    };
    stage.run(compacted).unwrap();
}

/// Moves the version of everything on.
fn write_something(stage: &Stage) {
    let maps: Api<ConfigMap> = Api::namespaced(stage.client(), "default");
    let map = json!({"metadata": {"generateName": "something-"}});
    let map = serde_json::from_value(map).unwrap();
    stage.run(maps.create(&PostParams::default(), &map)).unwrap();
}

/// The version of everything at this moment.
fn version(stage: &Stage) -> u64 {
    let maps: Api<ConfigMap> = Api::namespaced(stage.client(), "default");
    let list = stage.run(maps.list(&ListParams::default().limit(1))).unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

/// The lists of all pods that the API server has answered.
fn lists_of_pods(stage: &Stage) -> Vec<Value> {
    let is = |it: &Value| {
        let answered = it["verb"] == "list" && it["stage"] == "ResponseComplete";
        answered && uri(it).starts_with("/api/v1/pods?")
    };
    stage.audit().into_iter().filter(is).collect()
}

/// The watches of pods that have begun after so many lines.
fn resumed(stage: &Stage, after: usize) -> Vec<Value> {
    let is = |it: &&Value| {
        let begins = it["verb"] == "watch" && it["stage"] == "ResponseStarted";
        begins && uri(it).starts_with("/api/v1/pods?")
    };
    stage.audit()[after..].iter().filter(is).cloned().collect()
}

fn uri(request: &Value) -> &str {
    request["requestURI"].as_str().unwrap()
}

fn code(request: &Value) -> u64 {
    request["responseStatus"]["code"].as_u64().unwrap_or_default()
}

fn resource_version(uri: &str) -> u64 {
    let (_, query) = uri.split_once('?').unwrap();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let version = pairs.find(|(name, _)| name == "resourceVersion").unwrap().1;
    version.parse().unwrap()
}
