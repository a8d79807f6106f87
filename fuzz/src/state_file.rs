//! The file in which numbers survive a restart.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll::config::{self, Files, Surroundings};
use plimsoll::pipeline::Pipeline;
use plimsoll::pipeline::saved::Length;
use plimsoll::publish::state::{Saved, StateError, encode, parse};

/// Reads a state file; what is read can be written and read again, and a pipeline goes on from it.
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
    assert!(saved.iter().all(|one| one.variant.namespace == one.model.namespace));
    let text = encode(first.written, &saved, Length::Whole).expect("all of it has a shape in JSON");
    let again = read(&text).unwrap_or_else(|error| panic!("{saved:?}: {error:?}"));
    assert_eq!(again.len(), saved.len());
    for (one, other) in saved.iter().zip(&again) {
        // The last digit of what was learned may be another after JSON.
        assert_eq!(one.memory.is_some(), other.memory.is_some());
        // What is not known here is not written again.
        let bare = |one: &Saved| Saved { memory: None, strange: Vec::new(), ..one.clone() };
        assert_eq!(bare(one), bare(other));
    }
    // What it is made of must be sound, or left alone.
    for one in saved {
        let mut pipeline = pipeline();
        pipeline.restore(one.written, one.variant.clone(), one.desired, one.at);
        if let Some(memory) = &one.memory {
            pipeline.recall(one.written, &one.model, &one.variant, memory);
            assert!(pipeline.memory(&one.model, &one.variant).is_some());
        }
    }
}

fn read(content: &[u8]) -> Result<Vec<Saved>, StateError> {
    parse(Path::new("/var/lib/plimsoll/state.json"), content)
}

/// One with every default.
fn pipeline() -> Pipeline {
    let surroundings = Surroundings {
        origin: "plimsoll.yaml".to_owned(),
        base: "/etc/plimsoll".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let text = "variants: [{name: a, model: m, targets: {static: [h]}}]";
    let loaded = config::parse(text, &surroundings).expect("a sound configuration");
    Pipeline::new(loaded.config.policy)
}
