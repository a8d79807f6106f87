//! The reference of all keys of the configuration, which is made of the schema.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll::config::schema;
use serde_json::Value;

const DOCUMENT: &str = "docs/reference.md";

const HEAD: &str = "\
# Configuration reference

All keys of the configuration file, with their types, defaults and ranges. This page is generated
from the declarations of the keys; [configuration.md](configuration.md) explains them in context.

`[]` stands for an element of a list, and `NAME` for a key that you choose. A reload that changes a
key marked *restart* is rejected as a whole: restart the daemon for it.
";

#[test]
fn the_reference_of_keys_is_what_the_declarations_say() {
    let mut text = HEAD.to_owned();
    let schema = schema();
    let mut keys = Vec::new();
    collect(&schema, "", &mut keys);
    let mut section = "";
    for Key { path, schema } in &keys {
        let first = path.split(['.', '[']).next().unwrap();
        if first != section {
            section = first;
            let description = text_of(&schema_of(section), "description");
            write!(text, "\n## `{section}`\n\n{description}\n\n").unwrap();
            text.push_str(
                "| key | type | default | range | description |\n|---|---|---|---|---|\n",
            );
        }
        text.push_str(&row(path, schema));
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let command = "INSTA_UPDATE=always cargo test --test it keys";
    assert!(committed == text, "{DOCUMENT} is not what the schema says; write it with `{command}`");
}

/// A key with its schema.
struct Key {
    path: String,
    schema: Value,
}

/// The schema of a section.
fn schema_of(section: &str) -> Value {
    schema()["properties"][section].clone()
}

/// Adds all keys below a path that are no sections themselves.
fn collect(schema: &Value, path: &str, keys: &mut Vec<Key>) {
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        let mut property = property.clone();
        inherit_restart(schema, &mut property);
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let nested = [
            (&property, String::new()),
            (&property["items"], "[]".to_owned()),
            (&property["additionalProperties"], ".NAME".to_owned()),
        ];
        let sections = nested.iter().filter(|(schema, _)| schema["properties"].is_object());
        let mut is_leaf = true;
        for (schema, suffix) in sections {
            is_leaf = false;
            let mut schema = (*schema).clone();
            inherit_restart(&property, &mut schema);
            collect(&schema, &format!("{path}{suffix}"), keys);
        }
        if is_leaf {
            keys.push(Key { path, schema: property });
        }
    }
}

/// Marks the keys of a section that is marked.
fn inherit_restart(section: &Value, key: &mut Value) {
    if section["x-restart"] == true {
        key["x-restart"] = true.into();
    }
}

fn row(path: &str, schema: &Value) -> String {
    let default = match &schema["default"] {
        Value::Null => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    };
    let mut description = text_of(schema, "description").replace("\n\n", " ").replace('|', "\\|");
    if schema["x-restart"] == true {
        description.push_str(" *Restart.*");
    }
    format!("| `{path}` | {} | {default} | {} | {description} |\n", kind(schema), range(schema))
}

/// The words for the type of a value.
fn kind(schema: &Value) -> String {
    if schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("KiB")) {
        return "size".to_owned();
    }
    if schema["pattern"].is_string() {
        return "duration".to_owned();
    }
    let choices = [&schema["anyOf"][0], schema].map(|schema| schema["oneOf"].as_array());
    if let Some(choices) = choices.into_iter().flatten().next() {
        let names: Vec<String> =
            choices.iter().map(|it| format!("`{}`", text_of(it, "const"))).collect();
        return names.join(", ");
    }
    let name = match &schema["type"] {
        Value::Array(kinds) => kinds[0].as_str().unwrap_or_default(),
        Value::String(kind) => kind,
        _ => "",
    };
    match name {
        "array" => format!("list of {}", kind(&schema["items"])),
        "object" => "mapping".to_owned(),
        "boolean" => "true or false".to_owned(),
        "string" => "text".to_owned(),
        "integer" => "whole number".to_owned(),
        other => other.to_owned(),
    }
}

fn range(schema: &Value) -> String {
    let bound = |keyword: &str| match &schema[keyword] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let above = bound("exclusiveMinimum").map(|bound| format!("above {bound}"));
    let from = bound("minimum").or_else(|| bound("x-minimum")).map(|bound| format!("from {bound}"));
    let to = bound("maximum").or_else(|| bound("x-maximum")).map(|bound| format!("to {bound}"));
    [above.or(from), to].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn text_of(schema: &Value, keyword: &str) -> String {
    schema[keyword].as_str().unwrap_or_default().to_owned()
}
