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
    /// A hash of all that is written in the template, which `kubectl rollout restart` changes too;
    /// `None` if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
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

/// Bytes that the values of variables may add to the command line of a container. Values may refer to
/// each other, so a short template could otherwise become a text of any length.
pub const EXPANSION_MAX: usize = 1 << 20;

/// The longest name of a variable in a reference.
const NAME_MAX: usize = 256;

/// References of Kubernetes: `$(NAME)` is the variable, `$$(NAME)` the text, and an unknown name
/// stays as it is written. So does one whose value has more bytes than `room`, from which values are
/// taken.
#[must_use]
pub fn expand_references(
    word: &str,
    environment: &BTreeMap<String, String>,
    room: &mut usize,
) -> String {
    let mut expanded = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else if let Some((name, behind)) =
            after.strip_prefix('(').and_then(|inner| split_name(inner, b')'))
            && let Some(value) = environment.get(name)
            && let Some(left) = room.checked_sub(value.len())
        {
            *room = left;
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

/// Splits a text at the ASCII character that ends a name; `None` if it does not come soon.
pub(crate) fn split_name(text: &str, end: u8) -> Option<(&str, &str)> {
    let at = text.bytes().take(NAME_MAX).position(|byte| byte == end)?;
    Some((&text[..at], &text[at + 1..]))
}
