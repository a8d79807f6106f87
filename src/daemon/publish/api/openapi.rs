//! The API as an `OpenAPI` 3.1 document, generated from the response types.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::publish::api::desired::Desired;
use crate::publish::api::endpoint::ApiEndpoint;
use crate::publish::api::past::{Events, History};
use crate::publish::api::status::Status;
use crate::publish::api::summary::FleetSummary;
use crate::publish::explain::Decisions;
use crate::publish::explanation::Explanation;

/// Responses of all requests that change the daemon.
const REFUSED: &str = "No token, and not from the daemon's own host or pod; or disabled";
const BODY_LATE: &str = "The body did not arrive in time";
const BODY_LARGE: &str = "The body is too large";

/// Returns the document. It is the same for every daemon of a release.
#[must_use]
pub(crate) fn document() -> Value {
    let mut shapes = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .for_serialize()
        .into_generator();
    let paths: Map<String, Value> = ApiEndpoint::ALL
        .into_iter()
        .map(|endpoint| {
            (endpoint.path().to_owned(), json!({"get": operation(endpoint, &mut shapes)}))
        })
        .chain(changes())
        .collect();
    let mut schemas = shapes.take_definitions(true);
    schemas.insert("Error".to_owned(), error());

    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Plimsoll's decisions, their reasons, and its status. Within v1, \
                fields are only added.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "The content of server.admin_token_file. Requests from the \
                    daemon's own host or pod don't need it.",
            }},
        },
    })
}

fn operation(endpoint: ApiEndpoint, shapes: &mut SchemaGenerator) -> Value {
    let (summary, shape) = match endpoint {
        ApiEndpoint::Summary => {
            ("Every variant in one line", shapes.subschema_for::<FleetSummary<'_>>())
        }
        ApiEndpoint::Decisions => {
            ("Every number and the steps that made it", shapes.subschema_for::<Decisions<'_>>())
        }
        ApiEndpoint::Desired => {
            ("The desired replicas of one variant", shapes.subschema_for::<Desired>())
        }
        ApiEndpoint::Explain => (
            "The explanation of one variant's desired replicas, and the changes that would affect \
             them",
            shapes.subschema_for::<Explanation<'_>>(),
        ),
        ApiEndpoint::History => {
            ("The last hour of one variant", shapes.subschema_for::<History<'_>>())
        }
        ApiEndpoint::Events => ("Events of all variants", shapes.subschema_for::<Events>()),
        ApiEndpoint::Status => {
            ("Status of the daemon and its fleet", shapes.subschema_for::<Status>())
        }
        ApiEndpoint::Cards => ("Learned engine performance, as a file of capacity cards", cards()),
        ApiEndpoint::Openapi => ("This document", schemars::json_schema!({"type": "object"})),
    };

    let parameters: Vec<Value> = endpoint
        .parameters()
        .iter()
        .map(|name| {
            json!({
                "name": name,
                "in": "query",
                "required": endpoint.is_of_one_variant(),
                "schema": {"type": if *name == "limit" { "integer" } else { "string" }},
            })
        })
        .collect();

    let mut responses = Map::new();
    responses.insert("200".to_owned(), response(summary, &shape.to_value()));
    let error = json!({"$ref": "#/components/schemas/Error"});
    responses.insert("400".to_owned(), response("An invalid query", &error));
    let foreign = "A browser request with a host name that is not allowed";
    responses.insert("403".to_owned(), response(foreign, &error));
    if endpoint.is_of_one_variant() {
        responses.insert("404".to_owned(), response("No such variant", &error));
    }
    if endpoint == ApiEndpoint::Desired {
        let why = "No decision yet, or a decision too old to serve";
        responses.insert("503".to_owned(), response(why, &error));
    }

    if endpoint == ApiEndpoint::Explain {
        let why = "No tick in time, or other explanations take too long";
        responses.insert("503".to_owned(), response(why, &error));
    }

    json!({"summary": summary, "parameters": parameters, "responses": responses})
}

fn response(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

/// The requests that change the daemon. They are answered in plain text, except overrides.
fn changes() -> [(String, Value); 3] {
    let refused = ("403", REFUSED);
    let reload = operation_in_text(
        "Reload the configuration",
        &[("200", "It was loaded"), ("400", "All problems of the configuration"), refused],
    );

    let mut log = operation_in_text(
        "Replace the log filter with the body",
        &[
            ("200", "It was replaced"),
            ("400", "The filter is not valid"),
            refused,
            ("408", BODY_LATE),
            ("413", BODY_LARGE),
        ],
    );
    log["requestBody"] = json!({"required": true, "content": text()});
    let mut put = override_operation("Pin or pause a variant, which replaces its override");
    let body = json!({
        "type": "object",
        "description": "Either `pin` or `pause`.",
        "properties": {
            "pin": {"type": "integer", "minimum": 0, "description": "The number of replicas."},
            "pause": {"const": true, "description": "Keeps the number of replicas."},
            "until": {"type": "string", "format": "date-time", "description": "When it ends."},
        },
        "required": ["until"],
    });
    put["requestBody"] =
        json!({"required": true, "content": {"application/json": {"schema": body}}});
    let delete = override_operation("End the override of a variant");

    let path = str::to_owned;
    [
        (path("/-/reload"), json!({"post": reload})),
        (path("/-/log"), json!({"put": log})),
        (path("/-/override"), json!({"put": put, "delete": delete})),
    ]
}

/// A change of the override of one variant.
fn override_operation(summary: &str) -> Value {
    let mut operation =
        operation_in_text(summary, &[("403", REFUSED), ("408", BODY_LATE), ("413", BODY_LARGE)]);

    let text_or_null = json!({"type": ["string", "null"]});
    let changed = json!({
        "type": "object",
        "properties": {
            "variant": {"type": "string"},
            "override": text_or_null,
            "until": text_or_null,
        },
        "required": ["variant", "override", "until"],
    });
    operation["responses"]["200"] = response("The override now; null if there is none", &changed);

    let error = json!({"$ref": "#/components/schemas/Error"});
    for (status, meaning) in [
        ("400", "An invalid query or body"),
        ("404", "No such variant, or no override to end"),
        ("409", "This replica does not lead"),
        ("503", "The change was not saved in time, or the daemon is shutting down"),
    ] {
        operation["responses"][status] = response(meaning, &error);
    }

    let parameter =
        |name| json!({"name": name, "in": "query", "required": true, "schema": {"type": "string"}});
    operation["parameters"] = json!([parameter("namespace"), parameter("variant")]);
    operation
}

fn operation_in_text(summary: &str, responses: &[(&str, &str)]) -> Value {
    let responses: Map<String, Value> = responses
        .iter()
        .map(|(status, meaning)| {
            ((*status).to_owned(), json!({"description": meaning, "content": text()}))
        })
        .collect();
    let security = json!([{}, {"token": []}]);

    json!({"summary": summary, "security": security, "responses": responses})
}

fn text() -> Value {
    json!({"text/plain": {"schema": {"type": "string"}}})
}

/// Returns the schema of a capacity card file. Such files outlive a daemon, so their format has its
/// own schema and version.
fn cards() -> Schema {
    schemars::json_schema!({
        "type": "object",
        "description": "A file of capacity cards, whose schema is docs/card.schema.json.",
        "properties": {
            "version": {"type": "integer", "const": 1},
            "cards": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["version", "cards"],
    })
}

fn error() -> Value {
    json!({
        "type": "object",
        "description": "The reason for the error.",
        "properties": {"error": {
            "type": "string",
            "description": "The problem, with its fix if one is known, as a sentence.",
        }},
        "required": ["error"],
    })
}
