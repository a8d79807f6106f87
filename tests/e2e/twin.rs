//! The model of the HPA beside the real HPA controller: both are given the same metric values.
//!
//! An external metrics API that follows a script stands where Plimsoll would. The controller asks it
//! once in each sync of each HPA, so what it is asked counts the syncs, and what the scale target
//! says when it is asked is what the sync before has come to. The scale target is a custom resource
//! without pods, whose status follows its spec at once.
//!
//! Where windows or periods matter, the answers come at the beats of a clock, and every window and
//! period ends halfway between two beats. So it makes no difference how busy the machine is, unless
//! the controller takes half a beat to act on an answer. A series in which it does is played again.
//! The others are answered at once: while the controller waits for an answer, its copy of the HPA
//! ages, and the condition that an HPA is at zero may be lost in a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use plimsoll::clock::Clock;
use plimsoll::decide::enforce::{Amount, Select};
use plimsoll::server::tls::{self, ServingCertificate, server_config};
use plimsoll::simulate::Micros;
use plimsoll::simulate::scaler::{
    MetricError, MilliValue, ScaleCounts, Scaler, ScalerSettings, ScalingPolicy, SyncOutcome,
};
use plimsoll::units::Replicas;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::daemon::Daemon;
use crate::stage::{Stage, stage};
use crate::wait::{seen_within, within};

/// The slowest series takes a beat for each of its syncs, after the controller has learned of the
/// custom resource, for which it looks every half minute.
const PATIENCE: Duration = Duration::from_mins(4);

/// How often the status of the scale targets follows their spec, many times in a beat.
const FOLLOWING: Duration = Duration::from_millis(100);

/// The time between two answers, which is longer than the second that the controller waits between
/// two syncs. In seconds it is even, and all windows and periods are odd.
const BEAT: Duration = Duration::from_secs(2);

/// How often the series are played at most. Those that end early, because the controller acts too
/// late on a busy machine, are played again in a namespace of their own.
const ROUNDS: u32 = 5;

/// Scale targets that are nothing but a number.
const TARGETS: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crowds.plimsoll.test}
spec:
  group: plimsoll.test
  scope: Namespaced
  names: {plural: crowds, singular: crowd, kind: Crowd}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale:
        specReplicasPath: .spec.replicas
        statusReplicasPath: .status.replicas
        labelSelectorPath: .status.selector
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {replicas: {type: integer}}}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
";

/// What the metrics API says to one question.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// One item, in thousandths.
    Sum(i64),
    /// Two items, which an HPA adds up.
    Items(i64, i64),
    /// A list without items.
    Nothing,
    /// This status.
    Refused(u16),
}

/// One HPA, its model, and what both are told.
struct Series {
    name: &'static str,
    settings: ScalerSettings,
    initial: u32,
    /// How many more pods the target has than it asks for, as while it rolls out.
    surge: u32,
    /// Whether the windows or periods matter, and the answers come at the beats.
    timed: bool,
    answers: Vec<Answer>,
}

/// What was seen when the controller asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Micros,
    scale: ScaleCounts,
    answered: Micros,
    /// The status when it was answered.
    status_then: Replicas,
}

type Log = Arc<Mutex<BTreeMap<String, Vec<Asked>>>>;

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn secs(seconds: u64) -> Micros {
    Micros::from_secs(seconds)
}

fn sums(values: &[i64]) -> Vec<Answer> {
    values.iter().map(|value| Answer::Sum(value * 1000)).collect()
}

fn exact(max: u32) -> ScalerSettings {
    ScalerSettings::following(n(1), n(max))
}

fn policy(amount: Amount, seconds: u64) -> ScalingPolicy {
    ScalingPolicy { amount, period: secs(seconds) }
}

/// With `behavior`, without tolerance or limits, and what the function changes.
fn behaving(change: impl FnOnce(&mut ScalerSettings)) -> ScalerSettings {
    let mut settings = exact(100);
    change(&mut settings);
    settings
}

/// The controller's own window is switched off on this stage.
fn plain(min: u32, max: u32, milli: i64) -> ScalerSettings {
    let mut settings = ScalerSettings::new(n(min), n(max), MilliValue(milli));
    settings.down.window = Micros::ZERO;
    settings
}

fn untimed(
    name: &'static str,
    settings: ScalerSettings,
    initial: u32,
    answers: Vec<Answer>,
) -> Series {
    Series { name, settings, initial, surge: 0, timed: false, answers }
}

fn about_tolerance() -> Vec<Series> {
    let tolerant = |up, down| {
        behaving(|settings| {
            settings.up.tolerance = up;
            settings.down.tolerance = down;
        })
    };
    let around = |middle: i64| {
        let steps = [0, 1, 2, 3, 2, -1, -2, -3, -2, 4, -4, 0];
        steps.iter().map(|step| Answer::Sum((middle + step) * 1000)).collect::<Vec<_>>()
    };
    vec![
        untimed("exact", exact(100), 20, around(20)),
        untimed("tolerant", tolerant(0.1, 0.1), 20, around(20)),
        untimed("uneven", tolerant(0.05, 0.2), 30, around(30)),
        untimed(
            "fractions",
            behaving(|settings| settings.target = MilliValue(2_500)),
            4,
            [10_000, 10_001, 12_499, 12_500, 12_501, 7_499, 1, 0, 31_000, 30_000]
                .map(Answer::Sum)
                .into(),
        ),
        untimed(
            "halves",
            behaving(|settings| settings.target = MilliValue(500)),
            4,
            [2_000, 2_001, 3_250, 1_000, 499, 500, 501, 4_000].map(Answer::Sum).into(),
        ),
        untimed(
            "clamped",
            ScalerSettings { min: n(3), ..exact(6) },
            4,
            sums(&[1, 9, 4, 20, 0, 5, 3, 2, 6, 7]),
        ),
        Series {
            surge: 2,
            ..untimed("surge", tolerant(0.1, 0.1), 10, sums(&[10, 11, 12, 13, 14, 15, 9, 8, 12]))
        },
    ]
}

fn about_windows() -> Vec<Series> {
    let down_window = behaving(|settings| settings.down.window = secs(5));
    let up_window = behaving(|settings| settings.up.window = secs(5));
    let both = behaving(|settings| {
        settings.up.window = secs(3);
        settings.down.window = secs(7);
        settings.up.policies = vec![policy(Amount::Pods(3), 5)];
        settings.down.policies = vec![policy(Amount::Percent(30), 5)];
    });
    let waves = [8, 3, 3, 6, 2, 2, 2, 2, 2, 2, 9, 2, 2, 12, 2, 2, 2, 2, 2, 2, 2];
    let series = |name, settings, values: &[i64]| Series {
        name,
        settings,
        initial: 8,
        surge: 0,
        timed: true,
        answers: sums(values),
    };
    vec![
        series("window-down", down_window, &waves),
        series("window-up", up_window, &[8, 20, 15, 9, 30, 30, 30, 30, 30, 4, 4, 25, 25, 25, 25]),
        series("windows-and-rates", both, &waves),
    ]
}

fn about_rates() -> Vec<Series> {
    let rates = |select, up: Vec<ScalingPolicy>, down: Vec<ScalingPolicy>| {
        behaving(|settings| {
            (settings.up.select, settings.down.select) = (select, select);
            (settings.up.policies, settings.down.policies) = (up, down);
        })
    };
    let two = || {
        (
            vec![policy(Amount::Pods(2), 3), policy(Amount::Percent(50), 5)],
            vec![policy(Amount::Pods(3), 5), policy(Amount::Percent(40), 3)],
        )
    };
    let jump = [5, 40, 40, 40, 40, 40, 40, 40, 40, 1, 1, 1, 1, 1, 1, 1, 30, 1, 30, 1, 1];
    let of = |select| rates(select, two().0, two().1);
    let doubling = behaving(|settings| {
        *settings = ScalerSettings::with_behavior(n(1), n(100), MilliValue(1000));
        settings.down.window = Micros::ZERO;
    });
    let series = |name, settings| Series {
        name,
        settings,
        initial: 5,
        surge: 0,
        timed: true,
        answers: sums(&jump),
    };
    vec![
        series("rates-max", of(Select::Max)),
        series("rates-min", of(Select::Min)),
        series("rates-off", of(Select::Disabled)),
        series("defaults", doubling),
        series("no-behavior", plain(2, 36, 1000)),
    ]
}

fn about_what_is_missing() -> Vec<Series> {
    let gaps = vec![
        Answer::Sum(6_000),
        Answer::Nothing,
        Answer::Refused(500),
        Answer::Sum(9_000),
        Answer::Refused(404),
        Answer::Refused(403),
        Answer::Items(3_500, 2_400),
        Answer::Nothing,
        Answer::Sum(0),
        Answer::Items(0, 7_001),
        Answer::Sum(-4_000),
    ];
    let zero = ScalerSettings { min: Replicas::ZERO, ..exact(10) };
    let zeroes = vec![
        Answer::Sum(2_000),
        Answer::Sum(0),
        Answer::Sum(0),
        Answer::Nothing,
        Answer::Sum(1),
        Answer::Sum(4_000),
        Answer::Sum(0),
        Answer::Refused(503),
        Answer::Sum(30_000),
    ];
    vec![
        untimed("gaps", exact(12), 6, gaps.clone()),
        untimed("gaps-no-behavior", plain(1, 12, 1000), 6, gaps),
        untimed("zero", zero.clone(), 2, zeroes),
        // What somebody else has taken to zero is left alone, and its metric not even asked for.
        untimed("asleep", zero, 0, sums(&[3])),
    ]
}

fn all() -> Vec<Series> {
    [about_tolerance(), about_windows(), about_rates(), about_what_is_missing()]
        .into_iter()
        .flatten()
        .collect()
}

fn hpa(namespace: &str, series: &Series) -> Value {
    let ScalerSettings { min, max, target, behavior, up, down } = &series.settings;
    let rules = |rules: &plimsoll::simulate::scaler::Rules| {
        let policies: Vec<Value> = rules
            .policies
            .iter()
            .map(|policy| {
                let (kind, value) = match policy.amount {
                    Amount::Pods(pods) => ("Pods", pods),
                    Amount::Percent(percent) => ("Percent", percent),
                };
                json!({"type": kind, "value": value, "periodSeconds": whole(policy.period)})
            })
            .collect();
        let select = match rules.select {
            Select::Max => "Max",
            Select::Min => "Min",
            Select::Disabled => "Disabled",
        };
        json!({
            "tolerance": rules.tolerance.to_string(),
            "stabilizationWindowSeconds": whole(rules.window),
            "selectPolicy": select,
            "policies": policies,
        })
    };
    let metric = json!({"name": series.name});
    let target = json!({"type": "AverageValue", "averageValue": format!("{}m", target.0)});
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "plimsoll.test/v1", "kind": "Crowd", "name": series.name},
        "minReplicas": min.count(),
        "maxReplicas": max.count(),
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
    });
    if *behavior {
        spec["behavior"] = json!({"scaleUp": rules(up), "scaleDown": rules(down)});
    }
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": series.name, "namespace": namespace},
        "spec": spec,
    })
}

fn whole(time: Micros) -> u64 {
    time.micros() / 1_000_000
}

fn crowd(namespace: &str, series: &Series) -> Value {
    json!({
        "apiVersion": "plimsoll.test/v1",
        "kind": "Crowd",
        "metadata": {"name": series.name, "namespace": namespace},
        "spec": {"replicas": series.initial},
    })
}

fn crowds(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("plimsoll.test", "v1", "Crowd");
    let resource = ApiResource::from_gvk_with_plural(&kind, "crowds");
    Api::namespaced_with(client, namespace, &resource)
}

fn count(object: &DynamicObject, part: &str) -> Option<u32> {
    object.data[part]["replicas"].as_u64()?.try_into().ok()
}

/// Keeps the status of every target at what it asks for, and its surge more.
async fn follow(crowds: Api<DynamicObject>, surges: BTreeMap<String, u32>) {
    loop {
        // The next look makes up for one that fails.
        if let Ok(list) = crowds.list(&ListParams::default()).await {
            for object in list {
                let name = object.name_any();
                let Some(asked) = count(&object, "spec") else { continue };
                let there = asked + surges.get(&name).copied().unwrap_or(0);
                if count(&object, "status") != Some(there) {
                    let selector = format!("app={name}");
                    let status = json!({"status": {"replicas": there, "selector": selector}});
                    let patch = Patch::Merge(status);
                    let _ = crowds.patch_status(&name, &PatchParams::default(), &patch).await;
                }
            }
        }
        tokio::time::sleep(FOLLOWING).await;
    }
}

/// The metrics API.
#[derive(Clone)]
struct Script {
    namespace: String,
    answers: Arc<BTreeMap<String, Vec<Answer>>>,
    /// The series that are answered at the beats.
    timed: Arc<BTreeSet<String>>,
    log: Log,
    crowds: Api<DynamicObject>,
    clock: Clock,
}

impl Script {
    /// Its connections end with it, or the API server would go on asking here.
    async fn serve(self, listener: TcpListener, acceptor: TlsAcceptor) {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (script, acceptor) = (self.clone(), acceptor.clone());
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: Request<Incoming>| {
                    let script = script.clone();
                    async move { Ok::<_, Infallible>(script.answer(request.uri().path()).await) }
                });
                let http = auto::Builder::new(TokioExecutor::new());
                // A connection that breaks is the API server's to make anew.
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn scale(&self, name: &str) -> ScaleCounts {
        let object = self.crowds.get(name).await.unwrap();
        let [spec, status] = ["spec", "status"].map(|part| count(&object, part).unwrap_or(0));
        ScaleCounts { spec: n(spec), status: n(status) }
    }

    /// Waits for the next beat.
    async fn beat(&self) -> Micros {
        let elapsed = self.clock.elapsed();
        let beats = elapsed.as_millis() / BEAT.as_millis() + 1;
        let next = BEAT * u32::try_from(beats).unwrap();
        tokio::time::sleep(next.saturating_sub(elapsed)).await;
        Micros::from_duration(self.clock.elapsed())
    }

    async fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let named = path.split_once("/namespaces/").and_then(|(_, rest)| rest.split_once('/'));
        let name =
            named.filter(|(namespace, _)| *namespace == self.namespace).map(|(_, name)| name);
        let Some(answers) = name.and_then(|name| self.answers.get(name)) else {
            let list = json!({
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": "external.metrics.k8s.io/v1beta1",
                "resources": [],
            });
            return respond(200, &list);
        };
        let name = name.unwrap_or_default();
        let at = Micros::from_duration(self.clock.elapsed());
        let scale = self.scale(name).await;
        let (answered, status_then) = if self.timed.contains(name) {
            (self.beat().await, self.scale(name).await.status)
        } else {
            (at, scale.status)
        };
        let asked = Asked { at, scale, answered, status_then };
        let number = {
            let mut log = self.log.lock().unwrap();
            let asked_before = log.entry(name.to_owned()).or_default();
            asked_before.push(asked);
            asked_before.len() - 1
        };
        // After the last answer there is none, which changes nothing.
        match answers.get(number).copied().unwrap_or(Answer::Nothing) {
            Answer::Sum(value) => values(name, &[value]),
            Answer::Items(one, other) => values(name, &[one, other]),
            Answer::Nothing => values(name, &[]),
            Answer::Refused(status) => {
                let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                                  "message": "as the script says", "code": status});
                respond(status, &body)
            }
        }
    }
}

fn values(name: &str, milli: &[i64]) -> Response<Full<Bytes>> {
    let items: Vec<Value> = milli
        .iter()
        .map(|value| {
            json!({"metricName": name, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z",
                   "value": format!("{value}m")})
        })
        .collect();
    let list = json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": items,
    });
    respond(200, &list)
}

fn respond(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

/// Plays the script to the controller until every series is over, in a namespace of this round.
fn play(stage: &Stage, round: u32, series: &[&Series]) -> BTreeMap<String, Vec<Asked>> {
    let namespace = format!("twin-{round}");
    stage.apply(TARGETS);
    stage.kubectl(&["create", "namespace", &namespace]).unwrap();
    let targets = crowds(stage.client(), &namespace);
    within(PATIENCE, "the custom resource", || {
        stage.run(targets.list(&ListParams::default())).ok().map(drop)
    });

    let answers = series.iter().map(|it| (it.name.to_owned(), it.answers.clone())).collect();
    let timed = series.iter().filter(|it| it.timed).map(|it| it.name.to_owned()).collect();
    let log = Log::default();
    let script = Script {
        namespace: namespace.clone(),
        answers: Arc::new(answers),
        timed: Arc::new(timed),
        log: Arc::clone(&log),
        crowds: targets.clone(),
        clock: Clock::start(),
    };
    let pki = stage.cluster().join("pki");
    let certificate = tls::TlsSettings {
        cert_file: pki.join("plimsoll.plimsoll.crt"),
        key_file: pki.join("plimsoll.plimsoll.key"),
    };
    let tasks = TaskTracker::new();
    let surges = series.iter().map(|it| (it.name.to_owned(), it.surge)).collect();
    let (serving, following) = stage.run(async {
        let loaded = ServingCertificate::load(script.clock.now(), certificate).await.unwrap();
        let acceptor = TlsAcceptor::from(server_config(Arc::new(loaded)).unwrap());
        let listener = TcpListener::bind((stage.address(), 8443)).await.unwrap();
        let serving = tasks.spawn(script.serve(listener, acceptor));
        (serving, tasks.spawn(follow(targets, surges)))
    });

    Daemon::wait_until_registered(stage);
    let objects: Vec<String> = series
        .iter()
        .flat_map(|series| [crowd(&namespace, series), hpa(&namespace, series)])
        .map(|object| object.to_string())
        .collect();
    stage.apply(&objects.join("\n---\n"));
    // A series that the controller gives up is short, and is played again.
    let _over = seen_within(PATIENCE, || {
        let asked = log.lock().unwrap();
        let over = |series: &&Series| {
            series.initial == 0
                || asked.get(series.name).is_some_and(|it| it.len() > series.answers.len())
        };
        series.iter().all(over).then_some(())
    });

    stage.kubectl(&["delete", "hpa", "--all", "--namespace", &namespace]).unwrap();
    for task in [serving, following] {
        task.abort();
        // Its listener is closed when it has ended.
        let _aborted = stage.run(task);
    }
    std::mem::take(&mut log.lock().unwrap())
}

/// The number after each sync, of the controller and of the twin.
fn compare(series: &Series, asked: &[Asked]) -> (Vec<u32>, Vec<u32>) {
    let mut twin = Scaler::new(series.settings.clone());
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for (at, (pair, answer)) in asked.windows(2).zip(&series.answers).enumerate() {
        let metric = match *answer {
            Answer::Sum(value) => Ok(MilliValue(value)),
            Answer::Items(one, other) => Ok(MilliValue(one + other)),
            Answer::Nothing | Answer::Refused(_) => Err(MetricError),
        };
        let real = pair[1].scale.spec.count();
        let scale = pair[0].scale;
        let before = ScaleCounts { status: asked[at.saturating_sub(1)].status_then, ..scale };
        let mut lagged = twin.clone();
        let after_lag = scaled(&mut lagged, pair[0].answered, before, metric);
        let mut model = scaled(&mut twin, pair[0].answered, scale, metric);
        // The controller reads the status before it asks. On a busy machine the status can follow in
        // between.
        if real != model && real == after_lag {
            (twin, model) = (lagged, after_lag);
        }
        if real != model && blurred(&series.settings, &asked[..=at + 1]) {
            let name = series.name;
            println!("{name} ends after {at} syncs: {real}, and the twin {model}");
            break;
        }
        theirs.push(real);
        ours.push(model);
    }
    (theirs, ours)
}

/// The replicas that a scaler requests after a sync.
fn scaled(
    scaler: &mut Scaler,
    at: Micros,
    scale: ScaleCounts,
    metric: Result<MilliValue, MetricError>,
) -> u32 {
    match scaler.sync(at, scale, metric) {
        SyncOutcome::Scale(next) => next.count(),
        SyncOutcome::Hold | SyncOutcome::Disabled => scale.spec.count(),
    }
}

/// Whether something may have been as old as a window or a period at the last sync but one of these.
///
/// The controller acts on an answer before it asks the next question. On a busy machine that can take
/// long. If a span lies between the least and the greatest possible age, either behavior of the
/// controller is right.
fn blurred(settings: &ScalerSettings, asked: &[Asked]) -> bool {
    let syncs: Vec<(Duration, Duration)> = asked
        .windows(2)
        .map(|pair| (pair[0].answered.duration(), pair[1].at.max(pair[0].answered).duration()))
        .collect();
    let Some(((earliest, latest), before)) = syncs.split_last() else { return false };

    let rules = [&settings.up, &settings.down];
    let mut spans = rules
        .iter()
        .flat_map(|rules| rules.policies.iter().map(|policy| policy.period).chain([rules.window]))
        .map(Micros::duration);
    let uncertain = |span: Duration| {
        before.iter().any(|(from, to)| {
            earliest.saturating_sub(*to) <= span && span <= latest.saturating_sub(*from)
        })
    };
    settings.behavior && spans.any(uncertain)
}

/// Compares what was seen of a series. Returns whether it was compared to its end.
fn judge(series: &Series, asked: &[Asked], differences: &mut Vec<String>) -> bool {
    if series.initial == 0 {
        let nothing = ScaleCounts { spec: n(0), status: n(0) };
        let outcome =
            Scaler::new(series.settings.clone()).sync(secs(0), nothing, Ok(MilliValue(3_000)));
        assert_eq!(outcome, SyncOutcome::Disabled);
        assert!(asked.is_empty(), "{}: {asked:?}", series.name);
        return true;
    }

    let (theirs, ours) = compare(series, asked);
    println!("{:>18}: {theirs:?}", series.name);
    if ours != theirs {
        let gaps: Vec<u64> = asked
            .windows(2)
            .map(|pair| pair[1].answered.since(pair[0].answered).micros() / 1_000)
            .collect();
        let name = series.name;
        differences.push(format!("{name}: {theirs:?}, and the twin {ours:?}, after {gaps:?} ms"));
    }
    theirs.len() == series.answers.len()
}

#[test]
fn a_the_twin_of_the_hpa_does_what_the_real_controller_does() {
    let stage = stage();
    let all = all();
    let mut left: Vec<&Series> = all.iter().collect();
    let mut differences = Vec::new();
    for round in 1..=ROUNDS {
        let seen = play(&stage, round, &left);
        left.retain(|series| {
            let asked = seen.get(series.name).map(Vec::as_slice).unwrap_or_default();
            !judge(series, asked, &mut differences)
        });
        if left.is_empty() || !differences.is_empty() {
            break;
        }
        println!("round {round}: {} series ended early", left.len());
    }

    assert!(
        differences.is_empty(),
        "the controller and its twin differ:\n{}",
        differences.join("\n")
    );
    let names: Vec<&str> = left.iter().map(|series| series.name).collect();
    assert!(names.is_empty(), "never compared to their end: {names:?}");
}
