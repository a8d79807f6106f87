//! Scale targets of variants.

use plimsoll_core::fleet::VariantKey;

/// A variant whose scale target is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVariant {
    /// The variant. Its target is in the variant's namespace.
    pub variant: VariantKey,
    /// Its scale target.
    pub target: WantedTarget,
}

/// The scale target of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedTarget {
    /// An object of any kind that has a scale subresource.
    Scale {
        /// Its API version, such as `apps/v1`.
        api_version: String,
        /// Its kind, such as `Deployment`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The pods that this label selector matches, if no object has a scale subresource.
    Selector(String),
    /// No target in the cluster: the replicas are listed elsewhere. The variant's name is still
    /// taken.
    Elsewhere,
}

/// Returns the group in an `apiVersion`: `apps` for `apps/v1`, empty for `v1`.
pub(crate) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
