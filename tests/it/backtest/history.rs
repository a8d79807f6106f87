//! What a Prometheus has seen, as a trace.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use plimsoll::trace::{self, TraceRecord, TraceTick};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::prometheus::engine;
use crate::prometheus::server::samples;

/// The first second that is asked about, and how many there are.
const FROM: i64 = 1_795_000_000;
const LENGTH: i64 = 1800;

/// Seconds between two scrapes.
const INTERVAL: i64 = 15;

/// Seconds in which nothing was scraped.
const GAP: std::ops::Range<i64> = 700..1000;

/// What goes wrong: by the number of the query, or the second after which it asks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Play {
    Well,
    Unavailable {
        at: usize,
    },
    Hangs {
        after: i64,
    },
    /// Nothing has been scraped that matches.
    Empty,
    /// What was scraped cannot be.
    Malformed,
    /// What loads more samples than are in so many seconds is refused as Prometheus does.
    Limited {
        seconds: i64,
    },
}

/// What Prometheus answers, with 422, to a query that loads more samples than it may.
const TOO_MANY: &str = "{\"status\":\"error\",\"errorType\":\"execution\",\"error\":\"query \
                        processing would load too many samples into memory in query execution\"}";

/// A Prometheus that has scraped two replicas for half an hour.
struct Server {
    address: SocketAddr,
    play: Arc<Mutex<Play>>,
    /// The spans that were asked for: seconds from the first.
    asked: Arc<Mutex<Vec<(i64, i64)>>>,
    hangs: Arc<Notify>,
    _tasks: TaskTracker,
}

impl Server {
    async fn start(play: Play) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tasks, hangs) = (TaskTracker::new(), Arc::new(Notify::new()));
        let (play, asked) = (Arc::new(Mutex::new(play)), Arc::new(Mutex::new(Vec::new())));
        let (plays, asks, hanging) = (Arc::clone(&play), Arc::clone(&asked), Arc::clone(&hangs));
        let connections = tasks.clone();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (plays, asks, hanging) =
                    (Arc::clone(&plays), Arc::clone(&asks), Arc::clone(&hanging));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (plays, asks, hanging) =
                        (Arc::clone(&plays), Arc::clone(&asks), Arc::clone(&hanging));
                    async move {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let form: BTreeMap<String, String> =
                            form_urlencoded::parse(&body).into_owned().collect();
                        let (span, query) = (span(&form), form["query"].clone());
                        let number = {
                            let mut asks = asks.lock().unwrap();
                            asks.push(span);
                            asks.len()
                        };
                        let play = *plays.lock().unwrap();
                        if play == (Play::Hangs { after: span.0 }) {
                            hanging.notify_one();
                            std::future::pending::<()>().await;
                        }
                        let mut answer =
                            Response::new(Full::new(Bytes::from(answer(span, &query, play))));
                        match play {
                            Play::Unavailable { at } if at == number => {
                                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                            }
                            Play::Limited { seconds } if span.1 - span.0 > seconds => {
                                answer = Response::new(Full::new(Bytes::from(TOO_MANY)));
                                *answer.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                            }
                            Play::Well
                            | Play::Empty
                            | Play::Malformed
                            | Play::Unavailable { .. }
                            | Play::Hangs { .. }
                            | Play::Limited { .. } => {}
                        }
                        Ok::<_, Infallible>(answer)
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    let _ended = connection.await;
                });
            }
        });
        Self { address, play, asked, hangs, _tasks: tasks }
    }

    /// The command that asks it about the half hour.
    fn command(&self, folder: &Path, save: &str, step: &str) -> Command {
        let from = Timestamp::from_second(FROM).unwrap().to_string();
        let to = Timestamp::from_second(FROM + LENGTH).unwrap().to_string();
        self.asking(folder, save, &["--from", &from, "--to", &to, "--step", step])
    }

    /// The command that asks it about some time.
    fn asking(&self, folder: &Path, save: &str, time: &[&str]) -> Command {
        let config = folder.join("plimsoll.yaml");
        fs::write(
            &config,
            "prometheus: {url: \"http://elsewhere:9090\", stale_after: 1m, timeout: 1m}\nvariants:\n\
             - {name: a, namespace: shop, model: m, targets: {prometheus: {match: {job: vllm}}}}\n",
        )
        .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.env_clear().current_dir(folder).args(["backtest", "--config", "plimsoll.yaml"]);
        command.args(["--prometheus", &format!("http://{}", self.address), "--save", save]);
        command.args(time);
        command
    }

    /// Runs the command, and gives back what it printed.
    async fn run(&self, folder: &Path, save: &str) -> String {
        ends(0, self.command(folder, save, "15s")).await.0
    }
}

/// What a command printed and said that ended with this code.
async fn ends(code: i32, mut command: Command) -> (String, String) {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    (stdout, stderr)
}

/// The seconds that a question is about: after the first and up to the second.
fn span(form: &BTreeMap<String, String>) -> (i64, i64) {
    let to: f64 = form["time"].parse().unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "it is far below 2^53")]
    let to = to as i64 - FROM;
    let (_, range) = form["query"].rsplit_once('[').unwrap();
    let length: i64 = range.trim_end_matches("s]").parse().unwrap();
    (to - length, to)
}

/// Everything that was scraped in a span.
fn answer((from, to): (i64, i64), query: &str, play: Play) -> String {
    let pages = [engine(200, 0), engine(950, 20)].map(|page| samples(&page));
    let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let inside = |at: &i64| *at > from && !GAP.contains(at) && play != Play::Empty;
    for second in (from.max(0)..=to).filter(|at| at % INTERVAL == 0).filter(inside) {
        for instance in ["one", "two"] {
            let up = ("up".to_owned(), Vec::new(), "1".to_owned());
            let page = pages[usize::from(second > 400)].iter().cloned();
            for (name, own, value) in page.chain([up]) {
                if query.contains("_bucket") != name.ends_with("_bucket") {
                    continue;
                }
                let negative = play == Play::Malformed && name.ends_with("_total");
                let mut labels: BTreeMap<String, String> = own.into_iter().collect();
                labels.insert("__name__".to_owned(), name);
                labels.insert("job".to_owned(), "vllm".to_owned());
                labels.insert("instance".to_owned(), instance.to_owned());
                let labels = serde_json::to_string(&labels).unwrap();
                let value = if negative { "-1".to_owned() } else { value };
                let point = format!("[{}.000,{value:?}]", FROM + second);
                series.entry(labels).or_default().push(point);
            }
        }
    }
    let series: Vec<String> = series
        .iter()
        .map(|(labels, points)| {
            format!("{{\"metric\":{labels},\"values\":[{}]}}", points.join(","))
        })
        .collect();
    format!(
        "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{}]}}}}",
        series.join(",")
    )
}

fn ticks(folder: &Path) -> Vec<TraceTick> {
    let mut ticks = Vec::new();
    for mut reader in trace::files(&[folder.to_owned()]).unwrap().readers {
        while let Some(record) = reader.record().unwrap() {
            if let TraceRecord::Tick(tick) = record {
                ticks.push(*tick);
            }
        }
    }
    ticks
}

fn second(tick: &TraceTick) -> i64 {
    tick.now.as_second() - FROM
}

#[tokio::test]
async fn what_a_prometheus_has_seen_is_decided_and_gaps_stay_gaps() {
    let folder = TempDir::new().unwrap();
    // An answer that fails once is asked for again.
    let server = Server::start(Play::Unavailable { at: 3 }).await;
    let said = server.run(folder.path(), "past").await;
    assert!(said.contains("120 decisions, all match"), "{said}");
    let asked = server.asked.lock().unwrap().clone();
    let spans = [(0, 600), (600, 1200), (1200, 1800)];
    assert_eq!(asked.len(), 7, "two for each of three spans, and one again: {asked:?}");
    assert!(asked.iter().all(|span| spans.contains(span)), "{asked:?}");
    let ticks = ticks(&folder.path().join("past"));
    assert_eq!(ticks.len(), 120);
    let said = |tick: &TraceTick| tick.said.values().next().unwrap().clone();
    for tick in &ticks {
        let count =
            if GAP.contains(&second(tick)) && second(tick) > GAP.start + 15 { 0 } else { 2 };
        // Two scrapes in each step, one of each replica.
        let near = [GAP.start, GAP.end].iter().any(|edge| (second(tick) - edge).abs() < 16);
        assert!(near || tick.inputs.scrapes.len() == count, "{} {count}", second(tick));
    }
    let at = |wanted: i64| said(ticks.iter().find(|tick| second(tick) == wanted).unwrap());
    assert_eq!(at(300).desired.unwrap().count(), 2, "two replicas have little to do");
    assert!(at(600).desired.unwrap().count() > 2, "two replicas are full");
    assert!(at(900).held, "nothing is known in the gap, and nothing changes");
    assert!(!at(1200).held);
}

#[tokio::test]
async fn a_span_with_more_samples_than_the_server_may_load_is_halved_at_once() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(Play::Limited { seconds: 200 }).await;
    let said = server.run(folder.path(), "past").await;
    assert!(said.contains("120 decisions, all match"), "{said}");
    let asked = server.asked.lock().unwrap().clone();
    assert_eq!(asked[..4], [(0, 600), (0, 300), (0, 150), (0, 150)], "never the same once more");
    assert!(asked[2..].iter().all(|(from, to)| to - from <= 150), "{asked:?}");
}

#[tokio::test]
async fn a_run_that_was_interrupted_goes_on_where_it_stopped() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(Play::Hangs { after: 600 }).await;
    let mut first = server.command(folder.path(), "past", "15s");
    let mut child = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    server.hangs.notified().await;
    child.kill().unwrap();
    child.wait().unwrap();
    *server.play.lock().unwrap() = Play::Well;
    server.asked.lock().unwrap().clear();
    // The part that would have come next had been made, and nothing written into it.
    let mut files = fs::read_dir(folder.path().join("past")).unwrap();
    let first = files.next().unwrap().unwrap().path();
    fs::write(first.to_str().unwrap().replace("-000001.", "-000002."), "").unwrap();
    server.run(folder.path(), "past").await;
    let asked = server.asked.lock().unwrap().clone();
    assert_eq!(asked, [(600, 1200), (600, 1200), (1200, 1800), (1200, 1800)]);
    server.run(folder.path(), "whole").await;
    let (past, whole) = (folder.path().join("past"), folder.path().join("whole"));
    assert!(ticks(&past) == ticks(&whole), "an interruption changes nothing");
    // The second part can be followed without the first: it has what was known at its beginning.
    let mut second = trace::files(std::slice::from_ref(&past)).unwrap().readers.pop().unwrap();
    let restored =
        std::iter::from_fn(|| second.record().unwrap()).find_map(|record| match record {
            TraceRecord::Restored(saved) => Some(saved),
            TraceRecord::Config(_) | TraceRecord::Tick(_) => None,
        });
    let before = ticks(&past).into_iter().find(|tick| self::second(tick) == 600).unwrap();
    let said = before.said.values().next().unwrap().clone();
    let [known] = &restored.unwrap()[..] else { panic!("one variant has a number") };
    assert_eq!((Some(known.desired), Some(known.at)), (said.desired, said.inputs_at));
    assert!(known.memory.is_some() && known.written == before.now);
    // What is there already is not asked for again, and what is another's is not mixed with it.
    server.asked.lock().unwrap().clear();
    server.run(folder.path(), "past").await;
    assert_eq!(server.asked.lock().unwrap().len(), 0);
    let (_, said) = ends(64, server.command(folder.path(), "past", "30s")).await;
    assert!(said.contains("a trace of another time, step or configuration"), "{said}");
}

#[tokio::test]
async fn a_time_ago_is_that_with_which_the_folder_began_and_what_came_since_is_added() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(Play::Well).await;
    let at = |second| Timestamp::from_second(FROM + second).unwrap().to_string();
    // Seven seconds are no whole step, so no tick is about them yet.
    let (from, to) = (at(0), at(907));
    let first = server.asking(folder.path(), "past", &["--from", &from, "--to", &to]);
    let (said, _) = ends(0, first).await;
    assert!(said.contains("60 decisions, all match"), "{said}");
    server.asked.lock().unwrap().clear();
    let to = at(1800);
    let later = server.asking(folder.path(), "past", &["--from", "6h", "--to", &to]);
    let (said, _) = ends(0, later).await;
    assert!(said.contains("120 decisions, all match"), "{said}");
    let asked = server.asked.lock().unwrap().clone();
    assert_eq!(asked, [(900, 1500), (900, 1500), (1500, 1800), (1500, 1800)]);
}

#[tokio::test]
async fn without_a_reading_of_any_variant_nothing_is_decided_and_the_reason_is_said() {
    let folder = TempDir::new().unwrap();
    for (play, reason) in [
        (Play::Empty, "shop/a: 0 readings; Prometheus has no series of its targets in this time"),
        (Play::Malformed, "shop/a: 0 readings and 200 scrapes that failed, the first because the "),
    ] {
        let server = Server::start(play).await;
        let save = format!("{play:?}");
        let (said, error) = ends(64, server.command(folder.path(), &save, "15s")).await;
        assert!(error.contains("Prometheus has no reading of any variant from 2026-"), "{error}");
        assert!(error.contains(reason), "{error}");
        assert_eq!(said, "", "nothing has been decided");
    }
    let said = Server::start(Play::Well).await.run(folder.path(), "well").await;
    assert!(said.starts_with("shop/a: 200 readings\n"), "{said}");
}

#[tokio::test]
async fn the_configuration_may_be_that_of_a_daemon_elsewhere() {
    let (folder, server) = (TempDir::new().unwrap(), Server::start(Play::Well).await);
    let command = |name: &str, more: &str| {
        let command = server.command(folder.path(), name, "15s");
        let file = folder.path().join("plimsoll.yaml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("{text}{more}")).unwrap();
        command
    };
    let own = "state_file: /elsewhere/state.json\ntrace: {dir: /else/where}\n";
    let (said, _) = ends(0, command("own", own)).await;
    assert!(said.contains("120 decisions, all match"), "{said}");
    // What decisions depend on must be here all the same.
    let thresholds = "compatibility: {wva_config: /elsewhere/wva}\n";
    let (_, error) = ends(64, command("thresholds", thresholds)).await;
    assert!(error.contains("/elsewhere/wva"), "{error}");
}

#[tokio::test]
async fn an_interrupt_says_that_what_was_fetched_is_kept() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(Play::Hangs { after: 600 }).await;
    let mut command = server.command(folder.path(), "past", "15s");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    server.hangs.notified().await;
    let killed = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = ended.await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    let reached = Timestamp::from_second(FROM + 600).unwrap();
    let kept = format!("interrupted; data up to {reached} is kept in past, and the same");
    assert!(said.contains(&kept), "{said}");
    assert_eq!(ticks(&folder.path().join("past")).len(), 40);
}
