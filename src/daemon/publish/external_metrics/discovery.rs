//! Discovery and `OpenAPI` documents.
//!
//! The documents are constants, and must be available whenever the process can serve at all. While
//! discovery of one API fails, no namespace of the cluster can be deleted. So nothing here depends
//! on data, and the list of resources has one placeholder instead of the actual metrics. An empty
//! list would make `kubectl` warn on every command.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::publish::external_metrics::answer::ServedMetric;
use crate::publish::external_metrics::negotiate::{DISCOVERY_V2, names_tag};
use crate::publish::external_metrics::route::{
    GROUP, OBJECT_GROUP, OBJECT_VERSION, PLACEHOLDER, VERSION,
};
use crate::publish::external_metrics::wire::{JSON, response};

/// A document that never changes while the process runs.
#[derive(Clone, Debug)]
pub(crate) struct StaticDocument {
    content_type: &'static str,
    body: Bytes,
    hash: String,
}

/// The caching policy of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePolicy {
    /// The client must revalidate it.
    Revalidate,
    /// The client may keep it forever, because the address contains the hash of the content.
    Forever,
}

/// All documents.
#[derive(Clone, Debug)]
pub(crate) struct StaticDocuments {
    pub(crate) version: StaticDocument,
    pub(crate) groups: StaticDocument,
    pub(crate) groups_v2: StaticDocument,
    pub(crate) group: StaticDocument,
    pub(crate) resources: StaticDocument,
    pub(crate) object_group: StaticDocument,
    pub(crate) object_resources: StaticDocument,
    pub(crate) openapi_v2: StaticDocument,
    pub(crate) openapi_v3_index: StaticDocument,
    pub(crate) openapi_v3: StaticDocument,
}

impl StaticDocuments {
    /// Makes the documents, with the group of Object metrics or without.
    pub(crate) fn new(object_metrics: bool) -> Self {
        let openapi_v3 = StaticDocument::new(JSON, &openapi_v3());
        let index = openapi_v3_index(openapi_v3.hash());

        Self {
            version: StaticDocument::new(JSON, &version()),
            groups: StaticDocument::new(JSON, &groups(object_metrics)),
            groups_v2: StaticDocument::new(DISCOVERY_V2, &groups_v2(object_metrics)),
            group: StaticDocument::new(JSON, &with_kind(group(GROUP, VERSION))),
            resources: StaticDocument::new(JSON, &resources()),
            object_group: StaticDocument::new(
                JSON,
                &with_kind(group(OBJECT_GROUP, OBJECT_VERSION)),
            ),
            object_resources: StaticDocument::new(JSON, &object_resources()),
            openapi_v2: StaticDocument::new(JSON, &openapi_v2()),
            openapi_v3_index: StaticDocument::new(JSON, &index),
            openapi_v3,
        }
    }
}

impl StaticDocument {
    fn new(content_type: &'static str, content: &Value) -> Self {
        let text = content.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { content_type, body: text.into(), hash: format!("{:016X}", hasher.finish()) }
    }

    /// Returns a hash of the content.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the document, or 304 if the client already has it.
    pub(crate) fn response(
        &self,
        if_none_match: Option<&str>,
        keep: CachePolicy,
    ) -> Response<Full<Bytes>> {
        let tag = format!("\"{}\"", self.hash);
        let mut response = if names_tag(if_none_match, &tag) {
            let mut unchanged = Response::new(Full::default());
            *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
            unchanged
        } else {
            response(StatusCode::OK, self.content_type, self.body.clone())
        };

        let headers = response.headers_mut();
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static(match keep {
                CachePolicy::Revalidate => "public",
                CachePolicy::Forever => "public, immutable",
            }),
        );
        headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(tag) = HeaderValue::try_from(tag) {
            headers.insert(header::ETAG, tag);
        }

        response
    }
}

fn group_version() -> String {
    format!("{GROUP}/{VERSION}")
}

fn version() -> Value {
    json!({
        "major": env!("CARGO_PKG_VERSION_MAJOR"), "minor": env!("CARGO_PKG_VERSION_MINOR"),
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")), "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "rustc", "platform":
            format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn group(name: &str, served: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/{served}"), "version": served });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

fn with_kind(group: Value) -> Value {
    let mut document = json!({ "kind": "APIGroup", "apiVersion": "v1" });
    if let (Some(document), Value::Object(group)) = (document.as_object_mut(), group) {
        document.extend(group);
    }
    document
}

fn groups(object_metrics: bool) -> Value {
    let of_objects = object_metrics.then(|| group(OBJECT_GROUP, OBJECT_VERSION));
    let groups: Vec<Value> = std::iter::once(group(GROUP, VERSION)).chain(of_objects).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

fn groups_v2(object_metrics: bool) -> Value {
    let resource = json!({
        "resource": PLACEHOLDER,
        "responseKind":
            { "group": GROUP, "version": VERSION, "kind": "ExternalMetricValueList" },
        "scope": "Namespaced", "singularResource": "", "verbs": ["get"],
    });

    let of_objects = object_metrics.then(|| {
        let resources: Vec<Value> = OBJECTS.iter().map(|object| object_v2(object)).collect();
        group_v2(OBJECT_GROUP, OBJECT_VERSION, &resources)
    });
    let items: Vec<Value> =
        std::iter::once(group_v2(GROUP, VERSION, &[resource])).chain(of_objects).collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": items,
    })
}

fn group_v2(group: &str, version: &str, resources: &[Value]) -> Value {
    json!({
        "metadata": { "name": group },
        "versions": [{ "version": version, "freshness": "Current", "resources": resources }],
    })
}

/// The resources of objects that usually have a variant. Every other resource is answered too, but
/// documents cannot list all.
const OBJECTS: [&str; 3] =
    ["deployments.apps", "statefulsets.apps", "leaderworkersets.leaderworkerset.x-k8s.io"];

/// Returns one resource of objects, whose metrics are subresources.
fn object_v2(resource: &str) -> Value {
    let kind = json!({ "group": OBJECT_GROUP, "version": OBJECT_VERSION, "kind": VALUE_LIST });
    json!({
        "resource": resource, "responseKind": kind, "scope": "Namespaced", "singularResource": "",
        "verbs": [],
        "subresources": [{
            "subresource": ServedMetric::Desired.name(), "responseKind": kind, "verbs": ["get"],
        }],
    })
}

const VALUE_LIST: &str = "MetricValueList";

fn object_resources() -> Value {
    let metric = ServedMetric::Desired.name();
    let resources: Vec<Value> = OBJECTS
        .iter()
        .map(|resource| {
            json!({
                "name": format!("{resource}/{metric}"), "singularName": "", "namespaced": true,
                "kind": VALUE_LIST, "verbs": ["get"],
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": format!("{OBJECT_GROUP}/{OBJECT_VERSION}"), "resources": resources,
    })
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(),
        "resources": [{
            "name": PLACEHOLDER, "singularName": "", "namespaced": true,
            "kind": "ExternalMetricValueList", "verbs": ["get"],
        }],
    })
}

const DEFINITION: &str = "io.plimsoll.external_metrics.v1beta1.ExternalMetricValueList";

/// Returns the schema of the list, with names that cannot clash with those of other APIs.
fn schema() -> Value {
    json!({
        "type": "object",
        "description": "Values of external metrics.",
        "required": ["items"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "items": { "type": "array", "items": {
                "type": "object",
                "required": ["metricName", "metricLabels", "timestamp", "value"],
                "properties": {
                    "metricName": { "type": "string" },
                    "metricLabels":
                        { "type": "object", "additionalProperties": { "type": "string" } },
                    "timestamp": { "type": "string", "format": "date-time" },
                    "window": { "type": "integer", "format": "int64" },
                    "value": { "type": "string" },
                },
            } },
        },
    })
}

fn info() -> Value {
    json!({ "title": "Plimsoll external metrics", "version": env!("CARGO_PKG_VERSION") })
}

fn list_path() -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{{resource}}")
}

/// Returns the paths of both `OpenAPI` documents. The parameters and the response differ between
/// the two.
fn paths(parameters: &Value, answer: &Value) -> Value {
    let discovery = json!({ "get": {
        "description": "get available resources", "operationId": "getExternalMetricsResources",
        "responses": { "200": { "description": "OK" } },
    } });
    let list = json!({
        "get": {
            "description": "list the values of an external metric",
            "operationId": "listExternalMetricValues", "responses": { "200": answer },
        },
        "parameters": parameters,
    });

    json!({ (format!("/apis/{GROUP}/{VERSION}/")): discovery, (list_path()): list })
}

fn openapi_v2() -> Value {
    let parameters = json!([
        parameter_v2("namespace", "path"),
        parameter_v2("resource", "path"),
        parameter_v2("labelSelector", "query"),
    ]);
    let answer = json!({
        "description": "OK", "schema": { "$ref": format!("#/definitions/{DEFINITION}") },
    });

    json!({
        "swagger": "2.0", "info": info(), "paths": paths(&parameters, &answer),
        "definitions": { (DEFINITION): schema() },
    })
}

fn parameter_v2(name: &str, place: &str) -> Value {
    json!({
        "name": name, "in": place, "type": "string", "uniqueItems": true,
        "required": place == "path",
    })
}

fn openapi_v3() -> Value {
    let parameters = json!([
        parameter_v3("namespace", "path"),
        parameter_v3("resource", "path"),
        parameter_v3("labelSelector", "query"),
    ]);
    let reference = json!({ "$ref": format!("#/components/schemas/{DEFINITION}") });
    let answer = json!({ "description": "OK", "content": { (JSON): { "schema": reference } } });

    json!({
        "openapi": "3.0.0", "info": info(), "paths": paths(&parameters, &answer),
        "components": { "schemas": { (DEFINITION): schema() } },
    })
}

fn parameter_v3(name: &str, place: &str) -> Value {
    json!({
        "name": name, "in": place, "required": place == "path",
        "schema": { "type": "string", "uniqueItems": true },
    })
}

/// Returns an index with only this API group. The aggregator merges indexes by key, and another key
/// could displace the cluster's own document.
fn openapi_v3_index(hash: &str) -> Value {
    let path = format!("apis/{GROUP}/{VERSION}");
    let url = format!("/openapi/v3/{path}?hash={hash}");
    json!({ "paths": { (path): { "serverRelativeURL": url } } })
}
