//! An API server that says what a test tells it to, as JSON: list, watch, scale and discovery, and
//! objects that are created, replaced and patched as an API server does it.

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
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A change of an object in a collection, as a watch shows it.
#[derive(Clone)]
struct Event {
    version: u64,
    collection: String,
    kind: &'static str,
    object: Value,
}

#[derive(Default)]
struct Objects {
    version: u64,
    /// Events at or below this version are forgotten.
    compacted: u64,
    collections: BTreeMap<String, BTreeMap<String, Value>>,
    documents: BTreeMap<String, Value>,
    events: Vec<Event>,
    refused: BTreeSet<String>,
    /// How many requests below these paths are still refused.
    refused_in_passing: BTreeMap<String, u32>,
    requests: Vec<String>,
    /// Method and path of each request.
    written: Vec<String>,
    /// How many connections have been accepted.
    connections: usize,
}

/// The API server. Dropping it ends it.
pub(crate) struct FakeCluster {
    address: SocketAddr,
    objects: Arc<Mutex<Objects>>,
    changed: watch::Sender<u64>,
    serving: Option<JoinSet<()>>,
}

impl FakeCluster {
    /// One that listens, and knows the groups that a cluster has.
    pub(crate) async fn start() -> Self {
        let mut fake = Self::away().await;
        fake.come_up().await;
        fake
    }

    /// One that has an address, but does not listen yet.
    pub(crate) async fn away() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = Self {
            address: listener.local_addr().unwrap(),
            objects: Arc::default(),
            changed: watch::channel(0).0,
            serving: None,
        };
        fake.resources("/apis/apps/v1", &[("deployments", "Deployment")]);
        fake
    }

    pub(crate) fn client(&self) -> kube::Client {
        let uri = format!("http://{}", self.address).parse().unwrap();
        kube::Client::try_from(kube::Config::new(uri)).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Listens.
    pub(crate) async fn come_up(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (objects, changed) = (self.objects.clone(), self.changed.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (objects, changed) = (objects.clone(), changed.clone());
                objects.lock().unwrap().connections += 1;
                connections.spawn(async move {
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
                    let io = TokioIo::new(stream);
                    // A client that goes away is no failure of the test.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await;
                });
            }
        });
        self.serving = Some(serving);
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

    /// Refuses, with 403, the next few requests for the path.
    pub(crate) fn refuse_next(&self, path: &str, requests: u32) {
        self.objects.lock().unwrap().refused_in_passing.insert(path.to_owned(), requests);
    }

    /// How many of those are to come.
    pub(crate) fn to_refuse(&self, path: &str) -> u32 {
        self.objects.lock().unwrap().refused_in_passing[path]
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
    if kind == "DELETED" {
        known.remove(name);
    } else {
        known.insert(name.to_owned(), object.clone());
    }
    objects.events.push(Event { version, collection: collection.to_owned(), kind, object });
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
    known.requests.push(request.uri.to_string());
    known.written.push(format!("{} {path}", request.method));
    if known.refused.iter().any(|refused| path.starts_with(refused.as_str())) {
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    if let Some(left) = known.refused_in_passing.get_mut(&path).filter(|left| **left > 0) {
        *left -= 1;
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    if request.method != Method::GET {
        let response = write(&request.method, &path, body, &mut known);
        changed.send_replace(known.version);
        return response;
    }
    if let Some(document) = known.documents.get(&path) {
        return whole(StatusCode::OK, document);
    }
    // A group that it does not have is no object, and an API server says so in plain text.
    if path.starts_with("/apis/") && path.split('/').count() == 4 {
        let body = Full::new(Bytes::from("404 page not found\n")).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
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
        if from < known.compacted {
            return failure(StatusCode::GONE, "Expired");
        }
        drop(known);
        return streamed(path, from, query, objects.clone(), changed.subscribe());
    }
    let within = known.collections.iter().filter(|(collection, _)| is_part(collection, &path));
    let items: Vec<&Value> = within
        .flat_map(|(_, objects)| objects.values())
        .filter(|object| selects(&query, object))
        .collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "items": items,
                      "metadata": {"resourceVersion": known.version.to_string()}});
    whole(StatusCode::OK, &list)
}

/// Creates (POST on a collection), replaces (PUT) or merges into (PATCH) an object. Who names a
/// version means no other.
fn write(method: &Method, path: &str, body: &[u8], objects: &mut Objects) -> Response<Body> {
    let mut given: Value = serde_json::from_slice(body).unwrap();
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
    let events = known.events.iter().filter(|event| {
        event.version > from
            && is_part(&event.collection, collection)
            && selects(query, &event.object)
    });
    events.map(|event| line(event.kind, &event.object)).collect()
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
