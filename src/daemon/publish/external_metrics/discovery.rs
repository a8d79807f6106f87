//! Discovery and `OpenAPI` documents.
//!
//! They are constants. They must be there whenever the process can serve at all: while discovery of
//! one API fails, no namespace of the cluster can be deleted. So nothing here looks at data, and the
//! list of resources has one placeholder instead of the metrics that there are. An empty list would
//! make `kubectl` warn on every command.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::publish::external_metrics::negotiate::{DISCOVERY_V2, names_tag};
use crate::publish::external_metrics::route::{GROUP, VERSION};
use crate::publish::external_metrics::wire::{JSON, response};

/// The placeholder resource, which lists all metrics of a namespace when it is asked for.
pub(crate) const PLACEHOLDER: &str = "externalmetrics";

/// A document that never changes while the process lives.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    content_type: &'static str,
    body: Bytes,
    hash: String,
}

/// For how long a client may keep a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As long as asking says that it is the same.
    Revalidate,
    /// For ever, because the address names the content.
    Forever,
}

/// All documents.
#[derive(Clone, Debug)]
pub(crate) struct Documents {
    pub(crate) version: Document,
    pub(crate) groups: Document,
    pub(crate) groups_v2: Document,
    pub(crate) group: Document,
    pub(crate) resources: Document,
    pub(crate) openapi_v2: Document,
    pub(crate) openapi_v3_index: Document,
    pub(crate) openapi_v3: Document,
}

impl Documents {
    pub(crate) fn new() -> Self {
        let openapi_v3 = Document::new(JSON, &openapi_v3());
        let index = openapi_v3_index(openapi_v3.hash());
        Self {
            version: Document::new(JSON, &version()),
            groups: Document::new(JSON, &groups()),
            groups_v2: Document::new(DISCOVERY_V2, &groups_v2()),
            group: Document::new(JSON, &group_with_kind()),
            resources: Document::new(JSON, &resources()),
            openapi_v2: Document::new(JSON, &openapi_v2()),
            openapi_v3_index: Document::new(JSON, &index),
            openapi_v3,
        }
    }
}

impl Document {
    fn new(content_type: &'static str, content: &Value) -> Self {
        let text = content.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { content_type, body: text.into(), hash: format!("{:016X}", hasher.finish()) }
    }

    /// A text that changes with the content.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The document, or that the client has it already.
    pub(crate) fn response(
        &self,
        if_none_match: Option<&str>,
        keep: Keep,
    ) -> Response<Full<Bytes>> {
        let tag = format!("\"{}\"", self.hash);
        let mut response = if names_tag(if_none_match, &tag) {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            response(StatusCode::OK, self.content_type, self.body.clone())
        };
        let headers = response.headers_mut();
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static(match keep {
                Keep::Revalidate => "public",
                Keep::Forever => "public, immutable",
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

fn group() -> Value {
    let version = json!({ "groupVersion": group_version(), "version": VERSION });
    json!({ "name": GROUP, "versions": [version], "preferredVersion": version })
}

fn group_with_kind() -> Value {
    let mut document = json!({ "kind": "APIGroup", "apiVersion": "v1" });
    if let (Some(document), Value::Object(group)) = (document.as_object_mut(), group()) {
        document.extend(group);
    }
    document
}

fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })
}

fn groups_v2() -> Value {
    let resource = json!({
        "resource": PLACEHOLDER,
        "responseKind":
            { "group": GROUP, "version": VERSION, "kind": "ExternalMetricValueList" },
        "scope": "Namespaced", "singularResource": "", "verbs": ["get"],
    });
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{
            "metadata": { "name": GROUP },
            "versions": [
                { "version": VERSION, "freshness": "Current", "resources": [resource] }
            ],
        }],
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

/// The list's schema, with names that clash with nobody's.
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

/// Paths of both `OpenAPI` documents, given what differs: the parameters and the answer.
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
    let parameter = |name: &str, place: &str| {
        json!({
            "name": name, "in": place, "type": "string", "uniqueItems": true,
            "required": place == "path",
        })
    };
    let parameters = json!([
        parameter("namespace", "path"),
        parameter("resource", "path"),
        parameter("labelSelector", "query"),
    ]);
    let answer = json!({
        "description": "OK", "schema": { "$ref": format!("#/definitions/{DEFINITION}") },
    });
    json!({
        "swagger": "2.0", "info": info(), "paths": paths(&parameters, &answer),
        "definitions": { (DEFINITION): schema() },
    })
}

fn openapi_v3() -> Value {
    let parameter = |name: &str, place: &str| {
        json!({
            "name": name, "in": place, "required": place == "path",
            "schema": { "type": "string", "uniqueItems": true },
        })
    };
    let parameters = json!([
        parameter("namespace", "path"),
        parameter("resource", "path"),
        parameter("labelSelector", "query"),
    ]);
    let reference = json!({ "$ref": format!("#/components/schemas/{DEFINITION}") });
    let answer = json!({ "description": "OK", "content": { (JSON): { "schema": reference } } });
    json!({
        "openapi": "3.0.0", "info": info(), "paths": paths(&parameters, &answer),
        "components": { "schemas": { (DEFINITION): schema() } },
    })
}

/// Only our own group: the aggregator merges indexes by key, and another key could displace the
/// cluster's own document.
fn openapi_v3_index(hash: &str) -> Value {
    let path = format!("apis/{GROUP}/{VERSION}");
    let url = format!("/openapi/v3/{path}?hash={hash}");
    json!({ "paths": { (path): { "serverRelativeURL": url } } })
}
