//! The API as an `OpenAPI` 3.1 document, from the types that are answered.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::publish::api::Endpoint;
use crate::publish::api::past::{Events, History};
use crate::publish::api::status::Status;
use crate::publish::explain::Decisions;

/// The document. It is the same for every daemon of a version.
#[must_use]
pub(crate) fn document() -> Value {
    let mut shapes = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .for_serialize()
        .into_generator();
    let paths: Map<String, Value> = Endpoint::ALL
        .into_iter()
        .map(|endpoint| {
            (endpoint.path().to_owned(), json!({"get": operation(endpoint, &mut shapes)}))
        })
        .collect();
    let mut schemas = shapes.take_definitions(true);
    schemas.insert("Error".to_owned(), error());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Plimsoll",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What Plimsoll has decided, why, and how it is. Within v1, fields are only added.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn operation(endpoint: Endpoint, shapes: &mut SchemaGenerator) -> Value {
    let (summary, shape) = match endpoint {
        Endpoint::Decisions => {
            ("Every number and the steps that made it", shapes.subschema_for::<Decisions<'_>>())
        }
        Endpoint::History => {
            ("The last hour of one variant", shapes.subschema_for::<History<'_>>())
        }
        Endpoint::Events => ("What has happened to the variants", shapes.subschema_for::<Events>()),
        Endpoint::Status => ("How the daemon and its fleet are", shapes.subschema_for::<Status>()),
        Endpoint::Cards => ("What was learned of engines, as a file of capacity cards", cards()),
        Endpoint::Openapi => ("This document", schemars::json_schema!({"type": "object"})),
    };
    let parameters: Vec<Value> = endpoint
        .parameters()
        .iter()
        .map(|name| {
            json!({
                "name": name,
                "in": "query",
                "required": endpoint == Endpoint::History,
                "schema": {"type": if *name == "limit" { "integer" } else { "string" }},
            })
        })
        .collect();
    let json = |schema: Value| json!({"application/json": {"schema": schema}});
    let refused = |why: &str| {
        let schema = json!({"$ref": "#/components/schemas/Error"});
        json!({"description": why, "content": json(schema)})
    };
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        json!({"description": summary, "content": json(shape.to_value())}),
    );
    responses.insert("400".to_owned(), refused("A query that cannot be understood"));
    if endpoint == Endpoint::History {
        responses.insert("404".to_owned(), refused("No such variant"));
    }
    json!({"summary": summary, "parameters": parameters, "responses": responses})
}

/// Its shape has a schema and a version of its own, because such files outlive a daemon.
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
        "description": "Why there is no answer.",
        "properties": {"error": {
            "type": "string",
            "description": "What is wrong and how to mend it, as a sentence.",
        }},
        "required": ["error"],
    })
}
