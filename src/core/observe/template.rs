//! What the pod template of a scale target says: what a replica takes, and how its engine is
//! started.
//!
//! A template is there while no replica is, so it speaks for a variant at zero. It says what the
//! next replica will be, which in a rollout is not what the last one is.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fleet::VariantKey;
use crate::observe::inventory::ReplicaUnit;

/// The variable that chooses between generations of vLLM, which no command line refers to.
pub const VLLM_GENERATION: &str = "VLLM_USE_V1";

/// The templates of the variants whose scale targets have one that says anything.
pub type Templates = BTreeMap<VariantKey, Arc<Template>>;

/// The pods that a scale target makes for one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// What one replica takes of accelerators, all its pods together; `None` where its containers
    /// ask for none.
    pub unit: Option<ReplicaUnit>,
    /// The containers of the pod that answers: of a group, its leader.
    pub containers: Vec<Container>,
}

/// A container as its pod's template writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The image.
    pub image: String,
    /// What is run.
    pub command: Vec<String>,
    /// What it is given.
    pub args: Vec<String>,
    /// Variables whose values are known.
    pub environment: BTreeMap<String, String>,
    /// Files whose contents are known, by path; of a `ConfigMap` that is mounted, say.
    pub files: BTreeMap<String, String>,
}

/// References of Kubernetes: `$(NAME)` is the variable, `$$(NAME)` the text, and an unknown name
/// stays as it is written.
#[must_use]
pub fn expand_references(word: &str, environment: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else if let Some((name, behind)) =
            after.strip_prefix('(').and_then(|inner| inner.split_once(')'))
            && let Some(value) = environment.get(name)
        {
            expanded.push_str(value);
            rest = behind;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}
