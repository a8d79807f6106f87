//! YAML to JSON values and back.
//!
//! The configuration is read through this module instead of directly into its types. JSON values
//! can be taken apart key by key when several of them are invalid. Numbers that JSON does not have
//! (`.nan`, `.inf`) become text, so that they are rejected at their place.

pub mod lines;

use std::fmt;

use serde_json::Value;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

use crate::config::yaml::lines::{DEPTH_MAX, VALUES_MAX};

/// The reason that a text is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line from 1, if the error has a place.
    pub line: Option<usize>,
    /// Column from 1, if the error has a place.
    pub(crate) column: Option<usize>,
    /// The parser's message.
    pub message: String,
}

/// A place in a file as messages show it: `:3:14`, or nothing.
pub(super) struct FilePosition(pub(super) Option<usize>, pub(super) Option<usize>);

/// Reads a text that holds one document; an empty text is an empty mapping.
///
/// # Errors
///
/// The text is not YAML, is not one document, or is nested too deeply.
pub fn read(text: &str) -> Result<Value, SyntaxError> {
    match lines::read(text) {
        Ok((value, _)) => Ok(value),
        Err(error) => Err(SyntaxError::from(&error)),
    }
}

/// Writes a value as a document.
///
/// # Errors
///
/// The writer fails.
pub fn write(value: &Value) -> Result<String, fmt::Error> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: false,
        prefer_block_scalars: false,
    };
    serde_saphyr::to_string_with_options(value, options).map_err(|_| fmt::Error)
}

// === impl SyntaxError ===

impl From<&Error> for SyntaxError {
    fn from(error: &Error) -> Self {
        let place = error.location();
        let said = UserMessageFormatter.format_message(error).into_owned();
        Self {
            line: place.and_then(|place| place.line().try_into().ok()),
            column: place.and_then(|place| place.column().try_into().ok()),
            message: limit(&said).unwrap_or_else(|| hinted(said)),
        }
    }
}

/// The parser's message, with a hint if the cause is usually the indentation.
fn hinted(said: String) -> String {
    if said.contains("found a tab") {
        return format!("{said}; indent with spaces");
    }
    if said.contains("mapping values are not allowed") {
        return format!("{said}; check the indentation here and in the line before");
    }
    said
}

/// The message for a document that exceeds a limit, from that of the parser. None: it exceeds none.
fn limit(said: &str) -> Option<String> {
    if !said.starts_with("YAML document too large or too complex") {
        return None;
    }

    Some(if said.contains("Depth") {
        format!("a document has at most {DEPTH_MAX} levels; nest less")
    } else if said.contains("total_replayed_events") {
        format!(
            "its aliases (*name) expand to more than {VALUES_MAX} values; use fewer, or write the \
             values out"
        )
    } else {
        format!(
            "it is too large: a document has at most {VALUES_MAX} values, and the same number \
             through aliases (*name); split it, or use fewer aliases"
        )
    })
}

// === impl FilePosition ===

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(line, column) = self;
        for number in [line, column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
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
        assert!(error.message.contains("duplicate mapping key: a"), "{error:?}");

        let error = read("a: 1\n---\nb: 2\n").unwrap_err();
        assert!(error.message.contains("single YAML document expected"), "{error:?}");

        let error = read("a: 1\nb: c: d\n").unwrap_err();
        assert_eq!((error.line, error.column), (Some(2), Some(5)), "{error:?}");
    }

    #[test]
    fn a_plain_word_is_what_yaml_1_2_says_it_is() {
        for (text, value) in [
            ("", json!({})),
            ("# nothing", json!({})),
            ("~", json!(null)),
            ("null", json!(null)),
            ("true", json!(true)),
            ("False", json!(false)),
            ("yes", json!("yes")),
            ("No", json!("No")),
            ("on", json!("on")),
            ("n", json!("n")),
            ("5", json!(5)),
            ("+5", json!(5)),
            ("-5", json!(-5)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("0b11", json!("0b11")),
            ("1_000", json!("1_000")),
            ("1_000.5", json!("1_000.5")),
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("12:30", json!("12:30")),
            ("2026-11-21", json!("2026-11-21")),
            ("2026-11-21T09:30:00Z", json!("2026-11-21T09:30:00Z")),
            ("'5'", json!("5")),
            ("!!str 5", json!("5")),
            ("[::]:8080x", json!("refused")),
            ("1: a", json!({"1": "a"})),
            ("{<<: {a: 1}, b: 2}", json!({"<<": {"a": 1}, "b": 2})),
            ("a: &a [1]\nb: *a", json!({"a": [1], "b": [1]})),
            ("a: |\n  b\n  c\n", json!({"a": "b\nc\n"})),
        ] {
            assert_eq!(read(text).unwrap_or_else(|_| json!("refused")), value, "{text}");
        }
    }

    #[test]
    fn numbers_that_json_lacks_arrive_as_text() {
        assert_eq!(read("[.nan, -.inf, 1e999]"), Ok(json!([".nan", "-.inf", "1e999"])));
    }

    #[test]
    fn nesting_and_repetition_are_bounded() {
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"- ".repeat(100_000)).is_err());
        for (level, end) in [("[", "]"), ("- ", "")] {
            let nested = |levels: usize| read(&(level.repeat(levels) + &end.repeat(levels)));
            assert!(nested(24).is_ok());
            let error = nested(25).unwrap_err();
            assert_eq!(error.message, "a document has at most 24 levels; nest less");
            assert_eq!((error.line, error.column.is_some()), (Some(1), true), "{error:?}");
        }

        let levels: Vec<String> = (1..6)
            .map(|level| {
                let below = vec![format!("*a{}", level - 1); 10].join(",");
                format!("a{level}: &a{level} [{below}]")
            })
            .collect();
        let bomb = format!("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n{}", levels.join("\n"));
        let error = read(&bomb).unwrap_err();
        let said = "its aliases (*name) expand to more than 200000 values; use fewer";
        assert!(error.message.starts_with(said), "{error:?}");
        assert!(error.line.is_some(), "{error:?}");

        let error = read(&"- 1\n".repeat(200_001)).unwrap_err();
        assert!(error.message.contains("at most 200000 values"), "{error:?}");

        let many = format!("a: &a 1\nb: [{}]", vec!["*a"; 1000].join(","));
        assert_eq!(read(&many).unwrap()["b"].as_array().unwrap().len(), 1000);
        let commented = format!("a:\n{}  b: 1\n", "  # one line of many\n".repeat(100));
        assert_eq!(read(&commented), Ok(json!({"a": {"b": 1}})));
    }
}
