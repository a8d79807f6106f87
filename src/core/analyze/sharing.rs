//! Variants that may use the learned values of others of their kind.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::Namespace;
use crate::settings;

/// The variants that may use each other's cards and measured capacities.
///
/// The owner of a pod writes its page of metrics. A card from it sizes other variants, and its title
/// tells their owners the name and the traffic of the variant that taught it. Namespaces are the
/// border between owners, so by default no card crosses it. Cards of the configuration are the
/// operator's own and are for all namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CardSharing {
    /// Those of the same namespace.
    #[default]
    Namespace,
    /// Those of all namespaces.
    Cluster,
}

settings! { plain: CardSharing; }

impl CardSharing {
    /// The namespace that shares with a variant of this namespace; `None` for all.
    pub(crate) const fn within(self, namespace: &Namespace) -> Option<&Namespace> {
        match self {
            Self::Namespace => Some(namespace),
            Self::Cluster => None,
        }
    }
}
