//! YAML to JSON values and back.
//!
//! The configuration is read through this instead of through a YAML reader of serde's, because
//! JSON values can be taken apart key by key when several of them are wrong. Numbers that JSON
//! does not have (`.nan`, `.inf`) arrive as text, so that they are refused where they are.

pub mod lines;

use std::fmt;

use serde_json::{Map, Number, Value};
use yaml_rust2::yaml::Hash;
use yaml_rust2::{ScanError, Yaml, YamlEmitter, YamlLoader};

/// Deeper nesting is not a configuration, and a recursive reader must not meet it.
const DEPTH_MAX: usize = 64;

/// More values than any configuration has. YAML's aliases can ask for far more than they show, and
/// all that is read is copied from layer to layer.
const VALUES_MAX: usize = 200_000;

/// Why a text is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line from 1, if the mistake has a place.
    pub line: Option<usize>,
    /// Column from 1, if the mistake has a place.
    pub(crate) column: Option<usize>,
    /// What is wrong.
    pub message: String,
}

/// Reads a text that holds one document; an empty text is an empty mapping.
///
/// # Errors
///
/// The text is not YAML, is not one document, or is nested too deeply.
pub fn read(text: &str) -> Result<Value, SyntaxError> {
    refuse_depth(text)?;
    let documents = YamlLoader::load_from_str(text).map_err(|error| SyntaxError::from(&error))?;
    match documents.as_slice() {
        [] => Ok(Value::Object(Map::new())),
        [document] => {
            let mut room = VALUES_MAX;
            to_json(document, &mut room)
        }
        more => Err(SyntaxError::somewhere(format!("{} documents instead of one", more.len()))),
    }
}

/// Writes a value as a document.
///
/// # Errors
///
/// The writer refuses.
pub fn write(value: &Value) -> Result<String, fmt::Error> {
    let mut text = String::new();
    YamlEmitter::new(&mut text).dump(&to_yaml(value)).map_err(|_| fmt::Error)?;
    // The emitter starts with the mark that separates documents, which a single one does not need.
    let body = text.strip_prefix("---\n").unwrap_or(&text);
    Ok(format!("{body}\n"))
}

// === impl SyntaxError ===

impl SyntaxError {
    fn somewhere(message: impl Into<String>) -> Self {
        Self { line: None, column: None, message: message.into() }
    }
}

impl From<&ScanError> for SyntaxError {
    fn from(error: &ScanError) -> Self {
        Self {
            line: Some(error.marker().line()),
            column: Some(error.marker().col() + 1),
            message: error.info().to_owned(),
        }
    }
}

/// Refuses text whose brackets or indentation nest deeper than the reader may recurse.
fn refuse_depth(text: &str) -> Result<(), SyntaxError> {
    let mut depth = 0_usize;
    for (at, line) in text.lines().enumerate() {
        let mut opening = 0_usize;
        for letter in line.chars() {
            match letter {
                '[' | '{' => depth += 1,
                ']' | '}' => depth = depth.saturating_sub(1),
                // Each of these can open a block of its own in one line: `- - - a`.
                '-' | '?' | ':' => opening += 1,
                _ => {}
            }
            if depth > DEPTH_MAX {
                return Err(SyntaxError {
                    line: Some(at + 1),
                    column: None,
                    message: format!("brackets nest deeper than {DEPTH_MAX}"),
                });
            }
        }
        let indentation = line.len() - line.trim_start_matches([' ', '-', '?']).len();
        if indentation > 4 * DEPTH_MAX && opening > 0 {
            return Err(SyntaxError {
                line: Some(at + 1),
                column: None,
                message: format!("blocks nest deeper than {DEPTH_MAX}"),
            });
        }
    }
    Ok(())
}

fn to_json(yaml: &Yaml, room: &mut usize) -> Result<Value, SyntaxError> {
    *room = room
        .checked_sub(1)
        .ok_or_else(|| SyntaxError::somewhere(format!("more than {VALUES_MAX} values")))?;
    Ok(match yaml {
        Yaml::Real(text) => match text.parse().ok().and_then(Number::from_f64) {
            Some(number) => Value::Number(number),
            None => Value::String(text.clone()),
        },
        Yaml::Integer(number) => Value::Number((*number).into()),
        Yaml::String(text) => Value::String(text.clone()),
        Yaml::Boolean(flag) => Value::Bool(*flag),
        Yaml::Array(items) => {
            Value::Array(items.iter().map(|item| to_json(item, room)).collect::<Result<_, _>>()?)
        }
        Yaml::Hash(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                map.insert(key_text(key)?, to_json(value, room)?);
            }
            Value::Object(map)
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => {
            return Err(SyntaxError::somewhere("a value does not have the type of its tag"));
        }
    })
}

fn key_text(key: &Yaml) -> Result<String, SyntaxError> {
    match key {
        Yaml::String(text) | Yaml::Real(text) => Ok(text.clone()),
        Yaml::Integer(number) => Ok(number.to_string()),
        Yaml::Boolean(flag) => Ok(flag.to_string()),
        Yaml::Null => Ok("null".to_owned()),
        Yaml::Array(_) | Yaml::Hash(_) | Yaml::Alias(_) | Yaml::BadValue => {
            Err(SyntaxError::somewhere("a key is not a plain word"))
        }
    }
}

fn to_yaml(value: &Value) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(flag) => Yaml::Boolean(*flag),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Yaml::Real(number.to_string()), Yaml::Integer)
        }
        Value::String(text) => Yaml::String(text.clone()),
        Value::Array(items) => Yaml::Array(items.iter().map(to_yaml).collect()),
        Value::Object(map) => {
            let mut entries = Hash::new();
            for (key, value) in map {
                entries.insert(Yaml::String(key.clone()), to_yaml(value));
            }
            Yaml::Hash(entries)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_written_as_it_is_read() {
        let value = json!({
            "text": "yes", "number": 0.5, "whole": 3, "none": null, "flag": true,
            "list": ["0x10", "1e3", ": odd # text", ""], "map": {"a/b#c": {}, "empty": []},
        });
        assert_eq!(read(&write(&value).unwrap()), Ok(value));
    }

    #[test]
    fn a_syntax_error_says_where_it_is() {
        let error = read("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert_eq!(error.line, Some(3), "{error:?}");
        let error = read("a: 1\na: 2\n").unwrap_err();
        assert_eq!(error.line, Some(2), "{error:?}");
        assert!(error.message.contains("duplicated key"), "{error:?}");
        assert!(read("a: 1\n---\nb: 2\n").unwrap_err().message.contains("2 documents"));
    }

    #[test]
    fn numbers_that_json_lacks_arrive_as_text() {
        assert_eq!(read("[.nan, -.inf, 1e999]"), Ok(json!([".nan", "-.inf", "1e999"])));
    }

    #[test]
    fn nesting_and_repetition_are_bounded() {
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"- ".repeat(100_000)).is_err());
        let bomb: Vec<String> = (1..6)
            .map(|level| {
                let below = vec![format!("*a{}", level - 1); 10].join(",");
                format!("a{level}: &a{level} [{below}]")
            })
            .collect();
        let bomb = format!("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n{}", bomb.join("\n"));
        assert!(read(&bomb).unwrap_err().message.contains("values"));
    }
}
