//! From text and environment to a file as written, noting every key that cannot be read.
//!
//! The layers are merged as JSON values. Reading those into a file's type stops at the first key
//! that is unknown or has the wrong type. The error is then noted with its path, the key is
//! removed, and the rest is read again, until no error is left.

use std::collections::BTreeMap;

use config::{Config as Layers, ConfigError, Environment, Map, Source, Value as Layer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::config::yaml;
use plimsoll_core::settings::problem::{Problems, is_within, join, nearest};

/// The prefix of environment variables that set a key. It is followed by two underscores, because
/// Kubernetes itself sets variables such as `PLIMSOLL_PORT` in every pod next to a Service named
/// plimsoll.
pub(crate) const PREFIX: &str = "PLIMSOLL";

/// The separator that replaces a dot in the name of an environment variable.
pub(crate) const SEPARATOR: &str = "__";

/// The longest value that a message repeats.
const FOUND_MAX: usize = 60;

/// Merges the environment over the file.
pub(crate) fn merge(
    mut file: Value,
    environment: &BTreeMap<String, String>,
    problems: &mut Problems,
) -> Result<Value, ConfigError> {
    refuse_paths(&mut file, problems);
    let variables = environment.iter().map(|(name, value)| (name.clone(), value.clone()));
    let environment = Environment::with_prefix(PREFIX)
        .separator(SEPARATOR)
        .ignore_empty(true)
        .source(Some(variables.collect()));

    Layers::builder()
        .add_source(Tree(
            Layer::deserialize(file).map_err(|error| ConfigError::Message(error.to_string()))?,
        ))
        .add_source(Variables(environment))
        .build()?
        .try_deserialize()
}

/// The environment variable that sets the value at a path.
pub(super) fn variable<'a>(
    environment: &'a BTreeMap<String, String>,
    path: &str,
) -> Option<&'a str> {
    let mut set = environment.iter().filter(|(_, value)| !value.is_empty());
    let (name, _) = set.find(|(name, _)| {
        let keys = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(SEPARATOR));
        let set = keys.map(|keys| indexed(&keys.to_lowercase().replace(SEPARATOR, ".")));
        set.is_some_and(|set| is_within(path, &set))
    })?;
    Some(name)
}

/// Reads all valid keys, and notes the others.
pub fn read<T: DeserializeOwned + Default>(mut value: Value, problems: &mut Problems) -> T {
    refuse_holes(&value, "", problems);
    // Each round removes one value, so the loop ends.
    loop {
        let error = match serde_path_to_error::deserialize(&value) {
            Ok(file) => return file,
            Err(unread) => unread,
        };

        let keys: Vec<PathKey> = error.path().iter().filter_map(PathKey::new).collect();
        let path = keys.iter().fold(String::new(), |parent, key| key.join(&parent));
        let found = take(&mut value, &keys);
        let Some(found) = found else {
            problems.error_at(path, error.inner().to_string());
            return T::default();
        };

        note(problems, path, &error.inner().to_string(), &found);
    }
}

/// A value as a layer.
#[derive(Clone, Debug)]
struct Tree(Layer);

impl Source for Tree {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Layer>, ConfigError> {
        self.0.clone().into_table()
    }
}

/// Environment variables whose values are read as YAML, so that numbers and lists can be set.
#[derive(Clone, Debug)]
struct Variables(Environment);

impl Source for Variables {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Layer>, ConfigError> {
        let mut read = Map::new();
        for (key, layer) in self.0.collect()? {
            let text = layer.into_string()?;
            // A text that is not YAML on its own, such as `[::]:8080`, is taken literally.
            let value = yaml::read(&text).unwrap_or(Value::String(text));
            let layer = Layer::deserialize(value)
                .map_err(|error| ConfigError::Message(error.to_string()))?;
            read.insert(indexed(&key), layer);
        }

        Ok(read)
    }
}

/// Adds the brackets that the layers need around a list index. Most shells do not allow them in the
/// name of a variable: `variants.0.cost` becomes `variants[0].cost`.
fn indexed(key: &str) -> String {
    key.split('.').fold(String::new(), |key, part| match part.parse::<u16>() {
        Ok(index) if !key.is_empty() => format!("{key}[{index}]"),
        Ok(_) | Err(_) if key.is_empty() => part.to_owned(),
        Ok(_) | Err(_) => format!("{key}.{part}"),
    })
}

/// One part of a path.
enum PathKey {
    Index(usize),
    Name(String),
}

impl PathKey {
    fn new(segment: &Segment) -> Option<Self> {
        match segment {
            Segment::Seq { index } => Some(Self::Index(*index)),
            Segment::Map { key } => Some(Self::Name(key.clone())),
            Segment::Enum { .. } | Segment::Unknown => None,
        }
    }

    fn join(&self, path: &str) -> String {
        match self {
            Self::Index(index) => format!("{path}[{index}]"),
            Self::Name(name) => join(path, name),
        }
    }
}

/// Removes the value at the end of a path: from a mapping with its key, from a list by leaving a
/// hole.
fn take(value: &mut Value, keys: &[PathKey]) -> Option<Value> {
    let (last, parents) = keys.split_last()?;
    let parent = parents.iter().try_fold(value, |value, key| match key {
        PathKey::Index(index) => value.get_mut(*index),
        PathKey::Name(name) => value.get_mut(name),
    })?;

    match last {
        // A hole that is rejected again would be rejected forever.
        PathKey::Index(index) => {
            parent.get_mut(*index).filter(|item| !item.is_null()).map(Value::take)
        }
        // `shift_remove` keeps the order of the other keys, and therefore the order of the
        // problems.
        PathKey::Name(name) => parent.as_object_mut()?.shift_remove(name),
    }
}

/// Removes keys that the layers would read as paths: `a.b` is a key, and not `b` in `a`.
fn refuse_paths(file: &mut Value, problems: &mut Problems) {
    let Value::Object(map) = file else { return };
    map.retain(|key, _| {
        let path = key.contains(['.', '[']);
        if path {
            problems.error_at(join("", key), "is not a known key; keys are nested, not dotted");
        }
        !path
    });
}

/// Notes empty list elements, before `take` leaves holes that look the same.
fn refuse_holes(value: &Value, path: &str, problems: &mut Problems) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if item.is_null() {
                    problems.error_at(path, "must not be empty");
                } else {
                    refuse_holes(item, &path, problems);
                }
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                refuse_holes(item, &join(path, key), problems);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Notes an error of serde in the wording of the other problems.
fn note(problems: &mut Problems, path: String, message: &str, found: &Value) {
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let (what, expected) = match message.split_once(", there are no ") {
        Some((what, _)) => (what, ""),
        None => (what, expected),
    };

    if what.starts_with("unknown field") {
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        let word = what.split('`').nth(1).unwrap_or_default();
        let rule = match nearest(word, known.iter().copied()) {
            Some(nearest) => format!("is not a known key; did you mean `{nearest}`?"),
            None => format!("is not a known key; valid keys are {}", known.join(", ")),
        };
        problems.error_at(path, rule);
    } else if expected.is_empty() {
        problems.error(path, format!("cannot be read ({what})"), shown(found));
    } else {
        problems.error(path, format!("must be {}", allowed(expected)), shown(found));
    }
}

/// Words the type that serde expects for a configuration file.
fn allowed(expected: &str) -> String {
    match expected {
        "f64" => "a number".to_owned(),
        "u16" => "a whole number from 0 to 65535".to_owned(),
        "u32" => "a whole number from 0 to 4294967295".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a mapping".to_owned(),
        _ if expected.starts_with("struct ") => "a mapping".to_owned(),
        _ => expected.replace('`', ""),
    }
}

/// A value as messages show it, with its type visible and its length limited.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= FOUND_MAX {
        return text;
    }
    let cut: String = text.chars().take(FOUND_MAX).collect();
    format!("{cut}...")
}
