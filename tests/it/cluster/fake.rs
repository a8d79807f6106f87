//! An API server that says what a test tells it to, as JSON: list, watch, scale and discovery, and
//! objects that are created, replaced and patched as an API server does it.

mod connection;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use plimsoll::clock::Clock;
use plimsoll::collect::cluster::{self, LinkTiming};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use connection::{Freeze, Tls};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A change of an object in a collection, as a watch shows it.
#[derive(Clone)]
struct Event {
    version: u64,
    collection: String,
    kind: &'static str,
    object: Value,
    /// The object before the change.
    before: Option<Value>,
}

/// A failure that is to come.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    /// The header `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u64>,
}

#[derive(Default)]
struct Objects {
    version: u64,
    /// Events at or below this version are forgotten.
    compacted: u64,
    /// No watch resumes from before this version.
    forgotten: u64,
    collections: BTreeMap<String, BTreeMap<String, Value>>,
    documents: BTreeMap<String, Value>,
    events: Vec<Event>,
    refused: BTreeSet<String>,
    /// The cluster has nothing below these paths.
    uninstalled: BTreeSet<String>,
    /// How many requests below these paths are still refused.
    refused_in_passing: BTreeMap<String, u32>,
    requests: Vec<String>,
    /// Method and path of each request.
    written: Vec<String>,
    /// When each request came, by its path.
    times: Vec<(String, Timestamp)>,
    /// How many connections have been accepted.
    connections: usize,
    /// The failures that are to come, by the path of the request.
    failures: BTreeMap<String, Vec<Failure>>,
    /// What is left of lists that were asked for in pages, by token.
    pages: BTreeMap<String, Vec<Value>>,
    /// How many of the next tokens are expired.
    expired_tokens: u32,
}

/// The API server. Dropping it ends it.
pub(crate) struct FakeCluster {
    address: SocketAddr,
    /// Keeps the port from others while nothing listens there.
    _place: TcpSocket,
    objects: Arc<Mutex<Objects>>,
    changed: watch::Sender<u64>,
    serving: Option<JoinSet<()>>,
    freeze: Arc<Freeze>,
    tls: Option<Arc<Tls>>,
}

impl FakeCluster {
    /// One that listens, and knows the groups that a cluster has.
    pub(crate) async fn start() -> Self {
        let mut fake = Self::away();
        fake.come_up().await;
        fake
    }

    /// One that listens with TLS and offers HTTP/2.
    pub(crate) async fn start_with_tls() -> Self {
        let mut fake = Self::away();
        fake.tls = Some(Arc::new(Tls::new()));
        fake.come_up().await;
        fake
    }

    /// One that has an address, but does not listen yet.
    pub(crate) fn away() -> Self {
        let place = TcpSocket::new_v4().unwrap();
        place.set_reuseaddr(true).unwrap();
        place.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let fake = Self {
            address: place.local_addr().unwrap(),
            _place: place,
            objects: Arc::default(),
            changed: watch::channel(0).0,
            serving: None,
            freeze: Arc::default(),
            tls: None,
        };
        fake.resources("/apis/apps/v1", &[("deployments", "Deployment")]);
        fake
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client_with(LinkTiming::default())
    }

    pub(crate) fn client_with(&self, timing: LinkTiming) -> kube::Client {
        let mut config = kube::Config::new(self.url().parse().unwrap());
        config.root_cert = self.tls.as_ref().map(|tls| vec![tls.certificate.to_vec()]);
        cluster::connect(config, timing).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Listens.
    pub(crate) async fn come_up(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (objects, changed) = (self.objects.clone(), self.changed.clone());
        let (freeze, tls) = (self.freeze.clone(), self.tls.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (objects, changed) = (objects.clone(), changed.clone());
                objects.lock().unwrap().connections += 1;
                let (stream, tls) = (freeze.accept(stream), tls.clone());
                connections.spawn(async move {
                    // A client that goes away is no failure of the test.
                    match tls {
                        None => serve(TokioIo::new(stream), objects, changed).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.acceptor.accept(stream).await {
                                serve(TokioIo::new(stream), objects, changed).await;
                            }
                        }
                    }
                });
            }
        });
        self.serving = Some(serving);
    }

    /// Falls silent on every connection there is, for ever, as if a cable was cut. Connections that
    /// come later are answered.
    pub(crate) fn freeze_connections(&self) {
        self.freeze.freeze();
    }

    /// Stops listening and cuts every connection.
    pub(crate) async fn go_down(&mut self) {
        if let Some(mut serving) = self.serving.take() {
            serving.shutdown().await;
        }
    }

    /// Makes a group version known to discovery.
    pub(crate) fn resources(&self, path: &str, kinds: &[(&str, &str)]) {
        let group_version = path.trim_start_matches("/apis/").trim_start_matches("/api/");
        let resources: Vec<Value> = kinds
            .iter()
            .map(|(name, kind)| {
                json!({"name": name, "singularName": "", "namespaced": true, "kind": kind,
                       "verbs": ["get", "list", "watch"]})
            })
            .collect();
        let document = json!({"kind": "APIResourceList", "apiVersion": "v1",
                              "groupVersion": group_version, "resources": resources});
        self.document(path, document);
    }

    /// Answers a path with this.
    pub(crate) fn document(&self, path: &str, document: Value) {
        self.objects.lock().unwrap().documents.insert(path.to_owned(), document);
    }

    /// Creates or replaces an object of a collection.
    pub(crate) fn put(&self, collection: &str, object: &Value) {
        let mut objects = self.objects.lock().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let known = objects.collections.entry(collection.to_owned()).or_default();
        let kind = if known.contains_key(&name) { "MODIFIED" } else { "ADDED" };
        record(&mut objects, collection, kind, &name, object.clone());
        self.changed.send_replace(objects.version);
    }

    /// Deletes an object of a collection.
    pub(crate) fn delete(&self, collection: &str, name: &str) {
        let mut objects = self.objects.lock().unwrap();
        let object = objects.collections[collection][name].clone();
        record(&mut objects, collection, "DELETED", name, object);
        self.changed.send_replace(objects.version);
    }

    /// Refuses, with 403, everything below the path.
    pub(crate) fn refuse(&self, path: &str) {
        self.objects.lock().unwrap().refused.insert(path.to_owned());
    }

    /// Has nothing below the path, as without its API group.
    pub(crate) fn uninstall(&self, path: &str) {
        self.objects.lock().unwrap().uninstalled.insert(path.to_owned());
    }

    /// Has everything below the path again.
    pub(crate) fn install(&self, path: &str) {
        self.objects.lock().unwrap().uninstalled.remove(path);
    }

    /// Refuses, with 403, the next few requests for the path.
    pub(crate) fn refuse_next(&self, path: &str, requests: u32) {
        self.objects.lock().unwrap().refused_in_passing.insert(path.to_owned(), requests);
    }

    /// How many of those are to come.
    pub(crate) fn to_refuse(&self, path: &str) -> u32 {
        self.objects.lock().unwrap().refused_in_passing[path]
    }

    /// Fails the next requests for the path, one after the other.
    pub(crate) fn fail_next(&self, path: &str, failures: &[Failure]) {
        self.objects.lock().unwrap().failures.insert(path.to_owned(), failures.to_vec());
    }

    /// Has forgotten the list when its next page is asked for, this many times.
    pub(crate) fn expire_tokens(&self, tokens: u32) {
        self.objects.lock().unwrap().expired_tokens = tokens;
    }

    /// Tells the watches how far they are.
    pub(crate) fn bookmark(&self) {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        let version = objects.version;
        let object = json!({"kind": "Bookmark", "apiVersion": "v1",
                            "metadata": {"resourceVersion": version.to_string()}});
        let collection = String::new();
        objects.events.push(Event { version, collection, kind: "BOOKMARK", object, before: None });
        self.changed.send_replace(version);
    }

    /// Forgets the history up to now. Watches that run go on, and none resumes from before.
    pub(crate) fn forget_history(&self) {
        let mut objects = self.objects.lock().unwrap();
        objects.forgotten = objects.version;
    }

    /// When the requests for the path came.
    pub(crate) fn times_of(&self, path: &str) -> Vec<Timestamp> {
        let objects = self.objects.lock().unwrap();
        let of = objects.times.iter().filter(|(found, _)| found == path);
        of.map(|(_, at)| *at).collect()
    }

    /// Refuses it no longer.
    pub(crate) fn allow(&self, path: &str) {
        self.objects.lock().unwrap().refused.remove(path);
    }

    /// Forgets the history, so that every watch must start over, and says so to those that run.
    pub(crate) fn compact(&self) {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        objects.compacted = objects.version;
        objects.events.clear();
        self.changed.send_replace(objects.version);
    }

    /// The objects of a collection in the order of their names.
    pub(crate) fn objects(&self, collection: &str) -> Vec<Value> {
        let objects = self.objects.lock().unwrap();
        let known = objects.collections.get(collection);
        known.into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Waits until the objects of a collection are as they should be.
    pub(crate) async fn until(
        &self,
        collection: &str,
        are: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        let mut changed = self.changed.subscribe();
        let reached = async {
            loop {
                let objects = self.objects(collection);
                if are(&objects) {
                    return objects;
                }
                changed.changed().await.unwrap();
            }
        };
        let reached = tokio::time::timeout(Duration::from_mins(1), reached).await;
        reached.unwrap_or_else(|_| panic!("never reached, but {:#?}", self.objects(collection)))
    }

    /// How many requests with this method there were for paths with this beginning.
    pub(crate) fn requests(&self, method: &str, path: &str) -> usize {
        let objects = self.objects.lock().unwrap();
        let start = format!("{method} {path}");
        objects.written.iter().filter(|request| request.starts_with(&start)).count()
    }

    /// The connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.objects.lock().unwrap().connections
    }

    /// The requests so far, of whatever kind.
    pub(crate) fn all_requests(&self) -> usize {
        self.objects.lock().unwrap().requests.len()
    }

    /// The requests so far that list or watch what is at the path.
    pub(crate) fn requests_of(&self, path: &str) -> usize {
        let objects = self.objects.lock().unwrap();
        let of = |request: &&String| request.split('?').next() == Some(path);
        objects.requests.iter().filter(of).count()
    }

    /// The requests so far that list what is at the path.
    pub(crate) fn lists_of(&self, path: &str) -> usize {
        let objects = self.objects.lock().unwrap();
        let of = |request: &&String| {
            let (found, query) = request.split_once('?').unwrap_or((request, ""));
            found == path && !query.contains("watch=true")
        };
        objects.requests.iter().filter(of).count()
    }
}

async fn serve(
    io: impl hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    objects: Arc<Mutex<Objects>>,
    changed: watch::Sender<u64>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (objects, changed) = (objects.clone(), changed.clone());
        async move {
            let (head, body) = request.into_parts();
            let response = match body.collect().await {
                Ok(body) => answer(&head, &body.to_bytes(), &objects, &changed),
                Err(_) => failure(StatusCode::BAD_REQUEST, "BadRequest"),
            };
            Ok::<_, Infallible>(response)
        }
    });
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
}

fn record(
    objects: &mut Objects,
    collection: &str,
    kind: &'static str,
    name: &str,
    mut object: Value,
) {
    objects.version += 1;
    let version = objects.version;
    if let Some((_, rest)) = collection.split_once("/namespaces/") {
        object["metadata"]["namespace"] = json!(rest.split('/').next().unwrap());
    }
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    let known = objects.collections.entry(collection.to_owned()).or_default();
    let before = if kind == "DELETED" {
        known.remove(name)
    } else {
        known.insert(name.to_owned(), object.clone())
    };
    objects.events.push(Event { version, collection: collection.to_owned(), kind, object, before });
}

fn answer(
    request: &Parts,
    body: &[u8],
    objects: &Arc<Mutex<Objects>>,
    changed: &watch::Sender<u64>,
) -> Response<Body> {
    let path = request.uri.path().to_owned();
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let mut known = objects.lock().unwrap();
    // Over HTTP/2 a request names the host as well.
    known.requests.push(request.uri.path_and_query().unwrap().to_string());
    known.times.push((path.clone(), Clock::start().now()));
    known.written.push(format!("{} {path}", request.method));
    if known.refused.iter().any(|refused| path.starts_with(refused.as_str())) {
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    if known.uninstalled.iter().any(|group| path.starts_with(group.as_str())) {
        return no_such_path();
    }
    if let Some(left) = known.refused_in_passing.get_mut(&path).filter(|left| **left > 0) {
        *left -= 1;
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    let failures = known.failures.get_mut(&path).filter(|failures| !failures.is_empty());
    if let Some(Failure { code, retry_after }) = failures.map(|failures| failures.remove(0)) {
        return overloaded(code, retry_after);
    }
    if request.method != Method::GET {
        let response = write(&request.method, &path, body, &mut known);
        changed.send_replace(known.version);
        return response;
    }
    if let Some(document) = known.documents.get(&path) {
        return whole(StatusCode::OK, document);
    }
    if path.starts_with("/apis/") && path.split('/').count() == 4 {
        return no_such_path();
    }
    if !is_collection(&path) {
        let object = path.rsplit_once('/').and_then(|(collection, name)| {
            known.collections.get(collection).and_then(|known| known.get(name))
        });
        let missing = || failure(StatusCode::NOT_FOUND, "NotFound");
        return object.map_or_else(missing, |object| whole(StatusCode::OK, object));
    }
    if query.get("watch").is_some_and(|watch| watch == "true") {
        let from: u64 = query["resourceVersion"].parse().unwrap();
        if from < known.compacted.max(known.forgotten) {
            return failure(StatusCode::GONE, "Expired");
        }
        drop(known);
        return streamed(path, from, query, objects.clone(), changed.subscribe());
    }
    if let Some(token) = query.get("continue") {
        if known.expired_tokens > 0 {
            known.expired_tokens -= 1;
            return failure(StatusCode::GONE, "Expired");
        }
        let rest = known.pages.remove(token).unwrap();
        let version = token.split('-').next().unwrap().to_owned();
        return page(rest, &query, &version, &mut known);
    }
    let within = known.collections.iter().filter(|(collection, _)| is_part(collection, &path));
    let items: Vec<Value> = within
        .flat_map(|(_, objects)| objects.values())
        .filter(|object| selects(&query, object))
        .cloned()
        .collect();
    let version = known.version.to_string();
    page(items, &query, &version, &mut known)
}

/// What an API server says of a group that it does not have, in plain text.
fn no_such_path() -> Response<Body> {
    let body = Full::new(Bytes::from("404 page not found\n")).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// A list, or its next page where a limit is given. All pages are of the version of the first.
fn page(
    mut items: Vec<Value>,
    query: &BTreeMap<String, String>,
    version: &str,
    objects: &mut Objects,
) -> Response<Body> {
    let limit = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
    let rest = items.split_off(limit.min(items.len()));
    let mut metadata = json!({"resourceVersion": version});
    if !rest.is_empty() {
        let token = format!("{version}-{}", objects.requests.len());
        metadata["continue"] = json!(token);
        objects.pages.insert(token, rest);
    }
    let list = json!({"kind": "List", "apiVersion": "v1", "items": items, "metadata": metadata});
    whole(StatusCode::OK, &list)
}

/// What an API server says that has too much to do: in plain text where it did not look at all.
fn overloaded(code: u16, retry_after: Option<u64>) -> Response<Body> {
    let text = "Too many requests, please try again later.";
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

/// Permits (a review), creates (POST on a collection), replaces (PUT) or merges into (PATCH) an object. Who names a
/// version means no other.
fn write(method: &Method, path: &str, body: &[u8], objects: &mut Objects) -> Response<Body> {
    let mut given: Value = serde_json::from_slice(body).unwrap();
    if path.ends_with("/subjectaccessreviews") {
        given["status"] = json!({"allowed": true});
        return whole(StatusCode::CREATED, &given);
    }
    if *method == Method::POST {
        let name = given["metadata"]["name"].as_str().unwrap().to_owned();
        given["metadata"]["uid"] = json!(format!("uid-{}", objects.version));
        if objects.collections.get(path).is_some_and(|known| known.contains_key(&name)) {
            return failure(StatusCode::CONFLICT, "AlreadyExists");
        }
        record(objects, path, "ADDED", &name, given);
        return whole(StatusCode::CREATED, &objects.collections[path][&name]);
    }
    let (collection, name) = path.rsplit_once('/').unwrap();
    let known = objects.collections.get(collection).and_then(|known| known.get(name)).cloned();
    let Some(known) = known else { return failure(StatusCode::NOT_FOUND, "NotFound") };
    if *method == Method::DELETE {
        record(objects, collection, "DELETED", name, known);
        return whole(StatusCode::OK, &status(200, "Deleted"));
    }
    let version = &given["metadata"]["resourceVersion"];
    if !version.is_null() && *version != known["metadata"]["resourceVersion"] {
        return failure(StatusCode::CONFLICT, "Conflict");
    }
    let mut changed = known.clone();
    if *method == Method::PUT {
        given["metadata"]["uid"] = known["metadata"]["uid"].clone();
        changed = given;
    } else {
        merge(&mut changed, given);
    }
    if changed != known {
        record(objects, collection, "MODIFIED", name, changed);
    }
    whole(StatusCode::OK, &objects.collections[collection][name])
}

/// A merge patch (RFC 7396).
fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(&key);
        } else {
            merge(&mut into[&key], value);
        }
    }
}

fn is_collection(path: &str) -> bool {
    if let Some((_, rest)) = path.split_once("/namespaces/") {
        return rest.split('/').count() == 2;
    }
    // The kinds of a cluster, or of all its namespaces.
    let parts = path.split('/').count();
    (path.starts_with("/apis/") && parts == 5) || (path.starts_with("/api/v1/") && parts == 4)
}

/// Whether a collection is the one at the path, or that of one namespace where the path is of all.
fn is_part(collection: &str, path: &str) -> bool {
    let everywhere = collection.split_once("/namespaces/").and_then(|(group, rest)| {
        let (_, resource) = rest.split_once('/')?;
        Some(format!("{group}/{resource}"))
    });
    collection == path || everywhere.as_deref() == Some(path)
}

/// A watch: what happened after `from`, then what happens, until the window is over.
fn streamed(
    collection: String,
    mut from: u64,
    query: BTreeMap<String, String>,
    objects: Arc<Mutex<Objects>>,
    mut changed: watch::Receiver<u64>,
) -> Response<Body> {
    let window = Duration::from_secs(query["timeoutSeconds"].parse().unwrap());
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(16);
    let mut body = JoinSet::new();
    body.spawn(async move {
        let events = async {
            loop {
                let (lines, expired) = {
                    let known = objects.lock().unwrap();
                    let lines = lines(&known, &collection, from, &query);
                    let expired = known.compacted > from;
                    from = known.version;
                    (lines, expired)
                };
                for line in lines {
                    if sender.send(line).await.is_err() {
                        return;
                    }
                }
                if expired {
                    let _ = sender.send(line("ERROR", &status(410, "Expired"))).await;
                    return;
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(window, events).await;
    });
    let lines = stream::unfold((receiver, body), |(mut receiver, body)| async move {
        let line = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), (receiver, body)))
    });
    Response::new(StreamBody::new(lines).boxed_unsync())
}

fn lines(
    known: &Objects,
    collection: &str,
    from: u64,
    query: &BTreeMap<String, String>,
) -> Vec<Bytes> {
    let events = known.events.iter().filter(|event| event.version > from);
    let lines = events.filter_map(|event| {
        if event.kind == "BOOKMARK" {
            let wanted = query.get("allowWatchBookmarks").is_some_and(|wanted| wanted == "true");
            return wanted.then(|| line(event.kind, &event.object));
        }
        if !is_part(&event.collection, collection) {
            return None;
        }
        // An object that leaves what is selected is deleted as far as the watch can tell.
        let was = event.before.as_ref().is_some_and(|before| selects(query, before));
        let kind = match (was, event.kind != "DELETED" && selects(query, &event.object)) {
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, true) => "ADDED",
            (false, false) => return None,
        };
        Some(line(kind, &event.object))
    });
    lines.collect()
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

/// Whether the selectors of a request, of the few forms that are used here, choose the object.
fn selects(query: &BTreeMap<String, String>, object: &Value) -> bool {
    let labels = query.get("labelSelector").map_or("", String::as_str);
    let fields = query.get("fieldSelector").map_or("", String::as_str);
    let pairs = |text: &str| {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<Vec<_>>()
    };
    pairs(labels).iter().all(|(key, value)| object["metadata"]["labels"][key] == value.as_str())
        && pairs(fields).iter().all(|(key, value)| match key.as_str() {
            "status.phase!" => object["status"]["phase"] != value.as_str(),
            _ => object["metadata"]["name"] == value.as_str(),
        })
}

fn whole(status: StatusCode, document: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(document.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn failure(code: StatusCode, reason: &str) -> Response<Body> {
    whole(code, &status(code.as_u16(), reason))
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
           "message": reason, "code": code, "metadata": {}})
}
