//! A server that speaks the query API, with what it has scraped made up, and everything that can be
//! wrong with an answer on request.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// How far ahead of now the daemon evaluates its queries, in milliseconds.
const AHEAD: i64 = 60_000;

/// The time between two samples, in milliseconds.
const INTERVAL: i64 = 50;

/// A target that has been scraped.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The labels that the scrape has added.
    pub(crate) labels: Vec<(String, String)>,
    /// The page; without one the target did not answer.
    pub(crate) page: Option<String>,
}

/// What the server does.
#[derive(Clone, Debug, Default)]
pub(crate) enum Play {
    /// It answers.
    #[default]
    Well,
    /// It answers with this status and body.
    Status(u16, &'static str),
    /// It answers with success and this body.
    Body(&'static str),
    /// It never answers.
    Hang,
    /// It answers with half of what it should.
    Cut,
    /// It ends the connection in the middle of an answer.
    Break,
    /// It answers, and more stands in the answer: `"warnings":["…"],` or the like.
    More(&'static str),
    /// It answers as if its clock were this far ahead, in milliseconds.
    Ahead(i64),
    /// It answers, and all values are this.
    Value(&'static str),
    /// It answers, and histograms are native ones.
    Native,
    /// It refuses POST.
    OnlyGet,
}

/// What it has, what it does, and what it was asked.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) targets: Vec<Target>,
    pub(crate) play: Play,
    pub(crate) asked: Vec<Asked>,
}

/// A query as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) form: BTreeMap<String, String>,
}

/// The server; it ends with this.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _stop: DropGuard,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let state = Arc::new(Mutex::new(State::default()));
        let (tasks, shown) = (TaskTracker::new(), Arc::clone(&state));
        let (connections, ending) = (tasks.clone(), stop.clone());
        let serving = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shown);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                let http = hyper::server::conn::http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(stream), service);
                connections.spawn(ending.clone().run_until_cancelled_owned(connection));
            }
        };
        tasks.spawn(stop.clone().run_until_cancelled_owned(serving));
        Self { address, state, _stop: stop.drop_guard() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn play(&self, play: Play) {
        self.state.lock().unwrap().play = play;
    }

    pub(crate) fn show(&self, targets: Vec<Target>) {
        self.state.lock().unwrap().targets = targets;
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn whole(status: u16, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A body that ends before it should.
fn broken(text: &str) -> Response<Body> {
    let start = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
    let begun = futures_util::stream::iter([Ok(Frame::data(start))]);
    let broken = futures_util::stream::once(async {
        // What is there goes out before the connection breaks.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Err(std::io::Error::other("the server has had enough"))
    });
    Response::new(StreamBody::new(begun.chain(broken)).boxed_unsync())
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let form = match parts.method {
        Method::GET => parts.uri.query().unwrap_or_default().as_bytes().to_vec(),
        _ => body.to_vec(),
    };
    let form: BTreeMap<String, String> = form_urlencoded::parse(&form).into_owned().collect();
    let headers = parts.headers.iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
        .collect();
    let asked = Asked {
        method: parts.method.clone(),
        path: parts.uri.path().to_owned(),
        headers,
        form: form.clone(),
    };
    let (play, targets) = {
        let mut state = state.lock().unwrap();
        state.asked.push(asked);
        (state.play.clone(), state.targets.clone())
    };
    let time: f64 = form.get("time").map_or(0.0, |time| time.parse().unwrap());
    #[expect(clippy::cast_possible_truncation, reason = "it is far below 2^53")]
    let now = (time * 1000.0).round() as i64 - AHEAD;
    let query = form.get("query").cloned().unwrap_or_default();
    let scraped = Scraped { targets: &targets, query: &query, at: now / INTERVAL * INTERVAL };
    Ok(match play {
        Play::Status(status, body) => whole(status, body.to_owned()),
        Play::Body(body) => whole(200, body.to_owned()),
        Play::Hang => std::future::pending().await,
        Play::Cut => {
            let text = scraped.answer("", None);
            whole(200, text[..text.len() / 2].to_owned())
        }
        Play::Break => broken(&scraped.answer("", None)),
        Play::More(more) => whole(200, scraped.answer(more, None)),
        Play::Ahead(by) => whole(200, Scraped { at: scraped.at + by, ..scraped }.answer("", None)),
        Play::Value(value) => whole(200, scraped.answer("", Some(value))),
        Play::Native => whole(200, scraped.native()),
        Play::OnlyGet if parts.method != Method::GET => whole(405, "no POST".to_owned()),
        Play::Well | Play::OnlyGet => whole(200, scraped.answer("", None)),
    })
}

/// What was scraped at one instant, and what is asked of it.
struct Scraped<'a> {
    targets: &'a [Target],
    query: &'a str,
    at: i64,
}

impl Scraped<'_> {
    fn wants(&self, name: &str) -> bool {
        self.query.contains("_bucket") == name.ends_with("_bucket")
    }

    fn answer(&self, more: &str, value: Option<&str>) -> String {
        let mut all = Vec::new();
        for Target { labels, page } in self.targets {
            if self.wants("up") {
                let up = if page.is_some() { "1" } else { "0" };
                all.push(self.series("up", &[], labels, up));
            }
            for (name, own, number) in page.iter().flat_map(|page| samples(page)) {
                if self.wants(&name) {
                    all.push(self.series(&name, &own, labels, value.unwrap_or(&number)));
                }
            }
        }
        format!(
            "{{\"status\":\"success\",{more}\"data\":{{\"resultType\":\"matrix\",\"result\":[{}]}}}}",
            all.join(",")
        )
    }

    /// The answer of a server that keeps histograms as native ones.
    fn native(&self) -> String {
        if !self.wants("up") {
            return Scraped { targets: &[], ..*self }.answer("", None);
        }
        let without = |page: &String| {
            let kept = page.lines().filter(|line| {
                !["_sum", "_count"]
                    .iter()
                    .any(|end| line.split(['{', ' ']).next().unwrap().ends_with(end))
            });
            kept.fold(String::new(), |page, line| page + line + "\n")
        };
        let targets: Vec<Target> = self
            .targets
            .iter()
            .map(|it| Target { page: it.page.as_ref().map(without), ..it.clone() })
            .collect();
        let answer = Scraped { targets: &targets, ..*self }.answer("", None);
        let native = "{\"metric\":{\"__name__\":\"vllm:time_to_first_token_seconds\"},\
                      \"histograms\":[[1,{\"count\":\"1\",\"sum\":\"1\"}]]}";
        answer.replace("\"result\":[", &format!("\"result\":[{native},"))
    }

    /// One series, its labels as Prometheus puts them together.
    fn series(
        &self,
        name: &str,
        own: &[(String, String)],
        added: &[(String, String)],
        value: &str,
    ) -> String {
        let mut labels: BTreeMap<String, String> = added.iter().cloned().collect();
        labels.insert("__name__".to_owned(), name.to_owned());
        for (name, value) in own {
            let taken = added.iter().any(|(added, _)| added == name);
            let name = if taken { format!("exported_{name}") } else { name.clone() };
            labels.insert(name, value.clone());
        }
        let labels = serde_json::to_string(&labels).unwrap();
        let points = self.times().into_iter().map(|at| {
            let (seconds, millis) = (at / 1000, at % 1000);
            format!("[{seconds}.{millis:03},{value:?}]")
        });
        let points: Vec<String> = points.collect();
        format!("{{\"metric\":{labels},\"values\":[{}]}}", points.join(","))
    }

    /// When it was scraped: just now, and at whole seconds before, which a slow test sees again.
    fn times(&self) -> BTreeSet<i64> {
        let (second, ten) = (self.at / 1000 * 1000, self.at / 10_000 * 10_000);
        [ten, second - 1000, second, self.at].into()
    }
}

type Sample = (String, Vec<(String, String)>, String);

/// The samples of a page in the text format.
pub(crate) fn samples(page: &str) -> Vec<Sample> {
    let lines = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(sample).collect()
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            let (value, after) = quoted(after);
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    // An exemplar may follow the value.
    let value = rest.split_whitespace().next().unwrap();
    (name.to_owned(), labels, value.to_owned())
}

/// Text up to the closing quote, and what is after it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => match letters.next().unwrap().1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    panic!("no end of {text}");
}

/// How often a test looks.
pub(crate) const GLANCE: Duration = Duration::from_millis(20);
