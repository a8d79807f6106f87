//! The pod template of a scale target: the resources of a replica, and the start arguments of its
//! engine.
//!
//! A template exists even without replicas, so it describes a variant at zero. It describes the
//! next replica, which during a rollout differs from the last one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fleet::VariantKey;
use crate::observe::inventory::ReplicaUnit;

/// The variable that selects the generation of vLLM. No command line refers to it.
pub const VLLM_GENERATION: &str = "VLLM_USE_V1";

/// The templates of variants whose scale targets have one with usable content.
pub type Templates = BTreeMap<VariantKey, Arc<PodTemplate>>;

/// The pods that a scale target makes for one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodTemplate {
    /// The accelerators of one replica, all its pods together; `None` if its containers request
    /// none.
    pub unit: Option<ReplicaUnit>,
    /// The containers of the pod that answers, which is the leader in a group.
    pub containers: Vec<Container>,
    /// A hash of all that is written in the template, which `kubectl rollout restart` changes too; 0
    /// if it was not recorded.
    #[serde(default, skip_serializing_if = "is_unrecorded")]
    pub revision: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_unrecorded(revision: &u64) -> bool {
    *revision == 0
}

/// A container as its pod's template writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The image.
    pub image: String,
    /// The command.
    pub command: Vec<String>,
    /// The arguments.
    pub args: Vec<String>,
    /// Variables whose values are known.
    pub environment: BTreeMap<String, String>,
    /// Files with known contents by path, for example from a mounted `ConfigMap`.
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
