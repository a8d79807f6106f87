//! What may be used, as written.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

sections! {
    /// What all variants together may use; see docs/limits.md.
    Limits {
        /// What all replicas together may cost in an hour, in the currency of `cost`.
        budget_per_hour: f64,
        /// Accelerators by their kind, all namespaces together; of a kind that is not listed, none.
        accelerators: BTreeMap<String, Option<u32>>,
        /// Whether what the nodes have limits all variants: their accelerators without what other
        /// pods take. Needs `kubernetes.enabled`.
        nodes: bool,
        /// Whether `ResourceQuota`s limit the variants of their namespaces. Needs
        /// `kubernetes.enabled`.
        quotas: bool,
        /// What products are called, by the names that nodes give them.
        names: BTreeMap<String, Option<String>>,
        /// The same for single namespaces.
        namespaces: BTreeMap<String, Option<NamespaceLimits>>,
        /// How models stand beside others where not everybody gets what is asked for, by
        /// `MODEL#NAMESPACE`.
        models: BTreeMap<String, Option<Standing>>,
    }

    /// What the variants of one namespace may use.
    NamespaceLimits {
        /// What their replicas may cost in an hour.
        budget_per_hour: f64,
        /// Accelerators by their kind; of a kind that is not listed, none.
        accelerators: BTreeMap<String, Option<u32>>,
    }

    /// How a model stands beside others.
    Standing {
        /// Nobody of a lower priority gets what one of a higher priority can use.
        priority: u32,
        /// Among models of one priority, how much of what it wants this one gets beside others.
        weight: f64,
        /// Accelerators up to which it comes before all others, as far as it wants them.
        guaranteed: u32,
    }
}
