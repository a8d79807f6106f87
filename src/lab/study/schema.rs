//! JSON Schemas of the scenario file and of the results, for editors and programs.
//!
//! The scenario's schema comes from the declarations of its keys. This module adds the sections of
//! the daemon's configuration that are allowed in `policy`, and the rule that a `sweep` has lists.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::study::args::SchemaOf;
use crate::study::file::File;
use crate::study::resolve::NO_POLICY;
use crate::study::results::Results;
use plimsoll_daemon::config;

/// The schema of the results or of the scenario file.
pub(crate) fn schema(of: SchemaOf) -> Schema {
    match of {
        SchemaOf::Results => schemars::schema_for!(Results),
        SchemaOf::Scenario => Schema::try_from(scenario()).unwrap_or_default(),
    }
}

fn scenario() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<File>().to_value();

    schema["title"] = json!("Scenario of plimsoll simulate");
    schema["properties"]["policy"] = policy(&schema["properties"]["policy"]["description"]);
    let tried = json!({"type": "array", "minItems": 1});
    schema["properties"]["sweep"]["additionalProperties"] = tried;
    schema
}

/// The sections of the daemon's configuration that are allowed in a scenario.
fn policy(description: &Value) -> Value {
    let mut policy = config::schema();
    if let Some(sections) = policy.get_mut("properties").and_then(Value::as_object_mut) {
        for section in NO_POLICY {
            sections.shift_remove(section);
        }
    }

    if let Some(root) = policy.as_object_mut() {
        for key in ["$schema", "title", "required"] {
            root.shift_remove(key);
        }
        root.insert("description".to_owned(), description.clone());
    }

    policy
}
