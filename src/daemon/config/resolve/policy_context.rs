//! The context in which a policy is resolved: the parts of the file that all policies share.

use std::time::Duration;

use crate::config::effective::VariantConfig;
use crate::config::resolve::scrape::ResolvedScrape;
use crate::config::wva::WvaDefaults;

/// The context in which a policy is resolved.
pub(crate) struct PolicyContext<'a> {
    /// All variants, if the file lists all of them.
    pub(super) known: Option<&'a [VariantConfig]>,
    /// True if there is a cluster.
    pub(super) cluster: bool,
    /// The age from which data from Prometheus is stale; `None` without a Prometheus.
    pub(super) relayed: Option<Duration>,
    /// The defaults below the sections.
    pub(super) wva: &'a WvaDefaults,
    pub(super) global: &'a ResolvedScrape,
    pub(super) variants: &'a [VariantConfig],
}
