//! The file that keeps the desired replicas across a restart.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll::config::{self, Files, Surroundings};
use plimsoll::pipeline::Pipeline;
use plimsoll::pipeline::saved::MemoryLength;
use plimsoll::publish::state::{SavedDecision, StateError, encode, parse};

/// Reads a state file; the result can be written and read again, and a pipeline can continue from
/// it.
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
    let text = encode(first.written, &saved, Some(MemoryLength::Whole))
        .expect("all of it has a shape in JSON");
    let again = read(&text).unwrap_or_else(|error| panic!("{saved:?}: {error:?}"));
    assert_eq!(again.len(), saved.len());
    for (one, other) in saved.iter().zip(&again) {
        // JSON may change the last digit of learned values.
        assert_eq!(one.memory.is_some(), other.memory.is_some());
        // Entries of other releases are not written.
        let bare = |one: &SavedDecision| SavedDecision {
            memory: None,
            strange: Vec::new(),
            ..one.clone()
        };
        assert_eq!(bare(one), bare(other));
    }
    // The pipeline must accept the memory if it is valid, and ignore it otherwise.
    for one in saved {
        let mut pipeline = pipeline();
        pipeline.restore(one.written, one.variant.clone(), one.desired, one.at);
        if let Some(memory) = &one.memory {
            pipeline.recall(one.written, &one.model, &one.variant, memory);
            assert!(pipeline.memory(&one.model, &one.variant).is_some());
        }
    }
}

fn read(content: &[u8]) -> Result<Vec<SavedDecision>, StateError> {
    parse(Path::new("/var/lib/plimsoll/state.json"), content)
}

/// A pipeline with all defaults.
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
