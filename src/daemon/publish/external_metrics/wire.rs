//! Encodes responses: metric lists, tables and errors.

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::publish::external_metrics::answer::{MetricReading, ServedValue, short};
use crate::publish::external_metrics::request::ObjectRequest;
use crate::publish::external_metrics::route::{GROUP, OBJECT_GROUP, OBJECT_VERSION, VERSION};

/// The content type of every JSON response except an aggregated discovery document.
pub(crate) const JSON: &str = "application/json";

/// The maximum length of an error message. HPA controllers copy it into events, whose length is
/// limited as well.
const MESSAGE_MAX: usize = 1024;

// === errors ===

/// The kind of an error response. No kind asks the client to retry. Clients of this API would sleep
/// and retry ten times, and a single such client scales the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    Unavailable,
}

impl FailureKind {
    const fn code_and_reason(self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotFound => (StatusCode::NOT_FOUND, "NotFound"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "NotAcceptable"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        }
    }
}

/// An error in the form that clients of an API server read: a `Status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorResponse {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    /// The requested metric, if the request was for one.
    pub(crate) metric: Option<String>,
}

impl ErrorResponse {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), metric: None }
    }

    pub(crate) fn of_metric(mut self, metric: &str) -> Self {
        self.metric = Some(metric.to_owned());
        self
    }

    pub(crate) fn response(self) -> Response<Full<Bytes>> {
        let Self { kind, message, metric } = self;
        let (code, reason) = kind.code_and_reason();
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": cut(&message), "reason": reason,
        });
        if let Some(metric) = metric {
            status["details"] = json!({ "group": GROUP, "kind": metric });
        }

        status["code"] = code.as_u16().into();
        let mut response = response(code, JSON, status.to_string().into());
        if kind == FailureKind::MethodNotAllowed {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }

        response
    }
}

/// Cuts a message that is too long.
fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.to_owned();
    }
    format!("{}...", &message[..message.floor_char_boundary(MESSAGE_MAX - 3)])
}

// === lists ===

#[derive(Serialize)]
struct ExternalMetricValueList<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: String,
    metadata: serde_json::Map<String, serde_json::Value>,
    items: Vec<ExternalMetricValue<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExternalMetricValue<'a> {
    metric_name: &'static str,
    metric_labels: &'a BTreeMap<&'static str, String>,
    timestamp: String,
    value: String,
}

/// Encodes the values of some readings, in the given order.
pub(crate) fn list(values: &[(&MetricReading, ServedValue)]) -> Response<Full<Bytes>> {
    let items = values.iter().map(|(reading, ServedValue { quantity, at })| ExternalMetricValue {
        metric_name: reading.metric.name(),
        metric_labels: &reading.labels,
        timestamp: whole_seconds(*at),
        value: quantity.to_string(),
    });

    let list = ExternalMetricValueList {
        kind: "ExternalMetricValueList",
        api_version: format!("{GROUP}/{VERSION}"),
        metadata: serde_json::Map::new(),
        items: items.collect(),
    };

    let body = serde_json::to_vec(&list).expect("texts with texts as keys can be written");
    response(StatusCode::OK, JSON, body.into())
}

fn whole_seconds(at: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetricValue<'a> {
    described_object: ObjectReference<'a>,
    metric: MetricIdentifier<'a>,
    timestamp: String,
    value: String,
}

#[derive(Serialize)]
struct ObjectReference<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

#[derive(Serialize)]
struct MetricIdentifier<'a> {
    name: &'a str,
}

/// Encodes the metric of one object as a list of one value. An HPA reads nothing but the value and
/// its time.
pub(crate) fn object_list(asked: &ObjectRequest<'_>, value: ServedValue) -> Response<Full<Bytes>> {
    let ObjectRequest { namespace, object, metric, selector: _ } = asked;
    let ServedValue { quantity, at } = value;
    let item = ObjectMetricValue {
        described_object: ObjectReference {
            kind: kind(&object.resource),
            namespace: namespace.as_str(),
            name: &object.name,
        },
        metric: MetricIdentifier { name: metric.name() },
        timestamp: whole_seconds(at),
        value: quantity.to_string(),
    };

    let list = json!({
        "kind": "MetricValueList", "apiVersion": format!("{OBJECT_GROUP}/{OBJECT_VERSION}"),
        "metadata": {}, "items": [item],
    });
    response(StatusCode::OK, JSON, list.to_string().into())
}

/// Returns the kind of the usual resources. The kind of any other is not known here.
fn kind(resource: &str) -> &str {
    match resource {
        "deployments.apps" => "Deployment",
        "statefulsets.apps" => "StatefulSet",
        "leaderworkersets.leaderworkerset.x-k8s.io" => "LeaderWorkerSet",
        other => other,
    }
}

// === tables ===

/// Encodes the readings for display, including those without a value.
pub(crate) fn table(readings: &[MetricReading]) -> Response<Full<Bytes>> {
    let rows: Vec<_> = readings.iter().map(row).collect();
    let table = json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
        "columnDefinitions": [
            column("Name", "name", "name of the metric", 0),
            column("Variant", "", "variant of the value", 0),
            column("Value", "", "desired replicas", 0),
            column("Age", "", "age of the data behind the decision", 0),
            column("State", "", "state of the decision: fresh, hold, expired or cold", 0),
            column("Reason", "", "reason for a missing value", 1),
        ],
        "rows": rows,
    });

    response(StatusCode::OK, JSON, table.to_string().into())
}

fn column(name: &str, format: &str, description: &str, priority: u8) -> serde_json::Value {
    json!({
        "name": name, "type": "string", "format": format, "description": description,
        "priority": priority,
    })
}

fn row(reading: &MetricReading) -> serde_json::Value {
    let MetricReading { metric, namespace, variant, labels: _, state, value } = reading;
    let (number, reason) = match value {
        Ok(ServedValue { quantity, at: _ }) => (quantity.to_string(), ""),
        Err(reason) => ("<unknown>".to_owned(), reason.as_str()),
    };
    let age = state.age().map_or_else(|| "<unknown>".to_owned(), short);

    json!({
        "cells": [metric.name(), variant.as_str(), number, age, state.label(), reason],
        "object": {
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": metric.name(), "namespace": namespace.as_str(), "creationTimestamp": null,
            },
        },
    })
}

// === responses ===

/// Creates a response that must not be cached.
pub(crate) fn response(
    code: StatusCode,
    content_type: &'static str,
    body: Bytes,
) -> Response<Full<Bytes>> {
    let length = body.len();
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;

    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}
