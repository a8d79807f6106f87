//! The file in which numbers survive a restart.

use std::path::Path;

use plimsoll::publish::state::{Saved, StateError, parse};
use serde_json::json;

/// Reads a state file; what is read can be written and read again.
pub fn check(input: &[u8]) {
    let saved = match read(input) {
        Ok(saved) => saved,
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("state.json") && said.contains("delete it"), "{said}");
            return;
        }
    };
    let Some(first) = saved.first() else { return };
    let decisions: Vec<_> = saved.iter().map(line).collect();
    let written = first.written.to_string();
    let text = json!({"version": 1, "written": written, "decisions": decisions}).to_string();
    let again = read(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_eq!(again, saved);
}

fn read(content: &[u8]) -> Result<Vec<Saved>, StateError> {
    parse(Path::new("/var/lib/plimsoll/state.json"), content)
}

fn line(saved: &Saved) -> serde_json::Value {
    let Saved { variant, model, desired, at, written } = saved;
    assert_eq!(variant.namespace, model.namespace);
    json!({
        "namespace": variant.namespace.as_str(), "variant": variant.variant.as_str(),
        "model": model.model.as_str(), "desired": desired.count(), "at": at.to_string(),
        "written": written.to_string(),
    })
}
